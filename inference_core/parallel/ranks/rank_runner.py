"""Runs a step on one rank: its part of the pipeline, micro-batch by micro-batch."""

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
from inference_core.parallel.stages.device_stage import DeviceStage
from inference_core.parallel.topology.mesh import LEADER, Mesh
from inference_core.parallel.topology.micro_batches import bubble, micro_batch_count, micro_batches
from inference_core.parallel.topology.splits import RankShare
from inference_core.protocol import PipelineStats
from inference_core.step_plan import ScheduledSequence


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
        self.adapters = None if stage.adapters is None else RankAdapters(whole, share, stage.adapters)


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
        assert adapters is not None  # a leader without slots sends no adapter commands
        return adapters

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
