"""Opaque state of a chat's turns goes back to the server that made it, on every API and from any process, and to no
other server."""

import json
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from gateway.base.settings import Settings
from tests.support.app import RunningGateway, running_gateway
from tests.support.upstream import Call, LoopbackServer

CATALOG = """
[[tiers]]
name = "first"
provider = "deepseek"
url = "{first}"
model = "deepseek-reasoner"
price = {{ input_usd_per_million = 1.0, output_usd_per_million = 1.0 }}

[[tiers]]
name = "second"
url = "{second}"
model = "kimi-k2-thinking"
price = {{ input_usd_per_million = 2.0, output_usd_per_million = 2.0 }}
"""
THOUGHT = "It may be cold there."
DETAILS = [
    {"type": "reasoning.text", "text": THOUGHT, "index": 0},
    {"type": "reasoning.encrypted", "data": "SEAL", "index": 1},
]
SIGNED = {"google": {"thought_signature": "SIGN"}}
CALL = {"id": "call_1", "type": "function", "function": {"name": "weather", "arguments": '{"city": "Oslo"}'}}
FUNCTION = {"name": "weather", "parameters": {"type": "object", "properties": {"city": {"type": "string"}}}}
USAGE = {"prompt_tokens": 9, "completion_tokens": 9, "total_tokens": 18}
QUESTION = {"role": "user", "content": "Is it cold in Oslo?"}
PATHS = {"chat": "/v1/chat/completions", "messages": "/v1/messages", "responses": "/v1/responses"}


async def answer(call: Call) -> None:
    """A call with all kinds of state; a text once its result is there."""
    if call.body["messages"][-1]["role"] == "tool":
        message: dict[str, Any] = {"role": "assistant", "content": "Yes."}
    else:
        message = {"role": "assistant", "content": None, "reasoning_content": THOUGHT, "reasoning_details": DETAILS}
        message["tool_calls"] = [CALL | {"extra_content": SIGNED}]
    finish = "tool_calls" if message.get("tool_calls") else "stop"
    if not call.body.get("stream"):
        await call.whole(usage=USAGE, finish=finish, **message)
        return
    pieces = [{"content": message["content"]}]
    if finish == "tool_calls":
        half = len(THOUGHT) // 2
        texts = [DETAILS[0] | {"text": text} for text in (THOUGHT[:half], THOUGHT[half:])]
        pieces = [{"reasoning_content": piece["text"], "reasoning_details": [piece]} for piece in texts]
        pieces += [{"reasoning_details": DETAILS[1:]}, {"tool_calls": [message["tool_calls"][0] | {"index": 0}]}]
    await call.begin()
    for delta in pieces:
        await call.event({"choices": [{"index": 0, "delta": delta, "finish_reason": None}]})
    await call.end(USAGE, finish)


class World:
    """Two servers behind two gateways with one store."""

    def __init__(self, gateways: list[RunningGateway], servers: list[LoopbackServer]) -> None:
        self.gateways, self.servers = gateways, servers

    async def ask(self, api: str, gateway: int, body: dict[str, Any], *, stream: bool = False) -> httpx.Response:
        headers = {"x-aio-cache": "off"}
        found = await self.gateways[gateway].http.post(PATHS[api], json=body | {"stream": stream}, headers=headers)
        assert found.status_code == 200, found.text
        return found

    def turn(self, server: int) -> dict[str, Any]:
        """The assistant's turn that the server got last."""
        return next(one for one in self.servers[server].calls[-1].body["messages"] if one["role"] == "assistant")


