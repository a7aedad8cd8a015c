"""What a provider's API alone can say goes through the gateway as it is: sealed reasoning, marks of caches, tools that
the provider runs; and no other model gets reasoning that it has not made."""

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import pytest_asyncio

from gateway.base.settings import Settings
from tests.polling import eventually
from tests.support.app import RunningGateway, running_gateway
from tests.support.upstream import Call, LoopbackServer
from tests.tiers.remote.provider_shapes import THINKING_AND_TOOLS, anthropic_stream, gemini_event, gemini_stream
from tiers.dialects.seal_registry import SEALS

Body = dict[str, Any]
KEYS = ("OPENAI_API_KEY", "ANTHROPIC_API_KEY", "GEMINI_API_KEY")
PRICES = "input_usd_per_million = 3, output_usd_per_million = 15, cached_input_usd_per_million = 0.3"
CATALOG = """
name = "native"
[[tiers]]
name = "small"
url = "{url}"
model = "small"
[[tiers]]
name = "gemini"
provider = "gemini"
url = "{url}"
model = "gemini-3-flash"
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
max_output_tokens = 8000
price = {{ PRICES, cache_write_usd_per_million = 3.75 }}
[[tiers]]
name = "opus"
provider = "anthropic"
url = "{url}"
model = "claude-opus-4-5"
max_output_tokens = 8000
price = {{ PRICES, cache_write_usd_per_million = 3.75 }}
""".replace("PRICES", PRICES)
DETAILS = {"type": "refusal", "category": "cyber", "explanation": "No."}
BLOCKS: list[Body] = [
    {"type": "thinking", "thinking": "Let me see.", "signature": "EqQB/+=="},
    {"type": "redacted_thinking", "data": "EmwK/+=="},
    {"type": "text", "text": "I look "},
    {"type": "text", "text": "it up: größe 🙂"},
    {"type": "server_tool_use", "id": "srvtoolu_1", "name": "web_search", "input": {"query": "x"}},
    {
        "type": "web_search_tool_result",
        "tool_use_id": "srvtoolu_1",
        "content": [{"type": "web_search_result", "url": "u"}],
    },
    {"type": "tool_use", "id": "toolu_1", "name": "f", "input": {"city": "San Jose", "n": 1.0}},
    {"type": "tool_use", "id": "toolu_2", "name": "g", "input": {}},
]
USAGE = {
    "input_tokens": 10,
    "cache_read_input_tokens": 100,
    "cache_creation_input_tokens": 40,
    "cache_creation": {"ephemeral_5m_input_tokens": 10, "ephemeral_1h_input_tokens": 30},
    "output_tokens": 42,
    "server_tool_use": {"web_search_requests": 1},
}
MESSAGE: Body = {
    "id": "msg_1",
    "type": "message",
    "role": "assistant",
    "model": "claude",
    "content": BLOCKS,
    "stop_reason": "tool_use",
    "stop_details": DETAILS,
    "stop_sequence": None,
    "usage": USAGE,
}
SEALED = "gAAAAAB/+=="
ITEMS: list[Body] = [
    {
        "id": "rs_0a",
        "type": "reasoning",
        "summary": [{"type": "summary_text", "text": "Hm."}],
        "encrypted_content": SEALED,
    },
    {"id": "ws_0b", "type": "web_search_call", "status": "completed", "action": {"type": "search", "query": "x"}},
    {
        "id": "ctc_0c",
        "type": "custom_tool_call",
        "status": "completed",
        "call_id": "call_1",
        "name": "patch",
        "input": "*** x",
    },
    {
        "id": "fc_0d",
        "type": "function_call",
        "status": "completed",
        "call_id": "call_2",
        "name": "f",
        "arguments": '{"a": 1}',
    },
]
RESPONSE: Body = {
    "id": "resp_up",
    "object": "response",
    "status": "completed",
    "output": ITEMS,
    "usage": {"input_tokens": 9, "input_tokens_details": {"cached_tokens": 4}, "output_tokens": 5, "total_tokens": 14},
}
SIGNED_CALL = {"functionCall": {"name": "f", "args": {"a": 1}}, "thoughtSignature": "CpcB/+=="}
FUNCTION = {"type": "function", "function": {"name": "f", "parameters": {"type": "object", "properties": {}}}}


