"""The leader's ModelRunner: sends each step to all ranks of the mesh, computes its own shard, samples.

Of a mesh model's adapters every rank holds and installs its own part; the leader sends the commands.
"""

import itertools
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import torch

from inference_core.errors import ModelFileError, RankLostError
from inference_core.execution.logits_runner import LogitsRunner, sampled_rows
from inference_core.kv_cache.layout import KVLayout
from inference_core.lora.adapter import Adapter, AdapterBank
from inference_core.lora.adapter_file import read_adapter
from inference_core.model_config import ModelConfig
from inference_core.parallel.collectives import wait_for_device
from inference_core.parallel.control import Followers
from inference_core.parallel.messages import (
    AdapterRead,
    ClearSlot,
    Command,
    CopyBlocks,
    ForgetAdapter,
    InstallAdapter,
    ModelCommand,
    OffloadBlocks,
    ReadAdapter,
    RestoreBlocks,
    RunStep,
    SentTables,
    Stop,
    UseThreads,
)
from inference_core.parallel.rank import Rank
from inference_core.protocol import ModelInfo, PipelineStats
from inference_core.step_plan import ScheduledSequence


class MeshAdapterBank(AdapterBank):
    """Slots on every rank, all with the same adapters. `own`: the bank of the leader's rank."""

    def __init__(self, model: str, config: ModelConfig, own: AdapterBank, leader: "MeshExecutor") -> None:
        self.num_slots = own.num_slots
        self._model = model
        self._config = config
        self._own = own
        self._leader = leader
        self._numbers: dict[Adapter, int] = {}
        self._next = itertools.count()

    def read(self, folder: Path) -> Adapter:
        """Have every rank read the folder on its own machine and keep its part."""
        adapter, number = read_adapter(folder, self._config), next(self._next)
        self._leader.read_adapter(ReadAdapter(self._model, number, str(folder), adapter.digest))
        self._numbers[adapter] = number
        return adapter

    def install(self, slot: int, adapter: Adapter) -> None:
        self._leader.execute(InstallAdapter(self._model, slot, self._numbers[adapter]))

    def clear(self, slot: int) -> None:
        self._leader.execute(ClearSlot(self._model, slot))

    def forget(self, adapter: Adapter) -> None:
        self._leader.execute(ForgetAdapter(self._model, self._numbers.pop(adapter)))

    def bytes_of(self, adapter: Adapter) -> int:
        """Bytes over all ranks; parts that several ranks hold count once."""
        return self._own.bytes_of(adapter)


T = TypeVar("T")
# How long to wait for the other ranks' error reports after a collective has failed.
_FAILURE_REPORT_SECONDS = 2.0


class MeshExecutor:
    """Executes commands on all ranks, this one included; shared by the runners of all models.

    A failure after a command was sent leaves ranks waiting for each other, so the first failure ends the mesh: it
    raises RankLostError, and so does every later command.
    """

    def __init__(self, rank: Rank, followers: Followers, step_seconds: float) -> None:
        """`step_seconds`: a device that takes longer for a step counts as waiting for a lost rank."""
        self._rank = rank
        self._followers = followers
        self._step_seconds = step_seconds
        self._tables: defaultdict[str, SentTables] = defaultdict(SentTables)
        self._lost: str | None = None

    def run(self, step: RunStep) -> torch.Tensor:
        tables = self._tables[step.model]
        try:
            logits = self._on_all_ranks(tables.command(step), lambda: self._rank.runner.run(step))
        except BaseException:
            tables.forget()  # the other ranks may not have received the command
            raise
        assert logits is not None  # this rank is the leader
        return logits

    def execute(self, command: ModelCommand | UseThreads) -> None:
        """Execute a command without a result."""
        if isinstance(command, CopyBlocks):
            self._tables[command.model].forget()
        self._on_all_ranks(command, lambda: self._rank.execute(command))

    def read_adapter(self, command: ReadAdapter) -> None:
        """Have every rank read its part. If one cannot, drop it on all ranks and raise ModelFileError."""
        if self._lost is not None:
            raise RankLostError(self._lost)
        self._rank.execute(command)
        try:
            self._followers.send(command)
            refusals = [answer for answer in self._followers.wait(AdapterRead, self._step_seconds) if answer.error]
        except RankLostError as error:
            self._give_up(str(error))
            raise
        if refusals:
            self.execute(ForgetAdapter(command.model, command.number))
            raise ModelFileError("; ".join(f"rank {refusal.rank}: {refusal.error}" for refusal in refusals))

    def stop(self) -> None:
        """Tell all ranks to end; ranks that have ended already are ignored."""
        if self._lost is None:
            self._lost = "the mesh was stopped"
            try:
                self._followers.send(Stop())
            except RankLostError:
                return

    def _on_all_ranks(self, command: Command, here: Callable[[], T]) -> T:
        if self._lost is not None:
            raise RankLostError(self._lost)
        try:
            self._followers.send(command)
        except RankLostError as error:
            self._give_up(str(error))
            raise
        try:
            result = here()
            wait_for_device(self._rank.loader.device, self._followers.check, self._step_seconds)
            return result
        except Exception as error:
            why = self._failure_cause(error)
            self._give_up(why)
            raise RankLostError(why) from error

    def _failure_cause(self, error: Exception) -> str:
        """Return the failed rank's own report if any; a broken collective says only that a connection ended."""
        try:
            self._followers.check(patience=_FAILURE_REPORT_SECONDS)
        except RankLostError as lost:
            return str(lost)
        return f"the leader failed while the others waited for it: {type(error).__name__}: {error}"

    def _give_up(self, why: str) -> None:
        self._lost = why
        self._followers.close()
        self._rank.connections.abandon()


class MeshRunner(LogitsRunner):
    """One model of a mesh for `Core`. `config`: the whole model's. `layout`: of the rank with the largest blocks, so
    that block ids mean the same on all ranks. `slots`: this rank's adapter slots, None without adapters. `pipeline`:
    what this rank counts of its steps, None without stages."""

    def __init__(
        self,
        info: ModelInfo,
        config: ModelConfig,
        layout: KVLayout,
        leader: MeshExecutor,
        *,
        most_drafts: int,
        slots: AdapterBank | None = None,
        pipeline: PipelineStats | None = None,
    ) -> None:
        self.info = info
        self.config = config
        self.layout = layout
        self._leader = leader
        self.most_drafts = most_drafts
        self.pipeline = pipeline
        if slots is not None:
            self.adapters = MeshAdapterBank(info.name, config, slots, leader)

    def logits(self, sequences: list[ScheduledSequence], rows: list[int] | None = None) -> torch.Tensor:
        wanted = sampled_rows(sequences) if rows is None else rows
        # Only the leader samples: prompts, outputs and sampling parameters stay here.
        bare = [
            ScheduledSequence(s.sequence_id, s.token_ids, s.start, s.block_table, None, adapter=s.adapter)
            for s in sequences
        ]
        # The host samples, whatever device the ranks compute on.
        return self._leader.run(RunStep(self.info.name, bare, wanted)).cpu()

    def copy_blocks(self, copies: list[tuple[int, int]]) -> None:
        self._leader.execute(CopyBlocks(self.info.name, copies))

    def offload_blocks(self, offloads: list[tuple[int, int]]) -> None:
        self._leader.execute(OffloadBlocks(self.info.name, offloads))

    def restore_blocks(self, restores: list[tuple[int, int]]) -> None:
        self._leader.execute(RestoreBlocks(self.info.name, restores))
