"""The experiments page: two arms set up, watched until the evidence, a guardrail or a limit ends it, and stopped."""

import asyncio
from typing import Any

import msgspec
from litestar import get, post
from litestar.params import FromPath
from litestar.response import Response

from classifier.registry.registry import ArtefactRegistry
from gateway.base.errors import bad_request
from gateway.edge.asgi import HttpRequest
from gateway.inference.service import serving_of
from gateway.operations.dashboard.html.forms import fields_of, number_of, reason_of
from gateway.operations.dashboard.html.page import Page
from gateway.operations.dashboard.html.rendering import back_to, page
from gateway.operations.usecases.experiments import MOST_PROBES, ExperimentOrder, begin_experiment, end_experiment
from gateway.operations.usecases.pages import page_asked_for
from gateway.tenancy.access.admin_guard import OPERATOR, actor_of
from quality.rollout.experiments import Plan, Results
from quality.rollout.guardrails import MEASURES, Guarded, Measure
from quality.store.pages import EXPERIMENTS

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
    """A row of the list with its plan and results. `needed`: the evidence that ends it for either arm."""

    row: dict[str, Any]
    plan: Plan
    results: Results
    needed: float

    def seen(self, measure: Measure) -> Guarded | None:
        """Return the guardrail on this measure at its last look, if there was one."""
        return next((one for one in self.results.guardrails if one.measure == measure), None)


@get("/experiments")
async def show_experiments(request: HttpRequest) -> Response[Any]:
    """Newest first; one at most is running. Query: as for `/admin/api/experiments`."""
    found = await page_asked_for(request, EXPERIMENTS, {"limit": str(ROWS)} | dict(request.query_params))
    serving = serving_of(request)
    versions = await asyncio.to_thread(ArtefactRegistry(serving.settings.registry_path).versions)
    arms = [(f"tier:{number}", f"Tier {number}") for number in sorted(serving.routing.served.tiers)]
    arms += [(f"version:{version}", f"Version {version}") for version in versions]
    shown = [_shown(row) for row in found.rows]
    running = any(one.row["status"] == "running" for one in shown)
    return page(
        request,
        "experiments.html",
        "Experiments",
        found=found,
        shown=shown,
        running=running,
        arms=arms,
        units=UNITS,
        measures=MEASURES,
    )


@post("/experiments", opt=OPERATOR, status_code=200)
async def start(request: HttpRequest) -> Response[Any]:
    """Start the experiment that the form describes."""
    fields = await fields_of(request)
    given = {
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
    try:
        order = msgspec.convert(given, ExperimentOrder, strict=False)
    except msgspec.ValidationError as error:
        raise bad_request(f"{error}.", str(error).rpartition("$.")[2].rstrip("`") or None, "invalid_value") from None
    await begin_experiment(serving_of(request), actor_of(request), order)
    return back_to(PATH, f"The experiment {order.name} has started.")


@post("/experiments/{experiment_id:str}/stop", opt=OPERATOR, status_code=200)
async def stop(request: HttpRequest, experiment_id: FromPath[str]) -> Response[Any]:
    """End it without a verdict."""
    await end_experiment(serving_of(request), actor_of(request), experiment_id, reason_of(await fields_of(request)))
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


EXPERIMENTS_PAGE = Page(title="Experiments", path="/experiments", handlers=(show_experiments, start, stop))
