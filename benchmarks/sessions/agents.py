"""`python -m benchmarks agents`: the product's decision which models serve runs of agents, from few labelled tasks, and
what the pair that it chose gains on the other tasks."""

import csv
import json
from collections import Counter
from pathlib import Path

import click
import msgspec
import numpy as np

from gateway.cli.options import FILE
from quality.comparison.joint_runs import Check, RunOutcomes, decide, ordered_pairs, prior_pairs, true_gains
from quality.comparison.run_outcomes import read_outcomes
from quality.comparison.session_pairs import LEAST_TASKS


class LabelRow(msgspec.Struct, frozen=True, kw_only=True):
    """Over draws of `labels` tasks, the others held out. `pays`: the share of draws with this verdict, and `wrong` that
    in which the pair did not gain on the held-out tasks. `gain`: of the pairs that "pay", points held out over the best
    lottery of all models at equal dollars, with the 5th and 95th percentiles; `proposed`: of the likeliest pair of
    every draw, whatever the verdict. `pair`: the one that most draws name. `dealt_checks`, `dealt_rows`: the share of
    "pays" with the check's verdicts, or all rows of each model, dealt to other tasks."""

    labels: int
    draws: int
    pays: float
    wrong: float
    gain: float | None
    gain_low: float | None
    gain_high: float | None
    proposed: float
    pair: str
    alone: str
    dealt_checks: float
    dealt_rows: float


class AgentFigures(msgspec.Struct, frozen=True, kw_only=True):
    """`best` and `median`: gains in points of all ordered pairs on all tasks, which no labels tell; `paying`:
    the share of pairs with a gain."""

    models: int
    tasks: int
    check: Check
    best: float
    best_pair: str
    median: float
    worst: float
    paying: float
    rows: list[LabelRow]
    left_out: list[str]


def measure(
    outcomes: RunOutcomes, labels: int, check: Check, scores: dict[str, float], draws: int, seed: int
) -> LabelRow:
    """Return what `draws` decisions from `labels` tasks each are worth on the other tasks. Without labels the mean
    dollars of a run stand for list prices, and the prior alone proposes. Raises `ValueError` where fewer than
    `LEAST_TASKS` tasks are left."""
    tasks = len(outcomes.resolved)
    if tasks - labels < LEAST_TASKS:
        raise ValueError(f"{labels} of {tasks} tasks are labelled; at least {LEAST_TASKS} must be held out")
    rng = np.random.default_rng([seed, labels])
    public = np.array([scores.get(model, np.nan) for model in outcomes.models])
    prior = prior_pairs(np.nanmean(outcomes.usd, axis=0), check, public)
    # Dollars alone order pairs before any label, but are worth no share of the error probability.
    named = prior if np.isfinite(public).any() else []
    first, second = ordered_pairs(len(outcomes.models))
    names = [f"{outcomes.models[i]} > {outcomes.models[j]}" for i, j in zip(first, second, strict=True)]
    index_by_name = {name: number for number, name in enumerate(names)}
    chosen, alone, gains, pays, dealt = [], [], [], [], []
    for _ in range(draws if labels else 1):
        order = rng.permutation(tasks)
        seen, held = (_rows(outcomes, part) for part in (order[:labels], order[labels:]))
        if labels < 2:
            pair, verdict = names[prior[0]], False
        else:
            decision = decide(seen, check, named)
            pair, verdict = f"{decision.first} > {decision.second}", decision.verdict == "pays"
            alone.append(decision.alone)
            controls = (
                decide(seen, check, named, seen=_dealt(seen, rng).resolved),
                decide(_dealt(seen, rng), check, named),
            )
            dealt.append([control.verdict == "pays" for control in controls])
        chosen.append(pair)
        pays.append(verdict)
        gains.append(100 * float(true_gains(held, check)[index_by_name[pair]]))
    paid, gained = np.array(pays), np.array(gains)
    shares = np.mean(dealt, axis=0) if dealt else np.zeros(2)
    return LabelRow(
        labels=labels,
        draws=len(gains),
        pays=float(paid.mean()),
        wrong=float((paid & (gained <= 0)).mean()),
        gain=float(gained[paid].mean()) if paid.any() else None,
        gain_low=float(np.quantile(gained[paid], 0.05)) if paid.any() else None,
        gain_high=float(np.quantile(gained[paid], 0.95)) if paid.any() else None,
        proposed=float(gained.mean()),
        pair=Counter(chosen).most_common(1)[0][0],
        alone=Counter(alone).most_common(1)[0][0] if alone else "",
        dealt_checks=float(shares[0]),
        dealt_rows=float(shares[1]),
    )


def made_ladder(models: int, seed: int, tasks: int = 600) -> RunOutcomes:
    """Return outcomes of made models: each has an ability, a price that rises with it on average, and luck of its own;
    each task is of one difficulty for all of them."""
    rng = np.random.default_rng(seed)
    ability, hard = rng.normal(0.3, 1.0, models), rng.normal(0.0, 1.6, (tasks, 1))
    price = np.exp(0.7 * ability + rng.normal(-1.0, 1.0, models))
    luck = rng.normal(0, 0.9, (tasks, models)) + rng.logistic(0, 0.6, (tasks, models))
    resolved = (ability - hard + luck > 0).astype(np.float64)
    usd = price * np.exp(rng.normal(0, 0.6, (tasks, models)) + 0.25 * hard)
    return RunOutcomes([f"model-{number}" for number in range(models)], resolved, usd)


