"""Probes and metrics: whether the server lives and takes requests, what is missing, and figures."""

from typing import Any

import msgspec
from litestar import get
from litestar.openapi.datastructures import ResponseSpec
from litestar.response import Response

from gateway.edge.asgi import HttpRequest
from gateway.inference.exclusions import WITHOUT_CHATS
from gateway.operations.running import Operations, operations_of
from gateway.operations.worker_answers import WITH_PRIVATE
from gateway.telemetry.alert_rules import RETRAINING_DAYS
from gateway.telemetry.metrics import CONTENT_TYPE
from gateway.telemetry.scraped import merged_exposition
from gateway.tenancy.guard import may_see_private_metrics
from inference_core.io.background_tasks import task_problems
from quality.quality_loop import QualityLoop

NOT_READY = "not ready"


class Health(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Whether the gateway is ready to serve."""

    status: str
    """"ok", "degraded" (some tiers take no requests and others do, or a background task failed) or "not ready"."""
    problems: dict[str, str] = {}
    """What is missing, with the reason."""
    labels: str = ""
    """Where labels come from, if answers are verified."""


def health_of(operations: Operations) -> Health:
    """The state of the whole server, without secrets."""
    problems = operations.readiness.problems | task_problems()
    tiers = operations.serving.routing.served.tiers
    down = [str(tier.number) for tier in tiers.values() if not tier.load().healthy]
    if len(down) == len(tiers):
        problems["tiers"] = "no tier takes requests"
    elif down:
        problems["tiers"] = f"these take no requests: {', '.join(down)}"
    if (overdue := _retraining_overdue(operations.quality_loop)) is not None:
        problems["retraining"] = overdue
    labels = operations.labels(costs=False) or ""
    takes_none = not operations.readiness.takes_requests or len(down) == len(tiers)
    status = NOT_READY if takes_none else "degraded" if problems else "ok"
    # It serves what it can: nothing is missing that will come.
    raw = {f"chats of tier {tier.number}": WITHOUT_CHATS for tier in tiers.values() if not tier.takes_chats}
    doubts = {f"quality of model {name}": doubt for name, doubt in operations.quality_doubts.items()}
    return Health(status=status, problems=problems | raw | doubts, labels=labels)


def _retraining_overdue(loop: QualityLoop | None) -> str | None:
    """What the alert says that fires after so many days without a success."""
    days = None if loop is None else loop.days_without_retraining()
    if loop is None or days is None or days <= RETRAINING_DAYS:
        return None
    said = loop.last_retrainings()
    return f"no successful retraining for {days:.0f} days" + (f"; {said}" if said else "")


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
    """503 while no tier takes requests, before start, after shutdown has started, while so many records wait for the
    disk that new requests are refused, and while all keys are stored ones that cannot be read."""
    operations = operations_of(request)
    if (redis := operations.readiness.redis) is not None:
        await redis.look()
    health = health_of(operations)
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
        texts = {operations.peers.worker.number: own, **others}
        body = merged_exposition(texts) + operations.metrics.shared_exposition()
    body = body if private else body + _LEFT_OUT
    return Response(body, headers={"content-type": CONTENT_TYPE})
