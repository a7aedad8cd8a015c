"""Tiers on providers with an API of their own: Anthropic, Gemini, Bedrock; recorded shapes over real sockets."""

import asyncio
import json
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import msgspec
import pytest

from inference_core.protocol import Grammar, SamplingParams
from tests.tiers.remote.loopback_server import Call as Received
from tests.tiers.remote.loopback_server import LoopbackServer
from tests.tiers.remote.provider_shapes import (
    EVENT_STREAM,
    THINKING_AND_TOOLS,
    WHOLE_MESSAGE,
    anthropic_end,
    anthropic_start,
    anthropic_stream,
    anthropic_text,
    bedrock_end,
    bedrock_stream,
    bedrock_text,
    event_stream_message,
    gemini_event,
    gemini_stream,
)
from tests.tiers.tier_world import chat, collect, remote_spec
from tiers.catalog.tier_spec import TierSpec
from tiers.conversation import Call, Content, NativeBlock, NativeContent, Text, Tool, Tooling, Turn, media
from tiers.errors import TierAnswerError, TierBusyError, TierError, TierKeyError, TierRequestError, TierUnavailableError
from tiers.remote.remote_tier import RemoteTier
from tiers.tier import Delta, GenerationRequest, Usage

KEY = "sk-ant-very-secret"
KINDS = ("anthropic", "gemini", "bedrock")

HELLO = {
    "anthropic": anthropic_stream([anthropic_start(), *anthropic_text(0, "Hel", "lo"), *anthropic_end()]),
    "gemini": gemini_stream(
        [gemini_event({"text": "Hel"}), gemini_event({"text": "lo"}, finish="STOP", candidatesTokenCount=2)]
    ),
    "bedrock": bedrock_stream([*bedrock_text("Hel", "lo"), *bedrock_end()]),
}
OPENING = {
    "anthropic": anthropic_stream([anthropic_start(), *anthropic_text(0, "Hel")[:2]]),
    "gemini": gemini_stream([gemini_event({"text": "Hel"})]),
    "bedrock": bedrock_stream(bedrock_text("Hel")[:2]),
}
CHANGED = {
    "anthropic": anthropic_stream(
        [
            anthropic_start(),
            {"type": "content_block_start", "index": 0, "content_block": {"type": "text_v2", "value": ""}},
            {"type": "content_block_delta", "index": 0, "delta": {"type": "text_v2_delta", "value": "Hello"}},
            *anthropic_end(),
        ]
    ),
    "gemini": gemini_stream([gemini_event({"textDelta": "Hello"}), gemini_event(finish="STOP")]),
    "bedrock": bedrock_stream(
        [("contentBlockDelta", {"contentBlockIndex": 0, "delta": {"textV2": "Hello"}}), *bedrock_end()]
    ),
}


def media_type(kind: str) -> str:
    return EVENT_STREAM if kind == "bedrock" else "text/event-stream"


def playing(kind: str, data: bytes, size: int = 0) -> Callable[[Received], Awaitable[None]]:
    """Answer with `data`, in pieces of `size` bytes if it is set."""

    async def answer(call: Received) -> None:
        await call.begin(200, media_type(kind))
        for at in range(0, len(data), size or len(data)):
            await call.send(data[at : at + (size or len(data))])
            if size:
                await asyncio.sleep(0)

    return answer


def refusing(status: int, payload: object, *headers: str) -> Callable[[Received], Awaitable[None]]:
    async def answer(call: Received) -> None:
        head = f"HTTP/1.1 {status} X\r\ncontent-type: application/json\r\nconnection: close\r\n"
        await call.send((head + "".join(f"{h}\r\n" for h in headers) + "\r\n").encode())
        await call.send(json.dumps(payload).encode())

    return answer


@asynccontextmanager
async def provider(
    kind: str, handler: Any, model: str = "claude-sonnet-5", **fields: Any
) -> AsyncIterator[tuple[RemoteTier, LoopbackServer]]:
    async with LoopbackServer(handler) as server:
        spec = _with_model(remote_spec(server.base_url, kind=kind, api_key_env="THE_KEY", **fields), model)
        tier = RemoteTier(spec, environ={"THE_KEY": KEY})
        yield tier, server
        await tier.close()


