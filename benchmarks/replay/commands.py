"""`python -m benchmarks demo`, on real answers; `demo-replay`, `replay`, `retrainings`, `utility`, on recorded ones."""

import asyncio
import sys
from pathlib import Path

import click
import numpy as np

from benchmarks.replay.checks import checks
from benchmarks.replay.demo import demo as replay_demo
from benchmarks.replay.deployment import Conditions
from benchmarks.replay.figures import Figure
from benchmarks.replay.ladder import Ladder
from benchmarks.replay.ladder_demo import QUESTIONS
from benchmarks.replay.ladder_demo import demo as ladder_demo
from benchmarks.replay.lives import Gains, gains
from benchmarks.replay.own_prompts import own_prompts
from benchmarks.replay.plans import own_plans, recorded_plans
from benchmarks.replay.recorded import CUSTOMER_MODELS, arena, customers
from benchmarks.replay.report import report
from benchmarks.replay.retrainings import drawn_lines, retrained
from benchmarks.replay.timeline import NEW_KIND, REPAIRED, RETRAINED, Life, Look, Plan, live
from benchmarks.replay.utility import COUNTS, ERROR, ROUTED, WITHIN, labels_until_within, read_customers, table
from classifier.training.data.dataset import data_folder
from gateway.cli.options import FILE, NEW_FILE

_data_option = click.option(
    "--data", type=click.Path(path_type=Path), help="Folder of the recorded files.  [AIO_DATA; ../shared/data]"
)


@click.command()
@click.option("--seed", default=0, help="Of the questions.")
@click.option("--questions", type=click.IntRange(25, 400), default=QUESTIONS, help="So many, in all.")
@click.option("--page", type=NEW_FILE, default=Path("build/demo.md"), help="What it said, with the table of figures.")
def demo(seed: int, questions: int, page: Path) -> None:
    """The loop once with the catalogue `ladder`, whose models answer here: the first day, labels by checks, a tier
    that gets worse. Two to four minutes on two idle cores. Exits with 1 if a stated property fails."""
    try:
        held = asyncio.run(ladder_demo(click.echo, page, seed, questions))
    except ValueError as error:
        raise click.ClickException(str(error)) from error
    if not held:
        sys.exit(1)


@click.command()
@click.option("--seed", default=0, help="Of the prompts.")
def demo_replay(seed: int) -> None:
    """The loop once on declared answers, without a model: the first day, what labels change, a tier that gets worse.
    Under two minutes."""
    if not asyncio.run(replay_demo(click.echo, seed)):
        sys.exit(1)


@click.command()
@click.argument("ladder", type=click.Choice(["arena", *CUSTOMER_MODELS, "own"]), default="arena")
@_data_option
@click.option("--folds", type=click.IntRange(min=2), default=5, help="Deployments; each holds out one.")
@click.option("--only", type=click.IntRange(min=1), help="So many of the folds.  [all]")
@click.option("--prompts", type=click.IntRange(min=50), default=1000, help="Of the ladder, at most.")
@click.option("--labels", type=click.IntRange(min=1), default=80, help="Before each retraining.")
@click.option("--rounds", type=click.IntRange(min=1), default=1, help="Retrainings before changes.")
@click.option("--noise", type=click.FloatRange(0, 0.5), default=0.08, help="The judge's errors.")
@click.option("--until", type=click.Choice([RETRAINED, REPAIRED, NEW_KIND]), default=NEW_KIND)
@click.option("--shuffle-labels", is_flag=True, help="Break the loop: verdicts speak of other prompts.")
@click.option("--no-verification", is_flag=True, help="Break the loop: nothing is verified.")
@click.option("--lives", type=click.IntRange(min=2), help="Without a gateway, so many times: what is luck of labels.")
@click.option("--seed", default=0, help="Of the order of prompts.")
def replay(
    ladder: str,
    data: Path | None,
    folds: int,
    only: int | None,
    prompts: int,
    labels: int,
    rounds: int,
    noise: float,
    until: str,
    shuffle_labels: bool,
    no_verification: bool,
    lives: int | None,
    seed: int,
) -> None:
    """The whole gateway from a cold start in front of a recorded LADDER: labels, retraining, a tier that gets worse, a
    kind of prompts that arrives new; then its figures and those of other routers. Exits with 1 if a check fails."""
    if ladder == "own":
        plans = own_plans(prompts, labels=labels, rounds=rounds, seed=seed)
    else:
        recorded = _recorded(ladder, data or data_folder())
        plans = recorded_plans(recorded, folds, prompts=prompts, labels=labels, rounds=rounds, seed=seed)[:only]
    if lives is not None:
        click.echo(_lived_often(ladder, gains(plans, lives, noise)))
        return
    conditions = Conditions(judge_noise=noise, labels_shuffled=shuffle_labels, verification=not no_verification)
    lived = [_lived(number, plan, conditions, until) for number, plan in enumerate(plans, start=1)]
    checks_by_fold = [checks(life, labels) for life in lived]
    click.echo(f"{ladder}: {len(plans)} deployments, the judge wrong about {noise:.0%} of the pairs\n")
    click.echo(report(lived, checks_by_fold))
    if not all(check.passed for fold in checks_by_fold for check in fold):
        sys.exit(1)


