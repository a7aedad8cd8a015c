"""The kernels as torch custom ops `aio::*`: plain torch on the CPU, Triton on CUDA (SPEC AT-07).

Decoder ops take a layer of the cache as numbers (`LayerCache`). Linear layers and low-rank adapters (SPEC LO-01) write
or add to `out`, so that a runner's buffers keep the addresses that a CUDA graph uses. Drawn tokens equal those of
`reference_sampler`.

Mixtures of experts (Shazeer et al. 2017): a step of T tokens that take k experts each has T * k rows; row t * k + j is
the j-th choice of token t. `group_rows` sorts the rows by expert, so that an expert reads its weights once for all of
its rows. Nothing waits for the device or depends on numbers on it, so a step can be captured as a graph.

Importing this module registers the ops, without triton.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeAlias

import torch

from inference_core.kv_cache.layout import KVDtype, KVLayout
from inference_core.triton_kernels import reference
from inference_core.triton_kernels.layer_cache import LayerCache
from inference_core.triton_kernels.tiles import NO_SLOT
from inference_core.triton_kernels.weights import EightBitWeight, Int4Weight, LowRankRows, LowRankSlots, QuantizedRows

_LIBRARY = torch.library.Library("aio", "FRAGMENT")


def register(schema: str, *, cpu: Callable[..., object], cuda: Callable[..., object]) -> None:
    """Define `aio::<schema>` for an op that only writes to its arguments, as in `name(Tensor(a!) out, Tensor x) -> ()`.

    `cuda` imports triton when called, since the op must be registered without triton too.
    """
    name = schema.split("(", 1)[0]
    _LIBRARY.define(schema)
    _LIBRARY.impl(name, cpu, "CPU")
    _LIBRARY.impl(name, cuda, "CUDA")
    torch.library.register_fake(f"aio::{name}", lambda *_, **__: None, lib=_LIBRARY)


_CACHE = "str kv_dtype, int kv_heads, int head_dim, int block_size, int layer"


def cache_numbers(cache: LayerCache) -> tuple[str, int, int, int, int]:
    """The op arguments that describe a layer of the cache, in addition to its arena."""
    layout = cache.layout
    return layout.dtype, layout.num_kv_heads, layout.head_dim, layout.block_size, cache.layer


def _cache(
    arena: torch.Tensor, kv_dtype: KVDtype, kv_heads: int, head_dim: int, block_size: int, layer: int
) -> LayerCache:
    # A layer's offset does not depend on the number of layers after it.
    layout = KVLayout(
        num_layers=layer + 1, num_kv_heads=kv_heads, head_dim=head_dim, block_size=block_size, dtype=kv_dtype
    )
    return LayerCache(arena, layout, layer)


# The schemas below name the arguments of each op, in this order; the last ones describe the layer (`cache_numbers`).


def _paged_attention_cpu(out: torch.Tensor, qkv: torch.Tensor, arena: torch.Tensor, *more: Any) -> None:
    offsets, table_start, query_start, context_len, _, _, _, window, softcap, *cache = more
    ragged = (offsets, table_start, query_start, context_len)
    reference.reference_paged_attention(qkv, _cache(arena, *cache), *ragged, out, window=window, softcap=softcap)


def _paged_attention_cuda(out: torch.Tensor, qkv: torch.Tensor, arena: torch.Tensor, *more: Any) -> None:
    from inference_core.triton_kernels.paged_attention import paged_attention

    offsets, table_start, query_start, context_len, longest, blocks, prompts, window, softcap, *cache = more
    ragged = (offsets, table_start, query_start, context_len)
    options = {"window": window, "softcap": softcap, "max_query_len": longest, "context_blocks": blocks}
    paged_attention(qkv, _cache(arena, *cache), *ragged, out, prompts=prompts, **options)


def build_prompt_plans(qkv: torch.Tensor, heads: int, kv_heads: int, head_dim: int, most_queries: int) -> bool:
    """See `prompt_attention.build_prompt_plans`; False on the CPU."""
    if qkv.device.type != "cuda":
        return False
    from inference_core.triton_kernels.prompt_attention import build_prompt_plans as build

    return build(qkv, heads, kv_heads, head_dim, most_queries)


def _rope_and_write_cpu(qkv: torch.Tensor, arena: torch.Tensor, *more: Any) -> None:
    cos_sin, positions, slots, q_norm, k_norm, eps, *cache = more
    reference.reference_rope_and_write(qkv, cos_sin, positions, slots, _cache(arena, *cache), q_norm, k_norm, eps)


def _rope_and_write_cuda(qkv: torch.Tensor, arena: torch.Tensor, *more: Any) -> None:
    from inference_core.triton_kernels.cache_writes import rope_and_write

    cos_sin, positions, slots, q_norm, k_norm, eps, *cache = more
    rope_and_write(qkv, cos_sin, positions, slots, _cache(arena, *cache), q_norm, k_norm, eps)


# With `scales`, the outputs of norms and gated activations are `QuantizedRows`, and `out` is their codes.
def _rms_norm_cuda(
    out: torch.Tensor, x: torch.Tensor, weight: torch.Tensor, eps: float, scales: torch.Tensor | None = None
) -> None:
    from inference_core.triton_kernels.row_kernels import rms_norm

    rms_norm(x, weight, eps, out, scales)


def _add_rms_norm_cuda(
    out: torch.Tensor,
    residual: torch.Tensor,
    x: torch.Tensor,
    weight: torch.Tensor,
    eps: float,
    scales: torch.Tensor | None = None,
) -> None:
    from inference_core.triton_kernels.row_kernels import add_rms_norm

    add_rms_norm(x, residual, weight, eps, out, scales)


def _swiglu_cuda(out: torch.Tensor, gate_up: torch.Tensor, scales: torch.Tensor | None = None) -> None:
    from inference_core.triton_kernels.row_kernels import swiglu

    swiglu(gate_up, out, scales)


def _geglu_cuda(out: torch.Tensor, gate_up: torch.Tensor, scales: torch.Tensor | None = None) -> None:
    from inference_core.triton_kernels.row_kernels import geglu

    geglu(gate_up, out, scales)


def _copy_blocks_cuda(arena: torch.Tensor, pairs: torch.Tensor, block_bytes: int) -> None:
    from inference_core.triton_kernels.cache_writes import copy_blocks

    copy_blocks(arena, pairs, block_bytes)


register(
    "paged_attention(Tensor(a!) out, Tensor qkv, Tensor arena, Tensor block_offsets, Tensor table_start, "
    "Tensor query_start, Tensor context_len, int max_query_len, int context_blocks, int[] prompts, int window, "
    f"float softcap, {_CACHE}) -> ()",
    cpu=_paged_attention_cpu,
    cuda=_paged_attention_cuda,
)
register(
    "rope_and_write(Tensor(a!) qkv, Tensor(b!) arena, Tensor cos_sin, Tensor positions, Tensor slots, "
    f"Tensor? q_norm, Tensor? k_norm, float eps, {_CACHE}) -> ()",
    cpu=_rope_and_write_cpu,
    cuda=_rope_and_write_cuda,
)
register(
    "rms_norm(Tensor(a!) out, Tensor x, Tensor weight, float eps, Tensor(b!)? scales=None) -> ()",
    cpu=lambda out, x, weight, eps, scales=None: reference.reference_rms_norm(x, weight, eps, out, scales),
    cuda=_rms_norm_cuda,
)
register(
    "add_rms_norm(Tensor(a!) out, Tensor(b!) residual, Tensor x, Tensor weight, float eps, "
    "Tensor(c!)? scales=None) -> ()",
    cpu=lambda out, residual, x, weight, eps, scales=None: reference.reference_add_rms_norm(
        x, residual, weight, eps, out, scales
    ),
    cuda=_add_rms_norm_cuda,
)
register(
    "swiglu(Tensor(a!) out, Tensor gate_up, Tensor(b!)? scales=None) -> ()",
    cpu=lambda out, gate_up, scales=None: reference.reference_swiglu(gate_up, out, scales),
    cuda=_swiglu_cuda,
)
register(
    "geglu(Tensor(a!) out, Tensor gate_up, Tensor(b!)? scales=None) -> ()",
    cpu=lambda out, gate_up, scales=None: reference.reference_geglu(gate_up, out, scales),
    cuda=_geglu_cuda,
)
register(
    "copy_blocks(Tensor(a!) arena, Tensor pairs, int block_bytes) -> ()",
    cpu=reference.reference_copy_blocks,
    cuda=_copy_blocks_cuda,
)


def int4_linear(
    x: torch.Tensor, weight: Int4Weight, bias: torch.Tensor | None, out: torch.Tensor, *, accumulate: bool = False
) -> None:
    """Write (or add) x W^T + bias to out: x [M, K], out [M, N] float16 or bfloat16, bias [N]."""
    torch.ops.aio.int4_linear(out, x, weight.codes, weight.scales, weight.offsets, bias, accumulate)


Activations: TypeAlias = torch.Tensor | QuantizedRows


def codes_and_scales(x: Activations) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Return `x` as the ops take it: a tensor of codes and their scales, or of activations and None."""
    return (x.codes, x.scales) if isinstance(x, QuantizedRows) else (x, None)


