"""Runs StepPlans of one model on a device, each launched before the one before it is waited for."""

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import msgspec
import torch

from inference_core.device.batch import DeviceInputs
from inference_core.device.block_tables import BlockTables
from inference_core.device.buckets import DecodeBuckets
from inference_core.device.decoder import DeviceDecoder
from inference_core.device.graphs import Graphs
from inference_core.device.step_inputs import Capacity, StepInputs, StepShape, bytes_of
from inference_core.errors import BadLogitsError
from inference_core.grammar.masks import TokenMasks, begin_masks
from inference_core.kv_layout import KVLayout
from inference_core.protocol import ModelInfo
from inference_core.runner import OverlappingRunner
from inference_core.sampler import sample
from inference_core.step_plan import SampledToken, SampleSpec, ScheduledSequence, StepPlan, StepResult
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


class DeviceRunner(OverlappingRunner):
    """A decoder over `arena` uint8 [bytes] on its device, cut into slabs of `slab_bytes`.

    Inputs travel in one copy from pinned memory, drawn tokens in one copy back; a token that the next step needs never
    leaves the device. Steps in which every sequence computes one token are padded to a size of `buckets` and repeated
    as `graphs`. Penalties, biases, log-probabilities and grammars are the host's, which draws from a copy of those
    rows' logits.
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
        self._decoder = decoder
        self._arena = arena
        self._graphs = graphs
        self._buckets = buckets
        longest = -(-info.max_context // layout.block_size)
        self._tables = BlockTables(layout, slab_bytes, rows=capacity.sequences, row_blocks=longest)
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
        params = spec.params
        return (
            params.logprobs is None
            and not params.logit_bias
            and params.repetition_penalty == 1.0
            and params.presence_penalty == 0.0
            and params.frequency_penalty == 0.0
            and spec.position >= params.min_tokens
            and spec.matcher is None
        )

    def launch(self, plan: StepPlan) -> Callable[[], StepResult]:
        began = time.perf_counter()
        self._turn = (self._turn + 1) % _TURNS
        try:
            with torch.inference_mode():
                shape, sampled, host = self._launch(plan)
        except Exception:
            self._tables.forget()
            raise
        finished = self._note()
        draws = [s.sample is not None for s in plan.sequences]
        result = self._results[self._turn]

        def land() -> StepResult:
            finished()
            tokens = [SampledToken(token) for token in result[:sampled].tolist()]
            _draw_on_host(host, tokens, shape, self.config.vocab_size)
            drawn = iter(tokens)
            return StepResult([[next(drawn)] if draw else [] for draw in draws], time.perf_counter() - began)

        return land

    def rehearse(self) -> None:
        """The largest step of the capacity, with padding alone: takes all the memory that a step can take at once."""
        largest = self._inputs[0].fill_with_padding()
        self._device_inputs.memory.copy_(self._memory[0])
        with torch.inference_mode():
            self._compute(largest)

    def _launch(self, plan: StepPlan) -> tuple[StepShape, int, _HostDraw]:
        sequences = plan.sequences
        single = all(len(s.token_ids) == 1 and s.sample is not None for s in sequences)
        bucket = self._buckets.padded(len(sequences)) if single else None
        inputs, memory = self._inputs[self._turn], self._memory[self._turn]
        shape = inputs.fill(sequences, self._tables, self._rows_of_last, renamed=bool(plan.copies), pad_to=bucket)
        if plan.copies:
            self._copy_blocks(plan.copies)
        self._device_inputs.memory.copy_(memory, non_blocking=True)
        self._device_inputs.apply_table_updates(shape.table_updates, inputs.apart)
        self._drawn_before.copy_(self._drawn)
        if bucket is None:
            logits = self._compute(shape)
        else:
            # What a graph has captured is this shape without its counts: those are on the device.
            logits = self._graphs.run(bucket, lambda: self._compute(_captured(shape, self.info.max_context)))
        specs = [s.sample for s in sequences if s.sample is not None]
        self._results[self._turn][: len(specs)].copy_(self._drawn[: len(specs)], non_blocking=True)
        self._rows_of_last = _rows(sequences)
        return shape, len(specs), self._host_draw(specs, logits)

    def _compute(self, shape: StepShape) -> torch.Tensor:
        """The step whose inputs are on the device: its logits, and its draws in `_drawn`. Doing it again changes
        nothing, as capturing it needs."""
        batch = self._device_inputs.batch(shape)
        pending = batch.pending
        known = self._drawn_before.index_select(0, pending.clamp(min=0))
        tokens = torch.where(pending >= 0, known.clamp(min=0), batch.token_ids.long())
        logits = self._decoder.forward(tokens, batch).float()
        if shape.sampled:
            laws = (batch.temperature, batch.top_k, batch.top_p, batch.min_p, batch.seed, batch.position)
            torch.ops.aio.draw_tokens(self._drawn[: shape.sampled], logits, *laws)
        return logits

    def _host_draw(self, specs: list[SampleSpec], logits: torch.Tensor) -> _HostDraw:
        rows = [row for row, spec in enumerate(specs) if not self.draws_ahead(spec)]
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


def _captured(shape: StepShape, longest_context: int) -> StepShape:
    """The same for every step of its bucket: what differs between them is on the device, or bounded."""
    return replace(shape, longest_query=1, longest_context=longest_context, table_updates=0)


def _rows(sequences: list[ScheduledSequence]) -> dict[str, int]:
    """Which row of a step's draws is whose."""
    drawing = [s.sequence_id for s in sequences if s.sample is not None]
    return {sequence_id: row for row, sequence_id in enumerate(drawing)}


def _draw_on_host(host: _HostDraw, tokens: list[SampledToken], shape: StepShape, vocab_size: int) -> None:
    """Put in what the host draws; raises `BadLogitsError` for rows that nothing could be drawn from."""
    if host.rows:
        for row, token in zip(host.rows, sample(host.logits, host.specs, masks=host.masks), strict=True):
            tokens[row] = token
    bad = [row for row, token in enumerate(tokens) if token.token_id < 0]
    if bad:
        raise BadLogitsError(bad, vocab_size)