def _with_model(spec: TierSpec, model: str) -> TierSpec:
    assert spec.remote is not None
    return msgspec.structs.replace(spec, max_tokens=4000, remote=msgspec.structs.replace(spec.remote, model=model))


async def deltas_of(tier: RemoteTier, request: GenerationRequest) -> list[Delta]:
    return [delta async for delta in tier.generate(request)]


def summed(deltas: list[Delta]) -> tuple[str, str, list[tuple[str, str, str]], str | None, Usage | None]:
    """Return text, reasoning, calls (id, name, arguments), finish reason and usage."""
    calls: dict[int, list[str]] = {}
    for delta in deltas:
        for call in delta.tool_calls:
            have = calls.setdefault(call.index, ["", "", ""])
            have[0] += call.id
            have[1] += call.name
            have[2] += call.arguments
    return (
        "".join(d.text for d in deltas),
        "".join(d.reasoning for d in deltas),
        [(one[0], one[1], one[2]) for _, one in sorted(calls.items())],
        next((d.finish_reason for d in deltas if d.finish_reason), None),
        deltas[-1].end.usage,
    )


async def sent_to(kind: str, request: GenerationRequest, model: str = "claude-sonnet-5") -> dict[str, Any]:
    """Return the body that a provider gets for a request."""
    async with provider(kind, playing(kind, HELLO[kind]), model) as (tier, server):
        await deltas_of(tier, request)
        return server.calls[0].body


async def failure(tier: RemoteTier, request: GenerationRequest | None = None) -> TierError:
    with pytest.raises(TierError) as raised:
        await collect(tier, request or chat())
    return raised.value


