"""Log-probabilities of prompts from the rows of a step: which rows are needed, and their scores."""

from dataclasses import dataclass
from itertools import accumulate

import torch

from inference_core.protocol import TokenLogprob
from inference_core.step_plan import ScheduledSequence, ScoreSpec

# Temporaries of this many rows, each as wide as the vocabulary, stay small.
_ROWS_AT_ONCE = 16


@dataclass(slots=True, frozen=True)
class ScoredRows:
    """The rows `wanted` of a step, ascending, counting the tokens of all sequences; the indices among them of the rows
    that are drawn from; and per sequence the index of its first scoring row, with its spec."""

    wanted: list[int]
    drawing: list[int]
    scoring: list[tuple[int, ScoreSpec | None]]

    @classmethod
    def of(cls, sequences: list[ScheduledSequence], drawing: list[int] | None = None) -> "ScoredRows":
        """`drawing`: the rows that are drawn from; None for the last row of each sequence that samples."""
        starts = [0, *accumulate(len(s.token_ids) for s in sequences)]
        if drawing is None:
            drawing = [end - 1 for end, s in zip(starts[1:], sequences, strict=True) if s.sample is not None]
        wanted = set(drawing)
        for start, sequence in zip(starts, sequences, strict=False):
            if sequence.score is not None:
                wanted |= set(range(start, start + len(sequence.score.token_ids)))
        rows = sorted(wanted)
        places = {row: place for place, row in enumerate(rows)}
        scoring = [(places.get(start, 0), s.score) for start, s in zip(starts, sequences, strict=False)]
        return cls(rows, [places[row] for row in drawing], scoring)

    def scores(self, logits: torch.Tensor) -> list[list[TokenLogprob]]:
        """Return the scores of each sequence's rows of `logits` [wanted, vocabulary]; raises as `score_rows`."""
        return [
            [] if spec is None else score_rows(logits[place : place + len(spec.token_ids)], spec)
            for place, spec in self.scoring
        ]


def score_rows(logits: torch.Tensor, spec: ScoreSpec) -> list[TokenLogprob]:
    """Return the natural log-probability of `spec.token_ids[i]` by row i of raw `logits` [rows, vocabulary], on any
    device, and of the `spec.top` most likely tokens, best first and of equals the smaller id.

    Raises ValueError where a row holds NaN or infinity.
    """
    scores: list[TokenLogprob] = []
    for first in range(0, len(logits), _ROWS_AT_ONCE):
        rows = logits[first : first + _ROWS_AT_ONCE].float()
        targets = spec.token_ids[first : first + _ROWS_AT_ONCE]
        totals = rows.logsumexp(dim=-1, keepdim=True)
        if not bool(totals.isfinite().all()):
            raise ValueError("the logits of a prompt hold NaN or infinity; its tokens have no log-probabilities")
        places = torch.tensor(targets, device=rows.device)[:, None]
        drawn = (rows.gather(1, places) - totals)[:, 0].tolist()
        best, ids = rows.topk(min(spec.top, rows.shape[1]), dim=-1)
        tops = zip(ids.tolist(), (best - totals).tolist(), strict=True)
        for token, logprob, (top_ids, top_logprobs) in zip(targets, drawn, tops, strict=True):
            listed = sorted(zip(top_ids, top_logprobs, strict=True), key=lambda one: (-one[1], one[0]))
            scores.append(TokenLogprob(token, logprob, listed))
    return scores
