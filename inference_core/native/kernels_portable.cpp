// The kernels for any processor; setup.py gives this file its own compiler flags.
#define AIO_ISA isa_portable
#define AIO_NAME "portable"
#include "kernels_impl.h"

namespace aio {
const KernelTable* kernels_portable() { return &isa_portable::table; }
const KernelTable* kernels_portable_emulated() { return isa_portable::emulated(); }
}  // namespace aio
