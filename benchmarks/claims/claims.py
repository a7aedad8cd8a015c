"""`python -m benchmarks claims`: counts and ratios that the sources claim too, each kept in a file of its own."""

from pathlib import Path
from typing import Any

import click
import msgspec

from benchmarks.claims.batching_steps import BatchingOptions, count_steps
from benchmarks.claims.quantised import SAMPLES, compare_ways
from benchmarks.report.measured import MeasurementError
from benchmarks.report.measurement import Measurement
from gateway.base.settings import Settings
from gateway.operations.cli.options import NEW_FOLDER, cache_dir_option, catalog_option, settings_from
from inference_core.model_spec import ModelSpec

PARTS = ("batching-steps", "quantised", "naive")


@click.command()
@click.argument("part", type=click.Choice(PARTS))
@click.option(
    "--folder", type=NEW_FOLDER, default=Path("docs/measurements"), help="Of measurements; PART.jsonl is written there."
)
@click.option("--model", help="quantised, naive: model of the catalogue.  [its first]")
@click.option("--sums", type=click.IntRange(min=1), default=120, help="quantised: asked at most.")
@catalog_option
@cache_dir_option
def claims(part: str, folder: Path, model: str | None, sums: int, **given: Any) -> None:
    """Measure PART; one that was cut short goes on. Other work on the machine does not change these figures.

    \b
    batching-steps  steps of one load under static, dynamic and continuous batches; a second
    quantised       what each way of quantising loses on one model; some minutes
    naive           CPU time of transformers.generate in a loop and of the core; some minutes

    Example: python -m benchmarks claims quantised --sums 60
    """

    settings = settings_from(**given)
    try:
        results = _MEASURE[part](settings, folder / f"{part}.jsonl", model, sums)
    except (MeasurementError, ValueError, OSError) as error:
        raise click.ClickException(str(error)) from error
    click.echo(msgspec.json.format(msgspec.json.encode(results), indent=1).decode())


def _batching_steps(settings: Settings, out: Path, model: str | None, most: int) -> Any:
    options = BatchingOptions()
    return count_steps(options, Measurement.begin("batching-steps", {"options": options}, out))


def _quantised(settings: Settings, out: Path, model: str | None, most: int) -> Any:
    from inference_core.quantization.calibration import calibration_text
    from quality.evaluation.quantised_model import read_questions

    spec, calibration = _spec(settings, model), calibration_text([])
    questions = read_questions(Path("docs/measurements/sums.jsonl"), most)
    given = {"model": spec.name, "calibration": calibration.digest, "samples": SAMPLES, "questions": len(questions)}
    measurement = Measurement.begin("quantised", given, out)
    return compare_ways(spec.path, settings.cache_path, calibration, questions, measurement, progress=_say)


def _naive(settings: Settings, out: Path, model: str | None, most: int) -> Any:
    from benchmarks.claims.naive import NaiveOptions, measure_naive

    spec, options = _spec(settings, model), NaiveOptions()
    measurement = Measurement.begin("naive", {"model": spec.name, "options": options}, out)
    return measure_naive(spec.path, settings.cache_path, options, measurement, progress=_say)


def _spec(settings: Settings, model: str | None) -> ModelSpec:
    from gateway.planning.load_test.run import model_of
    from tiers.catalog.load import load_catalog

    return model_of(load_catalog(settings.catalog).core, model)


def _say(what: str) -> None:
    click.echo(what, err=True)


_MEASURE = {"batching-steps": _batching_steps, "quantised": _quantised, "naive": _naive}
