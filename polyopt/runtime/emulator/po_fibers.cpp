// po_fibers.cpp -- CUDA threads as fibers: a block runs to completion, blocks one after the other.
//
// A thread runs until it must wait. Asynchronous copies complete as late as the program allows: their destination holds
// NaN from issue to wait, so a missing wait shows on any input. Built without -fsanitize, linked into every kernel.
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <sys/mman.h>
#if !defined(__x86_64__)
#include <ucontext.h>
#endif

#include "po_runtime.h"

namespace po {
extern "C" { Ctx po_ctx; alignas(1024) unsigned char po_dynamic_shared[po_dynamic_limit]; }
std::vector<Thread> threads;
Thread* current = nullptr;
int thread_count = 0;
uint32_t block_number = 0, launch_number = 0;
bool checking = false, counting = false, tracing = false, stopped = false;
size_t dynamic_bytes = 0;

namespace {
const size_t STACK = 128 << 10;
char* stacks = nullptr;
size_t stack_count = 0;
void free_stacks() { if (stacks) munmap(stacks, stack_count * STACK), stacks = nullptr, stack_count = 0; }
struct AtUnload { ~AtUnload() { free_stacks(); } } at_unload;
int live = 0;
void (*entry)(void**) = nullptr;
void** entry_arguments = nullptr;

struct Barrier { std::vector<int> waiting; std::vector<uint32_t> clock; uint32_t round = 0; int arrived = 0; };
struct Mbarrier { int expected = 0, pending = 0; po_u32 phase = 0; std::vector<uint32_t> clock, passed; uint32_t round = 0, passed_round = 0; };
Barrier barriers[16];  // barrier 0 is that of __syncthreads
std::map<po_u64*, Mbarrier> mbarriers;

// --- fibers ---------------------------------------------------------------------------------------------------

#if defined(__x86_64__)
extern "C" void po_switch(void** save, void* to);
asm(".text\n.globl po_switch\n.hidden po_switch\n.type po_switch,@function\npo_switch:\n"
    "pushq %rbp\npushq %rbx\npushq %r12\npushq %r13\npushq %r14\npushq %r15\n"
    "movq %rsp,(%rdi)\nmovq %rsi,%rsp\n"
    "popq %r15\npopq %r14\npopq %r13\npopq %r12\npopq %rbx\npopq %rbp\nret\n");
void* scheduler = nullptr;
void to_scheduler() { po_switch(&current->stack_pointer, scheduler); }
void to_thread(Thread& t) { po_switch(&scheduler, t.stack_pointer); }
void prepare(Thread& t, char* stack, void (*run)()) {
  void** sp = (void**)(stack + STACK) - 2;
  sp[0] = (void*)run, sp[1] = nullptr;
  memset(sp -= 6, 0, 48);
  t.stack_pointer = sp;
}
#else
ucontext_t scheduler;
std::vector<ucontext_t> contexts;
void to_scheduler() { swapcontext((ucontext_t*)current->context, &scheduler); }
void to_thread(Thread& t) { swapcontext(&scheduler, (ucontext_t*)t.context); }
void prepare(Thread& t, char* stack, void (*run)()) {
  contexts.resize(thread_count);
  ucontext_t& c = contexts[t.linear];
  getcontext(&c);
  c.uc_stack.ss_sp = stack, c.uc_stack.ss_size = STACK, c.uc_link = nullptr;
  makecontext(&c, run, 0);
  t.context = &c;
}
#endif

void wait(State state, const void* pc) {
  current->state = state, current->at = pc;
  to_scheduler();
  po_ctx.tid = current->tid;
}

void complete(size_t keep) {  // all but the newest `keep` committed groups of this thread
  auto& groups = current->groups;
  while (groups.size() > keep + 1) {
    for (auto& c : groups.front()) {
      po_access(c.dst, c.n + c.zeros, COPY_ENDED, c.pc);
      memcpy(c.dst, c.src, c.n), memset((char*)c.dst + c.n, 0, c.zeros);
    }
    groups.erase(groups.begin());
  }
}

void run_fiber() {
  po_ctx.tid = current->tid;
  entry(entry_arguments);
  current->groups.emplace_back();
  complete(0);
  end_groups();
  current->state = DONE, --live;
  to_scheduler();
  abort();
}
}  // namespace

bool is_private(uintptr_t a) {
  return a - (uintptr_t)stacks < stack_count * STACK || a - (uintptr_t)&po_ctx < sizeof po_ctx;
}

[[noreturn]] void stop() {
  stopped = true;
  to_scheduler();
  abort();
}

// --- barriers ---------------------------------------------------------------------------------------------------

namespace {
void open_barrier(int id) {
  std::vector<int> waiting;
  waiting.swap(barriers[id].waiting);
  for (int t : waiting) {
    acquire_from(barriers[id].clock, barriers[id].round, threads[t]);
    threads[t].state = READY;
  }
  if (id == 0) join_block();
  else join(waiting);
  barriers[id].arrived = 0, barriers[id].clock.clear();
}

bool open_block_barrier() {  // once every thread that has not returned is there
  Barrier& b = barriers[0];
  if (b.waiting.empty() || (int)b.waiting.size() < live) return false;
  int line = threads[b.waiting[0]].line;
  for (int t : b.waiting)
    if (threads[t].line != line) {
      report("threads of a block wait at different __syncthreads", threads[t].at, "lines " + std::to_string(line) + " and " + std::to_string(threads[t].line));
      stopped = true;
      return true;
    }
  open_barrier(0);
  return true;
}
}  // namespace

extern "C" void po_block_barrier(int line, const void* pc) {
  current->line = line;
  barriers[0].waiting.push_back(current->linear);
  wait(AT_BARRIER, pc);
}

// bar.sync and bar.arrive of a part of the block: `count` threads in all, of which those that only arrive go on.
extern "C" void po_named_barrier(int id, int count, int waits, const void* pc) {
  Barrier& b = barriers[id];
  Thread& me = *current;
  ++b.arrived;
  if (!waits) release_to(b.clock, b.round);
  else b.waiting.push_back(me.linear), me.barrier = id;
  if (b.arrived == count) {
    open_barrier(id);
    return;
  }
  if (waits) wait(AT_BARRIER, pc);
}

extern "C" void po_mbarrier_init(po_u64* m, int count) {
  Mbarrier b;
  b.expected = b.pending = count;
  mbarriers[m] = b;
}

extern "C" void po_mbarrier_arrive(po_u64* m, const void* pc) {
  auto it = mbarriers.find(m);
  if (it == mbarriers.end()) report("arrival at a barrier object that was not initialised", pc, ""), stop();
  Mbarrier& b = it->second;
  release_to(b.clock, b.round);
  if (--b.pending) return;
  b.phase ^= 1, b.pending = b.expected, b.passed = b.clock, b.passed_round = b.round;
  for (auto& t : threads)
    if (t.state == AT_MBARRIER && t.mbarrier == m && t.parity != b.phase) {
      acquire_from(b.passed, b.passed_round, t);
      t.state = READY;
    }
}

extern "C" void po_mbarrier_wait(po_u64* m, po_u32 parity, const void* pc) {
  auto it = mbarriers.find(m);
  if (it == mbarriers.end()) report("wait at a barrier object that was not initialised", pc, ""), stop();
  Mbarrier& b = it->second;
  if (b.phase != (parity & 1)) {
    acquire_from(b.passed, b.passed_round, *current);
    return;
  }
  current->mbarrier = m, current->parity = parity & 1;
  wait(AT_MBARRIER, pc);
}

// Each lane of `mask` waits with its argument; the last one to come runs `fn` for all of them.
extern "C" void po_warp_collective(int op, unsigned mask, Collective fn, void* argument, const void* pc) {
  Thread& me = *current;
  int first = me.linear & ~31;
  if (first + 32 > thread_count) mask &= (1u << (thread_count - first)) - 1;
  if (!(mask >> (me.linear & 31) & 1)) report("a lane calls a warp operation whose mask leaves it out", pc, ""), stop();
  me.op = op, me.mask = mask, me.argument = argument, me.state = AT_WARP, me.at = pc;
  void* arguments[32] = {};
  for (int l = 0; l < 32; ++l) {
    if (!(mask >> l & 1)) continue;
    Thread& other = threads[first + l];
    if (other.state != AT_WARP || other.op != op || other.mask != mask) {
      wait(AT_WARP, pc);
      return;
    }
    arguments[l] = other.argument;
  }
  fn(arguments, mask);
  std::vector<int> lanes;
  for (int l = 0; l < 32; ++l)
    if (mask >> l & 1) threads[first + l].state = READY, lanes.push_back(first + l);
  if (op == SYNCWARP) join(lanes);  // no other warp operation orders memory
}

// --- asynchronous copies -----------------------------------------------------------------------------------------

extern "C" void po_copy_begin(void* dst, const void* src, int n, int zeros, const void* pc) {
  if (n) po_access(src, n, READ, pc);
  po_access(dst, n + zeros, COPY_BEGUN, pc);
  memset(dst, 0xff, n + zeros);
  if (tracing) note_copy(dst, src, n, zeros);
  current->groups.back().push_back({dst, src, n, zeros, pc});
}
extern "C" void po_copy_commit() { current->groups.emplace_back(); }
extern "C" void po_copy_wait(int keep) { complete(keep); }

// --- launches ------------------------------------------------------------------------------------------------------

namespace {
void reserve_stacks() {
  if (stack_count >= (size_t)thread_count) return;
  free_stacks();
  stacks = (char*)mmap(nullptr, thread_count * STACK, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (stacks == MAP_FAILED) stacks = nullptr, stack_count = 0;
  else stack_count = thread_count;
}

void begin_block(const unsigned* block) {
  for (auto& b : barriers) b = Barrier();
  mbarriers.clear();
  live = thread_count;
  for (int i = 0; i < thread_count; ++i) {
    Thread& t = threads[i];
    t.state = READY, t.linear = i, t.groups.assign(1, {});
    t.products.assign(1, {}), t.sums.clear(), t.has_begun = false, t.fence_round = t.fence_epoch = 0;
    t.tid = {i % block[0], i / block[0] % block[1], i / (block[0] * block[1])};
    prepare(t, stacks + i * STACK, run_fiber);
  }
  if (checking) begin_block_checks();
  if (tracing) begin_block_products();
}

void report_deadlock() {
  const char* places[] = {"", "a barrier", "a warp operation", "a barrier object"};
  for (auto& t : threads)
    if (t.state != DONE && t.state != READY) {
      current = &t;
      report(std::string("deadlock at ") + places[t.state], t.at, std::to_string(live) + " of " + std::to_string(thread_count) + " threads have not returned");
    }
  current = nullptr;
  stopped = true;
}

void run_block(const std::vector<int>& order) {
  while (live && !stopped) {
    bool moved = false;
    for (int i : order)
      if (threads[i].state == READY) {
        current = &threads[i];
        to_thread(threads[i]);
        current = nullptr, moved = true;
        if (stopped) return;
      }
    moved |= open_block_barrier();
    if (!moved) report_deadlock();
  }
}

void shuffle(std::vector<int>& order, unsigned& seed) {
  for (int i = thread_count - 1; i > 0; --i) {
    seed = seed * 1664525u + 1013904223u;
    std::swap(order[i], order[(seed >> 8) % (i + 1)]);
  }
}
}  // namespace

extern "C" size_t po_static_shared(void** start);
extern "C" int po_problems();

// mode 0: run; 1: with checks; 2: and with counters; 3: or with where products come from. seed 0: threads in order, 1: in reverse, else in random order.
// Returns the number of problems found so far, or -1 where there is no memory for the threads' stacks.
extern "C" int po_launch(void (*f)(void**), const unsigned* grid, const unsigned* block, void** arguments, size_t dynamic, int mode, unsigned seed) {
  entry = f, entry_arguments = arguments, thread_count = block[0] * block[1] * block[2];
  stopped = false, counting = mode == 2, tracing = mode == 3, ++launch_number;
  start_checks(mode >= 1);
  dynamic_bytes = dynamic, set_dynamic_shared(dynamic);
  reserve_stacks();
  if (!stacks) return -1;
  threads.assign(thread_count, Thread());
  po_ctx.bdim = {block[0], block[1], block[2]}, po_ctx.gdim = {grid[0], grid[1], grid[2]};
  std::vector<int> order(thread_count);
  for (int i = 0; i < thread_count; ++i) order[i] = seed == 1 ? thread_count - 1 - i : i;
  void* shared;
  size_t shared_bytes = po_static_shared(&shared);
  block_number = 0;
  for (unsigned z = 0; z < grid[2] && !stopped; ++z)
    for (unsigned y = 0; y < grid[1] && !stopped; ++y)
      for (unsigned x = 0; x < grid[0] && !stopped; ++x, ++block_number) {
        po_ctx.bid = {x, y, z};
        memset(shared, 0xff, shared_bytes), memset(po_dynamic_shared, 0xff, dynamic);
        if (seed > 1) shuffle(order, seed);
        begin_block(block);
        run_block(order);
        if (counting) count_warps();
      }
  return po_problems();
}
}  // namespace po
