// The vocabulary of generated kernels. A kernel's text is plain CUDA C++ plus the names that start with po_; under
// nvcc and NVRTC those in the first part are one PTX instruction each, under the emulator (PO_EMU) the same names are
// functions of po_emu.h. Generated text never contains asm. The second part is common code over the first.
#pragma once

#if defined(PO_EMU)
#include "po_emu.h"
using std::isinf;
using std::isnan;
#else

#if defined(__CUDACC_RTC__)
typedef signed char int8_t;
typedef unsigned char uint8_t;
typedef short int16_t;
typedef unsigned short uint16_t;
typedef int int32_t;
typedef unsigned int uint32_t;
typedef long int64_t;
typedef unsigned long uint64_t;
typedef unsigned long uintptr_t;
#define INT8_MIN (-128)
#define INT16_MIN (-32768)
#define INT32_MIN (-2147483647 - 1)
#define INT64_MIN (-9223372036854775807L - 1)
#define INFINITY __int_as_float(0x7f800000)
#define NAN __int_as_float(0x7fffffff)
#else
#include <math.h>
#include <stdint.h>
#endif

#define PO_KERNEL extern "C" __global__
#define PO_SHARED __shared__ __align__(128)
#define PO_DYN_SHARED(name) extern __shared__ __align__(1024) unsigned char name[]
#define PO_DEVICE __device__ __forceinline__
#define PO_ENTRY(kernel)
typedef uint32_t po_u32;
typedef unsigned long long po_u64;

// ---- vectors: one access of 4, 8 or 16 bytes ----------------------------------------------------------------------
// po_vec<T, N>: N elements of T, N * sizeof(T) in {2, 4, 8, 16}; `v[i]` is an element.
template <class T, int N> struct __align__(sizeof(T) * N) po_vec { T v[N]; };
template <int Bytes> struct po_raw;
template <> struct po_raw<2> { typedef unsigned short type; };
template <> struct po_raw<4> { typedef unsigned int type; };
template <> struct po_raw<8> { typedef uint2 type; };
template <> struct po_raw<16> { typedef uint4 type; };

// N elements at an address that is a multiple of their bytes, in one load.
template <int N, class T> PO_DEVICE po_vec<T, N> po_load(const T *p) {
  typedef typename po_raw<sizeof(T) * N>::type Raw;
  union Both { Raw raw; po_vec<T, N> vec; PO_DEVICE Both() {} } both;
  both.raw = *reinterpret_cast<const Raw *>(p);
  return both.vec;
}
// The same in one store.
template <int N, class T> PO_DEVICE void po_store(T *p, const po_vec<T, N> &value) {
  typedef typename po_raw<sizeof(T) * N>::type Raw;
  union Both { Raw raw; po_vec<T, N> vec; PO_DEVICE Both() {} } both;
  both.vec = value;
  *reinterpret_cast<Raw *>(p) = both.raw;
}

// ---- lanes of a warp: every lane of the warp calls them together ----------------------------------------------------
// T: 4 or 8 bytes. po_shfl: the value of lane `from`; po_shfl_xor: of lane `lane ^ mask`; po_shfl_down: of `lane + n`.
template <class T> PO_DEVICE T po_shfl(T value, int from) { return __shfl_sync(0xffffffffu, value, from); }
template <class T> PO_DEVICE T po_shfl_xor(T value, int mask) { return __shfl_xor_sync(0xffffffffu, value, mask); }
template <class T> PO_DEVICE T po_shfl_down(T value, int n) { return __shfl_down_sync(0xffffffffu, value, n); }

