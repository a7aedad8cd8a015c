// The kernels for ARM processors of 64 bits; setup.py gives this file its own compiler flags.
#define AIO_NEON 1
#define AIO_ISA isa_neon
#define AIO_NAME "neon"
#include "kernels_impl.h"

namespace aio {
const KernelTable* kernels_neon() { return &isa_neon::table; }
const KernelTable* kernels_neon_emulated() { return isa_neon::emulated(); }
}  // namespace aio
