"""Runs one model's StepPlans on a device; each step is launched before the previous one has finished."""

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch

from inference_core.device.adapter_bank import DeviceAdapterBank
from inference_core.device.batch import DeviceInputs, Graphs, NoGraphs
from inference_core.device.block_tables import BlockTables, Padding, StepBuckets
from inference_core.device.device_decoder import DeviceDecoder
from inference_core.device.sampling import (
    EditedRows,
    LogProbabilities,
    PromptScores,
    StepDraws,
    fits_tables,
    scored_rows,
)
from inference_core.device.step_inputs import Capacity, StepInputs, StepShape, bytes_of
from inference_core.engine.queues import MAX_SCORED_ROWS
from inference_core.execution.block_memory import DeviceBlockBytes, DeviceSwaps, HostBlocks
from inference_core.execution.runner import DraftingRunner, OverlappingRunner
from inference_core.kv_cache.host_cache import SwapTimes
from inference_core.kv_cache.layout import KVLayout
from inference_core.protocol import ModelInfo
from inference_core.sampling.sampler import drafts_from
from inference_core.step_plan import DraftLaw, SampledToken, SampleSpec, StepPlan, StepResult
from inference_core.triton_kernels import ops
from inference_core.triton_kernels.tiles import PROMPT_GRAIN

# Input and result buffers in use at the same time: of the running step and of the next one.
_STAGING_BUFFERS = 2


@dataclass(slots=True, frozen=True)
class _Launched:
    """A running step: its draws, its log-probabilities, and the times of its copies."""

    draws: StepDraws
    logprobs: LogProbabilities
    scores: PromptScores | None
    swapped: Callable[[], SwapTimes | None]