def response_events() -> list[Body]:
    events: list[Body] = [{"type": "response.created", "response": {"id": "resp_up", "output": []}}]
    for index, item in enumerate(ITEMS):
        place = {"output_index": index, "item_id": item["id"]}
        events.append(
            {"type": "response.output_item.added", "output_index": index, "item": item | {"status": "in_progress"}}
        )
        if item["type"] == "function_call":
            events.append({"type": "response.function_call_arguments.delta", "delta": item["arguments"]} | place)
        if item["type"] == "reasoning":
            events.append({"type": "response.reasoning_summary_text.delta", "summary_index": 0, "delta": "Hm."} | place)
        events.append({"type": "response.output_item.done", "output_index": index, "item": item})
    return [*events, {"type": "response.completed", "response": RESPONSE}]


async def answer(call: Call) -> None:
    streamed = bool(call.body.get("stream"))
    if call.path.endswith("/messages"):
        if streamed:
            await call.begin()
            await call.send(anthropic_stream(THINKING_AND_TOOLS))
        else:
            await call.reply(200, MESSAGE)
    elif call.path.endswith("/responses"):
        if streamed:
            await call.begin()
            await call.send(
                b"".join(
                    b"event: %b\ndata: %b\n\n" % (e["type"].encode(), json.dumps(e).encode()) for e in response_events()
                )
            )
        else:
            await call.reply(200, RESPONSE)
    elif "GenerateContent" in call.path:
        await call.begin()
        await call.send(gemini_stream([gemini_event(SIGNED_CALL), gemini_event(finish="STOP", candidatesTokenCount=2)]))
    elif "generateContent" in call.path:
        await call.reply(200, gemini_event(SIGNED_CALL, finish="STOP", candidatesTokenCount=2))
    else:
        await call.whole("Hello")


class Recorded:
    """The gateway, and the server behind all of its tiers."""

    def __init__(self, gateway: RunningGateway, server: LoopbackServer) -> None:
        self.gateway, self.server = gateway, server

    async def asked(self, path: str, body: Body, **headers: str) -> httpx.Response:
        """Return the answer to a request."""
        told = await self.gateway.http.post(path, json=body, headers={"x-aio-cache": "off", **headers})
        assert told.status_code == 200, told.text
        return told

    @property
    def got(self) -> Body:
        """What the server got last."""
        return self.server.calls[-1].body

    async def attempt(self, told: httpx.Response) -> Body:
        """Return the last attempt of the record of an answer."""
        name = told.headers["x-aio-decision-id"]

        async def found() -> Any:
            shown = await self.gateway.http.get(f"/v1/requests/{name}")
            return shown.json() if shown.status_code == 200 else None

        record = await eventually(found)
        attempt: Body = record["attempts"][-1]
        return attempt


@pytest_asyncio.fixture
async def recorded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Recorded]:
    for key in KEYS:
        monkeypatch.setenv(key, "sk-test")
    # Other tests of this process have models that made the same seals.
    monkeypatch.setattr(SEALS, "_servers", {})
    async with LoopbackServer(answer) as server:
        catalog = tmp_path / "native.toml"
        catalog.write_text(CATALOG.format(url=server.base_url))
        settings = Settings(data_dir=str(tmp_path), catalog=str(catalog), monitor=False, drain_seconds=5)
        async with running_gateway(settings, scripted=False, protocol="httptools") as gateway:
            yield Recorded(gateway, server)


