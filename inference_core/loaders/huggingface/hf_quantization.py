"""Reads the `quantization_config` of a Hugging Face folder: the format of its linear layers, if quantised."""

from pathlib import Path
from typing import Any, Literal

import msgspec

from inference_core.errors import ModelFileError
from inference_core.loaders.huggingface.int4_groups import Int4Format

_SUPPORTED = (
    "supported are 4-bit AWQ (version gemm), 4-bit GPTQ (checkpoint_format gptq or gptq_v2), fp8 (E4M3), mxfp4, and "
    "compressed-tensors with 4-bit (pack-quantized), INT8 (int-quantized) or FP8 (float-quantized) weights"
)
# The details of 8-bit and of compressed 4-bit layers are read from their tensors.
LayerFormat = Int4Format | Literal["eight bits", "compressed int4", "mxfp4"]


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
    load_in_8bit: bool = False
    format: str = ""
    fmt: str = "e4m3"
    config_groups: dict[str, _Group] = {}


def layer_format(file: Path, given: dict[str, Any] | None) -> LayerFormat | None:
    """The format, None if unquantised. Raises ModelFileError, naming `file`, for an unsupported one."""
    if given is None:
        return None
    try:
        config = msgspec.convert(given, QuantizationConfig)
    except msgspec.ValidationError as error:
        raise ModelFileError(f"{file}: quantization_config is not understood ({error}); {_SUPPORTED}") from error
    if config.quant_method == "bitsandbytes":
        raise ModelFileError(f"{file}: {_instead_of_bitsandbytes(config)}")
    found = _int4(config) or _by_method(config) or _compressed(config)
    if found is None:
        written = ", ".join(f"{key} {value!r}" for key, value in given.items())
        raise ModelFileError(f"{file}: quantization_config with {written} is not supported; {_SUPPORTED}")
    return found


def _instead_of_bitsandbytes(config: QuantizationConfig) -> str:
    """Say which command makes of the original weights what bitsandbytes was asked for: its 4 bits (NF4, FP4) have no
    groups that the kernels multiply, and LLM.int8() splits outliers from activations only while it computes."""
    bits, method = (8, "int8") if config.load_in_8bit else (4, "awq")
    return (
        f"quantization_config of bitsandbytes ({bits} bits) is not supported. "
        f"Quantise the model that it was made from: aio quantize ORIGINAL DESTINATION --method {method}"
    )


def _int4(config: QuantizationConfig) -> Int4Format | None:
    group_size = config.group_size if config.group_size > 0 else None
    if config.bits != 4 or config.group_size < -1 or config.group_size == 0:
        return None
    if config.quant_method == "awq" and config.version.lower() == "gemm":
        return Int4Format("awq", group_size)
    if config.quant_method == "gptq" and config.checkpoint_format in ("gptq", "gptq_v2"):
        # Format "gptq" stores zero points minus one.
        return Int4Format("gptq", group_size, zero_offset=int(config.checkpoint_format == "gptq"))
    return None


def _by_method(config: QuantizationConfig) -> LayerFormat | None:
    if config.quant_method == "mxfp4":
        return "mxfp4"
    return "eight bits" if config.quant_method == "fp8" and config.fmt == "e4m3" else None


def _compressed(config: QuantizationConfig) -> LayerFormat | None:
    if config.quant_method != "compressed-tensors" or not config.config_groups:
        return None
    found: set[LayerFormat | None] = set()
    for group in config.config_groups.values():
        weights, form = group.weights or _Weights(), group.format or config.format
        if form == "pack-quantized" and (weights.type, weights.num_bits) == ("int", 4):
            found.add("compressed int4")
        elif form in ("int-quantized", "float-quantized", "naive-quantized") and weights.num_bits == 8:
            found.add("eight bits")
        else:
            found.add(None)
    return found.pop() if len(found) == 1 else None
