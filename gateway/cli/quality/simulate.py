"""`aio quality simulate`: the closed loop on recorded outcomes, measured against the truth."""

from pathlib import Path
from typing import TYPE_CHECKING

import click

from gateway.cli.cluster import joined
from gateway.cli.options import echo_json, json_option, staged_progress

if TYPE_CHECKING:
    from quality.laboratory.run import RunResult
    from quality.laboratory.study import RunAll

_PATH = click.Path(path_type=Path)


@click.command()
@click.option("--runs", type=click.IntRange(min=1), default=20, show_default=True, help="Of each scenario.")
@click.option("--noisy-runs", type=click.IntRange(min=1), help="Of scenarios whose judge errs.  [--runs]")
@click.option("--seed", type=click.IntRange(min=0), default=0, show_default=True, help="Of the first run.")
@click.option("--scenario", "names", multiple=True, metavar="NAME", help="Only this one; may be repeated.  [all]")
@click.option("--scenarios", type=_PATH, help="TOML file of scenarios.  [lab/scenarios.toml beside the data's folder]")
@click.option("--data", type=_PATH, help="Folder with routing_outcomes.jsonl.gz.  [AIO_DATA]")
@click.option(
    "--out", type=_PATH, default=Path("build/quality-lab"), show_default=True, help="Where finished runs are kept."
)
@click.option("--teacher", default="", help="Model that the shipped artefact's encoder is distilled from.  [none]")
@click.option(
    "--mean-cost",
    type=click.FloatRange(min=1),
    default=4.1,
    show_default=True,
    help="Of a warm-up request, in units of tier 1's price; sets lambda.",
)
@click.option(
    "--cheap-mean-cost",
    type=click.FloatRange(min=1),
    default=2.3,
    show_default=True,
    help="The same where a domain comes that is new.",
)
@click.option(
    "--false-alarm-every",
    type=click.FloatRange(min=1),
    default=2000.0,
    show_default=True,
    help="Verified answers between two false alarms.",
)
@click.option("--write", type=_PATH, help="Put tables and plots on this page, and the figures beside it.")
@click.option("--cluster", "address", metavar="ADDRESS", help="Run on a Ray cluster: auto, HOST:PORT, ray://HOST:PORT.")
@json_option
def simulate(
    runs: int,
    noisy_runs: int | None,
    seed: int,
    names: tuple[str, ...],
    scenarios: Path | None,
    data: Path | None,
    out: Path,
    teacher: str,
    mean_cost: float,
    cheap_mean_cost: float,
    false_alarm_every: float,
    write: Path | None,
    address: str | None,
    as_json: bool,
) -> None:
    """Replay recorded outcomes through router, monitor and retrainer, and tell what the loop did, by the truth.

    Example: aio quality simulate --scenario new_domain --runs 3
    """
    from classifier.errors import TrainingDataError
    from classifier.training.dataset import data_folder, load_outcomes
    from quality.laboratory.page import PageError, study_text
    from quality.laboratory.report import study_of
    from quality.laboratory.scenario import ScenarioError, read_scenarios
    from quality.laboratory.study import StudySettings, run_study

    folder = data or data_folder()
    settings = StudySettings(
        teacher=teacher,
        mean_cost=mean_cost,
        cheap_mean_cost=cheap_mean_cost,
        false_alarm_every=false_alarm_every,
    )
    try:
        known = read_scenarios(scenarios or folder.parent / "lab" / "scenarios.toml")
        with staged_progress("simulating") as progress:
            results = run_study(
                load_outcomes(folder),
                known,
                list(names or known.scenario),
                out,
                settings,
                runs=runs,
                noisy_runs=noisy_runs,
                seed=seed,
                progress=progress,
                run_all=_runner(address),
            )
        study = study_of(results)
        if write is not None:
            _write(write, results)
    except (ScenarioError, TrainingDataError, PageError) as error:
        raise click.ClickException(str(error)) from error
    if as_json:
        echo_json(study)
    else:
        click.echo(study_text(study))


def _runner(address: str | None) -> "RunAll":
    """Here, or by tasks on all nodes of a cluster."""
    if address is None:
        from quality.laboratory.study import in_turn

        return in_turn
    joined(address)
    from gateway.cluster.laboratory import on_cluster

    return on_cluster


def _write(page: Path, results: "list[RunResult]") -> None:
    """Tables on the page, plots and figures in their folders beside it."""
    import msgspec

    from quality.laboratory.page import put_on_page
    from quality.laboratory.report import study_of

    try:
        from quality.laboratory.plots import draw_plots
    except ModuleNotFoundError as error:
        raise click.ClickException(f"plots need matplotlib: pip install 'aio-gateway[dev]' ({error})") from error
    study = study_of(results)
    drawn = draw_plots(results, page.parent / "img")
    put_on_page(page, study, [f"![{path.stem}](img/{path.name})" for path in drawn])
    measured = page.parent / "measurements" / "quality_lab.json"
    measured.parent.mkdir(parents=True, exist_ok=True)
    measured.write_bytes(msgspec.json.format(msgspec.json.encode(study), indent=1) + b"\n")
