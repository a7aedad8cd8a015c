"""Writes Hugging Face folders of tiny models as GGUF, as llama.cpp's converter does: names of tensors and keys are the
`gguf` package's. K-quants, which that package only decodes, are encoded here."""

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from gguf import GGUFWriter, get_tensor_name_map
from gguf.constants import MODEL_ARCH, MODEL_ARCH_NAMES, GGMLQuantizationType, RopeScalingType
from gguf.quants import dequantize, quantize
from numpy.typing import NDArray

from tests.inference_core.tiny_gguf import interleaved

Floats = NDArray[np.float32]
ARCHITECTURES = {
    "llama": MODEL_ARCH.LLAMA,
    "mixtral": MODEL_ARCH.LLAMA,
    "qwen3": MODEL_ARCH.QWEN3,
    "qwen3_moe": MODEL_ARCH.QWEN3MOE,
    "phi3": MODEL_ARCH.PHI3,
    "granite": MODEL_ARCH.GRANITE,
    "smollm3": MODEL_ARCH.SMOLLM3,
    "olmo2": MODEL_ARCH.OLMO2,
    "gemma2": MODEL_ARCH.GEMMA2,
    "gemma3_text": MODEL_ARCH.GEMMA3,
}
_PERMUTED = ("llama", "mixtral", "granite", "smollm3")
_EXPERTS = {"gate_proj": "gate", "w1": "gate", "up_proj": "up", "w3": "up", "down_proj": "down", "w2": "down"}


def export(
    tensors: dict[str, Floats], config: Any, path: Path, kind_of: Callable[[str], str], *, listed: bool = False
) -> dict[str, Floats]:
    """Write `tensors`, named as in the folder of a model with transformers' `config`; matrices are of the kind that
    `kind_of` gives for their GGUF name. Returns the tensors as the file holds them, under their own names. `listed`:
    Gemma 3's windows are a list, not the default pattern."""
    architecture = ARCHITECTURES[config.model_type]
    writer = GGUFWriter(path, MODEL_ARCH_NAMES[architecture])
    _settings(writer, config, listed=listed)
    names = get_tensor_name_map(architecture, config.num_hidden_layers)
    held, experts = {}, {}
    for name, values in tensors.items():
        part = next((kind for leaf, kind in _EXPERTS.items() if ".experts." in name and f".{leaf}." in name), None)
        if part is not None:
            layer, expert = name.split(".")[2], int(name.split(".experts.")[1].split(".")[0])
            experts.setdefault(f"blk.{layer}.ffn_{part}_exps.weight", {})[expert] = name
            continue
        gguf_name = names.get_name(name, try_suffixes=(".weight", ".bias"))
        assert gguf_name is not None, name
        kind = kind_of(gguf_name) if values.ndim == 2 else "F32"
        rows = values
        if config.model_type in _PERMUTED and (".q_proj." in name or ".k_proj." in name):
            rows = interleaved(values, config.num_attention_heads if ".q_" in name else config.num_key_value_heads)
        shift = np.float32(config.model_type.startswith("gemma") and name.endswith("norm.weight"))
        _add(writer, gguf_name, rows + shift, kind)
        held[name] = rounded(values, kind)
    for gguf_name, members in experts.items():
        kind = kind_of(gguf_name)
        _add(writer, gguf_name, np.stack([tensors[members[e]] for e in sorted(members)]), kind)
        held |= {name: rounded(tensors[name], kind) for name in members.values()}
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return held


def _settings(writer: GGUFWriter, config: Any, *, listed: bool) -> None:
    """The keys of llama.cpp's `conversion` of each architecture."""
    kind, rope = config.model_type, config.rope_parameters
    head_dim = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    if kind.startswith(("gemma", "qwen3")):
        writer.add_key_length(head_dim)
        writer.add_value_length(head_dim)
    if kind in (*_PERMUTED, "phi3"):
        writer.add_rope_dimension_count(int(rope.get("partial_rotary_factor", 1.0) * head_dim))
    if kind == "gemma3_text":
        writer.add_rope_freq_base(rope["full_attention"]["rope_theta"])
    elif kind != "gemma2":
        writer.add_rope_freq_base(rope["rope_theta"])
    if rope.get("rope_type") == "yarn":
        writer.add_rope_scaling_type(RopeScalingType.YARN)
        writer.add_rope_scaling_factor(rope["factor"])
        writer.add_rope_scaling_orig_ctx_len(rope["original_max_position_embeddings"])
    if kind in ("mixtral", "qwen3_moe"):
        writer.add_expert_count(getattr(config, "num_local_experts", None) or config.num_experts)
        writer.add_expert_used_count(config.num_experts_per_tok)
    match kind:
        case "qwen3_moe":
            writer.add_expert_feed_forward_length(config.moe_intermediate_size)
        case "granite":
            writer.add_attention_scale(config.attention_multiplier)
            writer.add_embedding_scale(config.embedding_multiplier)
            writer.add_residual_scale(config.residual_multiplier)
            writer.add_logit_scale(config.logits_scaling)
        case "gemma2":
            writer.add_attn_logit_softcapping(config.attn_logit_softcapping)
            writer.add_final_logit_softcapping(config.final_logit_softcapping)
            writer.add_sliding_window(config.sliding_window)
        case "gemma3_text":
            writer.add_sliding_window(config.sliding_window)
            if listed:
                writer.add_sliding_window_pattern([t == "sliding_attention" for t in config.layer_types])
        case "phi3":
            _phi3_settings(writer, config, rope)


