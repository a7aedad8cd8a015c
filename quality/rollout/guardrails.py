"""Guardrails of an experiment: it ends early once arm b costs more, or lets its callers wait longer, than arm a by more
than a stated margin (SPEC QM-11).

**Units, not requests.** Requests of one user or conversation are alike and have one arm, so they are no independent
observations. A unit of the split therefore counts once, with the mean of its requests, and the units' means are
compared by Welch's test: the analysis at the level of clusters of trials that assign clusters (Donner and Klar, "Design
and Analysis of Cluster Randomization Trials in Health Research", 2000; for experiments online Deng, Lu and Litz,
"Trustworthy Analysis of Online A/B Tests", WSDM 2017). A heavy user weighs as much as a light one, so the arm that
it happens to be in is not misjudged. The sum over requests divided by their number is another figure, which it moves.

**Looks.** The first look is after `FIRST_LOOK` requests of both arms, the next each time there are half as many again.
Look k tests each of m guardrails at level / (m k (k + 1)). These levels sum to `level`, so by the union bound the
probability of ending an experiment whose arms are within all margins is at most `level`, however long it runs and
however the looks depend on each other, as far as means of `FEWEST_UNITS` units and more are normal (spending a level
over looks: Lan and DeMets, "Discrete sequential boundaries for clinical trials", Biometrika 70, 1983). When a look
happens depends on the number of requests alone, never on what was measured.
"""

import math
from collections.abc import Mapping
from typing import Any, Literal

import msgspec
from sqlalchemy import ColumnElement, and_, case, func, or_, select
from sqlalchemy.ext.asyncio import AsyncEngine

from migrations.tables.requests import requests, routing_decisions
from quality.statistics import Sample, exceeds_p_value

Measure = Literal["cost", "ttft", "e2e"]
MEASURES: dict[Measure, str] = {
    "cost": "the cost per request",
    "ttft": "the time to the first token",
    "e2e": "the time to the end of an answer",
}
FIRST_LOOK, GROWTH = 50, 1.5
FEWEST_UNITS = 10
Samples = Mapping[tuple[str, Measure], Sample]
"""By arm (a or b) and measure: one value per unit, in US dollars or milliseconds."""


class Guardrails(msgspec.Struct, frozen=True, kw_only=True):
    """By what share of arm a's mean arm b's may exceed it: 0.5 lets b cost half as much again; None: any amount. Raises
    `ValueError` for a negative or infinite margin."""

    cost: float | None = None
    ttft: float | None = None
    e2e: float | None = None

    def __post_init__(self) -> None:
        for measure, margin in self.margins.items():
            if not 0.0 <= margin < math.inf:
                raise ValueError(f"the margin of {measure} is {margin}; it must be at least 0, or none")

    @property
    def margins(self) -> dict[Measure, float]:
        margin_by_measure: dict[Measure, float | None] = {"cost": self.cost, "ttft": self.ttft, "e2e": self.e2e}
        return {measure: margin for measure, margin in margin_by_measure.items() if margin is not None}


class Guarded(msgspec.Struct, frozen=True, kw_only=True):
    """A guardrail at its last look: the means `a` and `b` over the arms' units, in US dollars or milliseconds (None
    without units), and the p-value of "b exceeds a by no more than `margin`", an end at `level` or below."""

    measure: Measure
    margin: float
    level: float
    units_a: int = 0
    units_b: int = 0
    a: float | None = None
    b: float | None = None
    p_value: float = 1.0

    @property
    def is_breached(self) -> bool:
        """Whether arm b is worse by more than the margin."""
        return self.p_value <= self.level

    @property
    def is_tested(self) -> bool:
        """Whether both arms had units enough at the last look."""
        return min(self.units_a, self.units_b) >= FEWEST_UNITS

    @property
    def times(self) -> float | None:
        """Arm b's mean as a multiple of arm a's; None where there is none."""
        return self.b / self.a if self.a and self.b is not None else None

    @property
    def reason(self) -> str:
        """The breach in words."""
        a, b = (_shown(self.measure, value) for value in (self.a, self.b))
        times = "" if self.times is None else f", {self.times:.2f} times as much"
        return (
            f"guardrail: {MEASURES[self.measure]} of b is {b} against {a} of a{times}, over the means of "
            f"{self.units_b} and {self.units_a} units; at most {1 + self.margin:.2f} times is allowed "
            f"(p {self.p_value:.2g}, needed {self.level:.2g})"
        )


