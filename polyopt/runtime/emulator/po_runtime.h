// po_runtime.h -- what the parts of the emulator share: threads as fibers, their clocks, the registered buffers.
//
// po_fibers.cpp  one fiber per CUDA thread; barriers, warp collectives, asynchronous copies; launches
// po_checks.cpp  shadow memory and happens-before: races, uninitialised reads, missing waits, accesses out of bounds
// po_products.cpp  where the operands of tensor cores come from
// po_groups.cpp  products of four warps, which run on their own
// po_counters.cpp  sectors and shared-memory wavefronts of each warp's accesses, per place in the code
#pragma once
#include <cstdint>
#include <cstring>
#include <map>
#include <string>
#include <unordered_map>
#include <vector>

#define PO_RUNTIME
#include "po_emu.h"
#undef threadIdx
#undef blockIdx
#undef blockDim
#undef gridDim

namespace po {

enum State { READY, AT_BARRIER, AT_WARP, AT_MBARRIER, DONE };

// The happens-before order inside one block. Every thread has an epoch, which moves on when the thread releases what
// it has done (at a barrier); `known[u]` is the last epoch of thread u that happens before this thread's present. A
// barrier of the whole block orders everything before it, so `round` (how many of them passed) comes first and `known`
// restarts at each. While `wide` is false only the entries of the thread's own warp can be other than 0.
struct Clock {
  uint32_t round = 0, epoch = 1;
  bool wide = false;
  std::vector<uint32_t> known;
};

struct Copy { void* dst; const void* src; int n, zeros; const void* pc; };
struct Event { const void* pc; uintptr_t address; uint16_t n; uint8_t kind; };

struct Thread {
  State state = READY;
  uint3 tid{};
  int linear = 0;
  const void* at = nullptr;  // where it waits, for reports
  int line = 0, barrier = 0, op = 0;
  unsigned mask = 0;
  void* argument = nullptr;
  po_u64* mbarrier = nullptr;
  po_u32 parity = 0;
  Clock clock;
  std::vector<std::vector<Copy>> groups;  // cp.async: committed groups, the last one open
  std::vector<std::vector<GroupProduct>> products;      // of four warps: committed groups, the last one open
  std::map<float*, std::vector<float>> sums;            // under way, by where the thread has them
  bool has_begun = false;                               // a group of products
  uint32_t fence_round = 0, fence_epoch = 0;            // of its last po_async_fence
  std::vector<Event> events;
  void* stack_pointer = nullptr;
  void* context = nullptr;  // where the processor has no switch of ours
};

extern std::vector<Thread> threads;
extern Thread* current;
extern int thread_count;
extern uint32_t block_number, launch_number;
extern bool checking, counting, tracing, stopped;
extern size_t dynamic_bytes;  // of shared memory, asked for at the launch

bool is_private(uintptr_t address);  // on a fiber's stack, or threadIdx and the like
[[noreturn]] void stop();            // ends the launch from within a fiber

// po_checks.cpp
void start_checks(bool on);
void begin_block_checks();
void set_dynamic_shared(size_t bytes);
extern "C" void po_register(void* p, size_t n, const char* name, int shared, int initialised);
void report(const std::string& what, const void* pc, const std::string& detail);
std::string thread_name(int linear, uint32_t block);
void join_block();                                         // a barrier of the whole block
void join(const std::vector<int>& lanes);                  // a barrier of some threads
void release_to(std::vector<uint32_t>& clock, uint32_t& round);  // an arrival without waiting
void acquire_from(const std::vector<uint32_t>& clock, uint32_t round, Thread& thread);
bool is_shared(uintptr_t address);

// po_products.cpp
void begin_block_products();
void note_copy(const void* dst, const void* src, int n, int zeros);
void forget_copy(uintptr_t address, int n);
void trace_group(const GroupProduct& product);

// po_groups.cpp
uintptr_t element_of(const void* start, int point, int step, bool is_turned);
void end_groups();  // of a thread that returns

// po_counters.cpp
void start_counters();
void count_warps();
}  // namespace po
