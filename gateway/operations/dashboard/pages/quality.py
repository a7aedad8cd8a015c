"""The quality page: answer quality and its verification cost, own labels, retrainings, and classifier versions."""

import asyncio
from typing import Any

import msgspec
from litestar import get, post
from litestar.response import Response

from classifier.errors import ArtefactError
from classifier.registry.artefact import default_artefact
from classifier.registry.registry import ArtefactRegistry
from gateway.base.errors import ApiError, bad_request
from gateway.base.stores.database import reached
from gateway.edge.asgi import HttpRequest
from gateway.inference.service import serving_of
from gateway.operations.dashboard.html.charts import DASHES, Series
from gateway.operations.dashboard.html.forms import fields_of, number_of, reason_of, taken
from gateway.operations.dashboard.html.page import Page
from gateway.operations.dashboard.html.rendering import back_to, page
from gateway.operations.dashboard.pages.review import review, show_review
from gateway.operations.running import Operations, operations_of
from gateway.operations.usecases.estimates import estimates_shown, order_retraining
from gateway.operations.usecases.learning import learning_source
from gateway.operations.usecases.own_labels import LabelsShown, labels_shown, order_reset
from gateway.operations.usecases.pages import page_asked_for
from gateway.operations.usecases.versions import (
    TrialOrder,
    VersionsNow,
    order_end_of_trial,
    order_promotion,
    order_rollback,
    order_trial,
    versions_now,
)
from gateway.operations.usecases.worth import worth_last
from gateway.tenancy.access.admin_guard import OPERATOR, actor_of
from quality.learning.learning import Learned, Learning, in_words
from quality.monitor.status import MonitorStatus
from quality.store.pages import ARTEFACTS, RETRAININGS, ROLLOUTS
from quality.verification.sampling import WHY_NOT

PATH = "/admin/quality"
ROWS = "10"
# Most keys with labels that the learning curve draws.
MOST_KEYS = 8
# How long the page waits for the learning curve; the next load shows it.
WAIT_SECONDS = 0.1


class Registered(msgspec.Struct, frozen=True):
    """The versions in the registry, and those that serve; while it is empty, the packaged classifier serves. `now` is
    None for an unreadable registry."""

    versions: list[str]
    now: VersionsNow | None


@get("/quality")
async def show_quality(request: HttpRequest) -> Response[Any]:
    """Query: `cursor`, of the previous page of versions."""
    operations = operations_of(request)
    asked, labels = {"limit": ROWS}, _labels(operations)
    versions, runs, rollouts, estimates, registered, learning = await asyncio.gather(
        page_asked_for(request, ARTEFACTS, asked | dict(request.query_params)),
        page_asked_for(request, RETRAININGS, asked),
        page_asked_for(request, ROLLOUTS, asked),
        _estimates(operations),
        asyncio.to_thread(_registered, ArtefactRegistry(operations.serving.settings.registry_path), labels is not None),
        _learning(operations),
    )
    monitor = None if operations.quality_loop is None else operations.quality_loop.monitor
    return page(
        request,
        "quality.html",
        "Quality",
        estimates=estimates,
        not_sampled="" if estimates is None else _not_sampled(estimates),
        rules=None if monitor is None else monitor.settings,
        labels_come=None if operations.quality_loop is None else operations.quality_loop.labels(),
        judge=None if operations.quality_loop is None else operations.quality_loop.judge,
        loop_runs=operations.quality_loop is not None,
        own_labels=None if labels is None else labels.labels,
        runs=runs.rows,
        retrained=None if operations.quality_loop is None else operations.quality_loop.retrained,
        rollouts=rollouts.rows,
        versions=versions,
        registered=registered,
        worth=worth_last(operations),
        **_learning_shown(learning),
    )


@post("/quality/promotions/end", opt=OPERATOR, status_code=200)
async def forget_labels(request: HttpRequest) -> Response[Any]:
    """Labels until now no longer influence decisions."""
    await order_reset(operations_of(request), actor_of(request), reason_of(await fields_of(request)))
    return back_to(PATH, "The labels up to now are forgotten.")


@post("/quality/retrain", opt=OPERATOR, status_code=200)
async def retrain(request: HttpRequest) -> Response[Any]:
    """Start a retraining in the background."""
    started = await order_retraining(operations_of(request), actor_of(request), reason_of(await fields_of(request)))
    return back_to(PATH, "The retraining has started." if started else "A retraining is already running.")


