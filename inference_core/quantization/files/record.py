"""What a quantised folder says about how it was made, so that it can be made again."""

from pathlib import Path
from typing import Any

import msgspec

from inference_core.errors import ModelFileError

RECORD = "quantization.json"


class CalibrationRecord(msgspec.Struct, frozen=True, kw_only=True):
    """The text by name and SHA-256, and how much of it was read."""

    origin: str
    sha256: str
    windows: int
    tokens: int


class QuantizationRecord(msgspec.Struct, frozen=True, kw_only=True):
    """`source` is the content hash of the model that was quantised (`loaders.fingerprint`)."""

    method: str
    settings: dict[str, Any]
    dtype: str
    source: str
    calibration: CalibrationRecord | None = None


def read_record(model: Path) -> QuantizationRecord | None:
    """The record of a folder that `aio quantize` made; None for any other model. Raises ModelFileError."""
    file = model / RECORD
    if not file.is_file():
        return None
    try:
        return msgspec.json.decode(file.read_bytes(), type=QuantizationRecord)
    except (OSError, msgspec.MsgspecError) as error:
        raise ModelFileError(f"{file} is no record of a quantisation: {error}") from error
