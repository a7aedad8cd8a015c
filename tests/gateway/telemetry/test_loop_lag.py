"""What holds up a gateway's event loop shows in its metrics."""

import time

from prometheus_client.parser import text_string_to_metric_families

from gateway.telemetry.families import INTERVAL_SECONDS
from tests.polling import eventually
from tests.support.app import RunningGateway, StartApp


async def late_samples(gateway: RunningGateway, seconds: float) -> float:
    """How many samples were later than `seconds`, one of the bounds, as a scrape shows them."""
    text = (await gateway.http.get("/metrics")).text
    families = {family.name: family for family in text_string_to_metric_families(text)}
    samples = families["aio_event_loop_lag_seconds"].samples
    buckets = {float(each.labels["le"]): each.value for each in samples if each.name.endswith("_bucket")}
    return buckets[float("inf")] - buckets[seconds]


async def test_a_blocked_event_loop_shows_in_the_metrics_of_its_gateway(app: StartApp) -> None:
    gateway = await app()
    before = await late_samples(gateway, 0.5)

    # The gateway runs on this test's loop. One sample is due within the interval, and waits for the rest.
    time.sleep(0.5 + 2 * INTERVAL_SECONDS)  # noqa: ASYNC251

    async def seen() -> bool:
        return await late_samples(gateway, 0.5) > before

    await eventually(seen)
