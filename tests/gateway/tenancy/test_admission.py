"""Limits and budgets over HTTP: rejections, headers, and that every place is released."""

import asyncio
import logging
import math
import re
import time
from contextlib import AsyncExitStack
from typing import Any

import httpx
import openai
import pytest
import pytest_asyncio

from gateway.base.settings import Settings
from gateway.tenancy.admission import duration
from tests.support.administrator import bearer
from tests.support.app import RunningGateway, StartApp, running_gateway
from tests.support.database import RedisServer
from tiers.errors import TierError
from tiers.tier import Usage

HELLO = [{"role": "user", "content": "Say hello."}]
EVE = "test-eve-9be21f07c4d83a56f1107be2c9d4538a"
BODY: dict[str, Any] = {"model": "tier-1", "messages": HELLO, "max_tokens": 5}


@pytest_asyncio.fixture
async def aio(settings: Settings, app: StartApp) -> RunningGateway:
    return await app(keys_poll_seconds=600)


async def asked(aio: RunningGateway, key: str, **changes: Any) -> httpx.Response:
    return await aio.http.post("/v1/chat/completions", json=BODY | changes, headers=bearer(key))


def cost_bound(aio: RunningGateway, answer_tokens: int = 5) -> int:
    """Micro-dollars that BODY may cost on tier 1: 10 bytes, a turn and the template, and 5 tokens."""
    price = aio.serving.routing.served.spec(1).price
    return math.ceil(price.input_usd_per_million * (10 + 16 + 64) + price.output_usd_per_million * answer_tokens)


