// The sampling passes for processors with AVX512 F/BW/DQ/VL and VNNI; setup.py gives this file its own compiler flags.
#define AIO_AVX512 1
#define AIO_ISA isa_avx512
#define AIO_NAME "avx512"
#include "sampling_kernels.h"

namespace aio {
const SamplingKernels* sampling_avx512() { return &isa_avx512::sampling_table; }
}  // namespace aio