WEATHER = Tool(
    name="get_weather",
    description="The weather.",
    parameters={"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
)
LOOP = [
    Turn.of("system", "Be brief."),
    Turn.of("user", "Weather?"),
    Turn.of(
        "assistant",
        calls=(
            Call(id="c1", name="get_weather", arguments='{"city": "Ulm"}'),
            Call(id="c2", name="get_weather", arguments=""),
        ),
    ),
    Turn.of("tool", "12 degrees", call_id="c1"),
    Turn.of("tool", "13 degrees", call_id="c2"),
]


def asking(*messages: Turn, **fields: Any) -> GenerationRequest:
    given: dict[str, Any] = {"request_id": "r1", "sampling": SamplingParams(temperature=1.0), "max_tokens": 4000}
    return GenerationRequest(messages=list(messages), **(given | fields))


@pytest.mark.parametrize("size", [0, 1, 7])
async def test_anthropics_thoughts_texts_and_calls_arrive_exactly(size: int) -> None:
    handler = playing("anthropic", anthropic_stream(THINKING_AND_TOOLS), size)
    async with provider("anthropic", handler) as (tier, server):
        text, reasoning, calls, finish, usage = summed(await deltas_of(tier, chat(max_tokens=100)))
        assert (text, reasoning, finish) == ("I look it up: größe 🙂", "Let me see.", "tool_calls")
        assert calls == [("toolu_1", "get_weather", '{"city": "San Jose"}'), ("toolu_2", "now", "{}")]
        assert usage == Usage(prompt_tokens=150, completion_tokens=42, cached_tokens=100, cache_write_tokens=40)
        assert (server.calls[0].path, server.calls[0].headers["x-api-key"]) == ("/v1/messages", KEY)
        assert server.calls[0].headers["anthropic-version"] == "2023-06-01"


async def test_anthropics_whole_answer_is_the_same_as_its_stream() -> None:
    async with provider("anthropic", refusing(200, WHOLE_MESSAGE)) as (tier, server):
        text, reasoning, calls, finish, usage = summed(await deltas_of(tier, chat(whole=True, max_tokens=100)))
        assert (text, reasoning, finish) == ("I look it up: größe 🙂", "Let me see.", "tool_calls")
        assert calls == [("toolu_1", "get_weather", '{"city":"San Jose"}'), ("toolu_2", "now", "{}")]
        assert usage == Usage(prompt_tokens=150, completion_tokens=42, cached_tokens=100, cache_write_tokens=40)
        assert server.calls[0].body["stream"] is False


@pytest.mark.parametrize("size", [0, 1, 7])
async def test_geminis_thoughts_texts_and_calls_arrive_exactly(size: int) -> None:
    stream = gemini_stream(
        [
            gemini_event({"text": "Let me see.", "thought": True}, thoughtsTokenCount=5),
            gemini_event({"text": "größe 🙂"}, candidatesTokenCount=3, thoughtsTokenCount=5),
            gemini_event(
                {"functionCall": {"name": "get_weather", "args": {"city": "Ulm"}}, "thoughtSignature": "c2ln"}
            ),
            gemini_event({"functionCall": {"id": "fc-9", "name": "now"}}),
            gemini_event(
                {"text": ""}, finish="STOP", candidatesTokenCount=9, thoughtsTokenCount=5, cachedContentTokenCount=128
            ),
        ]
    )
    async with provider("gemini", playing("gemini", stream, size), "gemini-2.5-flash") as (tier, server):
        text, reasoning, calls, finish, usage = summed(await deltas_of(tier, chat(max_tokens=100)))
        assert (text, reasoning, finish) == ("größe 🙂", "Let me see.", "tool_calls")
        assert [call[1:] for call in calls] == [("get_weather", '{"city":"Ulm"}'), ("now", "{}")]
        assert calls[0][0].startswith("call_")
        assert calls[1][0] == "fc-9"
        assert usage == Usage(prompt_tokens=150, completion_tokens=14, cached_tokens=128, reasoning_tokens=5)
        call = server.calls[0]
        assert call.path == "/v1/models/gemini-2.5-flash:streamGenerateContent?alt=sse"
        assert call.headers["x-goog-api-key"] == KEY


async def test_geminis_whole_answer_is_read() -> None:
    answer = gemini_event({"text": "Hello"}, finish="MAX_TOKENS", candidatesTokenCount=12)
    async with provider("gemini", refusing(200, answer)) as (tier, server):
        text, _, _, finish, usage = summed(await deltas_of(tier, chat(whole=True)))
        assert (text, finish, usage) == ("Hello", "length", Usage(prompt_tokens=150, completion_tokens=12))
        assert server.calls[0].path.endswith(":generateContent")


@pytest.mark.parametrize("size", [0, 1, 7])
async def test_bedrocks_thoughts_texts_and_calls_arrive_exactly(size: int) -> None:
    block = "contentBlockDelta"
    stream = bedrock_stream(
        [
            ("messageStart", {"role": "assistant"}),
            (block, {"contentBlockIndex": 0, "delta": {"reasoningContent": {"text": "Let me see."}}}),
            (block, {"contentBlockIndex": 0, "delta": {"reasoningContent": {"signature": "EqQB"}}}),
            ("contentBlockStop", {"contentBlockIndex": 0}),
            (block, {"contentBlockIndex": 1, "delta": {"text": "größe 🙂"}}),
            ("contentBlockStop", {"contentBlockIndex": 1}),
            (
                "contentBlockStart",
                {"contentBlockIndex": 2, "start": {"toolUse": {"toolUseId": "t1", "name": "get_weather"}}},
            ),
            (block, {"contentBlockIndex": 2, "delta": {"toolUse": {"input": '{"city":'}}}),
            (block, {"contentBlockIndex": 2, "delta": {"toolUse": {"input": '"Ulm"}'}}}),
            ("contentBlockStop", {"contentBlockIndex": 2}),
            *bedrock_end("tool_use", cacheReadInputTokens=100, cacheWriteInputTokens=40),
        ]
    )
    handler = playing("bedrock", stream, size)
    async with provider("bedrock", handler, "us.anthropic.claude-sonnet-5-v1:0") as (tier, server):
        text, reasoning, calls, finish, usage = summed(await deltas_of(tier, chat(max_tokens=100)))
        assert (text, reasoning, finish) == ("größe 🙂", "Let me see.", "tool_calls")
        assert calls == [("t1", "get_weather", '{"city":"Ulm"}')]
        assert usage == Usage(prompt_tokens=150, completion_tokens=15, cached_tokens=100, cache_write_tokens=40)
        call = server.calls[0]
        assert call.path == "/v1/model/us.anthropic.claude-sonnet-5-v1%3A0/converse-stream"
        assert call.headers["authorization"] == f"Bearer {KEY}"


async def test_bedrocks_whole_answer_is_read() -> None:
    content = [
        {"reasoningContent": {"reasoningText": {"text": "Hm.", "signature": "EqQB"}}},
        {"text": "Hello"},
        {"toolUse": {"toolUseId": "t1", "name": "f", "input": {"a": [1]}}},
    ]
    answer = {
        "output": {"message": {"role": "assistant", "content": content}},
        "stopReason": "tool_use",
        "usage": {"inputTokens": 9, "outputTokens": 4, "totalTokens": 13},
        "metrics": {"latencyMs": 5},
    }
    async with provider("bedrock", refusing(200, answer)) as (tier, _):
        text, reasoning, calls, finish, usage = summed(await deltas_of(tier, chat(whole=True)))
        assert (text, reasoning, finish, calls) == ("Hello", "Hm.", "tool_calls", [("t1", "f", '{"a":[1]}')])
        assert usage == Usage(prompt_tokens=9, completion_tokens=4)


async def test_a_conversation_with_calls_has_anthropics_form() -> None:
    request = asking(*LOOP, tooling=Tooling(tools=(WEATHER,), choice="required", parallel=False), stop=("END",))
    body = await sent_to("anthropic", request)
    assert body["system"] == "Be brief."
    assert body["messages"] == [
        {"role": "user", "content": [{"type": "text", "text": "Weather?"}]},
        {
            "role": "assistant",
            "content": [
                {"type": "tool_use", "id": "c1", "name": "get_weather", "input": {"city": "Ulm"}},
                {"type": "tool_use", "id": "c2", "name": "get_weather", "input": {}},
            ],
        },
        {
            "role": "user",
            "content": [
                {"type": "tool_result", "tool_use_id": "c1", "content": [{"type": "text", "text": "12 degrees"}]},
                {
                    "type": "tool_result",
                    "tool_use_id": "c2",
                    "content": [{"type": "text", "text": "13 degrees"}],
                },
            ],
        },
    ]
    assert body["tools"] == [
        {"name": "get_weather", "description": "The weather.", "input_schema": WEATHER.parameters},
    ]
    assert body["tool_choice"] == {"type": "any", "disable_parallel_tool_use": True}
    assert body["stop_sequences"] == ["END"]
    assert "temperature" not in body
    assert "top_p" not in body


async def test_a_first_question_is_not_written_into_anthropics_cache() -> None:
    body = await sent_to("anthropic", chat(), "claude-sonnet-4-5")
    assert body["messages"] == [{"role": "user", "content": [{"type": "text", "text": "Hello there"}]}]
    assert body["temperature"] == 0.0


@pytest.mark.parametrize(
    ("model", "fields", "expected"),
    [
        ("claude-sonnet-5", {}, {}),
        ("claude-sonnet-5", {"reasoning_effort": "none"}, {"thinking": {"type": "disabled"}}),
        (
            "claude-sonnet-5",
            {"reasoning_effort": "high"},
            {"thinking": {"type": "adaptive", "display": "summarized"}, "output_config": {"effort": "high"}},
        ),
        (
            "claude-sonnet-4-5",
            {"reasoning_effort": "low"},
            {"thinking": {"type": "enabled", "budget_tokens": 2048}},
        ),
        (
            "claude-sonnet-4-5",
            {"reasoning_budget": 99_999},
            {"thinking": {"type": "enabled", "budget_tokens": 4000 - 1024}},
        ),
        ("claude-sonnet-4-5", {"reasoning_effort": "low", "max_tokens": 1500}, {}),
        ("claude-sonnet-4-5", {"reasoning_effort": "low", "messages": LOOP}, {}),
    ],
)
async def test_reasoning_effort_becomes_what_anthropics_model_takes(
    model: str, fields: dict[str, Any], expected: dict[str, Any]
) -> None:
    turns = fields.get("messages", [Turn.of("user", "Hi")])
    request = asking(*turns, **{name: value for name, value in fields.items() if name != "messages"})
    body = await sent_to("anthropic", request, model)
    assert {name: body[name] for name in ("thinking", "output_config") if name in body} == expected


async def test_a_conversation_with_calls_has_geminis_form() -> None:
    tooling = Tooling(tools=(WEATHER,), choice="named", name="get_weather")
    request = asking(*LOOP, tooling=tooling, reasoning_effort="low")
    body = await sent_to("gemini", request, "gemini-3-pro")
    assert body["systemInstruction"] == {"parts": [{"text": "Be brief."}]}
    call = {"functionCall": {"name": "get_weather", "args": {"city": "Ulm"}}}
    assert body["contents"] == [
        {"role": "user", "parts": [{"text": "Weather?"}]},
        {
            "role": "model",
            "parts": [
                call | {"thoughtSignature": "skip_thought_signature_validator"},
                {"functionCall": {"name": "get_weather", "args": {}}},
            ],
        },
        {
            "role": "user",
            "parts": [
                {"functionResponse": {"name": "get_weather", "response": {"result": f"{degrees} degrees"}}}
                for degrees in (12, 13)
            ],
        },
    ]
    assert body["toolConfig"] == {"functionCallingConfig": {"mode": "ANY", "allowedFunctionNames": ["get_weather"]}}
    assert body["tools"][0]["functionDeclarations"][0]["parametersJsonSchema"] == WEATHER.parameters
    thinking = {"includeThoughts": True, "thinkingLevel": "low"}
    assert body["generationConfig"]["thinkingConfig"] == thinking
    assert "temperature" not in body["generationConfig"]


@pytest.mark.parametrize(("model", "kinds"), [("claude-sonnet-5", ["text"]), ("kimi-k3", ["thinking", "text"])])
async def test_unsigned_thoughts_go_to_no_claude(model: str, kinds: list[str]) -> None:
    given: list[dict[str, Any]] = [
        {"type": "thinking", "thinking": "Hm.", "signature": ""},
        {"type": "text", "text": "Yes."},
    ]
    blocks = tuple(NativeBlock(json=json.dumps(one).encode(), type=one["type"]) for one in given)
    turn = Turn.of("assistant", "Yes.", native=NativeContent("anthropic", blocks))
    request = asking(Turn.of("user", "So?"), turn, Turn.of("user", "Why?"))
    body = await sent_to("anthropic", request, model)
    assert [block["type"] for block in body["messages"][1]["content"]] == kinds


async def test_texts_and_documents_are_as_bedrock_takes_them() -> None:
    def file(name: str, kind: str = "application/pdf") -> Content:
        return media("file", {"filename": name, "file_data": f"data:{kind};base64,AAAA"})

    sheet = "application/vnd.openxmlformats-officedocument.spreadsheetml.sheet"
    call = Call(id="c1", name="get_weather", arguments="{}")
    turns = [
        Turn.of("system", " "),
        Turn.of("user", [Text("Read."), file("report.pdf"), file("sums.xlsx", sheet)]),
        Turn.of("assistant", " ", calls=(call,)),
        Turn.of("tool", call_id="c1"),
        Turn.of("assistant", "Yes."),
        Turn.of("user", [file("report.pdf")]),
    ]
    body = await sent_to("bedrock", asking(*turns), "anthropic.claude-sonnet-4-5")
    said = [block for turn in body["messages"] for block in turn["content"]]
    documents = [block["document"] for block in said if "document" in block]
    assert "system" not in body
    assert [(one["name"], one["format"]) for one in documents] == [
        ("report pdf", "pdf"),
        ("sums xlsx", "xlsx"),
        ("report pdf (2)", "pdf"),
    ]
    # No text is blank, and with a document there is one.
    assert [block["toolResult"]["content"] for block in said if "toolResult" in block] == [[{"text": "(no output)"}]]
    assert [block["text"] for block in said if "text" in block] == ["Read.", "Yes.", "report pdf (2)"]


async def test_a_conversation_with_calls_has_bedrocks_form() -> None:
    request = asking(*LOOP, sampling=SamplingParams(temperature=0.5))
    body = await sent_to("bedrock", request, "anthropic.claude-sonnet-4-5")
    assert body["system"] == [{"text": "Be brief."}]
    assert body["messages"][1:] == [
        {
            "role": "assistant",
            "content": [
                {"toolUse": {"toolUseId": "c1", "name": "get_weather", "input": {"city": "Ulm"}}},
                {"toolUse": {"toolUseId": "c2", "name": "get_weather", "input": {}}},
            ],
        },
        {
            "role": "user",
            "content": [
                {"toolResult": {"toolUseId": "c1", "content": [{"text": "12 degrees"}]}},
                {"toolResult": {"toolUseId": "c2", "content": [{"text": "13 degrees"}]}},
            ],
        },
    ]
    # Converse refuses turns with calls if the tools are missing.
    assert [tool["toolSpec"]["name"] for tool in body["toolConfig"]["tools"]] == ["get_weather"]
    assert body["inferenceConfig"]["temperature"] == 0.5


PICTURE = Turn.of("user", [Text("What is this?"), media("image", {"url": "data:image/png;base64,iVBORw0KGgo="})])


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        (
            "anthropic",
            {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "iVBORw0KGgo="}},
        ),
        ("gemini", {"inlineData": {"mimeType": "image/png", "data": "iVBORw0KGgo="}}),
        ("bedrock", {"image": {"format": "png", "source": {"bytes": "iVBORw0KGgo="}}}),
    ],
)
async def test_an_image_passes_in_the_providers_form(kind: str, expected: dict[str, Any]) -> None:
    body = await sent_to(kind, asking(PICTURE))
    turn = body["contents"][0]["parts"] if kind == "gemini" else body["messages"][0]["content"]
    assert turn[1] == expected


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"sampling": SamplingParams(logprobs=2)}, "logprobs"),
        ({"sampling": SamplingParams(logit_bias={1: 2.0})}, "logit_bias"),
        ({"sampling": SamplingParams(grammar=Grammar(kind="regex", text="a+"))}, "structured_outputs"),
        ({"messages": None, "prompt": "Once"}, "prompt"),
    ],
)
async def test_what_a_provider_cannot_do_is_the_callers_to_change(
    kind: str, fields: dict[str, Any], param: str
) -> None:
    request = GenerationRequest(
        **({"request_id": "r", "sampling": SamplingParams(), "messages": [Turn.of("user", "a")]} | fields)
    )
    async with provider(kind, playing(kind, HELLO[kind])) as (tier, server):
        raised = await failure(tier, request)
        assert isinstance(raised, TierRequestError)
        assert raised.param == param
        assert not server.calls


