"""Experiments: the traffic split between two versions or tiers (`/admin/api/experiments`), watched until the evidence,
a guardrail or a limit ends it, and stopped.
"""

import asyncio
from typing import Annotated, Any

import msgspec
from litestar import get, post
from litestar.params import FromPath, JSONBody
from litestar.response import Response
from msgspec import UNSET, Meta, UnsetType

from classifier.errors import ArtefactError
from classifier.policy.experiment_split import Arm, SplitBy
from classifier.registry.registry import ArtefactRegistry
from gateway.admin.resource import Admin, query_page
from gateway.admin.versions import Reason, VersionOrder, check_version
from gateway.base.errors import ApiError, bad_request
from gateway.base.settings import Settings
from gateway.base.stores.database import reached
from gateway.edge.asgi import HttpRequest
from gateway.inference.service import Serving
from gateway.operations.dashboard.html.forms import fields_of, number_of, parse_form, reason_of
from gateway.operations.dashboard.html.rendering import Page, back_to, page, tier_names
from gateway.operations.experiment_plan import plan_experiment
from gateway.tenancy.admin_guard import OPERATOR
from quality.rollout.experiments import ExperimentError, Experiments, Plan, Results
from quality.rollout.guardrails import MEASURES, Guarded, Measure
from quality.store.pages import EXPERIMENTS
from tiers.catalog.catalog import Catalog
from tiers.catalog.tier_spec import TierNumber

MOST_PROBES = 1_000_000
Margin = Annotated[float, Meta(ge=0, le=1e6)]


