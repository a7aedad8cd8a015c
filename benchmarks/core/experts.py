"""What a mixture of experts costs: decode steps of random INT4 models, with and without experts."""

import random
import statistics
from pathlib import Path
from typing import NamedTuple

import msgspec

from benchmarks.core.random_checkpoint import RandomCheckpoint
from benchmarks.kernels.machine_peaks import MachinePeaks, machine_peaks
from inference_core.execution.native_runner import NativeRunner
from inference_core.kv_cache.arena import allocate_arena
from inference_core.loading.load_core import layout_of, runner_of, use_threads
from inference_core.model_config import ModelConfig
from inference_core.model_spec import CoreSpec, ModelSpec
from inference_core.protocol import SamplingParams
from inference_core.step_plan import SampleSpec, ScheduledSequence, StepPlan

EXPERTS, TAKEN, HIDDEN, INNER, LAYERS = 8, 2, 1024, 1408, 16
CONTEXT = 32
# INT4 with a scale of two bytes for 32 weights.
BYTES_PER_WEIGHT = 0.5 + 2 / 32


class ExpertsRow(msgspec.Struct, frozen=True, kw_only=True):
    """Medians over the rounds, milliseconds of a whole step. `ratio`: of the mixture's step to the dense model's.
    `bound_ms`: the longer of reading all weights that are touched once and of all products, at this machine's peaks;
    `of_bound`: the time of the linear layers over it."""

    streams: int
    experts_ms: float
    dense_ms: float
    ratio: float
    linears_ms: float
    bound_ms: float
    of_bound: float


def bench_experts(cache_dir: Path, *, streams: tuple[int, ...], rounds: int) -> list[ExpertsRow]:
    """A row for each number of streams, whose tokens differ. The two models take turns."""
    peaks = machine_peaks()
    use_threads(None)
    mixture, dense = config_of(EXPERTS), config_of(0)
    models = [_Stepped.of(config, max(streams), cache_dir) for config in (mixture, dense)]
    rows = []
    for count in streams:
        spent: list[list[float]] = [[], []]
        linears: list[float] = []
        for number in range(rounds + 2):
            for model, times in zip(models, spent, strict=True):
                seconds = model.step(count)
                if number > 1:  # the first ones warm up
                    times.append(seconds)
            if number > 1:
                linears.append(models[0].runner.times.linears)
        experts_s, dense_s = map(statistics.median, spent)
        bound, linear = bound_seconds(mixture, count, peaks), statistics.median(linears)
        rows.append(
            ExpertsRow(
                streams=count,
                experts_ms=round(experts_s * 1e3, 3),
                dense_ms=round(dense_s * 1e3, 3),
                ratio=round(statistics.median(a / b for a, b in zip(*spent, strict=True)), 3),
                linears_ms=round(linear * 1e3, 3),
                bound_ms=round(bound * 1e3, 3),
                of_bound=round(linear / bound, 3),
            )
        )
    return rows


def config_of(experts: int) -> ModelConfig:
    """A model with so many experts; without any, as wide as the experts that a token takes together."""
    return ModelConfig(
        architecture="mixtral" if experts else "llama",
        vocab_size=2048,
        hidden_size=HIDDEN,
        intermediate_size=INNER if experts else TAKEN * INNER,
        num_layers=LAYERS,
        num_heads=8,
        num_kv_heads=4,
        head_dim=128,
        max_position=4096,
        rms_eps=1e-5,
        rope_theta=1e6,
        tie_embeddings=True,
        num_experts=experts,
        experts_per_token=TAKEN if experts else 0,
        normalise_experts=bool(experts),
    )


def bound_seconds(config: ModelConfig, streams: int, peaks: MachinePeaks) -> float:
    """The least time of the linear layers of one decode step of `streams` tokens, each of which takes its experts at
    random: of those that are touched, all weights are read once."""
    share = 1 - (1 - config.experts_per_token / config.num_experts) ** streams
    one = 3 * config.hidden_size * config.intermediate_size
    head = config.num_heads + 2 * config.num_kv_heads
    attention = config.hidden_size * config.head_dim * (head + config.num_heads)
    read = config.num_layers * (attention + share * config.num_experts * one) * BYTES_PER_WEIGHT
    products = streams * config.num_layers * (attention + config.experts_per_token * one)
    return max(read / peaks.read_gb_s_all, products / (peaks.integer_gmac_s * peaks.threads)) / 1e9


class _Stepped(NamedTuple):
    """A loaded model, and the sequences of its steps."""

    runner: NativeRunner
    shares: list[ScheduledSequence]

    @classmethod
    def of(cls, config: ModelConfig, streams: int, cache_dir: Path) -> "_Stepped":
        spec = ModelSpec(name=config.architecture, path="random", compute="int4-int8", window_groups=False)
        core, layout = CoreSpec(models=[spec]), layout_of(spec, config)
        blocks = -(-(CONTEXT + 1) // spec.block_size)
        slabs = -(-blocks * streams // layout.blocks_per_slab(core.slab_bytes))
        arena = allocate_arena(slabs * core.slab_bytes)
        arena.fill_(0)
        runner = runner_of(spec, RandomCheckpoint(config, "Q4_0"), core, arena, cache_dir)
        if not isinstance(runner, NativeRunner):
            raise RuntimeError("the native kernels were not built")
        greedy = SampleSpec(SamplingParams(temperature=0), [], [], 0, 0, ())
        draw = random.Random(0)
        shares = [
            ScheduledSequence(
                str(n), [draw.randrange(config.vocab_size)], CONTEXT, list(range(n * blocks, (n + 1) * blocks)), greedy
            )
            for n in range(streams)
        ]
        return cls(runner, shares)

    def step(self, streams: int) -> float:
        return self.runner.run(StepPlan(0, self.runner.info.name, self.shares[:streams])).seconds
