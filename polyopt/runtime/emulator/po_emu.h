// po_emu.h -- the vocabulary of generated kernels for g++: CUDA's own names and those of po_device.h as functions.
//
// A kernel is compiled as it is for a GPU, with -fsanitize=thread where it is checked: the compiler then announces each
// load and store to hooks of ours (libtsan is never linked). What loads and stores here announces itself. `pc` is the
// place in the kernel that a report names.
#pragma once
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <initializer_list>
#include <tuple>
#include <utility>

#define PO_KERNEL extern "C" __attribute__((noinline))
#define PO_DEVICE inline
#define PO_SHARED alignas(128) static __attribute__((section("po_shared")))
#define PO_DYN_SHARED(name) unsigned char *name = po::po_dynamic_shared
#define PO_HIDDEN __attribute__((no_sanitize("thread"), noinline))
#define PO_PC __builtin_return_address(0)
#define __launch_bounds__(...)
#define __global__
#define __device__
#define __host__
#define __constant__
#define __forceinline__ inline
#define __noinline__ __attribute__((noinline))
#define __align__(n) alignas(n)
#define __restrict__

using std::isfinite;
using std::isinf;
using std::isnan;
using std::signbit;

typedef uint32_t po_u32;
typedef unsigned long long po_u64;
struct uint3 { unsigned x, y, z; };
struct dim3 { unsigned x, y, z; };

namespace po {
// 64 rows by `columns` and 16 steps; is_f16: else bf16
struct GroupProduct { float *upper, *lower; const void *a, *b; int columns; bool is_f16, left_turned, right_turned; const void *pc; };
struct Ctx { uint3 tid, bid; dim3 bdim, gdim; };
constexpr size_t po_dynamic_limit = 232448;
enum Access { READ = 0, WRITE = 1, ATOMIC = 2, COPY_BEGUN = 3, COPY_ENDED = 4, READ_ASYNC = 5, READ_BEGUN = 6, READ_ENDED = 7, GLOBAL = 16 };
enum Operation { SHFL = 1, SHFL_XOR, SHFL_DOWN, SHFL_UP, SYNCWARP, VOTE, LDMATRIX, MMA, WGMMA };
typedef void (*Collective)(void **arguments, unsigned mask);
extern "C" {
extern Ctx po_ctx;
extern unsigned char po_dynamic_shared[];
void po_access(const void *p, int bytes, int kind, const void *pc);
void po_block_barrier(int line, const void *pc);
void po_named_barrier(int id, int count, int waits, const void *pc);
void po_mbarrier_init(po_u64 *m, int count);
void po_mbarrier_arrive(po_u64 *m, const void *pc);
void po_mbarrier_wait(po_u64 *m, po_u32 parity, const void *pc);
void po_warp_collective(int op, unsigned mask, Collective fn, void *argument, const void *pc);
void po_copy_begin(void *dst, const void *src, int bytes, int zeros, const void *pc);
void po_copy_commit();
void po_copy_wait(int keep);
void po_trace_fetch(const void *const *rows, int count, int turned, po_u32 *const *to);
void po_trace_unzip(const po_u32 *even, const po_u32 *odd);
void po_group_fence();
void po_group_begin(const void *pc);
void po_group_product(const struct GroupProduct *product);
void po_group_commit();
void po_group_wait(int keep);
void po_trace_product(int packed, const po_u32 *const *left, const po_u32 *const *right, const uintptr_t (*to)[4], const void *pc);
}
inline int lane() { return (po_ctx.tid.x + po_ctx.bdim.x * (po_ctx.tid.y + po_ctx.bdim.y * po_ctx.tid.z)) & 31; }
template <class To, class From> inline To bits(From value) {
  static_assert(sizeof(To) == sizeof(From), "as many bits");
  To result;
  __builtin_memcpy(&result, &value, sizeof value);
  return result;
}
}  // namespace po

#define threadIdx (po::po_ctx.tid)
#define blockIdx (po::po_ctx.bid)
#define blockDim (po::po_ctx.bdim)
#define gridDim (po::po_ctx.gdim)
#define warpSize 32

