"""What a provider bills besides tokens, asked of a gateway: what a key with a budget may ask for, and what records say.
`tests/bills` compares the bills."""

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
from tiers.dialects.extras import USES

CATALOG = """
[[tiers]]
name = "small"
url = "{url}"
model = "small"
[[tiers]]
name = "openai"
provider = "openai"
url = "{url}"
model = "gpt-5"
[[tiers]]
name = "claude"
provider = "anthropic"
url = "{url}"
model = "claude-sonnet-4-5"
"""
HI = [{"role": "user", "content": "Hi"}]
SEARCH = {"type": "web_search_20250305", "name": "web_search"}
MCP = {"type": "mcp", "server_label": "x", "server_url": "https://x.example/"}


async def answer(call: Call) -> None:
    if call.path.endswith("/messages"):
        usage = {"input_tokens": 10, "output_tokens": 5}
        said = {"type": "message", "content": [{"type": "text", "text": "Hi"}], "stop_reason": "end_turn"}
        await call.reply(200, said | {"usage": usage})
    elif call.path.endswith("/responses"):
        usage = {"input_tokens": 10, "output_tokens": 5, "total_tokens": 15}
        await call.reply(200, {"status": "completed", "output": [], "output_text": "Hi", "usage": usage})
    else:
        await call.say("Hi", usage={"prompt_tokens": 10, "completion_tokens": 5})


class BilledCaller:
    """`keys`: the secrets of a key with a budget, and of one without."""

    def __init__(self, gateway: RunningGateway, keys: dict[str, str]) -> None:
        assert gateway.upstream is not None
        self.gateway, self.server, self.keys = gateway, gateway.upstream, keys

    async def post(self, key: str, path: str, body: dict[str, Any], **headers: str) -> httpx.Response:
        headers |= bearer(self.keys[key]) | {"x-aio-cache": "off"}
        return await self.gateway.http.post(f"/v1/{path}", json=body, headers=headers)


@pytest_asyncio.fixture
async def caller(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[BilledCaller]:
    for name in ("OPENAI_API_KEY", "ANTHROPIC_API_KEY"):
        monkeypatch.setenv(name, "sk-test")
    async with gateway_of(tmp_path, CATALOG, answer, protocol="httptools") as gateway:
        keys = {name: await gateway.key(name) for name in ("bounded", "open")}
        await gateway.budget("bounded", 100.0)
        yield BilledCaller(gateway, keys)


@pytest.mark.parametrize(
    ("path", "body", "param"),
    [
        ("responses", {"model": "openai", "input": "Hi", "tools": [MCP]}, "tools"),
        ("messages", {"model": "claude", "max_tokens": 9, "messages": HI, "speed": "fast"}, "speed"),
        ("chat/completions", {"model": "openai", "messages": HI, "modalities": ["text", "audio"],
                              "audio": {"voice": "alloy", "format": "mp3"}}, "modalities"),
    ],
)  # fmt: skip
async def test_what_has_no_price_is_refused_to_keys_with_a_budget_or_a_maximum_cost_and_marked_for_others(
    caller: BilledCaller, path: str, body: dict[str, Any], param: str
) -> None:
    limited = {"x-aio-max-cost": "5"}
    for refused in (await caller.post("bounded", path, body), await caller.post("open", path, body, **limited)):
        error = refused.json()["error"]
        assert refused.status_code == 400, refused.text
        assert f"{param}: what '" in error["message"]
        assert "extra_prices" in error["message"]
        assert path == "messages" or (error["param"], error["code"]) == (param, "unsupported_parameter")
    assert caller.server.calls == [], "nothing was sent"
    passed = await caller.post("open", path, body)
    assert passed.status_code == 200, passed.text

    async def recorded() -> Any:
        shown = await caller.gateway.http.get(
            f"/v1/requests/{passed.headers['x-aio-decision-id']}", headers=bearer(caller.keys["open"])
        )
        return shown.json() if shown.status_code == 200 else None

    record = await eventually(recorded)
    assert "unpriced" in record["attempts"][-1]["extras"][0]


async def test_a_search_without_a_bound_gets_one_for_a_key_with_a_budget_alone(caller: BilledCaller) -> None:
    message = {"model": "claude", "max_tokens": 9, "messages": HI, "tools": [SEARCH]}
    response = {"model": "openai", "input": "Hi", "tools": [{"type": "web_search"}]}
    for key, bound in (("bounded", USES), ("open", None)):
        assert (await caller.post(key, "messages", message)).status_code == 200
        assert caller.server.calls[-1].body["tools"][0].get("max_uses") == bound
        assert (await caller.post(key, "responses", response)).status_code == 200
        assert caller.server.calls[-1].body.get("max_tool_calls") == bound


async def test_searches_may_not_cost_more_than_the_requests_maximum(caller: BilledCaller) -> None:
    message = {"model": "claude", "max_tokens": 9, "messages": HI, "tools": [SEARCH | {"max_uses": 25}]}
    refused = await caller.post("open", "messages", message, **{"x-aio-max-cost": "0.2"})
    assert refused.status_code == 400
    assert "may cost $0.250000, above the maximum $0.200000" in refused.json()["error"]["message"]
    few = message | {"tools": [SEARCH]}
    assert (await caller.post("open", "messages", few, **{"x-aio-max-cost": "0.2"})).status_code == 200
    assert caller.server.calls[-1].body["tools"][0]["max_uses"] == USES


async def test_a_request_that_may_go_anywhere_goes_where_it_costs_tokens_alone(caller: BilledCaller) -> None:
    asked = {"model": "auto", "messages": HI, "modalities": ["text"], "service_tier": "priority"}
    told = await caller.post("bounded", "chat/completions", asked)
    assert told.status_code == 200, told.text


async def test_the_bound_that_is_held_has_what_the_searches_may_cost(caller: BilledCaller) -> None:
    caller.keys["poor"] = await caller.gateway.key("poor")
    await caller.gateway.budget("poor", 1.0)
    message = {"model": "claude", "max_tokens": 9, "messages": HI, "tools": [SEARCH | {"max_uses": 200}]}
    refused = await caller.post("poor", "messages", message)
    assert (refused.status_code, "$1.000000 left" in refused.text) == (429, True)
