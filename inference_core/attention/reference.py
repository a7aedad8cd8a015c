"""Attention in plain torch, one sequence at a time: the oracle of all other backends."""

import torch

from inference_core.attention.backend import AttentionBackend, AttentionBatch

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "int8": torch.uint8}


def quantize_int8(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Symmetric INT8 of float32 [..., d]: codes uint8 [..., d], stored plus 128, and scales bfloat16 [...].

    The scale is rounded up to bfloat16 before use, so that the largest number still fits (SPEC KV-07).
    """
    exact = x.abs().amax(-1) / 127.0
    scale = ((exact.view(torch.int32) + 0xFFFF) & ~0xFFFF).view(torch.float32)
    inverse = torch.where(scale > 0, 1.0 / scale, 0.0)
    codes = torch.round(x * inverse[..., None]).clamp(-127, 127) + 128
    return codes.to(torch.uint8), scale.bfloat16()


def dequantize_int8(codes: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
    """The inverse of `quantize_int8`: float32 [..., d]."""
    return (codes.float() - 128) * scale.float()[..., None]


class ReferenceAttention(AttentionBackend):
    def rope_and_write(
        self,
        qkv: torch.Tensor,
        layer: int,
        batch: AttentionBatch,
        q_norm: torch.Tensor | None,
        k_norm: torch.Tensor | None,
    ) -> None:
        heads, kv_heads, d = self.config.num_heads, self.config.num_kv_heads, self.config.head_dim
        rows = qkv.view(qkv.shape[0], heads + 2 * kv_heads, d)
        query, key, value = rows.split([heads, kv_heads, kv_heads], dim=1)
        table = self.table_of(layer)[batch.positions.long()]
        cos, sin = table[:, None, : d // 2], table[:, None, d // 2 :]
        for part, norm in ((query, q_norm), (key, k_norm)):
            if norm is not None:
                part *= torch.rsqrt(part.pow(2).mean(-1, keepdim=True) + self.config.rms_eps) * norm
            first, second = part.clone().chunk(2, dim=-1)
            part.copy_(torch.cat([first * cos - second * sin, second * cos + first * sin], dim=-1))
        r = self.layout.numbers_per_lane
        for t in range(qkv.shape[0]):
            keys, values, scales = self._block(int(batch.slots[t]), layer)
            at = int(batch.positions[t]) % self.layout.block_size
            k, v = key[t], value[t]
            if self.layout.dtype == "int8":
                k, scales[:, 0, at] = quantize_int8(k)
                v, scales[:, 1, at] = quantize_int8(v)
            keys[:, :, at] = k.view(kv_heads, d // r, r)
            values[:, at // r, :, at % r] = v

    def attend(
        self,
        qkv: torch.Tensor,
        layer: int,
        batch: AttentionBatch,
        out: torch.Tensor,
        sinks: torch.Tensor | None = None,
    ) -> None:
        heads, kv_heads, d = self.config.num_heads, self.config.num_kv_heads, self.config.head_dim
        for s in range(batch.context_len.shape[0]):
            begin, end = int(batch.query_start[s]), int(batch.query_start[s + 1])
            context = int(batch.context_len[s])
            keys, values = self._context(int(batch.table_start[s]), context, layer, batch)
            query = qkv[begin:end, : heads * d].view(end - begin, heads, d)
            scores = torch.einsum("qhd,khd->hqk", query, keys.repeat_interleave(heads // kv_heads, 1)) * d**-0.5
            position = torch.arange(context - (end - begin), context)[:, None]
            token = torch.arange(context)[None, :]
            allowed = token <= position
            window, cap = self.config.window_of(layer), self.config.attention_softcap
            if window is not None:
                allowed &= token > position - window
            if cap is not None:
                scores = cap * torch.tanh(scores / cap)
            scores = scores.masked_fill(~allowed, -torch.inf)
            if sinks is not None:
                scores = torch.cat([scores, sinks[:, None, None].expand(heads, end - begin, 1)], dim=-1)
            weights = scores.softmax(-1)[:, :, :context]
            mixed = torch.einsum("hqk,khd->qhd", weights, values.repeat_interleave(heads // kv_heads, 1))
            out[begin:end] = mixed.reshape(end - begin, heads * d)

    def _block(self, offset: int, layer: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Views of one layer of a block: keys [kv_heads, d / r, block_size, r], values
        [kv_heads, block_size / r, d, r], scales of keys and values [kv_heads, 2, block_size] (INT8; others have none).
        """
        layout = self.layout
        d, size, r = layout.head_dim, layout.block_size, layout.numbers_per_lane
        begin, matrix = offset + layer * layout.layer_bytes, d * size * 4 // r
        heads = self.arena[begin : begin + layout.layer_bytes].view(layout.num_kv_heads, layout.head_bytes)
        dtype = DTYPES[layout.dtype]
        keys, values, scales = heads[:, :matrix], heads[:, matrix : 2 * matrix], heads[:, 2 * matrix :]
        return (
            keys.view(dtype).view(-1, d // r, size, r),
            values.view(dtype).view(-1, size // r, d, r),
            scales.view(torch.bfloat16).view(layout.num_kv_heads, 2, -1),
        )

    def _context(
        self, table_start: int, context: int, layer: int, batch: AttentionBatch
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Keys and values [context, kv_heads, d] in float32."""
        count = -(-context // self.layout.block_size)
        offsets = batch.block_offsets[table_start : table_start + count].tolist()
        blocks = [self._block(offset, layer) for offset in offsets]
        keys = torch.cat([k.permute(2, 0, 1, 3).flatten(2) for k, _, _ in blocks])[:context]
        values = torch.cat([v.permute(1, 3, 0, 2).flatten(0, 1) for _, v, _ in blocks])[:context]
        if self.layout.dtype != "int8":
            return keys.float(), values.float()
        scales = torch.cat([s.permute(2, 0, 1) for _, _, s in blocks])[:context]
        return dequantize_int8(keys, scales[..., 0]), dequantize_int8(values, scales[..., 1])