async def test_a_json_schema_reaches_anthropic_and_gemini() -> None:
    schema = {"type": "object", "properties": {"a": {"type": "integer"}}, "additionalProperties": False}
    form = {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}
    for kind in ("anthropic", "gemini"):
        body = await sent_to(kind, chat(response_format=form))
        sent = (
            body["output_config"]["format"]["schema"]
            if kind == "anthropic"
            else body["generationConfig"]["responseJsonSchema"]
        )
        assert sent == schema


@pytest.mark.parametrize("kind", KINDS)
async def test_a_changed_stream_is_an_error_and_not_an_empty_answer(kind: str) -> None:
    async with provider(kind, playing(kind, CHANGED[kind])) as (tier, _):
        raised = await failure(tier)
        assert type(raised) is TierAnswerError
        assert "has the provider changed its API" in str(raised)


@pytest.mark.parametrize("kind", KINDS)
async def test_a_page_instead_of_a_stream_is_shown(kind: str) -> None:
    async def page(call: Received) -> None:
        await call.begin(200, "text/html; charset=utf-8")
        await call.send(b"<html>Please sign in to the network</html>")

    async with provider(kind, page) as (tier, _):
        raised = await failure(tier)
        assert type(raised) is TierAnswerError
        assert "answered text/html; charset=utf-8 instead of a stream: Please sign in" in str(raised)


