"""An answer under a budget whose caller sets no limit: the limit that is sent, held and named, lowered to what is left,
or kept within it by another tier; and refused where none fits."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import pytest_asyncio

from tests.polling import eventually
from tests.support.administrator import bearer
from tests.support.app import RunningGateway, gateway_of
from tests.support.upstream import Call

CHAT, RESPONSES = "/v1/chat/completions", "/v1/responses"
# Micro-dollars per output token of the two tiers.
CHEAP, DEAR = 1, 5
# The dear tier's whole context is $1.
CATALOG = """
name = "limits"

[[tiers]]
name = "cheap"
url = "{url}"
model = "cheap"
max_context = 200000
price = {{ input_usd_per_million = 0.0, output_usd_per_million = 1.0 }}

[[tiers]]
name = "dear"
url = "{url}"
model = "dear"
max_context = 200000
price = {{ input_usd_per_million = 0.0, output_usd_per_million = 5.0 }}
"""
# The context after a prompt of so many tokens, as they are estimated.
WHOLE = str(200_000 - 7)
HELLO = [{"role": "user", "content": "Say hello."}]


class Server:
    """Answers with `tokens`, as far as it is let; `ignores`: it is not. It fails for the models in `down`. With
    `gate`, it answers when that is set. `bodies`: what it got."""

    def __init__(self) -> None:
        self.tokens, self.ignores = 10, False
        self.down: set[str] = set()
        self.gate: asyncio.Event | None = None
        self.bodies: list[dict[str, Any]] = []

    async def answer(self, call: Call) -> None:
        self.bodies.append(call.body)
        if call.body["model"] in self.down:
            await call.reply(500, {"error": {"message": "down"}})
            return
        if self.gate is not None:
            await self.gate.wait()
        most = self.tokens if self.ignores else call.body.get("max_tokens", self.tokens)
        used = min(self.tokens, most)
        usage = {"prompt_tokens": 10, "completion_tokens": used, "total_tokens": 10 + used}
        usage["completion_tokens_details"] = {"reasoning_tokens": used - 1}  # type: ignore[assignment]
        finish = "length" if used < self.tokens else "stop"
        if call.body.get("stream"):
            await call.begin()
            await call.chunk("A")
            await call.end(usage, finish)
        else:
            await call.whole("A", usage, finish)

    @property
    def sent(self) -> int | None:
        """The limit that it got last."""
        found: int | None = self.bodies[-1].get("max_tokens")
        return found


@pytest.fixture
def server() -> Server:
    return Server()


@pytest_asyncio.fixture
async def gateway(tmp_path: Path, server: Server) -> AsyncIterator[RunningGateway]:
    async with gateway_of(tmp_path, CATALOG, server.answer) as running:
        # Of requests for auto the dear tier is to answer all.
        running.classifier.p_ok = (0.1, 1.0)
        yield running


class Asker:
    """Asks with a key of its own that has a budget a day."""

    def __init__(self, gateway: RunningGateway, key: str, budget_id: str) -> None:
        self._gateway, self._budget_id = gateway, budget_id
        self._headers = bearer(key) | {"x-aio-cache": "off"}

    async def chat(self, model: str = "dear", headers: dict[str, str] | None = None, **fields: Any) -> httpx.Response:
        body = {"model": model, "messages": HELLO} | fields
        return await self.post(CHAT, body, headers)

    async def post(self, path: str, body: dict[str, Any], headers: dict[str, str] | None = None) -> httpx.Response:
        return await self._gateway.http.post(path, json=body, headers=self._headers | (headers or {}))

    async def spent_usd(self) -> float:
        rows = await self._gateway.budgets()
        return float(next(row["spent_usd"] for row in rows if row["budget_id"] == self._budget_id))

    async def record(self, answer: httpx.Response) -> Any:
        path = f"/v1/requests/{answer.headers['x-aio-decision-id']}"

        async def found() -> Any:
            got = await self._gateway.http.get(path, headers=self._headers)
            return got.json() if got.status_code == 200 else None

        return await eventually(found)


async def asker(gateway: RunningGateway, usd: float, name: str = "ada") -> Asker:
    key = await gateway.key(name)
    return Asker(gateway, key, await gateway.budget(name, usd, "day"))


async def test_half_a_dollar_a_day_answers_without_max_tokens_where_the_whole_context_costs_one(
    gateway: RunningGateway, server: Server
) -> None:
    ada = await asker(gateway, 0.5)
    for _ in range(3):
        answer = await ada.chat()
        assert answer.status_code == 200, answer.text
        assert (server.sent, answer.headers["x-aio-max-tokens"]) == (4096, "4096")
    assert (await ada.record(answer))["attempts"][0]["max_tokens"] == 4096


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(("path", "body"), [(CHAT, {"messages": HELLO}), (RESPONSES, {"input": "Say hello."})])
async def test_every_api_sends_and_names_the_limit(
    gateway: RunningGateway, server: Server, path: str, body: dict[str, Any], stream: bool
) -> None:
    ada = await asker(gateway, 0.5)
    answer = await ada.post(path, body | {"model": "dear", "stream": stream})
    assert answer.status_code == 200, answer.text
    assert (server.sent, answer.headers["x-aio-max-tokens"]) == (4096, "4096")


async def test_other_apis_have_limits_of_their_own(gateway: RunningGateway, server: Server) -> None:
    ada = await asker(gateway, 0.5)
    body = {"model": "dear", "messages": HELLO}
    assert (await ada.post("/v1/messages", body)).status_code == 400
    answer = await ada.post("/v1/messages", body | {"max_tokens": 7})
    assert (answer.status_code, server.sent) == (200, 7)
    assert "x-aio-max-tokens" not in answer.headers
    answer = await ada.post("/v1/completions", {"model": "dear", "prompt": "Once"})
    assert (server.sent, answer.headers["x-aio-max-tokens"]) == (16, "16")


async def test_a_limit_of_the_caller_is_sent_as_it_is(gateway: RunningGateway, server: Server) -> None:
    ada = await asker(gateway, 0.5)
    answer = await ada.chat(max_tokens=50_000)
    assert (answer.status_code, server.sent) == (200, 50_000)
    assert "x-aio-max-tokens" not in answer.headers


async def test_a_limit_of_the_caller_that_is_not_covered_is_lowered_and_named(
    gateway: RunningGateway, server: Server
) -> None:
    ada = await asker(gateway, 1000 * DEAR / 1e6)
    server.tokens = 300
    sent = []
    for _ in range(3):
        answer = await ada.chat(max_tokens=32_000)
        assert answer.status_code == 200, answer.text
        assert answer.headers["x-aio-max-tokens"] == str(server.sent)
        assert answer.json()["choices"][0]["finish_reason"] == "stop"
        sent.append(server.sent)
    assert sent == [1000, 700, 400]
    refused = await ada.chat(max_tokens=32_000)
    assert (refused.status_code, refused.json()["error"]["code"]) == (429, "insufficient_quota")
    assert "A max_tokens of at most 100 would pass." in refused.json()["error"]["message"]
    assert await ada.spent_usd() == pytest.approx(900 * DEAR / 1e6)


async def test_a_limit_of_the_caller_is_lowered_only_where_no_tier_covers_it(
    gateway: RunningGateway, server: Server
) -> None:
    ada = await asker(gateway, 2000 * CHEAP / 1e6)
    answer = await ada.chat("auto", max_tokens=2000)
    assert (answer.status_code, answer.headers["x-aio-tier"], server.sent) == (200, "1", 2000)
    assert "x-aio-max-tokens" not in answer.headers
    answer = await ada.chat("auto", max_tokens=3000)
    assert (answer.status_code, answer.headers["x-aio-max-tokens"]) == (200, str(server.sent))
    assert server.sent is not None
    assert 256 <= server.sent < 2000


async def test_the_limit_follows_what_the_tier_answers_and_grows_where_answers_are_cut(
    gateway: RunningGateway, server: Server
) -> None:
    ada = await asker(gateway, 50.0)
    server.tokens = 2000
    for _ in range(100):
        assert (await ada.chat(max_tokens=9000)).status_code == 200
    await gateway.serving.service.idle()
    answer = await ada.chat()
    assert answer.headers["x-aio-max-tokens"] == "2560", "a quarter more, in steps of 64"
    server.tokens = 10_000
    finishes = []
    for _ in range(40):
        answer = await ada.chat()
        finishes.append(answer.json()["choices"][0]["finish_reason"])
    assert finishes[0] == "length"
    assert finishes[-1] == "stop"
    assert int(answer.headers["x-aio-max-tokens"]) >= 10_000
    other = await ada.chat("cheap")
    assert other.headers["x-aio-max-tokens"] == "4096", "each tier has its own"


async def test_the_limit_is_lowered_to_what_is_left_and_then_auto_takes_a_cheaper_tier(
    gateway: RunningGateway, server: Server
) -> None:
    ada = await asker(gateway, 1000 * DEAR / 1e6)
    server.tokens = 900
    answer = await ada.chat()
    assert (answer.status_code, server.sent, answer.headers["x-aio-max-tokens"]) == (200, 1000, "1000")
    # 100 tokens of the dear tier are left, or 500 of the cheap one.
    answer = await ada.chat("auto")
    assert answer.status_code == 200, answer.text
    assert (answer.headers["x-aio-tier"], answer.headers["x-aio-max-tokens"], server.sent) == ("1", "500", 500)
    assert answer.json()["choices"][0]["finish_reason"] == "length"
    assert "the budget has $0.000500 left" in answer.json()["x_aio"]["reason"]
    assert await ada.spent_usd() == pytest.approx(1000 * DEAR / 1e6)


async def test_what_fits_no_tier_is_refused_with_what_is_left_what_would_pass_and_when_it_is_renewed(
    gateway: RunningGateway, server: Server
) -> None:
    ada = await asker(gateway, 200 * CHEAP / 1e6)
    for _ in range(2):
        for model in ("auto", "cheap"):
            refused = await ada.chat(model)
            assert (refused.status_code, refused.json()["error"]["code"]) == (429, "insufficient_quota")
            said = refused.json()["error"]["message"]
            assert "has $0.000200 left. It is renewed at " in said
            assert said.endswith(" would pass.")
            assert int(refused.headers["retry-after"]) <= 86_400
    assert "A max_tokens of at most 200 would pass." in said
    assert server.bodies == []
    assert (await ada.chat("cheap", max_tokens=200)).status_code == 200


async def test_auto_takes_a_tier_that_fits_a_limit_of_the_caller(gateway: RunningGateway, server: Server) -> None:
    ada = await asker(gateway, 1000 * CHEAP / 1e6)
    answer = await ada.chat("auto", max_tokens=1000)
    assert (answer.status_code, answer.headers["x-aio-tier"], server.sent) == (200, "1", 1000)


async def test_a_server_that_ignores_limits_is_held_at_its_whole_context(
    gateway: RunningGateway, server: Server
) -> None:
    ada = await asker(gateway, 0.5)
    server.tokens, server.ignores = 9000, True
    assert (await ada.chat()).status_code == 200
    await gateway.serving.service.idle()
    refused = await ada.chat()
    assert refused.status_code == 429
    assert "may cost up to $0.999" in refused.json()["error"]["message"]
    eve = await asker(gateway, 2.0, "eve")
    answer = await eve.chat()
    assert answer.headers["x-aio-max-tokens"] == WHOLE
    assert await eve.spent_usd() == pytest.approx(9000 * DEAR / 1e6)


async def test_a_tier_that_fails_is_followed_by_one_with_a_limit_that_is_left(
    gateway: RunningGateway, server: Server
) -> None:
    ada = await asker(gateway, 5000 * CHEAP / 1e6)
    server.down = {"dear"}
    answer = await ada.chat("auto")
    assert answer.status_code == 200, answer.text
    assert answer.headers["x-aio-fell-over-from"] == "tier-2"
    # The failed attempt, for which all was held, costs nothing.
    assert [(body["model"], body["max_tokens"]) for body in server.bodies] == [("dear", 1000), ("cheap", 4096)]
    assert await ada.spent_usd() == pytest.approx(10 * CHEAP / 1e6)


async def test_of_many_at_once_none_exceeds_the_budget_and_what_is_left_is_used(
    gateway: RunningGateway, server: Server
) -> None:
    ada = await asker(gateway, 20_000 * DEAR / 1e6)
    gateway.serving.routing.knobs.change({"budget_wait_seconds": 0.0})
    server.tokens = 100_000
    server.gate = asyncio.Event()
    asking = [asyncio.create_task(ada.chat()) for _ in range(50)]
    await eventually(lambda: sum(one.done() for one in asking) + len(server.bodies) == 50)
    server.gate.set()
    answers = await asyncio.gather(*asking)
    sent = [body["max_tokens"] for body in server.bodies]
    assert sum(sent) <= 20_000
    assert sum(sent) > 20_000 - 256
    assert {answer.status_code for answer in answers} == {200, 429}
    assert await ada.spent_usd() == pytest.approx(sum(sent) * DEAR / 1e6)


async def test_a_request_waits_for_what_others_in_flight_hold_and_do_not_cost(
    gateway: RunningGateway, server: Server
) -> None:
    ada = await asker(gateway, 5000 * DEAR / 1e6)
    gateway.serving.routing.knobs.change({"budget_wait_seconds": 60.0})
    server.gate = asyncio.Event()
    asking = [asyncio.create_task(ada.chat()) for _ in range(9)]
    await eventually(lambda: len(server.bodies) == 1)
    server.gate.set()
    answers = await asyncio.gather(*asking)
    assert {(answer.status_code, answer.headers["x-aio-max-tokens"]) for answer in answers} == {(200, "4096")}
    assert await ada.spent_usd() == pytest.approx(9 * 10 * DEAR / 1e6)


async def test_a_request_that_what_is_in_flight_cannot_help_does_not_wait(
    gateway: RunningGateway, server: Server
) -> None:
    ada = await asker(gateway, 150 * DEAR / 1e6)
    gateway.serving.routing.knobs.change({"budget_wait_seconds": 60.0})
    server.gate = asyncio.Event()
    asking = asyncio.create_task(ada.chat(max_tokens=100))
    await eventually(lambda: len(server.bodies) == 1)
    assert (await ada.chat(max_tokens=200)).status_code == 429
    server.gate.set()
    assert (await asking).status_code == 200


async def test_a_limit_of_the_caller_is_lowered_less_where_others_in_flight_release_what_they_hold(
    gateway: RunningGateway, server: Server
) -> None:
    ada = await asker(gateway, 5000 * DEAR / 1e6)
    gateway.serving.routing.knobs.change({"budget_wait_seconds": 60.0})
    server.gate = asyncio.Event()
    asking = asyncio.create_task(ada.chat())
    await eventually(lambda: len(server.bodies) == 1)
    late = asyncio.create_task(ada.chat(max_tokens=6000))
    server.gate.set()
    assert (await asking).status_code == 200
    assert (await late).headers["x-aio-max-tokens"] == "4990"


async def test_an_answer_that_a_budget_has_cut_is_not_given_to_others(gateway: RunningGateway, server: Server) -> None:
    team = str((await gateway.order("POST", "/teams", {"name": "lab"}))["team_id"])
    assert team
    keys = {}
    for name in ("ada", "bob"):
        keys[name] = str((await gateway.order("POST", "/keys", {"name": name, "team": "lab"}))["key"])
    await gateway.budget("ada", 5000 * DEAR / 1e6, "day")
    server.tokens = 8000
    body = {"model": "dear", "messages": HELLO, "temperature": 0}
    finishes = []
    for name in ("ada", "bob"):
        answer = await gateway.http.post(CHAT, json=body, headers=bearer(keys[name]))
        finishes.append((answer.headers["x-aio-cache"], answer.json()["choices"][0]["finish_reason"]))
    assert finishes == [("miss", "length"), ("miss", "stop")]


async def test_the_knob_holds_the_whole_context_again(gateway: RunningGateway) -> None:
    gateway.serving.routing.knobs.change({"budget_limit": "whole"})
    ada = await asker(gateway, 0.5)
    assert (await ada.chat()).status_code == 429
    rich = await asker(gateway, 1.0, "rich")
    assert (await rich.chat()).headers["x-aio-max-tokens"] == WHOLE
    gateway.serving.routing.knobs.change({"budget_limit": "learned", "budget_limit_start": 512})
    assert (await ada.chat()).headers["x-aio-max-tokens"] == "1024", "the least"
