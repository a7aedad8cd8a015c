"""Tiny models of every architecture and every file format that loaders accept: what tests of devices share, and what
docs/results/models.md lists.
"""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, get_args

import numpy as np
import torch
import transformers

from inference_core.model_config import Architecture
from tests.inference_core import gpt_oss_models
from tests.inference_core.gguf_export import export, folder_tensors
from tests.inference_core.k_quants import q4_k_m, write_k_quants
from tests.inference_core.loaders.bitsandbytes_checkpoints import config as bitsandbytes_config
from tests.inference_core.loaders.bitsandbytes_checkpoints import pack
from tests.inference_core.loaders.int4_checkpoints import (
    VOCAB,
    Arrays,
    pack_nibbles,
    random_model,
    write_folder,
    write_packed,
)
from tests.inference_core.models.test_decoder_against_transformers import (
    ARCHITECTURES,
    SHAPE,
    TOKENS,
    checkpoint_folder,
)
from tests.inference_core.tiny_gguf import decoder_weights, write_gguf

Write = Callable[[Path], Path]
MODEL = random_model(32)


def family(name: str, folder: Path) -> Path:
    """A random model of `ARCHITECTURES`, as transformers saves it, in float32."""
    checkpoint_folder(name, folder)
    return folder


FAMILIES: dict[str, Write] = {name: partial(family, name) for name in ARCHITECTURES}


def architecture_of(name: str) -> Architecture:
    """The `model_type` of a family of `FAMILIES`."""
    kind: Any = ARCHITECTURES[name].model_type
    return kind


