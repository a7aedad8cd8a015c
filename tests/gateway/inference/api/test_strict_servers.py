"""A conversation with calls goes on at every other server, where each enforces its provider's published rules. What
clients do at these servers is recorded in tests/recordings/*/habits.json."""

from pathlib import Path
from random import Random
from typing import Any

import pytest

from tests.recordings.playing import KEYS, parts_of, stage
from tests.recordings.recording import based
from tests.tiers.remote.strict_servers import SERVERS, broken_rule

Fields = dict[str, Any]
PARTS = [part["tiers"] for part in parts_of(based({"base": "strict servers"}))]
LONG = "mcp__ymir-privileged__get_failed_pipeline_jobs_from_merge_request"
USER = {"role": "user", "content": "What is the weather in Oslo?"}


def tool(name: str) -> Fields:
    return {"type": "function", "function": {"name": name, "parameters": {"type": "object", "properties": {}}}}


@pytest.mark.parametrize("tiers", PARTS, ids="-".join)
async def test_a_conversation_with_calls_goes_on_at_every_other_server(
    tiers: Fields, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in KEYS:
        monkeypatch.setenv(name, "test-key-123")
    turns: list[Fields] = [USER]
    async with stage(tmp_path) as servers:
        servers.expect([], Random(0), are_strict=True)
        gateway = await servers.gateway(tiers)
        for server in (*tiers, *tiers):
            body = {"model": server, "messages": turns, "tools": [tool(LONG)]}
            headers = {"x-aio-cache": "off"}
            answer = await gateway.http.post("/v1/chat/completions", json=body, headers=headers)
            assert answer.status_code == 200, (server, answer.text)
            message = answer.json()["choices"][0]["message"]
            (call,) = message["tool_calls"]
            assert call["function"]["name"] == LONG, server
            turns.append({name: message[name] for name in ("role", "content", "tool_calls")})
            turns.append({"role": "tool", "tool_call_id": call["id"], "content": "done"})
            turns.append({"role": "user", "content": f"and now? {server}"})


@pytest.mark.parametrize("server", SERVERS)
def test_a_strict_server_refuses(server: str) -> None:
    """The servers of these tests would say so."""
    calls = [{"id": "functions.f:0", "type": "function", "function": {"name": "a b", "arguments": "{}"}}]
    native = {"contents": [{"role": "system", "parts": []}], "generationConfig": {}}
    turns: list[Fields] = [
        {"role": "assistant", "content": "", "tool_calls": calls},
        {"role": "system", "content": "s"},
    ]
    body = {"messages": turns, "tools": [tool("a b")], "model": "gpt-5", **native}
    if server in ("anthropic", "bedrock", "gemini"):
        body["tools"] = []
    assert (broken_rule(server, body) is None) is (server == "openrouter")