@pytest.fixture(params=["database", "redis"])
async def world(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[World]:
    monkeypatch.setenv("DEEPSEEK_API_KEY", "test-key")
    redis = request.getfixturevalue("redis_url") if request.param == "redis" else ""
    async with AsyncExitStack() as stack:
        servers = [await stack.enter_async_context(LoopbackServer(answer)) for _ in range(2)]
        file = tmp_path / "catalog.toml"
        file.write_text(CATALOG.format(first=servers[0].base_url, second=servers[1].base_url))
        shared = "" if redis else f"sqlite:///{tmp_path / 'shared.sqlite3'}"
        folders = (tmp_path / "a", tmp_path / "b")
        gateways = [await stack.enter_async_context(_gateway(file, data, redis, shared)) for data in folders]
        yield World(gateways, servers)


@asynccontextmanager
async def _gateway(catalog: Path, data: Path, redis: str, database: str) -> AsyncIterator[RunningGateway]:
    settings = Settings(
        data_dir=str(data), catalog=str(catalog), monitor=False, redis_url=redis, database_url=database, drain_seconds=5
    )
    async with running_gateway(settings, scripted=False) as gateway:
        gateway.classifier.p_ok = (1.0, 1.0)
        yield gateway


def asked(api: str, model: str) -> dict[str, Any]:
    """The first request of a loop."""
    if api == "chat":
        return {"model": model, "messages": [QUESTION], "tools": [{"type": "function", "function": FUNCTION}]}
    if api == "responses":
        return {"model": model, "input": [QUESTION], "tools": [{"type": "function"} | FUNCTION], "store": True}
    tool = {"name": "weather", "input_schema": FUNCTION["parameters"]}
    return {"model": model, "max_tokens": 900, "messages": [QUESTION], "tools": [tool]}


def next_step(api: str, model: str) -> dict[str, Any]:
    """The second request, of a client that gives back no more than its API demands."""
    body = asked(api, model)
    if api == "chat":
        body["messages"] += [{"role": "assistant", "content": None, "tool_calls": [CALL]}]
        body["messages"] += [{"role": "tool", "tool_call_id": "call_1", "content": "-3"}]
    elif api == "responses":
        body["input"] += [{"type": "function_call", "call_id": "call_1", **CALL["function"]}]  # type: ignore[dict-item]
        body["input"] += [{"type": "function_call_output", "call_id": "call_1", "output": "-3"}]
    else:
        call = {"type": "tool_use", "id": "call_1", "name": "weather", "input": {"city": "Oslo"}}
        result = {"type": "tool_result", "tool_use_id": "call_1", "content": "-3"}
        body["messages"] += [{"role": "assistant", "content": [call]}, {"role": "user", "content": [result]}]
    return body


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("api", list(PATHS))
async def test_another_process_gives_it_back_to_its_server_and_to_no_other(
    world: World, api: str, stream: bool
) -> None:
    await world.ask(api, 0, asked(api, "first"), stream=stream)
    for gateway in (0, 1):
        await world.ask(api, gateway, next_step(api, "first"), stream=stream)
        turn = world.turn(0)
        assert (turn["reasoning_details"], turn["tool_calls"][0]["extra_content"]) == (DETAILS, SIGNED)
        assert "thinking" not in json.dumps(turn)
        await world.ask(api, gateway, next_step(api, "second"), stream=stream)
        sent = json.dumps(world.servers[1].calls[-1].body)
        assert not [state for state in ("SEAL", "SIGN", THOUGHT) if state in sent]
        assert world.turn(1)["reasoning_content"] == " "


@pytest.mark.parametrize("stream", [False, True])
async def test_a_chats_client_carries_it_and_it_goes_to_its_server_alone(world: World, stream: bool) -> None:
    told = await world.ask("chat", 0, asked("chat", "second"), stream=stream)
    if stream:
        lines = [line.removeprefix("data: ") for line in told.text.splitlines() if line.startswith("data: {")]
        deltas = [json.loads(line)["choices"][0]["delta"] for line in lines if json.loads(line)["choices"]]
        details = [one for delta in deltas for one in delta.get("reasoning_details", [])]
        assert "".join(one.get("text", "") for one in details) == THOUGHT
        calls = [one for delta in deltas for one in delta.get("tool_calls", [])]
        assert (calls[0]["id"], calls[0]["extra_content"]) == ("call_1", SIGNED)
        turn: dict[str, Any] = {"role": "assistant", "content": None, "reasoning_details": details}
        turn["tool_calls"] = [CALL | {"extra_content": SIGNED}]
    else:
        turn = told.json()["choices"][0]["message"]
        assert (turn["reasoning_details"], turn["tool_calls"][0]["extra_content"]) == (DETAILS, SIGNED)
    step = next_step("chat", "second")
    step["messages"][1] = turn
    await world.ask("chat", 0, step)
    assert world.turn(1)["reasoning_details"] == DETAILS
    away = await world.ask("chat", 0, step | {"model": "first"})
    sent = json.dumps(world.servers[0].calls[-1].body)
    assert not [state for state in ("SEAL", "SIGN", THOUGHT) if state in sent]
    assert "messages.reasoning_details" in away.headers["x-aio-ignored-fields"]


async def test_what_may_not_be_stored_is_missed_by_name(world: World) -> None:
    private = {"store": False}
    await world.ask("chat", 0, asked("chat", "first") | private)
    told = await world.ask("chat", 1, next_step("chat", "first") | private)
    assert "messages.reasoning_content" in told.headers["x-aio-ignored-fields"]
    assert THOUGHT not in json.dumps(world.servers[0].calls[-1].body)