def plain(kind: str, folder: Path) -> Path:
    """Weights of 16 or 32 bits."""
    from safetensors.torch import save_file

    write_folder(folder, {}, None)
    dtype = {"F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}[kind]
    tensors = {name: torch.from_numpy(np.ascontiguousarray(array)).to(dtype) for name, array in MODEL.weights().items()}
    save_file(tensors, folder / "model.safetensors")
    return folder


def compressed(folder: Path) -> Path:
    """compressed-tensors of 4 bits, packed along the inputs."""
    layers: Arrays = {}
    for name, layer in MODEL.layers.items():
        codes, zeros = layer.codes.T, layer.zeros.T
        layers[f"{name}.weight_packed"] = np.array(
            [[pack_nibbles(row[k : k + 8]) for k in range(0, len(row), 8)] for row in codes], np.int32
        )
        layers[f"{name}.weight_zero_point"] = np.array(
            [[pack_nibbles(zeros[n : n + 8, g]) for g in range(zeros.shape[1])] for n in range(0, len(zeros), 8)],
            np.int32,
        )
        layers[f"{name}.weight_scale"] = np.ascontiguousarray(layer.scales.T)
        layers[f"{name}.weight_shape"] = np.array(codes.shape, np.int64)
    weights = {"num_bits": 4, "type": "int", "symmetric": False, "strategy": "group", "group_size": 32}
    return write_folder(folder, MODEL.others | layers, _compressed_config("pack-quantized", weights))


def eight_bits(kind: str, folder: Path) -> Path:
    """compressed-tensors of 8 bits with a scale per output: INT8 or FP8 (E4M3)."""
    from safetensors.torch import save_file

    largest, dtype = (127, torch.int8) if kind == "int" else (448, torch.float8_e4m3fn)
    form = f"{kind}-quantized"
    write_folder(folder, {}, _compressed_config(form, {"num_bits": 8, "type": kind, "symmetric": True}))
    tensors = {name: torch.from_numpy(array) for name, array in MODEL.others.items()}
    for name, layer in MODEL.layers.items():
        weight = torch.from_numpy(np.ascontiguousarray(layer.weight))
        scale = weight.abs().amax(1, keepdim=True) / largest
        codes = weight / scale
        tensors[f"{name}.weight"] = (codes.round() if kind == "int" else codes).to(dtype)
        tensors[f"{name}.weight_scale"] = scale
    save_file(tensors, folder / "model.safetensors")
    return folder


def bitsandbytes(folder: Path) -> Path:
    """NF4 with scales that are quantised themselves."""
    layers = {name: pack(layer.weight, nested=True) for name, layer in MODEL.layers.items()}
    parts = {f"{name}.{part}": array for name, layer in layers.items() for part, array in layer.parts.items()}
    return write_folder(folder, MODEL.others | parts, bitsandbytes_config())


def _compressed_config(form: str, weights: dict[str, Any]) -> dict[str, Any]:
    groups = {"group_0": {"targets": ["Linear"], "weights": weights}}
    return {"quant_method": "compressed-tensors", "format": form, "config_groups": groups, "ignore": ["lm_head"]}


def gguf(kind: str, folder: Path) -> Path:
    """A Llama file whose matrices are of one kind."""
    folder.mkdir(parents=True, exist_ok=True)
    if kind.endswith("_K"):
        return write_k_quants(folder / f"{kind}.gguf", lambda name: kind, VOCAB)
    weights = {name: values * np.float32(0.2) for name, values in decoder_weights().items()}
    return write_gguf(folder / f"{kind}.gguf", weights, matrix_kind=kind)


def mixed(folder: Path) -> Path:
    """Kinds as in llama.cpp's Q4_K_M."""
    folder.mkdir(parents=True, exist_ok=True)
    return write_k_quants(folder / "m.gguf", q4_k_m, VOCAB)


def gguf_name(architecture: Architecture) -> str:
    """What llama.cpp's converter writes as the architecture of a `model_type`."""
    names = {
        "mistral": "llama",
        "mixtral": "llama",
        "gemma3_text": "gemma3",
        "qwen3_moe": "qwen3moe",
        "gpt_oss": "gpt-oss",
    }
    return names.get(architecture, architecture)


def gguf_family(architecture: Architecture, folder: Path) -> Path:
    """A GGUF file of an architecture."""
    folder.mkdir(parents=True, exist_ok=True)
    if architecture == "gpt_oss":
        gpt_oss_models.save_as_gguf(gpt_oss_models.random_model(gpt_oss_models.config()), folder / "gpt-oss.gguf")
        return folder / "gpt-oss.gguf"
    path, name = folder / f"{architecture}.gguf", gguf_name(architecture)
    if architecture in ("llama", "mistral", "qwen2", "qwen3"):
        weights = decoder_weights(bias=architecture == "qwen2", norms=architecture == "qwen3")
        return write_gguf(path, weights, architecture=name, settings={"attention.key_length": 16})
    family_name = next(name for name in FAMILIES if architecture_of(name) == architecture)
    model_config = ARCHITECTURES[family_name]
    if architecture == "smollm3":  # Of files every fourth layer has no positions.
        model_config = transformers.SmolLM3Config(**SHAPE | {"num_hidden_layers": 4}, **TOKENS)
        transformers.SmolLM3ForCausalLM(model_config).save_pretrained(folder / "saved")
    else:
        checkpoint_folder(family_name, folder / "saved")
    tensors = folder_tensors(folder / "saved")
    if architecture == "gemma2":  # Files have no head, which is the embedding.
        tensors.pop("lm_head.weight", None)
    export(tensors, model_config, path, lambda _: "F32", listed=True)
    return path


def gguf_case(architecture: Architecture) -> str:
    """The name of the file of an architecture in cases of tests: Mixtral's says that it is a Llama."""
    return "mixtral" if architecture == "mixtral" else gguf_name(architecture)


GGUF_FILES: dict[Architecture, Write] = {name: partial(gguf_family, name) for name in get_args(Architecture)}
GGUF_FAMILIES: dict[str, Write] = {gguf_case(name): write for name, write in GGUF_FILES.items() if name != "mistral"}
FORMATS: dict[str, Write] = {
    **{f"safetensors {kind}": partial(plain, kind) for kind in ("F32", "F16", "BF16")},
    "AWQ": lambda folder: write_packed(folder, MODEL, "awq", 32),
    "GPTQ": lambda folder: write_packed(folder, MODEL, "gptq", 32),
    "GPTQ with act-order": lambda folder: write_packed(folder, random_model(32, act_order=True), "gptq", 32),
    "GPTQ of 8 bits": lambda folder: write_packed(folder, random_model(32, bits=8), "gptq", 32, bits=8),
    "bitsandbytes NF4": bitsandbytes,
    "compressed-tensors INT4": compressed,
    "compressed-tensors INT8": partial(eight_bits, "int"),
    "compressed-tensors FP8": partial(eight_bits, "float"),
    **{
        f"GGUF {kind}": partial(gguf, kind)
        for kind in ("F32", "F16", "BF16", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "Q4_K", "Q5_K", "Q6_K", "MXFP4")
    },
    "GGUF Q4_K_M (Q4_K, Q6_K)": mixed,
}
