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
from gateway.cli.options import NEW_FOLDER, echo_json
from gateway.planning.capacity.replica_profile import ReplicaProfile
from gateway.planning.capacity.scheduled_core import LAYOUT, SLAB_BYTES, ProfileRunner, VirtualClock
from gateway.planning.load_test.workload import WORDS
from inference_core.engine.core import Core
from inference_core.protocol import AddRequest, SamplingParams

MODES: tuple[Batching, ...] = ("static", "dynamic", "continuous")
# Only its vocabulary and context count.
_MODEL, _CONTEXT = "llama-3.1-8b", 4096
# Every step takes as long: longer than the delay of dynamic batches, as steps of real models do.
_PROFILE = ReplicaProfile(
    name="batches", model=_MODEL, hardware="none", evidence="stated", source="", base_s=0.01, sequence_s=0.0,
    prompt_token_s=0.0, kv_tokens=_CONTEXT, cold_start_s=0.0, usd_per_hour=0.0,
)  # fmt: skip
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


def _served(mode: Batching, callers: int, options: BatchingOptions) -> dict[str, float]:
    """Serve all requests, in a closed loop of `callers`; whole prompts and no cached prefix, as where batching is the
    only technique."""
    knobs = Configuration(batching=mode, prefix_caching=False, chunked_prefill=False).knobs()
    clock = VirtualClock()
    jobs = mixed_jobs(options.seed, options.requests)
    arena = max(callers, 8) * _CONTEXT * LAYOUT.bytes_per_token
    core = Core(
        {_MODEL: ProfileRunner(_PROFILE, clock, _CONTEXT)},
        arena_bytes=-(-arena // SLAB_BYTES) * SLAB_BYTES,
        slab_bytes=SLAB_BYTES,
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
    stats = core.stats()
    core.close()
    sequences = sum(size * count for size, count in stats.models[0].batch_sizes.items())
    return {
        "requests": len(jobs),
        "output_tokens": sum(job.output_tokens for job in jobs),
        "steps": stats.steps,
        "running": sequences / stats.steps,
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
