"""The seam between a mesh and what computes on a rank: one pipeline stage's share of a model."""

from abc import ABC, abstractmethod

import torch

from inference_core.lora.bank import AdapterBank
from inference_core.model_config import ModelConfig
from inference_core.step_plan import ScheduledSequence


class Stage(ABC):
    """One rank's layers, heads, inner columns and vocabulary rows, with its own KV arena.

    Contract: the methods are called in the same order with the same sequences on all ranks of the tensor-parallel
    group, and sum over it where needed: once for the embedding, twice in every layer (SPEC PX-01). `config` is the
    share's (`RankShare.config`); activations have its hidden size, `dtype` and `device`. Results are in the order of
    the device's work, which the host need not have waited for. `adapters`: the slots that sequences may name, each with
    this rank's part of an adapter; None if there are none.
    """

    config: ModelConfig
    dtype: torch.dtype
    device: torch.device
    adapters: AdapterBank | None = None

    @abstractmethod
    def compute(self, sequences: list[ScheduledSequence], hidden: torch.Tensor | None = None) -> torch.Tensor:
        """Activations [T, hidden] of all tokens, one sequence after another, after this stage's layers; writes the
        tokens' keys and values.

        `hidden` [T, hidden] comes from the stage before, and may be used again; None in the first stage, which embeds.
        """

    @abstractmethod
    def head(self, hidden: torch.Tensor) -> torch.Tensor:
        """Logits float32 [rows, own vocabulary rows] of `hidden` [rows, hidden]; last stage only."""

    @abstractmethod
    def copy_blocks(self, copies: list[tuple[int, int]]) -> None:
        """Copy whole KV blocks (from, to)."""

    @abstractmethod
    def offload_blocks(self, offloads: list[tuple[int, int]]) -> None:
        """Copy whole KV blocks to this rank's host slots (block, slot)."""

    @abstractmethod
    def restore_blocks(self, restores: list[tuple[int, int]]) -> None:
        """Copy this rank's host slots to whole KV blocks (slot, block)."""
