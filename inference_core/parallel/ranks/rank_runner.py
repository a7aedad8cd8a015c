"""What every rank does with a step: its share of the pipeline, micro-batch by micro-batch."""

from bisect import bisect_left
from collections.abc import Mapping
from pathlib import Path

import torch

from inference_core.model_config import ModelConfig
from inference_core.parallel.communication.collectives import PipelineLinks, TensorGroup
from inference_core.parallel.communication.messages import (
    ClearSlot,
    CopyBlocks,
    ForgetAdapter,
    InstallAdapter,
    OffloadBlocks,
    ReadAdapter,
    RestoreBlocks,
    RunStep,
)
from inference_core.parallel.ranks.rank_adapters import RankAdapters
from inference_core.parallel.stages.stage import Stage
from inference_core.parallel.topology.mesh import Mesh
from inference_core.parallel.topology.micro_batches import PipelineReport, micro_batch_count, micro_batches
from inference_core.parallel.topology.splits import RankShare
from inference_core.step_plan import ScheduledSequence


class RankModel:
    """One model's stage on this rank, and how wide each shard's part of its vocabulary is. `whole`: undivided."""

    def __init__(self, stage: Stage, share: RankShare, vocabulary_widths: list[int], whole: ModelConfig) -> None:
        self.stage = stage
        self.share = share
        self.vocabulary_widths = vocabulary_widths
        self.adapters = None if stage.adapters is None else RankAdapters(whole, share, stage.adapters)


class RankRunner:
    """Executes orders on one rank; all ranks of a replica execute the same ones in the same order.

    A step is cut into micro-batches of at least `min_micro_batch_tokens`, at most `max_micro_batches`. Activations
    go from stage to stage; the last stage applies its head once to all rows, gathers the vocabulary on its first rank,
    which sends the logits to the leader.
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
        self.pipeline = PipelineReport(stages=mesh.pipeline)

    def copy_blocks(self, command: CopyBlocks) -> None:
        self.models[command.model].stage.copy_blocks(command.copies)

    def offload_blocks(self, command: OffloadBlocks) -> None:
        self.models[command.model].stage.offload_blocks(command.offloads)

    def restore_blocks(self, command: RestoreBlocks) -> None:
        self.models[command.model].stage.restore_blocks(command.restores)

    def read_adapter(self, command: ReadAdapter) -> None:
        """Raises ModelFileError."""
        self._adapters(command.model).read(command.number, Path(command.folder), command.digest)

    def install_adapter(self, command: InstallAdapter) -> None:
        self._adapters(command.model).install(command.slot, command.number)

    def clear_slot(self, command: ClearSlot) -> None:
        self._adapters(command.model).bank.clear(command.slot)

    def forget_adapter(self, command: ForgetAdapter) -> None:
        self._adapters(command.model).forget(command.number)

    def _adapters(self, model: str) -> RankAdapters:
        adapters = self.models[model].adapters
        assert adapters is not None  # a leader without slots gives no orders about adapters
        return adapters

    def run(self, step: RunStep) -> torch.Tensor | None:
        """Compute the step; on the leader the logits float32 [rows, vocabulary], None on all other ranks."""
        model = self.models[step.model]
        pieces = self._micro_batches(step.sequences)
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

    def _micro_batches(self, sequences: list[ScheduledSequence]) -> list[list[ScheduledSequence]]:
        tokens = sum(len(s.token_ids) for s in sequences)
        count = micro_batch_count(
            tokens, self._mesh.pipeline, limit=self._max_micro_batches, min_tokens=self._min_tokens
        )
        pieces = micro_batches(sequences, count)
        self.pipeline.record(len(pieces))
        return pieces

    def _received(self, model: RankModel, tokens: int) -> torch.Tensor | None:
        """What the stage before has computed of `tokens` tokens; None in the first stage."""
        stage = model.stage
        if model.share.first:
            return None
        return self._links.receive(
            torch.empty(tokens, stage.config.hidden_size, dtype=stage.dtype, device=stage.device)
        )

    def _logits(self, model: RankModel, kept: list[torch.Tensor], rows: int) -> torch.Tensor | None:
        vocabulary = sum(model.vocabulary_widths)
        leader = self._mesh.leader(self._rank)
        is_leader = self._rank == leader
        if not rows:
            return torch.empty(0, vocabulary) if is_leader else None
        gathered = None
        if model.share.last:
            gathered = self._group.gather_columns(model.stage.head(torch.cat(kept)), model.vocabulary_widths)
            if gathered is not None and not is_leader:
                self._links.send(gathered, to=leader)
        elif is_leader:
            at = self._mesh.position(self._rank)
            source = self._mesh.rank(at.replica, self._mesh.pipeline - 1, 0)
            gathered = self._links.receive(
                torch.empty(rows, vocabulary, dtype=torch.float32, device=model.stage.device), source
            )
        return gathered if is_leader else None


def _rows(hidden: torch.Tensor, rows: list[int]) -> torch.Tensor:
    """Those rows, asked for without waiting for the device."""
    index = torch.tensor(rows, dtype=torch.int64, pin_memory=hidden.is_cuda)
    return hidden.index_select(0, index.to(hidden.device, non_blocking=True))


def _within(rows: list[int], begin: int, count: int) -> list[int]:
    """Of ascending `rows`, those in [begin, begin + count), counted from `begin`."""
    low, high = bisect_left(rows, begin), bisect_left(rows, begin + count)
    return [row - begin for row in rows[low:high]]
