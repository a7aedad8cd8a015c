"""The `quantization_config` of a Hugging Face folder: which 4-bit format its linear layers are in, if any."""

from pathlib import Path
from typing import Any

import msgspec

from inference_core.errors import ModelFileError
from inference_core.loaders.int4_groups import Int4Format

_SUPPORTED = "supported are 4-bit AWQ (version gemm) and 4-bit GPTQ (checkpoint_format gptq or gptq_v2)"


class QuantizationConfig(msgspec.Struct):
    """What AutoAWQ, AutoGPTQ and GPTQModel write into config.json; every other key only describes how it was made."""

    quant_method: str = ""
    bits: int = 0
    group_size: int = -1
    version: str = "gemm"
    checkpoint_format: str = "gptq"


def int4_format(file: Path, given: dict[str, Any] | None) -> Int4Format | None:
    """None without a quantisation; `file` is named in the ModelFileError for one that is not supported."""
    if given is None:
        return None
    try:
        config = msgspec.convert(given, QuantizationConfig)
    except msgspec.ValidationError as error:
        raise ModelFileError(f"{file}: quantization_config is not understood ({error}); {_SUPPORTED}") from error
    group_size = config.group_size if config.group_size > 0 else None
    if config.bits == 4 and config.group_size >= -1 and config.group_size != 0:
        if config.quant_method == "awq" and config.version.lower() == "gemm":
            return Int4Format("awq", group_size)
        if config.quant_method == "gptq" and config.checkpoint_format in ("gptq", "gptq_v2"):
            # The first format stores zero points less one.
            return Int4Format("gptq", group_size, zero_offset=int(config.checkpoint_format == "gptq"))
    written = ", ".join(f"{key} {value!r}" for key, value in msgspec.structs.asdict(config).items())
    raise ModelFileError(f"{file}: quantization_config with {written} is not supported; {_SUPPORTED}")
