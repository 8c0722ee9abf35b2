// po_checks.cpp -- shadow memory: who last wrote and who read each granule, and whether that is ordered before now.
//
// The order is happens-before with vector clocks [FastTrack09], so a race is found on any schedule of the threads and
// not by luck. Reads are kept exactly: per block round as (warp, epoch, lanes), per launch as two distinct blocks.
#include <algorithm>
#include <dlfcn.h>
#include <link.h>

#include "po_runtime.h"

extern "C" { extern char __start_po_shared[] __attribute__((weak)), __stop_po_shared[] __attribute__((weak)); }

namespace po {
namespace {

struct Write { uint32_t launch = 0, block = 0, round = 0, epoch = 0; uint16_t thread = 0; uint8_t kind = 0; const void* pc = nullptr; };
struct Read { uint32_t epoch, lanes, next; uint16_t warp; const void* pc; };
struct Cell {
  Write write;
  uint32_t round = 0, block = 0, launch = 0, reads = 0;  // of the list of reads, which is for one round of one block
  uint32_t reader[2] = {0, 0}, reader_launch = 0;        // two blocks that have read it in this launch, plus one
  const void* reader_pc[2] = {nullptr, nullptr};
  uint32_t under_way = 0, under_way_launch = 0, under_way_block = 0;  // reads that have begun and not ended
  const void* under_way_pc = nullptr;
  bool is_under_way() const { return under_way && under_way_launch == launch_number && under_way_block == block_number; }
};

struct Buffer {
  uintptr_t start, end;
  std::string name;
  bool is_shared, is_initialised;
  unsigned granule = 4;
  std::vector<Cell> cells;
  size_t count() const { return (end - start + granule - 1) / granule; }
};

std::vector<Buffer> buffers;
std::vector<Read> reads(1);  // index 0 ends a list
std::map<std::pair<const void*, std::string>, int> seen;
std::string text;
int problems = 0;
size_t last_hit = 0;
uintptr_t image_start = 0, image_end = 0;  // this library, whose constants kernels may read

int find_image(dl_phdr_info* info, size_t, void* wanted) {
  uintptr_t low = UINTPTR_MAX, high = 0;
  for (int i = 0; i < info->dlpi_phnum; ++i)
    if (info->dlpi_phdr[i].p_type == PT_LOAD) {
      uintptr_t at = info->dlpi_addr + info->dlpi_phdr[i].p_vaddr;
      low = std::min(low, at), high = std::max(high, at + info->dlpi_phdr[i].p_memsz);
    }
  if ((uintptr_t)wanted < low || (uintptr_t)wanted >= high) return 0;
  image_start = low, image_end = high;
  return 1;
}

Buffer* find(uintptr_t a, int n) {
  if (last_hit < buffers.size() && a >= buffers[last_hit].start && a + n <= buffers[last_hit].end) return &buffers[last_hit];
  for (size_t i = 0; i < buffers.size(); ++i)
    if (a >= buffers[i].start && a + n <= buffers[i].end) return last_hit = i, &buffers[i];
  return nullptr;
}

// Elements narrower than the granule: each cell stands for several from now on.
void refine(Buffer& b, unsigned granule) {
  std::vector<Cell> finer((b.end - b.start + granule - 1) / granule);
  for (size_t i = 0; i < finer.size(); ++i) {
    finer[i] = b.cells[i * granule / b.granule];
    finer[i].reads = 0;
    bool now = finer[i].launch == launch_number && finer[i].block == block_number;
    for (uint32_t r = now ? b.cells[i * granule / b.granule].reads : 0; r; r = reads[r].next) {
      reads.push_back({reads[r].epoch, reads[r].lanes, finer[i].reads, reads[r].warp, reads[r].pc});
      finer[i].reads = reads.size() - 1;
    }
  }
  b.cells.swap(finer), b.granule = granule;
}

std::string where(const Buffer& b, uintptr_t a) { return b.name + "+" + std::to_string(a - b.start); }
std::string other(const char* did, int thread, uint32_t block, const void* pc) {
  char at[32];
  snprintf(at, sizeof at, "@%p", pc);
  return std::string("; ") + did + " by " + thread_name(thread, block) + " at " + at;
}

bool is_ordered(const Write& w, bool shared) {
  if (!w.launch || w.launch != launch_number) return true;
  if (w.block != block_number) return shared;  // shared memory is another one in each block
  const Clock& c = current->clock;
  if (w.thread == current->linear || w.round < c.round) return true;
  return w.epoch <= c.known[w.thread];
}

// A read of this round that is not ordered before the present; 0 where there is none.
uint32_t unordered_read(const Cell& c) {
  const Clock& mine = current->clock;
  if (!c.reads || c.launch != launch_number || c.block != block_number || c.round < mine.round) return 0;
  for (uint32_t r = c.reads; r; r = reads[r].next)
    for (int l = 0; l < 32; ++l)
      if (reads[r].lanes >> l & 1) {
        int t = reads[r].warp * 32 + l;
        if (t != current->linear && reads[r].epoch > mine.known[t]) return r;
      }
  return 0;
}

void note_read(Cell& c, const void* pc, bool shared) {
  const Clock& mine = current->clock;
  uint32_t warp = current->linear / 32, lane = 1u << (current->linear & 31);
  if (c.launch != launch_number || c.block != block_number || c.round != mine.round)
    c.launch = launch_number, c.block = block_number, c.round = mine.round, c.reads = 0;
  if (!shared) {
    if (c.reader_launch != launch_number) c.reader_launch = launch_number, c.reader[0] = c.reader[1] = 0;
    if (!c.reader[0] || c.reader[0] == block_number + 1) c.reader[0] = block_number + 1, c.reader_pc[0] = pc;
    else c.reader[1] = block_number + 1, c.reader_pc[1] = pc;
  }
  for (uint32_t r = c.reads; r; r = reads[r].next) {
    if (reads[r].warp != warp) continue;
    if (reads[r].epoch == mine.epoch) { reads[r].lanes |= lane; return; }
    bool passed = true;  // whether each read there happens before this one, which then stands for it
    for (int l = 0; l < 32 && passed; ++l)
      if (reads[r].lanes >> l & 1 && (int)(warp * 32 + l) != current->linear) passed = reads[r].epoch <= mine.known[warp * 32 + l];
    if (passed) { reads[r].epoch = mine.epoch, reads[r].lanes = lane, reads[r].pc = pc; return; }
  }
  reads.push_back({mine.epoch, lane, c.reads, (uint16_t)warp, pc});
  c.reads = reads.size() - 1;
}

// Whether the thread that wrote has called po_async_fence since.
bool is_fenced(const Write& w) {
  const Thread& t = threads[w.thread];
  return t.fence_round > w.round || (t.fence_round == w.round && t.fence_epoch > w.epoch);
}

void begin_read(Cell& c, const void* pc) {
  if (!c.is_under_way()) c.under_way = 0, c.under_way_launch = launch_number, c.under_way_block = block_number;
  ++c.under_way, c.under_way_pc = pc;
}

void check_read(Buffer& b, Cell& c, uintptr_t a, bool is_async, const void* pc) {
  const Write& w = c.write;
  bool is_written = w.launch && (!b.is_shared || (w.launch == launch_number && w.block == block_number));
  if (!is_written && !b.is_initialised)
    report(b.is_shared ? "read of uninitialised shared memory" : "read of an element that nothing has written", pc, where(b, a));
  if (is_written && w.kind == COPY_BEGUN && w.launch == launch_number && w.block == block_number)
    report("read of a cp.async destination before its wait", pc, where(b, a) + other("copy issued", w.thread, w.block, w.pc));
  else if (!is_ordered(w, b.is_shared))
    report("race: read after unordered write", pc, where(b, a) + other("written", w.thread, w.block, w.pc));
  if (is_async && is_written && !is_fenced(w))
    report("read by a product of four warps of what no po_async_fence has followed", pc, where(b, a) + other("written", w.thread, w.block, w.pc));
  note_read(c, pc, b.is_shared);
}

void check_write(Buffer& b, Cell& c, uintptr_t a, int kind, const void* pc) {
  const Write& w = c.write;
  bool both_atomic = kind == ATOMIC && w.kind == ATOMIC;
  bool ends_own_copy = kind == COPY_ENDED && w.kind == COPY_BEGUN && w.thread == current->linear;
  if (!both_atomic && !ends_own_copy && w.kind == COPY_BEGUN && w.launch == launch_number && w.block == block_number)
    report("write to a cp.async destination before its wait", pc, where(b, a) + other("copy issued", w.thread, w.block, w.pc));
  else if (!both_atomic && !is_ordered(w, b.is_shared))
    report("race: write after unordered write", pc, where(b, a) + other("written", w.thread, w.block, w.pc));
  if (c.is_under_way())
    report("write to what a product of four warps may still read", pc, where(b, a) + other("read", current->linear, block_number, c.under_way_pc));
  if (uint32_t r = unordered_read(c))
    report("race: write after unordered read", pc, where(b, a) + other("read", reads[r].warp * 32 + __builtin_ctz(reads[r].lanes), block_number, reads[r].pc));
  if (!b.is_shared && c.reader_launch == launch_number)
    for (int i = 0; i < 2; ++i)
      if (c.reader[i] && c.reader[i] != block_number + 1)
        report("race: write after unordered read", pc, where(b, a) + other("read", 0, c.reader[i] - 1, c.reader_pc[i]));
  c.write = {launch_number, block_number, current->clock.round, current->clock.epoch, (uint16_t)current->linear, (uint8_t)kind, pc};
}
}  // namespace

std::string thread_name(int linear, uint32_t block) {
  return "thread " + std::to_string(linear) + " of block " + std::to_string(block);
}

void report(const std::string& what, const void* pc, const std::string& detail) {
  if (seen[{pc, what}]++) return;
  char at[32];
  snprintf(at, sizeof at, "%p", pc);
  text += what + "\t" + at + "\t" + detail + (current ? "; " + thread_name(current->linear, block_number) : "") + "\n";
  ++problems;
}

bool is_shared(uintptr_t a) {
  Buffer* b = find(a, 1);
  return b && b->is_shared;
}

static void access(const void* p, int n, int kind, const void* pc, bool is_bytes) {
  if (!checking || !current || n <= 0) return;
  uintptr_t a = (uintptr_t)p;
  if (is_private(a)) return;
  Buffer* b = find(a, n);
  if (!b) {
    if (kind == READ && a >= image_start && a + n <= image_end) return;
    const Buffer* nearest = nullptr;
    long distance = 0;
    for (auto& c : buffers) {
      long d = a < c.start ? (long)(c.start - a) : (long)(a + n - c.end);
      if (c.end > c.start && (!nearest || d < distance)) nearest = &c, distance = d;
    }
    std::string detail = "address " + std::to_string(a);
    if (nearest) detail = nearest->name + (a < nearest->start ? "-" : "+") + std::to_string(a < nearest->start ? nearest->start - a : a - nearest->start) +
      " of " + std::to_string(nearest->end - nearest->start) + " bytes";
    report("access outside every buffer", pc, detail);
    stop();  // the access itself must not happen
  }
  if (!is_bytes && a % (n >= 16 ? 16 : n)) {
    report("misaligned access of " + std::to_string(n) + " bytes", pc, where(*b, a));
    stop();
  }
  if (tracing && kind == WRITE && b->is_shared) forget_copy(a, n);
  if (counting && kind <= ATOMIC) current->events.push_back({pc, a, (uint16_t)n, (uint8_t)(kind | (b->is_shared ? 0 : GLOBAL))});
  unsigned fit = (a - b->start) | n;
  unsigned granule = fit & 1 ? 1 : fit & 2 ? 2 : 4;
  if (granule < b->granule) refine(*b, granule);
  for (size_t g = (a - b->start) / b->granule, end = (a - b->start + n - 1) / b->granule; g <= end; ++g) {
    bool is_read = kind == READ || kind == READ_ASYNC;
    if (kind == READ_BEGUN) begin_read(b->cells[g], pc);
    else if (kind == READ_ENDED) --b->cells[g].under_way;
    else if (is_read) check_read(*b, b->cells[g], b->start + g * b->granule, kind == READ_ASYNC, pc);
    else check_write(*b, b->cells[g], b->start + g * b->granule, kind, pc);
  }
}

extern "C" void po_access(const void* p, int n, int kind, const void* pc) { access(p, n, kind, pc, false); }
void access_bytes(const void* p, size_t n, int kind, const void* pc) { access(p, n, kind, pc, true); }

// --- clocks --------------------------------------------------------------------------------------------------

namespace {
void forget(Clock& c, int linear) {
  if (c.wide) std::fill(c.known.begin(), c.known.end(), 0);
  else for (int u = linear & ~31; u < std::min(thread_count, (linear & ~31) + 32); ++u) c.known[u] = 0;
  c.wide = false, c.epoch = 1;
}
}  // namespace

void join_block() {
  if (checking)
    for (auto& t : threads) ++t.clock.round, forget(t.clock, t.linear);
}

void join(const std::vector<int>& members) {
  if (!checking || members.empty()) return;
  bool wide = false;
  int warp = members[0] / 32;
  for (int m : members) wide |= threads[m].clock.wide || m / 32 != warp;
  int from = wide ? 0 : warp * 32, to = wide ? thread_count : std::min(thread_count, warp * 32 + 32);
  std::vector<uint32_t> all(thread_count, 0);
  for (int m : members) {
    Clock& c = threads[m].clock;
    for (int u = from; u < to; ++u) all[u] = std::max(all[u], c.known[u]);
    all[m] = std::max(all[m], c.epoch);
  }
  for (int m : members) {
    Clock& c = threads[m].clock;
    std::copy(all.begin() + from, all.begin() + to, c.known.begin() + from);
    c.wide |= wide, ++c.epoch;
  }
}

void release_to(std::vector<uint32_t>& clock, uint32_t& round) {
  if (!checking) return;
  Clock& mine = current->clock;
  if (clock.size() != (size_t)thread_count || round < mine.round) clock.assign(thread_count, 0), round = mine.round;
  for (int u = 0; u < thread_count; ++u) clock[u] = std::max(clock[u], mine.known[u]);
  clock[current->linear] = mine.epoch++;
}

void acquire_from(const std::vector<uint32_t>& clock, uint32_t round, Thread& thread) {
  Clock& mine = thread.clock;
  if (!checking || clock.empty() || round < mine.round) return;
  for (int u = 0; u < thread_count; ++u) mine.known[u] = std::max(mine.known[u], clock[u]);
  mine.wide = true;
}

// --- buffers and the log ---------------------------------------------------------------------------------------

void start_checks(bool on) {
  checking = on;
  if (!image_end) dl_iterate_phdr(find_image, (void*)&find_image);
}

void set_dynamic_shared(size_t n) {
  if (!checking) return;
  for (size_t i = 0; i < buffers.size(); ++i)
    if (buffers[i].start == (uintptr_t)po_dynamic_shared) buffers.erase(buffers.begin() + i--);
  if (n) po_register(po_dynamic_shared, n, "shared memory", 1, 0);
}

void begin_block_checks() {
  reads.resize(1);
  for (auto& t : threads) {
    t.clock.round = 0;
    t.clock.known.resize(thread_count);
    t.clock.wide = true, forget(t.clock, t.linear);
  }
}

extern "C" {
void po_register(void* p, size_t n, const char* name, int shared, int initialised) {
  buffers.push_back({(uintptr_t)p, (uintptr_t)p + n, name, shared != 0, initialised != 0, 4, {}});
  buffers.back().cells.resize(buffers.back().count());
}
void po_reset() { start_counters(), buffers.clear(), seen.clear(), text.clear(), problems = 0, last_hit = 0, launch_number = 0; }
const char* po_log() { return text.c_str(); }
int po_problems() { return problems; }
size_t po_static_shared(void** start) {
  *start = __start_po_shared;
  return &__start_po_shared ? __stop_po_shared - __start_po_shared : 0;
}
}
}  // namespace po