def eight_bit_linear(
    x: Activations, weight: EightBitWeight, bias: torch.Tensor | None, out: torch.Tensor, *, accumulate: bool = False
) -> None:
    """Quantise x [M, K] dynamically, unless it is, and write (or add) its product with W^T plus bias [N] to out [M, N].

    `QuantizedRows` have codes of the weight's dtype, and the weight has scales per channel.
    """
    numbers, scales = codes_and_scales(x)
    torch.ops.aio.eight_bit_linear(out, numbers, scales, weight.codes, weight.scales, bias, accumulate)


def _int4_linear_cuda(
    out: torch.Tensor,
    x: torch.Tensor,
    codes: torch.Tensor,
    scales: torch.Tensor,
    offsets: torch.Tensor | None,
    bias: torch.Tensor | None,
    accumulate: bool,
) -> None:
    from inference_core.triton_kernels.int4_linear import int4_linear as launch

    launch(x, codes, scales, offsets, bias, out, accumulate=accumulate)


def _eight_bit_linear_cuda(
    out: torch.Tensor,
    x: torch.Tensor,
    x_scales: torch.Tensor | None,
    codes: torch.Tensor,
    scales: torch.Tensor,
    bias: torch.Tensor | None,
    accumulate: bool,
) -> None:
    from inference_core.triton_kernels.scaled_linear import quantize_groups, quantize_rows, scaled_linear

    if x_scales is None:
        x, x_scales = (quantize_groups if scales.dim() == 2 else quantize_rows)(x, codes.dtype)
    scaled_linear(x, x_scales, codes, scales, bias, out, accumulate=accumulate)


