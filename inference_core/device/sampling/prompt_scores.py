"""Log-probabilities of prompts on a device: the rows of a step that they need, and what those say."""

from itertools import accumulate

import torch

from inference_core.device.sampling.log_probabilities import LogProbabilities
from inference_core.protocol import TokenLogprob
from inference_core.step_plan import ScheduledSequence


def scored_rows(sequences: list[ScheduledSequence], device: torch.device) -> torch.Tensor | None:
    """The rows that `score` names, counting the tokens of all sequences one after another, int32 [E] on `device`; None
    where there are none."""
    starts = accumulate((len(s.token_ids) for s in sequences), initial=0)
    rows = [
        row
        for start, sequence in zip(starts, sequences, strict=False)
        if sequence.score is not None
        for row in range(start, start + len(sequence.score.token_ids))
    ]
    return torch.tensor(rows, dtype=torch.int32).to(device, non_blocking=True) if rows else None


class PromptScores:
    """What `logits` [E, vocabulary] of the rows of `scored_rows` say; nothing is waited for before `by_sequence`."""

    def __init__(self, sequences: list[ScheduledSequence], logits: torch.Tensor) -> None:
        specs = [sequence.score for sequence in sequences]
        targets = [token for spec in specs if spec is not None for token in spec.token_ids]
        tops = [spec.top for spec in specs if spec is not None for _ in spec.token_ids]
        self._counts = [0 if spec is None else len(spec.token_ids) for spec in specs]
        drawn = torch.tensor(targets).to(logits.device, non_blocking=True)
        self._logprobs = LogProbabilities(logits, drawn, dict(enumerate(tops)))

    def by_sequence(self) -> list[list[TokenLogprob]]:
        """Once the device is done with the step. Raises ValueError where a row holds NaN or infinity."""
        rows = self._logprobs.by_row()
        if len(rows) < sum(self._counts):
            raise ValueError("the logits of a prompt hold NaN or infinity; its tokens have no log-probabilities")
        ends = list(accumulate(self._counts))
        return [[rows[row] for row in range(end - count, end)] for end, count in zip(ends, self._counts, strict=True)]
