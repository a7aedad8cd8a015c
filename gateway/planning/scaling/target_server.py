"""Serves the targets over HTTP: a gauge for Prometheus and JSON for KEDA's metrics-api scaler, scraped from
gateways."""

import asyncio
import socket
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress

import httpx
from litestar import Litestar, Response, get
from prometheus_client import CollectorRegistry, Gauge, generate_latest

from gateway.planning.scaling.targets import FleetTargets, TierTarget
from gateway.planning.scaling.traffic_counters import TrafficCounters
from gateway.telemetry.metrics.metrics import CONTENT_TYPE
from inference_core.io.background_tasks import repeated
from tiers.remote.http_exchange import bounded_answer

_SCRAPE_TIMEOUT_S = 5.0
_MOST_PAGE_BYTES = 16 * 2**20


class TargetService:
    """Scrapes `gateways` (base URLs) every `interval_s` and updates `targets`.

    A name may resolve to many gateways, as a headless Service's does: each address is scraped, and the name is resolved
    every time, since gateways come and go.
    """

    def __init__(self, targets: FleetTargets, gateways: Sequence[str], interval_s: float) -> None:
        self.targets, self._gateways, self._interval_s = targets, gateways, interval_s
        self._counters = TrafficCounters()

    async def scrape(self, client: httpx.AsyncClient) -> None:
        """Scrape once. A gateway that does not answer makes the interval unknown: targets stay unchanged."""
        found = await asyncio.gather(*(addresses_of(url) for url in self._gateways))
        gateways = [url for urls in found for url in urls]
        texts = await asyncio.gather(*(_exposition(client, url) for url in gateways))
        passed = self._counters.take(dict(zip(gateways, texts, strict=True)))
        await asyncio.to_thread(self.targets.update, time.monotonic(), passed)

    async def run(self) -> None:
        """Scrape at steady times until cancelled."""
        async with httpx.AsyncClient(timeout=_SCRAPE_TIMEOUT_S) as client:
            due = time.monotonic()
            while True:
                await self.scrape(client)
                due = max(due + self._interval_s, time.monotonic())
                await asyncio.sleep(due - time.monotonic())


async def addresses_of(url: str) -> list[str]:
    """Return a URL per address of the host, IPv4 if it has any; the URL itself if it has none, or needs its name for
    TLS."""
    parsed = httpx.URL(url)
    if parsed.scheme != "http":
        return [url]
    try:
        found = await asyncio.get_running_loop().getaddrinfo(parsed.host, None, type=socket.SOCK_STREAM)
    except OSError:
        return [url]
    fours = {str(address[0]) for family, *_, address in found if family == socket.AF_INET}
    hosts = fours or {str(address[0]) for *_, address in found}
    return [str(parsed.copy_with(host=host)) for host in sorted(hosts)]


async def _exposition(client: httpx.AsyncClient, url: str) -> str | None:
    try:
        request = client.build_request("GET", f"{url.rstrip('/')}/metrics")
        answer, page = await bounded_answer(client, request, _MOST_PAGE_BYTES, _SCRAPE_TIMEOUT_S)
        answer.raise_for_status()
        return page.decode(errors="replace")
    except httpx.HTTPError:
        return None


def target_app(service: TargetService) -> Litestar:
    """`GET /v1/fleet` and `GET /metrics`; scrapes while it runs."""

    @asynccontextmanager
    async def scraping(app: Litestar) -> AsyncIterator[None]:
        task = repeated(service.run, "scrapes")
        try:
            yield
        finally:
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task

    @get("/v1/fleet")
    async def fleet() -> dict[str, dict[str, TierTarget]]:
        return {"tiers": {f"tier-{tier}": target for tier, target in service.targets.tiers.items()}}

    @get("/metrics", media_type="text/plain")
    async def metrics() -> Response[bytes]:
        return Response(target_exposition(service.targets), headers={"content-type": CONTENT_TYPE})

    return Litestar([fleet, metrics], lifespan=[scraping], openapi_config=None)


def target_exposition(targets: FleetTargets) -> bytes:
    """`aio_fleet_target_replicas`, `aio_fleet_need_replicas` and `aio_fleet_known` by tier."""
    registry = CollectorRegistry()
    wanted = Gauge("aio_fleet_target_replicas", "Replicas that a tier should have.", ["tier"], registry=registry)
    need = Gauge("aio_fleet_need_replicas", "Replicas that will be wholly busy.", ["tier"], registry=registry)
    known = Gauge("aio_fleet_known", "Whether all gateways answered the last scrape.", ["tier"], registry=registry)
    for tier, target in targets.tiers.items():
        wanted.labels(tier).set(target.target)
        need.labels(tier).set(target.need)
        known.labels(tier).set(target.known)
    return generate_latest(registry)
