// What CUDA C has beyond C++, for kernels that are compiled for the CPU.
#include <cmath>
#include <cstdint>
#include <cstring>
#include <type_traits>
#include <utility>

typedef _Float16 half;
typedef half __half;
#define uint unsigned int
#define uchar unsigned char
#define ushort unsigned short
#define __global__
#define __device__
#define __host__
#define __forceinline__ inline
#define __launch_bounds__(...)
#define __restrict__
#define __align__ alignas

template <class T> struct Two { T x, y; };
template <class T> struct Three { T x, y, z; };
template <class T> struct alignas(sizeof(T) * 4 < 16 ? sizeof(T) * 4 : 16) Four { T x, y, z, w; };
#define VECTORS(T, NAME) \
  typedef Two<T> NAME##2; typedef Three<T> NAME##3; typedef Four<T> NAME##4; \
  static inline NAME##2 make_##NAME##2(T x, T y) { return {x, y}; } \
  static inline NAME##3 make_##NAME##3(T x, T y, T z) { return {x, y, z}; } \
  static inline NAME##4 make_##NAME##4(T x, T y, T z, T w) { return {x, y, z, w}; }
VECTORS(float, float) VECTORS(double, double) VECTORS(int, int) VECTORS(unsigned, uint)
VECTORS(signed char, char) VECTORS(unsigned char, uchar) VECTORS(short, short)
VECTORS(unsigned short, ushort) VECTORS(long, long) VECTORS(long long, longlong)
VECTORS(unsigned long long, ulonglong) VECTORS(half, half)
typedef half2 __half2;

struct Place { unsigned x, y, z; };
extern "C" {
Place blockIdx, blockDim, gridDim, threadIdx;
void emulated_wait();
void emulated_warp_wait();
unsigned long long emulated_exchange(unsigned long long, int, int, int);
unsigned emulated_active();
unsigned emulated_ballot(int yes);
}
#define __syncthreads emulated_wait
static inline void __syncwarp(unsigned = 0) { emulated_warp_wait(); }
#define __activemask emulated_active
#define __ballot_sync(mask, yes) emulated_ballot(yes)

template <class T> static inline T exchanged(T value, int move, int width, int mode) {
  unsigned long long word = 0;
  memcpy(&word, &value, sizeof value);
  word = emulated_exchange(word, move, width, mode);
  memcpy(&value, &word, sizeof value);
  return value;
}
template <class T> static inline T __shfl_sync(unsigned, T v, int lane, int width = 32) { return exchanged(v, lane, width, 0); }
template <class T> static inline T __shfl_down_sync(unsigned, T v, int by, int width = 32) { return exchanged(v, by, width, 1); }
template <class T> static inline T __shfl_up_sync(unsigned, T v, int by, int width = 32) { return exchanged(v, by, width, 2); }
template <class T> static inline T __shfl_xor_sync(unsigned, T v, int by, int width = 32) { return exchanged(v, by, width, 3); }

// CUDA's extremes of floats give the operand that is no NaN.
static inline float max(float a, float b) { return fmaxf(a, b); }
static inline float min(float a, float b) { return fminf(a, b); }
static inline double max(double a, double b) { return fmax(a, b); }
static inline double min(double a, double b) { return fmin(a, b); }
static inline half max(half a, half b) { return a > b ? a : b; }
static inline half min(half a, half b) { return a < b ? a : b; }
#define WHOLE(T) \
  static inline T max(T a, T b) { return a < b ? b : a; } \
  static inline T min(T a, T b) { return b < a ? b : a; }
WHOLE(int) WHOLE(unsigned) WHOLE(long) WHOLE(unsigned long) WHOLE(long long) WHOLE(unsigned long long)
WHOLE(signed char) WHOLE(unsigned char) WHOLE(short) WHOLE(unsigned short) WHOLE(bool)

