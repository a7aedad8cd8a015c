"""The calibration text, split into windows, and its record in the quantised model (SPEC QZ-12).

Also how far the logits of one way of computing are from another's on such a text: perplexity, divergence, agreement.
"""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from inference_core.errors import InvalidRequestError, QuantizationError
from inference_core.io.files import read_text_file
from inference_core.tokenization.tokenizer import Tokenizer

Floats = NDArray[np.float64]
Logits = NDArray[np.float32]


@dataclass(frozen=True, slots=True, kw_only=True)
class Agreement:
    """A variant against the reference, over all positions of a text."""

    perplexity: float
    """The variant's perplexity."""
    perplexity_ratio: float
    """The variant's perplexity over the reference's."""
    mean_kl: float
    """Divergence of the variant's next-token distribution from the reference's, in nats."""
    top1: float
    """Share of positions with the same most likely token."""
    cosine: float
    """Mean normalised dot product of the logits (SPEC QZ-09)."""
    max_logit_difference: float
    """Largest difference over all logits."""


def prose() -> str:
    """Some pages of English novels and essays in the public domain, on which models are compared."""
    return _shipped("prose.txt")


def _shipped(name: str) -> str:
    return files("inference_core.quantization").joinpath(name).read_text("utf-8")


class AgreementTally:
    """Windows of two ways of computing, one after another, so that no logits need to be kept."""

    def __init__(self) -> None:
        self._expected: list[Floats] = []
        self._losses: list[Floats] = []
        self._divergence: list[Floats] = []
        self._same: list[NDArray[np.bool_]] = []
        self._cosine: list[Floats] = []
        self._furthest = 0.0

    def add(self, tokens: list[int], exact: Logits, other: Logits) -> None:
        """Logits [tokens, vocabulary] of the reference and of the other; a window's last row predicts nothing known."""
        law, other_law = log_softmax(exact), log_softmax(other)
        targets = (np.arange(len(tokens) - 1), np.array(tokens[1:]))
        self._expected.append(-law[targets])
        self._losses.append(-other_law[targets])
        self._divergence.append((np.exp(law) * (law - other_law)).sum(axis=1))
        self._same.append(exact.argmax(axis=1) == other.argmax(axis=1))
        self._cosine.append(normalised_dot(exact, other))
        self._furthest = max(self._furthest, float(np.abs(exact - other).max()))

    def agreement(self) -> Agreement:
        """Over all windows so far."""
        loss = float(np.concatenate(self._losses).mean())
        return Agreement(
            perplexity=float(np.exp(loss)),
            perplexity_ratio=float(np.exp(loss - np.concatenate(self._expected).mean())),
            mean_kl=float(np.concatenate(self._divergence).mean()),
            top1=float(np.concatenate(self._same).mean()),
            cosine=float(np.concatenate(self._cosine).mean()),
            max_logit_difference=self._furthest,
        )


def log_softmax(logits: Logits) -> Floats:
    """Natural log-probabilities [rows, vocabulary], in float64."""
    shifted = logits.astype(np.float64) - logits.max(axis=1, keepdims=True)
    law: Floats = shifted - np.log(np.exp(shifted).sum(axis=1, keepdims=True))
    return law


def normalised_dot(a: Logits, b: Logits) -> Floats:
    """Cosine of each pair of rows [rows]."""
    x, y = a.astype(np.float64), b.astype(np.float64)
    cosine: Floats = (x * y).sum(axis=1) / (np.linalg.norm(x, axis=1) * np.linalg.norm(y, axis=1))
    return cosine


# Six stories of Doyle's Sherlock Holmes (1892) and what has no formulas of Whitehead's Introduction to Mathematics
# (1911), in turns, both in the public domain. Models are compared on another text (`prose`).
SHIPPED = "the package's calibration text"
# More text tells little more of a layer's inputs (Frantar et al. 2023 and Lin et al. 2024 use so many).
MOST_WINDOWS = 128


@dataclass(frozen=True, slots=True)
class CalibrationText:
    """A text to calibrate with; `digest` is its SHA-256 (hex)."""

    text: str
    origin: str
    """Where `text` is from, in words."""

    @property
    def digest(self) -> str:
        return text_digest(self.text)

    def windows(self, tokenizer: Tokenizer, samples: int | None, window: int) -> list[list[int]]:
        """`samples` windows of `window` tokens, each with an empty context; None: as many as the text has, at most
        `MOST_WINDOWS`. A shorter rest is used only if it is the whole text. Raises QuantizationError for a text of
        fewer than two tokens or of fewer windows than `samples`.
        """
        ids = tokenizer.encode(self.text)[: (samples or MOST_WINDOWS) * window]
        if len(ids) < 2:
            raise QuantizationError(f"{self.origin} has {len(ids)} tokens; calibration needs at least 2")
        whole = [ids[begin : begin + window] for begin in range(0, len(ids) - window + 1, window)] or [ids]
        if samples is not None and len(whole) < samples:
            raise QuantizationError(
                f"{self.origin} has {len(ids):,} tokens, {len(whole)} of the {samples} windows of {window} that were "
                "asked for; give more text with --calibration, or fewer with --samples or --window"
            )
        return whole


def as_chats(tokenizer: Tokenizer, windows: Sequence[list[int]]) -> list[list[int]]:
    """The windows as chats, in as many tokens each: a user's message of their first third, and the rest as the answer.

    Plain text has none of a template's tokens, which stand in every prompt of a chat model. A method that minimises the
    error on plain text alone, above all GPTQ, spoils them. Unchanged without a template, where it refuses, and where
    it takes more than half of a window. A template that writes the date writes today's.
    """
    chats = []
    for ids in windows:
        third = len(ids) // 3
        try:
            asked = tokenizer.encode_chat([{"role": "user", "content": tokenizer.decode(ids[:third])}])
        except InvalidRequestError:
            return list(windows)
        framed = asked + ids[third:]
        if not len(ids) <= len(framed) <= 1.5 * len(ids):
            return list(windows)
        chats.append(framed[: len(ids)])
    return chats


def text_digest(text: str) -> str:
    """SHA-256 (hex) of a text."""
    return hashlib.sha256(text.encode()).hexdigest()


def calibration_text(paths: Sequence[Path]) -> CalibrationText:
    """The concatenated files, or the 60,000 words shipped with the package. Raises QuantizationError."""
    if not paths:
        return CalibrationText(_shipped("calibration.txt"), SHIPPED)
    try:
        parts = [read_text_file(path) for path in paths]
    except OSError as error:
        raise QuantizationError(f"calibration text {error.filename} cannot be read: {error.strerror}") from error
    return CalibrationText("\n\n".join(parts), ", ".join(path.name for path in paths))
