// A kernel table with linear layers of prompts in spans of INT8.
#pragma once
#include "span_linear.h"
#include "span_rows.h"

namespace aio {
namespace AIO_ISA {

static KernelTable with_spans(const KernelTable& base) {
  KernelTable made = base;
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

}  // namespace AIO_ISA
}  // namespace aio
