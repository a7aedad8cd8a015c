"""What each technique is worth: alone, on top of those before it, and as part of the full system."""

import itertools
import statistics
import sys
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click
import msgspec

from benchmarks.core.ablation_worker import ArmTask, run_in_process
from benchmarks.core.techniques import (
    COMPUTES,
    FEATURES,
    FULL,
    TECHNIQUES,
    Arm,
    DecodingFeature,
    Technique,
    alone,
    arms,
    changed,
    in_full,
    ladder,
    of_feature,
)
from benchmarks.report.ablation_tables import ablation_tables
from benchmarks.report.kept import kept_options, require_at_least_one, show_measurement
from benchmarks.report.measured import AblationResults, Effect, FeatureEffect, Rung, Spread, Variant
from benchmarks.report.measurement import Measurement, Row
from benchmarks.report.rounds import ratio, spread
from gateway.planning.load_test.run import model_of
from inference_core.model_spec import ModelSpec
from tiers.catalog.load import load_catalog

COLUMNS = (
    "out_tok_s",
    "ttft_p50_ms",
    "ttft_p99_ms",
    "itl_p50_ms",
    "itl_p99_ms",
    "running_mean",
    "kv_mb_mean",
    "peak_resident_mb",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class AblationOptions:
    """The mixed load has `requests` per configuration, `concurrency` of them in flight, and `arena_mb` of KV memory.

    The small load, for what is slow, has `small_requests`, `small_concurrency` in flight; of the load that copies, as
    many requests come one after the other. Raises `ValueError`.
    """

    rounds: int = 3
    requests: int = 64
    concurrency: int = 32
    small_requests: int = 4
    small_concurrency: int = 2
    arena_mb: int = 192
    seed: int = 7
    timeout: float = 900.0

    def __post_init__(self) -> None:
        loads = ("requests", "concurrency", "small_requests", "small_concurrency")
        require_at_least_one(self, "rounds", *loads, "arena_mb")


RunArm = Callable[[ArmTask], Awaitable[dict[str, Any]]]


async def ablate(
    options: AblationOptions,
    model: ModelSpec,
    measurement: Measurement,
    *,
    cache_dir: Path,
    slab_bytes: int,
    threads: int | None,
    progress: Callable[[str, int, int], None] = lambda label, done, total: None,
    run_arm: RunArm = run_in_process,
) -> AblationResults:
    """Measure every arm in every round, odd rounds backwards, as far as `measurement` lacks it, and finish it.

    Raises `ArmError`.
    """
    wanted = [(turn, arm) for turn in range(options.rounds) for arm in (arms()[::-1] if turn % 2 else arms())]
    for done, (turn, arm) in enumerate(wanted):
        progress(f"round {turn + 1}/{options.rounds}: {arm.label}", done, len(wanted))
        if measurement.find(round=turn, arm=arm.label) is None:
            task = ArmTask(
                configuration=arm.configuration,
                model=model,
                cache_dir=str(cache_dir),
                seed=options.seed + turn,
                load=arm.load,
                requests=options.requests if arm.load == "mixed" else options.small_requests,
                concurrency={"mixed": options.concurrency, "small": options.small_concurrency, "copy": 1}[arm.load],
                arena_bytes=options.arena_mb * 2**20,
                slab_bytes=slab_bytes,
                threads=threads,
                timeout=options.timeout,
            )
            measurement.add({"round": turn, "arm": arm.label} | await run_arm(task))
    progress("done", len(wanted), len(wanted))
    results = results_of(measurement.rows)
    measurement.finish(msgspec.to_builtins(results))
    return results


def results_of(rows: Sequence[Row]) -> AblationResults:
    """What the rows of all rounds say."""
    table = _Table(rows)
    rungs = ladder()
    return AblationResults(
        ladder=[
            Rung(
                technique=name,
                small=arm.small,
                configuration=arm.configuration.label,
                figures=table.figures(arm),
                step=table.ratios(before, arm) if before is not None and before.small == arm.small else None,
            )
            for before, (name, arm) in zip([None, *(a for _, a in rungs)], rungs, strict=False)
        ],
        effects=[_effect(table, technique) for technique in TECHNIQUES],
        features=[_feature(table, feature) for feature in FEATURES],
        computes=[_variant(table, compute) for compute in COMPUTES],
    )


def _effect(table: "_Table", technique: Technique) -> Effect:
    alone_pair, full_pair = alone(technique), in_full(technique)
    by_itself = table.ratios(alone_pair.without, alone_pair.having)
    full = None if full_pair is None else table.ratios(full_pair.without, full_pair.having)
    first, second = by_itself["out_tok_s"], full["out_tok_s"] if full else None
    interaction = second.median / first.median if first and second and first.median else None
    return Effect(technique=technique.name, small=technique.slow, alone=by_itself, full=full, interaction=interaction)


def _feature(table: "_Table", feature: DecodingFeature) -> FeatureEffect:
    pair = of_feature(feature)
    ratios = table.ratios(pair.without, pair.having)
    return FeatureEffect(
        feature=feature.name, load=feature.load, without=pair.without.configuration.label, ratios=ratios
    )


def _variant(table: "_Table", compute: str) -> Variant:
    arm, base = (Arm(changed(FULL, {"compute": name})) for name in (compute, COMPUTES[0]))
    weights = statistics.median(row["weights_mb"] for row in table.rows_of(arm))
    return Variant(compute=compute, weights_mb=weights, figures=table.figures(arm), ratios=table.ratios(base, arm))


class _Table:
    """Rows by arm, in the order of rounds."""

    def __init__(self, rows: Sequence[Row]) -> None:
        ordered = sorted(rows, key=lambda row: (row["arm"], row["round"]))
        self._rows = {label: list(group) for label, group in itertools.groupby(ordered, lambda row: row["arm"])}

    def rows_of(self, arm: Arm) -> list[Row]:
        return self._rows[arm.label]

    def figures(self, arm: Arm) -> dict[str, Spread | None]:
        return {name: spread([row[name] for row in self.rows_of(arm)]) for name in COLUMNS}

    def ratios(self, base: Arm, arm: Arm) -> dict[str, Spread | None]:
        """Of `arm` to `base`, round by round."""
        return {
            name: ratio([row[name] for row in self.rows_of(arm)], [row[name] for row in self.rows_of(base)])
            for name in COLUMNS
        }


@click.command()
@click.option("--model", help="Model of the catalogue.  [its first]")
@click.option("--rounds", default=3, help="Times that every configuration is measured.")
@click.option("--requests", default=64, help="Requests per configuration; a multiple of 16.")
@click.option("--concurrency", default=32, help="In flight.")
@click.option("--small-requests", default=4, help="The same where torch computes.")
@click.option("--small-concurrency", default=2)
@click.option("--arena-mb", default=192, help="KV memory, the same for all.")
@click.option("--seed", default=7)
@click.option("--timeout", default=900.0, help="Seconds for one request.")
@kept_options
def ablation(**arguments: Any) -> None:
    """Every technique off in turn, alone, and one on top of the other, on a load that gives each something to do.

    Example: python -m benchmarks ablation --rounds 5 --out ablation.jsonl
    """

    show_measurement(arguments, AblationOptions, _run, ablation_tables)


async def _run(
    settings: Any, model: str | None, options: AblationOptions, out: Path | None, keep: bool
) -> AblationResults:
    core = load_catalog(settings.catalog).core
    spec = model_of(core, model)
    measurement = Measurement.begin(
        "ablation", {"model": spec, "threads": core.threads, "options": options}, out, keep=keep
    )
    return await ablate(
        options,
        spec,
        measurement,
        cache_dir=settings.cache_path,
        slab_bytes=core.slab_bytes,
        threads=core.threads,
        progress=_show,
    )


def _show(label: str, done: int, total: int) -> None:
    click.echo(f"[{done}/{total}] {label}", err=True)
    sys.stderr.flush()