// ---- barriers ------------------------------------------------------------------------------------------------------
namespace po {
PO_HIDDEN inline void sync_block(int line) { po_block_barrier(line, PO_PC); }
PO_HIDDEN inline void nothing(void **, unsigned) {}
}  // namespace po
#define __syncthreads() po::sync_block(__LINE__)
PO_HIDDEN inline void __syncwarp(unsigned mask = 0xffffffffu) { po::po_warp_collective(po::SYNCWARP, mask, po::nothing, nullptr, PO_PC); }
PO_HIDDEN inline void __threadfence() {}
PO_HIDDEN inline void __threadfence_block() {}
// bar.sync and bar.arrive: barrier `id` of 16 for `count` threads
PO_HIDDEN inline void po_bar_sync(int id, int count) { po::po_named_barrier(id, count, 1, PO_PC); }
PO_HIDDEN inline void po_bar_arrive(int id, int count) { po::po_named_barrier(id, count, 0, PO_PC); }
// barrier objects in shared memory (mbarrier)
PO_HIDDEN inline void po_mbar_init(po_u64 *m, int count) { po::po_mbarrier_init(m, count); }
PO_HIDDEN inline void po_mbar_arrive(po_u64 *m) { po::po_mbarrier_arrive(m, PO_PC); }
PO_HIDDEN inline void po_mbar_wait(po_u64 *m, po_u32 parity) { po::po_mbarrier_wait(m, parity, PO_PC); }

// ---- lanes of a warp -------------------------------------------------------------------------------------------------
namespace po {
struct Shuffle { uint64_t in, out; int from; };
PO_HIDDEN inline void shuffle_all(void **a, unsigned mask) {
  for (int l = 0; l < 32; ++l)
    if (mask >> l & 1) {  // what a lane outside the mask holds is undefined: NaN here
      Shuffle *me = (Shuffle *)a[l];
      me->out = me->from >= 0 && me->from < 32 && (mask >> me->from & 1) ? ((Shuffle *)a[me->from])->in : ~0ull;
    }
}
template <class T> PO_HIDDEN T shuffle(int op, unsigned mask, T value, int from, const void *pc) {
  static_assert(sizeof(T) == 4 || sizeof(T) == 8, "shuffles of 4 or 8 bytes");
  Shuffle s{0, 0, from};
  memcpy(&s.in, &value, sizeof value);
  po_warp_collective(op, mask, shuffle_all, &s, pc);
  memcpy(&value, &s.out, sizeof value);
  return value;
}
struct Vote { unsigned in, out; };
PO_HIDDEN inline void vote_all(void **a, unsigned mask) {
  unsigned all = 0;
  for (int l = 0; l < 32; ++l) if (mask >> l & 1 && ((Vote *)a[l])->in) all |= 1u << l;
  for (int l = 0; l < 32; ++l) if (mask >> l & 1) ((Vote *)a[l])->out = all;
}
PO_HIDDEN inline unsigned vote(unsigned mask, bool in, const void *pc) {
  Vote v{in, 0};
  po_warp_collective(VOTE, mask, vote_all, &v, pc);
  return v.out;
}
}  // namespace po
// A source outside the segment of `width` lanes leaves the lane its own value.
template <class T> PO_HIDDEN T __shfl_sync(unsigned m, T v, int s, int width = 32) {
  return po::shuffle(po::SHFL, m, v, (po::lane() & ~(width - 1)) | (s & (width - 1)), PO_PC); }
template <class T> PO_HIDDEN T __shfl_xor_sync(unsigned m, T v, int mask, int width = 32) {
  int s = po::lane() ^ mask; return po::shuffle(po::SHFL_XOR, m, v, s / width == po::lane() / width ? s : po::lane(), PO_PC); }
template <class T> PO_HIDDEN T __shfl_down_sync(unsigned m, T v, int n, int width = 32) {
  int s = po::lane() + n; return po::shuffle(po::SHFL_DOWN, m, v, s / width == po::lane() / width ? s : po::lane(), PO_PC); }
template <class T> PO_HIDDEN T __shfl_up_sync(unsigned m, T v, int n, int width = 32) {
  int s = po::lane() - n; return po::shuffle(po::SHFL_UP, m, v, s >= 0 && s / width == po::lane() / width ? s : po::lane(), PO_PC); }
