"""Writes tiny GGUF models with the `gguf` package, for tests of the loaders."""

from pathlib import Path
from typing import Any

import numpy as np
from gguf import GGUFWriter
from gguf.constants import GGML_QUANT_SIZES, GGMLQuantizationType
from gguf.quants import quantize
from numpy.typing import NDArray

HIDDEN, INNER, LAYERS, HEADS, KV_HEADS, VOCAB, CONTEXT = 64, 96, 2, 4, 2, 40, 128
HEAD_DIM = HIDDEN // HEADS

Tensors = dict[str, NDArray[np.float32]]


def decoder_weights(*, tied: bool = False, bias: bool = False, norms: bool = False, seed: int = 0) -> Tensors:
    """Random weights under Hugging Face names, in Hugging Face row order."""
    rng = np.random.default_rng(seed)

    def matrix(*shape: int) -> NDArray[np.float32]:
        return rng.standard_normal(shape, np.float32)

    tensors = {"model.embed_tokens.weight": matrix(VOCAB, HIDDEN), "model.norm.weight": matrix(HIDDEN)}
    if not tied:
        tensors["lm_head.weight"] = matrix(VOCAB, HIDDEN)
    for i in range(LAYERS):
        prefix = f"model.layers.{i}."
        tensors |= {
            prefix + "input_layernorm.weight": matrix(HIDDEN),
            prefix + "self_attn.q_proj.weight": matrix(HIDDEN, HIDDEN),
            prefix + "self_attn.k_proj.weight": matrix(KV_HEADS * HEAD_DIM, HIDDEN),
            prefix + "self_attn.v_proj.weight": matrix(KV_HEADS * HEAD_DIM, HIDDEN),
            prefix + "self_attn.o_proj.weight": matrix(HIDDEN, HIDDEN),
            prefix + "post_attention_layernorm.weight": matrix(HIDDEN),
            prefix + "mlp.gate_proj.weight": matrix(INNER, HIDDEN),
            prefix + "mlp.up_proj.weight": matrix(INNER, HIDDEN),
            prefix + "mlp.down_proj.weight": matrix(HIDDEN, INNER),
        }
        if bias:
            tensors[prefix + "self_attn.q_proj.bias"] = matrix(HIDDEN)
            tensors[prefix + "self_attn.k_proj.bias"] = matrix(KV_HEADS * HEAD_DIM)
            tensors[prefix + "self_attn.v_proj.bias"] = matrix(KV_HEADS * HEAD_DIM)
        if norms:
            tensors[prefix + "self_attn.q_norm.weight"] = matrix(HEAD_DIM)
            tensors[prefix + "self_attn.k_norm.weight"] = matrix(HEAD_DIM)
    return tensors


GGUF_NAMES = {
    "model.embed_tokens": "token_embd",
    "model.norm": "output_norm",
    "lm_head": "output",
    "input_layernorm": "attn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "post_attention_layernorm": "ffn_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}


def gguf_name(name: str) -> str:
    stem, _, leaf = name.rpartition(".")
    if stem in GGUF_NAMES:
        return f"{GGUF_NAMES[stem]}.{leaf}"
    _, _, layer, part = stem.split(".", 3)
    return f"blk.{layer}.{GGUF_NAMES[part]}.{leaf}"


def interleaved(weights: NDArray[Any], heads: int) -> NDArray[Any]:
    """The row order that llama.cpp's converter gives q and k: halves of a head become neighbouring pairs."""
    rows = weights.shape[0] // heads // 2
    return weights.reshape(heads, 2, rows, *weights.shape[1:]).swapaxes(1, 2).reshape(weights.shape)


def write_gguf(
    path: Path,
    tensors: Tensors,
    *,
    architecture: str = "llama",
    matrix_kind: str = "F32",
    settings: dict[str, Any] | None = None,
    tokenizer: dict[str, Any] | None = None,
    raw: dict[str, tuple[str, NDArray[Any]]] | None = None,
) -> Path:
    """`settings` overrides `{architecture}.…` keys (None drops one); `raw` adds (kind, floats or packed bytes)."""
    writer = GGUFWriter(path, architecture)
    keys: dict[str, Any] = {
        "block_count": LAYERS,
        "context_length": CONTEXT,
        "embedding_length": HIDDEN,
        "feed_forward_length": INNER,
        "attention.head_count": HEADS,
        "attention.head_count_kv": KV_HEADS,
        "attention.layer_norm_rms_epsilon": 1e-5,
        "rope.freq_base": 10000.0,
    } | (settings or {})
    for key, value in keys.items():
        if value is not None:
            _add(writer, f"{architecture}.{key}", value)
    for key, value in (tokenizer or {}).items():
        _add(writer, key, value)
    for name, values in tensors.items():
        if architecture == "llama" and ".q_proj." in name:
            values = interleaved(values, HEADS)
        if architecture == "llama" and ".k_proj." in name:
            values = interleaved(values, KV_HEADS)
        _add_tensor(writer, gguf_name(name), values, matrix_kind if values.ndim == 2 else "F32")
    for name, (kind, values) in (raw or {}).items():
        _add_tensor(writer, name, values, kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def _add(writer: GGUFWriter, key: str, value: Any) -> None:
    match value:
        case bool():
            writer.add_bool(key, value)
        case int():
            writer.add_uint32(key, value)
        case float():
            writer.add_float32(key, value)
        case str():
            writer.add_string(key, value)
        case _:
            writer.add_array(key, value)


def _add_tensor(writer: GGUFWriter, name: str, values: NDArray[Any], kind: str) -> None:
    quantization = GGMLQuantizationType[kind]
    if values.dtype == np.float32:
        values = quantize(values, quantization)
    writer.add_tensor(name, values, raw_dtype=quantization)


def random_blocks(kind: str, rows: int, columns: int, seed: int) -> NDArray[np.uint8]:
    """Random bytes of a quantised kind, with finite scales: every code and every packed scale occurs."""
    rng = np.random.default_rng(seed)
    elements, size = GGML_QUANT_SIZES[GGMLQuantizationType[kind]]
    blocks = rng.integers(0, 256, (rows * columns // elements, size), np.uint8)
    halves = {"Q6_K": [208]}.get(kind, [0, 2] if kind.endswith(("_1", "_K")) else [0])
    for start in halves:
        scales = rng.standard_normal(len(blocks)).astype(np.float16)
        blocks[:, start : start + 2] = scales[:, None].view(np.uint8)
    return blocks.reshape(rows, -1)
