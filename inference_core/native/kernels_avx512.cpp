// The kernels for processors with AVX512 F/BW/DQ/VL and VNNI, with linear layers of prompts in spans of INT8; setup.py gives
// this file its own compiler flags.
#define AIO_AVX512 1
#define AIO_ISA isa_avx512
#define AIO_NAME "avx512"
#include "kernels_impl.h"
#include "span_linear.h"
#include "span_rows.h"

namespace aio {
namespace isa_avx512 {

static KernelTable with_spans() {
  KernelTable made = table;
  made.prompt_int4 = span_linear<Int4>;
  made.prompt_int4_centred = span_linear<Int4Centred>;
  made.prompt_int8 = span_linear<Int8>;
  made.quantize_spans = quantize_spans;
  made.norm_quantize_spans = norm_quantize_spans;
  made.silu_quantize_spans = gated_quantize_spans<kSilu>;
  made.gelu_quantize_spans = gated_quantize_spans<kGelu>;
  made.clamped_quantize_spans = gated_quantize_spans<kClampedSwiglu>;
  return made;
}

}  // namespace isa_avx512

const KernelTable* kernels_avx512() {
  static const KernelTable made = isa_avx512::with_spans();
  return &made;
}
const KernelTable* kernels_avx512_emulated() { return isa_avx512::emulated(); }
}  // namespace aio