// ---- copies from global to shared memory that run on their own -----------------------------------------------------
PO_DEVICE po_u32 po_smem(const void *p) { return (po_u32)__cvta_generic_to_shared(p); }
PO_DEVICE void po_cp_async16(void *s, const void *g) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(po_smem(s)), "l"(g) : "memory");
}
PO_DEVICE void po_cp_async8(void *s, const void *g) {
  asm volatile("cp.async.ca.shared.global [%0], [%1], 8;" ::"r"(po_smem(s)), "l"(g) : "memory");
}
PO_DEVICE void po_cp_async4(void *s, const void *g) {
  asm volatile("cp.async.ca.shared.global [%0], [%1], 4;" ::"r"(po_smem(s)), "l"(g) : "memory");
}
// Where `ok` is false nothing is read, and zeros are written.
PO_DEVICE void po_cp_async16_zfill(void *s, const void *g, bool ok) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(po_smem(s)), "l"(g), "r"(ok ? 16 : 0) : "memory");
}
PO_DEVICE void po_cp_async8_zfill(void *s, const void *g, bool ok) {
  asm volatile("cp.async.ca.shared.global [%0], [%1], 8, %2;" ::"r"(po_smem(s)), "l"(g), "r"(ok ? 8 : 0) : "memory");
}
PO_DEVICE void po_cp_async4_zfill(void *s, const void *g, bool ok) {
  asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;" ::"r"(po_smem(s)), "l"(g), "r"(ok ? 4 : 0) : "memory");
}
PO_DEVICE void po_cp_commit() { asm volatile("cp.async.commit_group;" ::: "memory"); }
// Waits until at most N groups committed by this thread are under way.
template <int N> PO_DEVICE void po_cp_wait() { asm volatile("cp.async.wait_group %0;" ::"n"(N) : "memory"); }

// ---- tensor cores: the whole warp together -------------------------------------------------------------------------
// 8x8 matrices of 16-bit elements; lane l gives the address of row l % 8 of matrix l / 8, 16-byte aligned.
PO_DEVICE void po_ldmatrix_x4(po_u32 (&r)[4], const void *s) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3]) : "r"(po_smem(s)) : "memory");
}
PO_DEVICE void po_ldmatrix_x4_t(po_u32 (&r)[4], const void *s) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3]) : "r"(po_smem(s)) : "memory");
}
PO_DEVICE void po_ldmatrix_x2(po_u32 (&r)[2], const void *s) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x2.shared.b16 {%0,%1}, [%2];"
               : "=r"(r[0]), "=r"(r[1]) : "r"(po_smem(s)) : "memory");
}
PO_DEVICE void po_ldmatrix_x2_t(po_u32 (&r)[2], const void *s) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x2.trans.shared.b16 {%0,%1}, [%2];"
               : "=r"(r[0]), "=r"(r[1]) : "r"(po_smem(s)) : "memory");
}
// d += a b. bf16, f16: 16 x 8 += 16 x 16 by 16 x 8; tf32: 16 x 8 by 8 x 8; 8-bit integers: 16 x 32 by 32 x 8.
// The fragments are those of the PTX manual, "mma.sync.aligned.m16n8k16", "m16n8k8" (.tf32), "m16n8k32". The lane's
// two elements of row lane / 4 are upper[0] and upper[Step], those 8 rows below lower[0] and lower[Step].
#define PO_MMA_F32(name, kind)                                                                             \
  template <int Step = 1> PO_DEVICE void name(float *upper, float *lower, const po_u32 *a, const po_u32 *b) {  \
    asm volatile("mma.sync.aligned." kind " {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"          \
                 : "+f"(upper[0]), "+f"(upper[Step]), "+f"(lower[0]), "+f"(lower[Step])                       \
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));                          \
  }                                                                                                           \
  PO_DEVICE void name(float (&d)[4], const po_u32 *a, const po_u32 *b) { name<1>(d, d + 2, a, b); }
