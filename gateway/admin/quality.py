"""What the quality loop verified, estimated and decided, and "retrain now": the lists of `/admin/api`, of served
requests too, and the quality page, with own labels, retrainings and classifier versions.
"""

import asyncio
from collections.abc import Iterator
from typing import Annotated, Any

import msgspec
from litestar import get, post
from litestar.params import FromPath, JSONBody
from litestar.response import Response
from msgspec import Meta

from classifier.errors import ArtefactError
from classifier.registry.artefact import default_artefact
from classifier.registry.registry import ArtefactRegistry
from gateway.admin.labels import labels_shown, order_reset, review, show_review
from gateway.admin.resource import Admin, AdminContext, AsCsv, json_or_csv, list_endpoint, query_page
from gateway.admin.traffic import LAST, SPAN_NAMES, SpanQuery, verdicts_chart
from gateway.admin.versions import (
    TrialOrder,
    VersionsNow,
    order_end_of_trial,
    order_promotion,
    order_rollback,
    order_trial,
    versions_now,
)
from gateway.base.errors import ApiError, bad_request
from gateway.base.stores.database import reached
from gateway.edge.asgi import HttpRequest
from gateway.operations.dashboard.html.forms import fields_of, number_of, parse_form, reason_of
from gateway.operations.dashboard.html.rendering import Page, back_to, page
from gateway.operations.running import Operations
from gateway.tenancy.admin_guard import OPERATOR
from quality.estimates.verified_sample import ALL, ENOUGH_ANSWERS, Share, kind_name
from quality.monitor.status import MonitorStatus
from quality.store.database import MOST_INTEGER
from quality.store.pages import (
    ARTEFACTS,
    BATCHES,
    EXPERIMENTS,
    REFUSED,
    REQUESTS,
    RETRAININGS,
    ROLLOUTS,
    TRANSITIONS,
    VERIFICATIONS,
)
from quality.verification.sampling import WHY_NOT


class EstimateRow(msgspec.Struct, frozen=True, kw_only=True):
    """An estimate, for a tier, a kind of prompts or another subject `of`, None for all of them."""

    estimate: str
    tier: int | None = None
    kind: str | None = None
    of: str | None = None
    """The subject of the estimate, such as a tier or a kind of prompts; None for all of them."""
    count: int | None = None
    """Number of answers or prompts. [`low`, `high`] is the 95% interval."""
    value: float | None = None
    low: float | None = None
    high: float | None = None
    flagged: bool | None = None
    """Whether it is an alarm, or drift."""
    reason: str | None = None


def estimate_rows(status: MonitorStatus) -> Iterator[EstimateRow]:
    """Return everything in `status`, one figure per row."""
    for tier, share in status.acceptance.items():
        yield _share("no worse, of the sample", share, tier=tier)
    for kind in status.acceptance_by_kind:
        yield EstimateRow(
            estimate="no worse, of all traffic",
            tier=kind.tier,
            kind=None if kind.kind == ALL else kind_name(kind.kind, {}),
            count=kind.answers,
            value=kind.value,
            low=kind.low,
            high=kind.high,
        )
    for rate in status.upgrade_rates:
        needs = _share("needs an upgrade", rate.needs_upgrade, tier=rate.tier)
        yield msgspec.structs.replace(needs, flagged=rate.alarm, reason=rate.reason)
    for stream, evidence in status.evidence_of_shift.items():
        yield EstimateRow(estimate="evidence of shift (e-value)", of=stream, value=evidence)
    for drift in status.input_drift:
        yield EstimateRow(
            estimate="drift of prompts",
            of=drift.of,
            count=drift.prompts,
            value=drift.value,
            low=drift.low,
            high=drift.high,
            flagged=drift.drifted,
        )
    for calibration in status.calibration_drift:
        yield EstimateRow(
            estimate="verified less predicted",
            tier=calibration.tier,
            count=calibration.answers,
            value=calibration.verified - calibration.predicted,
            low=calibration.low,
            high=calibration.high,
            flagged=calibration.drifted,
        )
    for judge in status.calibrations:
        for name in ("sensitivity", "specificity"):
            yield EstimateRow(estimate=f"{name} on {judge.pairs} pairs", of=judge.judge, value=getattr(judge, name))
    for name in ("offered", "sampled", "dropped", "no_judge", "held"):
        yield EstimateRow(estimate="answers since start", of=name, count=getattr(status, name))
    for reason, count in sorted(status.not_sampled.items()):
        yield EstimateRow(estimate="answers not sampled since start", of=reason, count=count)
    for name in ("confirmed", "uncertain"):
        yield EstimateRow(estimate="second opinions since start", of=name, count=getattr(status.second_opinions, name))
    yield EstimateRow(estimate="second opinions since start", of="cost_usd", value=status.second_opinions.cost_usd)
    for name in status.queue.__struct_fields__:
        yield EstimateRow(estimate="verifications", of=name, count=getattr(status.queue, name))
    for name in ("serving_usd", "committed_usd", "probe_usd"):
        yield EstimateRow(estimate="spending", of=name, value=getattr(status.spending, name))
    yield EstimateRow(estimate="spending", of="budget_usd", value=status.budget_usd)


