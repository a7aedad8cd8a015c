"""The seam between a mesh and what computes on a rank: one pipeline stage's share of a model."""

from abc import ABC, abstractmethod

import torch

from inference_core.model_config import ModelConfig
from inference_core.step_plan import ScheduledSequence


class Stage(ABC):
    """One rank's layers, heads, inner columns and vocabulary rows, with its own KV arena.

    Contract: the methods are called in the same order with the same sequences on all ranks of the tensor-parallel
    group, and sum over it where needed: once for the embedding, twice in every layer (SPEC PX-01). `config` is the
    share's (`RankShare.config`); activations have its hidden size, `dtype` and `device`.
    """

    config: ModelConfig
    dtype: torch.dtype
    device: torch.device

    @abstractmethod
    def embed(self, sequences: list[ScheduledSequence]) -> torch.Tensor:
        """Embeddings [T, hidden] of all tokens, one sequence after another; first stage only."""

    @abstractmethod
    def compute(self, hidden: torch.Tensor, sequences: list[ScheduledSequence]) -> torch.Tensor:
        """`hidden` [T, hidden] after this stage's layers; writes the tokens' keys and values. May reuse `hidden`."""

    @abstractmethod
    def head(self, hidden: torch.Tensor) -> torch.Tensor:
        """Logits float32 [rows, own vocabulary rows] of `hidden` [rows, hidden]; last stage only."""

    @abstractmethod
    def copy_blocks(self, copies: list[tuple[int, int]]) -> None:
        """Copy whole KV blocks (from, to)."""
