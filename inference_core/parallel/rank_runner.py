"""Runs a step on one rank: its part of the pipeline, micro-batch by micro-batch, with its part of every adapter.

Micro-batches let the stages of a pipeline compute at the same time. Adapters are split like the layers that they
change, and a rank reads its part from the folder itself. On a device its part of the layers is a `DeviceStage`:
`device.device_decoder` over this rank's shard, with all-reduces over the ranks.
"""

from bisect import bisect_left
from collections.abc import Mapping
from pathlib import Path

import torch

from inference_core.device.batch import DeviceInputs, Graphs
from inference_core.device.block_tables import BlockTables, Padding, StepBuckets
from inference_core.device.device_decoder import DeviceDecoder
from inference_core.device.step_inputs import Capacity, StepInputs, StepShape, bytes_of
from inference_core.errors import ModelFileError
from inference_core.execution.block_memory import HostBlocks
from inference_core.kv_cache.layout import KVLayout
from inference_core.loaders.packed_tensor import PackedTensor, cut, stack
from inference_core.lora.adapter import Adapter, AdapterBank, LowRank
from inference_core.lora.adapter_file import read_adapter
from inference_core.model_config import ModelConfig
from inference_core.parallel.collectives import PipelineLinks, TensorGroup
from inference_core.parallel.mesh import LEADER, Mesh, RankShare
from inference_core.parallel.messages import (
    ClearSlot,
    CopyBlocks,
    ForgetAdapter,
    InstallAdapter,
    ModelCommand,
    OffloadBlocks,
    ReadAdapter,
    RestoreBlocks,
    RunStep,
)
from inference_core.parallel.shards import head_runs, rows_of_heads
from inference_core.protocol import PipelineStats
from inference_core.step_plan import ScheduledSequence
from inference_core.triton_kernels import ops  # noqa: F401  it registers the custom ops