PO_MMA_F32(po_mma_bf16, "m16n8k16.row.col.f32.bf16.bf16.f32")
PO_MMA_F32(po_mma_f16, "m16n8k16.row.col.f32.f16.f16.f32")
PO_MMA_F32(po_mma_tf32, "m16n8k8.row.col.f32.tf32.tf32.f32")
#undef PO_MMA_F32
#define PO_MMA_S32(name, kind)                                                                             \
  template <int Step = 1>                                                                                    \
  PO_DEVICE void name(int32_t *upper, int32_t *lower, const po_u32 *a, const po_u32 *b) {                     \
    asm volatile("mma.sync.aligned.m16n8k32.row.col.s32." kind ".s32 "                                       \
                 "{%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"                                     \
                 : "+r"(upper[0]), "+r"(upper[Step]), "+r"(lower[0]), "+r"(lower[Step])                       \
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));                          \
  }                                                                                                           \
  PO_DEVICE void name(int32_t (&d)[4], const po_u32 *a, const po_u32 *b) { name<1>(d, d + 2, a, b); }
PO_MMA_S32(po_mma_s8, "s8.s8")
PO_MMA_S32(po_mma_u8, "u8.u8")
PO_MMA_S32(po_mma_s8_u8, "s8.u8")
PO_MMA_S32(po_mma_u8_s8, "u8.s8")
#undef PO_MMA_S32
// Four warps together, 64 rows by N columns: d += a b, 16 steps of the sum. Operands lie in shared memory in atoms of 8
// lines of 128 bytes, each atom at a multiple of its size and its 16-byte parts exchanged (po_in_atom). An operand along
// the sum has a line for each row or column, one that is turned a panel of 64 of them after the other, with a line for
// each of 64 steps. The lane's sums of columns 8 b + 2 (lane % 4) and the next are [2 b] and [2 b + 1] of `upper`, in
// row 16 (warp % 4) + lane / 4, and of `lower`, 8 rows below. The instructions run on their own: between po_wgmma_begin
// and po_wgmma_commit they make a group, and before po_wgmma_wait nobody touches their sums or changes their operands.
PO_DEVICE void po_wgmma_begin() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
PO_DEVICE void po_wgmma_commit() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
// Waits until at most N groups of this thread are under way.
template <int N> PO_DEVICE void po_wgmma_wait() { asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(N) : "memory"); }
// What this thread has written to shared memory, and its copies that it has waited for, are seen by what runs on its own.
PO_DEVICE void po_async_fence() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }
// Bytes from panel to panel (of a turned operand), from atom to atom, and the exchange of 128 bytes.
PO_DEVICE po_u64 po_atoms(const void *start, bool is_turned) {
  const po_u64 place = po_smem(start) >> 4, panel = is_turned ? 8192 >> 4 : 1, atom = 1024 >> 4;
  return place | panel << 16 | atom << 32 | (po_u64)1 << 62;
}
#define PO_SUMS1(b) "+f"(upper[2 * (b)]), "+f"(upper[2 * (b) + 1]), "+f"(lower[2 * (b)]), "+f"(lower[2 * (b) + 1])
#define PO_SUMS4(b) PO_SUMS1(b), PO_SUMS1(b + 1), PO_SUMS1(b + 2), PO_SUMS1(b + 3)
#define PO_SUMS16(b) PO_SUMS4(b), PO_SUMS4(b + 4), PO_SUMS4(b + 8), PO_SUMS4(b + 12)
#define PO_REGISTERS128 \
  "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, " \
  "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, " \
  "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, " \
  "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63, " \
  "%64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79, " \
  "%80, %81, %82, %83, %84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95, " \
  "%96, %97, %98, %99, %100, %101, %102, %103, %104, %105, %106, %107, %108, %109, %110, %111, " \
  "%112, %113, %114, %115, %116, %117, %118, %119, %120, %121, %122, %123, %124, %125, %126, %127"
#define PO_WGMMA_256(name, kind)                                                                              \
  template <int N, int LeftTurned, int RightTurned>                                                           \
  PO_DEVICE void name(float *upper, float *lower, const void *a, const void *b) {                             \
    static_assert(N == 256, "a tile's columns");                                                              \
    asm volatile("wgmma.mma_async.sync.aligned.m64n256k16.f32." kind " {" PO_REGISTERS128                       \
                 "}, %128, %129, 1, 1, 1, %130, %131;"                                                        \
                 : PO_SUMS16(0), PO_SUMS16(16)                                                                \
                 : "l"(po_atoms(a, LeftTurned)), "l"(po_atoms(b, RightTurned)), "n"(LeftTurned), "n"(RightTurned)); \
  }