SYSTEM = [{"type": "text", "text": "Be brief.", "cache_control": {"type": "ephemeral", "ttl": "1h"}}]
TOOLS: list[Body] = [
    {"name": "f", "input_schema": {"type": "object"}, "strict": True, "input_examples": [{"a": 1}]},
    {"type": "web_search_20250305", "name": "web_search", "max_uses": 2, "allowed_domains": ["a.b"]},
]
USER = [{"type": "text", "text": "Look."}, {"type": "text", "text": "Now.", "cache_control": {"type": "ephemeral"}}]
ASKED: Body = {
    "max_tokens": 4000,
    "system": SYSTEM,
    "tools": TOOLS,
    "tool_choice": {"type": "auto", "disable_parallel_tool_use": True},
    "thinking": {"type": "enabled", "budget_tokens": 1500, "display": "updates", "block_binding": {"a": "b"}},
    "output_config": {"task_budget": {"type": "tokens", "total": 64000}},
    "context_management": {"edits": [{"type": "clear_tool_uses_20250919"}]},
    "messages": [{"role": "user", "content": USER}],
}


def next_step(content: Any) -> list[Body]:
    """The conversation after the calls of `content` were made."""
    calls = [block["id"] for block in content if block["type"] == "tool_use"]
    results = [{"type": "tool_result", "tool_use_id": one, "content": "12 degrees", "is_error": False} for one in calls]
    return [
        {"role": "user", "content": USER},
        {"role": "assistant", "content": content},
        {"role": "user", "content": results},
    ]


async def test_a_message_reaches_anthropic_as_it_is_and_its_answer_comes_back_so(recorded: Recorded) -> None:
    betas = {"anthropic-beta": "interleaved-thinking-2025-05-14,context-management-2025-06-27"}
    told = await recorded.asked("/v1/messages", {"model": "claude"} | ASKED, **betas)
    assert recorded.got == {"model": "claude-sonnet-4-5", "stream": False} | ASKED
    assert recorded.server.calls[-1].headers["anthropic-beta"] == betas["anthropic-beta"]
    body = told.json()
    assert (body["content"], body["stop_reason"], body["stop_details"]) == (BLOCKS, "tool_use", DETAILS)
    usage = USAGE | {"service_tier": "standard"}
    assert body["usage"] == usage
    turns = next_step(body["content"])
    await recorded.asked("/v1/messages", {"model": "claude"} | ASKED | {"messages": turns})
    assert (recorded.got["messages"], recorded.got["thinking"]) == (turns, ASKED["thinking"])


async def test_a_request_that_only_fills_the_cache_is_one_at_anthropic(recorded: Recorded) -> None:
    body = {"max_tokens": 0, "messages": [{"role": "user", "content": "Hi"}]}
    for tier, most in (("claude", 0), ("small", 1)):
        await recorded.asked("/v1/messages", body | {"model": tier})
        assert recorded.got["max_tokens"] == most


async def test_a_streamed_message_passes_event_by_event(recorded: Recorded) -> None:
    told = await recorded.asked("/v1/messages", {"model": "claude", "stream": True} | ASKED)
    events = [json.loads(line[6:]) for line in told.text.split("\n") if line.startswith("data: ")]
    blocks = [event for event in events if event["type"].startswith("content_block")]
    assert blocks == [event for event in THINKING_AND_TOOLS if event["type"].startswith("content_block")]
    assert [event["type"] for event in events[-2:]] == ["message_delta", "message_stop"]
    assert events[-2]["usage"]["cache_read_input_tokens"] == 100


async def test_another_model_never_gets_the_reasoning_and_its_own_does(recorded: Recorded) -> None:
    told = await recorded.asked("/v1/messages", {"model": "claude"} | ASKED)
    turns = next_step(told.json()["content"])
    await recorded.asked("/v1/messages", {"model": "opus"} | ASKED | {"messages": turns})
    assert recorded.got["messages"][1]["content"] == BLOCKS[2:]
    # Its budget of thoughts would have to begin the turn with them.
    assert "thinking" not in recorded.got
    plain = {name: value for name, value in ASKED.items() if name not in ("tools", "tool_choice")}
    functions = [{"name": name, "input_schema": {"type": "object"}} for name in ("f", "g")]
    for tier in ("small", "openai", "gemini"):
        await recorded.asked("/v1/messages", plain | {"model": tier, "tools": functions, "messages": turns})
        assert "EqQB" not in json.dumps(recorded.got)
        assert "Let me see" not in json.dumps(recorded.got)
    await recorded.asked("/v1/messages", {"model": "claude"} | ASKED | {"messages": turns})
    assert recorded.got["messages"][1]["content"] == BLOCKS


