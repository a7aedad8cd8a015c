"""False alarms and delays of the two rules that may start a retraining, on simulated verdicts (SPEC QM-04)."""

import random
import statistics
from collections import deque
from collections.abc import Callable

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