PO_WGMMA_256(po_wgmma_bf16, "bf16.bf16")
PO_WGMMA_256(po_wgmma_f16, "f16.f16")
#undef PO_WGMMA_256
#undef PO_REGISTERS128
#undef PO_SUMS16
#undef PO_SUMS4
#undef PO_SUMS1
// Pairs of bytes taken apart: the first of each pair to `even`, the second to `odd`.
PO_DEVICE void po_unzip(po_u32 &even, po_u32 &odd) {
  const po_u32 one = even, two = odd;
  even = __byte_perm(one, two, 0x6420);
  odd = __byte_perm(one, two, 0x7531);
}
// A float rounded to tf32 (to nearest), as the bits that mma takes.
PO_DEVICE po_u32 po_to_tf32(float x) {
  po_u32 bits;
  asm("cvt.rna.tf32.f32 %0, %1;" : "=r"(bits) : "f"(x));
  return bits;
}

// ---- scalars -------------------------------------------------------------------------------------------------------
// A number as it is. The compiler does not know where it comes from, and takes it for no index.
PO_DEVICE int32_t po_value(int32_t x) {
  int32_t r;
  asm("mov.b32 %0, %1;" : "=r"(r) : "r"(x));
  return r;
}
PO_DEVICE int64_t po_value(int64_t x) {
  int64_t r;
  asm("mov.b64 %0, %1;" : "=l"(r) : "l"(x));
  return r;
}
PO_DEVICE int64_t po_value(long long x) { return po_value((int64_t)x); }
// -x, wrapped, in steps that ptxas does not put together.
PO_DEVICE int32_t po_negative(int32_t x) {
  po_u32 r;
  asm("not.b32 %0, %1;" : "=r"(r) : "r"(x));
  return (int32_t)(r + 1);
}
// The smaller and the larger; NaN where either is NaN.
PO_DEVICE float po_min_nan(float a, float b) {
  float r;
  asm("min.NaN.f32 %0, %1, %2;" : "=f"(r) : "f"(a), "f"(b));
  return r;
}
PO_DEVICE float po_max_nan(float a, float b) {
  float r;
  asm("max.NaN.f32 %0, %1, %2;" : "=f"(r) : "f"(a), "f"(b));
  return r;
}
PO_DEVICE float po_from_f16(uint16_t h) {
  float r;
  asm("cvt.f32.f16 %0, %1;" : "=f"(r) : "h"(h));
  return r;
}
PO_DEVICE uint16_t po_to_f16(float x) {
  uint16_t h;
  asm("cvt.rn.f16.f32 %0, %1;" : "=h"(h) : "f"(x));
  return h;
}
PO_DEVICE float po_from_bf16(uint16_t h) { return __uint_as_float((po_u32)h << 16); }
PO_DEVICE uint16_t po_to_bf16(float x) {
  uint16_t h;
  asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(h) : "f"(x));
  return h;
}
PO_DEVICE po_u32 po_bits(float x) { return __float_as_uint(x); }
PO_DEVICE float po_float(po_u32 i) { return __uint_as_float(i); }

// ---- atomics -------------------------------------------------------------------------------------------------------
// T: int32_t, uint32_t, or int64_t and uint64_t. Integers wrap, so that the order does not matter.
PO_DEVICE void po_atomic_add(int32_t *p, int32_t value) { atomicAdd(p, value); }
PO_DEVICE void po_atomic_add(uint32_t *p, uint32_t value) { atomicAdd(p, value); }
PO_DEVICE void po_atomic_add(int64_t *p, int64_t value) { atomicAdd((po_u64 *)p, (po_u64)value); }
PO_DEVICE void po_atomic_add(uint64_t *p, uint64_t value) { atomicAdd((po_u64 *)p, (po_u64)value); }
// Puts `value` where `expected` was; gives what was there.
PO_DEVICE int64_t po_atomic_cas(int64_t *p, int64_t expected, int64_t value) {
  return (int64_t)atomicCAS((po_u64 *)p, (po_u64)expected, (po_u64)value);
}
#endif