#define CUDART_INF_F INFINITY
#define CUDART_NAN_F NAN
#define CUDART_INF (double)INFINITY
#define CUDART_NAN (double)NAN
static inline float __half2float(half v) { return (float)v; }
static inline half __float2half(float v) { return (half)v; }
static inline half __float2half_rn(float v) { return (half)v; }
static inline half __double2half(double v) { return (half)v; }
template <class To, class From> static inline To same_bits(From v) {
  static_assert(sizeof(To) == sizeof(From), "of one size");
  To r;
  memcpy(&r, &v, sizeof r);
  return r;
}
static inline int __float_as_int(float v) { return same_bits<int>(v); }
static inline unsigned __float_as_uint(float v) { return same_bits<unsigned>(v); }
static inline float __int_as_float(int v) { return same_bits<float>(v); }
static inline float __uint_as_float(unsigned v) { return same_bits<float>(v); }
static inline long long __double_as_longlong(double v) { return same_bits<long long>(v); }
static inline double __longlong_as_double(long long v) { return same_bits<double>(v); }
static inline unsigned short __half_as_ushort(half v) { return same_bits<unsigned short>(v); }
static inline half __ushort_as_half(unsigned short v) { return same_bits<half>(v); }
static inline short __half_as_short(half v) { return same_bits<short>(v); }
static inline float __fmul_rn(float a, float b) { return a * b; }
static inline double __dmul_rn(double a, double b) { return a * b; }
static inline half __hmul_rn(half a, half b) { return a * b; }
static inline bool __hgt(half a, half b) { return a > b; }
static inline bool __hlt(half a, half b) { return a < b; }
static inline bool __hisnan(half a) { return a != a; }
static inline unsigned __pack_half2(half x, half y) { return same_bits<unsigned short>(y) << 16 | same_bits<unsigned short>(x); }
#define OF_HALF(NAME, OF) static inline half NAME(half v) { return (half)OF((float)v); }
OF_HALF(hexp, expf) OF_HALF(hexp2, exp2f) OF_HALF(hexp10, exp10f) OF_HALF(hlog, logf)
OF_HALF(hlog2, log2f) OF_HALF(hlog10, log10f) OF_HALF(hsin, sinf) OF_HALF(hcos, cosf)
OF_HALF(hsqrt, sqrtf) OF_HALF(hrsqrt, 1.0f / sqrtf) OF_HALF(hfloor, floorf) OF_HALF(hceil, ceilf)
OF_HALF(htrunc, truncf) OF_HALF(hrint, rintf) OF_HALF(htanh, tanhf) OF_HALF(htan, tanf)
OF_HALF(hatan, atanf) OF_HALF(herf, erff) OF_HALF(habs, fabsf) OF_HALF(__habs, fabsf) OF_HALF(hround, roundf)
static inline half hpow(half a, half b) { return (half)powf((float)a, (float)b); }
static inline float rsqrtf(float v) { return 1.0f / sqrtf(v); }
static inline double rsqrt(double v) { return 1.0 / sqrt(v); }
static inline float __fdividef(float a, float b) { return a / b; }
static inline int __popc(unsigned v) { return __builtin_popcount(v); }
static inline int __popcll(unsigned long long v) { return __builtin_popcountll(v); }
static inline int __clz(int v) { return v ? __builtin_clz(v) : 32; }
static inline int __dp4a(int a, int b, int c) {
  for (int i = 0; i < 32; i += 8) c += (signed char)(a >> i) * (signed char)(b >> i);
  return c;
}
static inline unsigned __byte_perm(unsigned x, unsigned y, unsigned which) {
  unsigned long long both = (unsigned long long)y << 32 | x;
  unsigned r = 0;
  for (int i = 0; i < 4; i++) r |= (unsigned)(both >> 8 * (which >> 4 * i & 7) & 255) << 8 * i;
  return r;
}
// Kernels run one after the other: what came before has ended, and next ones start at the end.
static inline void tvm_builtin_ptx_griddepcontrol_wait() {}
static inline void tvm_builtin_ptx_griddepcontrol_launch_dependents() {}
static inline float4 edgeinfer_read(const float *p) { return *(const float4 *)p; }
static inline int4 edgeinfer_read_once(const int *p) { return *(const int4 *)p; }
template <class T> static inline T __ldg(const T *p) { return *p; }
// Threads run in turns, so nothing comes between.
template <class T> static inline T atomicAdd(T *p, T v) { T old = *p; *p += v; return old; }
template <class T> static inline T atomicMax(T *p, T v) { T old = *p; *p = old < v ? v : old; return old; }
template <class T> static inline T atomicMin(T *p, T v) { T old = *p; *p = v < old ? v : old; return old; }

// What `convert/llm/step.cu` says in PTX.
static inline float half_to_float(unsigned short v) { return (float)same_bits<half>(v); }
static inline unsigned short float_to_half(float v) { return same_bits<unsigned short>((half)v); }
template <class T> static inline T read_weights(const T *p) { return *p; }
static inline void let_next_start() {}
static inline void wait_for_last() {}
static inline float upper_bits(unsigned v) { return __uint_as_float(v << 16); }
static inline unsigned nearest_upper_bits(float v) {
  unsigned bits = __float_as_uint(v);
  return v != v ? 0x7FFF : (bits + 0x7FFF + (bits >> 16 & 1)) >> 16;
}
static inline unsigned fma_pairs(unsigned a, unsigned b, unsigned c) {
  float low = fmaf(upper_bits(a & 0xFFFF), upper_bits(b & 0xFFFF), upper_bits(c & 0xFFFF));
  float high = fmaf(upper_bits(a >> 16), upper_bits(b >> 16), upper_bits(c >> 16));
  return nearest_upper_bits(low) | nearest_upper_bits(high) << 16;
}
// Fragments of m16n8k16: PTX ISA 9.7.14.5.8. The hardware's order of sums is not known.
static inline void multiply(float (&d)[4], const unsigned (&a)[4], unsigned b0, unsigned b1) {
  static unsigned met[32][32][6];
  int thread = threadIdx.x, lane = thread % 32;
  unsigned (&all)[32][6] = met[thread / 32];
  for (int i = 0; i < 4; i++) all[lane][i] = a[i];
  all[lane][4] = b0;
  all[lane][5] = b1;
  __syncwarp();
  for (int e = 0; e < 4; e++) {
    int row = lane / 4, column = lane % 4 * 2 + e % 2;
    float sum = 0;
    for (int k = 0; k < 16; k++) {
      int from = k % 8 / 2, far = k / 8, up = k % 2 * 16;
      float left = upper_bits(all[row * 4 + from][e / 2 + far * 2] >> up & 0xFFFF);
      sum = fmaf(left, upper_bits(all[column * 4 + from][4 + far] >> up & 0xFFFF), sum);
    }
    d[e] = d[e] + sum;
  }
  __syncwarp();
}

template <class... A, std::size_t... I>
static inline void called(void (*f)(A...), void **given, std::index_sequence<I...>) { f(*(std::remove_reference_t<A> *)given[I]...); }
template <class... A> static inline void called(void (*f)(A...), void **given) { called(f, given, std::index_sequence_for<A...>{}); }
template <class... A> static constexpr int number(void (*)(A...)) { return sizeof...(A); }