@pytest.mark.parametrize("kind", KINDS)
async def test_a_stream_that_drops_is_an_error_and_bills_what_was_said(kind: str) -> None:
    async with provider(kind, playing(kind, OPENING[kind])) as (tier, _):
        request = chat()
        raised = await failure(tier, request)
        assert "ended before its choices were finished" in str(raised)
        assert request.meter.usage().completion_tokens >= 1


@pytest.mark.parametrize("kind", KINDS)
async def test_closing_early_ends_the_http_request(kind: str) -> None:
    async def opening(call: Received) -> None:
        await call.begin(200, media_type(kind))
        await call.send(OPENING[kind])
        await asyncio.Event().wait()

    async with provider(kind, opening) as (tier, server):
        deltas = tier.generate(chat())
        assert (await anext(deltas)).text == "Hel"
        await deltas.aclose()
        async with asyncio.timeout(120):
            await server.disconnected.wait()


ERRORS = {
    "anthropic": lambda message, kind: {"type": "error", "error": {"type": kind, "message": message}},
    "gemini": lambda message, kind: {"error": {"code": 400, "message": message, "status": kind}},
    "bedrock": lambda message, kind: {"message": message},
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("status", [401, 403, 404])
async def test_a_refused_key_or_model_makes_the_tier_unavailable_and_names_the_variable(kind: str, status: int) -> None:
    handler = refusing(status, ERRORS[kind](f"not with {KEY}", "authentication_error"))
    async with provider(kind, handler) as (tier, _):
        raised = await failure(tier)
        assert type(raised) is (TierUnavailableError if status == 404 else TierKeyError)
        advice = "check url and model" if status == 404 else "check the key in THE_KEY)"
        assert f"answered {status}: not with [key] ({advice}" in str(raised)
        assert not tier.load().healthy


@pytest.mark.parametrize(
    ("kind", "message", "means"),
    [
        ("anthropic", "Your credit balance is too low to access the Anthropic API.", TierKeyError),
        ("gemini", "API key not valid. Please pass a valid API key.", TierKeyError),
        ("bedrock", "The provided model identifier is invalid.", TierUnavailableError),
    ],
)
async def test_a_400_about_the_account_is_not_the_callers(kind: str, message: str, means: type[Exception]) -> None:
    async with provider(kind, refusing(400, ERRORS[kind](message, "x"))) as (tier, _):
        assert type(await failure(tier)) is means


async def test_a_failure_in_bedrocks_stream_is_what_its_exception_says() -> None:
    said = event_stream_message("throttlingException", {"message": "Too many tokens, please wait."}, "exception")
    async with provider("bedrock", playing("bedrock", said)) as (tier, _):
        assert type(await failure(tier)) is TierBusyError


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        ("anthropic", "prompt is too long: 200123 tokens > 199999 maximum"),
        ("gemini", "The input token count (1200000) exceeds the maximum number of tokens allowed (1048576)."),
        ("bedrock", "Input is too long for requested model."),
    ],
)
async def test_a_prompt_that_is_too_long_is_named_so(kind: str, message: str) -> None:
    async with provider(kind, refusing(400, ERRORS[kind](message, "x"))) as (tier, _):
        raised = await failure(tier)
        assert isinstance(raised, TierRequestError)
        assert (raised.param, raised.code) == ("messages", "context_length_exceeded")


