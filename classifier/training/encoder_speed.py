"""How long a checkpoint takes as an encoder on this machine: one prompt at a time, and many together."""

import time
from collections.abc import Sequence
from pathlib import Path

import msgspec
import numpy as np
import torch

from classifier.checkpoint import model_type
from classifier.pooled_transformer import PooledTransformer


class EncoderSpeed(msgspec.Struct, frozen=True, kw_only=True):
    """`milliseconds`: (tokens, median, 99th percentile, median CPU time) of one prompt, tokenising left out.

    `per_second`: (tokens, prompts a second of CPU time) in batches. CPU time is of all threads together. `packs`:
    sequences of different lengths share a batch.
    """

    architecture: str
    parameters: int
    hidden: int
    packs: bool
    threads: int
    milliseconds: list[tuple[int, float, float, float]]
    per_second: list[tuple[int, float]]


def encoder_speed(
    checkpoint: Path,
    *,
    tokens: Sequence[int] = (64, 128),
    repeats: int = 100,
    batch: int = 256,
    threads: int = 1,
    seed: int = 0,
) -> EncoderSpeed:
    """Measure the checkpoint in `checkpoint` with prompts of exactly so many random tokens; five runs warm it up.

    Raises `CheckpointError` for a folder that is none.
    """
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        return _measured(
            PooledTransformer.load(checkpoint), model_type(checkpoint), tokens, repeats, batch, threads, seed
        )
    finally:
        torch.set_num_threads(before)


def _measured(
    transformer: PooledTransformer,
    architecture: str,
    tokens: Sequence[int],
    repeats: int,
    batch: int,
    threads: int,
    seed: int,
) -> EncoderSpeed:
    rng = np.random.default_rng(seed)
    alone, together = [], []
    for wanted in tokens:
        count = min(wanted, transformer.max_tokens)
        rows = rng.integers(5, transformer.model.get_input_embeddings().num_embeddings, (batch, count)).tolist()
        spent, computed = [], []
        for i in range(repeats + 5):
            began, cpu = time.perf_counter(), time.process_time()
            transformer.encode_ids([rows[i % batch]])
            spent.append((time.perf_counter() - began) * 1e3)
            computed.append((time.process_time() - cpu) * 1e3)
        median, p99 = np.quantile(spent[5:], [0.5, 0.99])
        alone.append((count, float(median), float(p99), float(np.median(computed[5:]))))
        cpu = time.process_time()
        transformer.encode_ids(rows)
        together.append((count, batch / (time.process_time() - cpu)))
    return EncoderSpeed(
        architecture=architecture,
        parameters=sum(parameter.numel() for parameter in transformer.model.parameters()),
        hidden=transformer.hidden,
        packs=transformer.packs,
        threads=threads,
        milliseconds=alone,
        per_second=together,
    )