class DeviceStage:
    """One rank's layers, heads, inner columns and vocabulary rows, with its own KV arena.

    Contract: the methods are called in the same order with the same sequences on all ranks of the tensor-parallel
    group, and sum over it: once for the embedding, twice in every layer (SPEC PX-01). `config` is the shard's
    (`RankShare.config`); activations have its hidden size, `dtype` and `device`. Results are ordered on the device's
    stream; the host may not have waited for them. `adapters`: the slots that sequences may name, each with this rank's
    part of an adapter; None if there are none.

    `decoder` holds this rank's shard over its own arena, in blocks of `layout` (its own KV heads and layers).

    `tables` maps blocks to memory as on all ranks. The inputs of a step are copied to the device at once, from one of
    `staging_buffers` pinned buffers, so the host runs at most that many micro-batches ahead. A step of few tokens is
    padded to a size of `buckets` and replayed from `graphs`, including its all-reduces; without sizes every step is
    launched kernel by kernel. All ranks of a group choose alike, since they see the same sequences.
    """

    def __init__(
        self,
        decoder: DeviceDecoder,
        layout: KVLayout,
        tables: BlockTables,
        capacity: Capacity,
        *,
        graphs: Graphs,
        buckets: StepBuckets,
        staging_buffers: int,
    ) -> None:
        self.config = decoder.config
        self.dtype = decoder.dtype
        self.decoder = decoder
        self.adapters = decoder.adapters
        self._arena = decoder.caches[0].arena
        self.device = self._arena.device
        self._layout = layout
        self._tables = tables
        self._host = HostBlocks(self._arena, tables.byte_offsets, layout.block_bytes)
        self.graphs = graphs
        self._buckets = buckets
        self._staging = [_StagingBuffer(capacity, self.device) for _ in range(staging_buffers)]
        self._staging_index = 0
        device_tables = torch.zeros(tables.rows * tables.row_blocks, dtype=torch.int64, device=self.device)
        memory = torch.zeros(bytes_of(capacity), dtype=torch.uint8, device=self.device)
        self._inputs = DeviceInputs(capacity, memory, device_tables)
        largest = buckets.most_tokens
        # Graphs read the previous stage's activations at a fixed address.
        self._received = torch.zeros(largest, self.config.hidden_size, dtype=self.dtype, device=self.device)
        # Each would keep its own result.
        self._captured = torch.zeros_like(self._received)

    def compute(self, sequences: list[ScheduledSequence], hidden: torch.Tensor | None = None) -> torch.Tensor:
        """Activations [T, hidden] of all tokens in order, after this stage's layers; writes keys and values.

        `hidden` [T, hidden]: the previous stage's, may be overwritten; None in the first stage, which embeds.
        """
        count = sum(len(s.token_ids) for s in sequences)
        padding = self._buckets.padding(sequences)
        shape = self._send(sequences, padding)
        if padding is None:
            return self._forward(shape, hidden)
        if hidden is not None:
            self._received[:count].copy_(hidden)
        captured = shape.as_captured()
        result = self.graphs.run(captured, lambda: self._captured_step(captured, first=hidden is None))
        # The next step of this size reuses the memory, possibly while this result is still being sent.
        return result[:count].clone()

    def head(self, hidden: torch.Tensor) -> torch.Tensor:
        """Logits float32 [rows, own vocabulary rows] of `hidden` [rows, hidden]; last stage only."""
        return self.decoder.logits(hidden).float()

    def copy_blocks(self, copies: list[tuple[int, int]]) -> None:
        """Copy whole KV blocks (from, to)."""
        offsets = self._tables.byte_offsets([block for pair in copies for block in pair])
        pairs = torch.from_numpy(offsets.reshape(-1, 2)).to(self.device)
        torch.ops.aio.copy_blocks(self._arena, pairs, self._layout.block_bytes)
        # The sequences' block tables were changed in the middle.
        self._tables.forget()

    def offload_blocks(self, offloads: list[tuple[int, int]]) -> None:
        """Copy whole KV blocks to this rank's host slots (block, slot)."""
        self._host.offload(offloads)
        self._finish()

    def restore_blocks(self, restores: list[tuple[int, int]]) -> None:
        """Copy this rank's host slots to whole KV blocks (slot, block)."""
        self._host.restore(restores)
        self._finish()

    def _finish(self) -> None:
        """Wait for the device, since the leader measures how long its copies take."""
        if self.device.type == "cuda":
            torch.cuda.current_stream(self.device).synchronize()

    def _send(self, sequences: list[ScheduledSequence], padding: Padding | None) -> StepShape:
        """Copy a step's inputs to the device."""
        buffer = self._staging[self._staging_index]
        self._staging_index = (self._staging_index + 1) % len(self._staging)
        buffer.wait()
        shape = buffer.inputs.fill(sequences, self._tables, {}, renamed=False, pad_to=padding)
        self._inputs.memory.copy_(buffer.memory, non_blocking=True)
        self._inputs.apply_table_updates(shape.table_updates, buffer.inputs.apart)
        buffer.note()
        return shape

    def _forward(self, shape: StepShape, hidden: torch.Tensor | None) -> torch.Tensor:
        batch = self._inputs.batch(shape)
        embedded = self.decoder.embed(batch.token_ids.long()) if hidden is None else hidden
        return self.decoder.compute(embedded, batch)

    def _captured_step(self, captured: StepShape, *, first: bool) -> torch.Tensor:
        """The work of every step of this shape. Idempotent, as graph capture requires."""
        result = self._forward(captured, None if first else self._received[: captured.tokens].clone())
        return self._captured[: len(result)].copy_(result)


class _StagingBuffer:
    """Pinned memory that a step's inputs are copied from, and an event for the end of the copy."""

    def __init__(self, capacity: Capacity, device: torch.device) -> None:
        self._event = torch.cuda.Event() if device.type == "cuda" else None
        self.memory = torch.zeros(bytes_of(capacity), dtype=torch.uint8, pin_memory=self._event is not None)
        self.inputs = StepInputs(capacity, self.memory.numpy())

    def wait(self) -> None:
        if self._event is not None:
            self._event.synchronize()

    def note(self) -> None:
        if self._event is not None:
            self._event.record()