class ArmOrder(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Either a `version` of the classifier that decides, or the `tier` that answers."""

    version: Annotated[str, Meta(min_length=1, max_length=64)] | None = None
    tier: TierNumber | None = None


class GuardrailOrder(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """By what share of arm a's cost per request, time to the first token and time to the end arm b's may exceed it; the
    experiment ends once one exceeds it by more. null: no guardrail. Left out: 1.0, or, where both arms are tiers and
    b's is dearer or slower by the catalogue, twice what that lets expect."""

    cost: Margin | UnsetType | None = UNSET
    ttft: Margin | UnsetType | None = UNSET
    e2e: Margin | UnsetType | None = UNSET


class ExperimentOrder(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Split a `share` of the traffic between two arms, half each."""

    name: Annotated[str, Meta(min_length=1, max_length=256)]
    share: Annotated[float, Meta(gt=0, le=1)]
    a: ArmOrder
    b: ArmOrder
    reason: Reason
    by: SplitBy = "user"
    """What keeps its arm as long as the experiment runs: the `user` (where none is named the conversation, else the
    request), the `key` (likewise), the `conversation`, or the `request` alone.
    """
    level: Annotated[float, Meta(gt=0, lt=1)] = 0.05
    """The error probability at which the experiment ends."""
    most_probes: Annotated[int, Meta(ge=1, le=MOST_PROBES)] = 1000
    """The number of probes after which it ends."""
    guardrails: GuardrailOrder = GuardrailOrder()


async def begin_experiment(serving: Serving, actor: str, order: ExperimentOrder) -> str:
    """Start the experiment and return its id. Raises `ApiError` 400, 409 and 503."""
    registry = ArtefactRegistry(serving.settings.registry_path)
    plan = _plan(order, serving.routing.served.catalog, serving.settings)
    for arm in (plan.a, plan.b):
        if arm.version is not None:
            await check_version(serving, registry, arm.version)
    experiments = Experiments(serving.database, registry)
    try:
        return await reached(experiments.start(order.name, plan, actor=actor, reason=order.reason))
    except (ExperimentError, ArtefactError) as error:
        raise ApiError(409, str(error), code="experiment_refused") from error


async def end_experiment(serving: Serving, actor: str, experiment_id: str, reason: str) -> None:
    """End it. Raises `ApiError` 404 and 503."""
    experiments = Experiments(serving.database, ArtefactRegistry(serving.settings.registry_path))
    if not await reached(experiments.stop(experiment_id, actor=actor, reason=reason)):
        raise ApiError(404, f"No experiment {experiment_id[:64]!r} is running.", code="experiment_not_running")


def _plan(order: ExperimentOrder, catalog: Catalog, settings: Settings) -> Plan:
    margins, ends = msgspec.to_builtins(order.guardrails), {"level": order.level, "most_probes": order.most_probes}
    try:
        a, b = (Arm(version=arm.version, tier=arm.tier) for arm in (order.a, order.b))
        return plan_experiment(settings, catalog, margins, share=order.share, a=a, b=b, by=order.by, **ends)
    except ValueError as error:
        raise bad_request(f"{error}.", "a", "invalid_value") from error


class ExperimentStarted(msgspec.Struct, frozen=True, kw_only=True):
    """Servers follow within seconds."""

    experiment_id: str


class ExperimentStopped(msgspec.Struct, frozen=True, kw_only=True):
    """It ended without a verdict."""

    stopped: bool


@post("/experiments", opt=OPERATOR, summary="Start an experiment")
async def start_experiment(data: JSONBody[ExperimentOrder], admin: Admin) -> ExperimentStarted:
    """Requests to `auto` are assigned to an arm by a hash of their user, conversation or id. It ends by itself when the
    evidence of probes suffices, when arm b exceeds a guardrail, or after `most_probes`. 409 while another one runs, or
    for a version that may not serve."""
    return ExperimentStarted(experiment_id=await begin_experiment(admin.serving, admin.actor, data))


@post("/experiments/{experiment_id:str}/stop", opt=OPERATOR, status_code=200, summary="Stop an experiment")
async def stop_experiment(
    experiment_id: FromPath[str], data: JSONBody[VersionOrder], admin: Admin
) -> ExperimentStopped:
    """End it without a verdict; 404 if it is not running."""
    await end_experiment(admin.serving, admin.actor, experiment_id, data.reason)
    return ExperimentStopped(stopped=True)


PATH = "/admin/experiments"
ROWS = 20
MOST_MARGIN_PERCENT = 1e8
UNITS = [
    ("user", "User, else conversation, else request"),
    ("key", "API key, else conversation, else request"),
    ("conversation", "Conversation, else request"),
    ("request", "Request"),
]


class ShownExperiment(msgspec.Struct, frozen=True):
    """A row of the list with its plan and results."""

    row: dict[str, Any]
    plan: Plan
    results: Results
    needed: float
    """The evidence that ends it for either arm."""

    def seen(self, measure: Measure) -> Guarded | None:
        """Return the guardrail on this measure at its last look, if there was one."""
        return next((guardrail for guardrail in self.results.guardrails if guardrail.measure == measure), None)


@get("/experiments")
async def show_experiments(request: HttpRequest, admin: Admin) -> Response[Any]:
    """Newest first; one at most is running. Query: as for `/admin/api/experiments`."""
    listed = await query_page(admin.database, EXPERIMENTS, {"limit": str(ROWS)} | dict(request.query_params))
    versions = await asyncio.to_thread(ArtefactRegistry(admin.serving.settings.registry_path).versions)
    arms = [(f"tier:{number}", name) for number, name in sorted(tier_names(admin.serving).items())]
    arms += [(f"version:{version}", f"Version {version}") for version in versions]
    shown = [_shown(row) for row in listed.rows]
    running = any(experiment.row["status"] == "running" for experiment in shown)
    return page(
        request,
        "experiments.html",
        "Experiments",
        listed=listed,
        shown=shown,
        running=running,
        arms=arms,
        units=UNITS,
        measures=MEASURES,
    )


@post("/experiments", opt=OPERATOR, status_code=200)
async def start(request: HttpRequest, admin: Admin) -> Response[Any]:
    """Start the experiment that the form describes."""
    fields = await fields_of(request)
    fields_of_order = {
        "name": fields.get("name", ""),
        "share": number_of(fields, "share", 100) / 100,
        "a": _arm(fields, "a"),
        "b": _arm(fields, "b"),
        "by": fields.get("by", "user"),
        "guardrails": {measure: _margin(fields, measure) for measure in MEASURES if f"{measure}_margin" in fields},
        "reason": reason_of(fields),
        "level": number_of(fields, "level", 1, 0.05),
        "most_probes": number_of(fields, "most_probes", MOST_PROBES, 1000.0),
    }
    order = parse_form(fields_of_order, ExperimentOrder)
    await begin_experiment(admin.serving, admin.actor, order)
    return back_to(PATH, f"The experiment {order.name} has started.")


@post("/experiments/{experiment_id:str}/stop", opt=OPERATOR, status_code=200)
async def stop(request: HttpRequest, experiment_id: FromPath[str], admin: Admin) -> Response[Any]:
    await end_experiment(admin.serving, admin.actor, experiment_id, reason_of(await fields_of(request)))
    return back_to(PATH, "The experiment has ended.")


def _arm(fields: dict[str, str], name: str) -> dict[str, str]:
    kind, _, which = fields.get(name, "").partition(":")
    if kind not in ("tier", "version") or not which:
        raise bad_request(f"Say which tier or version arm {name} is.", name, "invalid_value")
    return {kind: which}


def _margin(fields: dict[str, str], measure: str) -> float | None:
    """Return a guardrail's margin as a share, of a field in percent; None for "none"."""
    name = f"{measure}_margin"
    return None if fields[name] == "none" else number_of(fields, name, MOST_MARGIN_PERCENT) / 100


def _shown(row: dict[str, Any]) -> ShownExperiment:
    plan = msgspec.convert(row["config"], Plan)
    results = Results() if row["metrics"] is None else msgspec.convert(row["metrics"], Results)
    return ShownExperiment(row, plan, results, 2 / plan.level)


EXPERIMENT_ENDPOINTS = (start_experiment, stop_experiment)
EXPERIMENTS_PAGE = Page(title="Experiments", path="/experiments", handlers=(show_experiments, start, stop))
