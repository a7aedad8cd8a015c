// The kernels for ARM processors with dot products of unsigned and signed bytes; setup.py gives this file its own compiler flags.
#define AIO_NEON 1
#define AIO_DOTPROD 1
#define AIO_I8MM 1
#define AIO_ISA isa_i8mm
#define AIO_NAME "i8mm"
#include "kernels_impl.h"

namespace aio {
const KernelTable* kernels_i8mm() { return &isa_i8mm::table; }
const KernelTable* kernels_i8mm_emulated() { return isa_i8mm::emulated(); }
}  // namespace aio
