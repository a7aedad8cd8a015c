"""Opaque state of a chat's turns is known to every process of one store. What each server gets back is recorded in
tests/recordings/chat/state_goes_back.json."""

from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import msgspec
import pytest

from gateway.base.settings import Settings
from tests.support.app import running_gateway
from tests.support.upstream import Call, LoopbackServer

CATALOG = """
[[tiers]]
name = "deepseek"
provider = "deepseek"
url = "{url}"
model = "deepseek-reasoner"
price = {{ input_usd_per_million = 1.0, output_usd_per_million = 1.0 }}
[[tiers]]
name = "spare"
url = "{url}"
model = "m"
price = {{ input_usd_per_million = 2.0, output_usd_per_million = 2.0 }}
"""
STATE = {"reasoning_details": [{"type": "reasoning.encrypted", "data": "SEAL"}]}
CALL = {"id": "call_1", "type": "function", "function": {"name": "weather", "arguments": "{}"}}
SIGNED = {"extra_content": {"google": {"thought_signature": "SIGN"}}}
QUESTION = {"role": "user", "content": "Is it cold in Oslo?"}
ANSWERED = [{"role": "assistant", "content": None, "tool_calls": [CALL]}]
ANSWERED += [{"role": "tool", "tool_call_id": "call_1", "content": "-3"}]
FIRST: dict[str, Any] = {"model": "deepseek", "messages": [QUESTION]}
FIRST["tools"] = [{"type": "function", "function": {"name": "weather", "parameters": {"type": "object"}}}]


async def answer(call: Call) -> None:
    """A call with all kinds of state; a text once its result is there."""
    if call.body["messages"][-1]["role"] == "tool":
        await call.whole("Yes.")
    else:
        await call.whole(None, finish="tool_calls", tool_calls=[CALL | SIGNED], **STATE)


@pytest.mark.parametrize("store", ["database", "redis"])
async def test_another_process_gives_it_back(
    request: pytest.FixtureRequest, store: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DEEPSEEK_API_KEY", "test-key")
    redis = request.getfixturevalue("redis_url") if store == "redis" else ""
    database = "" if redis else f"sqlite:///{tmp_path / 'shared.sqlite3'}"
    async with AsyncExitStack() as stack:
        server = await stack.enter_async_context(LoopbackServer(answer))
        file = tmp_path / "catalog.toml"
        file.write_text(CATALOG.format(url=server.base_url))
        shared = Settings(catalog=str(file), monitor=False, redis_url=redis, database_url=database)
        for name, body in (("a", FIRST), ("b", FIRST | {"messages": [QUESTION, *ANSWERED]})):
            settings = msgspec.structs.replace(shared, data_dir=str(tmp_path / name))
            gateway = await stack.enter_async_context(running_gateway(settings, scripted=False))
            gateway.classifier.p_ok = (1.0, 1.0)
            told = await gateway.http.post("/v1/chat/completions", json=body, headers={"x-aio-cache": "off"})
            assert told.status_code == 200, told.text
        turn = server.calls[-1].body["messages"][1]
        assert (turn["reasoning_details"], turn["tool_calls"]) == (STATE["reasoning_details"], [CALL | SIGNED])