template <class T> PO_HIDDEN T po_shfl(T v, int from) { return po::shuffle(po::SHFL, ~0u, v, from & 31, PO_PC); }
template <class T> PO_HIDDEN T po_shfl_xor(T v, int mask) { return po::shuffle(po::SHFL_XOR, ~0u, v, po::lane() ^ mask, PO_PC); }
template <class T> PO_HIDDEN T po_shfl_down(T v, int n) {
  return po::shuffle(po::SHFL_DOWN, ~0u, v, po::lane() + n < 32 ? po::lane() + n : po::lane(), PO_PC); }
PO_HIDDEN inline unsigned __ballot_sync(unsigned m, int p) { return po::vote(m, p != 0, PO_PC); }
PO_HIDDEN inline int __any_sync(unsigned m, int p) { return po::vote(m, p != 0, PO_PC) != 0; }
PO_HIDDEN inline int __all_sync(unsigned m, int p) { return po::vote(m, p == 0, PO_PC) == 0; }

// ---- vectors: one access of 2 to 16 bytes ----------------------------------------------------------------------------
template <class T, int N> struct alignas(sizeof(T) * N) po_vec { T v[N]; };
template <int N, class T> PO_HIDDEN po_vec<T, N> po_load(const T *p) {
  po::po_access(p, sizeof(T) * N, po::READ, PO_PC);
  po_vec<T, N> value;
  memcpy(&value, p, sizeof value);
  return value;
}
template <int N, class T> PO_HIDDEN void po_store(T *p, const po_vec<T, N> &value) {
  po::po_access(p, sizeof(T) * N, po::WRITE, PO_PC);
  memcpy(p, &value, sizeof value);
}

// ---- atomics ---------------------------------------------------------------------------------------------------------
#define PO_ATOMIC(name, ...)                                                     \
  template <class T> PO_HIDDEN T name(T *p, typename po_same<T>::type v) {       \
    po::po_access(p, sizeof(T), po::ATOMIC, PO_PC);                              \
    T old = *p;                                                                  \
    *p = __VA_ARGS__;                                                            \
    return old;                                                                  \
  }
template <class T> struct po_same { typedef T type; };
PO_ATOMIC(atomicAdd, old + v)
PO_ATOMIC(atomicMin, v < old ? v : old)
PO_ATOMIC(atomicMax, v > old ? v : old)
PO_ATOMIC(atomicExch, v)
PO_ATOMIC(atomicAnd, old & v)
PO_ATOMIC(atomicOr, old | v)
PO_ATOMIC(atomicXor, old ^ v)
#undef PO_ATOMIC
template <class T> PO_HIDDEN T atomicCAS(T *p, typename po_same<T>::type expected, typename po_same<T>::type value) {
  po::po_access(p, sizeof(T), po::ATOMIC, PO_PC);
  T old = *p;
  if (old == expected) *p = value;
  return old;
}
template <class T> PO_HIDDEN void po_atomic_add(T *p, typename po_same<T>::type value) {
  po::po_access(p, sizeof(T), po::ATOMIC, PO_PC);
  typedef typename std::conditional<std::is_signed<T>::value && std::is_integral<T>::value, uint64_t, T>::type Wide;
  *p = (T)((Wide)*p + (Wide)value);  // integers wrap
}
PO_HIDDEN inline int64_t po_atomic_cas(int64_t *p, int64_t expected, int64_t value) {
  po::po_access(p, 8, po::ATOMIC, PO_PC);
  int64_t old = *p;
  if (old == expected) *p = value;
  return old;
}

// ---- copies from global to shared memory that run on their own --------------------------------------------------------
#define PO_COPY(n)                                                                                                        \
  PO_HIDDEN inline void po_cp_async##n(void *s, const void *g) { po::po_copy_begin(s, g, n, 0, PO_PC); }                   \
  PO_HIDDEN inline void po_cp_async##n##_zfill(void *s, const void *g, bool ok) { po::po_copy_begin(s, g, ok ? n : 0, ok ? 0 : n, PO_PC); }
PO_COPY(4) PO_COPY(8) PO_COPY(16)
#undef PO_COPY
PO_HIDDEN inline void po_cp_commit() { po::po_copy_commit(); }
template <int N> PO_HIDDEN void po_cp_wait() { po::po_copy_wait(N); }