@pytest.mark.parametrize("kind", KINDS)
async def test_another_400_is_the_callers(kind: str) -> None:
    async with provider(kind, refusing(400, ERRORS[kind]("top_k: must be positive", "x"))) as (tier, _):
        raised = await failure(tier)
        assert isinstance(raised, TierRequestError)
        assert "top_k: must be positive" in str(raised)
        assert tier.load().healthy


async def test_a_busy_provider_says_for_how_long() -> None:
    details = [{"@type": "type.googleapis.com/google.rpc.RetryInfo", "retryDelay": "34.5s"}]
    exhausted = {"error": {"code": 429, "message": "Quota", "status": "RESOURCE_EXHAUSTED", "details": details}}
    for kind, handler, seconds in (
        ("anthropic", refusing(429, ERRORS["anthropic"]("slow", "rate_limit_error"), "retry-after: 7"), 7.0),
        ("anthropic", refusing(529, ERRORS["anthropic"]("Overloaded", "overloaded_error")), 1.0),
        ("gemini", refusing(429, exhausted), 34.5),
        ("bedrock", refusing(429, {"message": "Too many requests"}), 1.0),
    ):
        async with provider(kind, handler) as (tier, _):
            raised = await failure(tier)
            assert isinstance(raised, TierBusyError)
            assert raised.retry_after_seconds == seconds


