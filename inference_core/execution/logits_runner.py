"""What every runner of a real model does alike: compute a step's logits, sample them, say how long it took."""

import sys
import time
from abc import abstractmethod
from collections.abc import Callable

import torch

from inference_core.errors import InvalidRequestError
from inference_core.execution.layered_forward import LayeredForward
from inference_core.execution.prompt_logprobs import ScoredRows
from inference_core.execution.runner import DraftingRunner
from inference_core.execution.token_evidence import StepEvidence
from inference_core.grammar.masks import TokenMasks, begin_masks
from inference_core.kv_cache.swap_cost import SwapTimes
from inference_core.protocol import TokenLogprob
from inference_core.sampling.rejection_sampling import drafts_from, draw, verification_rows
from inference_core.step_plan import DraftLaw, SampledToken, ScheduledSequence, StepPlan, StepResult

LogitsOf = Callable[[list[ScheduledSequence], list[int] | None], torch.Tensor]


class LogitsRunner(DraftingRunner):
    """A runner whose model gives logits."""

    most_drafts = sys.maxsize

    @abstractmethod
    def logits(self, sequences: list[ScheduledSequence], rows: list[int] | None = None) -> torch.Tensor:
        """Compute `sequences`, and return the logits float32 [rows, vocabulary] of some of their tokens.

        `rows`, ascending, count the tokens of all sequences one after another; None stands for the last token of each
        sequence that samples. The result is valid until the next call.
        """

    @abstractmethod
    def copy_blocks(self, copies: list[tuple[int, int]]) -> None:
        """Copy whole KV blocks (from, to)."""

    @abstractmethod
    def offload_blocks(self, offloads: list[tuple[int, int]]) -> None:
        """Copy whole KV blocks to host slots (block, slot)."""

    @abstractmethod
    def restore_blocks(self, restores: list[tuple[int, int]]) -> None:
        """Copy host slots to whole KV blocks (slot, block)."""

    def run(self, plan: StepPlan) -> StepResult:
        began = time.perf_counter()
        swapped = self._swap(plan) if plan.offloads or plan.restores else None
        if plan.copies:
            self.copy_blocks(plan.copies)
        drawing = [s for s in plan.sequences if s.sample is not None]
        masks = begin_masks([s.sample for s in drawing if s.sample is not None], [s.drafts for s in drawing])
        scored: list[list[TokenLogprob]] = []
        with torch.inference_mode():
            layered = self.layered_forward(plan.sequences) if any(s.state is not None for s in plan.sequences) else None
            going, logits_of = (plan.sequences, self.logits) if layered is None else (layered.active, layered.logits)
            rows = verification_rows(going)
            if any(s.score is not None for s in going):
                logits, scored = _scored(logits_of, going, rows)
            else:
                logits = logits_of(going, rows)
            tokens = _drawn(logits, going, masks)
        if layered is None:
            return StepResult(tokens, time.perf_counter() - began, scored, swapped)
        tokens, scored = layered.scatter(tokens), layered.scatter(scored) if scored else scored
        return StepResult(tokens, time.perf_counter() - began, scored, swapped, layered.states)

    def layered_forward(self, sequences: list[ScheduledSequence]) -> LayeredForward:
        """The layers of a step up to the deepest whose hidden states are asked for. Raises `InvalidRequestError` where
        the model is not computed layer by layer; its `info` names no layers then."""
        raise InvalidRequestError(f"{self.info.name} tells no hidden states", "evidence")

    def draft(self, plan: StepPlan) -> list[tuple[int, DraftLaw]]:
        with torch.inference_mode():
            return drafts_from(self.logits(plan.sequences).float().cpu().numpy(), plan.sequences)

    def _swap(self, plan: StepPlan) -> SwapTimes:
        began = time.perf_counter()
        if plan.offloads:
            self.offload_blocks(plan.offloads)
        between = time.perf_counter()
        if plan.restores:
            self.restore_blocks(plan.restores)
        ended = time.perf_counter()
        return SwapTimes(len(plan.offloads), between - began, len(plan.restores), ended - between)


def _scored(
    logits_of: LogitsOf, sequences: list[ScheduledSequence], drawing: list[int] | None
) -> tuple[torch.Tensor, list[list[TokenLogprob]]]:
    """The logits of the rows that are drawn from, and what the rows that score prompts say."""
    rows = ScoredRows.of(sequences, drawing)
    logits = logits_of(sequences, rows.wanted)
    return logits[rows.drawing], rows.scores(logits)


def _drawn(
    logits: torch.Tensor, sequences: list[ScheduledSequence], masks: TokenMasks | None
) -> list[list[SampledToken]]:
    """`draw`, with the evidence of those who ask for it."""
    if not any(s.sample is not None and s.sample.evidence for s in sequences):
        return draw(logits, sequences, masks)
    evidence = StepEvidence(logits, sequences)
    return evidence.added_to(draw(logits, sequences, masks))
