"""The cost-quality curve of a version on full-ladder probes: of this catalogue's own tiers, newer than its training."""

import asyncio

import msgspec
import numpy as np
from sqlalchemy.ext.asyncio import AsyncEngine

from classifier.outcome_model import OutcomeModel
from classifier.worth import PRICES, choose
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


async def probe_curve(engine: AsyncEngine, model: OutcomeModel) -> ProbeCurve:
    """What `model` would have chosen for the newest probes, and what that would have come to."""
    probes = await probes_since(engine, 0.0, feature_spec(model.manifest), newest=NEWEST)
    if not len(probes.no_worse):
        return ProbeCurve(probes=0, points=[])
    return await asyncio.to_thread(_drawn, model, probes)


def _drawn(model: OutcomeModel, probes: Probes) -> ProbeCurve:
    curves = model.manifest.curves
    measured = curves.lambda_rule if curves.default_rule == "lambda" else curves.tau_rule
    prices, p_ok = np.array(PRICES[: model.manifest.tiers]), p_ok_of(model, probes)
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