@pytest.mark.parametrize(
    ("kind", "error"),
    [
        ("anthropic", anthropic_stream([ERRORS["anthropic"]("Overloaded", "overloaded_error")])),
        ("gemini", gemini_stream([ERRORS["gemini"]("Overloaded", "UNAVAILABLE")])),
        ("bedrock", event_stream_message("throttlingException", {"message": "Overloaded"}, "exception")),
    ],
)
async def test_an_error_in_mid_stream_ends_the_answer(kind: str, error: bytes) -> None:
    async with provider(kind, playing(kind, OPENING[kind] + error)) as (tier, _):
        assert "Overloaded" in str(await failure(tier))


@pytest.mark.parametrize("kind", ["anthropic", "gemini"])
async def test_a_start_asks_for_the_model_once(kind: str) -> None:
    async with provider(kind, playing(kind, HELLO[kind])) as (tier, server):
        await tier.start()
        assert server.looks == ["/v1/models/claude-sonnet-5"]
        assert not server.calls

        async def lacking(call: Received) -> None:
            await call.reply(404, ERRORS[kind]("model: claude-sonnet-5", "not_found_error"))

        server.looked_at = lacking
        with pytest.raises(TierUnavailableError, match="has no model 'claude-sonnet-5'"):
            await tier.start()


