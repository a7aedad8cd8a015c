"""`/v1/messages` through the official client: texts, blocks, tools, thoughts, formats, events, counts and refusals."""

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import anthropic
import pytest
import pytest_asyncio
from pydantic import BaseModel

from gateway.base.settings import Settings
from tests.gateway.inference.api.test_disconnects import only_record, post
from tests.polling import eventually
from tests.support.app import RunningGateway, running_gateway
from tests.support.served import UNCACHED
from tiers.conversation import ToolCallDelta
from tiers.errors import TierError, TierUnavailableError
from tiers.tier import TierLoad

pytestmark = pytest.mark.asyncio(loop_scope="module")
SAID = "Hello there, how are you?"
HELLO: list[Any] = [{"role": "user", "content": "Say hello."}]
ADD: dict[str, Any] = {
    "name": "add",
    "description": "Adds.",
    "input_schema": {"type": "object", "properties": {"a": {"type": "integer"}}},
}
CALLS = (
    ToolCallDelta(index=0, id="call_0123456789ab", name="add", arguments='{"a"'),
    ToolCallDelta(index=0, arguments=": 1}"),
)
THINKING: Any = {"type": "enabled", "budget_tokens": 1024}


class Greeting(BaseModel):
    words: int


@pytest_asyncio.fixture(loop_scope="module")
async def client(gateway: RunningGateway) -> AsyncIterator[anthropic.AsyncAnthropic]:
    async with client_of(gateway) as found:
        yield found


def client_of(gateway: RunningGateway, **fields: Any) -> anthropic.AsyncAnthropic:
    given = {"base_url": gateway.url, "api_key": "unused", "max_retries": 0, "timeout": 20}
    return anthropic.AsyncAnthropic(**given | fields, default_headers=UNCACHED)


async def ask(gateway: RunningGateway, **fields: Any) -> Any:
    """The error, or the Message, for a body with these fields."""
    body = {"model": "tier-1", "max_tokens": 9, "messages": HELLO} | fields
    return (await gateway.http.post("/v1/messages", json=body, headers=UNCACHED)).json()


def turns(gateway: RunningGateway, tier: int = 1) -> list[tuple[str, str]]:
    return [(turn.role, turn.text) for turn in gateway.tier(tier).requests[-1].messages or ()]


async def test_a_text_is_answered_with_a_message_and_its_usage(
    gateway: RunningGateway, client: anthropic.AsyncAnthropic
) -> None:
    raw = await client.messages.with_raw_response.create(
        model="tier-1",
        max_tokens=9,
        system="Be kind.",
        messages=HELLO,
        metadata={"user_id": "u-1"},
        extra_body={"top_k": 3},
    )
    answer = await raw.parse()
    assert [block.model_dump(exclude_none=True) for block in answer.content] == [{"type": "text", "text": SAID}]
    assert (answer.type, answer.role, answer.stop_reason, answer.stop_sequence) == (
        "message", "assistant", "end_turn", None,
    )  # fmt: skip
    usage = answer.usage
    assert (usage.input_tokens, usage.cache_read_input_tokens, usage.output_tokens) == (10, 2, 5)
    assert usage.service_tier == "standard"
    assert answer.id.startswith("msg_")
    assert raw.headers["request-id"] == raw.headers["x-aio-decision-id"] == answer.id
    assert (raw.headers["x-aio-tier"], answer.model) == ("1", "smollm2-int4")
    asked = gateway.tier(1).requests[0]
    assert turns(gateway) == [("system", "Be kind."), ("user", "Say hello.")]
    assert (asked.max_tokens, asked.sampling.top_k) == (9, 3)
    record = await only_record(gateway, answer.id)
    assert (record.api, record.status, record.tags) == ("chat", "ok", {"user_id": "u-1"})