// ---- scalars -----------------------------------------------------------------------------------------------------------
inline float __int_as_float(int x) { return po::bits<float>(x); }
inline float __uint_as_float(unsigned x) { return po::bits<float>(x); }
inline int __float_as_int(float x) { return po::bits<int>(x); }
inline unsigned __float_as_uint(float x) { return po::bits<unsigned>(x); }
inline double __longlong_as_double(long long x) { return po::bits<double>(x); }
inline long long __double_as_longlong(double x) { return po::bits<long long>(x); }
inline int __popc(unsigned x) { return __builtin_popcount(x); }
inline int __clz(int x) { return x ? __builtin_clz(x) : 32; }
inline int __ffs(int x) { return __builtin_ffs(x); }
inline float __fmaf_rn(float a, float b, float c) { return fmaf(a, b, c); }
inline double __fma_rn(double a, double b, double c) { return fma(a, b, c); }
inline float __expf(float x) { return expf(x); }
inline float __frcp_rn(float x) { return 1.0f / x; }
inline float __fdividef(float a, float b) { return a / b; }
inline float rsqrtf(float x) { return 1.0f / sqrtf(x); }
inline double rsqrt(double x) { return 1.0 / sqrt(x); }
template <class T> inline T po_value(T x) { return x; }
inline int32_t po_negative(int32_t x) { return (int32_t)(0 - (po_u32)x); }
inline po_u32 po_bits(float x) { return po::bits<po_u32>(x); }
inline float po_float(po_u32 x) { return po::bits<float>(x); }
inline float po_min_nan(float a, float b) { return a != a ? a : b != b ? b : a < b ? a : b < a ? b : std::signbit(a) ? a : b; }
inline float po_max_nan(float a, float b) { return a != a ? a : b != b ? b : a > b ? a : b > a ? b : std::signbit(a) ? b : a; }
inline float po_from_bf16(uint16_t h) { return po::bits<float>((po_u32)h << 16); }
inline uint16_t po_to_bf16(float x) {
  po_u32 u = po::bits<po_u32>(x);
  return x != x ? 0x7fff : (uint16_t)((u + 0x7fff + (u >> 16 & 1)) >> 16);
}
inline float po_from_f16(uint16_t h) {
  po_u32 sign = (po_u32)(h & 0x8000) << 16, magnitude = h & 0x7fff;
  if (magnitude >= 0x7c00) return po::bits<float>(sign | 0x7f800000 | (magnitude & 0x3ff) << 13);
  return po::bits<float>(sign | po::bits<po_u32>(po::bits<float>(magnitude << 13) * 0x1p112f));
}
inline uint16_t po_to_f16(float x) {
  po_u32 u = po::bits<po_u32>(x), sign = u >> 16 & 0x8000, magnitude = u & 0x7fffffff;
  if (magnitude > 0x7f800000) return 0x7fff;
  if (magnitude >= 0x477ff000) return sign | 0x7c00;  // rounds to infinity
  if (magnitude < 0x38800000)                         // subnormal: adding 0.5 lets the addition round to 2^-24
    return sign | (po::bits<po_u32>(po::bits<float>(magnitude) + 0.5f) - 0x3f000000);
  return sign | ((magnitude - 0x38000000 + 0xfff + (magnitude >> 13 & 1)) >> 13);
}
inline po_u32 po_to_tf32(float x) {  // to nearest, halves away from zero
  po_u32 u = po::bits<po_u32>(x);
  return (u & 0x7f800000) == 0x7f800000 ? u : (u + 0x1000) & ~0x1fffu;
}