async def test_a_request_to_bedrock_is_signed_with_the_credentials_that_aws_tools_use(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pytest.importorskip("botocore")
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "AKIDEXAMPLE")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "wJalrXUtnFEMI/K7MDENG+bPxRfiCYEXAMPLEKEY")
    monkeypatch.setenv("AWS_SESSION_TOKEN", "session")
    monkeypatch.setenv("AWS_REGION", "eu-central-1")
    async with LoopbackServer(playing("bedrock", HELLO["bedrock"])) as server:
        tier = RemoteTier(_with_model(remote_spec(server.base_url, kind="bedrock"), "amazon.nova-pro-v1:0"))
        await tier.start()
        await collect(tier, chat())
        await tier.close()
        headers = server.calls[0].headers
    assert headers["authorization"].startswith("AWS4-HMAC-SHA256 Credential=AKIDEXAMPLE/")
    assert "/eu-central-1/bedrock/aws4_request" in headers["authorization"]
    assert headers["x-amz-security-token"] == "session"


async def test_bedrock_without_credentials_says_what_to_set(monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> None:
    pytest.importorskip("botocore")
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_PROFILE", "AWS_BEARER_TOKEN_BEDROCK"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "none"))
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "none"))
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    tier = RemoteTier(remote_spec("http://127.0.0.1:9/v1", kind="bedrock"))
    with pytest.raises(TierUnavailableError, match="set AWS_BEARER_TOKEN_BEDROCK"):
        await tier.start()


async def test_a_missing_extra_is_named_with_the_command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "botocore.session", None)
    tier = RemoteTier(remote_spec("http://127.0.0.1:9/v1", kind="bedrock"))
    with pytest.raises(TierUnavailableError, match=r"pip install 'aio-gateway\[providers\]'"):
        await tier.start()
    assert not tier.load().healthy


@pytest.mark.parametrize("kind", KINDS)
async def test_several_choices_are_several_requests(kind: str) -> None:
    async with provider(kind, playing(kind, HELLO[kind])) as (tier, server):
        answers, usage = await collect(tier, chat(n=2))
        assert [answer.text for answer in answers] == ["Hello", "Hello"]
        (_, one) = await collect(tier, chat())
        assert usage == Usage.total([one, one])
        assert len(server.calls) == 3


@pytest.mark.parametrize(
    ("kind", "data"),
    [
        ("anthropic", anthropic_stream([anthropic_start(), *anthropic_text(0, "No"), *anthropic_end("refusal")])),
        ("gemini", gemini_stream([gemini_event({"text": "No"}, finish="SAFETY", candidatesTokenCount=1)])),
        ("bedrock", bedrock_stream([*bedrock_text("No"), *bedrock_end("guardrail_intervened")])),
    ],
)
async def test_an_answer_that_its_provider_filtered_says_so(kind: str, data: bytes) -> None:
    async with provider(kind, playing(kind, data)) as (tier, _):
        (answer,), _ = await collect(tier, chat())
    assert (answer.text, answer.finish_reason) == ("No", "content_filter")


async def test_anthropic_names_the_stop_string_that_ended_an_answer() -> None:
    ended, stop = anthropic_end("stop_sequence")
    ended["delta"]["stop_sequence"] = "END"
    data = anthropic_stream([anthropic_start(), *anthropic_text(0, "So"), ended, stop])
    async with provider("anthropic", playing("anthropic", data)) as (tier, _):
        (answer,), _ = await collect(tier, chat(stop=("END",)))
    assert (answer.finish_reason, answer.stop_sequence) == ("stop", "END")
