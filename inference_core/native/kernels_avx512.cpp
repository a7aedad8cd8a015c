// The kernels for processors with AVX512 F/BW/DQ/VL and VNNI, with linear layers of prompts in spans of INT8; setup.py gives
// this file its own compiler flags.
#define AIO_AVX512 1
#define AIO_ISA isa_avx512
#define AIO_NAME "avx512"
#include "kernels_impl.h"
#include "span_kernels.h"

namespace aio {
const KernelTable* kernels_avx512() {
  static const KernelTable made = isa_avx512::with_spans(isa_avx512::table);
  return &made;
}
const KernelTable* kernels_avx512_emulated() { return isa_avx512::emulated(); }
}  // namespace aio
