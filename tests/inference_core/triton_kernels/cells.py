"""The grid of attention's tests, which docs/results/kernels.md prints: numbers x head ratios x phases."""

from dataclasses import dataclass

import torch

from inference_core.kv_cache.layout import KVDtype
from tests.inference_core.triton_kernels.paged_batch import Span


@dataclass(frozen=True, slots=True)
class Numbers:
    """Activations and cache of a cell, and how far from the float32 reference a result may lie.

    The bound is both absolute and relative. Interpreted products of bfloat16 are wrong, so a bfloat16 cache is read by
    float32 queries there.
    """

    activation: torch.dtype
    cache: KVDtype
    bound: float


@dataclass(frozen=True, slots=True)
class Phase:
    """`splits`: programs that share a context."""

    spans: list[Span]
    splits: int = 1


# Float16 rounds weights and results to 11 bits, 2^-11 of each.
NUMBERS = {
    "float32": Numbers(torch.float32, "float32", 2e-5),
    "float16": Numbers(torch.float16, "float16", 1e-3),
    "bfloat16 cache": Numbers(torch.float32, "bfloat16", 2e-5),
    "fp8 cache": Numbers(torch.float16, "fp8", 1e-3),
}
RATIOS = {"1:1": (2, 2), "3:1": (3, 1), "4:1": (8, 2), "8:1": (8, 1)}
PHASES = {
    "prefill": Phase([(37, 37), (16, 16), (1, 1), (70, 70)]),
    "chunk": Phase([(70, 20), (33, 17), (64, 32)]),
    "decode": Phase([(1, 1), (16, 1), (17, 1), (129, 1)]),
    "verify": Phase([(20, 5), (64, 5), (81, 3), (5, 5)]),
    "mixed": Phase([(40, 40), (90, 1), (33, 8), (1, 1)]),
    "decode, split": Phase([(1, 1), (530, 1)], splits=4),
    "verify, split": Phase([(5, 5), (530, 4)], splits=4),
}


def table() -> str:
    """The grid in Markdown: a line per numbers and phase, with the bound that its cells keep."""
    lines = ["| queries | cache | phase | head ratios | bound |", "| --- | --- | --- | --- | --- |"]
    for numbers in NUMBERS.values():
        queries = str(numbers.activation).removeprefix("torch.")
        lines += [
            f"| {queries} | {numbers.cache} | {phase} | {', '.join(RATIOS)} | {numbers.bound:g} |" for phase in PHASES
        ]
    return "\n".join(lines)