async def test_the_synchronous_client_streams_the_same_text(gateway: RunningGateway) -> None:
    def streamed() -> tuple[str, anthropic.types.Message]:
        with (
            anthropic.Anthropic(base_url=gateway.url, auth_token="unused", max_retries=0) as client,
            client.messages.stream(model="tier-1", max_tokens=9, messages=HELLO) as stream,
        ):
            return "".join(stream.text_stream), stream.get_final_message()

    said, final = await asyncio.to_thread(streamed)
    assert said == SAID
    assert final.content[0].type == "text"
    assert (final.content[0].text, final.stop_reason) == (SAID, "end_turn")
    assert (final.usage.input_tokens, final.usage.output_tokens) == (4, 5)


async def test_the_clients_accumulator_makes_of_a_stream_what_a_whole_answer_is(
    gateway: RunningGateway, client: anthropic.AsyncAnthropic
) -> None:
    tier = gateway.tier(4)
    tier.reasoning, tier.calls = ("Think", " hard."), CALLS
    fields: dict[str, Any] = {
        "model": "tier-4", "max_tokens": 2000, "messages": HELLO, "tools": [ADD], "thinking": THINKING,
    }  # fmt: skip
    async with client.messages.stream(**fields) as stream:
        streamed = await stream.get_final_message()
    whole = await client.messages.create(**fields)
    # The client leaves what is not Anthropic's out of what it accumulates.
    left_out = {"id", "x_aio"}
    assert streamed.model_dump(exclude=left_out, exclude_none=True) == whole.model_dump(
        exclude=left_out, exclude_none=True
    )
    thought, text, call = whole.content
    assert (thought.type, text.type, call.type) == ("thinking", "text", "tool_use")
    assert (thought.thinking, text.text) == ("Think hard.", SAID)
    assert thought.signature
    assert (call.id, call.name, call.input) == ("call_0123456789ab", "add", {"a": 1})
    assert whole.stop_reason == "tool_use"
    assert [tool.name for tool in tier.requests[0].tooling.tools] == ["add"]  # type: ignore[union-attr]
    assert tier.requests[0].reasoning_budget == 1024


@pytest.mark.parametrize("stream", [False, True])
async def test_thoughts_that_were_not_asked_for_are_not_shown(gateway: RunningGateway, stream: bool) -> None:
    gateway.tier(4).reasoning = ("Think",)
    async with client_of(gateway) as client:
        for thinking in (anthropic.omit, {"type": "disabled"}):
            fields: dict[str, Any] = {"model": "tier-4", "max_tokens": 9, "messages": HELLO, "thinking": thinking}
            if stream:
                async with client.messages.stream(**fields) as events:
                    answer = await events.get_final_message()
            else:
                answer = await client.messages.create(**fields)
            assert [block.type for block in answer.content] == ["text"]
    assert [request.reasoning_budget for request in gateway.tier(4).requests] == [None, 0]


async def test_thoughts_may_be_asked_for_without_their_text(
    gateway: RunningGateway, client: anthropic.AsyncAnthropic
) -> None:
    gateway.tier(4).reasoning = ("Think",)
    fields: dict[str, Any] = {
        "model": "tier-4", "max_tokens": 9, "messages": HELLO, "thinking": {"type": "adaptive", "display": "omitted"},
    }  # fmt: skip
    whole = await client.messages.create(**fields)
    async with client.messages.stream(**fields) as stream:
        streamed = await stream.get_final_message()
    for answer in (whole, streamed):
        assert answer.content[0].type == "thinking"
        assert (answer.content[0].thinking, bool(answer.content[0].signature)) == ("", True)
    assert gateway.tier(4).requests[0].reasoning_budget is None


