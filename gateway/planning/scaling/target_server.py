"""How many replicas each tier should have now, updated from the gateways' counters, and served over HTTP: a gauge for
Prometheus and JSON for KEDA's metrics-api scaler. A counter that fell between two scrapes was reset.
"""

import asyncio
import socket
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress

import httpx
import msgspec
from litestar import Litestar, Response, get
from prometheus_client import CollectorRegistry, Gauge, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from gateway.planning.capacity.replica_profile import ReplicaProfile
from gateway.planning.scaling.predictive import (
    FleetSettings,
    Observation,
    PredictiveKnobs,
    PredictiveRule,
    ServiceObjectives,
)
from gateway.telemetry.metrics import CONTENT_TYPE
from inference_core.io.background_tasks import repeated
from tiers.remote.http_exchange import bounded_answer
from tiers.remote.http_transport import ProxyingTransport

_COUNTERS = {
    "aio_requests_total": "requests",
    "aio_prompt_tokens_total": "prompt_tokens",
    "aio_completion_tokens_total": "output_tokens",
}
Series = tuple[str, str, tuple[tuple[str, str], ...]]


class Passed(msgspec.Struct, frozen=True, kw_only=True):
    """Requests that ended between two scrapes, and their tokens."""

    requests: int = 0
    prompt_tokens: int = 0
    output_tokens: int = 0


class TrafficCounters:
    """The counters of several gateways, by scraped URL."""

    def __init__(self) -> None:
        self._last: dict[Series, float] = {}
        self._known: set[str] = set()

    def take(self, texts: dict[str, str | None]) -> dict[str, Passed] | None:
        """Return the traffic since the last call, by tier number. `texts`: expositions by URL, or None.

        Returns None if it is unknown: a gateway did not answer, or a new one has no previous counts.
        """
        complete = True
        passed: dict[str, dict[str, float]] = {}
        for url, text in texts.items():
            if text is None:
                # Its next answer covers several intervals at once, which is not a rate.
                self._known.discard(url)
                complete = False
                continue
            is_known = url in self._known
            complete &= is_known
            self._known.add(url)
            for series, value in _series(url, text):
                before = self._last.get(series, 0.0)
                self._last[series] = value
                labels = dict(series[2])
                counts = passed.setdefault(labels.get("tier", ""), {})
                name = _COUNTERS[series[1]]
                counts[name] = counts.get(name, 0.0) + (value - before if value >= before else value)
        if not complete:
            return None
        return {tier: Passed(**{name: int(value) for name, value in counts.items()}) for tier, counts in passed.items()}


def _series(url: str, text: str) -> list[tuple[Series, float]]:
    return [
        ((url, sample.name, tuple(sorted(sample.labels.items()))), sample.value)
        for family in text_string_to_metric_families(text)
        for sample in family.samples
        if sample.name in _COUNTERS
    ]


class TierTarget(msgspec.Struct, frozen=True, kw_only=True):
    """How many replicas a tier needs."""

    tier: str
    profile: str
    target: int
    """Number of replicas."""
    need: float
    """The forecast, in busy replicas."""
    known: bool
    """Whether the last interval was observed."""
    requests_per_second: float


class FleetTargets:
    """One predictive rule per tier. Tiers are named by their number, from '1' on."""

    def __init__(
        self,
        profiles: dict[str, ReplicaProfile],
        fleets: dict[str, FleetSettings],
        *,
        objectives: ServiceObjectives,
        knobs: PredictiveKnobs,
    ) -> None:
        self._profiles, self._fleets = profiles, fleets
        self._rules = {
            tier: PredictiveRule(
                profile,
                interval_s=fleets[tier].interval_s,
                cold_start_s=fleets[tier].cold_start_s,
                objectives=objectives,
                knobs=knobs,
            )
            for tier, profile in profiles.items()
        }
        self.tiers = {
            tier: TierTarget(
                tier=tier,
                profile=profile.name,
                target=fleets[tier].least,
                need=0.0,
                known=False,
                requests_per_second=0.0,
            )
            for tier, profile in profiles.items()
        }

    def update(self, at: float, passed: dict[str, Passed] | None) -> None:
        """Add an interval that ended at `at` (seconds of any steady clock); None is an unobserved one."""
        for tier, rule in self._rules.items():
            fleet, before = self._fleets[tier], self.tiers[tier]
            if passed is None:
                rule.miss()
                self.tiers[tier] = msgspec.structs.replace(before, known=False)
                continue
            counts = passed.get(tier, Passed())
            # Gateways count requests as they end, so these stand for arrivals; a queue shows up in later intervals.
            seen = Observation(
                at=at,
                seconds=fleet.interval_s,
                requests=counts.requests,
                prompt_tokens=counts.prompt_tokens,
                finished=counts.requests,
                output_tokens=counts.output_tokens,
            )
            self.tiers[tier] = msgspec.structs.replace(
                before,
                target=fleet.clamp(rule.desired(seen)),
                need=rule.forecast,
                known=True,
                requests_per_second=counts.requests / fleet.interval_s,
            )


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
        url_lists = await asyncio.gather(*(addresses_of(url) for url in self._gateways))
        gateways = [url for urls in url_lists for url in urls]
        texts = await asyncio.gather(*(_exposition(client, url) for url in gateways))
        passed = self._counters.take(dict(zip(gateways, texts, strict=True)))
        await asyncio.to_thread(self.targets.update, time.monotonic(), passed)

    async def run(self) -> None:
        """Scrape at steady times until cancelled."""
        async with httpx.AsyncClient(transport=ProxyingTransport(), timeout=_SCRAPE_TIMEOUT_S) as client:
            due = time.monotonic()
            while True:
                await self.scrape(client)
                due = max(due + self._interval_s, time.monotonic())
                await asyncio.sleep(due - time.monotonic())


async def addresses_of(url: str) -> list[str]:
    """Return a URL per address of the host, IPv4 if any; the URL itself if it has none, or TLS needs its name."""
    parsed = httpx.URL(url)
    if parsed.scheme != "http":
        return [url]
    try:
        addresses = await asyncio.get_running_loop().getaddrinfo(parsed.host, None, type=socket.SOCK_STREAM)
    except OSError:
        return [url]
    fours = {str(address[0]) for family, *_, address in addresses if family == socket.AF_INET}
    hosts = fours or {str(address[0]) for *_, address in addresses}
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
    scraped = Gauge("aio_fleet_known", "Whether all gateways answered the last scrape.", ["tier"], registry=registry)
    for tier, target in targets.tiers.items():
        wanted.labels(tier).set(target.target)
        need.labels(tier).set(target.need)
        scraped.labels(tier).set(target.known)
    return generate_latest(registry)
