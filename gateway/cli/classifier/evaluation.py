"""`aio classifier evaluate` and `aio classifier card`: every table on the same rows, and the page made of them."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from gateway.cli.options import data_dir_option, json_option, settings_from, staged_progress

if TYPE_CHECKING:
    from classifier.training.evaluate_command import EvaluateOptions, EvaluateOutcome
    from classifier.training.evaluation import Evaluation

# Whole domains kept from training in the model card: subjects, a benchmark of code and one of commonsense.
CARD_HOLD = "moral_scenarios,professional_psychology,high_school_us_history,mbpp,openbook_qa"

_data = click.option(
    "--data",
    type=click.Path(exists=True, path_type=Path),
    help="Folder with routing_outcomes.jsonl.gz, or a file of such rows.  [AIO_DATA; ../shared/data]",
)
_keep = click.option(
    "--keep",
    type=click.Path(file_okay=False, path_type=Path),
    help="Keep predictions of the compared predictors here; another run takes them from there.",
)
_predictions = click.option(
    "--predictions",
    multiple=True,
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="Predictions of another predictor that join the tables (repeatable).",
)


@click.command()
@click.argument("artefact", type=click.Path(exists=True, file_okay=False, path_type=Path), required=False)
@_data
@click.option("--split", type=click.Choice(["train", "valid", "test"]), default="test", show_default=True)
@click.option("--hold", multiple=True, metavar="DOMAIN,…", help="Also fit everything anew without these domains.")
@_predictions
@_keep
@click.option("--baselines/--no-baselines", default=True, show_default=True, help="Fit the simple predictors too.")
@click.option("--learning-curve", is_flag=True, help="Fit the recipe on ever more labels.")
@click.option("--plots", type=click.Path(file_okay=False, path_type=Path), help="Folder for PNGs; needs matplotlib.")
@data_dir_option
@json_option
def evaluate(
    artefact: Path | None,
    data: Path | None,
    split: str,
    hold: tuple[str, ...],
    predictions: tuple[Path, ...],
    keep: Path | None,
    baselines: bool,
    learning_curve: bool,
    plots: Path | None,
    as_json: bool,
    **given: Any,
) -> None:
    """Measure ARTEFACT (by default the version that serves) beside simple predictors on the same rows.

    Thresholds come from the valid split. Leaves with status 1 if a gate refuses the artefact.

    Example: aio classifier evaluate --split test --hold mbpp,openbook_qa --plots /tmp/plots
    """
    from classifier.training.evaluate_command import EvaluateOptions

    options = EvaluateOptions(
        split=split,
        hold=_domains(hold),
        predictions=predictions,
        keep=keep,
        baselines=baselines,
        learning=learning_curve,
    )
    outcome = _measured(artefact, data, options, **given)
    click.echo(outcome.json if as_json else outcome.text)
    if plots is not None:
        for path in _drawn(outcome.evaluation, plots):
            click.echo(str(path), err=True)
    if outcome.refusals:
        raise SystemExit(1)


@click.command()
@click.option("--measure", is_flag=True, help="Measure the serving version first.  [draws what is stored]")
@click.option(
    "--stored",
    type=click.Path(dir_okay=False, path_type=Path),
    default=Path("docs/measurements/classifier.json"),
    show_default=True,
    help="The measurement, as `evaluate --json` prints it.",
)
@click.option(
    "--page",
    type=click.Path(dir_okay=False, path_type=Path),
    default=Path("docs/classifier.md"),
    show_default=True,
    help="The page that is written.",
)
@click.option(
    "--images",
    type=click.Path(file_okay=False, path_type=Path),
    default=Path("docs/img"),
    show_default=True,
    help="Folder for its plots.",
)
@click.option("--hold", default=CARD_HOLD, show_default=True, metavar="DOMAIN,…", help="Domains kept from training.")
@click.option("--artefact", type=click.Path(exists=True, file_okay=False, path_type=Path), help="Another version.")
@click.option(
    "--refits-from",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="Take unseen domains and learning curve, which fit the recipe anew, from this earlier measurement.",
)
@_data
@_predictions
@_keep
@data_dir_option
def card(
    measure: bool,
    stored: Path,
    page: Path,
    images: Path,
    hold: str,
    artefact: Path | None,
    refits_from: Path | None,
    data: Path | None,
    predictions: tuple[Path, ...],
    keep: Path | None,
    **given: Any,
) -> None:
    """Write the model card: tables and plots of a stored measurement, put into the page's own words.

    Example: aio classifier card --measure
    """
    from classifier.errors import TrainingDataError
    from classifier.training.card import card_text, read_evaluation, with_refits, write_evaluation
    from classifier.training.evaluate_command import EvaluateOptions

    if measure:
        options = EvaluateOptions(
            hold=() if refits_from else _domains((hold,)),
            predictions=predictions,
            keep=keep,
            learning=refits_from is None,
        )
        earlier = None if refits_from is None else read_evaluation(refits_from)
        measured = _measured(artefact, data, options, **given).evaluation
        write_evaluation(measured if earlier is None else with_refits(measured, earlier), stored)
    try:
        evaluation = read_evaluation(stored)
    except TrainingDataError as error:
        raise click.ClickException(str(error)) from error
    page.write_text(card_text(evaluation), encoding="utf-8")
    for path in (page, *_drawn(evaluation, images)):
        click.echo(str(path))


def _domains(given: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(domain.strip() for part in given for domain in part.split(",") if domain.strip())


def _measured(artefact: Path | None, data: Path | None, options: "EvaluateOptions", **given: Any) -> "EvaluateOutcome":
    from classifier.errors import ArtefactError, TrainingDataError
    from classifier.training.evaluate_command import evaluate_command

    folder = artefact or _serving(settings_from(**given).registry_path)
    try:
        with staged_progress("measuring") as show:
            return evaluate_command(folder, data=data, options=options, progress=show)
    except (ArtefactError, TrainingDataError) as error:
        raise click.ClickException(str(error)) from error


def _drawn(evaluation: "Evaluation", folder: Path) -> list[Path]:
    """Plots of the evaluation. Raises `ClickException` without matplotlib."""
    try:
        from classifier.training.evaluation_plots import draw_plots
    except ModuleNotFoundError as error:
        raise click.ClickException(f"plots need matplotlib: pip install 'aio-gateway[dev]' ({error})") from error
    return draw_plots(evaluation, folder)


def _serving(root: Path) -> Path:
    from classifier.artefact import default_artefact
    from classifier.registry import POINTER, ArtefactRegistry

    return ArtefactRegistry(root).current() if (root / POINTER).is_file() else default_artefact()
