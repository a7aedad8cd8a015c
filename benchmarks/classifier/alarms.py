"""False alarms and delays of the two rules that may start a retraining, on simulated verdicts (SPEC QM-04)."""

import random
import statistics
from collections import deque
from collections.abc import Callable

import click
import msgspec

from quality.estimates.verified_sample import UpgradeSettings, upgrade_rate
from quality.monitor.detectors import ShiftDetector, ShiftSettings
from quality.monitor.watches import VIEWS

# Answers of usual quality before a change.
BEFORE = 500

Observe = Callable[[bool], bool]
"""Take in whether the next answer was worse; return whether that raises an alarm."""


class Steady(msgspec.Struct, frozen=True, kw_only=True):
    """A stream whose error rate never changes and is what the classifier predicts: each alarm is false.

    `alarms`: in `answers` verdicts over all runs. `alarmed`: runs with at least one.
    """

    rule: str
    rate: float
    runs: int
    answers: int
    alarms: int
    alarmed: int

    @property
    def answers_per_alarm(self) -> float | None:
        """Verdicts between two false alarms; None if there was none."""
        return self.answers / self.alarms if self.alarms else None


class Change(msgspec.Struct, frozen=True, kw_only=True):
    """An error rate that rises after `BEFORE` answers. `delay`: the median number of answers until the alarm, None if
    fewer than half of the runs noticed; `missed`: runs without one; `early`: runs with one before the change."""

    rule: str
    before: float
    after: float
    runs: int
    delay: float | None
    missed: int
    early: int


def sequential(rate: float) -> Observe:
    """Return the product's sequential test at its default settings, for answers predicted to be worse at `rate`; one
    of the `VIEWS` streams that an answer belongs to, each of which needs the evidence for all."""
    detector = ShiftDetector(ShiftSettings(), VIEWS)
    return lambda worse: detector.observe("stream", worse, rate) is not None


def share_of_last(rate: float) -> Observe:
    """Return the sources' rule at its default settings, which starts over after an alarm; it knows no predictions."""
    settings = UpgradeSettings()
    newest: deque[bool] = deque(maxlen=settings.window)

    def observe(worse: bool) -> bool:
        newest.appendleft(not worse)
        alarm = upgrade_rate(list(newest), settings).alarm
        if alarm:
            newest.clear()
        return alarm

    return observe


RULES: dict[str, Callable[[float], Observe]] = {"evidence": sequential, "share": share_of_last}


def steady(rule: str, rate: float, *, runs: int, answers: int, seed: int) -> Steady:
    """Count the alarms of `rule` over `runs` streams of `answers` verdicts each, worse at a constant `rate`."""
    alarms = alarmed = 0
    for run in range(runs):
        observe, draw = RULES[rule](rate), random.Random(f"{seed}/{run}")
        found = sum(observe(draw.random() < rate) for _ in range(answers))
        alarms += found
        alarmed += found > 0
    return Steady(rule=rule, rate=rate, runs=runs, answers=runs * answers, alarms=alarms, alarmed=alarmed)


def change(rule: str, before: float, after: float, *, runs: int, answers: int, seed: int) -> Change:
    """Count the answers from a rise of the rate until `rule` notices, at most `answers` of them."""
    delays, missed, early = [], 0, 0
    for run in range(runs):
        observe, draw = RULES[rule](before), random.Random(f"{seed}/{run}")
        # After a false alarm the rule has started over and goes on, as in service.
        early += sum(observe(draw.random() < before) for _ in range(BEFORE)) > 0
        delay = next((n for n in range(1, answers + 1) if observe(draw.random() < after)), None)
        missed += delay is None
        delays.append(float("inf") if delay is None else delay)
    middle = statistics.median(delays)
    return Change(
        rule=rule, before=before, after=after, runs=runs, delay=None if middle == float("inf") else middle,
        missed=missed, early=early,
    )  # fmt: skip


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
