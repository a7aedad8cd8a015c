"""The first day of routing: what its estimate says of every quality target before any request was answered by all
tiers, and what would make that a measurement: `GET /admin/api/routing/first-day`, and the page Routing until then.
"""

import asyncio
import math
import time
from collections.abc import Sequence
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt
from litestar import get
from litestar.response import Response
from sqlalchemy import func, select

from classifier.decision import exchange_of
from classifier.policy.utility import ENOUGH, enough_of, utility
from gateway.admin.resource import json_or_csv
from gateway.admin.routing_reports import CurveRow, active_version, inputs_of, rule_at, target_of
from gateway.base.stores.database import reached
from gateway.edge.asgi import HttpRequest
from gateway.edge.openapi import describe
from gateway.inference.service import Serving
from gateway.operations.quality_loop.quality_loop import sampling_settings
from gateway.operations.running import Operations, operations_of
from migrations.tables.quality import training_rows
from quality.comparison.paired_outcomes import THRESHOLDS
from quality.estimates.traffic import decided_or_watched, newest_requests
from quality.verification.queue import VerificationQueue
from quality.verification.sampling import thinning
from tiers.catalog.pricing import predicted_costs

Float = npt.NDArray[np.floating]

MEASURED = 100
"""Requests answered by every tier that tell a share within ten points: 1.96 standard errors of one half."""
# Requests whose predictions are summed up; more take longer than a page may.
_NEWEST = 300
# A prompt of the even mix: about a page.
_PROMPT_TOKENS = 400
_DAY = 86_400.0
_PACE_DAYS, _MOST_DAYS = 7, 365


class Estimate(msgspec.Struct, frozen=True, kw_only=True):
    """Expected cost and quality at every target."""

    requests: int
    """The number of newest requests whose predictions count. With 0, an even mix of the four classes at the catalogue's
    prices counts.
    """
    now: CurveRow
    """The figures at the active target."""
    then: CurveRow
    """The figures at the target asked about."""
    points: list[CurveRow]


class FirstDay(msgspec.Struct, frozen=True, kw_only=True):
    """What the first day's requests say of routing."""

    estimate: Estimate
    probes: int
    """Requests that every tier answered."""
    missing: int
    """How many more of them make the curve a measurement."""
    a_day: float
    """How many of them come per day."""
    sentence: str
    """All of this in words."""


class Predicted(msgspec.Struct, frozen=True):
    """Predictions of prompts."""

    p_ok: Float
    """[n, tiers]."""
    usd: Float
    """[n, tiers]."""
    reference: Float
    """[n]: the price of a strongest answer."""
    enough: Float
    """[n]: the P that counts as certain (`classifier.policy.utility`)."""


def at_targets(known: Predicted, targets: Sequence[float]) -> list[CurveRow]:
    """Return what each target comes to if every prompt goes to the tier that `decide` picks without constraints; pure,
    some 20 µs a target for 300 prompts."""
    each, strongest = np.arange(len(known.p_ok)), float(known.usd[:, -1].sum())
    counted = np.where(known.p_ok >= known.enough[:, None], 1.0, known.p_ok)
    points = []
    for target in targets:
        chosen = utility(counted, known.usd, known.reference[:, None], exchange_of(target)).argmax(axis=1)
        points.append(
            CurveRow(
                threshold=target,
                no_worse=round(float(known.p_ok[each, chosen].mean()), 6),
                cost_share=round(float(known.usd[each, chosen].sum()) / strongest, 6) if strongest else 1.0,
            )
        )
    return points


def even_mix(table: Float, usd: Sequence[float], enough: float) -> Predicted:
    """Return one prompt of each class, by P(good enough) `table` [4, tiers - 1] and the price of each tier."""
    p_ok = np.hstack([table, np.ones((len(table), 1))])
    prices = np.tile(np.asarray(usd, np.float64), (len(table), 1))
    return Predicted(p_ok, prices, prices[:, -1], np.full(len(table), enough))


