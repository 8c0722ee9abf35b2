// po_counters.cpp -- how well a warp's accesses use the memory system, per place in the kernel's text.
//
// The n-th access of each lane at one place is one request of the warp. A global request costs the 32-byte sectors it
// touches, at best as many as its bytes need. A shared request costs wavefronts: as many as the most different 4-byte
// words that fall into one of 32 banks; accesses of 16 bytes go 8 lanes at a time, of 8 bytes 16 lanes.
#include <algorithm>

#include "po_runtime.h"

namespace po {
namespace {
struct Count { uint64_t requests = 0, used = 0, ideal = 0; };
struct Place {
  const void* pc;
  int bytes, kind;
  bool operator<(const Place& o) const { return std::tie(pc, bytes, kind) < std::tie(o.pc, o.bytes, o.kind); }
};
std::map<Place, Count> counts;

typedef std::vector<std::pair<int, Event>> Request;  // lane and access

template <class T> size_t distinct(std::vector<T>& v) {
  std::sort(v.begin(), v.end());
  v.erase(std::unique(v.begin(), v.end()), v.end());
  return v.size();
}

void count_sectors(const Request& request, Count& count) {
  std::vector<uintptr_t> sectors, pieces;  // pieces of the largest size that divides every access
  uintptr_t size = 16;
  for (auto& [lane, e] : request) while ((e.address | e.n) % size) size /= 2;
  for (auto& [lane, e] : request) {
    for (uintptr_t s = e.address / 32; s <= (e.address + e.n - 1) / 32; ++s) sectors.push_back(s);
    for (uintptr_t a = e.address; a < e.address + e.n; a += size) pieces.push_back(a);
  }
  count.used += distinct(sectors);
  count.ideal += (distinct(pieces) * size + 31) / 32;
}

void count_wavefronts(const Request& request, Count& count) {
  int bytes = request[0].second.n, together = bytes >= 16 ? 8 : bytes == 8 ? 16 : 32;
  for (int first = 0; first < 32; first += together) {
    std::vector<uintptr_t> words;
    for (auto& [lane, e] : request)
      if (lane >= first && lane < first + together)
        for (uintptr_t w = e.address / 4; w <= (e.address + e.n - 1) / 4; ++w) words.push_back(w);
    if (!distinct(words)) continue;
    int in_bank[32] = {}, most = 0;
    for (auto w : words) most = std::max(most, ++in_bank[w % 32]);
    count.used += most, ++count.ideal;
  }
}
}  // namespace

void start_counters() { counts.clear(); }

void count_warps() {
  for (int first = 0; first < thread_count; first += 32) {
    std::map<std::pair<const void*, int>, Request> requests;
    for (int lane = 0; lane < 32 && first + lane < thread_count; ++lane) {
      std::unordered_map<const void*, int> times;
      for (auto& e : threads[first + lane].events) requests[{e.pc, times[e.pc]++}].push_back({lane, e});
      threads[first + lane].events.clear();
    }
    for (auto& [key, request] : requests) {
      const Event& e = request[0].second;
      Count& count = counts[{key.first, e.n, e.kind}];
      ++count.requests;
      if (e.kind & GLOBAL) count_sectors(request, count);
      else count_wavefronts(request, count);
    }
  }
}

extern "C" int po_count(int i, const void** pc, int* kind, int* bytes, uint64_t* values) {
  if (i >= (int)counts.size()) return 0;
  auto it = std::next(counts.begin(), i);
  *pc = it->first.pc, *kind = it->first.kind, *bytes = it->first.bytes;
  values[0] = it->second.requests, values[1] = it->second.used, values[2] = it->second.ideal;
  return 1;
}
}  // namespace po
