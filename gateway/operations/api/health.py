"""Probes and metrics: liveness, readiness, and figures."""

from typing import Any

from litestar import get
from litestar.openapi.datastructures import ResponseSpec
from litestar.response import Response

from gateway.edge.asgi import HttpRequest
from gateway.operations.running import operations_of
from gateway.operations.usecases.health import NOT_READY, Health, health_of
from gateway.operations.worker_answers import WITH_PRIVATE
from gateway.telemetry.metrics.metrics import CONTENT_TYPE
from gateway.telemetry.metrics.scraped import merged_exposition
from gateway.tenancy.access.guard import may_see_private_metrics

_LEFT_OUT = (
    b"# Left out: costs, names of keys and servers. They need Authorization: Bearer KEY with the scope viewer.\n"
)


@get("/health/live", summary="Is the process alive?")
async def live() -> Health:
    """Always 200 while the event loop runs."""
    return Health(status="ok")


@get(
    "/health/ready",
    summary="May requests be sent?",
    responses={503: ResponseSpec(Health, generate_examples=False, description="Not now.")},
)
async def ready(request: HttpRequest) -> Response[Health]:
    """503 while no tier takes requests, before start, and after shutdown has started."""
    health = health_of(operations_of(request))
    return Response(health, status_code=503 if health.status == NOT_READY else 200)


@get("/metrics", summary="Prometheus metrics", media_type="text/plain")
async def metrics(request: HttpRequest) -> Response[Any]:
    """Prometheus' text format; of several gateway processes behind one port, all.

    Series with names of keys and servers or with costs need a key with the scope viewer or admin; where no key is asked
    for, a caller on this machine.
    """
    operations = operations_of(request)
    private = may_see_private_metrics(request)
    await operations.refresh_metrics()
    tiers = list(operations.serving.routing.served.tiers.values())
    if operations.peers is None:
        body = operations.metrics.exposition(tiers, private=private)
    else:
        own = operations.metrics.own_exposition(tiers, private=private)
        others = await operations.peers.ask("metrics", WITH_PRIVATE if private else "")
        texts = {operations.peers.place.number: own, **others}
        body = merged_exposition(texts) + operations.metrics.shared_exposition()
    body = body if private else body + _LEFT_OUT
    return Response(body, headers={"content-type": CONTENT_TYPE})
