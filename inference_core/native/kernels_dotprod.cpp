// The kernels for ARM processors with dot products of signed bytes; setup.py gives this file its own compiler flags.
#define AIO_NEON 1
#define AIO_DOTPROD 1
#define AIO_ISA isa_dotprod
#define AIO_NAME "dotprod"
#include "kernels_impl.h"

namespace aio {
const KernelTable* kernels_dotprod() { return &isa_dotprod::table; }
const KernelTable* kernels_dotprod_emulated() { return isa_dotprod::emulated(); }
}  // namespace aio
