"""Attention within each sequence of a packed batch, as an attention implementation that transformers can call."""

from collections.abc import Sequence
from typing import Any

import torch
from torch.nn.functional import scaled_dot_product_attention
from transformers import AttentionInterface

from classifier.encoders.packed_batches import Run

NAME = "aio_packed"


def packed_attention(
    module: Any,
    query: Any,
    key: Any,
    value: Any,
    attention_mask: Any,
    dropout: float = 0.0,
    scaling: float | None = None,
    sliding_window: int | None = None,
    packed_runs: Sequence[Run] | None = None,
    **_: Any,
) -> tuple[Any, None]:
    """Map `query`, `key`, `value` [batch, heads, tokens, head_dim] to [batch, tokens, heads, head_dim].

    With `packed_runs` the batch is one row of sequences sorted by length, and attention stays within each sequence.
    Every run is one call of torch's kernel, without padding and without a tokens x tokens mask. Without `packed_runs`,
    rows are whole sequences of one length. `sliding_window`: only tokens closer than that attend to each other.
    """
    if getattr(module, "is_causal", False):
        raise ValueError("packed attention is for encoders, whose tokens see each other in both directions")
    if packed_runs is None:
        return _within(query, key, value, dropout, scaling, sliding_window), None
    parts = []
    for run in packed_runs:
        # [1, heads, tokens, d] → [rows, heads, length, d]
        q, k, v = (
            x[0, :, run.start : run.end].unflatten(1, (run.rows, run.length)).transpose(0, 1)
            for x in (query, key, value)
        )
        parts.append(_within(q, k, v, dropout, scaling, sliding_window).flatten(0, 1))
    return torch.cat(parts).unsqueeze(0), None


def _within(query: Any, key: Any, value: Any, dropout: float, scaling: float | None, window: int | None) -> Any:
    length, mask = query.shape[-2], None
    if window is not None and length > window:
        position = torch.arange(length, device=query.device)
        mask = (position[:, None] - position[None, :]).abs() < window
    out = scaled_dot_product_attention(query, key, value, attn_mask=mask, dropout_p=dropout, scale=scaling)
    return out.transpose(1, 2)


AttentionInterface.register(NAME, packed_attention)