// ==== common code ===================================================================================================
// Whether a subscript that is data is in range; the first that is not is written to the record.
PO_DEVICE bool po_inside(int64_t index, int64_t extent, int64_t site, int64_t *record) {
  if ((uint64_t)index < (uint64_t)extent) return true;
  if (po_atomic_cas(record, 0, site + 1) == 0) {
    record[1] = index;
    record[2] = extent;
  }
  return false;
}
// Where an element lies in shared memory whose lines of 128 bytes have their parts of 16 bytes exchanged: the number of
// the part is combined, bit by bit, with a linear function of the line's, so that 8 neighboring rows at one column, and
// 8 rows of which each is two from the next, lie in different banks, whatever the rows' length; and so do 8 neighboring
// floats of each of 4 rows of at least a line. place: in elements
template <int Bytes> PO_DEVICE int po_swizzled(int place) {
  const int line = place * Bytes >> 7;
  const int part = ((line ^ line >> 1) & 1) | ((line ^ line >> 2) << 1 & 6);
  return place ^ part * (16 / Bytes);
}
// The same in atoms of 8 lines, as instructions of four warps want it: the part's number is combined with the line's.
template <int Bytes> PO_DEVICE int po_in_atom(int place) { return place ^ (place * Bytes >> 7 & 7) * (16 / Bytes); }
// Neighboring lanes exchange registers: the even one's second N go where the odd one's first N were, and back.
template <int N, class T> PO_DEVICE void po_exchange(T *own, int lane) {
  const bool is_odd = lane % 2;
#pragma unroll
  for (int i = 0; i < N; ++i) {
    const T other = po_shfl_xor(is_odd ? own[i] : own[N + i], 1);
    own[i] = is_odd ? other : own[i];
    own[N + i] = is_odd ? own[N + i] : other;
  }
}
// A fragment of f32 elements as two of tf32: each cut to its upper bits, and what is nearest to the rest. NaN stays NaN,
// whichever of its bits say so: the upper ones alone could be those of an infinity.
PO_DEVICE void po_split_tf32(po_u32 (&own)[4], po_u32 (&rest)[4]) {
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const float x = po_float(own[i]);
    own[i] = x == x ? own[i] & ~0x1fffu : 0x7fffe000u;
    rest[i] = (po_bits(x - po_float(own[i])) + 0x1000u) & ~0x1fffu;
  }
}
// The elements of a vector as registers one after the other.
template <class T, int N> PO_DEVICE void po_unpack(T *registers, const po_vec<T, N> &value) {
#pragma unroll
  for (int i = 0; i < N; ++i) registers[i] = value.v[i];
}
PO_DEVICE float po_round_bf16(float x) { return po_from_bf16(po_to_bf16(x)); }
PO_DEVICE float po_round_f16(float x) { return po_from_f16(po_to_f16(x)); }
template <class A, class B> PO_DEVICE auto po_min(A a, B b) { return a < b ? a : b; }
template <class A, class B> PO_DEVICE auto po_max(A a, B b) { return a > b ? a : b; }
// 1 / (1 + exp(-x)), without overflow.
PO_DEVICE float po_sigmoid(float x) {
  const float e = expf(-fabsf(x));
  return (x >= 0 ? 1.0f : e) / (1.0f + e);
}
PO_DEVICE double po_sigmoid(double x) {
  const double e = exp(-fabs(x));
  return (x >= 0 ? 1.0 : e) / (1.0 + e);
}
