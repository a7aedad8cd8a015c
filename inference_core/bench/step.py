"""Where the time of one step goes: a model's linears, attention and the rest, timed through their own seams."""

import statistics
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from inference_core.attention.backend import AttentionBackend, AttentionBatch
from inference_core.kv_arena import allocate_arena
from inference_core.linear.linear import Linear
from inference_core.loaders.model_path import resolve_model_path
from inference_core.loaders.opening import open_checkpoint
from inference_core.loading import layout_of, load_runner, use_threads
from inference_core.model_runner import DecoderRunner
from inference_core.model_spec import CoreSpec, ModelSpec
from inference_core.models.decoder import Decoder, DecoderLayer
from inference_core.protocol import SamplingParams
from inference_core.step_plan import SampleSpec, ScheduledSequence, StepPlan

Clock = Callable[[], float]


class Stopwatch:
    """Seconds by part since the last reset."""

    def __init__(self) -> None:
        self.seconds: defaultdict[str, float] = defaultdict(float)

    def time(self, part: str, work: Callable[[], None]) -> None:
        began = time.perf_counter()
        work()
        self.seconds[part] += time.perf_counter() - began


class TimedLinear(Linear):
    """A linear layer on the stopwatch."""

    def __init__(self, inner: Linear, part: str, watch: Stopwatch) -> None:
        self.in_features, self.out_features = inner.in_features, inner.out_features
        self.batch_invariant = inner.batch_invariant
        self._inner, self._part, self._watch = inner, part, watch

    def apply(self, x: torch.Tensor, out: torch.Tensor, *, accumulate: bool = False) -> None:
        self._watch.time(self._part, lambda: self._inner.apply(x, out, accumulate=accumulate))


class TimedAttention(AttentionBackend):
    """An attention backend on the stopwatch."""

    def __init__(self, inner: AttentionBackend, watch: Stopwatch) -> None:
        super().__init__(inner.config, inner.layout, inner.arena, inner.cos_sin)
        self._inner, self._watch = inner, watch

    def rope_and_write(
        self,
        qkv: torch.Tensor,
        layer: int,
        batch: AttentionBatch,
        q_norm: torch.Tensor | None,
        k_norm: torch.Tensor | None,
    ) -> None:
        self._watch.time(
            "rotary_and_cache_write", lambda: self._inner.rope_and_write(qkv, layer, batch, q_norm, k_norm)
        )

    def attend(self, qkv: torch.Tensor, layer: int, batch: AttentionBatch, out: torch.Tensor) -> None:
        self._watch.time("attention", lambda: self._inner.attend(qkv, layer, batch, out))


def bench_step(
    spec: ModelSpec, cache_dir: Path, *, sequences: tuple[int, ...], context: int, chunk: int, repeats: int
) -> Iterator[dict[str, Any]]:
    """Rows of medians in milliseconds: a decode step of each number of sequences at `context`, then a prompt chunk.

    "rest" is norms, activation, embedding, sampling and Python.
    """
    use_threads(None)
    core = CoreSpec(models=[spec])
    layout = layout_of(spec, open_checkpoint(resolve_model_path(spec.path), cache_dir).config)
    longest = -(-max(context + 1, chunk) // spec.block_size)
    slabs = -(-longest * max(sequences) // layout.blocks_per_slab(core.slab_bytes))
    arena = allocate_arena(slabs * core.slab_bytes)
    watch = Stopwatch()
    runner = _timed(load_runner(spec, core, arena, cache_dir), watch, core.slab_bytes)
    for count in sequences:
        shares = [_share(n, 1, context, longest) for n in range(count)]
        yield {"step": "decode", "sequences": count, "context": context} | _medians(runner, shares, watch, repeats)
    yield {"step": "prompt chunk", "tokens": chunk} | _medians(runner, [_share(0, chunk, 0, longest)], watch, repeats)


def _share(number: int, tokens: int, start: int, longest: int) -> ScheduledSequence:
    table = list(range(number * longest, (number + 1) * longest))
    greedy = SampleSpec(SamplingParams(temperature=0), [], [], 0, 0, ())
    return ScheduledSequence(str(number), [5] * tokens, start, table, greedy)


def _timed(runner: DecoderRunner, watch: Stopwatch, slab_bytes: int) -> DecoderRunner:
    def layer(plain: DecoderLayer) -> DecoderLayer:
        parts = {name: getattr(plain, name) for name in ("qkv", "output", "gate_up", "down")}
        return replace(plain, **{name: TimedLinear(linear, "linears", watch) for name, linear in parts.items()})

    plain = runner.decoder
    head = TimedLinear(plain.head, "vocabulary_projection", watch)
    decoder: Decoder = replace(plain, layers=[layer(each) for each in plain.layers], head=head)
    return DecoderRunner(runner.info, decoder, runner.layout, TimedAttention(runner.attention, watch), slab_bytes)


def _medians(
    runner: DecoderRunner, shares: list[ScheduledSequence], watch: Stopwatch, repeats: int
) -> dict[str, float]:
    plan = StepPlan(0, runner.info.name, shares)
    runner.run(plan)
    totals: list[float] = []
    parts: defaultdict[str, list[float]] = defaultdict(list)
    for _ in range(repeats):
        watch.seconds.clear()
        totals.append(runner.run(plan).seconds)
        for part, seconds in watch.seconds.items():
            parts[part].append(seconds)
        parts["rest"].append(totals[-1] - sum(watch.seconds.values()))
    row = {"total": totals, **parts}
    return {f"{name}_ms": round(statistics.median(values) * 1e3, 3) for name, values in row.items()}
