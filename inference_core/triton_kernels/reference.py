"""References of the ops in `ops`, in plain torch, float32 and NumPy: the kernels' oracle and CPU implementation.

Logits are edited and tokens drawn row by row.
"""

from collections.abc import Iterator
from itertools import pairwise

import torch
from torch.nn import functional

from inference_core.protocol import SamplingParams
from inference_core.sampling.reference_sampler import sample_row, weights_of
from inference_core.step_plan import SampleSpec
from inference_core.triton_kernels.layer_cache import LARGEST_E4M3, LayerCache
from inference_core.triton_kernels.weights import BLOCK, NIBBLES, SCALE_BLOCK, group_size, rounded, spread_blocks

_CODES = {1: torch.uint8, 2: torch.int16, 4: torch.int32}


def reference_rms_norm(
    x: torch.Tensor, weight: torch.Tensor, eps: float, out: torch.Tensor, scales: torch.Tensor | None = None
) -> None:
    """See `row_kernels.rms_norm`."""
    _write(_normalised(x.float(), weight, eps), x.dtype, out, scales)


def reference_add_rms_norm(
    x: torch.Tensor,
    residual: torch.Tensor,
    weight: torch.Tensor,
    eps: float,
    out: torch.Tensor,
    scales: torch.Tensor | None = None,
) -> None:
    """See `row_kernels.add_rms_norm`."""
    residual.copy_(residual.float() + x.float())
    _write(_normalised(residual.float(), weight, eps), x.dtype, out, scales)


def reference_swiglu(gate_up: torch.Tensor, out: torch.Tensor, scales: torch.Tensor | None = None) -> None:
    """See `row_kernels.swiglu`."""
    gate, up = gate_up.float().chunk(2, dim=-1)
    _write(functional.silu(gate) * up, gate_up.dtype, out, scales)


def reference_geglu(gate_up: torch.Tensor, out: torch.Tensor, scales: torch.Tensor | None = None) -> None:
    """See `row_kernels.geglu`."""
    gate, up = gate_up.float().chunk(2, dim=-1)
    _write(functional.gelu(gate, approximate="tanh") * up, gate_up.dtype, out, scales)


def _write(values: torch.Tensor, dtype: torch.dtype, out: torch.Tensor, scales: torch.Tensor | None) -> None:
    """Write activations or, if there are scales, what `quantize_rows` makes of them once they are of `dtype`."""
    if scales is None:
        out.copy_(values)
    else:
        codes, row_scales = quantize_rows(values.to(dtype), out.dtype)
        out.copy_(codes)
        scales.copy_(row_scales)


def reference_copy_blocks(arena: torch.Tensor, pairs: torch.Tensor, block_bytes: int) -> None:
    """See `cache_writes.copy_blocks`."""
    for source, target in pairs.tolist():
        if source >= 0:
            arena[target : target + block_bytes] = arena[source : source + block_bytes]