async def test_blocks_are_the_turns_of_a_conversation_with_its_calls(
    gateway: RunningGateway, client: anthropic.AsyncAnthropic
) -> None:
    messages: list[Any] = [
        {"role": "user", "content": [{"type": "text", "text": "1 and 1?", "cache_control": {"type": "ephemeral"}}]},
        {"role": "user", "content": "Quick."},
        {
            "role": "assistant",
            "content": [
                {"type": "thinking", "thinking": "Easy.", "signature": "whatever"},
                {"type": "redacted_thinking", "data": "xyz"},
                {"type": "text", "text": "Wait."},
                {"type": "tool_use", "id": "toolu_1", "name": "add", "input": {"a": 1}},
                {"type": "tool_use", "id": "toolu_2", "name": "add", "input": {}},
            ],
        },
        {
            "role": "user",
            "content": [
                {"type": "tool_result", "tool_use_id": "toolu_1", "content": "2"},
                {
                    "type": "tool_result", "tool_use_id": "toolu_2", "is_error": True,
                    "content": [{"type": "text", "text": "no a"}, {"type": "text", "text": "no b"}],
                },
                {"type": "text", "text": "So?"},
            ],
        },
    ]  # fmt: skip
    await client.messages.create(
        model="tier-1", max_tokens=9, messages=messages, tools=[ADD],
        system=[
            {"type": "text", "text": "x-anthropic-billing-header: cc_version=2; cch=1234;"},
            {"type": "text", "text": "Add.", "cache_control": {"type": "ephemeral"}},
            {"type": "text", "text": "Be quick."},
        ],
    )  # fmt: skip
    assert turns(gateway) == [
        ("system", "Add.\n\nBe quick."),
        ("user", "1 and 1?\n\nQuick."),
        ("assistant", "Wait."),
        ("tool", "2"),
        ("tool", "Error: no a\n\nno b"),
        ("user", "So?"),
    ]
    read = gateway.tier(1).requests[0].messages or []
    assert [(call.id, json.loads(call.arguments)) for call in read[2].calls] == [
        ("toolu_1", {"a": 1}),
        ("toolu_2", {}),
    ]
    assert [turn.call_id for turn in read[3:5]] == ["toolu_1", "toolu_2"]


async def test_a_schema_binds_the_answer_and_is_parsed(
    gateway: RunningGateway, client: anthropic.AsyncAnthropic
) -> None:
    gateway.tier(1).words = ('{"words"', ": 2}")
    answer = await client.messages.parse(model="tier-1", max_tokens=9, messages=HELLO, output_format=Greeting)
    assert answer.parsed_output == Greeting(words=2)
    grammar = gateway.tier(1).requests[0].sampling.grammar
    assert grammar is not None
    assert "words" in grammar.text
    assert (await ask(gateway, output_config={"effort": "max"}))["type"] == "message"
    assert gateway.tier(1).requests[1].reasoning_effort == "max"


async def test_an_answer_may_be_cut_to_the_context_but_a_prompt_must_leave_room(gateway: RunningGateway) -> None:
    assert (await ask(gateway, max_tokens=32_000))["type"] == "message"
    refused = await ask(gateway, max_tokens=32_000, messages=[{"role": "user", "content": "word " * 245}])
    assert refused["error"]["type"] == "invalid_request_error"
    assert "does not fit" in refused["error"]["message"]


@pytest.mark.parametrize("stream", [False, True])
async def test_the_stop_sequence_that_ended_an_answer_is_named_from_the_cache_too(
    gateway: RunningGateway, stream: bool
) -> None:
    gateway.tier(1).stop_sequence = "END"
    body = {"model": "tier-1", "max_tokens": 9, "messages": HELLO, "stop_sequences": ["X", "END"], "stream": stream}
    for cached in ("miss", "hit"):
        answer = await gateway.http.post("/v1/messages", json=body, headers={"x-aio-cache": "use"})
        assert answer.headers["x-aio-cache"] == cached
        assert '"stop_reason":"stop_sequence","stop_sequence":"END"' in answer.text
    assert [request.stop for request in gateway.tier(1).requests] == [("X", "END")]