// ---- tensor cores: the whole warp together -----------------------------------------------------------------------------
// Lane l gets row l / 4, elements 2 (l % 4) and the next, of each 8x8 matrix; of its transpose where `Turned`.
namespace po {
template <int Count> struct LdArgument { const uint16_t *row; po_u32 r[Count]; po_u32 *to; };
template <int Count, bool Turned> PO_HIDDEN void ldmatrix_all(void **a, unsigned) {
  typedef LdArgument<Count> Argument;
  uint16_t rows[8 * Count][8];
  for (int l = 0; l < 8 * Count; ++l) memcpy(rows[l], ((Argument *)a[l])->row, 16);
  for (int m = 0; m < Count; ++m)
    for (int l = 0; l < 32; ++l) {
      uint16_t(*t)[8] = rows + 8 * m;
      int i = l / 4, j = 2 * (l % 4);
      ((Argument *)a[l])->r[m] = Turned ? t[j][i] | (po_u32)t[j + 1][i] << 16 : t[i][j] | (po_u32)t[i][j + 1] << 16;
    }
  const void *from[8 * Count];
  po_u32 *to[32];
  for (int l = 0; l < 8 * Count; ++l) from[l] = ((Argument *)a[l])->row;
  for (int l = 0; l < 32; ++l) to[l] = ((Argument *)a[l])->to;
  po_trace_fetch(from, Count, Turned, to);
}
template <int Count, bool Turned> PO_HIDDEN void ldmatrix(po_u32 (&r)[Count], const void *s, const void *pc) {
  LdArgument<Count> argument{(const uint16_t *)s, {}, r};
  if (lane() < 8 * Count) po_access(s, 16, READ, pc);
  po_warp_collective(LDMATRIX, ~0u, ldmatrix_all<Count, Turned>, &argument, pc);
  memcpy(r, argument.r, sizeof r);
}
}  // namespace po
PO_HIDDEN inline void po_ldmatrix_x4(po_u32 (&r)[4], const void *s) { po::ldmatrix<4, false>(r, s, PO_PC); }
PO_HIDDEN inline void po_ldmatrix_x4_t(po_u32 (&r)[4], const void *s) { po::ldmatrix<4, true>(r, s, PO_PC); }
PO_HIDDEN inline void po_ldmatrix_x2(po_u32 (&r)[2], const void *s) { po::ldmatrix<2, false>(r, s, PO_PC); }
PO_HIDDEN inline void po_ldmatrix_x2_t(po_u32 (&r)[2], const void *s) { po::ldmatrix<2, true>(r, s, PO_PC); }

// d (16 x 8) += a (16 x K) b (K x 8). A register of a holds `Packed` elements of row lane / 4 (and 8 below in
// registers 1 and 3), of b those of column lane / 4; d holds rows lane / 4 and 8 below, columns 2 (lane % 4) and the
// next. [PTX manual, "Matrix Fragments for mma.m16n8k8", "m16n8k16", "m16n8k32"]
namespace po {
struct F16 { typedef float Sum; static constexpr int packed = 2; static float get(po_u32 r, int i) { return po_from_f16(r >> 16 * i); } };
struct BF16 { typedef float Sum; static constexpr int packed = 2; static float get(po_u32 r, int i) { return po_from_bf16(r >> 16 * i); } };
struct TF32 { typedef float Sum; static constexpr int packed = 1; static float get(po_u32 r, int) { return bits<float>(r & ~0x1fffu); } };
struct S8 { typedef int32_t Sum; static constexpr int packed = 4; static int32_t get(po_u32 r, int i) { return (int8_t)(r >> 8 * i); } };
struct U8 { typedef int32_t Sum; static constexpr int packed = 4; static int32_t get(po_u32 r, int i) { return (uint8_t)(r >> 8 * i); } };
template <class Sum> struct MmaArgument { Sum d[4]; po_u32 a[4], b[2]; const po_u32 *left, *right; uintptr_t to[4]; const void *pc; };
template <class A, class B> PO_HIDDEN void mma_all(void **arguments, unsigned) {
  typedef typename A::Sum Sum;
  constexpr int P = A::packed, K = 8 * P;
  Sum a[16][K], b[K][8];
  for (int l = 0; l < 32; ++l) {
    auto *m = (MmaArgument<Sum> *)arguments[l];
    int g = l / 4, q = l % 4 * P;
    for (int i = 0; i < P; ++i)
      for (int half = 0; half < 2; ++half) {
        a[g][q + i + 4 * P * half] = A::get(m->a[2 * half], i);
        a[g + 8][q + i + 4 * P * half] = A::get(m->a[2 * half + 1], i);
        b[q + i + 4 * P * half][g] = B::get(m->b[half], i);
      }
  }
  for (int l = 0; l < 32; ++l) {
    auto *m = (MmaArgument<Sum> *)arguments[l];
    for (int e = 0; e < 4; ++e) {
      int row = l / 4 + e / 2 * 8, column = l % 4 * 2 + e % 2;
      typename std::conditional<std::is_integral<Sum>::value, uint32_t, Sum>::type sum = 0;  // integers wrap
      for (int k = 0; k < K; ++k) sum += a[row][k] * b[k][column];
      m->d[e] = (Sum)(m->d[e] + sum);
    }
  }
  const po_u32 *left[32], *right[32];
  uintptr_t to[32][4];
  for (int l = 0; l < 32; ++l) {
    auto *m = (MmaArgument<Sum> *)arguments[l];
    left[l] = m->left, right[l] = m->right;
    memcpy(to[l], m->to, sizeof to[l]);
  }
  po_trace_product(P, left, right, to, ((MmaArgument<Sum> *)arguments[0])->pc);
}
template <class A, class B, int Step, class Sum>
PO_HIDDEN void mma(Sum *upper, Sum *lower, const po_u32 *a, const po_u32 *b, const void *pc) {
  MmaArgument<Sum> m{{upper[0], upper[Step], lower[0], lower[Step]}, {}, {}, a, b, {}, pc};
  Sum *to[] = {upper, upper + Step, lower, lower + Step};
  for (int e = 0; e < 4; ++e) m.to[e] = (uintptr_t)to[e];
  memcpy(m.a, a, 16), memcpy(m.b, b, 8);
  po_warp_collective(MMA, ~0u, mma_all<A, B>, &m, pc);
  upper[0] = m.d[0], upper[Step] = m.d[1], lower[0] = m.d[2], lower[Step] = m.d[3];
}
}  // namespace po
#define PO_MMA(name, A, B)                                                                                         \
  template <int Step = 1>                                                                                        \
  PO_HIDDEN inline void name(po::A::Sum *upper, po::A::Sum *lower, const po_u32 *a, const po_u32 *b) {             \
    po::mma<po::A, po::B, Step>(upper, lower, a, b, PO_PC);                                                       \
  }                                                                                                               \
  PO_HIDDEN inline void name(po::A::Sum (&d)[4], const po_u32 *a, const po_u32 *b) {                               \
    po::mma<po::A, po::B, 1>(d, d + 2, a, b, PO_PC);                                                              \
  }