register(
    "int4_linear(Tensor(a!) out, Tensor x, Tensor codes, Tensor scales, Tensor? offsets, Tensor? bias, "
    "bool accumulate) -> ()",
    cpu=lambda out, x, codes, scales, offsets, bias, accumulate: reference.int4_linear(
        x, codes, scales, offsets, bias, out, accumulate=accumulate
    ),
    cuda=_int4_linear_cuda,
)
register(
    "eight_bit_linear(Tensor(a!) out, Tensor x, Tensor? x_scales, Tensor codes, Tensor scales, Tensor? bias, "
    "bool accumulate) -> ()",
    cpu=lambda out, x, x_scales, codes, scales, bias, accumulate: reference.eight_bit_linear(
        x, codes, scales, bias, out, x_scales=x_scales, accumulate=accumulate
    ),
    cuda=_eight_bit_linear_cuda,
)


@dataclass(slots=True, frozen=True)
class ExpertRows:
    """The rows of a step by expert. `experts` int32 [T, k]: each token's choices, best first; -1 in rows of
    padding, which are not computed. `weights` float32 [T, k]. `order` int32 [T * k]: rows sorted by expert, then by
    row; expert e has those from `starts[e]` to `starts[e + 1]`, int32 [experts + 1]."""

    experts: torch.Tensor
    weights: torch.Tensor
    order: torch.Tensor
    starts: torch.Tensor


