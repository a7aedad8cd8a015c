"""Where the time of one step goes: a model's linears, attention and the rest, as the native step measures itself."""

import statistics
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import msgspec

from benchmarks.report.kept import echo_row
from gateway.cli.options import by_words, json_option, setting_options, settings_from
from gateway.cli.planning.bench import ManyNumbers
from inference_core.execution.block_memory import allocate_arena
from inference_core.execution.logits_runner import LogitsRunner
from inference_core.execution.native_runner import NativeRunner
from inference_core.loaders.hub_model import resolve_model_path
from inference_core.loaders.open_checkpoint import open_checkpoint
from inference_core.loading.load_core import layout_of, runner_of, use_threads
from inference_core.model_spec import CoreSpec, ModelSpec
from inference_core.protocol import SamplingParams
from inference_core.step_plan import SampleSpec, ScheduledSequence, StepPlan


def bench_step(
    spec: ModelSpec, cache_dir: Path, *, sequences: tuple[int, ...], context: int, chunk: int, repeats: int
) -> Iterator[dict[str, Any]]:
    """Rows of medians in milliseconds: a decode step of each number of sequences at `context`, then a prompt chunk.

    "rows" is norms and quantised activations, "rest" sampling and Python. Without the native kernels there is the total
    alone.
    """
    use_threads(None)
    core = CoreSpec(models=[spec])
    checkpoint = open_checkpoint(resolve_model_path(spec.path), cache_dir)
    layout = layout_of(spec, checkpoint.config)
    longest = -(-max(context + 1, chunk) // spec.block_size)
    slabs = -(-longest * max(sequences) // layout.blocks_per_slab(core.slab_bytes))
    arena = allocate_arena(slabs * core.slab_bytes)
    # In blocks that hold all layers.
    runner = runner_of(msgspec.structs.replace(spec, window_groups=False), checkpoint, core, arena, cache_dir)
    for count in sequences:
        shares = [_share(n, 1, context, longest, 0) for n in range(count)]
        yield {"step": "decode", "sequences": count, "context": context} | _medians(runner, shares, repeats)
    # As the engine computes a prompt: in prompt arithmetic, where the model has one.
    fast_until = chunk if runner.has_prompt_arithmetic else 0
    share = _share(0, chunk, 0, longest, fast_until)
    yield {"step": "prompt chunk", "tokens": chunk} | _medians(runner, [share], repeats)


def _share(number: int, tokens: int, start: int, longest: int, fast_until: int) -> ScheduledSequence:
    table = list(range(number * longest, (number + 1) * longest))
    greedy = SampleSpec(SamplingParams(temperature=0), [], [], 0, 0, ())
    return ScheduledSequence(str(number), [5] * tokens, start, table, greedy, fast_until=fast_until)


def _medians(runner: LogitsRunner, shares: list[ScheduledSequence], repeats: int) -> dict[str, float]:
    plan = StepPlan(0, runner.info.name, shares)
    runner.run(plan)
    parts: defaultdict[str, list[float]] = defaultdict(list)
    for _ in range(repeats):
        seconds = runner.run(plan).seconds
        parts["total"].append(seconds)
        if isinstance(runner, NativeRunner):
            for part, spent in runner.times._asdict().items():
                parts[part].append(spent)
            parts["rest"].append(seconds - sum(runner.times))
    return {f"{name}_ms": round(statistics.median(values) * 1e3, 3) for name, values in parts.items()}


@click.command(cls=ManyNumbers)
@click.option("--model", help="Model of the catalogue.  [its first]")
@click.option(
    "--sequences",
    callback=by_words(int),
    metavar="N...",
    default="1 8 32",
    help="Sequences that decode one token each.",
)
@click.option("--context", default=160, help="Tokens before the one that is decoded.")
@click.option("--chunk", default=256, help="Tokens of the prompt chunk.")
@click.option("--repeats", default=15, help="Steps per row; medians are shown.")
@setting_options("catalog", "cache_dir")
@json_option
def step(model: str | None, as_json: bool, sequences: tuple[int, ...], **arguments: Any) -> None:
    """Milliseconds of a decode step and of a prompt chunk: linears, attention, vocabulary projection, rest."""
    from gateway.planning.load_test.run import model_of
    from tiers.catalog.load import load_catalog

    shape = {name: arguments.pop(name) for name in ("context", "chunk", "repeats")}
    settings = settings_from(**arguments)
    spec = model_of(load_catalog(settings.catalog).core, model)
    for row in bench_step(spec, settings.cache_path, sequences=sequences, **shape):
        echo_row({"model": spec.name, **row}, as_json)