PO_MMA(po_mma_bf16, BF16, BF16)
PO_MMA(po_mma_f16, F16, F16)
PO_MMA(po_mma_tf32, TF32, TF32)
PO_MMA(po_mma_s8, S8, S8)
PO_MMA(po_mma_u8, U8, U8)
PO_MMA(po_mma_s8_u8, S8, U8)
PO_MMA(po_mma_u8_s8, U8, S8)
#undef PO_MMA

// Pairs of bytes taken apart: the first of each pair to `even`, the second to `odd`.
PO_HIDDEN inline void po_unzip(po_u32 &even, po_u32 &odd) {
  const po_u32 one = even, two = odd;
  even = (one & 0xff) | (one >> 8 & 0xff00) | (two & 0xff) << 16 | (two << 8 & 0xff000000);
  odd = (one >> 8 & 0xff) | (one >> 16 & 0xff00) | (two << 8 & 0xff0000) | (two & 0xff000000);
  po::po_trace_unzip(&even, &odd);
}

// ---- four warps together: see po_groups.cpp ------------------------------------------------------------------------------
PO_HIDDEN inline void po_async_fence() { po::po_group_fence(); }
PO_HIDDEN inline void po_wgmma_begin() { po::po_group_begin(PO_PC); }
PO_HIDDEN inline void po_wgmma_commit() { po::po_group_commit(); }
template <int N> PO_HIDDEN void po_wgmma_wait() { po::po_group_wait(N); }
#define PO_WGMMA(name, is_f16)                                                                         \
  template <int N, int LeftTurned, int RightTurned>                                                    \
  PO_HIDDEN inline void name(float *upper, float *lower, const void *a, const void *b) {                \
    const po::GroupProduct product{upper, lower, a, b, N, is_f16, LeftTurned != 0, RightTurned != 0, PO_PC};  \
    po::po_group_product(&product);                                                                    \
  }
PO_WGMMA(po_wgmma_bf16, false)
PO_WGMMA(po_wgmma_f16, true)
#undef PO_WGMMA

// ---- entry: a kernel called with an array of pointers to its arguments, as cuLaunchKernel does ----------------------------
namespace po {
template <class... A, size_t... I> PO_HIDDEN void call(void (*f)(A...), void **a, std::index_sequence<I...>) {
  f(*reinterpret_cast<std::remove_reference_t<A> *>(a[I])...); }
template <class... A> PO_HIDDEN void call(void (*f)(A...), void **a) { call(f, a, std::index_sequence_for<A...>{}); }
}  // namespace po
#define PO_ENTRY(k) extern "C" PO_HIDDEN void k##__args(void **a) { po::call(&k, a); }