// --- the compiler's -fsanitize=thread hooks, ours instead of libtsan's -------------------------------------------
#define PC __builtin_return_address(0)
#define HOOK(n, suffix)                                                                  \
  void __tsan_read##suffix(void* p) { po::po_access(p, n, po::READ, PC); }               \
  void __tsan_write##suffix(void* p) { po::po_access(p, n, po::WRITE, PC); }             \
  void __tsan_volatile_read##suffix(void* p) { po::po_access(p, n, po::READ, PC); }      \
  void __tsan_volatile_write##suffix(void* p) { po::po_access(p, n, po::WRITE, PC); }    \
  void __tsan_unaligned_read##suffix(void* p) { po::po_access(p, n, po::READ, PC); }     \
  void __tsan_unaligned_write##suffix(void* p) { po::po_access(p, n, po::WRITE, PC); }   \
  void __tsan_unaligned_volatile_read##suffix(void* p) { po::po_access(p, n, po::READ, PC); } \
  void __tsan_unaligned_volatile_write##suffix(void* p) { po::po_access(p, n, po::WRITE, PC); }
extern "C" {
// of -fsanitize=bounds: an index that is not one of an array whose length the text says
void __ubsan_handle_out_of_bounds(void*, void* index) {
  po::report("index outside an array of the kernel's own", PC, "index " + std::to_string((intptr_t)index));
  po::stop();
}
void __tsan_init() {}
void __tsan_func_entry(void*) {}
void __tsan_func_exit() {}
void __tsan_vptr_update(void**, void*) {}
void __tsan_vptr_read(void**) {}
HOOK(1, 1) HOOK(2, 2) HOOK(4, 4) HOOK(8, 8) HOOK(16, 16)
void __tsan_read_range(void* p, size_t n) { po::access_bytes(p, n, po::READ, PC); }
void __tsan_write_range(void* p, size_t n) { po::access_bytes(p, n, po::WRITE, PC); }
void* __tsan_memcpy(void* d, const void* s, size_t n) {
  po::access_bytes(s, n, po::READ, PC), po::access_bytes(d, n, po::WRITE, PC);
  return memcpy(d, s, n);
}
void* __tsan_memmove(void* d, const void* s, size_t n) {
  po::access_bytes(s, n, po::READ, PC), po::access_bytes(d, n, po::WRITE, PC);
  return memmove(d, s, n);
}
void* __tsan_memset(void* d, int c, size_t n) { return po::access_bytes(d, n, po::WRITE, PC), memset(d, c, n); }
}
