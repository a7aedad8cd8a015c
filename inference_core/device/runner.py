"""Runs StepPlans of one model on a device, each launched before the one before it is waited for."""

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import msgspec
import torch

from inference_core.device.adapter_bank import DeviceAdapterBank
from inference_core.device.batch import DeviceInputs
from inference_core.device.block_tables import BlockTables
from inference_core.device.buckets import DecodeBuckets
from inference_core.device.decoder import DeviceDecoder
from inference_core.device.edited_rows import EditedRows, fits_tables
from inference_core.device.graphs import Graphs
from inference_core.device.log_probabilities import LogProbabilities
from inference_core.device.prompt_scores import PromptScores, scored_rows
from inference_core.device.step_inputs import Capacity, StepInputs, StepShape, bytes_of
from inference_core.device.swaps import DeviceSwaps
from inference_core.errors import BadLogitsError
from inference_core.grammar.masks import TokenMasks, begin_masks
from inference_core.host_blocks import HostBlocks
from inference_core.kv_layout import KVLayout
from inference_core.protocol import ModelInfo
from inference_core.runner import OverlappingRunner
from inference_core.sampler import sample
from inference_core.step_draft import MAX_SCORED_ROWS
from inference_core.step_plan import SampledToken, SampleSpec, StepPlan, StepResult, SwapTimes
from inference_core.triton_kernels import ops, sampling_ops  # noqa: F401  they register the custom ops

# Rows of inputs and results that are in use at the same time: those of the step under way, and of the next one.
_TURNS = 2


@dataclass(slots=True, frozen=True)
class _HostDraw:
    """Rows that the host draws: their places among the step's draws, how, and their logits."""

    rows: list[int]
    specs: list[SampleSpec]
    logits: torch.Tensor
    masks: TokenMasks | None


@dataclass(slots=True, frozen=True)
class _Launched:
    """A step under way: how many rows it draws, what the host adds to them, and what its copies took."""

    draws: int
    host: _HostDraw
    logprobs: LogProbabilities
    scores: PromptScores | None
    swapped: Callable[[], SwapTimes | None]