def reference_rope_and_write(
    qkv: torch.Tensor,
    cos_sin: torch.Tensor,
    positions: torch.Tensor,
    slots: torch.Tensor,
    cache: LayerCache,
    q_norm: torch.Tensor | None,
    k_norm: torch.Tensor | None,
    eps: float,
) -> None:
    """See `rope_and_write.rope_and_write`."""
    kv_heads, d = cache.layout.num_kv_heads, cache.layout.head_dim
    real = (slots >= 0).nonzero().flatten()
    slots, positions = slots[real], positions[real].long()
    rows = qkv[real].float().view(len(real), qkv.shape[1] // d, d)
    query, key, value = rows.split([rows.shape[1] - 2 * kv_heads, kv_heads, kv_heads], dim=1)
    if q_norm is not None:
        query = _normalised(query, q_norm, eps)
    if k_norm is not None:
        key = _normalised(key, k_norm, eps)
    angles = cos_sin[positions]
    rotated = _rotated(query, angles).flatten(1)
    qkv[real, : rotated.shape[1]] = rotated.to(qkv.dtype)
    store(cache, slots, positions % cache.layout.block_size, _rotated(key, angles), value)


def reference_paged_attention(
    qkv: torch.Tensor,
    cache: LayerCache,
    block_offsets: torch.Tensor,
    table_start: torch.Tensor,
    query_start: torch.Tensor,
    context_len: torch.Tensor,
    out: torch.Tensor,
    *,
    window: int = 0,
    softcap: float = 0.0,
) -> None:
    """See `paged_attention.paged_attention`; one sequence at a time, every score at once."""
    layout = cache.layout
    kv_heads, d = layout.num_kv_heads, layout.head_dim
    heads = out.shape[1] // d
    edges = query_start.tolist()
    for s, context in enumerate(context_len.tolist()):
        begin, end = edges[s], edges[s + 1]
        if begin == end:
            continue
        keys, values = _context(cache, block_offsets, int(table_start[s]), context)
        query = qkv[begin:end, : heads * d].float().view(end - begin, kv_heads, heads // kv_heads, d)
        scores = torch.einsum("qkgd,ckd->kgqc", query, keys) * d**-0.5
        if softcap:
            scores = softcap * torch.tanh(scores / softcap)
        position = torch.arange(context - (end - begin), context, device=qkv.device)[:, None]
        token = torch.arange(context, device=qkv.device)[None, :]
        hidden = token > position
        if window:
            hidden |= token <= position - window
        weights = scores.masked_fill(hidden, -torch.inf).softmax(-1)
        out[begin:end] = torch.einsum("kgqc,ckd->qkgd", weights, values).reshape(end - begin, -1).to(out.dtype)


def _context(
    cache: LayerCache, block_offsets: torch.Tensor, table_start: int, context: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """Keys and values float32 [context, kv_heads, head_dim] of a sequence."""
    tokens = torch.arange(context, device=block_offsets.device)
    table = table_start + tokens // cache.layout.block_size
    return load(cache, block_offsets[table], tokens % cache.layout.block_size)


def _normalised(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + eps) * weight.float()


def _rotated(x: torch.Tensor, angles: torch.Tensor) -> torch.Tensor:
    """Rotate the half-split pairs of x [T, heads, d] by angles [T, d]: cosines, then sines."""
    cos, sin = angles[:, None].chunk(2, dim=-1)
    first, second = x.chunk(2, dim=-1)
    return torch.cat([first * cos - second * sin, second * cos + first * sin], dim=-1)


def store(
    cache: LayerCache, block_offsets: torch.Tensor, tokens: torch.Tensor, keys: torch.Tensor, values: torch.Tensor
) -> None:
    """Write keys and values float32 [n, kv_heads, d] of tokens [n] in the blocks at `block_offsets` [n]; with scales in
    FP8, which saturates where no scale is large enough."""
    first = cache.rows(block_offsets, tokens)
    if cache.has_scales:
        exponents = [_scale_exponents(x) for x in (keys, values)]
        keys, values = (
            torch.ldexp(x, 127 - exponent[..., None]) for x, exponent in zip((keys, values), exponents, strict=True)
        )
        cache.scales[cache.scale_rows(block_offsets, tokens)] = (exponents[1] << 23) | (exponents[0] << 7)
    for begin, x in ((first, keys), (first + cache.values_start, values)):
        bounded = x.clamp(-LARGEST_E4M3, LARGEST_E4M3) if cache.has_scales else x
        cache.numbers.view(_CODES[cache.itemsize])[_places(cache, begin)] = bounded.to(cache.dtype).view(
            _CODES[cache.itemsize]
        )


def load(cache: LayerCache, block_offsets: torch.Tensor, tokens: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Read keys and values float32 [n, kv_heads, d] of tokens [n] in the blocks at `block_offsets` [n]."""
    first = cache.rows(block_offsets, tokens)
    codes = cache.numbers.view(_CODES[cache.itemsize])
    keys, values = (
        codes[_places(cache, begin)].view(cache.dtype).float() for begin in (first, first + cache.values_start)
    )
    if cache.has_scales:
        words = cache.scales[cache.scale_rows(block_offsets, tokens)][..., None]
        return keys * (words << 16).view(torch.float32), values * ((words >> 16) << 16).view(torch.float32)
    return keys, values


def rounded_to_fp8(x: torch.Tensor) -> torch.Tensor:
    """Return rows float32 [..., d] as they are read from an FP8 cache: each in E4M3, with a scale of its own."""
    exponents = _scale_exponents(x)[..., None]
    codes = torch.ldexp(x, 127 - exponents).clamp(-LARGEST_E4M3, LARGEST_E4M3).to(torch.float8_e4m3fn)
    return torch.ldexp(codes.float(), exponents - 127)


def _places(cache: LayerCache, first: torch.Tensor) -> torch.Tensor:
    """Of the numbers of rows that begin at `first` [n, kv_heads]: [n, kv_heads, d]."""
    return first[..., None] + torch.arange(cache.layout.head_dim, device=first.device)


def _scale_exponents(x: torch.Tensor) -> torch.Tensor:
    """The biased exponents int32 [...] of the scales of rows [..., d]."""
    mantissa, exponent = torch.frexp(x.abs().amax(-1))  # of at least 1/2, and below 1
    over = (mantissa > LARGEST_E4M3 / 512).int()
    return torch.where(mantissa == 0, 1, exponent + over + 127 - 9).clamp(1, 247).int()


def dequantized_int4(
    codes: torch.Tensor, scales: torch.Tensor, offsets: torch.Tensor | None, inputs: int
) -> torch.Tensor:
    """Dequantise the arrays of an `Int4Weight` to float32 [N, inputs]."""
    blocks, outputs, words = codes.shape
    packed = codes.contiguous().view(torch.uint8).view(blocks, outputs, words, 4).transpose(0, 1)
    weight = torch.empty(outputs, blocks, NIBBLES // 2, words, 2, device=codes.device)
    for i in range(NIBBLES):
        byte = packed[..., i // 2]
        weight[:, :, i % 4, :, i // 4] = byte >> 4 if i % 2 else byte & 0xF
    # In place, since whole models run through this without CUDA.
    groups = weight.view(outputs, -1, group_size(codes, scales))
    groups.sub_(8).mul_(scales.float().T[:, :, None])
    if offsets is not None:
        groups.add_(offsets.float().T[:, :, None])
    return weight.view(outputs, blocks * BLOCK)[:, :inputs]


def int4_linear(
    x: torch.Tensor,
    codes: torch.Tensor,
    scales: torch.Tensor,
    offsets: torch.Tensor | None,
    bias: torch.Tensor | None,
    out: torch.Tensor,
    *,
    accumulate: bool = False,
) -> None:
    """Write (or add) x W^T + bias to out, computed in float32."""
    weight = dequantized_int4(codes, scales, offsets, x.shape[1])
    _finish(x.float() @ weight.T, bias, out, accumulate)


def quantize_rows(x: torch.Tensor, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
    """Codes [M, K] and scales float32 [M] of x [M, K]."""
    values = x.float()
    return rounded(values, values.abs().amax(dim=1, keepdim=True), dtype)


def quantize_groups(x: torch.Tensor, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
    """Codes [M, K] and scales float32 [M, ceil(K / 128)] of x [M, K]."""
    rows, inputs = x.shape
    groups = torch.nn.functional.pad(x.float(), (0, -inputs % SCALE_BLOCK)).reshape(rows, -1, SCALE_BLOCK)
    codes, scales = rounded(groups, groups.abs().amax(dim=2, keepdim=True), dtype)
    return codes.reshape(rows, -1)[:, :inputs].contiguous(), scales


def eight_bit_linear(
    x: torch.Tensor,
    codes: torch.Tensor,
    scales: torch.Tensor,
    bias: torch.Tensor | None,
    out: torch.Tensor,
    *,
    x_scales: torch.Tensor | None = None,
    accumulate: bool = False,
) -> None:
    """Quantise x, unless it is codes with `x_scales`, multiply by the codes of an `EightBitWeight`, and write (or add)
    the result plus bias to out."""
    if x_scales is None:
        seen, weight = dequantized_operands(x, codes, scales)
    else:
        seen, weight = x.float() * x_scales[:, None], codes.float() * scales[:, None]
    _finish(seen @ weight.T, bias, out, accumulate)


def dequantized_operands(
    x: torch.Tensor, codes: torch.Tensor, scales: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """x [M, K] after quantisation and the weight [N, K], both dequantised to float32."""
    outputs, inputs = codes.shape
    if scales.dim() == 1:
        x_codes, x_scales = quantize_rows(x, codes.dtype)
        return x_codes.float() * x_scales[:, None], codes.float() * scales[:, None]
    x_codes, x_scales = quantize_groups(x, codes.dtype)
    wide = x_scales.repeat_interleave(SCALE_BLOCK, dim=1)[:, :inputs]
    return x_codes.float() * wide, codes.float() * spread_blocks(scales, outputs, inputs)


def _finish(product: torch.Tensor, bias: torch.Tensor | None, out: torch.Tensor, accumulate: bool) -> None:
    if bias is not None:
        product = product + bias.float()
    out.copy_(out.float() + product if accumulate else product)


PADDING = -1  # the expert of rows that are not computed


def reference_route_experts(
    logits: torch.Tensor, slots: torch.Tensor, experts: torch.Tensor, weights: torch.Tensor, *, normalise: bool
) -> None:
    """See `expert_rows.route_experts`."""
    values, taken = logits.float(), experts.shape[1]
    order = values.sort(dim=-1, descending=True, stable=True).indices[:, :taken]
    chosen = values.gather(1, order)
    shifted = (chosen - chosen[:, :1]).exp()
    total = shifted if normalise else (values - chosen[:, :1]).exp()
    weights.copy_(shifted / total.sum(-1, keepdim=True))
    experts.copy_(order.masked_fill(slots[:, None] < 0, PADDING))


def reference_group_rows(experts: torch.Tensor, order: torch.Tensor, starts: torch.Tensor) -> None:
    """See `expert_rows.group_rows`."""
    by_expert = experts.flatten().sort(stable=True)
    starts.copy_(torch.searchsorted(by_expert.values, torch.arange(len(starts), dtype=by_expert.values.dtype)))
    order.copy_(by_expert.indices)


def reference_dense_experts(
    x: torch.Tensor, weight: torch.Tensor, order: torch.Tensor, starts: torch.Tensor, out: torch.Tensor, *, taken: int
) -> None:
    """See `expert_linear.dense_experts`."""
    for expert, source, target in _rows(order, starts, taken):
        out[target] = (x[source].float() @ weight[expert].float().T).to(out.dtype)


def reference_int4_experts(
    x: torch.Tensor,
    codes: torch.Tensor,
    scales: torch.Tensor,
    offsets: torch.Tensor | None,
    order: torch.Tensor,
    starts: torch.Tensor,
    out: torch.Tensor,
    *,
    taken: int,
) -> None:
    """See `expert_linear.int4_experts`."""
    for expert, source, target in _rows(order, starts, taken):
        offset = None if offsets is None else offsets[expert]
        weight = dequantized_int4(codes[expert], scales[expert], offset, x.shape[1])
        out[target] = (x[source].float() @ weight.T).to(out.dtype)


def reference_add_experts(parts: torch.Tensor, experts: torch.Tensor, weights: torch.Tensor, out: torch.Tensor) -> None:
    """See `expert_rows.add_experts`. Rows of padding, whose parts were not computed, are zeros."""
    tokens, taken = experts.shape
    weighted = parts.view(tokens, taken, -1).float() * weights[:, :, None]
    out.copy_(weighted.sum(1).masked_fill(experts[:, :1] == PADDING, 0))


def _rows(order: torch.Tensor, starts: torch.Tensor, taken: int) -> Iterator[tuple[int, torch.Tensor, torch.Tensor]]:
    """Each expert that has rows, which rows of `x` they read, and which rows of `out` they write."""
    for expert, (begin, end) in enumerate(pairwise(starts.tolist())):
        if begin < end:
            rows, sorted_rows = order[begin:end].long(), torch.arange(begin, end)
            yield (expert, rows // taken, sorted_rows) if taken else (expert, sorted_rows, rows)


def edit_logits(
    logits: torch.Tensor,
    rows: torch.Tensor,
    token_ids: torch.Tensor,
    bias: torch.Tensor,
    num_biased: torch.Tensor,
    uses: torch.Tensor,
    repetition: torch.Tensor,
    presence: torch.Tensor,
    frequency: torch.Tensor,
) -> None:
    """Edit logits float32 [R, V] in place: row r by row `rows[r]` of an `EditTables`, -1 for none."""
    for r, row in enumerate(rows.tolist()):
        if row < 0:
            continue
        count = int(num_biased[row])
        logits[r, token_ids[row, :count].long()] += bias[row, :count]
        touched = uses[row].nonzero()[:, 0]
        value, times = logits[r, touched], uses[row, touched] >> 1
        value = torch.where(value < 0, value * repetition[r], value / repetition[r])
        logits[r, touched] = torch.where(times > 0, value - (presence[r] + frequency[r] * times.float()), value)


def draw_tokens(
    drawn: torch.Tensor,
    logits: torch.Tensor,
    temperature: torch.Tensor,
    top_k: torch.Tensor,
    top_p: torch.Tensor,
    min_p: torch.Tensor,
    seed: torch.Tensor,
    position: torch.Tensor,
) -> None:
    """Draw token ids to drawn int64 [R] from logits float32 [R, V] by `step_inputs.PARAM_FIELDS`; -1 for bad rows."""
    laws = zip(*(column.tolist() for column in (temperature, top_k, top_p, min_p, seed, position)), strict=True)
    for row, (values, (heat, k, p, least, own_seed, own_position)) in enumerate(zip(logits.numpy(), laws, strict=True)):
        params = SamplingParams(temperature=heat, top_k=k, top_p=p, min_p=least)
        token = sample_row(values, SampleSpec(params, [], [], own_seed, own_position, ()))
        drawn[row] = -1 if token is None else token.token_id


def row_totals(best: torch.Tensor, totals: torch.Tensor, logits: torch.Tensor) -> None:
    """See `row_totals.row_totals`."""
    best.copy_(logits.amax(1))
    for row, values in enumerate(logits.numpy()):
        totals[row] = int(weights_of(values, 1.0).sum()) if bool(best[row].isfinite()) else 0
