"""The leader's ModelRunner: hands each step to all ranks of its replica, computes its own share, samples."""

from collections import defaultdict
from collections.abc import Callable
from typing import TypeVar

import torch

from inference_core.errors import ModelFileError, RankLostError
from inference_core.execution.logits_runner import LogitsRunner
from inference_core.execution.torch_runner import sampled_rows
from inference_core.kv_cache.layout import KVLayout
from inference_core.lora.bank import AdapterBank
from inference_core.model_config import ModelConfig
from inference_core.parallel.communication.control import Followers
from inference_core.parallel.communication.device_wait import wait_for_device
from inference_core.parallel.communication.messages import (
    ClearSlot,
    Command,
    CopyBlocks,
    ForgetAdapter,
    InstallAdapter,
    OffloadBlocks,
    ReadAdapter,
    RestoreBlocks,
    RunStep,
    Stop,
    UseThreads,
)
from inference_core.parallel.communication.table_deltas import SentTables
from inference_core.parallel.leader.mesh_adapters import MeshAdapterBank
from inference_core.parallel.ranks.rank import Rank
from inference_core.protocol import ModelInfo
from inference_core.step_plan import ScheduledSequence

T = TypeVar("T")
# How long the others may take to say why, once a collective has failed.
_FAILURE_REPORT_SECONDS = 2.0


class ReplicaExecutor:
    """Executes orders on all ranks of a replica, this one included; shared by the runners of all models.

    Whatever fails after an order was given leaves ranks waiting for each other, so the first failure ends the mesh:
    it raises RankLostError, as does every order after it.
    """

    def __init__(self, rank: Rank, followers: Followers, step_seconds: float) -> None:
        """`step_seconds`: a device that takes longer for a step is taken for one that waits for a lost rank."""
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
            tables.forget()  # the others may not have been told
            raise
        assert logits is not None  # this rank is the leader
        return logits

    def copy_blocks(self, command: CopyBlocks) -> None:
        self._tables[command.model].forget()
        self._on_all_ranks(command, lambda: self._rank.runner.copy_blocks(command))

    def use_threads(self, threads: int) -> None:
        self._on_all_ranks(UseThreads(threads), lambda: self._rank.loader.use_threads(threads))

    def offload_blocks(self, command: OffloadBlocks) -> None:
        self._on_all_ranks(command, lambda: self._rank.runner.offload_blocks(command))

    def restore_blocks(self, command: RestoreBlocks) -> None:
        self._on_all_ranks(command, lambda: self._rank.runner.restore_blocks(command))

    def read_adapter(self, command: ReadAdapter) -> None:
        """Every rank reads its part. Raises ModelFileError, and leaves nothing of it anywhere, if one cannot."""
        if self._lost is not None:
            raise RankLostError(self._lost)
        self._rank.runner.read_adapter(command)
        try:
            self._followers.send(command)
            refusals = [answer for answer in self._followers.wait_adapter(self._step_seconds) if answer.error]
        except RankLostError as error:
            self._give_up(str(error))
            raise
        if refusals:
            self.forget_adapter(ForgetAdapter(command.model, command.number))
            raise ModelFileError("; ".join(f"rank {refusal.rank}: {refusal.error}" for refusal in refusals))

    def install_adapter(self, command: InstallAdapter) -> None:
        self._on_all_ranks(command, lambda: self._rank.runner.install_adapter(command))

    def clear_slot(self, command: ClearSlot) -> None:
        self._on_all_ranks(command, lambda: self._rank.runner.clear_slot(command))

    def forget_adapter(self, command: ForgetAdapter) -> None:
        self._on_all_ranks(command, lambda: self._rank.runner.forget_adapter(command))

    def stop(self) -> None:
        """Let all ranks end; a rank that has gone already is no error."""
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
        """A broken collective says only that a connection ended; the rank that broke it may have said more."""
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
    """One model of a mesh for `Core`. `config` is the whole model's; `layout` is that of the rank with the largest
    blocks, so that block ids mean the same on all of them. `slots`: those of adapters on this rank, None without
    any."""

    def __init__(
        self,
        info: ModelInfo,
        config: ModelConfig,
        layout: KVLayout,
        leader: ReplicaExecutor,
        *,
        most_drafts: int,
        slots: AdapterBank | None = None,
    ) -> None:
        self.info = info
        self.config = config
        self.layout = layout
        self._leader = leader
        self.most_drafts = most_drafts
        if slots is not None:
            self.adapters = MeshAdapterBank(info.name, config, slots, leader)

    def logits(self, sequences: list[ScheduledSequence], rows: list[int] | None = None) -> torch.Tensor:
        wanted = sampled_rows(sequences) if rows is None else rows
        # The others neither sample nor need to know how: prompts and answers so far stay here.
        bare = [
            ScheduledSequence(s.sequence_id, s.token_ids, s.start, s.block_table, None, adapter=s.adapter)
            for s in sequences
        ]
        # Whatever the ranks compute on, the host draws.
        return self._leader.run(RunStep(self.info.name, bare, wanted)).cpu()

    def copy_blocks(self, copies: list[tuple[int, int]]) -> None:
        self._leader.copy_blocks(CopyBlocks(self.info.name, copies))

    def offload_blocks(self, offloads: list[tuple[int, int]]) -> None:
        self._leader.offload_blocks(OffloadBlocks(self.info.name, offloads))

    def restore_blocks(self, restores: list[tuple[int, int]]) -> None:
        self._leader.restore_blocks(RestoreBlocks(self.info.name, restores))
