"""`python -m benchmarks claims`: counts and ratios that the sources claim too, each kept in a file of its own."""

import asyncio
import secrets
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import msgspec

from gateway.operations.cli.options import cache_dir_option, catalog_option, settings_from

if TYPE_CHECKING:
    from benchmarks.report.measurement import Measurement
    from gateway.base.settings import Settings

PARTS = ("batching-steps", "core-lag", "prefix-hits", "quantised", "savings")
# Pages of a checkout; the text that copies are compared on is another.
_CALIBRATION = ("docs/gateway.md", "docs/classifier.md", "docs/tiers.md", "docs/reference/engine.md")


@click.command()
@click.argument("part", type=click.Choice(PARTS))
@click.option(
    "--folder",
    type=click.Path(file_okay=False, path_type=Path),
    default=Path("docs/measurements"),
    show_default=True,
    help="Of measurements; PART.jsonl is written there.",
)
@click.option(
    "--data",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    help="savings: folder of recorded answers.  [AIO_DATA; ../shared/data]",
)
@click.option("--model", help="quantised: model of the catalogue.  [its first]")
@click.option("--sums", type=click.IntRange(min=1), default=120, show_default=True, help="quantised: asked at most.")
@catalog_option
@cache_dir_option
def claims(part: str, folder: Path, data: Path | None, model: str | None, sums: int, **given: Any) -> None:
    """Measure PART; one that was cut short goes on. Other work on the machine does not change these figures, but
    core-lag, of which it makes an upper bound.

    \b
    batching-steps  steps of one load under static, dynamic and continuous batches; a second
    core-lag        lag of a gateway's event loop while its core generates; half a minute
    prefix-hits     cached share of voice bots' prompts, through a gateway of its own; a minute or two
    quantised       what each way of quantising loses on one model; some minutes
    savings         cost of recorded ladders at the strongest model's quality; half a minute, with the recorded files

    Example: python -m benchmarks claims savings --data ~/data
    """
    from benchmarks.report.measured import MeasurementError

    settings = settings_from(**given)
    out = folder / f"{part}.jsonl"
    try:
        if part == "batching-steps":
            results = _batching_steps(out)
        elif part == "core-lag":
            results = asyncio.run(_core_lag(settings, out))
        elif part == "prefix-hits":
            results = asyncio.run(_prefix_hits(settings, out))
        elif part == "quantised":
            results = _quantised(settings, out, model, sums)
        else:
            results = _savings(data, out)
    except (MeasurementError, ValueError, OSError) as error:
        raise click.ClickException(str(error)) from error
    click.echo(msgspec.json.format(msgspec.json.encode(results), indent=1).decode())


def _begun(part: str, settings: dict[str, Any], out: Path) -> "Measurement":
    from benchmarks.report.measurement import Measurement

    return Measurement.begin(part, settings, out)


def _said(line: str) -> None:
    click.echo(line, err=True)


def _batching_steps(out: Path) -> Any:
    from benchmarks.claims.batching_steps import BatchingOptions, count_steps

    options = BatchingOptions()
    return count_steps(options, _begun("batching-steps", {"options": options}, out))


async def _core_lag(settings: "Settings", out: Path) -> Any:
    from benchmarks.gateway.loop_lag import bench_core_lag
    from gateway.planning.load_test.run import busy_share

    options = {"catalog": settings.catalog, "streams": 16, "seconds": 20.0, "limit_ms": 20.0}
    measurement = _begun("core-lag", {"options": options}, out)
    if measurement.finished is None:
        busy = await busy_share()
        with tempfile.TemporaryDirectory(prefix="aio-bench-") as folder:
            alone, key = msgspec.structs.replace(settings, data_dir=folder), secrets.token_urlsafe(24)
            row = msgspec.to_builtins(await bench_core_lag(alone, key, streams=16, seconds=20.0))
        measurement.add(row | {"busy_before": busy})
        measurement.finish(row)
    return measurement.results


async def _prefix_hits(settings: "Settings", out: Path) -> Any:
    from benchmarks.claims.prefix_hits import TIER, VoiceOptions, measure_hits, talking_gateway
    from tiers.catalog.load import load_catalog

    options = VoiceOptions()
    tier = next(tier for tier in load_catalog(settings.catalog).tiers if tier.number == TIER)
    with tempfile.TemporaryDirectory(prefix="aio-bench-") as folder:
        alone = msgspec.structs.replace(settings, data_dir=folder)
        async with talking_gateway(alone, secrets.token_urlsafe(24), secrets.token_urlsafe(24)) as caller:
            measurement = _begun("prefix-hits", {"model": tier.model, "options": options}, out)
            return await measure_hits(caller, options, measurement)


def _quantised(settings: "Settings", out: Path, model: str | None, most: int) -> Any:
    from benchmarks.claims.quantised import SAMPLES, compare_ways
    from gateway.planning.load_test.open_core import model_of
    from inference_core.quantization.calibration import calibration_text
    from quality.evaluation.quantised_model import read_questions
    from tiers.catalog.load import load_catalog

    spec = model_of(load_catalog(settings.catalog).core, model)
    calibration = calibration_text([Path(name) for name in _CALIBRATION])
    questions = read_questions(Path("docs/measurements/sums.jsonl"), most)
    given = {"model": spec.name, "calibration": calibration.digest, "samples": SAMPLES, "questions": len(questions)}
    measurement = _begun("quantised", given, out)
    return compare_ways(spec.path, settings.cache_path, calibration, questions, measurement, progress=_said)


def _savings(data: Path | None, out: Path) -> Any:
    from benchmarks.claims.savings import PRICES, TARGET, measure_savings
    from classifier.training.data.dataset import data_folder

    given = {"prices": PRICES, "target": TARGET, "seed": 0}
    return measure_savings((data or data_folder()) / "answers", _begun("savings", given, out), _said)
