"""The native extension's INT8 encoder next to torch's float32: how alike states are, and what 64 tokens cost."""

import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import click
import msgspec
import numpy as np
import numpy.typing as npt
import torch

from benchmarks.classifier.flips import prompts_of
from classifier.encoders.native_transformer import KERNEL_SETS, NativeTransformer
from classifier.encoders.pooled_transformer import PooledTransformer
from classifier.errors import CheckpointError
from classifier.features.routing_input import routing_input_of_text
from gateway.operations.cli.options import FILE, FOLDER

Float = npt.NDArray[np.float32]

TOKENS = 64


class Comparison(msgspec.Struct, frozen=True):
    """Cosines of `rows` states with float32's: the least and the mean. `milliseconds`: the median CPU time of a prompt
    of `TOKENS` tokens on one thread, by torch and by each set of kernels, taken in turns."""

    rows: int
    least: float
    mean: float
    milliseconds: dict[str, float]


def compared(folder: Path, prompts: list[str], repeats: int) -> Comparison:
    """Compare both on `prompts`. Raises `CheckpointError` for a checkpoint that is not served."""
    torch.set_num_threads(1)
    exact, natives = PooledTransformer.load(folder), [NativeTransformer.load(folder, kernels=k) for k in KERNEL_SETS]
    turns = [routing_input_of_text(prompt).turn for prompt in prompts]
    a, b = natives[-1].encode(turns), exact.encode(turns)
    cosines = (a * b).sum(axis=1) / np.linalg.norm(a, axis=1) / np.linalg.norm(b, axis=1)
    ids = [int(id) for id in np.random.default_rng(0).integers(5, exact.tokenizer.get_vocab_size(), TOKENS)]
    runs: dict[str, Callable[[], Float]] = {"torch float32": partial(exact.encode_ids, [ids])}
    runs |= {f"INT8 {k}": partial(n.encode_ids, [ids]) for k, n in zip(KERNEL_SETS, natives, strict=True)}
    taken: dict[str, list[float]] = {name: [] for name in runs}
    for _ in range(repeats):
        for name, run in runs.items():
            began = time.thread_time()
            run()
            taken[name].append(time.thread_time() - began)
    medians = {name: 1e3 * float(np.median(times)) for name, times in taken.items()}
    return Comparison(len(turns), float(cosines.min()), float(cosines.mean()), medians)


@click.command()
@click.argument("folder", type=FOLDER)
@click.argument("rows", type=FILE)
@click.option("--repeats", type=click.IntRange(min=1), default=20, help="Of each timing.")
def native_encoder_command(folder: Path, rows: Path, repeats: int) -> None:
    """Compare the checkpoint in FOLDER in the native extension's INT8 with torch's float32, on the prompts of ROWS."""
    try:
        found = compared(folder, prompts_of(rows), repeats)
    except (CheckpointError, msgspec.MsgspecError) as error:
        raise click.ClickException(str(error)) from error
    click.echo(f"{found.rows} prompts: cosine with float32 at least {found.least:.4f}, mean {found.mean:.4f}")
    for name, milliseconds in found.milliseconds.items():
        click.echo(f"{name:<14} {milliseconds:7.2f} ms of CPU time for {TOKENS} tokens, one thread, median")
