"""Reads the `quantization_config` of a Hugging Face folder: the format of its linear layers, if quantised."""

from pathlib import Path
from typing import Any, Literal

import msgspec

from inference_core.errors import ModelFileError
from inference_core.io.files import prepare_types
from inference_core.loaders.huggingface.quantized_layer import GroupFormat

_SUPPORTED = (
    "supported are 4-bit AWQ (version gemm), 4- and 8-bit GPTQ (checkpoint_format gptq or gptq_v2), fp8 (E4M3), mxfp4, "
    "bitsandbytes (NF4, FP4, LLM.int8), and compressed-tensors with 4-bit (pack-quantized), INT8 (int-quantized) or "
    "FP8 (float-quantized) weights"
)
# The details of 8-bit, of compressed 4-bit and of bitsandbytes' layers are read from their tensors.
LayerFormat = GroupFormat | Literal["eight bits", "compressed int4", "bitsandbytes", "mxfp4"]
# What GPTQModel and compressed-tensors may do to a model besides quantising its layers alike.
_REFUSED = ("dynamic", "rotation", "adapter", "transform_config")


class _Weights(msgspec.Struct):
    num_bits: int = 0
    type: str = "int"


class _Group(msgspec.Struct):
    weights: _Weights | None = None
    format: str | None = None


class QuantizationConfig(msgspec.Struct):
    """The keys that AutoAWQ, AutoGPTQ, GPTQModel, llm-compressor and FP8 checkpoints write into config.json; others
    describe how it was made, or repeat what the tensors show."""

    quant_method: str = ""
    bits: int = 0
    group_size: int = -1
    version: str = "gemm"
    checkpoint_format: str = "gptq"
    load_in_4bit: bool = False
    load_in_8bit: bool = False
    format: str = ""
    fmt: str = "e4m3"
    config_groups: dict[str, _Group] = {}
    dynamic: dict[str, Any] | None = None


def layer_format(file: Path, stated: dict[str, Any] | None) -> LayerFormat | None:
    """The format, None if unquantised. Raises ModelFileError, naming `file`, for an unsupported one."""
    if stated is None:
        return None
    try:
        config = msgspec.convert(stated, QuantizationConfig)
    except msgspec.ValidationError as error:
        raise ModelFileError(f"{file}: quantization_config is not understood ({error}); {_SUPPORTED}") from error
    for key in _REFUSED:
        # GPTQModel's "-:NAME" leaves a layer unquantised, which its tensors show.
        skipping = key == "dynamic" and all(name.startswith("-:") for name in config.dynamic or {})
        if stated.get(key) and not skipping:
            raise ModelFileError(f"{file}: {key} = {stated[key]!r} of its quantization_config is not supported")
    if config.quant_method == "compressed-tensors" and not config.config_groups and stated.get("sparsity_config"):
        return None
    form = _groups(config) or _by_method(config) or _bitsandbytes(config) or _compressed(config)
    if form is None:
        written = ", ".join(f"{key} {value!r}" for key, value in stated.items())
        raise ModelFileError(f"{file}: quantization_config with {written} is not supported; {_SUPPORTED}")
    return form


class Sparsity(msgspec.Struct, frozen=True):
    """What a folder says of zeros in its weights."""

    structure: str | None = None
    """Such as "2:4"."""
    compressed: bool = False
    """Whether the zeros are left out of the file."""


class _SparsityConfig(msgspec.Struct):
    format: str = "dense"
    sparsity_structure: str | None = None


class _WithSparsity(msgspec.Struct):
    sparsity_config: _SparsityConfig | None = None


prepare_types(QuantizationConfig, _WithSparsity)


def sparsity(file: Path, stated: dict[str, Any] | None) -> Sparsity:
    """Raises ModelFileError, naming `file`, for weights without their zeros in another format than 2:4."""
    try:
        config = msgspec.convert(stated or {}, _WithSparsity).sparsity_config or _SparsityConfig()
    except msgspec.ValidationError as error:
        raise ModelFileError(f"{file}: sparsity_config is not understood ({error})") from error
    if config.format not in ("dense", "sparse-24-bitmask"):
        raise ModelFileError(
            f"{file}: sparsity_config with format '{config.format}' is not supported; supported are dense and "
            "sparse-24-bitmask"
        )
    compressed = config.format != "dense"
    return Sparsity("2:4" if compressed else config.sparsity_structure, compressed)


def _groups(config: QuantizationConfig) -> GroupFormat | None:
    group_size = config.group_size if config.group_size > 0 else None
    if config.group_size < -1 or config.group_size == 0:
        return None
    if config.quant_method == "awq" and config.bits == 4 and config.version.lower() == "gemm":
        return GroupFormat("awq", group_size)
    if config.quant_method == "gptq" and config.bits in (4, 8) and config.checkpoint_format in ("gptq", "gptq_v2"):
        # Format "gptq" stores zero points minus one.
        offset = int(config.checkpoint_format == "gptq")
        return GroupFormat("gptq", group_size, offset, 4 if config.bits == 4 else 8)
    return None


def _by_method(config: QuantizationConfig) -> LayerFormat | None:
    if config.quant_method == "mxfp4":
        return "mxfp4"
    return "eight bits" if config.quant_method == "fp8" and config.fmt == "e4m3" else None


def _bitsandbytes(config: QuantizationConfig) -> LayerFormat | None:
    return (
        "bitsandbytes" if config.quant_method == "bitsandbytes" and config.load_in_4bit != config.load_in_8bit else None
    )


def _compressed(config: QuantizationConfig) -> LayerFormat | None:
    if config.quant_method != "compressed-tensors" or not config.config_groups:
        return None
    formats: set[LayerFormat | None] = set()
    for group in config.config_groups.values():
        weights, form = group.weights or _Weights(), group.format or config.format
        if form == "pack-quantized" and (weights.type, weights.num_bits) == ("int", 4):
            formats.add("compressed int4")
        elif form in ("int-quantized", "float-quantized", "naive-quantized") and weights.num_bits == 8:
            formats.add("eight bits")
        else:
            formats.add(None)
    return formats.pop() if len(formats) == 1 else None
