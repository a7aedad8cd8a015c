"""The calibration text, split into windows, and its record in the quantised model (SPEC QZ-12)."""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from inference_core.errors import QuantizationError
from inference_core.io.text_file import read_text_file
from inference_core.quantization.text_metrics import prose
from inference_core.tokenization.tokenizer import Tokenizer

SHIPPED = "the package's prose"


@dataclass(frozen=True, slots=True)
class CalibrationText:
    """`origin`: where `text` is from, in words; `digest`: its SHA-256 (hex)."""

    text: str
    origin: str

    @property
    def digest(self) -> str:
        return text_digest(self.text)

    def windows(self, tokenizer: Tokenizer, samples: int, window: int) -> list[list[int]]:
        """At most `samples` windows of `window` tokens, each with an empty context. A shorter rest is used only if it
        is the whole text. Raises QuantizationError for a text of fewer than two tokens.
        """
        ids = tokenizer.encode(self.text)[: samples * window]
        if len(ids) < 2:
            raise QuantizationError(f"{self.origin} has {len(ids)} tokens; calibration needs at least 2")
        whole = [ids[begin : begin + window] for begin in range(0, len(ids) - window + 1, window)]
        return whole or [ids]


def text_digest(text: str) -> str:
    """SHA-256 (hex) of a text."""
    return hashlib.sha256(text.encode()).hexdigest()


def calibration_text(paths: Sequence[Path]) -> CalibrationText:
    """The concatenated files, or the prose shipped with the package. Raises QuantizationError."""
    if not paths:
        return CalibrationText(prose(), SHIPPED)
    try:
        parts = [read_text_file(path) for path in paths]
    except OSError as error:
        raise QuantizationError(f"calibration text {error.filename} cannot be read: {error.strerror}") from error
    return CalibrationText("\n\n".join(parts), ", ".join(path.name for path in paths))
