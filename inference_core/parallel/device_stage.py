"""A stage on a device: `device.device_decoder` over this rank's shard, with all-reduces over the ranks."""

import torch

from inference_core.device.batch import DeviceInputs, Graphs
from inference_core.device.block_tables import BlockTables, Padding, StepBuckets
from inference_core.device.device_decoder import DeviceDecoder
from inference_core.device.step_inputs import Capacity, StepInputs, StepShape, bytes_of
from inference_core.execution.block_memory import HostBlocks
from inference_core.kv_cache.layout import KVLayout
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
        """Activations [T, hidden] of all tokens, one sequence after another, after this stage's layers; writes the
        tokens' keys and values.

        `hidden` [T, hidden]: the previous stage's activations, which may be overwritten; None in the first stage,
        which embeds.
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