async def test_a_signature_of_an_unknown_model_goes_to_no_model_of_several(recorded: Recorded) -> None:
    turns = next_step([BLOCKS[0] | {"signature": "of another process"}, *BLOCKS[2:]])
    await recorded.asked("/v1/messages", {"model": "opus"} | ASKED | {"messages": turns})
    assert recorded.got["messages"][1]["content"] == BLOCKS[2:]


async def test_a_tool_that_a_provider_runs_rules_out_the_others(recorded: Recorded) -> None:
    body = {"max_tokens": 4000, "messages": [{"role": "user", "content": "Hi"}], "tools": TOOLS[1:]}
    await recorded.asked("/v1/messages", body | {"model": "auto"})
    assert recorded.got["model"].startswith("claude")
    refused = await recorded.gateway.http.post("/v1/messages", json=body | {"model": "small"})
    assert (refused.status_code, "web_search_20250305" in refused.text) == (400, True)
    asked = {"model": "auto", "input": "Hi", "tools": [{"type": "web_search", "filters": {"allowed_domains": ["a.b"]}}]}
    await recorded.asked("/v1/responses", asked)
    assert (recorded.got["model"], recorded.got["tools"]) == ("gpt-5", asked["tools"])


async def test_a_summary_that_openai_sealed_rules_out_the_others(recorded: Recorded) -> None:
    sealed = {"type": "compaction", "id": "cmp_1", "encrypted_content": SEALED}
    items = [sealed, {"type": "message", "role": "user", "content": "Go on."}]
    await recorded.asked("/v1/responses", {"model": "auto", "input": items, "store": False})
    assert recorded.got["input"][0] == sealed
    refused = await recorded.gateway.http.post("/v1/responses", json={"model": "claude", "input": items})
    assert "compaction is run by the provider that has it" in refused.json()["error"]["message"]


async def test_a_chat_that_may_be_stored_gets_its_reasoning_back(recorded: Recorded) -> None:
    first = {"role": "user", "content": "Weather?"}
    for tier in ("claude", "gemini", "openai"):
        chat: Body = {"model": tier, "messages": [first], "tools": [FUNCTION], "reasoning_effort": "low"}
        message = (await recorded.asked("/v1/chat/completions", chat)).json()["choices"][0]["message"]
        results = [{"role": "tool", "tool_call_id": call["id"], "content": "12"} for call in message["tool_calls"]]
        said = {"role": "assistant", "content": message["content"], "tool_calls": message["tool_calls"]}
        step = chat | {"messages": [first, said, *results]}
        await recorded.asked("/v1/chat/completions", step)
        if tier == "claude":
            assert recorded.got["messages"][1] == {"role": "assistant", "content": BLOCKS}
            assert recorded.got["thinking"]["type"] == "enabled"
        elif tier == "gemini":
            assert recorded.got["contents"][1] == {"role": "model", "parts": [SIGNED_CALL]}
        else:
            sent = [{name: value for name, value in item.items() if name != "id"} for item in recorded.got["input"]]
            assert sent[1] == {name: value for name, value in ITEMS[0].items() if name != "id"}
        private = {**step, "store": False}
        await recorded.asked("/v1/chat/completions", private)
        assert "/+==" not in json.dumps(recorded.got)


