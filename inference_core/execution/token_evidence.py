"""The certainty of a step's drawn tokens, from raw logits."""

import msgspec
import numpy as np
import numpy.typing as npt
import torch

from inference_core.protocol.evidence import TokenEvidence
from inference_core.step_plan import SampledToken, ScheduledSequence

Row = npt.NDArray[np.float32]


class RowEvidence:
    """Evidence from one row of raw logits float32 [vocabulary], for any token drawn from it.

    Sums over the vocabulary are in float64 and in a fixed order, so that they depend on the row alone.
    """

    def __init__(self, raw: Row) -> None:
        self._raw = raw
        best = int(raw.argmax())
        # Lower logits have probability 0, and their logarithm does not matter.
        shifted = np.maximum(np.subtract(raw, raw[best], dtype=np.float64), -1e4)
        weights = np.exp(shifted)
        total = float(weights.sum())
        self._log_total = float(raw[best]) + float(np.log(total))
        # Not np.dot: BLAS threads spin for a while after it, on the CPUs of the next step's kernels.
        self._entropy = float(np.log(total) - np.einsum("i,i->", weights, shifted) / total)
        shifted[best] = -np.inf
        self._margin = -float(shifted.max())

    def of(self, token_id: int) -> TokenEvidence:
        """Return the evidence of a drawn token."""
        return TokenEvidence(float(self._raw[token_id]) - self._log_total, self._entropy, self._margin)


class StepEvidence:
    """Evidence of the rows of raw `logits` [rows, vocabulary] whose `sequences` ask for it.

    Create it before drawing, since grammars mask logits in place; `added_to` completes it. Rows with NaN give NaN: no
    token is drawn from them.
    """

    def __init__(self, logits: torch.Tensor, sequences: list[ScheduledSequence]) -> None:
        self._rows: list[list[RowEvidence]] = []
        first = 0
        for sequence in sequences:
            count = 0 if sequence.sample is None else sequence.num_drafts + 1
            asks = sequence.sample is not None and sequence.sample.evidence
            # A copy, unchanged by masks.
            raw = logits[first : first + count].float().cpu().numpy().copy() if asks else ()
            with np.errstate(invalid="ignore"):
                self._rows.append([RowEvidence(row) for row in raw])
            first += count

    def added_to(self, drawn: list[list[SampledToken]]) -> list[list[SampledToken]]:
        """Return the drawn tokens of each sequence, with evidence if the sequence asks for it."""
        return [
            [msgspec.structs.replace(t, evidence=row.of(t.token_id)) for t, row in zip(tokens, rows, strict=False)]
            if rows
            else tokens
            for tokens, rows in zip(drawn, self._rows, strict=True)
        ]
