"""`/admin/api/experiments`: split the traffic between two versions or tiers, and end the split."""

from typing import Any

import msgspec
from litestar import post
from litestar.params import FromPath
from litestar.response import Response

from gateway.edge.asgi import HttpRequest
from gateway.edge.openapi import describe
from gateway.inference.api.reading.parsing import read_body
from gateway.inference.service import serving_of
from gateway.operations.usecases.experiments import ExperimentOrder, begin_experiment, end_experiment
from gateway.operations.usecases.versions import VersionOrder
from gateway.tenancy.access.admin_guard import OPERATOR, actor_of


class ExperimentStarted(msgspec.Struct, frozen=True, kw_only=True):
    """Servers follow within seconds."""

    experiment_id: str


class ExperimentStopped(msgspec.Struct, frozen=True, kw_only=True):
    """It ended without a verdict."""

    stopped: bool


@post(
    "/experiments",
    opt=OPERATOR,
    operation_class=describe(ExperimentOrder, ExperimentStarted),
    summary="Start an experiment",
)
async def start_experiment(request: HttpRequest) -> Response[Any]:
    """Requests to `auto` are assigned to an arm by a hash of their user, conversation or id. It ends by itself when the
    evidence of probes suffices, when arm b exceeds a guardrail, or after `most_probes`. 409 while another one runs, or
    for a version that may not serve."""
    started = await begin_experiment(serving_of(request), actor_of(request), await read_body(request, ExperimentOrder))
    return Response(ExperimentStarted(experiment_id=started), status_code=201, media_type="application/json")


@post(
    "/experiments/{experiment_id:str}/stop",
    opt=OPERATOR,
    status_code=200,
    operation_class=describe(VersionOrder, ExperimentStopped),
    summary="Stop an experiment",
)
async def stop_experiment(request: HttpRequest, experiment_id: FromPath[str]) -> Response[Any]:
    """End it without a verdict; 404 if it is not running."""
    await end_experiment(
        serving_of(request), actor_of(request), experiment_id, (await read_body(request, VersionOrder)).reason
    )
    return Response(ExperimentStopped(stopped=True), media_type="application/json")
