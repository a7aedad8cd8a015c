"""Listed prices change while the gateway runs, when the list says so; those of the catalogue stay."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, tzinfo
from pathlib import Path
from typing import Any

import pytest

from tests.polling import eventually
from tests.support.app import RunningGateway, gateway_of
from tests.support.upstream import Call
from tiers.catalog import price_list
from tiers.catalog.pricing import request_cost_usd

# The list has two prices of o3 in US dollars per million tokens of a prompt: 10, and from 2025-06-10 on 2.
OWN = """
[[tiers]]
name = "own-{number}"
url = "{{url}}"
model = "o3"
price = {{{{ input_usd_per_million = 0.{number}, output_usd_per_million = 0.8 }}}}
"""
CATALOG = (
    "".join(OWN.format(number=number) for number in (1, 2, 3))
    + """
[[tiers]]
name = "large"
url = "{url}"
model = "o3"
[[embeddings]]
name = "own"
url = "{url}"
model = "text-embedding-3-small"
input_usd_per_million = 0.3
"""
)


class Clock(datetime):
    """The date that the price list reads."""

    today = datetime(2025, 6, 1, 12, tzinfo=UTC)

    @classmethod
    def now(cls, tz: tzinfo | None = None) -> Any:
        return cls.today


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> type[Clock]:
    monkeypatch.setattr(Clock, "today", Clock.today)
    monkeypatch.setattr(price_list, "datetime", Clock)
    return Clock


async def answering(call: Call) -> None:
    usage = {"prompt_tokens": 1000, "completion_tokens": 10, "prompt_tokens_details": {"cached_tokens": 200}}
    await call.whole("Hi", usage)


@asynccontextmanager
async def priced_gateway(folder: Path) -> AsyncIterator[RunningGateway]:
    async with gateway_of(folder, CATALOG, answering, price_list_seconds=1.0) as gateway:
        yield gateway


def input_usd(gateway: RunningGateway) -> list[float]:
    """The prices of the tiers: three have one of their own, the last one has the list's."""
    return [spec.price.input_usd_per_million for spec in gateway.serving.routing.served.catalog.tiers]


async def test_a_later_price_of_the_list_is_billed_from_then_on_and_the_record_keeps_it(
    tmp_path: Path, clock: type[Clock]
) -> None:
    async with priced_gateway(tmp_path) as gateway:
        assert input_usd(gateway) == [0.1, 0.2, 0.3, 10]
        clock.today = datetime(2025, 6, 11, tzinfo=UTC)
        await eventually(lambda: input_usd(gateway) == [0.1, 0.2, 0.3, 2])
        body = {"model": "large", "messages": [{"role": "user", "content": "word " * 1000}]}
        answer = await gateway.http.post("/v1/chat/completions", json=body)
        record: Any = await gateway.serving.records.find(answer.json()["id"])
    [attempt] = record.attempts
    assert record.cost_usd == pytest.approx((800 * 2 + 200 * 0.5 + 10 * 8) / 1e6)
    assert attempt.price.input_usd_per_million == 2
    assert attempt.price.listed == f"genai-prices {price_list.list_version()}"
    again = request_cost_usd(
        attempt.price, attempt.prompt_tokens, attempt.completion_tokens, attempt.cached_tokens,
        attempt.cache_write_tokens, attempt.cache_write_1h_tokens,
    )  # fmt: skip
    assert again == attempt.cost_usd == record.cost_usd


async def test_a_reload_takes_the_prices_of_its_moment(tmp_path: Path, clock: type[Clock]) -> None:
    async with priced_gateway(tmp_path) as gateway:
        clock.today = datetime(2025, 6, 11, tzinfo=UTC)
        await gateway.operations.reload.reload("tests", "because")
        assert input_usd(gateway) == [0.1, 0.2, 0.3, 2]
        assert [spec.input_usd_per_million for spec in gateway.serving.routing.served.catalog.embeddings] == [0.3]
