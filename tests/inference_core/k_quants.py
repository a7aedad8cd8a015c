"""Writes Llama files of ggml's K quants, whose rows are whole blocks of 256: random codes under calm scales."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from gguf.constants import GGML_QUANT_SIZES, GGMLQuantizationType
from numpy.typing import NDArray

from tests.inference_core.tiny_gguf import HEADS, KV_HEADS, random_blocks, write_gguf

# Two ranks of a mesh can share the heads in whole blocks.
HIDDEN, INNER, HEAD_DIM, LAYERS, CONTEXT = 256, 512, 128, 2, 512
_QUERIES, _KEYS = HEAD_DIM * HEADS, HEAD_DIM * KV_HEADS
_SHAPES = {
    "attn_q": (_QUERIES, HIDDEN),
    "attn_k": (_KEYS, HIDDEN),
    "attn_v": (_KEYS, HIDDEN),
    "attn_output": (HIDDEN, _QUERIES),
    "ffn_gate": (INNER, HIDDEN),
    "ffn_up": (INNER, HIDDEN),
    "ffn_down": (HIDDEN, INNER),
}
# The kind of the tensor of this name.
KindOf = Callable[[str], str]


def q4_k_m(name: str) -> str:
    """llama.cpp's recipe: the head, and of some layers values and down projections, have wider codes."""
    wide = ("output.weight", "blk.0.attn_v.weight", "blk.0.ffn_down.weight")
    return "Q6_K" if name in wide else "Q4_K"


def write_k_quants(path: Path, kind_of: KindOf, vocabulary: int, tokenizer: dict[str, Any] | None = None) -> Path:
    """Write a file of `LAYERS` layers, whose linear layers and tables have the kinds of `kind_of`."""
    matrices = {"token_embd.weight": (vocabulary, HIDDEN), "output.weight": (vocabulary, HIDDEN)}
    norms = {"output_norm.weight": np.ones(HIDDEN, np.float32)}
    for layer in range(LAYERS):
        matrices |= {f"blk.{layer}.{name}.weight": shape for name, shape in _SHAPES.items()}
        norms |= {
            f"blk.{layer}.{name}.weight": np.linspace(0.5, 1.5, HIDDEN, dtype=np.float32)
            for name in ("attn_norm", "ffn_norm")
        }
    raw: dict[str, tuple[str, NDArray[Any]]] = {name: ("F32", values) for name, values in norms.items()}
    for seed, (name, (rows, columns)) in enumerate(matrices.items()):
        deviation = {"token_embd.weight": 1.0, "output.weight": 0.2}.get(name, 0.1)
        raw[name] = (kind_of(name), calm_blocks(kind_of(name), rows, columns, deviation, seed))
    settings = {
        "block_count": LAYERS,
        "context_length": CONTEXT,
        "embedding_length": HIDDEN,
        "feed_forward_length": INNER,
        "attention.key_length": HEAD_DIM,
        "attention.value_length": HEAD_DIM,
    }
    return write_gguf(path, {}, settings=settings, tokenizer=tokenizer, raw=raw)


def calm_blocks(kind: str, rows: int, columns: int, deviation: float, seed: int) -> NDArray[np.uint8]:
    """Random codes of Q4_K, Q5_K or Q6_K whose numbers have about this standard deviation and a mean of 0."""
    size = GGML_QUANT_SIZES[GGMLQuantizationType[kind]][1]
    blocks = random_blocks(kind, rows, columns, seed).reshape(-1, size)
    largest = {"Q4_K": 15, "Q5_K": 31}.get(kind)
    if largest is None:
        scales = {208: deviation / 1400}
    else:
        step = deviation / (17 * largest)
        scales = {0: step, 2: largest / 2 * step}
    for start, scale in scales.items():
        blocks[:, start : start + 2] = np.frombuffer(np.float16(scale).tobytes(), np.uint8)
    return blocks.reshape(rows, -1)