def _phi3_settings(writer: GGUFWriter, config: Any, rope: dict[str, Any]) -> None:
    original = rope.get("original_max_position_embeddings", config.original_max_position_embeddings)
    writer.add_rope_scaling_orig_ctx_len(original)
    writer.add_sliding_window(config.sliding_window or 0)
    if "long_factor" in rope:
        scale = config.max_position_embeddings / original
        writer.add_rope_scaling_attn_factors(math.sqrt(1 + math.log(scale) / math.log(original)))
        writer.add_tensor("rope_factors_long.weight", np.array(rope["long_factor"], np.float32))
        writer.add_tensor("rope_factors_short.weight", np.array(rope["short_factor"], np.float32))


def _add(writer: GGUFWriter, name: str, values: Floats, kind: str) -> None:
    writer.add_tensor(name, encoded(values, kind), raw_dtype=GGMLQuantizationType[kind])


def rounded(values: Floats, kind: str) -> Floats:
    """`values` as a file of `kind` holds them, by the `gguf` package's decoder."""
    return dequantize(encoded(values, kind), GGMLQuantizationType[kind]).reshape(values.shape)


def encoded(values: Floats, kind: str) -> NDArray[Any]:
    """The bytes [..., bytes per row] of a quantised kind, else numbers of its type."""
    if kind in ("Q4_K", "Q6_K"):
        blocks = (_q4_k if kind == "Q4_K" else _q6_k)(values.reshape(-1, 256))
        return blocks.reshape(*values.shape[:-1], -1)
    return quantize(np.ascontiguousarray(values), GGMLQuantizationType[kind])


def _q4_k(blocks: Floats) -> NDArray[np.uint8]:
    """[n, 256] -> [n, 144]: eight groups of 32 with a scale and a minimum of 6 bits each, in units of two float16."""
    groups = blocks.reshape(-1, 8, 32)
    low = -np.minimum(groups.min(2), 0)
    step = (groups.max(2) + low) / 15
    unit, low_unit = ((part.max(1, keepdims=True) / 63).astype(np.float16) for part in (step, low))
    scales, minima = (
        np.divide(part, u, out=np.zeros_like(part), where=u > 0).round().clip(0, 63).astype(np.uint8)
        for part, u in ((step, unit.astype(np.float32)), (low, low_unit.astype(np.float32)))
    )
    real = (unit.astype(np.float32) * scales)[:, :, None]
    offset = (low_unit.astype(np.float32) * minima)[:, :, None]
    codes = np.divide(groups + offset, real, out=np.zeros_like(groups), where=real > 0).round().clip(0, 15)
    pairs = codes.astype(np.uint8).reshape(-1, 4, 2, 32)
    packed = np.concatenate(
        [
            (scales[:, :4] | (scales[:, 4:] >> 4) << 6),
            (minima[:, :4] | (minima[:, 4:] >> 4) << 6),
            (scales[:, 4:] & 15) | (minima[:, 4:] & 15) << 4,
        ],
        axis=1,
    )
    nibbles = (pairs[:, :, 0] | pairs[:, :, 1] << 4).reshape(-1, 128)
    return np.concatenate([unit.view(np.uint8), low_unit.view(np.uint8), packed, nibbles], axis=1)


def _q6_k(blocks: Floats) -> NDArray[np.uint8]:
    """[n, 256] -> [n, 210]: sixteen groups of 16 with a scale of 8 bits each, in units of a float16."""
    groups = blocks.reshape(-1, 16, 16)
    step = np.abs(groups).max(2) / 31
    unit = (step.max(1, keepdims=True) / 127).astype(np.float16)
    wide = unit.astype(np.float32)
    scales = np.divide(step, wide, out=np.zeros_like(step), where=wide > 0).round().clip(0, 127)
    real = (wide * scales)[:, :, None]
    codes = np.divide(groups, real, out=np.zeros_like(groups), where=real > 0).round().clip(-32, 31) + 32
    halves = codes.astype(np.uint8).reshape(-1, 2, 4, 32)
    low = np.stack([halves[:, :, a] & 15 | (halves[:, :, a + 2] & 15) << 4 for a in (0, 1)], axis=2).reshape(-1, 128)
    high = sum(halves[:, :, a] >> 4 << 2 * a for a in range(4)).astype(np.uint8).reshape(-1, 64)
    return np.concatenate([low, high, scales.astype(np.int8).view(np.uint8), unit.view(np.uint8)], axis=1)


def folder_tensors(folder: Path) -> dict[str, Floats]:
    """The tensors of a Hugging Face folder as float32, without a tied head."""
    from safetensors.torch import load_file

    found = {name: t.float().numpy() for name, t in load_file(folder / "model.safetensors").items()}
    tied = json.loads((folder / "config.json").read_text()).get("tie_word_embeddings")
    return {name: values for name, values in found.items() if not (tied and name == "lm_head.weight")}
