"""Ranks of a tensor-parallel group as threads of one process that take turns, and models of many shapes for them.

One rank computes until it needs a sum, then the next one does. Nothing of a shard knows the difference; processes are
for the tests of running meshes.
"""

import threading
from collections.abc import Callable
from typing import TypeVar

import numpy as np
import torch
from msgspec.structs import replace

from benchmarks.core.random_checkpoint import RandomCheckpoint
from inference_core.loaders.decoder_tensors import Shape
from inference_core.loaders.packed_tensor import PackedTensor
from inference_core.model_config import AttentionFeatures, ModelConfig, RotaryEmbedding
from inference_core.parallel.collectives import TensorGroup
from inference_core.step_plan import ScheduledSequence
from tests.inference_core.parallel.meshes import share

T = TypeVar("T")
BASE = ModelConfig(
    architecture="llama", vocab_size=96, hidden_size=128, intermediate_size=256, num_layers=2, num_heads=8,
    num_kv_heads=4, head_dim=32, max_position=256, rms_eps=1e-5, rope=RotaryEmbedding(theta=1e4),
)  # fmt: skip
SHAPES = {
    "llama": BASE,
    "tied": replace(BASE, tie_embeddings=True),
    "qwen2": replace(BASE, architecture="qwen2", attention=AttentionFeatures(qkv_bias=True)),
    "qwen3": replace(BASE, architecture="qwen3", attention=AttentionFeatures(qk_norm=True)),
    "window": replace(BASE, architecture="mistral", attention=AttentionFeatures(sliding_window=7)),
    "one-kv-head": replace(BASE, num_kv_heads=1),
    "as-many-kv-heads": replace(BASE, num_kv_heads=8),
    "nine-heads": replace(BASE, num_heads=9, num_kv_heads=3, attention=AttentionFeatures(qkv_bias=True)),
}
PROMPT = [5, 90, 3, 41, 77, 2, 64, 18, 33, 9, 81, 50]


class Drawn(RandomCheckpoint):
    """With random norms and biases, too: ones and zeros would hide where they go."""

    def _tensor(self, name: str, shape: Shape) -> PackedTensor:
        if len(shape) == 2:
            return super()._tensor(name, shape)
        rng = np.random.default_rng(len(name) + shape[0])
        values = rng.normal(0, 0.3, shape) if name.endswith("bias") else rng.uniform(0.5, 1.5, shape)
        return PackedTensor("F32", shape, values.astype(np.float32))


def steps() -> list[list[ScheduledSequence]]:
    """A prompt in two chunks, together with another, then a decode of each."""
    return [
        [share("a", PROMPT[:7], 0, 0), share("b", PROMPT[::-1], 0, 4)],
        [share("a", PROMPT[7:], 7, 0), share("b", [11], 12, 4)],
        [share("a", [60], 12, 0), share("b", [12], 13, 4)],
    ]


def in_turns(ranks: int, compute: Callable[[int, TensorGroup], T]) -> list[T]:
    """`compute` of every rank, with the group that it is to sum over."""
    turns = _Turns(ranks)
    results: dict[int, T] = {}

    def take_turns(rank: int) -> None:
        with turns.condition:
            try:
                results[rank] = compute(rank, _TurnsGroup(turns, rank))
            except BaseException:
                turns.failed = True
                turns.condition.notify_all()
                raise

    threads = [threading.Thread(target=take_turns, args=[rank]) for rank in range(ranks)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return [results[rank] for rank in range(ranks)]


class _Turns:
    """Who computes holds the condition; a sum is there when all have given their part."""

    def __init__(self, ranks: int) -> None:
        self.ranks = ranks
        self.condition = threading.Condition()
        self.parts: list[torch.Tensor] = []
        self.sums: list[torch.Tensor] = []
        self.failed = False


class _TurnsGroup(TensorGroup):
    def __init__(self, turns: _Turns, rank: int) -> None:
        super().__init__(list(range(turns.ranks)), rank)
        self._turns = turns

    def all_reduce(self, part: torch.Tensor) -> torch.Tensor:
        turns, number = self._turns, self.calls["all_reduce"]
        self.calls["all_reduce"] += 1
        turns.parts.append(part.clone())
        if len(turns.parts) == turns.ranks:
            turns.sums.append(torch.stack(turns.parts).sum(0))
            turns.parts = []
            turns.condition.notify_all()
        assert turns.condition.wait_for(lambda: turns.failed or len(turns.sums) > number, timeout=60)
        assert not turns.failed, "another rank failed"
        return part.copy_(turns.sums[number])
