"""The cost-quality curve of a version on full-ladder probes: of this catalogue's own tiers, newer than its training."""

import asyncio

import msgspec
import numpy as np
from sqlalchemy import select
from sqlalchemy.ext.asyncio import AsyncEngine

from classifier.outcome_model import OutcomeModel
from classifier.worth import choose, reference_prices
from migrations.tables import training_rows
from quality.experience import feature_spec
from quality.paired_probes import Probes, p_ok_of, probes_since

NEWEST = 1000


class ProbePoint(msgspec.Struct, frozen=True, kw_only=True):
    """At `parameter` of the rule, as in a manifest's `CurvePoint`, at the same reference prices."""

    parameter: float
    no_worse: float
    cost_share: float


class ProbeCurve(msgspec.Struct, frozen=True, kw_only=True):
    """Of the newest `probes`; no points of none."""

    probes: int
    points: list[ProbePoint]


class ProbeCurves:
    """The curve of the version asked for, which is drawn again only after another probe was stored."""

    def __init__(self, engine: AsyncEngine) -> None:
        self._engine = engine
        self._drawn_of: tuple[str, int | None] | None = None
        self._curve = ProbeCurve(probes=0, points=[])

    async def of(self, model: OutcomeModel) -> ProbeCurve:
        """What `model` would have chosen for the newest probes, and what that would have come to."""
        newest = (
            select(training_rows.c.training_row_id)
            .where(training_rows.c.source == "probe")
            .order_by(training_rows.c.created_at.desc(), training_rows.c.training_row_id.desc())
            .limit(1)
        )
        async with self._engine.connect() as connection:
            drawn_of = model.version, await connection.scalar(newest)
        if drawn_of == self._drawn_of:
            return self._curve
        curve = await _curve_of(self._engine, model)
        self._drawn_of, self._curve = drawn_of, curve
        return curve


async def _curve_of(engine: AsyncEngine, model: OutcomeModel) -> ProbeCurve:
    probes = await probes_since(engine, 0.0, model.manifest.tiers, feature_spec(model.manifest), newest=NEWEST)
    if not len(probes.no_worse):
        return ProbeCurve(probes=0, points=[])
    return await asyncio.to_thread(_drawn, model, probes)


def _drawn(model: OutcomeModel, probes: Probes) -> ProbeCurve:
    curves = model.manifest.curves
    measured = curves.lambda_rule if curves.default_rule == "lambda" else curves.tau_rule
    prices, p_ok = reference_prices(model.manifest.tiers), p_ok_of(model, probes)
    each = np.arange(len(p_ok))
    points = []
    for parameter in (point.parameter for point in measured):
        chosen = choose(p_ok, prices, curves.default_rule, parameter)
        points.append(
            ProbePoint(
                parameter=parameter,
                no_worse=round(float(probes.no_worse[each, chosen].mean()), 6),
                cost_share=round(float((prices[chosen] / prices[-1]).mean()), 6),
            )
        )
    return ProbeCurve(probes=len(p_ok), points=points)
