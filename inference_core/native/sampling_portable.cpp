// The sampling passes for any processor; setup.py gives this file its own compiler flags.
#define AIO_ISA isa_portable
#define AIO_NAME "portable"
#include "sampling_kernels.h"

namespace aio {
const SamplingKernels* sampling_portable() { return &isa_portable::sampling_table; }
}  // namespace aio
