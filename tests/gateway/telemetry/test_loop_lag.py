"""What holds up a gateway's event loop shows in its metrics."""

from types import SimpleNamespace

import pytest
from prometheus_client.parser import text_string_to_metric_families

from gateway.telemetry import families
from tests.polling import eventually
from tests.support.app import RunningGateway, StartApp
from tests.support.clock import Clock

EVER = float("inf")


async def samples(gateway: RunningGateway) -> dict[float, float]:
    """How many samples were at most so late, by each bound in seconds, as a scrape shows them."""
    text = (await gateway.http.get("/metrics")).text
    shown = {family.name: family for family in text_string_to_metric_families(text)}
    rows = shown["aio_event_loop_lag_seconds"].samples
    return {float(each.labels["le"]): each.value for each in rows if each.name.endswith("_bucket")}


async def test_a_blocked_event_loop_shows_in_the_metrics_of_its_gateway(
    app: StartApp, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(families, "time", SimpleNamespace(monotonic=clock))
    gateway = await app()

    # The sample that is due after the interval runs 0.6 seconds late, and later ones in time.
    clock.advance(families.INTERVAL_SECONDS + 0.6)
    due = (await samples(gateway))[EVER] + 2

    async def taken() -> bool:
        return (await samples(gateway))[EVER] >= due

    await eventually(taken)
    counts = await samples(gateway)
    assert (counts[EVER] - counts[0.5], counts[EVER] - counts[1.0]) == (1, 0)
