"""Runners of real models: compute a step's logits, sample them, measure the time.

A step returns hidden states (the first layers range by range, then the rest up to the logits), log-probabilities of
prompts (which rows are needed, and their scores), and the certainty of drawn tokens, all from raw logits.
`DecoderRunner` computes operator by operator through torch: without native kernels, and as their oracle.
"""

import sys
import time
from abc import abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from itertools import accumulate
from typing import Protocol, TypeVar, get_args

import msgspec
import numpy as np
import numpy.typing as npt
import torch

from inference_core.attention import AttentionBackend, BlockAddresses
from inference_core.errors import InvalidRequestError
from inference_core.execution.block_memory import HostBlocks
from inference_core.execution.runner import DraftingRunner, HostBlockBytes, with_layout
from inference_core.grammar.workers import TokenMasks, begin_masks
from inference_core.kv_cache.host_cache import SwapTimes
from inference_core.kv_cache.layout import CpuKVDtype, KVDtype, KVLayout
from inference_core.lora.packing import TorchAdapterBank
from inference_core.models.transformer import Decoder
from inference_core.protocol import ModelInfo, TokenLogprob
from inference_core.protocol.commands import TokenEvidence
from inference_core.sampling.sampler import drafts_from, draw, verification_rows
from inference_core.step_plan import DraftLaw, SampledToken, ScheduledSequence, ScoreSpec, States, StepPlan, StepResult

T = TypeVar("T")


class LayeredModel(Protocol):
    """A model whose steps can be computed in parts, with the bits that they have in one."""

    def layers(
        self, sequences: list[ScheduledSequence], hidden: torch.Tensor | None, begin: int, end: int
    ) -> torch.Tensor:
        """Layers [begin, end) of every token of `sequences`: hidden states float32 [T, hidden], from `hidden` of the
        same shape, or from the embedding where `begin` is 0."""

    def head(
        self, sequences: list[ScheduledSequence], hidden: torch.Tensor, begin: int, rows: list[int] | None
    ) -> torch.Tensor:
        """The layers from `begin` on and the logits of `rows`; see `LogitsRunner.logits`."""


