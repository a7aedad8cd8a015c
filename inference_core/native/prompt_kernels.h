// A kernel table with prompt kernels, on the tiles of the template's argument: AMX or its emulation.
#pragma once
#include "prompt_attention.h"
#include "prompt_linear.h"

namespace aio {
namespace AIO_ISA {

template <typename Tiles>
static KernelTable with_tiles(const KernelTable& base, const char* name) {
  KernelTable table = base;
  table.name = name;
  table.round_rows = round_rows;
  table.quantize_spans = nullptr;
  table.norm_quantize_spans = nullptr;
  table.silu_quantize_spans = table.gelu_quantize_spans = table.clamped_quantize_spans = nullptr;
  table.prompt_int4 = prompt_linear<Tiles, UnpackedPanel<Int4>>;
  table.prompt_int4_centred = prompt_linear<Tiles, UnpackedPanel<Int4Centred>>;
  table.prompt_int8 = prompt_linear<Tiles, UnpackedPanel<Int8>>;
  table.prompt_bf16 = prompt_linear<Tiles, Bfloat16Tiles>;
  table.attend_prompt = attend_prompt<TileProducts<Tiles>>;
  return table;
}

}  // namespace AIO_ISA
}  // namespace aio