def route(logits: torch.Tensor, slots: torch.Tensor, taken: int, *, normalise: bool) -> ExpertRows:
    """Choose `taken` experts for every token by its router's `logits` [T, experts]; tokens with a negative slot int64
    [T] are padding. Weights are the softmax over all experts, or with `normalise` over the chosen ones."""
    tokens, count = logits.shape
    ints = {"dtype": torch.int32, "device": logits.device}
    rows = ExpertRows(
        torch.empty(tokens, taken, **ints),
        logits.new_empty(tokens, taken, dtype=torch.float32),
        torch.empty(tokens * taken, **ints),
        torch.empty(count + 1, **ints),
    )
    torch.ops.aio.route_experts(rows.experts, rows.weights, logits, slots, normalise)
    torch.ops.aio.group_rows(rows.order, rows.starts, rows.experts)
    return rows


def _route_experts_cuda(
    experts: torch.Tensor, weights: torch.Tensor, logits: torch.Tensor, slots: torch.Tensor, normalise: bool
) -> None:
    from inference_core.triton_kernels.experts import route_experts

    route_experts(logits, slots, experts, weights, normalise=normalise)


def _group_rows_cuda(order: torch.Tensor, starts: torch.Tensor, experts: torch.Tensor) -> None:
    from inference_core.triton_kernels.experts import group_rows

    group_rows(experts, order, starts)


def _dense_experts_cuda(
    out: torch.Tensor, x: torch.Tensor, weight: torch.Tensor, order: torch.Tensor, starts: torch.Tensor, taken: int
) -> None:
    from inference_core.triton_kernels.experts import dense_experts

    dense_experts(x, weight, order, starts, out, taken=taken)


def _int4_experts_cuda(
    out: torch.Tensor,
    x: torch.Tensor,
    codes: torch.Tensor,
    scales: torch.Tensor,
    offsets: torch.Tensor | None,
    order: torch.Tensor,
    starts: torch.Tensor,
    taken: int,
) -> None:
    from inference_core.triton_kernels.experts import int4_experts

    int4_experts(x, codes, scales, offsets, order, starts, out, taken=taken)


def _add_experts_cuda(out: torch.Tensor, parts: torch.Tensor, experts: torch.Tensor, weights: torch.Tensor) -> None:
    from inference_core.triton_kernels.experts import add_experts

    add_experts(parts, experts, weights, out)


register(
    "route_experts(Tensor(a!) experts, Tensor(b!) weights, Tensor logits, Tensor slots, bool normalise) -> ()",
    cpu=lambda experts, weights, logits, slots, normalise: reference.reference_route_experts(
        logits, slots, experts, weights, normalise=normalise
    ),
    cuda=_route_experts_cuda,
)
register(
    "group_rows(Tensor(a!) order, Tensor(b!) starts, Tensor experts) -> ()",
    cpu=lambda order, starts, experts: reference.reference_group_rows(experts, order, starts),
    cuda=_group_rows_cuda,
)
register(
    "dense_experts(Tensor(a!) out, Tensor x, Tensor weight, Tensor order, Tensor starts, int taken) -> ()",
    cpu=lambda out, x, weight, order, starts, taken: reference.reference_dense_experts(
        x, weight, order, starts, out, taken=taken
    ),
    cuda=_dense_experts_cuda,
)
register(
    "int4_experts(Tensor(a!) out, Tensor x, Tensor codes, Tensor scales, Tensor? offsets, Tensor order, "
    "Tensor starts, int taken) -> ()",
    cpu=lambda out, x, codes, scales, offsets, order, starts, taken: reference.reference_int4_experts(
        x, codes, scales, offsets, order, starts, out, taken=taken
    ),
    cuda=_int4_experts_cuda,
)
register(
    "add_experts(Tensor(a!) out, Tensor parts, Tensor experts, Tensor weights) -> ()",
    cpu=lambda out, parts, experts, weights: reference.reference_add_experts(parts, experts, weights, out),
    cuda=_add_experts_cuda,
)


