// po_ptx.h -- what instructions of PTX mean, for texts that `from_ptx` makes of them. Registers of 16, 32 and 64 bits
// hold unsigned integers; an instruction's type says how to take them.
#pragma once
#include "po_device.h"
#include <limits>
#include <type_traits>

namespace po_ptx {
template <class To, class From> inline To as(From x) {  // the same bits, or the low ones
  static_assert(sizeof(To) <= sizeof(From) || std::is_integral<From>::value, "bits of a register");
  if constexpr (sizeof(To) == sizeof(From)) return po::bits<To>(x);
  else if constexpr (std::is_integral<To>::value) return (To)x;
  else return po::bits<To>((typename std::conditional<sizeof(To) == 4, uint32_t, uint64_t>::type)x);
}
template <class T> struct Unsigned { typedef typename std::make_unsigned<T>::type type; };
template <class T> using U = typename Unsigned<T>::type;
// Arithmetic of integers wraps; that of floats rounds to nearest.
template <class T> inline T add(T a, T b) { if constexpr (std::is_integral<T>::value) return (T)((uint64_t)a + (uint64_t)b); else return a + b; }
template <class T> inline T sub(T a, T b) { if constexpr (std::is_integral<T>::value) return (T)((uint64_t)a - (uint64_t)b); else return a - b; }
template <class T> inline T mul(T a, T b) { if constexpr (std::is_integral<T>::value) return (T)((uint64_t)a * (uint64_t)b); else return a * b; }
template <class T> inline T neg(T a) { if constexpr (std::is_integral<T>::value) return (T)(0 - (uint64_t)a); else return -a; }
template <class T> inline T abs(T a) { if constexpr (std::is_integral<T>::value) return a < 0 ? neg(a) : a; else return std::fabs(a); }
template <class T> inline T mulhi(T a, T b) {
  typedef typename std::conditional<std::is_signed<T>::value, __int128, unsigned __int128>::type Wide;
  return (T)((Wide)a * (Wide)b >> 8 * sizeof(T));
}
template <class T> inline T div(T a, T b) {
  if constexpr (std::is_integral<T>::value) return b == 0 ? (T)-1 : std::is_signed<T>::value && b == (T)-1 ? neg(a) : (T)(a / b);
  else return a / b;
}
template <class T> inline T rem(T a, T b) { return b == 0 ? a : std::is_signed<T>::value && b == (T)-1 ? 0 : (T)(a % b); }
// The smaller and the larger; the other one where one is NaN, and -0.0 is less than 0.0.
template <class T> inline T min(T a, T b) {
  if constexpr (std::is_floating_point<T>::value) return a != a ? b : b != b ? a : a < b || (a == b && std::signbit(a)) ? a : b;
  else return a < b ? a : b;
}
template <class T> inline T max(T a, T b) {
  if constexpr (std::is_floating_point<T>::value) return a != a ? b : b != b ? a : a > b || (a == b && std::signbit(b)) ? a : b;
  else return a > b ? a : b;
}
template <class T> inline T shl(T a, uint32_t n) { return n >= 8 * sizeof(T) ? 0 : (T)((uint64_t)a << n); }
template <class T> inline T shr(T a, uint32_t n) { return n >= 8 * sizeof(T) ? (a < 0 ? (T)-1 : 0) : (T)(a >> n); }
template <class T> inline bool unordered(T a, T b) { return a != a || b != b; }
// A float as an integer, by the rounding of `Round`; what is beyond becomes the last one, NaN 0, of 64 bits the least.
template <class To, class From, From (*Round)(From)> inline To whole(From x) {
  if (x != x) return sizeof(To) == 8 ? (To)((uint64_t)1 << 63) : 0;
  const From y = Round(x);
  if (y < (From)std::numeric_limits<To>::min()) return std::numeric_limits<To>::min();
  if (y >= std::ldexp((From)1, std::numeric_limits<To>::digits)) return std::numeric_limits<To>::max();
  return (To)y;
}
template <class T> inline T nearest(T x) { return std::nearbyint(x); }
template <class T> inline T down(T x) { return std::floor(x); }
template <class T> inline T up(T x) { return std::ceil(x); }
template <class T> inline T toward_zero(T x) { return std::trunc(x); }
// a b + c, rounded up or down, or to zero: the nearest, and its neighbor where that lies beyond.
inline float fma_directed(float a, float b, float c, float to) {
  const double product = (double)a * (double)b, sum = product + (double)c;  // the product is exact
  const double part = sum - product, rest = (product - (sum - part)) + ((double)c - part);
  const float near = (float)sum;
  const double beyond = ((double)near - sum) - rest;
  const bool is_over = to > 0 ? beyond < 0 : beyond > 0;
  return std::isfinite(near) && is_over ? std::nextafterf(near, to) : near;
}
inline float fma_toward_zero(float a, float b, float c) {
  return fma_directed(a, b, c, (double)a * (double)b + (double)c > 0 ? -INFINITY : INFINITY);
}
inline float fma_down(float a, float b, float c) { return fma_directed(a, b, c, -INFINITY); }
inline float fma_up(float a, float b, float c) { return fma_directed(a, b, c, INFINITY); }
template <class T> inline T saturated(T x) { return x > 0 ? x < 1 ? x : 1 : 0; }
inline uint32_t prmt(uint32_t a, uint32_t b, uint32_t selector) {
  const uint64_t bytes = (uint64_t)b << 32 | a;
  uint32_t found = 0;
  for (int i = 0; i < 4; ++i) {
    const uint32_t s = selector >> 4 * i & 15, byte = bytes >> 8 * (s & 7) & 255;
    found |= (s & 8 ? (byte & 128 ? 255u : 0u) : byte) << 8 * i;
  }
  return found;
}
inline uint32_t bfi(uint32_t a, uint32_t b, uint32_t start, uint32_t length) {
  const uint64_t mask = (length >= 32 ? 0xffffffffull : (1ull << length) - 1) << (start & 255);
  return (uint32_t)((b & ~mask) | ((uint64_t)a << (start & 255) & mask));
}
template <class T> inline T bfe(T a, uint32_t start, uint32_t length) {
  const int bits = 8 * sizeof(T);
  start &= 255, length &= 255;
  if (length == 0 || (int)start >= bits) return length && a < 0 ? (T)-1 : 0;
  if ((int)(start + length) > bits) length = bits - start;
  return (T)((T)((U<T>)a << (bits - start - length)) >> (bits - length));
}
inline uint32_t shift_left(uint32_t low, uint32_t high, uint32_t n) { return n & 31 ? high << (n & 31) | low >> (32 - (n & 31)) : high; }
inline uint32_t shift_right(uint32_t low, uint32_t high, uint32_t n) { return n & 31 ? low >> (n & 31) | high << (32 - (n & 31)) : low; }
inline uint32_t lop3(uint32_t a, uint32_t b, uint32_t c, uint32_t table) {
  uint32_t found = 0;
  for (int i = 0; i < 32; ++i) found |= (table >> ((a >> i & 1) << 2 | (b >> i & 1) << 1 | (c >> i & 1)) & 1) << i;
  return found;
}
template <class A, class B> inline uint32_t dp4a(uint32_t a, uint32_t b, uint32_t sum) {
  for (int i = 0; i < 4; ++i) sum += (uint32_t)((int32_t)(A)(a >> 8 * i) * (int32_t)(B)(b >> 8 * i));
  return sum;
}
// The place in shared memory whose address has these low bits.
inline void *shared(uint32_t low) {
  const uint64_t anchor = (uint64_t)(uintptr_t)po::po_dynamic_shared;
  return (void *)(uintptr_t)(anchor + (int64_t)(int32_t)(low - (uint32_t)anchor));
}
}  // namespace po_ptx
