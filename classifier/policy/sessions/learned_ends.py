"""P(a session ends badly), learned per tier and client from labelled sessions, and used only where it is shown to help.

Every label is predicted before it is learned (prequential evaluation, Dawid 1984), by the session's step bucket alone
and by step bucket, trouble and last exit. The full prediction is used from 200 labels with 30 of each kind on, and only
while its log loss is below that of steps alone by a standard error.
"""

from collections import defaultdict
from math import log, sqrt
from typing import Literal

import msgspec

from classifier.policy.sessions.remaining_steps import step_bucket

LastExit = Literal["passed", "failed", "unknown"]
LEAST_LABELS, LEAST_OF_A_KIND = 200, 30
PRIOR_BAD = 0.5
N0 = 10.0
"""Pseudo-counts of the level above: all ends, those of a step bucket, those with its signs."""


class EndSituation(msgspec.Struct, frozen=True):
    """What is known of a session at `step`: whether its loop shows trouble, and its last exit code."""

    step: int
    in_trouble: bool
    last_exit: LastExit


class EndEvidence(msgspec.Struct, frozen=True):
    """Of one tier and client: `labels`, `bad` ones among them (weights), the mean by which the full log loss is below
    that of steps alone (`gain`, nats), its standard error, and whether predictions are used."""

    labels: float
    bad: float
    gain: float
    standard_error: float
    is_active: bool


class LearnedEnds:
    """Counts of ends per tier and client. Not thread-safe: one owner writes and reads it."""

    def __init__(self) -> None:
        self._tables: dict[tuple[int, str], _EndTable] = defaultdict(_EndTable)

    def observe(self, tier: int, client: str, situation: EndSituation, *, bad: bool, weight: float = 1.0) -> None:
        """Learn how a session of `client` on `tier` ended that once was in `situation`. One situation a session, drawn
        at random or fixed by step, so that labels are independent. `weight`: of the label, in (0, 1]."""
        self._tables[tier, client].observe(situation, bad, weight)

    def predict(self, tier: int, client: str, situation: EndSituation) -> float | None:
        """Return P(bad end); None while the signs have not been shown to help."""
        table = self._tables.get((tier, client))
        if table is None or not table.evidence().is_active:
            return None
        return table.rates(situation)[1]

    def evidence(self, tier: int, client: str) -> EndEvidence:
        """Return what the labels of `tier` and `client` show."""
        return self._tables.get((tier, client), _EndTable()).evidence()


class _EndTable:
    """The counts [labels, bad] of all ends, of step buckets, and of step buckets with signs."""

    def __init__(self) -> None:
        self._counts: dict[tuple[int | bool | str, ...], list[float]] = defaultdict(lambda: [0.0, 0.0])
        # Of the differences of log losses: their weights, weighted sum, and weighted sum of squares.
        self._weight = self._sum = self._squares = 0.0

    def observe(self, situation: EndSituation, bad: bool, weight: float) -> None:
        by_steps, by_signs = self.rates(situation)
        difference = _loss(by_steps, bad) - _loss(by_signs, bad)
        self._weight += weight
        self._sum += weight * difference
        self._squares += weight * difference**2
        for cell in _cells(situation):
            counts = self._counts[cell]
            counts[0] += weight
            counts[1] += weight * bad

    def rates(self, situation: EndSituation) -> tuple[float, float]:
        """Return P(bad end) by the step bucket alone, and by all signs."""
        rate, rates = PRIOR_BAD, []
        for cell in _cells(situation):
            labels, bad = self._counts.get(cell, (0.0, 0.0))
            rate = (N0 * rate + bad) / (N0 + labels)
            rates.append(rate)
        return rates[1], rates[2]

    def evidence(self) -> EndEvidence:
        labels, bad = self._counts.get((), (0.0, 0.0))
        if self._weight <= 1.0:
            return EndEvidence(labels, bad, 0.0, float("inf"), False)
        gain = self._sum / self._weight
        error = sqrt(max(0.0, self._squares / self._weight - gain**2) / self._weight)
        enough = labels >= LEAST_LABELS and min(bad, labels - bad) >= LEAST_OF_A_KIND
        return EndEvidence(labels, bad, gain, error, enough and gain > error)


def _cells(situation: EndSituation) -> tuple[tuple[int | bool | str, ...], ...]:
    bucket = step_bucket(situation.step)
    return (), (bucket,), (bucket, situation.in_trouble, situation.last_exit)


def _loss(p_bad: float, bad: bool) -> float:
    """The log loss of a prediction, in nats. Beta-smoothed rates are never 0 or 1."""
    return -log(p_bad if bad else 1.0 - p_bad)
