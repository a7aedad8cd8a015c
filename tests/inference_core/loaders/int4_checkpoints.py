"""Tiny Llama folders with linear layers of 4 or 8 bits, packed here bit by bit from the formats' definitions.

Nothing of the loader is used: codes, zero points and scales are drawn, the weights follow from them, and the packing
walks over single codes.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors.numpy import save_file

VOCAB, HIDDEN, INNER, HEADS, KV_HEADS, LAYERS = 48, 128, 256, 8, 4, 2
KV = HIDDEN // HEADS * KV_HEADS
LINEARS = {
    "self_attn.q_proj": (HIDDEN, HIDDEN),
    "self_attn.k_proj": (KV, HIDDEN),
    "self_attn.v_proj": (KV, HIDDEN),
    "self_attn.o_proj": (HIDDEN, HIDDEN),
    "mlp.gate_proj": (INNER, HIDDEN),
    "mlp.up_proj": (INNER, HIDDEN),
    "mlp.down_proj": (HIDDEN, INNER),
}
Arrays = dict[str, NDArray[Any]]


@dataclass(frozen=True)
class Layer:
    """Codes [K, N] of `bits`, scales float16 [groups, N], zero points [groups, N] as wide, the group of each input."""

    codes: NDArray[np.int64]
    scales: NDArray[np.float16]
    zeros: NDArray[np.int64]
    groups: NDArray[np.int64]
    bits: int = 4

    @property
    def weight(self) -> NDArray[np.float32]:
        """[N, K] by definition: scale * (code - zero)."""
        steps = self.codes - self.zeros[self.groups]
        return (self.scales[self.groups].astype(np.float64) * steps).T.astype(np.float32)


def random_layer(
    outputs: int,
    inputs: int,
    group_size: int,
    seed: int,
    *,
    act_order: bool = False,
    bits: int = 4,
    symmetric: bool = False,
) -> Layer:
    rng = np.random.default_rng(seed)
    size = inputs if group_size == -1 else group_size
    groups = np.arange(inputs) // size
    count = int(groups[-1]) + 1
    scales = (rng.uniform(0.005, 0.02, (count, outputs))).astype(np.float16)
    zeros = rng.integers(1, 2**bits - 1, (count, outputs))
    return Layer(
        codes=rng.integers(0, 2**bits, (inputs, outputs)),
        scales=scales,
        zeros=np.full_like(zeros, 2 ** (bits - 1)) if symmetric else zeros,
        bits=bits,
        groups=rng.permutation(groups) if act_order else groups,
    )


def pack_nibbles(values: Sequence[int]) -> int:
    """Eight 4-bit numbers as one signed 32-bit number, the first in the lowest bits."""
    return pack_codes(values, 4)


def pack_codes(values: Sequence[int], bits: int) -> int:
    """32 / `bits` numbers as one signed 32-bit number, the first in the lowest bits."""
    word = sum(int(value) << (bits * place) for place, value in enumerate(values))
    return word - (1 << 32) if word >= 1 << 31 else word


def gptq(layer: Layer, *, stored_less_one: bool) -> Arrays:
    """AutoGPTQ: successive inputs share a word of `qweight`, successive outputs one of `qzeros`."""
    (inputs, outputs), bits, per = layer.codes.shape, layer.bits, 32 // layer.bits
    stored = (layer.zeros - 1 if stored_less_one else layer.zeros) % 2**bits
    words = [[pack_codes(layer.codes[k : k + per, n], bits) for n in range(outputs)] for k in range(0, inputs, per)]
    zeros = [[pack_codes(row[n : n + per], bits) for n in range(0, outputs, per)] for row in stored]
    return {
        "qweight": np.array(words, np.int32),
        "qzeros": np.array(zeros, np.int32),
        "scales": layer.scales,
        "g_idx": layer.groups.astype(np.int32),
    }


def awq(layer: Layer) -> Arrays:
    """AutoAWQ's gemm: eight outputs per word, outputs 0, 2, 4, 6, 1, 3, 5, 7 from the lowest bits up."""
    order = [0, 2, 4, 6, 1, 3, 5, 7]

    def packed(rows: NDArray[np.int64]) -> NDArray[np.int32]:
        return np.array(
            [[pack_nibbles([row[n + i] for i in order]) for n in range(0, rows.shape[1], 8)] for row in rows], np.int32
        )

    return {"qweight": packed(layer.codes), "qzeros": packed(layer.zeros), "scales": layer.scales}


@dataclass(frozen=True)
class Model:
    """A random network: its 4-bit layers by name and its other weights."""

    layers: dict[str, Layer]
    others: Arrays

    def weights(self) -> Arrays:
        return self.others | {f"{name}.weight": layer.weight for name, layer in self.layers.items()}


def random_model(
    group_size: int, *, act_order: bool = False, seed: int = 0, bits: int = 4, symmetric: bool = False
) -> Model:
    rng = np.random.default_rng(seed)
    layers, others = {}, {"model.norm.weight": np.ones(HIDDEN, np.float32)}
    for name in ("model.embed_tokens.weight", "lm_head.weight"):
        others[name] = rng.normal(0, 0.5, (VOCAB, HIDDEN)).astype(np.float32)
    for index in range(LAYERS):
        for norm in ("input_layernorm", "post_attention_layernorm"):
            others[f"model.layers.{index}.{norm}.weight"] = np.ones(HIDDEN, np.float32)
        for number, (name, shape) in enumerate(LINEARS.items()):
            seed = 100 * index + number
            layers[f"model.layers.{index}.{name}"] = random_layer(
                *shape, group_size, seed, act_order=act_order, bits=bits, symmetric=symmetric
            )
    return Model(layers, others)


def write_folder(folder: Path, tensors: Arrays, quantization: dict[str, Any] | None = None) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    config = {
        "model_type": "llama",
        "vocab_size": VOCAB,
        "hidden_size": HIDDEN,
        "intermediate_size": INNER,
        "num_hidden_layers": LAYERS,
        "num_attention_heads": HEADS,
        "num_key_value_heads": KV_HEADS,
        "max_position_embeddings": 128,
        "rms_norm_eps": 1e-5,
        "rope_theta": 1e4,
        "tie_word_embeddings": False,
    }
    if quantization is not None:
        config["quantization_config"] = quantization
    (folder / "config.json").write_text(json.dumps(config))
    save_file({name: np.ascontiguousarray(array) for name, array in tensors.items()}, folder / "model.safetensors")
    return folder


def quantization_config(method: str, group_size: int, **extra: Any) -> dict[str, Any]:
    return {"quant_method": method, "bits": 4, "group_size": group_size} | extra


def packed_tensors(model: Model, form: str) -> Arrays:
    """All tensors of a checkpoint of `form`: awq, gptq or gptq_v2."""
    tensors = dict(model.others)
    for name, layer in model.layers.items():
        parts = awq(layer) if form == "awq" else gptq(layer, stored_less_one=form == "gptq")
        tensors |= {f"{name}.{part}": array for part, array in parts.items()}
    return tensors


def write_packed(folder: Path, model: Model, form: str, group_size: int, **extra: Any) -> Path:
    if form == "awq":
        config = quantization_config("awq", group_size, version="gemm", zero_point=True, **extra)
    else:
        config = quantization_config("gptq", group_size, checkpoint_format=form, **extra)
    return write_folder(folder, packed_tensors(model, form), config)