class DeviceRunner(OverlappingRunner):
    """A decoder over `arena` uint8 [bytes] on its device, cut into slabs of `slab_bytes`.

    Inputs travel in one copy from pinned memory, drawn tokens in one copy back; a token that the next step needs never
    leaves the device. Steps in which every sequence computes one token are padded to a size of `buckets` and repeated
    as `graphs`, those in which logits are edited, or rows go through adapters, apart from the others. Sequences under a
    grammar, and those that bias more tokens than a row of the edit tables holds, are drawn by the host, from a copy of
    those rows' logits.
    """

    def __init__(
        self,
        info: ModelInfo,
        decoder: DeviceDecoder,
        layout: KVLayout,
        arena: torch.Tensor,
        slab_bytes: int,
        *,
        graphs: Graphs,
        buckets: DecodeBuckets,
        capacity: Capacity,
    ) -> None:
        self.info = info
        self.config = decoder.config
        self.layout = layout
        self.device = arena.device
        self.adapters: DeviceAdapterBank | None = decoder.adapters
        self._decoder = decoder
        self._arena = arena
        self._graphs = graphs
        self._buckets = buckets
        longest = -(-info.max_context // layout.block_size)
        self._tables = BlockTables(layout, slab_bytes, rows=capacity.sequences, row_blocks=longest)
        self._swaps = DeviceSwaps(HostBlocks(arena, self._tables.byte_offsets, layout.block_bytes), self.device)
        self._edits = EditedRows(capacity.sequences, decoder.config.vocab_size, self.device)
        pinned = self.device.type == "cuda"
        self._memory = [torch.zeros(bytes_of(capacity), dtype=torch.uint8, pin_memory=pinned) for _ in range(_TURNS)]
        self._inputs = [StepInputs(capacity, memory.numpy()) for memory in self._memory]
        self._results = [torch.zeros(capacity.sequences, dtype=torch.int64, pin_memory=pinned) for _ in range(_TURNS)]
        tables = torch.zeros(capacity.sequences * longest, dtype=torch.int64, device=self.device)
        self._device_inputs = DeviceInputs(capacity, torch.zeros_like(self._memory[0], device=self.device), tables)
        # Row by row what this step draws, and what the one before it drew; -1 where nothing could be drawn.
        self._drawn = torch.zeros(capacity.sequences, dtype=torch.int64, device=self.device)
        self._drawn_before = torch.zeros_like(self._drawn)
        self._rows_of_last: dict[str, int] = {}
        self._turn = 0

    def draws_ahead(self, spec: SampleSpec) -> bool:
        return fits_tables(spec)

    def launch(self, plan: StepPlan) -> Callable[[], StepResult]:
        began = time.perf_counter()
        self._turn = (self._turn + 1) % _TURNS
        try:
            with torch.inference_mode():
                launched = self._launch(plan)
        except Exception:
            self._forget()
            raise
        finished = self._note()
        draws = [s.sample is not None for s in plan.sequences]
        result = self._results[self._turn]

        def land() -> StepResult:
            try:
                finished()
                drawn = iter(_drawn_tokens(launched, result, self.config.vocab_size))
                scored = [] if launched.scores is None else launched.scores.by_sequence()
            except Exception:
                # The steps after this one have counted on what it drew.
                self._forget()
                raise
            sampled_tokens = [[next(drawn)] if draw else [] for draw in draws]
            return StepResult(sampled_tokens, time.perf_counter() - began, scored, launched.swapped())

        return land

    def rehearse(self) -> None:
        """The largest step of the capacity, with padding alone: takes all the memory that a step can take at once."""
        largest = self._inputs[0].fill_with_padding()
        self._device_inputs.memory.copy_(self._memory[0])
        scored = torch.zeros(MAX_SCORED_ROWS, dtype=torch.int32, device=self.device)
        with torch.inference_mode():
            self._compute(largest, scored)

    def _launch(self, plan: StepPlan) -> _Launched:
        sequences = plan.sequences
        draws = [(s.sequence_id, s.sample) for s in sequences if s.sample is not None]
        single = all(len(s.token_ids) == 1 and s.sample is not None for s in sequences)
        bucket = self._buckets.padded(len(sequences)) if single else None
        inputs, memory = self._inputs[self._turn], self._memory[self._turn]
        edits = self._edits.place(draws, self._rows_of_last)
        shape = inputs.fill(
            sequences,
            self._tables,
            self._rows_of_last,
            renamed=bool(plan.copies),
            pad_to=bucket,
            edit_rows=None if edits is None else edits.rows,
        )
        swapped = self._swaps.begin(plan)
        if plan.copies:
            self._copy_blocks(plan.copies)
        self._device_inputs.memory.copy_(memory, non_blocking=True)
        self._device_inputs.apply_table_updates(shape.table_updates, inputs.apart)
        self._drawn_before.copy_(self._drawn)
        if edits is not None:
            self._edits.count(edits, self._drawn_before)
        scored = scored_rows(sequences, self.device)
        if bucket is None:
            logits = self._compute(shape, scored)
        else:
            # What a graph has captured is this shape without its counts: those are on the device.
            key = shape.graph_key(bucket)
            logits = self._graphs.run(key, lambda: self._compute(shape.as_captured(self.info.max_context)))
        specs = [spec for _, spec in draws]
        self._results[self._turn][: len(specs)].copy_(self._drawn[: len(specs)], non_blocking=True)
        self._rows_of_last = {sequence_id: row for row, (sequence_id, _) in enumerate(draws)}
        wanted = {
            row: spec.params.logprobs
            for row, spec in enumerate(specs)
            if spec.params.logprobs is not None and fits_tables(spec)
        }
        logprobs = LogProbabilities(logits, self._drawn, wanted)
        scores = None if scored is None else PromptScores(sequences, logits[len(logits) - len(scored) :])
        return _Launched(len(specs), self._host_draw(specs, logits), logprobs, scores, swapped)

    def _compute(self, shape: StepShape, scored: torch.Tensor | None = None) -> torch.Tensor:
        """The step whose inputs are on the device: its logits as the model gives them, and its draws in `_drawn`. Doing
        it again changes nothing, as capturing it needs. The logits of the tokens `scored` int32 [E] come last."""
        batch = self._device_inputs.batch(shape)
        if scored is not None:
            batch = replace(batch, sample_rows=torch.cat([batch.sample_rows, scored]))
        pending = batch.pending
        known = self._drawn_before.index_select(0, pending.clamp(min=0))
        tokens = torch.where(pending >= 0, known.clamp(min=0), batch.token_ids.long())
        raw = self._decoder.forward(tokens, batch)
        logits = raw[: shape.sampled].float()
        if shape.sampled:
            if shape.edited:
                logits = logits.clone() if logits.data_ptr() == raw.data_ptr() else logits
                tables, penalties = self._edits.tables, (batch.repetition, batch.presence, batch.frequency)
                edits = (batch.edit_rows, tables.token_ids, tables.bias, tables.num_biased, tables.uses)
                torch.ops.aio.edit_logits(logits, *edits, *penalties)
            laws = (batch.temperature, batch.top_k, batch.top_p, batch.min_p, batch.seed, batch.position)
            torch.ops.aio.draw_tokens(self._drawn[: shape.sampled], logits, *laws)
        return raw

    def _forget(self) -> None:
        """What the device holds of tables and counts may be anything."""
        self._tables.forget()
        self._edits.forget()

    def _host_draw(self, specs: list[SampleSpec], logits: torch.Tensor) -> _HostDraw:
        rows = [row for row, spec in enumerate(specs) if not fits_tables(spec)]
        chosen = [msgspec.structs.replace(specs[row]) for row in rows]
        host = logits[rows].float().to("cpu", non_blocking=True) if rows else logits[:0]
        return _HostDraw(rows, chosen, host, begin_masks(chosen))

    def _copy_blocks(self, copies: list[tuple[int, int]]) -> None:
        offsets = self._tables.byte_offsets([block for pair in copies for block in pair])
        pairs = torch.from_numpy(offsets.reshape(-1, 2)).to(self.device)
        torch.ops.aio.copy_blocks(self._arena, pairs, self.layout.block_bytes)

    def _note(self) -> Callable[[], Any]:
        """A wait for everything that was launched so far."""
        if self.device.type != "cuda":
            return lambda: None
        event = torch.cuda.Event()
        event.record()
        return lambda: event.synchronize()


def _drawn_tokens(launched: _Launched, result: torch.Tensor, vocab_size: int) -> list[SampledToken]:
    """What a finished step drew, the host's part included; raises `BadLogitsError` for rows without a usable logit."""
    tokens = [SampledToken(token) for token in result[: launched.draws].tolist()]
    for row, logprob in launched.logprobs.by_row().items():
        tokens[row] = SampledToken(tokens[row].token_id, logprob)
    host = launched.host
    if host.rows:
        for row, token in zip(host.rows, sample(host.logits, host.specs, masks=host.masks), strict=True):
            tokens[row] = token
    bad = [row for row, token in enumerate(tokens) if token.token_id < 0]
    if bad:
        raise BadLogitsError(bad, vocab_size)
    return tokens
