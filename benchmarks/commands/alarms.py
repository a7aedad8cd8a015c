"""`python -m benchmarks alarms`: what the two triggers of a retraining cost in false alarms and in delay."""

import click
import msgspec

from benchmarks.classifier.alarms import BEFORE, RULES, Change, Steady, change, steady


@click.command()
@click.option("--rate", "rates", type=click.FloatRange(0, 1, min_open=True, max_open=True), multiple=True,
              help="Constant share of worse answers.  [0.05, 0.1, 0.12, 0.14, 0.2]")  # fmt: skip
@click.option("--rise", "rises", type=(float, float), multiple=True,
              help="Shares before and after a change.  [0.05 0.2, 0.05 0.5, 0.1 0.3, 0.2 0.4]")  # fmt: skip
@click.option("--runs", type=click.IntRange(min=1), default=100, show_default=True)
@click.option("--answers", type=click.IntRange(min=1), default=10_000, show_default=True, help="Verdicts of a run.")
@click.option("--seed", default=0, show_default=True)
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def alarms(
    rates: tuple[float, ...], rises: tuple[tuple[float, float], ...], runs: int, answers: int, seed: int, as_json: bool
) -> None:
    """False alarms and delays of the triggers `evidence` and `share`, simulated at their default settings."""
    found: list[Steady | Change] = [
        steady(rule, rate, runs=runs, answers=answers, seed=seed)
        for rate in rates or (0.05, 0.1, 0.12, 0.14, 0.2)
        for rule in RULES
    ]
    found += [
        change(rule, before, after, runs=runs, answers=answers, seed=seed)
        for before, after in rises or ((0.05, 0.2), (0.05, 0.5), (0.1, 0.3), (0.2, 0.4))
        for rule in RULES
    ]
    if as_json:
        click.echo(msgspec.json.encode(found))
        return
    click.echo(f"{runs} runs of {answers:,} verdicts; a change comes after {BEFORE}")
    for one in found:
        click.echo(_steady(one) if isinstance(one, Steady) else _change(one))


def _steady(one: Steady) -> str:
    apart = "none" if one.answers_per_alarm is None else f"one per {one.answers_per_alarm:,.0f} verdicts"
    return f"{one.rule:<9} steady {one.rate:>4.0%}         false alarms: {one.alarms:>6,}, {apart}"


def _change(one: Change) -> str:
    delay = "–" if one.delay is None else f"{one.delay:,.0f}"
    return (
        f"{one.rule:<9} {one.before:>4.0%} -> {one.after:>4.0%}         noticed after {delay:>5} verdicts (median), "
        f"missed in {one.missed}, an alarm before the change in {one.early}"
    )