async def test_what_claude_code_sends_is_answered(gateway: RunningGateway) -> None:
    body = {
        "model": "tier-1",
        "max_tokens": 32_000,
        "stream": True,
        "temperature": 1,
        "metadata": {"user_id": '{"device_id":"d","account_uuid":"","session_id":"s"}'},
        "thinking": {"budget_tokens": 31_999, "type": "enabled"},
        "context_management": {"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]},
        "output_config": {"effort": "medium"},
        "system": [
            {"type": "text", "text": "You are Claude Code.", "cache_control": {"type": "ephemeral", "ttl": "1h"}},
            {"type": "text", "text": "Rules", "cache_control": {"type": "ephemeral"}},
        ],
        "tools": [ADD | {"name": f"Tool{i}", "eager_input_streaming": True} for i in range(15)],
        "messages": [
            {
                "role": "user",
                "content": [
                    {"type": "text", "text": "<system-reminder>Today.</system-reminder>"},
                    {"type": "text", "text": "hi", "cache_control": {"type": "ephemeral"}},
                ],
            }
        ],
        "something_new": {"a": 1},
    }
    headers = {"authorization": "Bearer x", "anthropic-version": "2023-06-01", "anthropic-beta": "claude-code-20250219"}
    answer = await gateway.http.post("/v1/messages?beta=true", json=body, headers=headers)
    assert answer.status_code == 200
    assert answer.headers["content-type"].startswith("text/event-stream")
    assert answer.headers["x-aio-ignored-fields"] == "something_new"
    assert answer.text.endswith('event: message_stop\ndata: {"type":"message_stop"}\n\n')
    asked = gateway.tier(1).requests[0]
    assert asked.tooling is not None
    assert len(asked.tooling.tools) == 15
    counted = {name: body[name] for name in ("model", "messages", "tools", "system", "thinking")}
    count = await gateway.http.post("/v1/messages/count_tokens?beta=true", json=counted, headers=headers)
    assert count.json() == {"input_tokens": 15}


@pytest.mark.parametrize("model", ["tier-1", "auto"])
async def test_tokens_are_counted_without_answering(
    gateway: RunningGateway, client: anthropic.AsyncAnthropic, model: str
) -> None:
    counted = await client.messages.count_tokens(model=model, system="Be kind.", messages=HELLO, tools=[ADD])
    assert counted.input_tokens == 12
    too_long: list[Any] = [{"role": "user", "content": "word " * 1000}]
    assert (await client.messages.count_tokens(model=model, messages=too_long)).input_tokens == 1004
    assert not any(tier.requests for tier in gateway.tiers)
    with pytest.raises(anthropic.NotFoundError):
        await client.messages.count_tokens(model="claude-0", messages=HELLO)


@pytest.mark.parametrize("path", ["/v1/messages", "/v1/messages/count_tokens"])
async def test_a_thread_is_refused_by_the_code_after_which_clients_send_the_whole_conversation(
    gateway: RunningGateway, path: str
) -> None:
    thread = {"type": "continue", "previous_message_id": "msg_1"}
    body = {"model": "tier-1", "max_tokens": 9, "messages": HELLO}
    refused = await gateway.http.post(path, json=body | {"thread": thread})
    error = refused.json()["error"]
    assert (refused.status_code, error["type"]) == (400, "invalid_request_error")
    assert error["details"] == {"error_code": "thread_unsupported_request"}
    assert (await gateway.http.post(path, json=body | {"thread": None})).status_code == 200
    assert "details" not in (await ask(gateway, messages=[]))["error"]


async def test_failures_are_the_clients_own_exceptions(
    gateway: RunningGateway, client: anthropic.AsyncAnthropic
) -> None:
    fields: dict[str, Any] = {"max_tokens": 9, "messages": HELLO}
    with pytest.raises(anthropic.NotFoundError) as missing:
        await client.messages.create(model="claude-0", **fields)
    assert missing.value.type == "not_found_error"
    assert missing.value.request_id == missing.value.body["request_id"]  # type: ignore[index]
    with pytest.raises(anthropic.BadRequestError) as wrong:
        await client.messages.create(model="tier-1", max_tokens=9, messages=[])
    assert wrong.value.type == "invalid_request_error"
    gateway.tier(1).health = TierLoad(healthy=False)
    with pytest.raises(anthropic.OverloadedError) as down:
        await client.messages.create(model="tier-1", **fields)
    assert down.value.type == "overloaded_error"
    assert down.value.response.headers["retry-after"] == "1"
    gateway.tier(1).health = TierLoad()
    gateway.tier(1).fail_at, gateway.tier(1).error = 0, TierError("broke")
    with pytest.raises(anthropic.InternalServerError) as broken:
        await client.messages.create(model="tier-1", **fields)
    assert broken.value.type == "api_error"


async def test_the_guard_the_limits_and_the_size_of_a_body_refuse_in_the_same_envelope(settings: Settings) -> None:
    keyed = Settings(data_dir=settings.data_dir, monitor=False, drain_seconds=5, body_limit=10_000)
    async with running_gateway(keyed) as gateway:
        key = await gateway.key("slow", requests_per_minute=1)
        fields: dict[str, Any] = {"model": "tier-1", "max_tokens": 9, "messages": HELLO}
        async with client_of(gateway) as unknown:
            with pytest.raises(anthropic.AuthenticationError) as caught:
                await unknown.messages.create(**fields)
            assert caught.value.type == "authentication_error"
        for of_key in ({"api_key": key}, {"api_key": None, "auth_token": key}):
            async with client_of(gateway, **of_key) as known:
                with pytest.raises(anthropic.RequestTooLargeError) as large:
                    await known.messages.create(**fields | {"system": "x" * 10_000})
                assert large.value.body["error"]["type"] == "request_too_large"  # type: ignore[index]
        async with client_of(gateway, api_key=key) as known:
            await known.messages.create(**fields)
            with pytest.raises(anthropic.RateLimitError) as limited:
                await known.messages.create(**fields)
            assert limited.value.type == "rate_limit_error"
            assert int(limited.value.response.headers["retry-after"]) > 0
        # The key is good for the other endpoints, too, and a wrong path stays in the envelope.
        assert (await gateway.http.get("/v1/models", headers={"x-api-key": key})).status_code == 200
        lost = await gateway.http.get("/v1/messages", headers={"x-api-key": key})
        assert (lost.status_code, lost.json()["type"]) == (405, "error")


async def test_a_stream_whose_reader_leaves_is_closed_at_once(
    gateway: RunningGateway, client: anthropic.AsyncAnthropic
) -> None:
    tier = gateway.tier(1)
    tier.hold_at = 2
    async with client.messages.stream(model="tier-1", max_tokens=9, messages=HELLO) as stream:
        async for text in stream.text_stream:
            if text == " there,":
                break
        await tier.holding.wait()
    await tier.ended.wait()
    assert tier.closed_early == 1
    await eventually(lambda: gateway.serving.service.in_flight == 0)


async def test_a_tier_that_breaks_half_way_is_an_error_event(
    gateway: RunningGateway, client: anthropic.AsyncAnthropic
) -> None:
    gateway.tier(1).fail_at, gateway.tier(1).error = 2, TierUnavailableError("gone")
    async with client.messages.stream(model="tier-1", max_tokens=9, messages=HELLO) as stream:
        with pytest.raises(anthropic.APIStatusError) as caught:
            await stream.until_done()
        assert caught.value.type == "overloaded_error"
        assert stream.current_message_snapshot.content[0].model_dump()["text"] == "Hello there,"


async def test_pings_are_sent_until_the_first_token_and_a_failure_then_is_an_error_event(settings: Settings) -> None:
    waiting = Settings(data_dir=settings.data_dir, monitor=False, drain_seconds=5, keep_alive_seconds=0.02)
    async with running_gateway(waiting) as gateway:
        tier = gateway.tier(4)
        tier.hold_at = tier.fail_at = 0
        tier.error = TierUnavailableError("gone")
        body = {"model": "tier-4", "max_tokens": 9, "messages": HELLO, "stream": True}
        reader, _ = await post(gateway, "/v1/messages", body)
        head = await reader.readuntil(b"\r\n\r\n")
        assert b"\r\nrequest-id: msg_" in head
        await reader.readuntil(b'event: ping\ndata: {"type": "ping"}\n\n')
        tier.go.set()
        # Further pings may come before it.
        while b"event: ping" in (event := await reader.readuntil(b"\n\n")):
            pass
        data = json.loads(event[event.index(b'{"type":"error"') :])
        assert (data["error"]["type"], data["request_id"][:4]) == ("overloaded_error", "msg_")
