// po_products.cpp -- where the operands of tensor cores come from, and so which product each step of an mma adds.
//
// An asynchronous copy says where in global memory each byte of shared memory comes from, ldmatrix takes that along into
// registers, and mma can be asked: are an operand's elements equally spaced along the sum, alike in all rows, and is the
// product of two elements added to one sum only? That holds for contractions of plain arrays, and not where the layout of a
// copy and the places that ldmatrix reads disagree. Elements that came another way, zeros among them, are not looked at.
#include <utility>

#include "po_runtime.h"

extern "C" size_t po_static_shared(void** start);

namespace po {
namespace {
struct Origins { uintptr_t byte[4]; };  // of a register's bytes; 0 where unknown

std::unordered_map<const void*, Origins> registers;  // by address: threads have stacks of their own
struct Region { uintptr_t start; std::vector<uintptr_t> words; };  // of each 4 bytes of shared memory
Region regions[2];                                                  // declared, and asked for at the launch
std::map<std::pair<uintptr_t, uintptr_t>, uintptr_t> sums;  // where the product of two elements is added

uintptr_t* word(uintptr_t a) {
  for (Region& r : regions)
    if (a >= r.start && (a - r.start) / 4 < r.words.size()) return &r.words[(a - r.start) / 4];
  return nullptr;
}

uintptr_t origin(uintptr_t a) {
  uintptr_t* w = word(a);
  return w && *w ? *w + a % 4 : 0;
}

uintptr_t element(const po_u32* fragment, int packed, int r, int i) {
  auto found = registers.find(fragment + r);
  return found == registers.end() ? 0 : found->second.byte[i * (4 / packed)];
}

void check_spaces(const std::vector<std::vector<uintptr_t>>& rows, const char* which, const void* pc) {
  intptr_t space = 0;
  for (auto& row : rows)
    for (size_t k = 1; k < row.size(); ++k) {
      if (!row[k] || !row[k - 1]) continue;
      intptr_t here = row[k] - row[k - 1];
      if (!here || (space && here != space))
        return report("elements of an mma's operand are not equally spaced along the sum", pc, std::string("its ") + which + " operand, step " + std::to_string(k));
      space = here;
    }
}
}  // namespace

void begin_block_products() {
  void* shared;
  size_t bytes = po_static_shared(&shared);
  regions[0] = {(uintptr_t)shared, std::vector<uintptr_t>(bytes / 4 + 1, 0)};
  regions[1] = {(uintptr_t)po_dynamic_shared, std::vector<uintptr_t>(dynamic_bytes / 4, 0)};
  registers.clear(), sums.clear();
}

void note_copy(const void* dst, const void* src, int n, int zeros) {
  for (int i = 0; i < n + zeros; i += 4) {
    uintptr_t* w = word((uintptr_t)dst + i);
    if (w) *w = i < n ? (uintptr_t)src + i : 0;
  }
}

void forget_copy(uintptr_t a, int n) {
  for (uintptr_t at = a & ~(uintptr_t)3; at < a + n; at += 4)
    if (uintptr_t* w = word(at)) *w = 0;
}

// The same of a product of four warps, as far as this lane has a part in it: rows of its own, columns of its sums.
void trace_group(const GroupProduct& p) {
  if (!tracing) return;
  int lane = current->linear & 31, warp = current->linear / 32 % 4;
  auto origins = [&](const void* start, int point, bool is_turned) {
    std::vector<uintptr_t> found;
    for (int k = 0; k < 16; ++k) found.push_back(origin(element_of(start, point, k, is_turned)));
    return found;
  };
  std::vector<std::vector<uintptr_t>> a, b;
  for (int e = 0; e < 2; ++e) a.push_back(origins(p.a, 16 * warp + lane / 4 + 8 * e, p.left_turned));
  for (int n = 0; n < p.columns / 4; ++n) b.push_back(origins(p.b, n / 2 * 8 + lane % 4 * 2 + n % 2, p.right_turned));
  check_spaces(a, "first", p.pc), check_spaces(b, "second", p.pc);
  for (int e = 0; e < 2; ++e)
    for (size_t n = 0; n < b.size(); ++n) {
      uintptr_t one = a[e][0], two = b[n][0], to = (uintptr_t)((e ? p.lower : p.upper) + n);
      if (one && two && sums.emplace(std::make_pair(one, two), to).first->second != to)
        return report("the product of two elements is added to two sums", p.pc, "row " + std::to_string(16 * warp + lane / 4 + 8 * e) + ", sum " + std::to_string(n));
    }
}

extern "C" {
// rows: addresses of the rows of `count` 8x8 matrices; to: the registers of each lane
void po_trace_fetch(const void* const* rows, int count, int turned, po_u32* const* to) {
  if (!tracing) return;
  for (int m = 0; m < count; ++m)
    for (int l = 0; l < 32; ++l) {
      const void* const* t = rows + 8 * m;
      int i = l / 4, j = 2 * (l % 4);
      Origins o;
      for (int b = 0; b < 4; ++b) o.byte[b] = origin(turned ? (uintptr_t)t[j + b / 2] + 2 * i + b % 2 : (uintptr_t)t[i] + 2 * j + b);
      registers[to[l] + m] = o;
    }
}

void po_trace_unzip(const po_u32* even, const po_u32* odd) {
  if (!tracing) return;
  Origins one = registers[even], two = registers[odd];
  registers[even] = {{one.byte[0], one.byte[2], two.byte[0], two.byte[2]}};
  registers[odd] = {{one.byte[1], one.byte[3], two.byte[1], two.byte[3]}};
}

// packed: elements of a register; left, right: the fragments of each lane; to: where each lane's four sums are
void po_trace_product(int packed, const po_u32* const* left, const po_u32* const* right, const uintptr_t (*to)[4], const void* pc) {
  if (!tracing) return;
  int steps = 8 * packed;
  std::vector<std::vector<uintptr_t>> a(16, std::vector<uintptr_t>(steps)), b(8, std::vector<uintptr_t>(steps));
  for (int l = 0; l < 32; ++l)
    for (int i = 0; i < packed; ++i)
      for (int half = 0; half < 2; ++half) {
        int g = l / 4, k = l % 4 * packed + i + 4 * packed * half;
        a[g][k] = element(left[l], packed, 2 * half, i);
        a[g + 8][k] = element(left[l], packed, 2 * half + 1, i);
        b[g][k] = element(right[l], packed, half, i);
      }
  check_spaces(a, "first", pc), check_spaces(b, "second", pc);
  for (int l = 0; l < 32; ++l)
    for (int e = 0; e < 4; ++e) {
      uintptr_t one = a[l / 4 + e / 2 * 8][0], two = b[l % 4 * 2 + e % 2][0];
      if (one && two && sums.emplace(std::make_pair(one, two), to[l][e]).first->second != to[l][e])
        report("the product of two elements is added to two sums", pc, "row " + std::to_string(l / 4 + e / 2 * 8) + ", column " + std::to_string(l % 4 * 2 + e % 2));
    }
}
}
}  // namespace po
