// The kernels themselves, written once on 16-lane vectors and compiled once per instruction set.
// The including file defines AIO_ISA (a namespace, so that no inline function is shared between
// translation units of different instruction sets) and may define AIO_AVX512 or AIO_AVX2, or on ARM AIO_NEON,
// with it AIO_DOTPROD, and with both AIO_I8MM.
#include "attention_kernels.h"
#include "float_linear.h"
#include "integer_linear.h"
#include "kv_write.h"
#include "low_rank_kernels.h"
#include "peak_kernels.h"
#include "prompt_kernels.h"
#include "row_kernels.h"

namespace aio {
namespace AIO_ISA {

static const KernelTable table = {
    AIO_NAME,
    AIO_NAME,
    quantize_rows,
    linear_int4,
    linear_int4_centred,
    linear_int4_float,
    linear_int8,
    linear_bf16,
    linear_f32,
    rms_norm,
    gated_mul<kSilu>,
    norm_quantize_rows,
    gated_quantize_rows<kSilu>,
    gated_mul<kGelu>,
    gated_quantize_rows<kGelu>,
    gated_mul<kClampedSwiglu>,
    gated_quantize_rows<kClampedSwiglu>,
    cap_values,
    shrink_rows,
    expand_rows,
    rope_and_write,
    attend,
    multiply_integers,
    multiply_floats,
    read_memory,
};

static const KernelTable* emulated() {
  static const KernelTable made = with_tiles<EmulatedTiles>(table, "amx-emulated");
  return &made;
}

}  // namespace AIO_ISA
}  // namespace aio
