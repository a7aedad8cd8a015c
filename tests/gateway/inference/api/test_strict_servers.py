"""Habits of clients on all three APIs, against servers that enforce their providers' published rules: none is refused,
also not where a conversation with calls goes on at another provider."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from gateway.base.settings import Settings
from tests.gateway.walk import BOUNDED
from tests.support.app import RunningGateway, running_gateway
from tests.support.upstream import Call, LoopbackServer
from tests.tiers.remote.strict_servers import LOCAL, MODELS, SERVERS, broken_rule, strict

Fields = dict[str, Any]
HALVES = (SERVERS[:7], SERVERS[7:])
KEYS = ("OPENAI_API_KEY", "AZURE_OPENAI_API_KEY", "MISTRAL_API_KEY", "DEEPSEEK_API_KEY", "OPENROUTER_API_KEY")
KEYS += ("GROQ_API_KEY", "ANTHROPIC_API_KEY", "GEMINI_API_KEY", "AWS_BEARER_TOKEN_BEDROCK")
PLAIN = {"x-aio-cache": "off"}
CITY: Fields = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
EITHER = {"type": "object", "properties": {"a": {"type": "string"}, "b": {"type": "string"}}}
EITHER |= {"anyOf": [{"required": ["a"]}, {"required": ["b"]}]}
LONG = "mcp__ymir-privileged__get_failed_pipeline_jobs_from_merge_request"
USER = {"role": "user", "content": "What is the weather in Oslo?"}
JPG = {"type": "image_url", "image_url": {"url": "data:image/jpg;base64,/9j/4AAQSkZJRg=="}}


def tool(name: str = "get_weather", parameters: Fields | None = CITY) -> Fields:
    return {"type": "function", "function": {"name": name} | ({} if parameters is None else {"parameters": parameters})}


def loop(*ids: str) -> list[Fields]:
    turns: list[Fields] = [USER]
    for one in ids:
        call = {"id": one, "type": "function", "function": {"name": "get_weather", "arguments": '{"city":"Oslo"}'}}
        turns.append({"role": "assistant", "content": None, "tool_calls": [call]})
        turns.append({"role": "tool", "tool_call_id": one, "content": "-3"})
    return turns


def said(*turns: tuple[str, Any]) -> Fields:
    return {"messages": [{"role": role, "content": content} for role, content in turns]}


ASKED: Fields = {"messages": [USER]}
CHATS: dict[str, Fields] = {
    "anyOf at the top of a schema": ASKED | {"tools": [tool(parameters=EITHER)]},
    "a tool without parameters": ASKED | {"tools": [tool(parameters=None)]},
    "a tool with parameters {}": ASKED | {"tools": [tool(parameters={})]},
    "an object without properties": ASKED | {"tools": [tool(parameters={"type": "object"})]},
    "a long name": ASKED | {"tools": [tool(LONG)]},
    "a name with a dot and a colon": ASKED | {"tools": [tool("files.read:all")]},
    "a forced call with effort": ASKED | {"tools": [tool()], "tool_choice": "required", "reasoning_effort": "high"},
    "temperature 0": ASKED | {"temperature": 0},
    "temperature and top_p": ASKED | {"temperature": 0.7, "top_p": 0.9},
    "effort with temperature": ASKED | {"temperature": 0, "reasoning_effort": "high"},
    "the highest effort": ASKED | {"reasoning_effort": "max"},
    "the least effort": ASKED | {"reasoning_effort": "minimal"},
    "effort with a small limit": ASKED | {"reasoning_effort": "high", "max_completion_tokens": 500},
    "five stop strings": ASKED | {"stop": ["a", "b", "c", "d", "e"]},
    "an empty object of PHP": ASKED | {"tools": [tool("f", {"type": "object", "properties": []})]},
    "functions": {
        "functions": [tool()["function"]],
        "messages": [
            USER,
            {"role": "assistant", "content": None, "function_call": {"name": tool()["function"]["name"]}},
            {"role": "function", "name": tool()["function"]["name"], "content": "r"},
        ],
    },
    "a blank stop string": ASKED | {"stop": ["\n\n"]},
    "an empty system turn": said(("system", ""), ("user", "hi")),
    "two system turns": said(("system", "Be brief."), ("system", "Be kind."), ("user", "hi")),
    "a late developer turn": said(("user", "hi"), ("developer", "Be brief."), ("user", "go on")),
    "a system turn before an answer": said(("user", "a"), ("system", "s"), ("assistant", "b"), ("user", "c")),
    "a system turn at the end": said(("user", "a"), ("assistant", "b"), ("user", "c"), ("system", "s")),
    "an empty answer": said(("user", "a"), ("assistant", ""), ("user", "go on")),
    "an answer of a line feed": said(("user", "a"), ("assistant", "\n"), ("user", "go on")),
    "the assistant begins": said(("assistant", "Hello"), ("user", "hi")),
    "the assistant ends": said(("user", "hi"), ("assistant", "The weather is ")),
    "an id of Kimi's": {"messages": loop("functions.get_weather:0"), "tools": [tool()]},
    "an id of 60 characters": {"messages": loop("call_" + "x" * 55), "tools": [tool()]},
    "ids that repeat": {"messages": loop("call_0", "call_0", "call_0"), "tools": [tool()]},
    "an empty result": {"messages": [*loop("call_1")[:-1], loop("call_1")[-1] | {"content": ""}], "tools": [tool()]},
    "an image as a result": {
        "messages": [*loop("call_1")[:-1], loop("call_1")[-1] | {"content": [JPG]}, *loop("call_2"), USER],
        "tools": [tool()],
    },
    "image/jpg": said(("user", [{"type": "text", "text": "what"}, JPG])),
}
MESSAGES: dict[str, Fields] = {
    "the assistant ends": said(("user", "hi"), ("assistant", "The weather is")),
    "a late system turn": said(("user", "a"), ("system", "s"), ("assistant", "b"), ("user", "c")),
    "a system turn after an answer": said(("user", "a"), ("assistant", "b"), ("system", "s"), ("user", "c")),
    "anyOf at the top of a schema": ASKED | {"tools": [{"name": "upd", "input_schema": EITHER}]},
    "a long name": ASKED | {"tools": [{"name": LONG, "input_schema": {"type": "object"}}]},
    "temperature": ASKED | {"temperature": 0.2},
    "the highest effort": ASKED | {"output_config": {"effort": "max"}},
    "a blank stop string": ASKED | {"stop_sequences": [" ", "END"]},
    "an id of Kimi's": {
        "messages": [
            USER,
            {"role": "assistant", "content": [{"type": "tool_use", "id": "f.x:0", "name": "now", "input": {}}]},
            {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "f.x:0", "content": "noon"}]},
        ],
        "tools": [{"name": "now", "input_schema": {"type": "object"}}],
    },
}
RESPONSES: dict[str, Fields] = {
    "a late developer item": {
        "instructions": "Be brief.",
        "input": [USER, {"role": "developer", "content": "Available: a"}, {"role": "user", "content": "go on"}],
    },
    "a call of a shell": {
        "input": [
            USER,
            {"type": "shell_call", "call_id": "c1", "action": {"commands": ["ls"]}},
            {"type": "shell_call_output", "call_id": "c1", "output": [{"stdout": "a", "stderr": ""}]},
            {"type": "local_shell_call", "call_id": "c2", "action": {"type": "exec", "command": ["ls"]}},
            {"type": "function_call_output", "call_id": "c2", "output": "a"},
        ]
    },
    "the highest effort": {"input": "x", "reasoning": {"effort": "max"}},
    "temperature": {"input": "x", "temperature": 0.3},
    "a long name": {"input": "x", "tools": [{"type": "function", "name": LONG, "parameters": {"type": "object"}}]},
    "anyOf at the top of a schema": {"input": "x", "tools": [{"type": "function", "name": "f", "parameters": EITHER}]},
    "an id of Kimi's": {
        "input": [
            USER,
            {"type": "function_call", "call_id": "f.x:0", "name": "now", "arguments": "{}"},
            {"type": "function_call_output", "call_id": "f.x:0", "output": "noon"},
        ],
        "tools": [{"type": "function", "name": "now", "parameters": {"type": "object", "properties": {}}}],
    },
}
APIS = {"chat/completions": CHATS, "messages": MESSAGES, "responses": RESPONSES}


def entry(server: str, base: str, cost: int) -> str:
    kind = {"ollama": "openai"}.get(server, server)
    how = f'kind = "{kind}"' if server in LOCAL else f'provider = "{server}"'
    model = MODELS.get(server, "qwen3")
    return (
        f'[[tiers]]\nname = "{server}"\n{how}\nmodel = "{model}"\nurl = "{base}/{server}/v1"\nfallback = []\n'
        f"capabilities = {{ vision = true, tools = true }}\n"
        f"price = {{ input_usd_per_million = {cost}, output_usd_per_million = {3 * cost} }}\n"
    )


async def dispatched(call: Call) -> None:
    await strict(call.path.split("/")[1], call)


@asynccontextmanager
async def gateway_over(
    servers: tuple[str, ...], folder: Path, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[RunningGateway]:
    for name in KEYS:
        monkeypatch.setenv(name, "test-key-123")
    async with LoopbackServer(dispatched) as server:
        base = server.base_url.removesuffix("/v1")
        path = folder / "catalog.toml"
        path.write_text("\n".join(entry(name, base, 1 + place) for place, name in enumerate(servers)))
        settings = Settings(data_dir=str(folder / "data"), catalog=str(path), monitor=False, drain_seconds=5)
        async with running_gateway(settings, scripted=False, protocol=BOUNDED) as gateway:
            yield gateway


@pytest.mark.parametrize("servers", HALVES, ids="-".join)
async def test_no_habit_is_refused(servers: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    refused = {}
    async with gateway_over(servers, tmp_path, monkeypatch) as gateway:
        for server in servers:
            for api, habits in APIS.items():
                for habit, fields in habits.items():
                    body = {"model": server} | ({"max_tokens": 2000} if api == "messages" else {}) | fields
                    answer = await gateway.http.post(f"/v1/{api}", json=body, headers=PLAIN)
                    if answer.status_code != 200:
                        refused[server, api, habit] = answer.text
    assert refused == {}


@pytest.mark.parametrize("servers", HALVES, ids="-".join)
async def test_a_conversation_with_calls_goes_on_at_every_other_server(
    servers: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    turns: list[Fields] = [USER]
    async with gateway_over(servers, tmp_path, monkeypatch) as gateway:
        for server in (*servers, *servers):
            body = {"model": server, "messages": turns, "tools": [tool(LONG)]}
            answer = await gateway.http.post("/v1/chat/completions", json=body, headers=PLAIN)
            assert answer.status_code == 200, (server, answer.text)
            message = answer.json()["choices"][0]["message"]
            (call,) = message["tool_calls"]
            assert call["function"]["name"] == LONG, server
            turns.append({name: message[name] for name in ("role", "content", "tool_calls")})
            turns.append({"role": "tool", "tool_call_id": call["id"], "content": "done"})
            turns.append({"role": "user", "content": f"and now? {server}"})


async def test_what_was_changed_and_left_out_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with gateway_over(("openai", "anthropic"), tmp_path, monkeypatch) as gateway:
        body = {"model": "openai", "messages": [USER], "tools": [tool(LONG, EITHER)], "temperature": 0.2}
        answer = await gateway.http.post("/v1/chat/completions", json=body, headers=PLAIN)
        assert answer.headers["x-aio-changed-fields"] == "tools.name, tools.parameters"
        assert answer.headers["x-aio-ignored-fields"] == "temperature"
        plain = await gateway.http.post("/v1/chat/completions", json={"model": "openai", "messages": [USER]})
        assert not {"x-aio-changed-fields", "x-aio-ignored-fields"} & plain.headers.keys()


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