def looks_due(num_requests: int) -> int:
    """Return how many looks are due after so many requests of both arms."""
    return 0 if num_requests < FIRST_LOOK else 1 + int(math.log(num_requests / FIRST_LOOK, GROWTH))


def judged(guardrails: Guardrails, samples: Samples, level: float, look: int) -> list[Guarded]:
    """Test every guardrail at look number `look`, from 1 on. `level`: of all guardrails at all looks together."""
    margins = guardrails.margins
    each = level / (max(1, len(margins)) * look * (look + 1))
    guarded = []
    for measure, margin in margins.items():
        a, b = samples.get(("a", measure)), samples.get(("b", measure))
        p_value = 1.0
        if a is not None and b is not None and min(a.size, b.size) >= FEWEST_UNITS:
            p_value = exceeds_p_value(b, a, 1 + margin)
        guarded.append(
            Guarded(
                measure=measure,
                margin=margin,
                level=each,
                units_a=0 if a is None else a.size,
                units_b=0 if b is None else b.size,
                a=None if a is None else a.mean,
                b=None if b is None else b.mean,
                p_value=p_value,
            )
        )
    return guarded


async def unit_samples(engine: AsyncEngine, experiment_id: str) -> Samples:
    """Return the moments of the units' means.

    The database sums them up, so that memory does not grow with the units. Answers that were not made for their request
    cost nothing and take no time, in either arm: they are left out. Times to the end are those of answers that ended
    well; a request without a first token has no time to it.
    """
    made = or_(requests.c.cache.is_(None), requests.c.cache == "miss")
    values: dict[Measure, ColumnElement[float | None]] = {
        "cost": case((made, requests.c.cost_usd)),
        "ttft": case((made, requests.c.ttft_ms)),
        "e2e": case((and_(made, requests.c.status == "ok"), requests.c.e2e_ms)),
    }
    # A decision from before units were recorded was split by request.
    unit = func.coalesce(routing_decisions.c.unit, routing_decisions.c.request_id)
    means = (
        select(routing_decisions.c.arm, *(func.avg(value).label(name) for name, value in values.items()))
        .join(requests, requests.c.request_id == routing_decisions.c.request_id)
        .where(routing_decisions.c.experiment_id == experiment_id)
        .group_by(routing_decisions.c.arm, unit)
        .subquery()
    )
    moments = [moment for name in values for moment in _moments(means.c[name])]
    async with engine.connect() as connection:
        rows = (await connection.execute(select(means.c.arm, *moments).group_by(means.c.arm))).all()
    samples: dict[tuple[str, Measure], Sample] = {}
    for arm, *numbers in rows:
        for index, name in enumerate(values):
            size, total, squares = numbers[3 * index : 3 * index + 3]
            if size:
                samples[arm, name] = sample_of(size, total, squares)
    return samples


def sample_of(size: int, total: float, squares: float) -> Sample:
    """Return the sample of `size` values with this sum and this sum of squares."""
    mean = total / size
    # Of values that hardly vary, rounding may leave a difference below 0.
    variance = max(0.0, squares - size * mean * mean) / (size - 1) if size > 1 else 0.0
    return Sample(size=size, mean=mean, variance=variance)


def _moments(value: ColumnElement[float | None]) -> list[ColumnElement[Any]]:
    return [func.count(value), func.sum(value), func.sum(value * value)]


def _shown(measure: Measure, value: float | None) -> str:
    if value is None:
        return "nothing"
    if measure == "cost":
        return f"${value:.3g}"
    return f"{value:,.0f} ms" if value >= 100 else f"{value:.3g} ms"