async def test_a_response_reaches_openai_with_all_its_items(recorded: Recorded) -> None:
    tools = [
        {"type": "custom", "name": "patch", "format": {"type": "grammar", "syntax": "lark", "definition": "x"}},
        {"type": "function", "name": "f", "parameters": {"type": "object", "properties": {}}, "strict": True},
        {"type": "web_search"},
    ]
    asked: Body = {
        "model": "openai",
        "instructions": "Be brief.",
        "input": "Hi",
        "tools": tools,
        "reasoning": {"effort": "low"},
    }
    first = (await recorded.asked("/v1/responses", asked)).json()
    assert recorded.got == {
        "model": "gpt-5",
        "stream": False,
        "store": False,
        "include": ["reasoning.encrypted_content"],
        "input": [{"type": "message", "role": "user", "content": "Hi"}],
        "instructions": "Be brief.",
        "tools": tools,
        "reasoning": {"effort": "low"},
    }
    shown = [{name: value for name, value in item.items() if name != "id"} for item in first["output"]]
    assert shown == [
        {name: value for name, value in item.items() if name not in ("id", "encrypted_content")} for item in ITEMS
    ]
    output = {"type": "custom_tool_call_output", "call_id": "call_1", "output": "done"}
    other = {"type": "function_call_output", "call_id": "call_2", "output": "done"}
    await recorded.asked("/v1/responses", asked | {"input": [output, other], "previous_response_id": first["id"]})
    went = recorded.got["input"]
    assert went[1]["encrypted_content"] == SEALED
    assert [item["type"] for item in went] == ["message", *(item["type"] for item in [*ITEMS, output, other])]
    named = {"type": "item_reference", "id": first["output"][2]["id"]}
    await recorded.asked("/v1/responses", asked | {"input": [{"role": "user", "content": "Hi"}, named, output]})
    assert recorded.got["input"][1] == {name: ITEMS[2][name] for name in ("type", "call_id", "name", "input")}


async def test_a_streamed_response_has_the_events_of_its_server_under_our_ids(recorded: Recorded) -> None:
    asked: Body = {"model": "openai", "input": "Hi", "stream": True, "reasoning": {"effort": "low"}, "store": False}
    asked["include"] = ["reasoning.encrypted_content"]
    told = await recorded.asked("/v1/responses", asked)
    events = [json.loads(line[6:]) for line in told.text.split("\n") if line.startswith("data: ")]
    assert [event["sequence_number"] for event in events] == list(range(len(events)))
    ours = [event["type"] for event in events if event["type"] not in ("response.created", "response.in_progress")]
    assert ours == [event["type"] for event in response_events()[1:]]
    output = events[-1]["response"]["output"]
    assert output[0]["encrypted_content"] == SEALED
    assert all(item["id"].endswith(told.headers["x-aio-decision-id"]) for item in output)
    await recorded.asked("/v1/responses", asked | {"input": [{"role": "user", "content": "Hi"}, *output]})
    assert recorded.got["input"][1]["encrypted_content"] == SEALED


async def test_the_cache_is_marked_from_the_second_step_on_and_the_record_says_so(recorded: Recorded) -> None:
    chat = {
        "model": "claude",
        "tools": [FUNCTION],
        "messages": [{"role": "system", "content": "S"}, {"role": "user", "content": "Hi"}],
    }
    first = await recorded.asked("/v1/chat/completions", chat)
    assert "cache_control" not in json.dumps(recorded.got)
    assert (await recorded.attempt(first))["added"] == []
    step = chat | {
        "messages": [*chat["messages"], {"role": "assistant", "content": "A"}, {"role": "user", "content": "B"}]
    }
    second = await recorded.asked("/v1/chat/completions", step)
    mark = {"cache_control": {"type": "ephemeral"}}
    got = recorded.got
    assert [
        part[-1].get("cache_control") for part in (got["tools"], got["system"], got["messages"][-1]["content"])
    ] == [mark["cache_control"]] * 3
    assert (await recorded.attempt(second))["added"] == ["cache_control"]
    marked = next_step(BLOCKS)
    await recorded.asked("/v1/messages", {"model": "claude"} | ASKED | {"messages": marked})
    assert recorded.got["tools"] == TOOLS
    recorded.gateway.serving.routing.knobs.change({"cache_reuse": 0.2})
    await recorded.asked("/v1/chat/completions", step)
    assert "cache_control" not in json.dumps(recorded.got)


