"""The text that calibration reads, in windows, and the record of it that a quantised model keeps (SPEC QZ-12)."""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from inference_core.errors import QuantizationError
from inference_core.quantization.text_metrics import prose
from inference_core.tokenization.tokenizer import Tokenizer

SHIPPED = "the package's prose"


@dataclass(frozen=True, slots=True)
class CalibrationText:
    """`origin` says for people where `text` is from; `digest` is its SHA-256 (hex)."""

    text: str
    origin: str

    @property
    def digest(self) -> str:
        return text_digest(self.text)

    def windows(self, tokenizer: Tokenizer, samples: int, window: int) -> list[list[int]]:
        """At most `samples` pieces of `window` tokens, each read from an empty context. A rest that is shorter counts
        only if it is all there is. Raises QuantizationError for a text of fewer than two tokens.
        """
        ids = tokenizer.encode(self.text)[: samples * window]
        if len(ids) < 2:
            raise QuantizationError(f"{self.origin} has {len(ids)} tokens; calibration needs at least 2")
        whole = [ids[begin : begin + window] for begin in range(0, len(ids) - window + 1, window)]
        return whole or [ids]


def text_digest(text: str) -> str:
    """SHA-256 (hex) by which texts are told apart."""
    return hashlib.sha256(text.encode()).hexdigest()


def calibration_text(paths: Sequence[Path]) -> CalibrationText:
    """The files one after another, or the prose that ships with the package. Raises QuantizationError."""
    if not paths:
        return CalibrationText(prose(), SHIPPED)
    try:
        parts = [path.read_text("utf-8") for path in paths]
    except (OSError, UnicodeDecodeError) as error:
        raise QuantizationError(f"calibration text cannot be read as UTF-8: {error}") from error
    return CalibrationText("\n\n".join(parts), ", ".join(path.name for path in paths))
