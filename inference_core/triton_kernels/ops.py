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
from functools import partial
from importlib import import_module
from typing import Any, TypeAlias

import torch

from inference_core.kv_cache.layout import KVDtype, KVLayout
from inference_core.triton_kernels import reference
from inference_core.triton_kernels.layer_cache import LayerCache
from inference_core.triton_kernels.tiles import NO_SLOT
from inference_core.triton_kernels.weights import EightBitWeight, Int4Weight, LowRankRows, LowRankSlots, QuantizedRows

_LIBRARY = torch.library.Library("aio", "FRAGMENT")

Run: TypeAlias = Callable[..., object]

# What each op runs, by its name.
ON_CPU: dict[str, Run] = {}
ON_CUDA: dict[str, Run] = {}


def _kernel(path: str) -> Run:
    """Return the function MODULE.NAME of this package. Its module, which imports triton, is imported when the function
    is called, since the ops must be registered without triton."""
    module, _, name = path.partition(".")
    return lambda *args, **options: getattr(import_module(f"{__package__}.{module}"), name)(*args, **options)


def register(schema: str, *, cpu: Run, cuda: Run, call: Run | None = None) -> None:
    """Define `aio::<schema>` for an op that only writes to its arguments, as in `name(Tensor(a!) out, Tensor x) -> ()`.

    `call(run, ...)` calls either function with the op's arguments; without it they are taken as they are.
    """
    name = schema.split("(", 1)[0]
    ON_CPU[name], ON_CUDA[name] = (run if call is None else partial(call, run) for run in (cpu, cuda))
    _LIBRARY.define(schema)
    _LIBRARY.impl(name, ON_CPU[name], "CPU")
    _LIBRARY.impl(name, ON_CUDA[name], "CUDA")
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


_paged_attention = _kernel("paged_attention.paged_attention")


def _paged_attention_cpu(out: torch.Tensor, qkv: torch.Tensor, arena: torch.Tensor, *more: Any) -> None:
    offsets, table_start, query_start, context_len, _, _, _, window, softcap, *cache = more
    ragged = (offsets, table_start, query_start, context_len)
    reference.reference_paged_attention(qkv, _cache(arena, *cache), *ragged, out, window=window, softcap=softcap)


def _paged_attention_cuda(out: torch.Tensor, qkv: torch.Tensor, arena: torch.Tensor, *more: Any) -> None:
    offsets, table_start, query_start, context_len, longest, blocks, prompts, window, softcap, *cache = more
    ragged = (offsets, table_start, query_start, context_len)
    options = {"window": window, "softcap": softcap, "max_query_len": longest, "context_blocks": blocks}
    _paged_attention(qkv, _cache(arena, *cache), *ragged, out, prompts=prompts, **options)


def build_prompt_plans(qkv: torch.Tensor, heads: int, kv_heads: int, head_dim: int, most_queries: int) -> bool:
    """See `prompt_attention.build_prompt_plans`; False on the CPU."""
    if qkv.device.type != "cuda":
        return False
    from inference_core.triton_kernels.prompt_attention import build_prompt_plans as build

    return build(qkv, heads, kv_heads, head_dim, most_queries)


