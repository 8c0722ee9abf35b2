// po_groups.cpp -- products of four warps (wgmma), whose operands stay in shared memory and which run on their own.
//
// A group runs as late as the program allows: when it is waited for. Until then its sums hold NaN, so that a missing wait
// shows on any input, and what it reads must not be written from its issue on. Each lane adds up its own sums, and
// announces a 32nd part of what its warp reads.
#include <limits>

#include "po_runtime.h"

namespace po {
// Where a point of an operand's side has a step of the sum: atoms of 8 lines of 128 bytes, whose 16-byte parts are
// exchanged by the line's number; a turned operand has panels of 64 points with a line for each of 64 steps.
uintptr_t element_of(const void* start, int point, int step, bool is_turned) {
  uintptr_t place = is_turned ? point / 64 * 8192 + step * 128 + point % 64 * 2 : point * 128 + step * 2;
  uintptr_t at = (uintptr_t)start + place;
  return at ^ (at >> 7 & 7) << 4;
}

namespace {
std::vector<float> elements(const void* start, int point, bool is_turned, bool is_f16) {
  std::vector<float> found(16);
  for (int k = 0; k < 16; ++k) {
    uint16_t h;
    memcpy(&h, (const void*)element_of(start, point, k, is_turned), 2);
    found[k] = is_f16 ? po_from_f16(h) : po_from_bf16(h);
  }
  return found;
}

void announce(const void* start, int first, int points, bool is_turned, Access kind, const void* pc) {
  int lane = current->linear & 31, near = lane % 16, far = lane / 16 * 8;
  for (int p = first; p < first + points; p += 16) {
    uintptr_t at = is_turned ? element_of(start, p + far, near, true) : element_of(start, p + near, far, false);
    po_access((const void*)at, 16, kind, pc);
  }
}

void announce(const GroupProduct& p, Access kind) {  // a 32nd part of what the warp reads
  int warp = current->linear / 32 % 4;
  announce(p.a, 16 * warp, 16, p.left_turned, kind, p.pc), announce(p.b, 0, p.columns, p.right_turned, kind, p.pc);
}

void add(const GroupProduct& p, std::vector<float>& sums) {
  int lane = current->linear & 31, warp = current->linear / 32 % 4;
  announce(p, READ_ENDED), announce(p, READ_ASYNC);
  std::vector<float> rows[2];
  for (int e = 0; e < 2; ++e) rows[e] = elements(p.a, 16 * warp + lane / 4 + 8 * e, p.left_turned, p.is_f16);
  for (int n = 0; n < p.columns / 4; ++n) {
    std::vector<float> column = elements(p.b, n / 2 * 8 + lane % 4 * 2 + n % 2, p.right_turned, p.is_f16);
    for (int e = 0; e < 2; ++e) {
      float sum = 0;
      for (int k = 0; k < 16; ++k) sum += rows[e][k] * column[k];
      sums[e * p.columns / 4 + n] += sum;
    }
  }
  trace_group(p);
}

bool starts_an_atom(const void* start, bool is_turned) {
  return (uintptr_t)start % 1024 < (is_turned ? 1u : 128u) && (uintptr_t)start % 16 == 0;
}

void check(const GroupProduct& p) {
  if (thread_count % 128) report("a product of four warps in a block of other threads", p.pc, std::to_string(thread_count)), stop();
  if (!current->has_begun) report("a product of four warps without po_wgmma_begin", p.pc, "");
  if (!starts_an_atom(p.a, p.left_turned) || !starts_an_atom(p.b, p.right_turned))
    report("an operand of four warps does not start with an atom of 1024 bytes", p.pc, ""), stop();
}

void all_lanes(void**, unsigned) {}
}  // namespace

void end_groups() {
  for (auto& group : current->products)
    if (!group.empty()) return report("a product of four warps is never waited for", group[0].pc, "");
}

extern "C" {
void po_group_fence() { current->fence_round = current->clock.round, current->fence_epoch = ++current->clock.epoch; }
void po_group_begin(const void*) { current->has_begun = true; }
void po_group_commit() { current->products.emplace_back(), current->has_begun = false; }

void po_group_product(const GroupProduct* product) {
  const GroupProduct& p = *product;
  check(p);
  po_warp_collective(WGMMA, ~0u, all_lanes, nullptr, p.pc);
  std::vector<float>& sums = current->sums[p.upper];
  if (sums.empty()) {
    int half = p.columns / 4;
    sums.assign(p.upper, p.upper + half), sums.insert(sums.end(), p.lower, p.lower + half);
    for (int i = 0; i < half; ++i) p.upper[i] = p.lower[i] = std::numeric_limits<float>::quiet_NaN();
  }
  announce(p, READ_BEGUN);
  current->products.back().push_back(p);
}

void po_group_wait(int keep) {  // for all but the newest `keep` committed groups of this thread
  auto& groups = current->products;
  std::map<float*, GroupProduct> done;
  while ((int)groups.size() > keep + 1) {
    for (auto& p : groups.front()) add(p, current->sums[p.upper]), done[p.upper] = p;
    groups.erase(groups.begin());
  }
  for (auto& group : groups)
    for (auto& p : group) done.erase(p.upper);
  for (auto& [upper, p] : done) {
    std::vector<float>& sums = current->sums[upper];
    std::copy(sums.begin(), sums.begin() + p.columns / 4, upper);
    std::copy(sums.begin() + p.columns / 4, sums.end(), p.lower);
    current->sums.erase(upper);
  }
}
}
}  // namespace po
