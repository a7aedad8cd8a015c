"""What every runner of a real model does alike: compute a step's logits, sample them, say how long it took."""

import time
from abc import abstractmethod

import torch

from inference_core.grammar.masks import begin_masks
from inference_core.prompt_scores import ScoredRows
from inference_core.protocol import TokenLogprob
from inference_core.runner import ModelRunner
from inference_core.sampler import sample
from inference_core.step_plan import SampledToken, ScheduledSequence, StepPlan, StepResult


class LogitsRunner(ModelRunner):
    """A runner whose model gives logits."""

    @abstractmethod
    def logits(self, sequences: list[ScheduledSequence], rows: list[int] | None = None) -> torch.Tensor:
        """Compute `sequences`, and return the logits float32 [rows, vocabulary] of some of their tokens.

        `rows`, ascending, count the tokens of all sequences one after another; None stands for the last token of each
        sequence that samples. The result is valid until the next call.
        """

    @abstractmethod
    def copy_blocks(self, copies: list[tuple[int, int]]) -> None:
        """Copy whole KV blocks (from, to)."""

    def run(self, plan: StepPlan) -> StepResult:
        began = time.perf_counter()
        if plan.copies:
            self.copy_blocks(plan.copies)
        specs = [s.sample for s in plan.sequences if s.sample is not None]
        masks = begin_masks(specs)
        scored: list[list[TokenLogprob]] = []
        with torch.inference_mode():
            if any(s.score is not None for s in plan.sequences):
                logits, scored = self._scored(plan.sequences)
            else:
                logits = self.logits(plan.sequences)
            drawn = iter(sample(logits, specs, masks=masks))
        tokens: list[list[SampledToken]] = [[next(drawn)] if s.sample is not None else [] for s in plan.sequences]
        return StepResult(tokens, time.perf_counter() - began, scored)

    def _scored(self, sequences: list[ScheduledSequence]) -> tuple[torch.Tensor, list[list[TokenLogprob]]]:
        """As `logits`, and what the rows that score prompts say."""
        rows = ScoredRows.of(sequences)
        logits = self.logits(sequences, rows.wanted)
        return logits[rows.drawing], rows.scores(logits)
