"""How many steps of the core one load takes under static, dynamic and continuous batches (SPEC BS-01).

Nothing is computed, so only the core's own plans count. Where a step costs the same whatever its batch, as where it
reads all weights and little else, the ratio of steps is the gain of throughput; where a step costs more the more
sequences it has, the gain is less.
"""

from pathlib import Path

import click
import msgspec

from benchmarks.core.ablation_worker import Batching, Configuration
from benchmarks.core.mixed_load import mixed_jobs
from benchmarks.report.measured import MeasurementError
from benchmarks.report.measurement import Measurement
from gateway.operations.cli.options import NEW_FOLDER, echo_json
from gateway.planning.load_test.workload import WORDS
from inference_core.engine.core import Core
from inference_core.execution.runner import ModelRunner
from inference_core.kv_cache.layout import KVLayout
from inference_core.loaders.decoder_tensors import shape
from inference_core.protocol import AddRequest, ModelInfo, SamplingParams
from inference_core.step_plan import SampledToken, StepPlan, StepResult

MODES: tuple[Batching, ...] = ("static", "dynamic", "continuous")
# Only its vocabulary and context count.
_MODEL = "llama-3.1-8b"
_LAYOUT = KVLayout(num_layers=1, num_kv_heads=1, head_dim=2, block_size=16, dtype="float32")
_SLAB_BYTES = 64 * _LAYOUT.block_bytes
_CONTEXT = 4096
# Longer than the delay of dynamic batches, as steps of real models are.
_STEP_SECONDS = 0.01
_IDS = {word: number for number, word in enumerate(WORDS)}


class StepCount(msgspec.Struct, frozen=True, kw_only=True):
    """`steps` of one way to form batches with `callers` who ask one after the other; `gain`: the steps of static
    batches over these; `running`: sequences of a step, on average."""

    mode: str
    callers: int
    requests: int
    output_tokens: int
    steps: int
    running: float
    gain: float


class StepCounts(msgspec.Struct, frozen=True, kw_only=True):
    """By number of callers, then in the order of `MODES`."""

    counts: list[StepCount]


class BatchingOptions(msgspec.Struct, frozen=True, kw_only=True):
    """`requests` of the mixed load of the ablation, from each number of `callers`."""

    requests: int = 256
    callers: tuple[int, ...] = (16, 32, 64)
    seed: int = 7


def count_steps(options: BatchingOptions, measurement: Measurement) -> StepCounts:
    """Count what `measurement` lacks, and finish it. The same for the same options."""
    for callers in options.callers:
        for mode in MODES:
            if measurement.find(mode=mode, callers=callers) is None:
                measurement.add({"mode": mode, "callers": callers} | _served(mode, callers, options))
    results = StepCounts(counts=[_counted(row, measurement) for row in measurement.rows])
    measurement.finish(msgspec.to_builtins(results))
    return results


def _counted(row: dict[str, float], measurement: Measurement) -> StepCount:
    static = measurement.find(mode="static", callers=row["callers"])
    assert static is not None
    return msgspec.convert(row | {"gain": static["steps"] / row["steps"]}, StepCount)


class _Clock:
    """Seconds of the simulation."""

    def __init__(self) -> None:
        # Not 0: an arrival of 0 means "now" to the core.
        self.now = 1.0

    def __call__(self) -> float:
        return self.now


class _CountingRunner(ModelRunner):
    """Computes nothing; every draw is the same token. Counts the sequences of all steps."""

    def __init__(self, clock: _Clock) -> None:
        self.config = shape(_MODEL)
        self.layout = _LAYOUT
        self.info = ModelInfo(
            name=_MODEL,
            model_path="",
            max_context=_CONTEXT,
            vocab_size=self.config.vocab_size,
            weight_bytes=0,
            compute="simulated",
        )
        self.sequences = 0
        self._clock = clock

    def run(self, plan: StepPlan) -> StepResult:
        self.sequences += len(plan.sequences)
        self._clock.now += _STEP_SECONDS
        return StepResult([[SampledToken(1)] if share.sample else [] for share in plan.sequences], _STEP_SECONDS)


def _served(mode: Batching, callers: int, options: BatchingOptions) -> dict[str, float]:
    """Serve all requests, in a closed loop of `callers`; whole prompts and no cached prefix, as where batching is the
    only technique."""
    knobs = Configuration(batching=mode, prefix_caching=False, chunked_prefill=False).knobs()
    clock = _Clock()
    runner = _CountingRunner(clock)
    jobs = mixed_jobs(options.seed, options.requests)
    arena = max(callers, 8) * _CONTEXT * _LAYOUT.bytes_per_token
    core = Core(
        {_MODEL: runner},
        arena_bytes=-(-arena // _SLAB_BYTES) * _SLAB_BYTES,
        slab_bytes=_SLAB_BYTES,
        knobs=knobs,
        clock=clock,
        seed=0,
    )
    waiting = [
        AddRequest(
            request_id=str(number),
            model=_MODEL,
            prompt_token_ids=[_IDS[word] for word in job.prompt.split()],
            sampling=SamplingParams(temperature=0.0, max_tokens=job.output_tokens, ignore_eos=True),
        )
        for number, job in enumerate(jobs)
    ]
    waiting.reverse()
    running = 0
    while waiting or running:
        while waiting and running < callers:
            request = waiting.pop()
            core.add(msgspec.structs.replace(request, arrival=clock.now))
            running += 1
        clock.now += core.pause_seconds
        running -= sum(output.finish_reason is not None for output in core.step())
    steps = core.stats().steps
    core.close()
    return {
        "requests": len(jobs),
        "output_tokens": sum(job.output_tokens for job in jobs),
        "steps": steps,
        "running": runner.sequences / steps,
    }


@click.command()
@click.option(
    "--folder",
    type=NEW_FOLDER,
    default=Path("docs/measurements"),
    help="Of measurements; batching-steps.jsonl is written there.",
)
def claims(folder: Path) -> None:
    """Count the steps of one load under static, dynamic and continuous batches; one that was cut short goes on. Other
    work on the machine does not change these figures."""
    options = BatchingOptions()
    try:
        measurement = Measurement.begin("batching-steps", {"options": options}, folder / "batching-steps.jsonl")
        echo_json(count_steps(options, measurement))
    except (MeasurementError, OSError) as error:
        raise click.ClickException(str(error)) from error
