// The sampling passes for processors with AVX2 and FMA; setup.py gives this file its own compiler flags.
#define AIO_AVX2 1
#define AIO_ISA isa_avx2
#define AIO_NAME "avx2"
#include "sampling_kernels.h"

namespace aio {
const SamplingKernels* sampling_avx2() { return &isa_avx2::sampling_table; }
}  // namespace aio