async def test_tokens_are_billed_by_kind_of_cache_and_a_search_besides(recorded: Recorded) -> None:
    told = await recorded.asked("/v1/messages", {"model": "claude"} | ASKED)
    attempt = await recorded.attempt(told)
    kinds = {name: attempt[name] for name in ("cached_tokens", "cache_write_tokens", "cache_write_1h_tokens")}
    assert kinds == {"cached_tokens": 100, "cache_write_tokens": 40, "cache_write_1h_tokens": 30}
    # Twice the price of the prompt for an hour, 1.25 times for five minutes.
    micro = 10 * 3 + 100 * 0.3 + 10 * 3.75 + 30 * 6 + 42 * 15 + 10_000
    assert (attempt["extras"], attempt["extras_usd"]) == (["web_search: 1 x $0.01"], pytest.approx(0.01))
    assert attempt["cost_usd"] == pytest.approx(micro / 1e6)
    assert float(told.headers["x-aio-cost-usd"]) == pytest.approx(micro / 1e6)
    shown = {"cached_tokens": 100, "cache_write_tokens": 40}
    told = await recorded.asked(
        "/v1/chat/completions", {"model": "claude", "messages": [{"role": "user", "content": "Hello"}]}
    )
    assert told.json()["usage"]["prompt_tokens_details"] == shown
    told = await recorded.asked("/v1/responses", {"model": "claude", "input": "Hello"})
    assert told.json()["usage"]["input_tokens_details"] == shown


async def test_marks_of_a_chat_stay_where_they_are(recorded: Recorded) -> None:
    mark = {"cache_control": {"type": "ephemeral", "ttl": "1h"}}
    turns = [
        {"role": "system", "content": [{"type": "text", "text": "S"} | mark]},
        {"role": "user", "content": [{"type": "text", "text": "A"} | mark, {"type": "text", "text": "B"}]},
    ]
    await recorded.asked("/v1/chat/completions", {"model": "claude", "messages": turns, "tools": [FUNCTION | mark]})
    got = recorded.got
    assert (got["system"], got["messages"]) == (turns[0]["content"], [turns[1]])
    assert got["tools"][0]["cache_control"] == mark["cache_control"]
    await recorded.asked("/v1/chat/completions", {"model": "small", "messages": turns, "tools": [FUNCTION | mark]})
    assert "cache_control" not in json.dumps(recorded.got)


async def test_a_streamed_chat_gets_its_reasoning_back_and_a_changed_turn_does_not(recorded: Recorded) -> None:
    first = {"role": "user", "content": "Weather?"}
    chat: Body = {"model": "claude", "messages": [first], "tools": [FUNCTION], "reasoning_effort": "low"}
    told = await recorded.asked("/v1/chat/completions", chat | {"stream": True})
    pieces = [json.loads(line[6:]) for line in told.text.split("\n") if line.startswith("data: {")]
    deltas = [choice["delta"] for piece in pieces for choice in piece["choices"]]
    text = "".join(delta.get("content") or "" for delta in deltas)
    calls: list[Body] = []
    for call in (call for delta in deltas for call in delta.get("tool_calls", ())):
        if call.get("id"):
            calls.append(
                {"id": call["id"], "type": "function", "function": {"name": call["function"]["name"], "arguments": ""}}
            )
        calls[-1]["function"]["arguments"] += call["function"]["arguments"]
    results = [{"role": "tool", "tool_call_id": call["id"], "content": "12"} for call in calls]
    said = {"role": "assistant", "content": text, "tool_calls": calls}
    await recorded.asked("/v1/chat/completions", chat | {"messages": [first, said, *results]})
    assert [block["type"] for block in recorded.got["messages"][1]["content"][:2]] == ["thinking", "redacted_thinking"]
    changed = said | {"content": "I will not look it up."}
    await recorded.asked("/v1/chat/completions", chat | {"messages": [first, changed, *results]})
    assert [block["type"] for block in recorded.got["messages"][1]["content"]] == ["text", "tool_use", "tool_use"]
    assert "thinking" not in recorded.got
