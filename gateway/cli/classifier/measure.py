"""`aio classifier measure`: measure which everyday tasks each tier of this catalogue solves, kept as a small file."""

import asyncio
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import click
import msgspec
from msgspec import Meta

from gateway.base.field_types import Count
from gateway.base.settings import Settings
from gateway.cli.options import MACHINE, NEW_FILE, staged_progress, table, with_settings
from gateway.cli.typed_options import options_of

if TYPE_CHECKING:
    from quality.evaluation.everyday_outcomes import EverydayOutcomes, Progress
    from tiers.catalog.catalog import Catalog


class MeasureOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Options of `aio classifier measure`."""

    per_level: Annotated[int, Meta(ge=1, le=10)] = 6
    """Tasks of each kind and level."""
    seed: int = 1
    """Seed of the generated tasks."""
    concurrency: Count = 16
    """Tasks in flight."""


@click.command()
@click.argument("file", required=False, type=NEW_FILE)
@options_of(MeasureOptions)
@with_settings(*MACHINE, role="all")
def measure(file: Path | None, options: MeasureOptions, settings: Settings) -> None:
    """Ask every tier everyday tasks, and write to FILE which ones it solved. No text is kept.

    By default FILE is in the data folder. `aio serve` reads it there at start, and routes by it instead of by
    what such models usually do.

    Eight kinds at five levels, from trivial to hard: facts, sums in words, extraction, translation, yes or no, what
    programs print, lists and reasoning. FILE is written after each tier; tiers that it has are not asked again.
    """
    from gateway.base.stores.data_folder import private_data_folder
    from inference_core.native import cpu
    from quality.evaluation.everyday_outcomes import (
        OWN_FOLDER,
        begun_outcomes,
        read_outcomes,
        task_classes,
        write_outcomes,
    )
    from tiers.catalog.load import load_catalog

    catalog = load_catalog(settings.catalog)
    if file is None:
        private_data_folder(settings.data_path)
        file = settings.data_path / OWN_FOLDER / f"{catalog.fingerprint}.json"
        file.parent.mkdir(parents=True, exist_ok=True)
    kernels = cpu.extension().instruction_set() if cpu.AVAILABLE else "torch"
    outcomes = begun_outcomes(catalog, options.seed, options.per_level, kernels)
    if file.exists():
        outcomes = _same(read_outcomes(file), outcomes, file)
    with staged_progress("starting") as progress:
        outcomes = asyncio.run(_measure(settings, catalog, outcomes, file, options.concurrency, progress))
    write_outcomes(msgspec.structs.replace(outcomes, classes=task_classes(options.seed, options.per_level)), file)
    click.echo(_shown(outcomes, catalog))
    click.echo(f"kept in {file}")


def _same(before: "EverydayOutcomes", wanted: "EverydayOutcomes", file: Path) -> "EverydayOutcomes":
    """Return the results to continue. Raises EverydayOutcomesError if they belong to another measurement."""
    from quality.evaluation.everyday_outcomes import EverydayOutcomesError

    names = [n for n in wanted.__struct_fields__ if n not in ("measured_at", "tiers", "classes")]
    other = [name for name in names if getattr(before, name) != getattr(wanted, name)]
    if other:
        raise EverydayOutcomesError(
            f"{file} belongs to another measurement (other {', '.join(other)}); name another file"
        )
    return before


async def _measure(
    settings: Settings,
    catalog: "Catalog",
    outcomes: "EverydayOutcomes",
    file: Path,
    concurrency: int,
    progress: "Progress",
) -> "EverydayOutcomes":
    from gateway.runtime.cores.engine import running_engine
    from quality.evaluation.everyday_outcomes import measured_tier, write_outcomes

    tasks = outcomes.tasks()
    async with running_engine(settings, catalog) as engine:
        for number, tier in engine.tiers.items():
            if number not in outcomes.tiers:
                scores = await measured_tier(tier, catalog, tasks, concurrency, progress)
                outcomes = msgspec.structs.replace(outcomes, tiers=outcomes.tiers | {number: scores})
                write_outcomes(outcomes, file)
    return outcomes


def _shown(outcomes: "EverydayOutcomes", catalog: "Catalog") -> str:
    from quality.estimates.verified_sample import wilson_interval

    tasks = outcomes.tasks()
    kinds = list(dict.fromkeys(sorted(task.kind for task in tasks)))
    rows = []
    for number, tier in outcomes.tiers.items():
        of_kind = {kind: [s for s, task in zip(tier.scores, tasks, strict=True) if task.kind == kind] for kind in kinds}
        of_level = [[s for s, t in zip(tier.scores, tasks, strict=True) if t.level == level] for level in range(1, 6)]
        rows.append(
            [
                catalog.tier(number).name,
                f"{sum(tier.scores)}/{len(tasks)}",
                wilson_interval(sum(tier.scores), len(tasks)).shown(),
                *(f"{sum(scores)}/{len(scores)}" for scores in [*of_kind.values(), *of_level]),
                f"{sum(tier.tokens) / len(tasks):.0f}",
            ]
        )
    return table(
        ["tier", "right", "95% interval", *kinds, *(f"level {level}" for level in range(1, 6)), "tokens"], rows
    )