class DeviceRunner(OverlappingRunner, DraftingRunner):
    """A decoder over `arena` uint8 [bytes] on its device, cut into slabs of `slab_bytes`.

    Inputs are copied at once from pinned memory, and drawn tokens at once back; the next step reads them on the device.
    Steps of few tokens are padded to a size of `buckets` and replayed from `graphs`; steps with edited logits or with
    adapters have graphs of their own. Drafts are verified by drawing from all of their rows. For some sequences (see
    `StepDraws`) the host draws, from a copy of their logits.
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
        buckets: StepBuckets,
        capacity: Capacity,
    ) -> None:
        self.info = info
        self.config = decoder.config
        self.layout = layout
        self.device = arena.device
        self.adapters: DeviceAdapterBank | None = decoder.adapters
        self.most_drafts = max(0, capacity.draws - capacity.sequences)
        self._decoder = decoder
        self._arena = arena
        self._graphs = graphs
        self._buckets = buckets
        longest = -(-info.max_context // layout.block_size)
        self._tables = BlockTables(layout, slab_bytes, rows=capacity.sequences, row_blocks=longest)
        self._swaps = DeviceSwaps(HostBlocks(arena, self._tables.byte_offsets, layout.block_bytes), self.device)
        self.blocks = DeviceBlockBytes(arena, self._tables.byte_offsets, layout.block_bytes)
        self._edits = EditedRows(capacity.sequences, decoder.config.vocab_size, self.device)
        pinned = self.device.type == "cuda"
        self._memory = [
            torch.zeros(bytes_of(capacity), dtype=torch.uint8, pin_memory=pinned) for _ in range(_STAGING_BUFFERS)
        ]
        self._inputs = [StepInputs(capacity, memory.numpy()) for memory in self._memory]
        self._results = [
            torch.zeros(capacity.draws, dtype=torch.int64, pin_memory=pinned) for _ in range(_STAGING_BUFFERS)
        ]
        tables = torch.zeros(capacity.sequences * longest, dtype=torch.int64, device=self.device)
        self._device_inputs = DeviceInputs(capacity, torch.zeros_like(self._memory[0], device=self.device), tables)
        # The tokens that this step draws and that the previous one drew, by row; -1 if nothing could be drawn.
        self._drawn = torch.zeros(capacity.draws, dtype=torch.int64, device=self.device)
        self._drawn_before = torch.zeros_like(self._drawn)
        # Graphs would each keep logits as wide as the vocabulary; all write theirs here instead.
        self._captured_logits = (
            None
            if isinstance(graphs, NoGraphs)
            else torch.empty(capacity.draws, decoder.config.vocab_size, dtype=decoder.logits_dtype, device=self.device)
        )
        self._rows_of_last: dict[str, int] = {}
        self._staging_index = 0

    def draws_ahead(self, spec: SampleSpec) -> bool:
        return fits_tables(spec)

    def launch(self, plan: StepPlan) -> Callable[[], StepResult]:
        began = time.perf_counter()
        try:
            with torch.inference_mode():
                launched = self._launch(plan)
        except Exception:
            self._forget()
            raise
        finished = self._note()
        result = self._results[self._staging_index]

        def land() -> StepResult:
            try:
                finished()
                tokens = self._tokens(launched, result)
                scored = [] if launched.scores is None else launched.scores.by_sequence()
            except Exception:
                # Later steps have used its draws.
                self._forget()
                raise
            return StepResult(tokens, time.perf_counter() - began, scored, launched.swapped())

        return land

    def draft(self, plan: StepPlan) -> list[tuple[int, DraftLaw]]:
        try:
            with torch.inference_mode():
                logits, _ = self._compute_plan(plan, StepDraws(plan.sequences), None)
                return drafts_from(logits[: len(plan.sequences)].float().cpu().numpy(), plan.sequences)
        except Exception:
            self._forget()
            raise

    def profile_step(self) -> None:
        """Run the largest step of the capacity, all padding: its peak memory is the most that any step takes. Also
        builds the plans of long prompts, on the thread that will run them."""
        shape = self._inputs[0].fill_with_padding()
        self._run_padding(shape)
        longest = min(shape.tokens, self.info.max_context)
        if self._build_prompt_plans(longest):
            # The same rows without a context, and behind contexts of one and of several parts.
            most = self.info.max_context
            behind = [earlier for earlier in (0, PROMPT_GRAIN, 5 * PROMPT_GRAIN) if earlier < most]
            spans = [(min(longest, most - earlier), earlier) for earlier in behind]
            prompts = tuple(n for queries, earlier in spans for n in (0, 0, queries, queries + earlier))
            self._run_padding(replace(shape, prompts=prompts))

    def _build_prompt_plans(self, longest: int) -> bool:
        config = self.config
        whole = any(config.window_of(layer) is None for layer in range(config.num_layers))
        if longest < PROMPT_GRAIN or config.attention.softcap or not whole:
            return False
        width = (config.num_heads + 2 * config.num_kv_heads) * config.head_dim
        qkv = torch.empty(0, width, dtype=self._decoder.dtype, device=self.device)
        with torch.inference_mode():
            return ops.build_prompt_plans(qkv, config.num_heads, config.num_kv_heads, config.head_dim, longest)

    def profile_captured_step(self) -> None:
        """As `profile_step`, of the steps that are replayed from graphs, which share the memory that one takes."""
        largest, tokens = self._inputs[0].fill_with_padding(), self._buckets.most_tokens
        if tokens:
            rows = min(tokens, largest.sampled)
            sequences = min(rows, largest.sequences)
            self._run_padding(replace(largest, tokens=tokens, sequences=sequences, sampled=rows, longest_query=tokens))

    def _run_padding(self, shape: StepShape) -> None:
        self._device_inputs.memory.copy_(self._memory[0])
        scored = torch.zeros(MAX_SCORED_ROWS, dtype=torch.int32, device=self.device)
        with torch.inference_mode():
            self._compute(shape, scored)

    def _launch(self, plan: StepPlan) -> _Launched:
        draws = StepDraws(plan.sequences)
        scored = scored_rows(plan.sequences, self.device)
        logits, swapped = self._compute_plan(plan, draws, scored)
        self._results[self._staging_index][: len(draws)].copy_(self._drawn[: len(draws)], non_blocking=True)
        draws.bring(logits)
        logprobs = LogProbabilities(logits, self._drawn, draws.logprobs)
        scores = None if scored is None else PromptScores(plan.sequences, logits[len(logits) - len(scored) :])
        return _Launched(draws, logprobs, scores, swapped)

    def _compute_plan(
        self, plan: StepPlan, draws: StepDraws, scored: torch.Tensor | None
    ) -> tuple[torch.Tensor, Callable[[], SwapTimes | None]]:
        """As `_compute`, after the plan's copies and table updates. Also returns a function for the copies' times."""
        sequences = plan.sequences
        padding: Padding | None = self._buckets.padding(sequences) if scored is None else None
        self._staging_index = (self._staging_index + 1) % _STAGING_BUFFERS
        inputs, memory = self._inputs[self._staging_index], self._memory[self._staging_index]
        edits = self._edits.place(draws.owners, draws.specs, self._rows_of_last)
        shape = inputs.fill(
            sequences,
            self._tables,
            self._rows_of_last,
            renamed=bool(plan.copies),
            pad_to=padding,
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
        self._rows_of_last = draws.last_rows
        if padding is None:
            return self._compute(shape, scored), swapped
        # A graph is captured for the shape without its counts, which are on the device.
        captured = shape.as_captured()
        return self._graphs.run(captured, lambda: self._compute_captured(captured)), swapped

    def _compute(self, shape: StepShape, scored: torch.Tensor | None = None) -> torch.Tensor:
        """Run the step whose inputs are on the device. Returns its unedited logits, those of the tokens `scored`
        int32 [E] last, and writes its draws to `_drawn`. Idempotent, as graph capture requires."""
        batch = self._device_inputs.batch(shape)
        if scored is not None:
            batch = replace(batch, sample_rows=torch.cat([batch.sample_rows, scored]))
        pending = batch.pending
        drawn = self._drawn_before.index_select(0, pending.clamp(min=0))
        tokens = torch.where(pending >= 0, drawn.clamp(min=0), batch.token_ids.long())
        raw = self._decoder.forward(tokens, batch)
        if shape.sampled:
            self._draw(raw, shape)
        return raw

    def _draw(self, raw: torch.Tensor, shape: StepShape) -> None:
        """Draw a token from each of the first rows of `raw` into `_drawn`."""
        draws, logits = self._device_inputs.draws(shape), raw[: shape.sampled].float()
        if shape.edited:
            logits = logits.clone() if logits.data_ptr() == raw.data_ptr() else logits
            tables = self._edits.tables
            edits = (draws.edit_rows, tables.token_ids, tables.bias, tables.num_biased, tables.uses)
            torch.ops.aio.edit_logits(logits, *edits, *draws.penalties)
        torch.ops.aio.draw_tokens(self._drawn[: shape.sampled], logits, *draws.params)

    def _compute_captured(self, shape: StepShape) -> torch.Tensor:
        """As `_compute`; the logits are valid until the next captured step."""
        logits = self._compute(shape)
        if self._captured_logits is None:
            return logits
        return self._captured_logits[: len(logits)].copy_(logits)

    def _forget(self) -> None:
        """Forget what the device has of tables and counts, so that all of it is copied again."""
        self._tables.forget()
        self._edits.forget()

    def _copy_blocks(self, copies: list[tuple[int, int]]) -> None:
        offsets = self._tables.byte_offsets([block for pair in copies for block in pair])
        pairs = torch.from_numpy(offsets.reshape(-1, 2)).to(self.device)
        torch.ops.aio.copy_blocks(self._arena, pairs, self.layout.block_bytes)

    def _note(self) -> Callable[[], Any]:
        """Return a function that waits for everything launched so far."""
        if self.device.type != "cuda":
            return lambda: None
        event = torch.cuda.Event()
        event.record()
        return lambda: event.synchronize()

    def _tokens(self, launched: _Launched, result: torch.Tensor) -> list[list[SampledToken]]:
        """The tokens of a finished step. Raises `BadLogitsError` for sequences without a usable logit."""
        draws = launched.draws
        drawn = [SampledToken(token) for token in result[: len(draws)].tolist()]
        for row, logprob in launched.logprobs.by_row().items():
            drawn[row] = SampledToken(drawn[row].token_id, logprob)
        return draws.results(drawn, self.config.vocab_size)