async def test_rate_headers_are_openais_and_refusals_have_retry_after(aio: RunningGateway) -> None:
    key = await aio.key(requests_per_minute=2, tokens_per_minute=1000)
    first = await asked(aio, key)
    assert first.headers["x-ratelimit-limit-requests"] == "2"
    assert first.headers["x-ratelimit-remaining-requests"] == "1"
    assert first.headers["x-ratelimit-limit-tokens"] == "1000"
    # An estimate at first: a quarter of the prompt's bytes, and the answer's limit.
    assert first.headers["x-ratelimit-remaining-tokens"] == str(1000 - (1 + 10 // 4 + 5))
    assert first.headers["x-ratelimit-reset-requests"].startswith("1m")
    streamed = await asked(aio, key, stream=True)
    # Then the actual use: 6 of the prompt and 5 of the answer.
    assert streamed.headers["x-ratelimit-remaining-tokens"] == str(1000 - 11 - (1 + 10 // 4 + 5))
    refused = await asked(aio, key)
    assert refused.status_code == 429
    assert refused.json()["error"]["code"] == "rate_limit_exceeded"
    assert 55 < int(refused.headers["retry-after"]) <= 62
    assert refused.headers["x-ratelimit-remaining-requests"] == "0"
    assert len(aio.tier(1).requests) == 2


async def test_the_openai_client_takes_it_for_a_rate_limit(aio: RunningGateway) -> None:
    key = await aio.key(tokens_per_minute=3)
    client = aio.openai.with_options(api_key=key)
    with pytest.raises(openai.RateLimitError, match="asks for up to 8 tokens"):
        await client.chat.completions.create(model="tier-1", messages=HELLO, max_tokens=5)  # type: ignore[arg-type]


async def test_the_openai_client_retries_when_the_limit_says(aio: RunningGateway) -> None:
    key = await aio.key(concurrency=1)
    tier = aio.tier(1)
    tier.hold_at = 1
    holding = asyncio.create_task(asked(aio, key))
    await tier.holding.wait()
    refused, times = asyncio.Event(), []

    async def seen(response: httpx.Response) -> None:
        times.append(time.monotonic())
        if response.status_code == 429:
            refused.set()

    async with httpx.AsyncClient(event_hooks={"response": [seen]}) as http:
        client = openai.AsyncOpenAI(base_url=f"{aio.url}/v1", api_key=key, max_retries=1, http_client=http)
        asking = asyncio.create_task(client.chat.completions.create(**BODY))
        await refused.wait()
        tier.go.set()
        await holding
        assert (await asking).choices[0].message.content
    # By default the client retries within half a second.
    assert times[1] - times[0] >= 1


async def test_a_budget_that_is_used_up_is_the_openai_clients_quota(aio: RunningGateway) -> None:
    key = await aio.key()
    await aio.budget("ada", 1e-6, "month")
    client = aio.openai.with_options(api_key=key)
    with pytest.raises(openai.RateLimitError, match="exceeded your current quota") as caught:
        await client.chat.completions.create(**BODY)
    assert (caught.value.code, caught.value.type) == ("insufficient_quota", "insufficient_quota")
    assert int(caught.value.response.headers["retry-after"]) > 0
    assert not aio.tier(1).requests


@pytest.mark.parametrize("kind", ["key", "team"])
async def test_a_refusal_says_whose_budget_it_is_and_which_answer_would_pass(aio: RunningGateway, kind: str) -> None:
    await aio.order("POST", "/teams", {"name": "lab"})
    key = str((await aio.order("POST", "/keys", {"name": "ada", "team": "lab"}))["key"])
    most, asked_for = cost_bound(aio, 120), cost_bound(aio, 200)
    body = {"kind": kind, "subject": "ada" if kind == "key" else "lab", "period": "month", "amount_usd": most / 1e6}
    await aio.order("PUT", "/budgets", body)

    said = (await asked(aio, key, max_tokens=200)).json()["error"]["message"]

    cost = f"\\${asked_for / 1e6:.6f}"
    whose = "key ada" if kind == "key" else "team lab"
    found = re.fullmatch(
        f"You exceeded your current quota: this request may cost up to {cost}, and the budget of {whose} "
        f"\\(\\${most / 1e6:g} per month\\) has \\${most / 1e6:.6f} left. It is renewed at "
        "\\d{4}-\\d\\d-01 00:00 UTC. A max_tokens of at most (\\d+) would pass.",
        said,
    )
    assert found, said
    assert 120 <= int(found[1]) < 125
    assert (await asked(aio, key, max_tokens=int(found[1]))).status_code == 200


async def test_a_refusal_advises_no_smaller_answer_where_the_prompt_alone_is_too_dear(aio: RunningGateway) -> None:
    key = await aio.key()
    await aio.budget("ada", 1e-6, "month")
    said = (await asked(aio, key)).json()["error"]["message"]
    assert re.search(r"has \$0\.000001 left\. It is renewed at \d{4}-\d\d-01 00:00 UTC\.$", said), said


async def test_a_limit_for_which_no_minute_has_room_counts_as_the_longest_expected_answer(aio: RunningGateway) -> None:
    key = await aio.key(tokens_per_minute=2000)
    for limit in (32_000, 64_000):
        answer = await asked(aio, key, max_tokens=limit)
        assert answer.status_code == 200, answer.text


async def test_a_key_without_limits_gets_no_limit_headers(aio: RunningGateway) -> None:
    answer = await asked(aio, await aio.key())
    assert not [name for name in answer.headers if name.startswith("x-ratelimit")]


@pytest.mark.parametrize("end", ["answered", "failed", "streamed", "left", "left the stream", "refused"])
async def test_a_place_in_flight_is_given_back_however_the_request_ends(aio: RunningGateway, end: str) -> None:
    key = await aio.key(concurrency=1)
    tier = aio.tier(1)
    stream = end in ("streamed", "left the stream")
    tier.hold_at = 1
    asking = asyncio.create_task(asked(aio, key, stream=stream))
    await tier.holding.wait()
    crowded = await asked(aio, key)
    assert (crowded.status_code, crowded.headers["retry-after"]) == (429, "1")
    if end == "failed":
        tier.fail_at, tier.error = 2, TierError("broke")
    if end.startswith("left"):
        asking.cancel()
        await asyncio.gather(asking, return_exceptions=True)
        await tier.ended.wait()
        await aio.serving.service.idle()
    else:
        tier.go.set()
        await asking
    if end == "refused":
        assert (await asked(aio, key, model="missing")).status_code == 404
    tier.reset()
    assert (await asked(aio, key)).status_code == 200
    assert (await asked(aio, key)).status_code == 200


@pytest.fixture(params=["sqlite", "postgresql", "redis"])
def shared(request: pytest.FixtureRequest, settings: Settings) -> Settings:
    """Settings of replicas that share a database, and in one case limits in Redis too."""
    url = {"sqlite": "", "postgresql": "postgres_url", "redis": "postgres_url"}[request.param]
    return Settings(
        data_dir=settings.data_dir,
        monitor=False,
        database_url=request.getfixturevalue(url) if url else "",
        redis_url=request.getfixturevalue("redis_url") if request.param == "redis" else "",
        keys_poll_seconds=600,
    )


async def test_of_100_requests_at_two_replicas_a_budget_for_10_lets_10_through(shared: Settings) -> None:
    async with AsyncExitStack() as stack:
        replicas = [await stack.enter_async_context(running_gateway(shared)) for _ in range(2)]
        limits = {"concurrency": 100} if shared.redis_url else {}
        key = await replicas[0].key(**limits)
        await replicas[0].budget("ada", 10 * cost_bound(replicas[0]) / 1e6, "month")
        await replicas[1].access.tenancy.directory.load()
        for replica in replicas:
            replica.tier(1).hold_at = 0
        asking = [asyncio.create_task(asked(replicas[n % 2], key)) for n in range(100)]
        refused = []
        for done in asyncio.as_completed(asking):
            refused.append(await done)
            if len(refused) == 90:
                break
        assert all(answer.status_code == 429 for answer in refused)
        error = refused[0].json()["error"]
        assert (error["code"], error["type"]) == ("insufficient_quota", "insufficient_quota")
        assert int(refused[0].headers["retry-after"]) > 0
        for replica in replicas:
            replica.tier(1).go.set()
        answers = [answer for answer in await asyncio.gather(*asking) if answer.status_code == 200]
        assert len(answers) == 10
        spent = sum(float(answer.headers["x-aio-cost-usd"]) for answer in answers)
        for replica in replicas:
            await replica.access.tenancy.budget_leases.close()
        listed = await replicas[0].http.get("/admin/api/budgets")
        (row,) = listed.json()["rows"]
        # Each replica's sum is reported rounded up to the micro-dollar.
        assert spent - 1e-12 <= row["spent_usd"] <= spent + len(replicas) * 1e-6
        assert row["leased_usd"] == 0


async def test_a_budget_of_a_team_and_of_a_key_of_the_settings(settings: Settings, app: StartApp) -> None:
    aio = await app(api_keys=f"eve={EVE}")
    await aio.order("POST", "/teams", {"name": "lab"})
    keys = [(await aio.order("POST", "/keys", {"name": name, "team": "lab"}))["key"] for name in ("one", "two")]
    body = {"kind": "team", "subject": "lab", "period": "day", "amount_usd": cost_bound(aio) / 1e6}
    await aio.order("PUT", "/budgets", body)
    await aio.budget("eve", 0.0, "month")
    assert (await asked(aio, EVE)).status_code == 429
    assert (await asked(aio, keys[0])).status_code == 200
    # What the first left unused is less than the second may cost.
    assert (await asked(aio, keys[1])).status_code == 429


async def test_a_tier_that_claims_billions_of_tokens_is_charged_what_was_held(
    aio: RunningGateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    key = await aio.key()
    bound = cost_bound(aio)
    await aio.budget("ada", 2 * bound / 1e6, "month")
    lie = Usage(prompt_tokens=2**31, completion_tokens=2**31, cache_write_tokens=2**30)
    monkeypatch.setattr(aio.tier(1), "usage", lambda *_: lie)
    first = await asked(aio, key)
    assert first.status_code == 200
    assert 0 < float(first.headers["x-aio-cost-usd"]) <= bound / 1e6
    assert first.json()["usage"]["completion_tokens"] == BODY["max_tokens"]
    assert (await asked(aio, key)).status_code == 200
    assert (await asked(aio, key)).status_code == 429


async def test_an_answer_does_not_move_to_a_tier_that_the_budget_does_not_bear(aio: RunningGateway) -> None:
    key = await aio.key()
    await aio.budget("ada", cost_bound(aio) / 1e6, "month")
    aio.tier(1).fail_at = 2
    assert (await asked(aio, key, model="auto")).status_code >= 500
    assert not any(aio.tier(number).requests for number in (2, 3, 4))
    await aio.budget("ada", 1.0, "month")
    aio.tier(1).fail_at = 2
    assert (await asked(aio, key, model="auto")).headers["x-aio-tier"] == "2"


async def test_redis_killed_and_back_costs_no_request(
    settings: Settings, redis_server: RedisServer, app: StartApp
) -> None:
    aio = await app(redis_url=redis_server.url)
    key = await aio.key(requests_per_minute=100, concurrency=100)
    statuses = [(await asked(aio, key)).status_code]
    redis_server.kill()
    statuses += [(await asked(aio, key)).status_code for _ in range(3)]
    redis_server.start()
    assert aio.operations.readiness.redis is not None
    aio.operations.readiness.redis._rests_until = 0.0
    back = await asked(aio, key)
    assert [*statuses, back.status_code] == [200] * 5
    # Redis lost its counts; it counts from zero.
    assert back.headers["x-ratelimit-remaining-requests"] == "99"


async def test_redis_away_refuses_requests_where_that_is_configured(settings: Settings, app: StartApp) -> None:
    aio = await app(redis_url="redis://127.0.0.1:1/0", limits_without_redis="closed")
    limited, free = await aio.key("ada", requests_per_minute=9), await aio.key("bob")
    answer = await asked(aio, limited)
    assert (answer.status_code, answer.json()["error"]["code"]) == (503, "limits_unavailable")
    assert (await asked(aio, free)).status_code == 200


async def test_neither_headers_nor_logs_can_be_injected_with_a_key(
    aio: RunningGateway, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    key = await aio.key()
    evil = "sk-aio-\x7f\x01evil\tx-aio-tier: 9"
    reader, writer = await asyncio.open_connection("127.0.0.1", aio.port)
    for value in (evil, f"{key}\r\n injected: yes", "sk-aio-{0}%s${{jndi:ldap://x}}"):
        head = f"GET /v1/models HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {value}\r\nconnection: close\r\n\r\n"
        writer.write(head.encode("latin-1"))
        answer = await reader.read()
        assert answer.split(b" ")[1] in (b"400", b"401")
        assert b"evil" not in answer
        assert b"injected" not in answer
        reader, writer = await asyncio.open_connection("127.0.0.1", aio.port)
    writer.close()
    ours = [record.getMessage() for record in caplog.records]
    assert not any("evil" in line or "jndi" in line or key in line for line in ours)


@pytest.mark.parametrize(
    ("seconds", "said"),
    [
        (0.0, "0ms"), (-0.5, "0ms"), (0.85, "850ms"), (1.0, "1s"), (12.5, "12.5s"), (59.9996, "1m0s"), (60.0, "1m0s"),
        (61.25, "1m1.25s"),
    ],
)  # fmt: skip
def test_durations_are_written_as_openai_writes_them(seconds: float, said: str) -> None:
    assert duration(seconds) == said