def add_low_rank(out: torch.Tensor, x: torch.Tensor, slots: LowRankSlots, batch: LowRankRows) -> None:
    """Add scale * B (A x) of each row's adapter to out [T, N], for x [T, K] in the factors' dtype."""
    torch.ops.aio.add_low_rank(
        *(out, x, slots.down, slots.up, slots.scales, slots.ranks, list(slots.borders)),
        *(batch.rows, batch.tiles, batch.tile_rows),
    )


def reference_add_low_rank(out: torch.Tensor, x: torch.Tensor, slots: LowRankSlots, batch: LowRankRows) -> None:
    """The same in float32, tile by tile: the kernels' oracle, and the fallback without CUDA."""
    ranks, scales = slots.ranks.tolist(), slots.scales.tolist()
    for begin, count, slot in batch.tiles.tolist():
        if slot == NO_SLOT:
            continue
        rows = batch.rows[begin : begin + count].long()
        seen = x[rows].float()
        for part in range(len(slots.borders) - 1):
            rank, scale = ranks[slot][part], scales[slot][part]
            if not rank:
                continue
            columns = slice(slots.borders[part], slots.borders[part + 1])
            found = seen @ slots.down[slot, part, :rank].float().T * scale
            added = out[rows, columns].float() + found @ slots.up[slot, :rank, columns].float()
            out[rows, columns] = added.to(out.dtype)


def _cpu(out: torch.Tensor, x: torch.Tensor, *numbers: Any) -> None:
    reference_add_low_rank(out, x, *_slots_and_rows(*numbers))


def _cuda(out: torch.Tensor, x: torch.Tensor, *numbers: Any) -> None:
    from inference_core.triton_kernels.low_rank import add_low_rank as launch

    launch(out, x, *_slots_and_rows(*numbers))


def _slots_and_rows(
    down: torch.Tensor, up: torch.Tensor, scales: torch.Tensor, ranks: torch.Tensor, borders: list[int], *rows: Any
) -> tuple[LowRankSlots, LowRankRows]:
    return LowRankSlots(down, up, scales, ranks, tuple(borders)), LowRankRows(*rows)


register(
    "add_low_rank(Tensor(a!) out, Tensor x, Tensor down, Tensor up, Tensor scales, Tensor ranks, int[] borders, "
    "Tensor rows, Tensor tiles, int tile_rows) -> ()",
    cpu=_cpu,
    cuda=_cuda,
)


def _edit_logits_cuda(logits: torch.Tensor, *edits: torch.Tensor) -> None:
    from inference_core.triton_kernels.logits import edit_logits as launch

    launch(logits, *edits)


def _draw_tokens_cuda(drawn: torch.Tensor, logits: torch.Tensor, *laws: torch.Tensor) -> None:
    from inference_core.triton_kernels.token_draws import draw_tokens as launch

    launch(drawn, logits, *laws)


def _row_totals_cuda(best: torch.Tensor, totals: torch.Tensor, logits: torch.Tensor) -> None:
    from inference_core.triton_kernels.token_draws import row_totals as launch

    launch(best, totals, logits)


register(
    "edit_logits(Tensor(a!) logits, Tensor rows, Tensor token_ids, Tensor bias, Tensor num_biased, Tensor uses, "
    "Tensor repetition, Tensor presence, Tensor frequency) -> ()",
    cpu=reference.edit_logits,
    cuda=_edit_logits_cuda,
)
register(
    "draw_tokens(Tensor(a!) drawn, Tensor logits, Tensor temperature, Tensor top_k, Tensor top_p, Tensor min_p, "
    "Tensor seed, Tensor position) -> ()",
    cpu=reference.draw_tokens,
    cuda=_draw_tokens_cuda,
)
register(
    "row_totals(Tensor(a!) best, Tensor(b!) totals, Tensor logits) -> ()",
    cpu=reference.row_totals,
    cuda=_row_totals_cuda,
)