@click.command()
@click.argument("ladder", type=click.Choice([*CUSTOMER_MODELS, "own"]), default="reasoning_gym")
@_data_option
@click.option("--draws", type=click.IntRange(min=1), default=25, help="Retrainings, each on labels of its own.")
@click.option("--labels", type=click.IntRange(min=50), default=300, help="Before each.")
@click.option("--noise", type=click.FloatRange(0, 0.5), default=0.08, help="The judge's errors.")
@click.option("--shuffle-labels", is_flag=True, help="Deal each tier's labels out to other prompts.")
@click.option("--seed", default=1, help="Of the labels; the gate was chosen on seeds 0 and 2.")
def retrainings(
    ladder: str, data: Path | None, draws: int, labels: int, noise: float, shuffle_labels: bool, seed: int
) -> None:
    """How often retrainings on labels of a recorded LADDER promote, and how often an oracle agrees."""
    prompts = own_prompts(1000, seed) if ladder == "own" else _recorded(ladder, data or data_folder())
    try:
        drawn = asyncio.run(retrained(prompts, draws, labels, noise, shuffled=shuffle_labels, seed=seed))
    except ValueError as error:
        raise click.ClickException(str(error)) from error
    click.echo(f"{ladder}: {draws} retrainings on {labels} {'shuffled ' if shuffle_labels else ''}labels, seed {seed}")
    click.echo(drawn_lines(drawn))


def _recorded(ladder: str, folder: Path) -> Ladder:
    try:
        return arena(folder) if ladder == "arena" else customers(folder, ladder)
    except FileNotFoundError as error:
        raise click.ClickException(f"{error.filename} is missing; give its folder with --data.") from error


def _lived_often(ladder: str, gained: Gains) -> str:
    lines = [f"{ladder}: {len(gained.together)} lives, choices {gained.choices}; points of utility over the lottery"]
    for name, points in (
        ("all folds", gained.together),
        ("a fold alone", gained.alone),
        ("over its choices shuffled", gained.over_shuffled),
    ):
        low, high = np.quantile(points, [0.025, 0.975])
        lines.append(f"  {name:<26}{points.mean():+.2f}, 95% of lives {low:+.1f} to {high:+.1f}")
    return "\n".join(lines)


def _lived(number: int, plan: Plan, conditions: Conditions, until: str) -> Life:
    def say(look: Look) -> None:
        spent = look.spent
        click.echo(f"{number}: {look.phase}, {spent.requests} requests, {spent.labels} labels", err=True)

    return asyncio.run(live(plan, conditions, say, until))


@click.command()
@click.argument("file", type=FILE)
@click.option("--weak", required=True, help="Name of the cheaper model in the file's outcomes.")
@click.option("--strong", required=True, help="Name of the dearer model.")
@click.option("--rate", type=click.FloatRange(0, 1), required=True, help="Price difference in units of quality.")
@click.option("--by", type=click.Choice(["domain", "group"]), default="domain", help="A customer.")
@click.option(
    "--labels",
    "counts",
    type=click.IntRange(min=0),
    multiple=True,
    help=f"Own labels.  [{', '.join(map(str, COUNTS))}]",
)
@click.option("--draws", type=click.IntRange(min=1), default=6, help="Of the labels, per customer.")
@click.option("--least", type=click.IntRange(min=2), default=450, help="Rows of a customer.")
@click.option("--seed", default=0)
def utility(
    file: Path, weak: str, strong: str, rate: float, by: str, counts: tuple[int, ...], draws: int, least: int, seed: int
) -> None:
    """What routing between two models of FILE (JSON lines, as customers.jsonl.gz) is worth after N own labels."""
    try:
        customers = read_customers(file, weak, strong, by, least)
    except ValueError as error:
        raise click.ClickException(str(error)) from error
    click.echo(f"{len(customers)} customers, {sum(map(len, customers.values()))} rows; points of 100, 95% intervals")
    outcomes = table(customers, rate, counts or COUNTS, draws, seed)
    for way, labels, points in outcomes:
        click.echo(f"{way:<14} {f'{labels} labels' if way in (*ROUTED, ERROR) else '':>10}  {_signed(points)}")
    for way in ROUTED:
        until = labels_until_within(outcomes, way)
        when = "after none of these numbers of labels" if until is None else f"from {until} labels on"
        click.echo(f"{way:<14} within {WITHIN:g} point of each customer's better constant {when}")


def _signed(figure: Figure) -> str:
    return f"{figure.value:+6.2f} [{figure.low:+6.2f}, {figure.high:+6.2f}]"