@post("/quality/promote", opt=OPERATOR, status_code=200)
async def promote(request: HttpRequest) -> Response[Any]:
    """Let the version named in the form serve."""
    fields = await fields_of(request)
    now = await order_promotion(serving_of(request), actor_of(request), _version(fields), reason_of(fields))
    return back_to(PATH, f"Version {now.current} serves.")


@post("/quality/rollback", opt=OPERATOR, status_code=200)
async def roll_back_version(request: HttpRequest) -> Response[Any]:
    """Let the previous version serve again."""
    now = await order_rollback(serving_of(request), actor_of(request), reason_of(await fields_of(request)))
    return back_to(PATH, f"Version {now.current} serves again.")


@post("/quality/trial", opt=OPERATOR, status_code=200)
async def try_version(request: HttpRequest) -> Response[Any]:
    """Let the version named in the form decide a share of the requests."""
    fields = await fields_of(request)
    given = {"version": _version(fields), "share": number_of(fields, "share", 100) / 100, "reason": reason_of(fields)}
    order = taken(given, TrialOrder)
    await order_trial(serving_of(request), actor_of(request), order)
    return back_to(PATH, f"Version {order.version} is on trial.")


@post("/quality/trial/end", opt=OPERATOR, status_code=200)
async def end_version_trial(request: HttpRequest) -> Response[Any]:
    """End the trial, or the watch after a promotion."""
    await order_end_of_trial(serving_of(request), actor_of(request), reason_of(await fields_of(request)))
    return back_to(PATH, "The trial has ended.")


def _version(fields: dict[str, str]) -> str:
    if not (version := fields.get("version", "")):
        raise bad_request("Say which version.", "version", "invalid_value")
    return version


async def _estimates(operations: Operations) -> MonitorStatus | None:
    """None without a monitor."""
    try:
        return await estimates_shown(operations)
    except ApiError as error:
        if error.status != 409:
            raise
        return None


def _not_sampled(estimates: MonitorStatus) -> str:
    """Return the reasons in words, the most frequent first."""
    counts = sorted(estimates.not_sampled.items(), key=lambda one: -one[1])
    return "; ".join(f"{count:,}: {WHY_NOT[reason]}" for reason, count in counts)


def _labels(operations: Operations) -> LabelsShown | None:
    """None without a classifier."""
    try:
        return labels_shown(operations)
    except ApiError as error:
        if error.status != 409:
            raise
        return None


async def _learning(operations: Operations) -> Learning | None:
    """None without a classifier, and until it is computed."""
    try:
        return await reached(operations.learning.at_hand(learning_source(operations.serving), WAIT_SECONDS))
    except ApiError as error:
        if error.status != 409:
            raise
        return None


def _learning_shown(learning: Learning | None) -> dict[str, Any]:
    """Return the shown keys with their lines in the two charts, and the caption."""
    if learning is None:
        return {"learning": None}
    every = [learning.together, *learning.keys] if len(learning.keys) > 1 else learning.keys
    shown = sorted(every, key=lambda one: -one.labels)[:MOST_KEYS]
    lines = [(one, n, DASHES.get(n, "none")) for n, one in enumerate(shown, start=1)]
    points = [point.labels for one in shown if one.curve for point in one.curve.points]
    steps = sorted(set(points))
    return {
        "learning": learning,
        "learned": shown,
        "said": [in_words(one) for one in shown],
        "labels_lines": [Series(name=one.name, values=one.labels_at, colour=n, dashes=d) for one, n, d in lines],
        "error_steps": steps,
        "error_lines": [
            Series(name=one.name, values=_errors(one, steps), colour=n, dashes=d) for one, n, d in lines if one.curve
        ],
    }


def _errors(one: Learned, steps: list[int]) -> list[float | None]:
    """Return the error at each number of labels, carrying the previous point forward; None beyond the last."""
    points = [] if one.curve is None else one.curve.points
    last = points[-1].labels if points else -1
    known = [[point.error.value for point in points if point.labels <= step] for step in steps]
    return [values[-1] if values and step <= last else None for step, values in zip(steps, known, strict=True)]


def _registered(registry: ArtefactRegistry, routes: bool) -> Registered:
    if not registry.versions():
        return Registered([default_artefact().name], versions_now(registry)) if routes else Registered([], None)
    try:
        return Registered(registry.versions(), versions_now(registry))
    except ArtefactError:
        return Registered([], None)


QUALITY_PAGE = Page(
    title="Quality",
    path="/quality",
    handlers=(
        show_quality, forget_labels, retrain, promote, roll_back_version, try_version, end_version_trial,
        show_review, review,
    ),
)  # fmt: skip
