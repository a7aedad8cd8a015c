"""Prices change while the gateway runs: by a list with a signature that holds and a later date, else not at all."""

import base64
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from gateway.base.settings import Settings, SettingsError
from gateway.operations.reload.price_refresh import PriceRefresh
from tests.gateway.running_gateway import RunningGateway, running_gateway
from tests.polling import eventually
from tests.tiers.remote.loopback_server import Call, LoopbackServer
from tiers.catalog.pricing import request_cost_usd
from tiers.tier import Usage

PRIVATE = Ed25519PrivateKey.from_private_bytes(bytes(range(32)))
PUBLIC = base64.b64encode(PRIVATE.public_key().public_bytes_raw()).decode()
OWN = """
[[tiers]]
name = "small-{n}"
url = "{{url}}"
model = "own-model-{n}"
price = {{{{ input_usd_per_million = 0.1, output_usd_per_million = 0.2 }}}}
"""
CATALOG = (
    "".join(OWN.format(n=n) for n in (2, 3))
    + """
[[tiers]]
name = "small"
url = "{url}"
model = "own-model"
price = {{ input_usd_per_million = 0.1, output_usd_per_million = 0.2 }}
[[tiers]]
name = "large"
url = "{url}"
model = "claude-sonnet-4-5"
"""
)


def published(day: int, usd: float, **price: Any) -> bytes:
    entry = {"input_usd_per_million": usd, "output_usd_per_million": 5 * usd} | price
    models = [{"model": "claude-sonnet-4-5", "price": entry}, {"model": "own-model", "price": entry}]
    return msgspec.json.encode({"published_at": f"2026-11-{day:02}T00:00:00Z", "models": models})


def publish(path: Path, body: bytes, key: Ed25519PrivateKey = PRIVATE) -> None:
    path.write_bytes(body)
    path.with_name(f"{path.name}.sig").write_bytes(base64.b64encode(key.sign(body)) + b"\n")


async def answering(call: Call) -> None:
    usage = {"prompt_tokens": 1000, "completion_tokens": 10, "prompt_tokens_details": {"cached_tokens": 200}}
    await call.whole("Hi", usage)


@asynccontextmanager
async def priced_gateway(folder: Path, **fields: Any) -> AsyncIterator[RunningGateway]:
    async with LoopbackServer(answering) as server:
        (folder / "catalog.toml").write_text(CATALOG.format(url=server.base_url))
        settings = Settings(
            data_dir=str(folder / "data"), monitor=False, catalog=str(folder / "catalog.toml"), **fields
        )
        async with running_gateway(settings, scripted=False) as gateway:
            yield gateway


def listed(folder: Path) -> dict[str, Any]:
    return {"price_list_url": str(folder / "prices.json"), "price_list_key": PUBLIC, "price_list_seconds": 1.0}


def input_usd(gateway: RunningGateway) -> list[float]:
    # Of a tier with a price of its own, and of the one that the list knows.
    prices = [spec.price.input_usd_per_million for spec in gateway.serving.routing.served.catalog.tiers]
    return [prices[0], prices[-1]]


async def reads(gateway: RunningGateway, outcome: str) -> float:
    page = (await gateway.http.get("/metrics")).text
    name = f'aio_price_list_reads_total{{outcome="{outcome}"}} '
    return next((float(line.removeprefix(name)) for line in page.splitlines() if line.startswith(name)), 0.0)


async def test_a_later_list_is_billed_from_then_on_and_the_record_keeps_its_price(tmp_path: Path) -> None:
    publish(tmp_path / "prices.json", published(1, 4.0))
    async with priced_gateway(tmp_path, **listed(tmp_path)) as gateway:
        await eventually(lambda: input_usd(gateway) == [0.1, 4.0])
        step = {"above_prompt_tokens": 900, "input_usd_per_million": 80, "output_usd_per_million": 90}
        publish(tmp_path / "prices.json", published(2, 8.0, steps=[step | {"cached_input_usd_per_million": 10}]))
        await eventually(lambda: input_usd(gateway) == [0.1, 8.0])
        body = {"model": "large", "messages": [{"role": "user", "content": "word " * 1000}]}
        answer = await gateway.http.post("/v1/chat/completions", json=body)
        record: Any = await gateway.serving.records.find(answer.json()["id"])
        assert await reads(gateway, "taken") == 2
    [attempt] = record.attempts
    assert record.cost_usd == pytest.approx((800 * 80 + 200 * 10 + 10 * 90) / 1e6)
    assert attempt.price.input_usd_per_million == 80
    assert attempt.price.listed == "signed list of 2026-11-02T00:00:00+00:00"
    again = request_cost_usd(
        attempt.price, attempt.prompt_tokens, attempt.completion_tokens, attempt.cached_tokens,
        attempt.cache_write_tokens, attempt.cache_write_1h_tokens,
    )  # fmt: skip
    assert again == attempt.cost_usd == record.cost_usd
    assert Usage(prompt_tokens=1000).prompt_tokens == attempt.prompt_tokens


