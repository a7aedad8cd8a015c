// The kernels for processors with AVX2, FMA and F16C; setup.py gives this file its own compiler flags.
#define AIO_AVX2 1
#define AIO_ISA isa_avx2
#define AIO_NAME "avx2"
#include "kernels_impl.h"

namespace aio {
const KernelTable* kernels_avx2() { return &isa_avx2::table; }
const KernelTable* kernels_avx2_emulated() { return isa_avx2::emulated(); }
}  // namespace aio