def micro_batch_count(tokens: int, stages: int, *, limit: int, min_tokens: int) -> int:
    """How many micro-batches a step of `tokens` is split into; 1 for a single stage.

    A micro-batch of few tokens takes as long as one of many: it reads all weights, so each has at least `min_tokens`.
    """
    return 1 if stages == 1 else max(1, min(limit, tokens // min_tokens))


def bubble(stages: int, micro_batches: int) -> float:
    """The idle share of the stages' time: (P - 1) / (M + P - 1) (Huang et al. 2019, SPEC PX-03)."""
    return (stages - 1) / (micro_batches + stages - 1)


def micro_batches(sequences: list[ScheduledSequence], count: int) -> list[list[ScheduledSequence]]:
    """Split the step's tokens into at most `count` consecutive micro-batches of nearly equal size, none empty.

    A sequence's chunk may be split: each stage computes the micro-batches in order, so the first part's keys and
    values are written before the second attends to them.
    """
    tokens = sum(len(s.token_ids) for s in sequences)
    count = min(count, tokens)
    small, larger = divmod(tokens, count)
    sizes = iter([small + 1] * larger + [small] * (count - larger))
    pieces: list[list[ScheduledSequence]] = [[]]
    room = next(sizes)
    for sequence in sequences:
        taken = 0
        while taken < len(sequence.token_ids):
            if room == 0:
                pieces.append([])
                room = next(sizes)
            part = sequence.token_ids[taken : taken + room]
            start = sequence.start + taken
            pieces[-1].append(
                ScheduledSequence(
                    sequence.sequence_id, part, start, sequence.block_table, None, adapter=sequence.adapter
                )
            )
            taken += len(part)
            room -= len(part)
    return pieces


class RankAdapters:
    """The adapters of one model, by the leader's numbers; `bank`: the slots of this rank's stage."""

    def __init__(self, whole: ModelConfig, share: RankShare, bank: AdapterBank) -> None:
        """`whole`: the undivided model's settings; `share`: the part of it that this rank holds."""
        self.bank = bank
        self._whole = whole
        self._share = share
        self._parts: dict[int, Adapter] = {}

    def read(self, number: int, folder: Path, digest: bytes) -> None:
        """Keep this rank's part of the adapter in `folder` as `number`.

        Raises ModelFileError for a bad folder, and for one whose content differs from the leader's `digest`.
        """
        adapter = read_adapter(folder, self._whole)
        if adapter.digest != digest:
            raise ModelFileError(f"{folder} on this machine differs from the leader's; copy the leader's folder here")
        part = shard_adapter(adapter, self._share, self._whole)
        self.bank.hold(part)
        self._parts[number] = part

    def install(self, slot: int, number: int) -> None:
        """Use adapter `number` for sequences that name `slot`."""
        self.bank.install(slot, self._parts[number])

    def forget(self, number: int) -> None:
        """Drop adapter `number`, if it was read here."""
        part = self._parts.pop(number, None)
        if part is not None:
            self.bank.forget(part)


def shard_adapter(adapter: Adapter, share: RankShare, config: ModelConfig) -> Adapter:
    """Return the part of `adapter` (of a `config` model) that belongs to `share`: an adapter of `share.config(config)`.

    B is split if the layer is split by outputs, A if it is split by inputs. Each rank adds its part of the low-rank
    product to its part of the layer's output, so the layer's own all-reduce sums both.
    """
    layers = adapter.layers[share.layers.start : share.layers.stop]
    parts = [{name: _part(name, low, share, config.head_dim) for name, low in layer.items()} for layer in layers]
    return Adapter(adapter.path, adapter.digest, parts)


def _part(name: str, low: LowRank, share: RankShare, head_dim: int) -> LowRank:
    match name:
        case "q_proj":
            return LowRank(low.down, cut(low.up, rows_of_heads(share.heads.query, head_dim)), low.scale)
        case "k_proj" | "v_proj":
            runs = head_runs(share.heads.kv_heads)
            return LowRank(low.down, stack([cut(low.up, rows_of_heads(run, head_dim)) for run in runs]), low.scale)
        case "gate_proj" | "up_proj":
            return LowRank(low.down, cut(low.up, share.inner), low.scale)
        case "o_proj":
            return LowRank(_columns(low.down, rows_of_heads(share.heads.query, head_dim)), low.up, low.scale)
        case _:
            return LowRank(_columns(low.down, share.inner), low.up, low.scale)


def _columns(down: PackedTensor, columns: range) -> PackedTensor:
    return cut(down, range(down.shape[0]), columns)


class RankModel:
    """One model's stage on this rank. `vocabulary_widths`: vocabulary rows of each shard. `whole`: undivided. `stages`:
    how many there are; `pipeline` counts the model's steps if there are several."""

    def __init__(
        self, stage: DeviceStage, share: RankShare, vocabulary_widths: list[int], whole: ModelConfig, stages: int
    ) -> None:
        self.stage = stage
        self.share = share
        self.vocabulary_widths = vocabulary_widths
        self.pipeline = PipelineStats(stages=stages) if stages > 1 else None
        self._adapters = None if stage.adapters is None else RankAdapters(whole, share, stage.adapters)

    @property
    def adapters(self) -> RankAdapters:
        """Of a model with slots: a leader without them sends no adapter commands."""
        assert self._adapters is not None
        return self._adapters


class RankRunner:
    """Executes commands on one rank; all ranks execute the same commands in the same order.

    A step is cut into at most `max_micro_batches` of at least `min_micro_batch_tokens`. Activations go from stage to
    stage. The last stage applies its head once to all rows and gathers the vocabulary on its first rank, which sends
    the logits to the leader.
    """

    def __init__(
        self,
        rank: int,
        mesh: Mesh,
        models: Mapping[str, RankModel],
        group: TensorGroup,
        links: PipelineLinks,
        *,
        max_micro_batches: int,
        min_micro_batch_tokens: int,
    ) -> None:
        self._rank = rank
        self._mesh = mesh
        self.models = models
        self._group = group
        self._links = links
        self._max_micro_batches = max_micro_batches
        self._min_tokens = min_micro_batch_tokens

    def execute(self, command: ModelCommand) -> None:
        """Do it to this rank's part of the model. Raises ModelFileError for an adapter that cannot be read."""
        model = self.models[command.model]
        match command:
            case CopyBlocks():
                model.stage.copy_blocks(command.copies)
            case OffloadBlocks():
                model.stage.offload_blocks(command.offloads)
            case RestoreBlocks():
                model.stage.restore_blocks(command.restores)
            case ReadAdapter():
                model.adapters.read(command.number, Path(command.folder), command.digest)
            case InstallAdapter():
                model.adapters.install(command.slot, command.number)
            case ClearSlot():
                model.adapters.bank.clear(command.slot)
            case ForgetAdapter():
                model.adapters.forget(command.number)

    def run(self, step: RunStep) -> torch.Tensor | None:
        """Compute the step. Returns the logits float32 [rows, vocabulary] on the leader, None on other ranks."""
        model = self.models[step.model]
        pieces = self._micro_batches(model.pipeline, step.sequences)
        with torch.inference_mode():
            kept: list[torch.Tensor] = []
            passed = 0
            for piece in pieces:
                tokens = sum(len(s.token_ids) for s in piece)
                hidden = model.stage.compute(piece, self._received(model, tokens))
                if model.share.last:
                    kept.append(_rows(hidden, _within(step.rows, passed, tokens)))
                else:
                    self._links.send(hidden)
                passed += tokens
            logits = self._logits(model, kept, len(step.rows))
            self._links.finish()
        return logits

    def _micro_batches(
        self, pipeline: PipelineStats | None, sequences: list[ScheduledSequence]
    ) -> list[list[ScheduledSequence]]:
        """Cut the step for the stages, and count it."""
        tokens = sum(len(s.token_ids) for s in sequences)
        count = micro_batch_count(
            tokens, self._mesh.pipeline, limit=self._max_micro_batches, min_tokens=self._min_tokens
        )
        pieces = micro_batches(sequences, count)
        if pipeline is not None:
            pipeline.steps += 1
            pipeline.micro_batches += len(pieces)
            pipeline.idle_sum += bubble(pipeline.stages, len(pieces))
        return pieces

    def _received(self, model: RankModel, tokens: int) -> torch.Tensor | None:
        """Receive the previous stage's activations of `tokens` tokens; None in the first stage."""
        stage = model.stage
        if model.share.first:
            return None
        return self._links.receive(
            torch.empty(tokens, stage.config.hidden_size, dtype=stage.dtype, device=stage.device)
        )

    def _logits(self, model: RankModel, kept: list[torch.Tensor], rows: int) -> torch.Tensor | None:
        vocabulary = sum(model.vocabulary_widths)
        is_leader = self._rank == LEADER
        if not rows:
            return torch.empty(0, vocabulary) if is_leader else None
        gathered = None
        if model.share.last:
            gathered = self._group.gather_columns(model.stage.head(torch.cat(kept)), model.vocabulary_widths)
            if gathered is not None and not is_leader:
                self._links.send(gathered, to=LEADER)
        elif is_leader:
            source = self._mesh.rank(self._mesh.pipeline - 1, 0)
            gathered = self._links.receive(
                torch.empty(rows, vocabulary, dtype=torch.float32, device=model.stage.device), source
            )
        return gathered if is_leader else None


def _rows(hidden: torch.Tensor, rows: list[int]) -> torch.Tensor:
    """Select `rows` of `hidden`, without waiting for the device."""
    index = torch.tensor(rows, dtype=torch.int64, pin_memory=hidden.is_cuda)
    return hidden.index_select(0, index.to(hidden.device, non_blocking=True))


def _within(rows: list[int], begin: int, count: int) -> list[int]:
    """The ascending `rows` within [begin, begin + count), relative to `begin`."""
    low, high = bisect_left(rows, begin), bisect_left(rows, begin + count)
    return [row - begin for row in rows[low:high]]
