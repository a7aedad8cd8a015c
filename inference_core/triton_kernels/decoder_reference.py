"""References of the ops in `decoder_ops`, in plain torch and float32: the kernels' oracle and CPU implementation."""

import torch
from torch.nn import functional

from inference_core.triton_kernels.attention.layer_cache import LARGEST_E4M3, LayerCache

_CODES = {1: torch.uint8, 2: torch.int16, 4: torch.int32}


def reference_rms_norm(x: torch.Tensor, weight: torch.Tensor, eps: float, out: torch.Tensor) -> None:
    """See `rms_norm.rms_norm`."""
    out.copy_(_normalised(x.float(), weight, eps))


def reference_add_rms_norm(
    x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, eps: float, out: torch.Tensor
) -> None:
    """See `rms_norm.add_rms_norm`."""
    residual.copy_(residual.float() + x.float())
    out.copy_(_normalised(residual.float(), weight, eps))


def reference_swiglu(gate_up: torch.Tensor, out: torch.Tensor) -> None:
    """See `swiglu.swiglu`."""
    gate, up = gate_up.float().chunk(2, dim=-1)
    out.copy_(functional.silu(gate) * up)


def reference_geglu(gate_up: torch.Tensor, out: torch.Tensor) -> None:
    """See `swiglu.geglu`."""
    gate, up = gate_up.float().chunk(2, dim=-1)
    out.copy_(functional.gelu(gate, approximate="tanh") * up)


def reference_copy_blocks(arena: torch.Tensor, pairs: torch.Tensor, block_bytes: int) -> None:
    """See `block_copy.copy_blocks`."""
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
