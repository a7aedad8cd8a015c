"""The record in a quantised folder of how it was made, so that it can be reproduced."""

from pathlib import Path
from typing import Any

import msgspec

from inference_core.errors import ModelFileError
from inference_core.io.json_errors import JSON_ERRORS
from inference_core.loaders.model_file import MAX_SETTINGS, read_model_file

RECORD = "quantization.json"


class CalibrationRecord(msgspec.Struct, frozen=True, kw_only=True):
    """The calibration text's name and SHA-256, and how much of it was read."""

    origin: str
    sha256: str
    windows: int
    tokens: int


class QuantizationRecord(msgspec.Struct, frozen=True, kw_only=True):
    """`source`: content hash of the unquantised model (`loaders.fingerprint`)."""

    method: str
    settings: dict[str, Any]
    dtype: str
    source: str
    calibration: CalibrationRecord | None = None


def read_record(model: Path) -> QuantizationRecord | None:
    """The record of a folder made by `aio quantize`; None for any other model. Raises ModelFileError."""
    file = model / RECORD
    if not file.is_file():
        return None
    try:
        return msgspec.json.decode(read_model_file(file, MAX_SETTINGS), type=QuantizationRecord)
    except JSON_ERRORS as error:
        raise ModelFileError(f"{file} is not a record of a quantisation: {error}") from error