def _rope_and_write(run: Run, qkv: torch.Tensor, arena: torch.Tensor, *more: Any) -> None:
    cos_sin, positions, slots, q_norm, k_norm, eps, *cache = more
    run(qkv, cos_sin, positions, slots, _cache(arena, *cache), q_norm, k_norm, eps)


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
    cpu=reference.reference_rope_and_write,
    cuda=_kernel("cache_writes.rope_and_write"),
    call=_rope_and_write,
)
# With `scales`, the outputs of norms and gated activations are `QuantizedRows`, and `out` is their codes.
register(
    "rms_norm(Tensor(a!) out, Tensor x, Tensor weight, float eps, Tensor(b!)? scales=None) -> ()",
    cpu=reference.reference_rms_norm,
    cuda=_kernel("row_kernels.rms_norm"),
    call=lambda run, out, x, weight, eps, scales=None: run(x, weight, eps, out, scales),
)
register(
    "add_rms_norm(Tensor(a!) out, Tensor(b!) residual, Tensor x, Tensor weight, float eps, "
    "Tensor(c!)? scales=None) -> ()",
    cpu=reference.reference_add_rms_norm,
    cuda=_kernel("row_kernels.add_rms_norm"),
    call=lambda run, out, residual, x, weight, eps, scales=None: run(x, residual, weight, eps, out, scales),
)
register(
    "swiglu(Tensor(a!) out, Tensor gate_up, Tensor(b!)? scales=None) -> ()",
    cpu=reference.reference_swiglu,
    cuda=_kernel("row_kernels.swiglu"),
    call=lambda run, out, gate_up, scales=None: run(gate_up, out, scales),
)
register(
    "geglu(Tensor(a!) out, Tensor gate_up, Tensor(b!)? scales=None) -> ()",
    cpu=reference.reference_geglu,
    cuda=_kernel("row_kernels.geglu"),
    call=lambda run, out, gate_up, scales=None: run(gate_up, out, scales),
)
register(
    "copy_blocks(Tensor(a!) arena, Tensor pairs, int block_bytes) -> ()",
    cpu=reference.reference_copy_blocks,
    cuda=_kernel("cache_writes.copy_blocks"),
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


def _eight_bit_linear_cuda(
    x: torch.Tensor,
    codes: torch.Tensor,
    scales: torch.Tensor,
    bias: torch.Tensor | None,
    out: torch.Tensor,
    *,
    x_scales: torch.Tensor | None,
    accumulate: bool,
) -> None:
    from inference_core.triton_kernels.scaled_linear import quantize_groups, quantize_rows, scaled_linear

    if x_scales is None:
        x, x_scales = (quantize_groups if scales.dim() == 2 else quantize_rows)(x, codes.dtype)
    scaled_linear(x, x_scales, codes, scales, bias, out, accumulate=accumulate)


register(
    "int4_linear(Tensor(a!) out, Tensor x, Tensor codes, Tensor scales, Tensor? offsets, Tensor? bias, "
    "bool accumulate) -> ()",
    cpu=reference.int4_linear,
    cuda=_kernel("int4_linear.int4_linear"),
    call=lambda run, out, *operands: run(*operands[:-1], out, accumulate=operands[-1]),
)
register(
    "eight_bit_linear(Tensor(a!) out, Tensor x, Tensor? x_scales, Tensor codes, Tensor scales, Tensor? bias, "
    "bool accumulate) -> ()",
    cpu=reference.eight_bit_linear,
    cuda=_eight_bit_linear_cuda,
    call=lambda run, out, x, x_scales, codes, scales, bias, accumulate: run(
        x, codes, scales, bias, out, x_scales=x_scales, accumulate=accumulate
    ),
)


@dataclass(slots=True, frozen=True)
class ExpertRows:
    """The rows of a step by expert."""

    experts: torch.Tensor
    """int32 [T, k]: each token's choices, best first; -1 in rows of padding, which are not computed."""
    weights: torch.Tensor
    """float32 [T, k]."""
    order: torch.Tensor
    """int32 [T * k]: rows sorted by expert, then by row."""
    starts: torch.Tensor
    """int32 [experts + 1]: expert e has the rows of `order` from `starts[e]` to `starts[e + 1]`."""


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


register(
    "route_experts(Tensor(a!) experts, Tensor(b!) weights, Tensor logits, Tensor slots, bool normalise) -> ()",
    cpu=reference.reference_route_experts,
    cuda=_kernel("experts.route_experts"),
    call=lambda run, experts, weights, logits, slots, normalise: run(
        logits, slots, experts, weights, normalise=normalise
    ),
)
register(
    "group_rows(Tensor(a!) order, Tensor(b!) starts, Tensor experts) -> ()",
    cpu=reference.reference_group_rows,
    cuda=_kernel("experts.group_rows"),
    call=lambda run, order, starts, experts: run(experts, order, starts),
)
register(
    "dense_experts(Tensor(a!) out, Tensor x, Tensor weight, Tensor order, Tensor starts, int taken) -> ()",
    cpu=reference.reference_dense_experts,
    cuda=_kernel("experts.dense_experts"),
    call=lambda run, out, x, weight, order, starts, taken: run(x, weight, order, starts, out, taken=taken),
)
register(
    "int4_experts(Tensor(a!) out, Tensor x, Tensor codes, Tensor scales, Tensor? offsets, Tensor order, "
    "Tensor starts, int taken) -> ()",
    cpu=reference.reference_int4_experts,
    cuda=_kernel("experts.int4_experts"),
    call=lambda run, out, *operands: run(*operands[:-1], out, taken=operands[-1]),
)
register(
    "add_experts(Tensor(a!) out, Tensor parts, Tensor experts, Tensor weights) -> ()",
    cpu=reference.reference_add_experts,
    cuda=_kernel("experts.add_experts"),
    call=lambda run, out, parts, experts, weights: run(parts, experts, weights, out),
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
            shrunk = seen @ slots.down[slot, part, :rank].float().T * scale
            added = out[rows, columns].float() + shrunk @ slots.up[slot, :rank, columns].float()
            out[rows, columns] = added.to(out.dtype)


def _add_low_rank(
    run: Run,
    out: torch.Tensor,
    x: torch.Tensor,
    down: torch.Tensor,
    up: torch.Tensor,
    scales: torch.Tensor,
    ranks: torch.Tensor,
    borders: list[int],
    *rows: Any,
) -> None:
    run(out, x, LowRankSlots(down, up, scales, ranks, tuple(borders)), LowRankRows(*rows))


register(
    "add_low_rank(Tensor(a!) out, Tensor x, Tensor down, Tensor up, Tensor scales, Tensor ranks, int[] borders, "
    "Tensor rows, Tensor tiles, int tile_rows) -> ()",
    cpu=reference_add_low_rank,
    cuda=_kernel("low_rank.add_low_rank"),
    call=_add_low_rank,
)


register(
    "edit_logits(Tensor(a!) logits, Tensor rows, Tensor token_ids, Tensor bias, Tensor num_biased, Tensor uses, "
    "Tensor repetition, Tensor presence, Tensor frequency) -> ()",
    cpu=reference.edit_logits,
    cuda=_kernel("logits.edit_logits"),
)
register(
    "draw_tokens(Tensor(a!) drawn, Tensor logits, Tensor temperature, Tensor top_k, Tensor top_p, Tensor min_p, "
    "Tensor seed, Tensor position) -> ()",
    cpu=reference.draw_tokens,
    cuda=_kernel("token_draws.draw_tokens"),
)
register(
    "row_totals(Tensor(a!) best, Tensor(b!) totals, Tensor logits) -> ()",
    cpu=reference.row_totals,
    cuda=_kernel("token_draws.row_totals"),
)