def _share(estimate: str, share: Share, tier: int | None) -> EstimateRow:
    return EstimateRow(
        estimate=estimate, tier=tier, count=share.total, value=share.value, low=share.low, high=share.high
    )


async def estimates_shown(operations: Operations) -> MonitorStatus:
    """The estimates. Raises `ApiError` 409 without a monitor, and 503 until it has started."""
    loop = operations.quality_loop
    if loop is None:
        raise _monitor_off()
    if loop.monitor is None:
        raise ApiError(503, "The quality monitor is starting. Try again later.", code="monitor_starting")
    return await reached(loop.monitor.status())


def _monitor_off() -> ApiError:
    """This server has no quality loop."""
    return ApiError(409, "The quality monitor does not run in this server.", code="monitor_off")


async def order_retraining(operations: Operations, actor: str, reason: str) -> bool:
    """Start a retraining; False if one was running in this process. Raises `ApiError` 409 and 503."""
    loop = operations.quality_loop
    if loop is None:
        raise _monitor_off()
    return await reached(loop.retrain_now(actor, reason))


class RetrainOrder(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The reason, which is recorded."""

    reason: Annotated[str, Meta(min_length=1, max_length=1024)]


class RetrainStarted(msgspec.Struct, frozen=True, kw_only=True):
    """The result of asking for a retraining."""

    started: bool
    """False if a retraining was running in this process."""


class VerificationShown(msgspec.Struct, frozen=True, kw_only=True):
    """All columns of the row."""

    verification: dict[str, Any]


list_requests = list_endpoint(
    "/requests", REQUESTS, "List requests",
    "Newest first, without texts; `/admin/api/requests/{request_id}` has the whole record. Query: `tier`, "
    "`status`, `requested_model`, `key_id`, and as for verifications.",
)  # fmt: skip
list_refused = list_endpoint(
    "/refused-requests", REFUSED, "List refused requests",
    "Requests that were refused before there was an answer, counted by minute, key, status, code, limit and "
    "endpoint, newest first. Query: `key_id`, `code`, and as for verifications.",
    name="list_refused",
)  # fmt: skip
list_all_batches = list_endpoint(
    "/batches", BATCHES, "List the batches of all callers",
    "Newest first. Query: `status`, `key_id`, and as for verifications.",
    name="list_all_batches",
)  # fmt: skip
list_verifications = list_endpoint(
    "/verifications", VERIFICATIONS, "List verifications",
    "Newest first. Query: `tier`, `status`, `label`, `judge`, `sampled_reason`, `key_id`; `since` and `until` "
    "in epoch seconds; `limit`; `cursor`, the `next` of the previous page; `format`: json, or csv for a file "
    "with up to 100,000 rows (10,000 unless `limit` says).",
)  # fmt: skip
list_artefacts = list_endpoint(
    "/artefacts", ARTEFACTS, "List classifier versions",
    "Newest first, with the outcome of each and its reason. Query: `status`, and as for verifications.",
)  # fmt: skip
list_transitions = list_endpoint(
    "/transitions", TRANSITIONS, "List audit events",
    "Promotions, refusals, alarms and others, newest first. Query: `action`, `actor`, and as for verifications.",
)  # fmt: skip
list_retrainings = list_endpoint(
    "/retrainings", RETRAININGS, "List retraining runs",
    "Newest first, with progress, candidate and evaluation. Query: `status`, `trigger`, and as for "
    "verifications.",
)  # fmt: skip
list_rollouts = list_endpoint(
    "/rollouts", ROLLOUTS, "List rollouts",
    "Newest first: versions on trial or watched, with the evidence of the last look, and how each ended. Query: "
    "`status`, and as for verifications.",
)  # fmt: skip
list_experiments = list_endpoint(
    "/experiments", EXPERIMENTS, "List experiments",
    "Newest first, with the outcome of each arm's requests, the evidence, and how each ended. Query: `status`, "
    "and as for verifications.",
)  # fmt: skip


@get("/verifications/{number:int}", summary="Show a verification")
async def show_verification(number: FromPath[int], admin: Admin, as_csv: AsCsv) -> Response[VerificationShown]:
    """All columns, including the verifier's answer."""
    possible = 1 <= number <= MOST_INTEGER
    row = await reached(VERIFICATIONS.one(admin.database, number)) if possible else None
    if row is None:
        raise ApiError(404, f"There is no verification {number}.", param="number", code="verification_not_found")
    return json_or_csv(as_csv, "verification", VerificationShown(verification=row), list(row), [row])


@get("/estimates", summary="Show the estimates of quality")
async def show_estimates(admin: Admin, as_csv: AsCsv) -> Response[MonitorStatus]:
    """By tier with intervals; evidence that errors have become more frequent, the cost of verification, and how far the
    judges can be trusted."""
    shown = await estimates_shown(admin.operations)
    return json_or_csv(as_csv, "estimates", shown, EstimateRow.__struct_fields__, estimate_rows(shown))


@post("/retrainings", opt=OPERATOR, status_code=202, summary="Retrain now")
async def retrain_now(data: JSONBody[RetrainOrder], admin: Admin) -> RetrainStarted:
    """Starts in the background; the list of runs shows its progress. One run at a time over all replicas."""
    return RetrainStarted(started=await order_retraining(admin.operations, admin.actor, data.reason))


PATH = "/admin/quality/details"
ROWS = "10"


class Warned(msgspec.Struct, frozen=True):
    """What is amiss, of one tier or of all (`tier` None)."""

    tier: int | None
    text: str


def warnings_of(status: MonitorStatus) -> Iterator[Warned]:
    """Return what an operator should look at."""
    for rate in status.upgrade_rates:
        if rate.alarm:
            worse = rate.needs_upgrade
            text = f"{worse.value or 0.0:.0%} of the last {worse.total} verified answers were worse. {rate.reason}"
            yield Warned(rate.tier, text)
    for calibration in status.calibration_drift:
        if calibration.drifted:
            yield Warned(calibration.tier, calibration.in_words)
    for drift in status.input_drift:
        if drift.drifted:
            yield Warned(None, f"The last {drift.prompts:,} prompts differ from those before them ({drift.of}).")


def _worse_of_all(status: MonitorStatus) -> Share | None:
    return next((rate.needs_upgrade for rate in status.upgrade_rates if rate.tier is None), None)


class Registered(msgspec.Struct, frozen=True):
    """The versions in the registry, and those that serve; while it is empty, the packaged classifier serves."""

    versions: list[str]
    now: VersionsNow | None
    """None for an unreadable registry."""


@get("/quality")
async def show_quality(request: HttpRequest, admin: Admin, span: SpanQuery = "7d") -> Response[Any]:
    """The summary: how much quality is kept, what is amiss, and what is on trial."""
    runs, estimates, registered, traffic = await asyncio.gather(
        query_page(admin.database, RETRAININGS, {"limit": "1"}),
        _estimates(admin.operations),
        _registered(admin),
        admin.operations.live.traffic.look(span),
    )
    return page(
        request,
        "quality.html",
        "Quality",
        estimates=estimates,
        kept=None if estimates is None else _worse_of_all(estimates),
        span=span,
        spans=SPAN_NAMES,
        span_name=LAST[span],
        traffic=traffic,
        chart_of_verdicts=verdicts_chart(traffic) if traffic is not None and traffic.together.verified else None,
        warnings=[] if estimates is None else list(warnings_of(estimates)),
        enough=ENOUGH_ANSWERS,
        strongest=admin.serving.routing.served.strongest,
        registered=registered,
        runs=runs.rows,
        own_labels=_own_labels(admin.operations),
    )


@get("/quality/details")
async def show_quality_details(request: HttpRequest, admin: Admin) -> Response[Any]:
    """Query: `cursor`, of the previous page of versions."""
    database, asked = admin.database, {"limit": ROWS}
    versions, runs, rollouts, estimates, registered = await asyncio.gather(
        query_page(database, ARTEFACTS, asked | dict(request.query_params)),
        query_page(database, RETRAININGS, asked),
        query_page(database, ROLLOUTS, asked),
        _estimates(admin.operations),
        _registered(admin),
    )
    loop = admin.operations.quality_loop
    return page(
        request,
        "quality_details.html",
        "Quality in detail",
        estimates=estimates,
        not_sampled="" if estimates is None else _not_sampled(estimates),
        rules=None if loop is None or loop.monitor is None else loop.monitor.settings,
        labels_come=admin.operations.labels(),
        judge=None if loop is None else loop.judge,
        loop_runs=loop is not None,
        own_labels=_own_labels(admin.operations),
        runs=runs.rows,
        retrained=None if loop is None else loop.retrained,
        rollouts=rollouts.rows,
        versions=versions,
        registered=registered,
    )


@post("/quality/promotions/end", opt=OPERATOR, status_code=200)
async def forget_labels(request: HttpRequest, admin: Admin) -> Response[Any]:
    """Labels until now no longer influence decisions."""
    await order_reset(admin.operations, admin.actor, reason_of(await fields_of(request)))
    return back_to(PATH, "The labels up to now are forgotten.")


@post("/quality/retrain", opt=OPERATOR, status_code=200)
async def retrain(request: HttpRequest, admin: Admin) -> Response[Any]:
    """Start a retraining in the background."""
    started = await order_retraining(admin.operations, admin.actor, reason_of(await fields_of(request)))
    return back_to(PATH, "The retraining has started." if started else "A retraining is already running.")


@post("/quality/promote", opt=OPERATOR, status_code=200)
async def promote(request: HttpRequest, admin: Admin) -> Response[Any]:
    """Let the version named in the form serve."""
    fields = await fields_of(request)
    now = await order_promotion(admin.serving, admin.actor, _version(fields), reason_of(fields))
    return back_to(PATH, f"Version {now.current} serves.")


@post("/quality/rollback", opt=OPERATOR, status_code=200)
async def roll_back_version(request: HttpRequest, admin: Admin) -> Response[Any]:
    now = await order_rollback(admin.serving, admin.actor, reason_of(await fields_of(request)))
    return back_to(PATH, f"Version {now.current} serves again.")


@post("/quality/trial", opt=OPERATOR, status_code=200)
async def try_version(request: HttpRequest, admin: Admin) -> Response[Any]:
    """Let the version named in the form decide a share of the requests."""
    fields = await fields_of(request)
    trial_fields = {
        "version": _version(fields),
        "share": number_of(fields, "share", 100) / 100,
        "reason": reason_of(fields),
    }
    order = parse_form(trial_fields, TrialOrder)
    await order_trial(admin.serving, admin.actor, order)
    return back_to(PATH, f"Version {order.version} is on trial.")


@post("/quality/trial/end", opt=OPERATOR, status_code=200)
async def end_version_trial(request: HttpRequest, admin: Admin) -> Response[Any]:
    """End the trial, or the watch after a promotion."""
    await order_end_of_trial(admin.serving, admin.actor, reason_of(await fields_of(request)))
    return back_to(PATH, "The trial has ended.")


def _version(fields: dict[str, str]) -> str:
    if not (version := fields.get("version", "")):
        raise bad_request("Say which version.", "version", "invalid_value")
    return version


async def _estimates(operations: Operations) -> MonitorStatus | None:
    """None without a monitor, and until it has started."""
    loop = operations.quality_loop
    return None if loop is None or loop.monitor is None else await estimates_shown(operations)


def _not_sampled(estimates: MonitorStatus) -> str:
    """Return the reasons in words, the most frequent first."""
    counts = sorted(estimates.not_sampled.items(), key=lambda reason_count: -reason_count[1])
    return "; ".join(f"{count:,}: {WHY_NOT[reason]}" for reason, count in counts)


def _own_labels(operations: Operations) -> dict[str, int] | None:
    return None if operations.active_labels is None else labels_shown(operations).labels


async def _registered(admin: AdminContext) -> Registered:
    registry = ArtefactRegistry(admin.serving.settings.registry_path)
    return await asyncio.to_thread(_read_registry, registry, admin.operations.active_labels is not None)


def _read_registry(registry: ArtefactRegistry, routes: bool) -> Registered:
    if not registry.versions():
        return Registered([default_artefact().name], versions_now(registry)) if routes else Registered([], None)
    try:
        return Registered(registry.versions(), versions_now(registry))
    except ArtefactError:
        return Registered([], None)


QUALITY_ENDPOINTS = (
    list_requests, list_refused, list_all_batches, list_verifications, show_verification, list_artefacts,
    list_transitions, list_retrainings, list_rollouts, list_experiments, retrain_now, show_estimates,
)  # fmt: skip
QUALITY_PAGE = Page(
    title="Quality",
    path="/quality",
    handlers=(
        show_quality, show_quality_details, forget_labels, retrain, promote, roll_back_version, try_version,
        end_version_trial, show_review, review,
    ),
)  # fmt: skip