def _rows(outcomes: RunOutcomes, tasks: np.ndarray) -> RunOutcomes:
    return outcomes._replace(resolved=outcomes.resolved[tasks], usd=outcomes.usd[tasks])


def _dealt(outcomes: RunOutcomes, rng: np.random.Generator) -> RunOutcomes:
    """The runs of each model, dealt to tasks at random."""
    order = rng.permuted(np.tile(np.arange(len(outcomes.resolved)), (len(outcomes.models), 1)), axis=1).T
    return outcomes._replace(
        resolved=np.take_along_axis(outcomes.resolved, order, 0), usd=np.take_along_axis(outcomes.usd, order, 0)
    )


def _scores(file: Path | None) -> dict[str, float]:
    """Public scores by model, from a JSON object or lines MODEL,SCORE; percentages are shares of 100."""
    if file is None:
        return {}
    text = file.read_text(encoding="utf-8-sig")
    try:
        rows = json.loads(text).items() if text.lstrip().startswith("{") else csv.reader(text.splitlines())
        listed = [(str(row[0]), row[1]) for row in rows if len(row) > 1]
        # The first line may have names.
        scores = {model: float(score) for model, score in listed[0 if _is_number(listed[0][1]) else 1 :]}
    except (ValueError, TypeError, IndexError, AttributeError) as error:
        raise ValueError(f"{file}: not MODEL,SCORE lines or a JSON object: {error}") from error
    return {model: score / 100 if max(scores.values()) > 1 else score for model, score in scores.items()}


def _is_number(value: object) -> bool:
    try:
        return float(str(value)) >= 0
    except ValueError:
        return False


def _counts(_context: click.Context, parameter: click.Parameter, value: str) -> list[int]:
    try:
        counts = [int(part) for part in value.split(",")]
    except ValueError:
        counts = [-1]
    if min(counts) < 0:
        raise click.BadParameter(f"{value!r} is no list of numbers from 0 on, as 0,30,60,100", param=parameter)
    return counts


@click.command()
@click.argument("file", required=False, type=FILE)
@click.option("--made", type=click.IntRange(min=2), help="So many made models instead of a file.")
@click.option("--labels", callback=_counts, default="0,30,60,100", help="Labelled tasks.")
@click.option("--catches", type=click.FloatRange(0, 1), default=0.7, help="Share of failures that the check rejects.")
@click.option("--rejects", type=click.FloatRange(0, 1), default=0.1, help="Share of good runs that it rejects.")
@click.option("--scores", type=FILE, help="Public scores: MODEL,SCORE lines or a JSON object.")
@click.option("--draws", type=click.IntRange(min=1), default=100, help="Random sets of labelled tasks.")
@click.option("--seed", default=0)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def agents(
    file: Path | None, made: int | None, labels: list[int], catches: float, rejects: float, scores: Path | None,
    draws: int, seed: int, as_json: bool,
) -> None:  # fmt: skip
    """Decide which two models serve runs of agents, in which order behind a check, or that no pair pays, by N labelled
    tasks of FILE: rows (task, model, resolved, usd) as CSV, JSON or JSON lines, gzipped or not."""
    check = Check(catches, rejects)
    if (file is None) == (made is None):
        raise click.UsageError("give FILE, or --made")
    try:
        outcomes, left_out = (made_ladder(made or 2, seed), list[str]()) if file is None else read_outcomes(file)
        rows = [measure(outcomes, count, check, _scores(scores), draws, seed) for count in labels]
    except (ValueError, OSError) as error:
        raise click.ClickException(str(error)) from error
    gains = 100 * true_gains(outcomes, check)
    first, second = ordered_pairs(len(outcomes.models))
    best = int(gains.argmax())
    figures = AgentFigures(
        models=len(outcomes.models),
        tasks=len(outcomes.resolved),
        check=check,
        best=float(gains[best]),
        best_pair=f"{outcomes.models[first[best]]} > {outcomes.models[second[best]]}",
        median=float(np.median(gains)),
        worst=float(gains.min()),
        paying=float((gains > 0).mean()),
        rows=rows,
        left_out=left_out,
    )
    if as_json:
        click.echo(msgspec.json.encode(figures))
        return
    _print(figures)


def _print(figures: AgentFigures) -> None:
    for line in figures.left_out:
        click.echo(f"note: {line}")
    check = figures.check
    click.echo(
        f"{figures.models} models, {figures.tasks} tasks; a check that catches {check.catches:.0%} of failures and "
        f"rejects {check.rejects:.0%} of good runs. Gains in points over the best lottery of all models at equal "
        f"dollars: of all pairs {figures.paying:.0%} gain; best {figures.best:+.1f} ({figures.best_pair}), median "
        f"{figures.median:+.1f}, worst {figures.worst:+.1f}."
    )
    for row in figures.rows:
        gain = "–" if row.gain is None else f"{row.gain:+.1f} [{row.gain_low:+.1f}, {row.gain_high:+.1f}]"
        click.echo(
            f"{row.labels:4} labels: pays in {row.pays:.0%} of {row.draws} draws, held-out gain {gain}, wrong in "
            f"{row.wrong:.1%}; likeliest pair {row.pair} (of all draws {row.proposed:+.1f}), alone {row.alone or '–'}; "
            f"controls: checks dealt to other tasks {row.dealt_checks:.1%}, rows dealt {row.dealt_rows:.1%}."
        )
