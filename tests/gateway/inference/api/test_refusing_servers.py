"""A server without a table of rules refuses what clients of all three APIs ask for, and says how it wants it: each gets
an answer in its API's form, streamed and whole."""

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from gateway.base.settings import Settings
from tests.gateway.running_gateway import RunningGateway, running_gateway
from tests.tiers.remote.loopback_server import Call, LoopbackServer
from tests.tiers.remote.test_lessons import effort, limit, schema, thinking
from tiers.remote.refusals import REFUSALS

Body = dict[str, Any]
CITY: Body = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
FUNCTION: Body = {"name": "get_weather", "parameters": CITY}
FORMAT: Body = {"type": "json_schema", "name": "a", "schema": CITY}
USER: Body = {"role": "user", "content": "Hi"}
SAID = '{"city": "Oslo"}'
CLAUDE = """
[[tiers]]
name = "claude"
model = "m"
url = "{url}"
kind = "anthropic"
max_context = 8192
price = {{ input_usd_per_million = 3, output_usd_per_million = 3 }}
"""
CATALOG = (
    "\n".join(
        f'[[tiers]]\nname = "{name}"\nkind = "openai"\nmodel = "{name}"\nurl = "{{url}}"\nmax_context = 8192\n'
        f"price = {{{{ input_usd_per_million = {cost}, output_usd_per_million = {cost} }}}}\n"
        for cost, name in enumerate(("small", "large"), 1)
    )
    + CLAUDE
)
ASKED = {
    "chat/completions": {
        "messages": [USER],
        "max_tokens": 2000,
        "reasoning_effort": "xhigh",
        "response_format": {"type": "json_schema", "json_schema": {"name": "a", "schema": CITY}},
    },
    "messages": {
        "messages": [USER],
        "max_tokens": 2000,
        "output_config": {"effort": "xhigh", "format": {"type": "json_schema", "schema": CITY}},
    },
    "responses": {
        "input": "Hi",
        "max_output_tokens": 2000,
        "reasoning": {"effort": "xhigh"},
        "text": {"format": FORMAT},
    },
}
FORCED = {
    "chat/completions": {"tools": [{"type": "function", "function": FUNCTION}], "tool_choice": "required"},
    "messages": {"tools": [{"name": "get_weather", "input_schema": CITY}], "tool_choice": {"type": "any"}},
    "responses": {"tools": [{"type": "function"} | FUNCTION], "tool_choice": "required"},
}
RULES = [
    (limit, "Invalid max_tokens value, the valid range of max_tokens is [1, 900]"),
    (effort("low", "high"), "`reasoning_effort` must be one of `low` or `high`"),
    (schema, "This response_format type is unavailable now"),
    (thinking, "Thinking mode does not support this tool_choice"),
]