class LayeredForward:
    """`states`: what the `state` of each of `sequences` asks for, float32 [rows, hidden]. `active`: the sequences that
    continue after the deepest requested layer."""

    def __init__(self, model: LayeredModel, sequences: list[ScheduledSequence]) -> None:
        self.states: list[States] = [np.empty((0, 0), np.float32)] * len(sequences)
        self._model = model
        self._active = list(range(len(sequences)))
        self._sequences = sequences
        self._hidden: torch.Tensor | None = None
        self._layer = 0
        for layer in sorted({s.state.layer for s in sequences if s.state is not None}):
            self._advance(layer)

    @property
    def active(self) -> list[ScheduledSequence]:
        return [self._sequences[index] for index in self._active]

    def logits(self, sequences: list[ScheduledSequence], rows: list[int] | None = None) -> torch.Tensor:
        assert self._hidden is not None  # a layer was asked for
        return self._model.head(sequences, self._hidden, self._layer, rows)

    def scatter(self, results: list[list[T]]) -> list[list[T]]:
        """Put the results of the active sequences at the indices of all sequences; the others get an empty list."""
        scattered: list[list[T]] = [[] for _ in self._sequences]
        for index, result in zip(self._active, results, strict=True):
            scattered[index] = result
        return scattered

    def _advance(self, layer: int) -> None:
        sequences = self.active
        hidden = self._model.layers(sequences, self._hidden, self._layer, layer)
        ends = list(accumulate(len(s.token_ids) for s in sequences))
        staying: list[tuple[int, int, int]] = []
        for index, sequence, end in zip(self._active, sequences, ends, strict=True):
            begin, spec = end - len(sequence.token_ids), sequence.state
            if spec is not None and spec.layer == layer:
                self.states[index] = hidden[begin + spec.first : end - sequence.num_drafts].cpu().numpy().copy()
            if spec is None or spec.layer != layer or not spec.exits:
                staying.append((index, begin, end))
        if len(staying) < len(self._active):
            hidden = torch.cat([hidden[:0], *(hidden[begin:end] for _, begin, end in staying)])
            self._active = [index for index, _, _ in staying]
        self._hidden, self._layer = hidden, layer


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
        places = {row: index for index, row in enumerate(rows)}
        scoring = [(places.get(start, 0), s.score) for start, s in zip(starts, sequences, strict=False)]
        return cls(rows, [places[row] for row in drawing], scoring)

    def scores(self, logits: torch.Tensor) -> list[list[TokenLogprob]]:
        """Return the scores of each sequence's rows of `logits` [wanted, vocabulary]; raises as `score_rows`."""
        return [
            [] if spec is None else score_rows(logits[first : first + len(spec.token_ids)], spec)
            for first, spec in self.scoring
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
            listed = sorted(zip(top_ids, top_logprobs, strict=True), key=lambda pair: (-pair[1], pair[0]))
            scores.append(TokenLogprob(token, logprob, listed))
    return scores


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


LogitsOf = Callable[[list[ScheduledSequence], list[int] | None], torch.Tensor]


class LogitsRunner(DraftingRunner):
    """A runner whose model computes logits on the host's memory."""

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
        specs = [s.sample for s in drawing if s.sample is not None] if plan.has_grammars else []
        masks = begin_masks(specs, [s.drafts for s in drawing]) if specs else None
        scored: list[list[TokenLogprob]] = []
        with torch.inference_mode():
            layered = self.layered_forward(plan.sequences) if any(s.state is not None for s in plan.sequences) else None
            active, logits_of = (plan.sequences, self.logits) if layered is None else (layered.active, layered.logits)
            rows = verification_rows(active)
            if any(s.score is not None for s in active):
                logits, scored = _scored(logits_of, active, rows)
            else:
                logits = logits_of(active, rows)
            tokens = _drawn(logits, active, masks)
        if layered is None:
            return StepResult(tokens, time.perf_counter() - began, scored, swapped)
        tokens, scored = layered.scatter(tokens), layered.scatter(scored) if scored else scored
        return StepResult(tokens, time.perf_counter() - began, scored, swapped, layered.states)

    def layered_forward(self, sequences: list[ScheduledSequence]) -> LayeredForward:
        """Compute a step up to the deepest layer whose hidden states are requested. Raises `InvalidRequestError` if the
        model is not computed layer by layer; its `info` names no layers then."""
        raise InvalidRequestError(f"{self.info.name} returns no hidden states", "evidence")

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
    """Return the logits of the rows that are drawn from, and the log-probabilities of scored prompts."""
    rows = ScoredRows.of(sequences, drawing)
    logits = logits_of(sequences, rows.wanted)
    return logits[rows.drawing], rows.scores(logits)


def _drawn(
    logits: torch.Tensor, sequences: list[ScheduledSequence], masks: TokenMasks | None
) -> list[list[SampledToken]]:
    """`draw`, with the requested evidence."""
    if not any(s.sample is not None and s.sample.evidence for s in sequences):
        return draw(logits, sequences, masks)
    evidence = StepEvidence(logits, sequences)
    return evidence.added_to(draw(logits, sequences, masks))


class ArenaRunner(LogitsRunner):
    """A runner over `arena` uint8 [bytes] in this process's memory, cut into slabs of `slab_bytes`."""

    kv_dtypes = get_args(CpuKVDtype)

    def __init__(self, info: ModelInfo, layout: KVLayout, arena: torch.Tensor, slab_bytes: int) -> None:
        self.info = info
        self._arena, self._slab_bytes = arena, slab_bytes
        self._place_blocks(layout)

    def use_kv_dtype(self, dtype: KVDtype) -> None:
        self._place_blocks(msgspec.structs.replace(self.layout, dtype=dtype))

    def _place_blocks(self, layout: KVLayout) -> None:
        self.layout, self.info = layout, with_layout(self.info, layout)
        self._addresses = BlockAddresses(layout.block_size, layout.block_bytes, self._slab_bytes)
        self._host = HostBlocks(self._arena, self._addresses.offsets, layout.block_bytes)
        self.blocks = HostBlockBytes(self._arena.numpy(), self._addresses.offsets, layout.block_bytes)

    def offload_blocks(self, offloads: list[tuple[int, int]]) -> None:
        self._host.offload(offloads)

    def restore_blocks(self, restores: list[tuple[int, int]]) -> None:
        self._host.restore(restores)


class DecoderRunner(ArenaRunner):
    """A decoder over the arena of its `attention`."""

    def __init__(
        self,
        info: ModelInfo,
        decoder: Decoder,
        layout: KVLayout,
        attention: AttentionBackend,
        slab_bytes: int,
        adapters: TorchAdapterBank | None = None,
    ) -> None:
        super().__init__(info, layout, attention.arena, slab_bytes)
        self.config = decoder.config
        self.decoder = decoder
        self.attention = attention
        self.adapters = self._bank = adapters

    def use_kv_dtype(self, dtype: KVDtype) -> None:
        super().use_kv_dtype(dtype)
        old = self.attention
        self.attention = type(old)(old.config, self.layout, old.arena, old.cos_sin)

    def logits(self, sequences: list[ScheduledSequence], rows: list[int] | None = None) -> torch.Tensor:
        token_ids = [token for sequence in sequences for token in sequence.token_ids]
        wanted = sampled_rows(sequences) if rows is None else rows
        with torch.inference_mode():
            adapted = None if self._bank is None else self._bank.rows(sequences)
            return self.decoder.forward(token_ids, self._addresses.batch(sequences), self.attention, wanted, adapted)

    def layered_forward(self, sequences: list[ScheduledSequence]) -> LayeredForward:
        return LayeredForward(self, sequences)

    def layers(
        self, sequences: list[ScheduledSequence], hidden: torch.Tensor | None, begin: int, end: int
    ) -> torch.Tensor:
        if hidden is None:
            hidden = self.decoder.embedding.rows([token for sequence in sequences for token in sequence.token_ids])
        if not sequences:
            return hidden  # all have ended at an earlier layer
        batch, adapted = self._addresses.batch(sequences), None if self._bank is None else self._bank.rows(sequences)
        self.decoder.compute(hidden, batch, self.attention, adapted, range(begin, end))
        return hidden

    def head(
        self, sequences: list[ScheduledSequence], hidden: torch.Tensor, begin: int, rows: list[int] | None
    ) -> torch.Tensor:
        hidden = self.layers(sequences, hidden, begin, len(self.decoder.layers))
        return self.decoder.logits(hidden, sampled_rows(sequences) if rows is None else rows)

    def copy_blocks(self, copies: list[tuple[int, int]]) -> None:
        self._addresses.copy(self.attention.arena, copies)


def sampled_rows(sequences: list[ScheduledSequence]) -> list[int]:
    """Return the last row of every sequence that samples."""
    ends = np.cumsum([len(s.token_ids) for s in sequences])
    return [int(end) - 1 for end, s in zip(ends, sequences, strict=True) if s.sample is not None]
