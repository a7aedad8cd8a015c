// The kernels for ARM processors with dot products of unsigned and signed bytes, and with products of matrices of signed bytes
// for linear layers of prompts; setup.py gives this file its own compiler flags.
#define AIO_NEON 1
#define AIO_DOTPROD 1
#define AIO_I8MM 1
#define AIO_ISA isa_i8mm
#define AIO_NAME "i8mm"
#include "kernels_impl.h"
#include "span_kernels.h"

namespace aio {
const KernelTable* kernels_i8mm() {
  static const KernelTable made = isa_i8mm::with_spans(isa_i8mm::table);
  return &made;
}
const KernelTable* kernels_i8mm_emulated() { return isa_i8mm::emulated(); }
}  // namespace aio
