// What all kernels share, on whatever instruction set the including file is compiled for (see kernels_impl.h).
#pragma once
#include "kernels.h"

#include <math.h>
#include <string.h>
#if defined(AIO_AVX512) || defined(AIO_AVX2)
#include <immintrin.h>
#endif

namespace aio {
namespace AIO_ISA {

#define AIO_INLINE static inline __attribute__((always_inline))
#define AIO_LAMBDA __attribute__((always_inline))
#define AIO_MEMBER inline __attribute__((always_inline))
// Short loops over register arrays must disappear, or the arrays live on the stack.
#if defined(AIO_AVX512) || defined(AIO_AVX2)
#define AIO_UNROLL _Pragma("GCC unroll 16")
#else
#define AIO_UNROLL  // a vector of 16 is four or more registers already: unrolled further, compiling takes minutes
#endif

AIO_INLINE int min_int(int a, int b) { return a < b ? a : b; }
AIO_INLINE int max_int(int a, int b) { return a > b ? a : b; }

}  // namespace AIO_ISA
}  // namespace aio
