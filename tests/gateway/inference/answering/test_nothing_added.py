"""What each kind of server gets of a request, field by field: nothing is added to it, and what is dropped is named."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from gateway.base.settings import Settings
from tests.gateway.running_gateway import RunningGateway, running_gateway
from tests.polling import eventually
from tests.tiers.remote.loopback_server import Call, LoopbackServer
from tests.tiers.remote.provider_shapes import WHOLE_MESSAGE, gemini_event

Body = dict[str, Any]
KEYS = ("OPENAI_API_KEY", "ANTHROPIC_API_KEY", "GEMINI_API_KEY", "AWS_BEARER_TOKEN_BEDROCK", "MISTRAL_API_KEY")
TIER = """
[[tiers]]
name = "{name}"
{where}
model = "{model}"
price = {{ input_usd_per_million = {usd}, output_usd_per_million = {usd} }}
"""
TIERS = {
    "url": 'url = "{url}"',
    "vllm": 'url = "{url}"\nkind = "vllm"\nsampling = {{ temperature = 0.3 }}',
    "openai": 'provider = "openai"\nurl = "{url}"',
    "mistral": 'provider = "mistral"\nurl = "{url}"',
    "claude": 'provider = "anthropic"\nurl = "{url}"\nmax_output_tokens = 8000',
    "gemini": 'provider = "gemini"\nurl = "{url}"',
    "bedrock": 'provider = "bedrock"\nurl = "{url}"',
}
MODELS = {"claude": "claude-sonnet-4-5", "gemini": "gemini-2.5-flash", "bedrock": "us.anthropic.claude-sonnet-4-5-v1:0"}
USAGE = {"prompt_tokens": 10, "completion_tokens": 2, "total_tokens": 12}
BEDROCK_ANSWER = {
    "output": {"message": {"role": "assistant", "content": [{"text": "Hello"}]}},
    "stopReason": "end_turn",
    "usage": {"inputTokens": 9, "outputTokens": 4, "totalTokens": 13},
}


async def answer(call: Call) -> None:
    if call.path.endswith("/chat/completions") or (call.body.get("stream") and "completions" in call.path):
        await call.say("Hello", usage=USAGE)
    elif call.path.endswith("/completions"):
        choices = [{"index": 0, "text": "Hello", "finish_reason": "stop"}]
        await call.reply(200, {"object": "text_completion", "choices": choices, "usage": USAGE})
    elif call.path.endswith("/messages"):
        await call.reply(200, WHOLE_MESSAGE)
    elif "generateContent" in call.path:
        await call.reply(200, gemini_event({"text": "Hello"}, finish="STOP", candidatesTokenCount=2))
    else:
        await call.reply(200, BEDROCK_ANSWER)


class Recorded:
    """The gateway, and the server behind all of its tiers."""

    def __init__(self, gateway: RunningGateway, server: LoopbackServer) -> None:
        self.gateway, self.server = gateway, server

    async def got(self, path: str, body: Body) -> tuple[Body, str]:
        """Return what the server got of a request, and what the header says was ignored."""
        told = await self.gateway.http.post(path, json=body, headers={"x-aio-cache": "off"})
        assert told.status_code == 200, told.text
        return self.server.calls[-1].body, told.headers.get("x-aio-ignored-fields", "")


@pytest_asyncio.fixture
async def recorded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Recorded]:
    for key in KEYS:
        monkeypatch.setenv(key, "sk-test")
    async with LoopbackServer(answer) as server:
        catalog = tmp_path / "recorded.toml"
        entries = (
            TIER.format(name=name, where=where.format(url=server.base_url), model=MODELS.get(name, "m"), usd=usd)
            for usd, (name, where) in enumerate(TIERS.items(), start=1)
        )
        catalog.write_text('name = "recorded"\n' + "".join(entries))
        settings = Settings(data_dir=str(tmp_path), catalog=str(catalog), monitor=False, drain_seconds=5)
        async with running_gateway(settings, scripted=False, protocol="httptools") as gateway:
            yield Recorded(gateway, server)


PARTS = [{"type": "text", "text": "A"}, {"type": "text", "text": "B"}]
CHAT = {"messages": [{"role": "user", "content": PARTS}]}
WIRE_CHAT = {"messages": [{"role": "user", "content": "A\nB"}], "stream": False}
WIRE_TURN = {"role": "user", "content": [{"type": "text", "text": "A\nB"}]}
GEMINI_TURN = {"contents": [{"role": "user", "parts": [{"text": "A\nB"}]}], "generationConfig": {}}
BEDROCK_TURN = {"messages": [{"role": "user", "content": [{"text": "A\nB"}]}]}
CLAUDE_TURN = {"model": "claude-sonnet-4-5", "messages": [WIRE_TURN], "stream": False}
TOOL = {"type": "function", "function": {"name": "f", "description": "d", "strict": True}}
# With values that are OpenAI's usual ones among them: said is said.
SAMPLING = {"temperature": 1.0, "presence_penalty": 0.0, "frequency_penalty": 0.5, "seed": 7, "n": 1}
SERVICE = {
    "user": "ann",
    "safety_identifier": "s1",
    "prompt_cache_key": "k1",
    "prompt_cache_retention": "24h",
    "prompt_cache_options": {"mode": "explicit", "ttl": "30m"},
    "store": False,
    "metadata": {"team": "a"},
    "service_tier": "flex",
    "verbosity": "low",
}
# The end of what OpenAI is to cache: no other API has it.
MARKED_PARTS = [PARTS[0] | {"prompt_cache_breakpoint": {"mode": "explicit"}}, PARTS[1]]
MARKED = {"messages": [{"role": "user", "content": MARKED_PARTS}]}
# Of an assistant's turn OpenAI takes none.
ANSWERED = {"messages": [{"role": "assistant", "content": MARKED_PARTS}, CHAT["messages"][0]]}
LIMIT = {"max_completion_tokens": 9}
TOOLS = {"tools": [TOOL], "tool_choice": "auto", "parallel_tool_calls": False}

# Of a chat: the tier, what is sent besides model and messages, what arrives besides the model, and what the header
# names.
CHATS: list[tuple[str, Body, Body, str]] = [
    ("url", {}, WIRE_CHAT, ""),
    ("url", SAMPLING, WIRE_CHAT | SAMPLING, ""),
    ("url", SERVICE, WIRE_CHAT | SERVICE, ""),
    ("url", LIMIT, WIRE_CHAT | {"max_tokens": 9}, ""),
    ("url", TOOLS, WIRE_CHAT | TOOLS, ""),
    ("url", {"tools": [TOOL]}, WIRE_CHAT | {"tools": [TOOL]}, ""),
    ("url", {"stop": "END", "logprobs": True}, WIRE_CHAT | {"stop": ["END"], "logprobs": True}, ""),
    ("url", {"logit_bias": {"5": 1.0}, "top_k": 5}, WIRE_CHAT | {"logit_bias": {"5": 1.0}, "top_k": 5}, ""),
    ("url", {"thinking_token_budget": 5}, WIRE_CHAT, "thinking_token_budget"),
    ("url", {"chat_template_kwargs": {"a": 1}}, WIRE_CHAT, "chat_template_kwargs"),
    ("vllm", {}, WIRE_CHAT | {"temperature": 0.3}, ""),
    ("vllm", {"temperature": 1.0}, WIRE_CHAT | {"temperature": 1.0}, ""),
    ("vllm", {"chat_template_kwargs": {"a": 1}, "temperature": 0.0, "thinking_token_budget": 5},
     WIRE_CHAT | {"chat_template_kwargs": {"a": 1}, "temperature": 0.0, "thinking_token_budget": 5}, ""),
    ("openai", {}, WIRE_CHAT, ""),
    ("openai", SAMPLING | SERVICE | LIMIT, WIRE_CHAT | SAMPLING | SERVICE | LIMIT, ""),
    ("openai", {"thinking_token_budget": 5}, WIRE_CHAT, "thinking_token_budget"),
    ("openai", MARKED, WIRE_CHAT | MARKED, ""),
    ("openai", ANSWERED,
     WIRE_CHAT | {"messages": [{"role": "assistant", "content": "A\nB"}, WIRE_CHAT["messages"][0]]}, ""),
    ("gemini", MARKED, GEMINI_TURN | {"contents": [{"role": "user", "parts": [{"text": "A"}, {"text": "B"}]}]},
     "messages.content.prompt_cache_breakpoint"),
    ("mistral", SERVICE, WIRE_CHAT, ", ".join(SERVICE)),
    ("claude", {}, CLAUDE_TURN | {"max_tokens": 8000}, ""),
    ("claude", LIMIT | {"temperature": 1.0, "stop": ["END"]},
     CLAUDE_TURN | {"max_tokens": 9, "temperature": 1.0, "stop_sequences": ["END"]}, ""),
    ("claude", {"max_tokens": 500_000}, CLAUDE_TURN | {"max_tokens": 8000}, ""),
    ("claude", SAMPLING, CLAUDE_TURN | {"max_tokens": 8000, "temperature": 1.0}, "frequency_penalty, seed"),
    ("claude", {"temperature": 1.5, "top_p": 0.5}, CLAUDE_TURN | {"max_tokens": 8000, "temperature": 1.0},
     "temperature, top_p"),
    ("claude", SERVICE, CLAUDE_TURN | {"max_tokens": 8000, "metadata": {"user_id": "ann"}},
     "safety_identifier, prompt_cache_key, prompt_cache_retention, prompt_cache_options, store, metadata, "
     "service_tier, verbosity"),
    ("claude", {"service_tier": "default"}, CLAUDE_TURN | {"max_tokens": 8000, "service_tier": "standard_only"}, ""),
    ("gemini", {}, GEMINI_TURN, ""),
    ("gemini", SAMPLING | LIMIT, GEMINI_TURN | {
        "generationConfig": {"temperature": 1.0, "seed": 7, "maxOutputTokens": 9}}, "frequency_penalty"),
    ("gemini", {"user": "ann", "verbosity": "low"}, GEMINI_TURN, "user, verbosity"),
    ("bedrock", {}, BEDROCK_TURN, ""),
    ("bedrock", {"temperature": 0.5, "max_tokens": 9},
     BEDROCK_TURN | {"inferenceConfig": {"maxTokens": 9, "temperature": 0.5}}, ""),
    ("bedrock", {"metadata": {"team": "a"}, "service_tier": "flex", "seed": 7, "top_k": 5},
     BEDROCK_TURN | {"requestMetadata": {"team": "a"}, "serviceTier": {"type": "flex"}}, "seed, top_k"),
]  # fmt: skip


async def test_a_chat_reaches_every_kind_of_server_with_its_own_fields_alone(recorded: Recorded) -> None:
    for tier, given, expected, ignored in CHATS:
        body, told = await recorded.got("/v1/chat/completions", {"model": tier} | CHAT | given)
        assert body.pop("model", None) == (None if tier in ("gemini", "bedrock") else MODELS.get(tier, "m"))
        expected = {name: value for name, value in expected.items() if name != "model"}
        assert (body, told) == (expected, ignored), f"{tier}: {given}"


async def test_a_choice_that_bedrock_lacks_is_named(recorded: Recorded) -> None:
    call = {"id": "c1", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    turns = [
        {"role": "user", "content": "Hi"},
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "c1", "content": "1"},
    ]
    sent = {"model": "bedrock", "messages": turns, "tools": [TOOL], "tool_choice": "none"}
    body, ignored = await recorded.got("/v1/chat/completions", sent)
    assert ("toolChoice" in body["toolConfig"], ignored) == (False, "tool_choice")


async def test_a_stream_asks_for_its_usage_and_for_nothing_else(recorded: Recorded) -> None:
    body, _ = await recorded.got("/v1/chat/completions", {"model": "url", "stream": True} | CHAT)
    usage = {"stream_options": {"include_usage": True}}
    assert body == WIRE_CHAT | {"model": "m", "stream": True} | usage


async def test_a_text_completion_is_sent_without_a_length_of_ours(recorded: Recorded) -> None:
    plain, _ = await recorded.got("/v1/completions", {"model": "url", "prompt": "Once"})
    assert plain == {"model": "m", "prompt": "Once", "stream": False}
    given = {"max_tokens": 5, "temperature": 0.0, "user": "ann", "seed": 1, "logprobs": 2, "stop": ["END"], "n": 1}
    full, told = await recorded.got("/v1/completions", {"model": "openai", "prompt": [1, 2]} | given)
    assert (full, told) == ({"model": "m", "prompt": [1, 2], "stream": False} | given, "")


async def test_a_response_reaches_a_server_as_the_chat_that_it_is(recorded: Recorded) -> None:
    sent = {"model": "openai", "input": "Hi"}
    plain, _ = await recorded.got("/v1/responses", sent)
    turn = [{"role": "user", "content": "Hi"}]
    assert plain == {"model": "m", "messages": turn, "stream": False}
    passed = {name: value for name, value in SERVICE.items() if name != "verbosity"}
    full, told = await recorded.got("/v1/responses", sent | passed | {"max_output_tokens": 32_000, "top_p": 1.0})
    limit = {"max_completion_tokens": 32_000, "top_p": 1.0}
    assert (full, told) == ({"model": "m", "messages": turn, "stream": False} | passed | limit, "")


async def test_a_message_reaches_a_server_as_the_chat_that_it_is(recorded: Recorded) -> None:
    sent = {"max_tokens": 9, "messages": [{"role": "user", "content": "Hi"}], "metadata": {"user_id": "u1"}}
    turn = {"role": "user", "content": [{"type": "text", "text": "Hi"}]}
    claude, told = await recorded.got("/v1/messages", {"model": "claude", "service_tier": "auto"} | sent)
    user = {"metadata": {"user_id": "u1"}, "service_tier": "auto"}
    assert (claude, told) == (
        {"model": "claude-sonnet-4-5", "max_tokens": 9, "messages": [turn], "stream": False} | user,
        "",
    )
    chat = {"model": "m", "messages": [{"role": "user", "content": "Hi"}], "stream": False, "max_tokens": 9}
    url, told = await recorded.got("/v1/messages", {"model": "url"} | sent)
    assert (url, told) == (chat | {"user": "u1"}, "")


async def test_the_record_tells_the_limit_that_was_sent(recorded: Recorded) -> None:
    limits = []
    for tier, given in (("url", {}), ("url", LIMIT), ("claude", {})):
        told = await recorded.gateway.http.post("/v1/chat/completions", json={"model": tier} | CHAT | given)
        name = told.headers["x-aio-decision-id"]
        record = await eventually(lambda name=name: found(recorded.gateway, name))  # type: ignore[misc]
        limits.append(record["attempts"][0]["max_tokens"])
    assert limits == [None, 9, 8000]


async def found(gateway: RunningGateway, name: str) -> Any:
    answer = await gateway.http.get(f"/v1/requests/{name}")
    return answer.json() if answer.status_code == 200 else None


async def test_a_further_step_adds_nothing_where_a_cache_has_no_price(recorded: Recorded) -> None:
    turns = [{"role": "user", "content": "A"}, {"role": "assistant", "content": "B"}, {"role": "user", "content": "C"}]
    body, _ = await recorded.got("/v1/chat/completions", {"model": "claude", "messages": turns, "tools": [TOOL]})
    wire = [turn | {"content": [{"type": "text", "text": turn["content"]}]} for turn in turns]
    tool = {
        "name": "f",
        "description": "d",
        "input_schema": {"type": "object", "properties": {}, "additionalProperties": False},
    }
    assert body == CLAUDE_TURN | {
        "max_tokens": 8000,
        "messages": wire,
        "tools": [tool],
        "tool_choice": {"type": "auto"},
    }


async def test_reasoning_next_to_tools_is_asked_of_openai_by_responses(recorded: Recorded) -> None:
    recorded.server.handler = respond
    asked = {"model": "openai", "tools": [TOOL], "reasoning_effort": "low", "user": "ann"} | LIMIT
    body, told = await recorded.got("/v1/chat/completions", asked | CHAT)
    schema = {"type": "object", "properties": {}, "additionalProperties": False}
    tool = {"type": "function", "name": "f", "description": "d", "parameters": schema, "strict": True}
    assert recorded.server.calls[-1].path.endswith("/responses")
    assert (body, told) == (
        {
            "model": "m",
            "input": [{"type": "message", "role": "user", "content": "A\nB"}],
            "stream": False,
            "store": False,
            "include": ["reasoning.encrypted_content"],
            # OpenAI refuses less.
            "max_output_tokens": 16,
            "user": "ann",
            "reasoning": {"effort": "low"},
            "tools": [tool],
        },
        "",
    )


async def respond(call: Call) -> None:
    part = {"type": "output_text", "text": "Hello", "annotations": []}
    item = {"id": "msg_1", "type": "message", "status": "completed", "role": "assistant", "content": [part]}
    usage = {"input_tokens": 9, "output_tokens": 2}
    await call.reply(200, {"object": "response", "status": "completed", "output": [item], "usage": usage})