@pytest.mark.parametrize("fault", ["unsigned", "other key", "changed", "older", "no form"])
async def test_what_cannot_be_trusted_changes_nothing_and_is_counted(
    tmp_path: Path, fault: str, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "prices.json"
    publish(path, published(5, 4.0))
    async with priced_gateway(tmp_path, **listed(tmp_path)) as gateway:
        await eventually(lambda: input_usd(gateway) == [0.1, 4.0])
        if fault == "other key":
            publish(path, published(6, 9.0), Ed25519PrivateKey.generate())
        elif fault == "older":
            publish(path, published(4, 9.0))
        elif fault == "no form":
            publish(path, b'{"published_at": "2026-11-06T00:00:00Z"}')
        elif fault == "changed":
            path.write_bytes(published(6, 9.0))
        else:
            path.write_bytes(published(6, 9.0))
            path.with_name("prices.json.sig").write_bytes(b"none")
        await eventually(lambda: any("is refused, prices stay" in line for line in caplog.messages))
        await eventually(lambda: reads(gateway, "refused"))
        assert input_usd(gateway) == [0.1, 4.0]


async def test_a_list_holds_after_a_restart_and_no_older_one_is_taken_then(tmp_path: Path) -> None:
    path = tmp_path / "prices.json"
    publish(path, published(5, 4.0))
    async with priced_gateway(tmp_path, **listed(tmp_path)) as gateway:
        await eventually(lambda: input_usd(gateway) == [0.1, 4.0])
    publish(path, published(4, 9.0))
    async with priced_gateway(tmp_path, **listed(tmp_path)) as gateway:
        assert input_usd(gateway) == [0.1, 4.0]
        await eventually(lambda: reads(gateway, "refused"))
        assert input_usd(gateway) == [0.1, 4.0]


async def test_a_list_comes_from_a_url(tmp_path: Path) -> None:
    body = published(1, 4.0)

    async def serve(call: Call) -> None:
        signed = ".sig" in call.path
        await call.begin(200, "application/octet-stream")
        await call.send(PRIVATE.sign(body) if signed else body)

    async with LoopbackServer(answering) as server:
        server.looked_at = serve
        url = server.base_url.replace("/v1", "/prices.json?t=1")
        async with priced_gateway(tmp_path, price_list_url=url, price_list_key=PUBLIC) as gateway:
            await eventually(lambda: input_usd(gateway) == [0.1, 4.0])
        assert server.looks == ["/prices.json?t=1", "/prices.json.sig?t=1"]


async def test_a_reload_keeps_the_prices_of_the_list(tmp_path: Path) -> None:
    publish(tmp_path / "prices.json", published(5, 4.0))
    async with priced_gateway(tmp_path, **listed(tmp_path)) as gateway:
        await eventually(lambda: input_usd(gateway) == [0.1, 4.0])
        await gateway.operations.reload.reload("tests", "because")
        assert input_usd(gateway) == [0.1, 4.0]


@pytest.mark.parametrize("key", ["", "AAAA", "no base64!"])
def test_a_key_that_is_none_stops_the_start(key: str) -> None:
    settings = Settings(price_list_url="/prices.json", price_list_key=key)
    with pytest.raises(SettingsError, match="AIO_PRICE_LIST_KEY"):
        PriceRefresh(settings, lambda prices: None, lambda outcome, date: None)


def test_without_the_extra_a_signed_list_stops_the_start(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tiers.catalog.price_list.find_spec", lambda name: None)
    settings = Settings(price_list_url="/prices.json", price_list_key=PUBLIC)
    with pytest.raises(SettingsError, match=r"aio-gateway\[prices\]"):
        PriceRefresh(settings, lambda prices: None, lambda outcome, date: None)