MARK = {"cache_control": {"type": "ephemeral", "ttl": "1h"}}
CODE: Body = {
    "model": "claude",
    "max_tokens": 4000,
    "system": [{"type": "text", "text": "You write code."} | MARK],
    "messages": [{"role": "user", "content": [{"type": "text", "text": "Hi"} | MARK, {"type": "text", "text": ""}]}],
    "tools": [
        {
            "name": "get_weather",
            "input_schema": CITY | {"properties": {"strict": {"type": "boolean"}, "ttl": {"type": "integer"}}},
            "strict": True,
            "eager_input_streaming": True,
            "defer_loading": False,
            "input_examples": [{"city": "Oslo"}],
        }
    ],
    "metadata": {"user_id": "u"},
    "thinking": {"type": "adaptive"},
    "output_config": {"effort": "high", "format": {"type": "json_schema", "schema": CITY}},
    "context_management": {"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]},
}
# Where a field stands, and the text in the request without which it is not there.
FIELDS = [
    ("system.0.cache_control.ephemeral.ttl", '"ttl": "1h"', ("messages", "tools")),
    ("messages.0.content.0.text.cache_control", "cache_control", ()),
    ("tools.0.custom.strict", '"strict": true', ()),
    ("tools.0.custom.eager_input_streaming", "eager_input_streaming", ()),
    ("tools.0.custom.defer_loading", "defer_loading", ()),
    ("tools.0.custom.input_examples", "input_examples", ()),
    ("metadata", "metadata", ()),
    ("thinking", "adaptive", ()),
    ("output_config", '"effort"', ()),
    ("context_management", "context_management", ()),
]


async def refuse_extras(call: Call) -> None:
    """Refuse the field of Claude Code's of which the limit has the place."""
    path, text, apart = FIELDS[int(call.body["max_tokens"]) - 4000]
    if text in json.dumps({name: value for name, value in call.body.items() if name not in apart}):
        error = {"type": "invalid_request_error", "message": f"{path}: Extra inputs are not permitted"}
        await call.reply(400, {"type": "error", "error": error})
        return
    said = {"content": [{"type": "text", "text": SAID}], "stop_reason": "end_turn"}
    await call.reply(200, {"type": "message", "usage": {"input_tokens": 9, "output_tokens": 1}} | said)


MOST_TOOLS = 2
TOO_MANY: list[str] = []
"""Models that were asked with more tools."""


async def refuse(call: Call) -> None:
    if len(call.body.get("tools", ())) > MOST_TOOLS:
        TOO_MANY.append(call.body["model"])
        if call.body["model"] == "small":
            words = f"Invalid 'tools': array too long. Expected an array with maximum length {MOST_TOOLS}."
            said = {"message": words, "param": "tools", "code": "array_above_max_length"}
            await call.reply(400, {"error": said | {"type": "invalid_request_error"}})
            return
    if call.path.endswith("/messages"):
        await refuse_extras(call)
        return
    for refuses, words in RULES:
        if refuses(call.body):
            await call.reply(400, {"error": {"message": words, "type": "invalid_request_error", "param": None}})
            return
    said: Body = {"content": SAID}
    if "tools" in call.body:
        call_made = {"index": 0, "id": "c1", "type": "function", "function": {"name": "get_weather", "arguments": SAID}}
        said = {"content": None, "tool_calls": [call_made]}
    reason = "tool_calls" if "tools" in call.body else "stop"
    if not call.body["stream"]:
        await call.whole(finish=reason, **said)
        return
    await call.begin()
    await call.event({"choices": [{"index": 0, "delta": said, "finish_reason": None}]})
    await call.end(finish=reason)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def gateway(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[RunningGateway]:
    folder: Path = tmp_path_factory.mktemp("refusing")
    async with LoopbackServer(refuse) as server:
        path = folder / "catalog.toml"
        path.write_text(CATALOG.format(url=server.base_url))
        settings = Settings(data_dir=str(folder), catalog=str(path), monitor=False, drain_seconds=5)
        async with running_gateway(settings, scripted=False, protocol="httptools") as running:
            yield running


@pytest.mark.asyncio(loop_scope="module")
@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("forced", [False, True])
@pytest.mark.parametrize("api", ASKED)
async def test_every_client_gets_an_answer(gateway: RunningGateway, api: str, forced: bool, stream: bool) -> None:
    REFUSALS.forget()
    fields = ASKED[api] if not forced else {"max_tokens": 500, "messages": [USER], "input": "Hi"} | FORCED[api]
    body = {"model": "small", "stream": stream} | fields
    body.pop("input" if api != "responses" else "messages", None)
    body.pop("max_tokens" if api == "responses" else "", None)
    told = await gateway.http.post(f"/v1/{api}", json=body, headers={"x-aio-cache": "off"})
    REFUSALS.forget()
    assert told.status_code == 200, told.text
    assert "Oslo" in told.text
    assert ("get_weather" in told.text) is forced
    assert "invalid_request_error" not in told.text
    changed = told.headers["x-aio-changed-fields"]
    assert ("reasoning_effort" if forced else "effort") in changed


@pytest.mark.asyncio(loop_scope="module")
@pytest.mark.parametrize("place", range(len(FIELDS)), ids=[path for path, *_ in FIELDS])
async def test_what_a_server_of_anthropics_api_does_not_know_is_left_out_and_named(
    gateway: RunningGateway, place: int
) -> None:
    REFUSALS.forget()
    body = CODE | {"max_tokens": 4000 + place}
    told = await gateway.http.post("/v1/messages", json=body, headers={"x-aio-cache": "off"})
    REFUSALS.forget()
    assert told.status_code == 200, told.text
    assert "Oslo" in told.text
    named = FIELDS[place][0].rpartition(".")[2]
    assert named in told.headers["x-aio-ignored-fields"]


@pytest.mark.asyncio(loop_scope="module")
async def test_more_tools_than_a_tier_takes_are_anothers_at_once_but_not_where_it_is_named(
    gateway: RunningGateway,
) -> None:
    REFUSALS.forget()
    TOO_MANY.clear()
    names = (f"tool_{place}" for place in range(MOST_TOOLS + 1))
    tools = [{"type": "function", "function": FUNCTION | {"name": name}} for name in names]
    headers = {"x-aio-cache": "off", "x-aio-quality": "economy"}
    asked = []
    for model, status in (("auto", 200), ("auto", 200), ("small", 400)):
        body = {"model": model, "messages": [USER], "tools": tools}
        told = await gateway.http.post("/v1/chat/completions", json=body, headers=headers)
        assert told.status_code == status, told.text
        asked.append(TOO_MANY.copy())
        TOO_MANY.clear()
    REFUSALS.forget()
    assert [models[0] for models in asked] == ["small", "large", "small"]
    assert told.json()["error"]["code"] == "array_above_max_length"