async def first_day(operations: Operations, wanted: float | None, probes: int) -> FirstDay:
    """Return the estimate and what is missing, with so many `probes`. `wanted`: a target to look at; None is the active
    one. Raises `ApiError` 409 without a classifier, and 503."""
    serving = operations.serving
    known, requests = await _predicted(serving)
    active = rule_at(serving, serving.routing.active_target).quality_target
    now, then, *points = at_targets(known, (active, active if wanted is None else wanted, *THRESHOLDS))
    missing = max(MEASURED - probes, 0)
    a_day = await reached(_probes_a_day(operations, time.time())) if missing else 0.0
    return FirstDay(
        estimate=Estimate(requests=requests, now=now, then=then, points=points),
        probes=probes,
        missing=missing,
        a_day=round(a_day, 3),
        sentence=in_words(missing, a_day, time.time()),
    )


def in_words(missing: int, a_day: float, now: float) -> str:
    """Return how many labels are missing and the day on which they are expected (`now`: epoch seconds), or ""."""
    if not missing:
        return ""
    labels = "label, a request that every tier answers" if missing == 1 else "labels, requests that every tier answers"
    what = f"To be measured, this needs {missing} more {labels} and a judge compares"
    if a_day <= 0:
        return f"{what}: none come while no requests do or verification is off, so no day is expected."
    days = math.ceil(missing / a_day)
    if days > _MOST_DAYS:
        return f"{what}: at the present pace that takes more than a year."
    day = time.strftime("%Y-%m-%d", time.gmtime(now + days * _DAY))
    return f"{what}: expected on {day}, at {a_day:.3g} a day."


async def _predicted(serving: Serving) -> tuple[Predicted, int]:
    """Return what is known of the newest requests, with their number; of the even mix without any."""
    version, catalog = active_version(serving), serving.routing.served.catalog
    routed = decided_or_watched(await reached(newest_requests(serving.database, newest=_NEWEST)))
    found = await asyncio.to_thread(lambda: [one for one in map(inputs_of, routed) if one is not None])
    found = [one for one in found if len(one.costs) == len(catalog.tiers) and one.objective == "utility"]
    if not found:
        enough = ENOUGH if version.kind == "prior" else 1.0
        return even_mix(version.table, predicted_costs(catalog, _PROMPT_TOKENS, None), enough), 0
    known = Predicted(
        np.array([one.prediction.p_ok for one in found]),
        np.array([one.costs for one in found]),
        np.array([one.reference for one in found]),
        np.array([enough_of(one.prediction) for one in found]),
    )
    return known, len(found)


async def _probes_a_day(operations: Operations, now: float) -> float:
    """Return how many probes come a day: those of the last week or, before the first, those that sampling expects of
    the last day's requests."""
    serving = operations.serving
    recent = training_rows.c.source == "probe", training_rows.c.created_at > now - _PACE_DAYS * _DAY
    async with serving.database.connect() as connection:
        counted = select(func.count(), func.min(training_rows.c.created_at)).where(*recent)
        count, first = (await connection.execute(counted)).one()
    if count:
        # Of less than a day nothing is known about the rest of it.
        days = max(float(now - first) / _DAY, 1.0)
        return float(count) / days
    if operations.quality_loop is None:
        return 0.0
    catalog = serving.routing.served.catalog
    sampling = sampling_settings(serving.settings, catalog)
    queue = VerificationQueue(serving.database, sampling, lease_seconds=0.0, max_attempts=1)
    spending = await queue.spending(now)
    share = thinning(spending, sum(predicted_costs(catalog, _PROMPT_TOKENS, None)), "probe", sampling)
    return sampling.probe_rate * share * sum(spending.answered.values())


@get("/routing/first-day", operation_class=describe(None, FirstDay), summary="Show the first day's estimate")
async def show_first_day(request: HttpRequest) -> Response[Any]:
    """Cost and quality that are expected at every target before they are measured, and when they will be. Query:
    `quality_target`, to look at one; `format`, json or csv: the points. 409 without a classifier."""
    operations = operations_of(request)
    wanted = target_of(request.query_params.get("quality_target", ""))
    version = active_version(operations.serving)
    drawn = await reached(operations.cost_quality_curves.of(version.version, version.table))
    shown = await first_day(operations, wanted, drawn.probes)
    return json_or_csv(request, "first-day", shown, CurveRow.__struct_fields__, shown.estimate.points)
