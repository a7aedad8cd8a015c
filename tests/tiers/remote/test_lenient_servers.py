"""Answers of lenient servers mean the same as those of strict ones, streamed and whole; what cannot be understood is an
error."""

import json
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec
import pytest
from tests.tiers.remote.lenient_servers import CASES, DONE, USAGE, Case, chunks, message, raw_chunks

from inference_core.protocol import SamplingParams
from tests.tiers.remote.loopback_server import Call, LoopbackServer
from tests.tiers.remote.provider_shapes import event_stream_message, gemini_event, gemini_stream
from tests.tiers.tier_world import chat, collect, remote_spec
from tiers.chat_state import collected_state, kept_state
from tiers.conversation import Tool, Tooling, Turn
from tiers.deltas import CollectedChoice
from tiers.errors import (
    TierAnswerError,
    TierBusyError,
    TierCapabilityError,
    TierContextError,
    TierError,
    TierKeyError,
    TierRequestError,
    TierUnavailableError,
)
from tiers.remote.openai_format import parse_error, wait_in
from tiers.remote.remote_tier import RemoteTier
from tiers.tier import GenerationRequest, Usage

TOOLING = Tooling(tools=(Tool(name="get_weather"),))


def forms(case: Case) -> list[bool]:
    """Whether it is whole, for each of its forms."""
    return [whole for whole, body in ((False, case.stream), (True, case.whole)) if body is not None]


async def send(call: Call, case: Case) -> None:
    """Answer as `case` does."""
    whole = not (":stream" in call.path or call.path.endswith("-stream") or call.body.get("stream"))
    body = case.whole if whole else case.stream
    await call.begin(200, case.types[whole])
    await call.send(body if isinstance(body, bytes) else json.dumps(body).encode())


async def answered(case: Case, whole: bool, **fields: Any) -> tuple[list[CollectedChoice], Usage]:
    """Return the choices of a tier of the server, and the usage."""
    return await answered_to(case, chat(whole=whole, **({"max_tokens": 400, "tooling": TOOLING} | fields)))


async def answered_to(case: Case, request: GenerationRequest) -> tuple[list[CollectedChoice], Usage]:
    """Like `answered`, to this request."""
    async with LoopbackServer(lambda call: send(call, case)) as server:
        kind = "openai-provider" if case.kind == "responses" else case.kind
        own = {"responses": "always"} if case.kind == "responses" else {}
        tier = RemoteTier(remote_spec(server.base_url, kind=kind, api_key_env="K", **own), environ={"K": "k"})
        choices = [CollectedChoice() for _ in range(request.n)]
        async for delta in tier.generate(request):
            choices[delta.index].take(delta)
        await tier.close()
    assert choices[0].usage is not None
    return choices, choices[0].usage


@pytest.mark.parametrize(
    ("case", "whole"),
    [
        pytest.param(case, whole, id=f"{case.name}, {'whole' if whole else 'streamed'}")
        for case in CASES
        for whole in forms(case)
    ],
)
async def test_an_answer_means_what_it_plainly_says(case: Case, whole: bool) -> None:
    (choice,), _ = await answered(case, whole)
    meant = case.calls[:1] if whole and case.kind == "gemini" else case.calls
    assert (choice.content, choice.refusal, choice.reasoning) == (case.text, case.refusal, case.reasoning)
    assert [(one.name, json.loads(one.arguments)) for one in choice.tool_calls] == meant
    ids = [one.id for one in choice.tool_calls]
    assert all(ids)
    assert len({*ids}) == len(ids)
    assert choice.finish_reason == case.finish
    assert [one.url for one in choice.annotations] == ([case.cited] if case.cited else [])


@pytest.mark.parametrize("whole", [False, True])
@pytest.mark.parametrize("kind", ["openai", "gemini"])
async def test_images_that_a_model_made_are_passed_on(kind: str, whole: bool) -> None:
    image = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AA=="}}
    part = {"inlineData": {"mimeType": "image/png", "data": "AA=="}}
    event = gemini_event(part, part | {"thought": True}, part, finish="STOP")
    forms = {
        "openai": (chunks({"images": [image]}, {"content": [image]}), message(images=[image, image])),
        "gemini": (gemini_stream([event]), event),
    }
    (choice,), _ = await answered(Case("", *forms[kind], kind=kind), whole)
    (state,) = collected_state(choice)
    assert (state.type, json.loads(state.json), choice.finish_reason) == ("images", [image, image], "stop")
    assert kept_state(choice) is None


@pytest.mark.parametrize("whole", [False, True])
async def test_audio_that_a_model_made_is_passed_on_in_one_piece(whole: bool) -> None:
    said = {"id": "audio_1", "data": "AAECAwQ=", "transcript": "Hello", "expires_at": 9}
    pieces = [{"id": "audio_1", "transcript": "Hel"}, {"data": "AAE="}, {"data": "AgME", "transcript": "lo"}]
    streamed = chunks({"content": None}, *({"audio": piece} for piece in pieces), {"audio": {"expires_at": 9}})
    (choice,), _ = await answered(Case("", streamed, message(content=None, audio=said)), whole)
    (state,) = collected_state(choice)
    assert (state.type, json.loads(state.json), choice.finish_reason) == ("audio", said, "stop")
    assert kept_state(choice) is None


ANTHROPIC_COUNTS = [
    ({"input_tokens": 300}, {}),
    ({"input_tokens": 300}, {"input_tokens": 0}),
    ({"input_tokens": 0}, {"input_tokens": 300}),
    ({"input_tokens": 100, "cache_read_input_tokens": 200}, {"input_tokens": 100}),
    ({"input_tokens": 100, "cache_read_input_tokens": 200}, {"input_tokens": 0, "cache_read_input_tokens": 0}),
    ({"input_tokens": 0}, {"input_tokens": 100, "cache_read_input_tokens": 200}),
]


@pytest.mark.parametrize(("start", "end"), ANTHROPIC_COUNTS)
async def test_counts_of_a_messages_end_add_to_those_of_its_start(start: Any, end: Any) -> None:
    events = [
        {"type": "message_start", "message": {"usage": start | {"output_tokens": 1}}},
        {"type": "content_block_delta", "delta": {"text": "Hi"}},
        {"type": "message_delta", "delta": {"stop_reason": "end_turn"}, "usage": end | {"output_tokens": 8}},
        {"type": "message_stop"},
    ]
    _, usage = await answered(Case("", raw_chunks(*events, end=b""), kind="anthropic"), False, text="word " * 300)
    cached = 200 if "cache_read_input_tokens" in start | end else 0
    assert (usage.prompt_tokens, usage.cached_tokens, usage.completion_tokens) == (300, cached, 8)


COUNTS: list[tuple[Any, Usage]] = [
    ({"prompt_tokens": 4000.0, "completion_tokens": "8"}, Usage(prompt_tokens=4000, completion_tokens=8)),
    ({"input_tokens": 4000, "output_tokens": 8}, Usage(prompt_tokens=4000, completion_tokens=8)),
    *(
        (
            {"prompt_tokens": 4000, "completion_tokens": 8} | cached,
            Usage(prompt_tokens=4000, completion_tokens=8, cached_tokens=3900),
        )
        for cached in (
            {"cached_tokens": 3900},
            {"num_cached_tokens": 3900},
            {"cache_read_input_tokens": 3900, "prompt_tokens_details": None},
            {"prompt_cache_hit_tokens": 3900, "prompt_cache_miss_tokens": 100},
            {"prompt_tokens_details": {"cached_tokens": 3900.0}, "completion_tokens_details": 0},
            {"prompt_tokens_details": {"cache_read_tokens": 3900}},
            {"input_tokens_details": {"cached_tokens": 3900}},
        )
    ),
    *(
        (
            {"prompt_tokens": 100, "completion_tokens": 8} | more,
            Usage(prompt_tokens=4000, completion_tokens=8, cached_tokens=3900),
        )
        for more in (
            {"cache_read_input_tokens": 3900},
            {"cache_read_input_tokens": 3900, "total_tokens": 4008},
            {"prompt_tokens_details": {"cached_tokens": 3900}, "total_tokens": 108},
        )
    ),
    *(
        (
            {"prompt_tokens": 4000, "completion_tokens": 8} | cost,
            Usage(prompt_tokens=4000, completion_tokens=8, cost_usd=0.5),
        )
        for cost in (
            {"cost": 0.5},
            {"cost": {"total_cost": 0.5, "request_cost": 0.4}},
            {"cost": {"total": 0.5}},
            {"total_cost": 0.5},
            {"estimated_cost": 0.5},
            {"cost_in_usd_ticks": 5_000_000_000},
        )
    ),
    (
        {
            "prompt_tokens": 4000,
            "completion_tokens": 8,
            "cost": 0.5,
            "is_byok": True,
            "cost_details": {"upstream_inference_cost": 2},
        },
        Usage(prompt_tokens=4000, completion_tokens=8, cost_usd=2.5),
    ),
    ({"prompt_tokens": 4000, "completion_tokens": 8, "cost": -1}, Usage(prompt_tokens=4000, completion_tokens=8)),
]


@pytest.mark.parametrize(("reported", "billed"), COUNTS)
@pytest.mark.parametrize("where", ["whole", "stream", "choice", "before nothing"])
async def test_counts_are_read_by_all_their_names(reported: Any, billed: Usage, where: str) -> None:
    # Half of the text's bytes are tokens at least.
    start = {"choices": [{"delta": {"content": "Hello"}}]}
    ending = {"choices": [{"delta": {}, "finish_reason": "stop"}]}
    own = {"choices": [ending["choices"][0] | {"usage": reported}]}
    nothing = {"choices": [], "usage": {"prompt_tokens": None, "completion_tokens": None}}
    streams = {
        "stream": raw_chunks(start, ending, {"choices": [], "usage": reported}),
        "choice": raw_chunks(start, own),
        "before nothing": raw_chunks(start, ending, {"choices": [], "usage": reported}, nothing),
    }
    case = Case("counts", streams.get(where), message(content="Hello", usage=reported))
    _, usage = await answered(case, where == "whole", prompt=None)
    assert usage.completion_tokens == billed.completion_tokens
    assert usage.cost_usd == billed.cost_usd
    # The prompt is bounded by what a prompt of this size may have.
    assert usage.cached_tokens == min(billed.cached_tokens, usage.prompt_tokens)


@pytest.mark.parametrize(
    "told",
    [
        {"x_groq": {"id": "req_1", "usage": {"prompt_tokens": 20, "completion_tokens": 8}}},
        {"timings": {"prompt_n": 4, "cache_n": 16, "predicted_n": 8, "predicted_ms": 90.5}},
    ],
)
async def test_counts_of_a_server_without_usage_are_read(told: Any) -> None:
    start = {"choices": [{"delta": {"content": "Hello there, all of you"}}]}
    ending = {"choices": [{"delta": {}, "finish_reason": "stop"}]} | told
    _, usage = await answered(Case("counts", raw_chunks(start, ending)), whole=False)
    assert (usage.prompt_tokens, usage.completion_tokens) == (20, 8)
    assert usage.cached_tokens == told.get("timings", {}).get("cache_n", 0)


@pytest.mark.parametrize(
    ("told", "thought", "written"),
    [
        ({"output_tokens_details": {"reasoning_tokens": 5}}, 5, (0, 0)),
        ({"cache_creation_input_tokens": 6, "cache_creation": {"ephemeral_1h_input_tokens": 6}}, 0, (6, 6)),
        (
            {
                "prompt_tokens_details": {
                    "cache_creation_tokens": 6,
                    "cache_creation_token_details": {"ephemeral_1h_input_tokens": 4},
                }
            },
            0,
            (6, 4),
        ),
    ],
)
async def test_what_counts_say_of_thoughts_and_of_caches_for_an_hour_is_billed(
    told: Any, thought: int, written: tuple[int, int]
) -> None:
    usage = USAGE | told
    start = {"choices": [{"delta": {"content": "Hello there, all of you"}, "finish_reason": "stop"}]}
    zeros = {"choices": [], "usage": dict.fromkeys(USAGE, 0)}
    stream = raw_chunks(start, {"choices": [], "usage": usage}, zeros)
    _, billed = await answered(Case("", stream, message(content="Hello there", usage=usage)), whole=False)
    assert (billed.prompt_tokens, billed.completion_tokens) == (20, 8), "zeros after the counts say nothing"
    assert billed.reasoning_tokens == thought
    assert (billed.cache_write_tokens, billed.cache_write_1h_tokens) == written


@pytest.mark.parametrize(
    "reported", [{"prompt_tokens": None, "completion_tokens": None}, {"prompt_tokens_details": {}}, 7]
)
async def test_counts_that_say_nothing_are_estimated(reported: Any) -> None:
    _, usage = await answered(Case("", None, message(content="Hello there", usage=reported)), whole=True)
    assert (usage.completion_tokens, usage.prompt_tokens > 0) == (3, True)


@pytest.mark.parametrize(
    "stream",
    [
        DONE,
        chunks(finish=None),
        chunks({"content": "Hi"}, finish=None, end=b""),
        chunks({"content": "Hi"}, finish=None, end=raw_chunks({"choices": [], "usage": USAGE}, end=b"")),
        raw_chunks({"choices": [{"delta": {"content": "Hi"}}]}, {"object": "error", "message": "died", "code": 500}),
        raw_chunks({"choices": [{"delta": {"content": "Hi"}}]}, {"detail": "died"}),
        b"data: 7\n\n",
        b"data: {\n\n",
        b"data: {\n\n" + chunks({"content": "Hi"}),
        chunks({"content": "Hi"}, finish=None, end=b'data: {"choices": [\n\n') + DONE,
        b'{"choices": []}',
        raw_chunks({"choices": [{"delta": {"content": "Hi"}, "error": {"message": "died"}, "finish_reason": "error"}]}),
    ],
)
async def test_what_says_nothing_or_breaks_off_is_an_error(stream: bytes) -> None:
    with pytest.raises(TierError):
        await answered(Case("", stream), whole=False)


FULL = b'{"code": 400, "message": "the request exceeds the available context size"}'


@pytest.mark.parametrize(
    ("kind", "stream", "means"),
    [
        ("openai", b"error: " + FULL + b"\n\n" + DONE, TierContextError),
        ("openai", chunks({"content": "Hi"}, finish=None, end=b"") + b"error: " + FULL, TierContextError),
        ("openai", b"data: Error: Too many requests\n\n", TierBusyError),
        *((kind, b"event: error\ndata: Too many requests\n\n", TierBusyError) for kind in ("openai", "gemini")),
        *((kind, b"event: error\ndata: Too many requests\n\n", TierBusyError) for kind in ("anthropic", "responses")),
        (
            "responses",
            b'data: {"type": "response.completed", "response": {"status": "completed"}}\n\n',
            TierAnswerError,
        ),
    ],
)
async def test_a_failure_is_one_in_any_form_of_event(kind: str, stream: bytes, means: type[TierError]) -> None:
    with pytest.raises(TierError) as raised:
        await answered(Case("", stream, kind=kind), whole=False)
    assert type(raised.value) is means


async def test_a_connection_that_breaks_after_all_was_said_costs_no_answer() -> None:
    async def play(call: Call) -> None:
        await call.begin_chunked()
        await call.chunked_event({"choices": [{"delta": {"content": "Hi"}, "finish_reason": "stop"}]})

    async with LoopbackServer(play) as server:
        tier = RemoteTier(remote_spec(server.base_url))
        (answer,), _ = await collect(tier, chat())
        await tier.close()
    assert (answer.text, answer.finish_reason) == ("Hi", "stop")


@pytest.mark.parametrize("whole", [False, True])
async def test_choices_that_a_server_leaves_out_are_asked_for_again(whole: bool) -> None:
    case = Case("", chunks({"content": "Hi"}), message(content="Hi"))
    async with LoopbackServer(lambda call: send(call, case)) as server:
        tier = RemoteTier(remote_spec(server.base_url))
        for asked in (3, 6):
            answers, usage = await collect(tier, chat(n=3, whole=whole))
            assert [answer.text for answer in answers] == ["Hi"] * 3
            assert len(server.calls) == asked
            assert usage.prompt_tokens > 3
        # It is known now that each choice is a request.
        assert [call.body.get("n", 1) for call in server.calls] == [3, 1, 1, 1, 1, 1]
        await tier.close()


async def test_choices_that_were_not_asked_for_are_dropped() -> None:
    two = message(content="Hi")
    two["choices"].append({"index": 1, "message": {"content": "Ho"}, "finish_reason": "stop"})
    (choice,), _ = await answered(Case("", None, two), whole=True)
    assert choice.text == "Hi"


LIMITED = {"message": "Rate limit reached. Please try again in 1m2.5s.", "type": "requests"}
FAILURES: list[tuple[str, Any, type[TierError], float]] = [
    ("openai", {"error": {"code": 429, "message": "Rate limit exceeded"}}, TierBusyError, 1.0),
    ("openai", {"error": LIMITED | {"code": "rate_limit_exceeded"}}, TierBusyError, 62.5),
    ("openai", {"status": "449", "msg": "You exceeded your current rate limit"}, TierBusyError, 1.0),
    ("openai", {"base_resp": {"status_code": 1002, "status_msg": "rate limit"}}, TierBusyError, 1.0),
    ("openai", {"base_resp": {"status_code": 1008, "status_msg": "insufficient balance"}}, TierKeyError, 1.0),
    ("openai", {"error": {"code": 401, "message": "No auth credentials found"}}, TierKeyError, 1.0),
    ("openai", {"error": {"code": 502, "message": "Provider returned error"}}, TierAnswerError, 0.0),
    ("openai", {"error": {"code": 400, "message": "temperature: range: 0..1"}}, TierRequestError, 0.0),
    ("openai", {"error": {"code": 400, "message": "maximum context length is 9 tokens"}}, TierContextError, 0.0),
    ("openai", {"error": {"code": "x", "message": "died"}}, TierAnswerError, 0.0),
    ("openai", {"error": "Too many requests", "code": 429, "retry_after": 7}, TierBusyError, 7.0),
    (
        "openai",
        {"error": {"message": "Slow down", "code": 429, "metadata": {"retry_after_ms": 1500}}},
        TierBusyError,
        1.5,
    ),
    ("openai", {"error": [{"msg": "maximum context length is 9 tokens"}]}, TierContextError, 0.0),
    ("openai", {"error_code": "BAD_REQUEST", "error_msg": "prompt is too long"}, TierContextError, 0.0),
    ("openai", {"data": None, "code": 429, "msg": "Rate limited, wait 2 minutes"}, TierBusyError, 120.0),
    ("openai", {"errorCode": 500, "errorMessage": "died"}, TierAnswerError, 0.0),
    ("openai", {"error": {"code": "1302", "message": "您的账户已达到速率限制，请您控制请求频率"}}, TierBusyError, 1.0),
    ("openai", {"error_code": 18, "error_msg": "Open api qps request limit reached"}, TierBusyError, 1.0),
    ("openai", {"errors": [{"code": 3040, "message": "Capacity temporarily exceeded"}]}, TierBusyError, 1.0),
    ("openai", {"error": {"code": "insufficient_user_quota", "message": "用户额度不足"}}, TierKeyError, 1.0),
    ("openai", {"error": {"message": "No available channel for model x"}}, TierUnavailableError, 1.0),
    ("anthropic", {"code": 500, "msg": "404 NOT_FOUND", "success": False}, TierAnswerError, 0.0),
    ("anthropic", {"code": 1302, "msg": "Rate limit reached for requests", "success": False}, TierBusyError, 1.0),
    ("anthropic", {"error": {"code": "1113", "message": "Insufficient balance."}}, TierKeyError, 1.0),
    ("anthropic", {"detail": "Invalid API key"}, TierKeyError, 1.0),
    ("gemini", {"message": "Too many requests", "code": 429}, TierBusyError, 1.0),
    ("gemini", [{"error": {"code": 503, "message": "The model is overloaded."}}], TierBusyError, 1.0),
    ("bedrock", {"message": "Too many requests"}, TierBusyError, 1.0),
    ("responses", {"error": {"code": "rate_limit_exceeded", "message": "try again in 6.5s"}}, TierBusyError, 6.5),
    ("responses", {"type": "error", "code": "rate_limit_exceeded", "message": "slow"}, TierBusyError, 1.0),
    ("responses", {"detail": "Rate limited"}, TierBusyError, 1.0),
    ("responses", {"status": "cancelled", "output": []}, TierAnswerError, 0.0),
    ("openai", {"fault": {"faultstring": "Rate limit quota violation"}}, TierBusyError, 1.0),
    ("anthropic", {"type": "error", "error": {"type": "overloaded_error", "message": "Overloaded"}}, TierBusyError, 1),
    ("anthropic", {"type": "error", "error": {"type": "authentication_error", "message": "No"}}, TierKeyError, 1.0),
    ("gemini", {"error": {"code": 429, "message": "Quota", "status": "RESOURCE_EXHAUSTED"}}, TierBusyError, 1.0),
    ("gemini", {"error": {"code": 503, "message": "Died."}}, TierAnswerError, 0.0),
    ("openai", {"error": {"code": 502, "message": "Upstream overloaded"}}, TierAnswerError, 0.0),
]


@pytest.mark.parametrize(
    ("said", "seconds"),
    [
        ("Please try again in 1m2.5s.", 62.5),
        ("Retry after 20 seconds", 20.0),
        ("Please wait 2 minutes, then retry.", 120.0),
        ("try again in about 1 hour", 300.0),
        ("Please retry in 350 ms", 0.35),
        ("The limit resets in 1 min 5 sec", 65.0),
        ("Please try again in 5 attempts", None),
        ("Please wait before trying again.", None),
    ],
)
def test_waits_are_read_in_any_words(said: str, seconds: float | None) -> None:
    assert wait_in(said) == seconds


# Later than anything is waited for.
LATER = datetime.now(UTC) + timedelta(days=1)
UNIX = int(LATER.timestamp())
REQUESTS = {"x-ratelimit-remaining-requests": "0", "x-ratelimit-reset-requests": "20s"}
TOKENS = {"x-ratelimit-remaining-tokens": "9", "x-ratelimit-reset-tokens": "6m0s"}


@pytest.mark.parametrize(
    ("headers", "said", "seconds"),
    [
        (REQUESTS | TOKENS, {}, 20),
        (REQUESTS | TOKENS | {"x-ratelimit-remaining-tokens": "0"}, {}, 300),
        (REQUESTS | {"retry-after": "5"}, {}, 5),
        (REQUESTS, {"retry_after": 7}, 7),
        (TOKENS, {}, 1),
        ({"anthropic-ratelimit-requests-reset": LATER.strftime("%Y-%m-%dT%H:%M:%SZ")}, {}, 300),
        ({"ratelimit-reset": "30"}, {}, 30),
        ({"x-ratelimit-reset": str(UNIX)}, {}, 300),
        ({"x-ratelimit-reset": f"{UNIX}000"}, {}, 300),
        ({"x-ratelimit-reset-after": "7.5"}, {}, 7.5),
        ({"x-ratelimit-reset": "soon"}, {}, 1),
        ({"x-rate-limit-reset": "20"}, {}, 20),
        ({"x-retry-after": "7"}, {}, 7),
        ({"x-ratelimit-retry-after": "7"}, {}, 7),
        ({"x-ms-retry-after-ms": "1500"}, {}, 1.5),
        ({"ratelimit": "limit=10, remaining=0, reset=5"}, {}, 5),
        ({"ratelimit": '"api";r=9;t=5, "pages";r=0;t=55'}, {}, 55),
        ({}, {"metadata": {"headers": {"X-RateLimit-Reset": f"{UNIX}000"}}}, 300),
        ({}, {"resets_in_seconds": 120}, 120),
        ({}, {"resets_at": UNIX}, 300),
        ({}, {"reset_at": LATER.isoformat()}, 300),
        ({}, {"details": [{"retryDelay": "34.5s"}]}, 34.5),
    ],
)
async def test_a_limit_that_says_when_it_is_lifted_is_waited_for(headers: Any, said: Any, seconds: float) -> None:
    body = json.dumps({"error": {"message": "no"} | said})

    async def play(call: Call) -> None:
        lines = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
        await call.send(f"HTTP/1.1 429 X\r\n{lines}connection: close\r\n\r\n{body}".encode())

    async with LoopbackServer(play) as server:
        tier = RemoteTier(remote_spec(server.base_url))
        with pytest.raises(TierBusyError) as raised:
            await collect(tier, chat())
        await tier.close()
    assert raised.value.retry_after_seconds == seconds


@pytest.mark.parametrize(
    ("said", "shown"),
    [
        # Apigee's
        ({"fault": {"faultstring": "Policy denied", "detail": {"errorcode": "steps.x.Denied"}}}, ["Policy denied"]),
        # AWS API Gateway's, Kong's
        ({"Message": "User is not authorized"}, ["User is not authorized"]),
        # WSO2's
        ({"code": "900901", "message": "Invalid Credentials", "description": "Access failure"},
         ["Invalid Credentials", "Access failure"]),
        # OAuth's (RFC 6749, 5.2)
        ({"error": "invalid_token", "error_description": "It has expired"}, ["invalid_token", "It has expired"]),
        # Spring's
        ({"status": 400, "error": "Bad Request", "path": "/v1/chat/completions"}, ["Bad Request"]),
        ({"error": "Bad Request", "message": "Invalid", "errors": [{"field": "model", "defaultMessage": "is blank"}]},
         ["is blank", "model"]),
        # RFC 9457, ASP.NET's and Quarkus' of that form
        ({"title": "Bad Request", "detail": "No such thing", "status": 400}, ["No such thing"]),
        ({"title": "Invalid", "errors": {"messages[0]": ["It is required."]}}, ["Invalid", "messages[0]", "required"]),
        ({"title": "Violation", "violations": [{"field": "a.b", "message": "is null"}]}, ["Violation", "a.b: is null"]),
        # Google's
        ({"error": {"code": 400, "message": "Invalid argument.", "details": [
            {"@type": "BadRequest", "fieldViolations": [{"field": "contents[0]", "description": "has no parts"}]}]}},
         ["Invalid argument.", "contents[0]: has no parts"]),
        # Nest's
        ({"statusCode": 400, "message": ["a must be a text", "b is unknown"], "error": "Bad Request"},
         ["a must be a text", "b is unknown"]),
        # Micronaut's
        ({"message": "Bad Request", "_embedded": {"errors": [{"message": "body not given"}]}}, ["body not given"]),
        # Express', S3's, Envoy's
        ("<html><style>a {}</style><title>Error</title><pre>Cannot POST &quot;/v1&quot;</pre>", ['Cannot POST "/v1"']),
        ("<?xml version='1.0'?><Error><Code>Denied</Code><Message>None</Message></Error>", ["Denied", "None"]),
        ("upstream connect error or disconnect/reset before headers", ["upstream connect error"]),
    ],
)  # fmt: skip
def test_the_words_of_an_error_are_shown_whatever_is_around_them(said: Any, shown: list[str]) -> None:
    message = parse_error((said if isinstance(said, str) else json.dumps(said)).encode()).message
    assert [words for words in shown if words not in message] == []


async def test_a_page_of_a_proxy_is_shown_by_its_words() -> None:
    async def play(call: Call) -> None:
        await call.begin(502, "text/html")
        await call.send(b"<html><head><title>\n502 Bad Gateway</title></head><body><h1>Sorry</h1></body></html>")

    async with LoopbackServer(play) as server:
        tier = RemoteTier(remote_spec(server.base_url))
        with pytest.raises(TierUnavailableError, match=r"answered 502: 502 Bad Gateway - Sorry$"):
            await collect(tier, chat())
        await tier.close()


@pytest.mark.parametrize("whole", [False, True])
@pytest.mark.parametrize(("kind", "said", "means", "seconds"), FAILURES)
async def test_a_failure_within_an_answer_means_what_its_status_would(
    kind: str, said: Any, means: type[TierError], seconds: float, whole: bool
) -> None:
    stream = raw_chunks({"type": "response.done", "response": said} if "output" in said else said, end=b"")
    if kind == "bedrock":
        stream = event_stream_message("throttlingException", said, "exception")
    with pytest.raises(TierError) as raised:
        await answered(Case("", stream, said, kind=kind), whole)
    assert type(raised.value) is means
    assert getattr(raised.value, "retry_after_seconds", 0.0) == seconds


@pytest.mark.parametrize(
    ("status", "said", "means"),
    [
        (400, {"error": {"message": "Access denied", "code": "Arrearage"}}, TierKeyError),
        (410, {"error": {"message": "The model was retired."}}, TierUnavailableError),
        (424, {"message": "The model failed."}, TierUnavailableError),
        (498, {"error": {"message": "capacity exceeded"}}, TierBusyError),
        (499, {"error": "client closed"}, TierUnavailableError),
        (400, {"error": {"error": {"message": "twice"}}}, TierRequestError),
        (400, {"error": {"code": "rate_limit_exceeded", "message": "slow"}}, TierBusyError),
        (400, {"code": "invalid argument", "error": "Incorrect API key provided: x."}, TierKeyError),
        (429, {"error": {"code": "insufficient_quota", "message": "You exceeded your quota"}}, TierKeyError),
        (
            403,
            {"code": "denied", "error": "Content violates usage guidelines. SAFETY_CHECK_TYPE_BIO"},
            TierRequestError,
        ),
        (422, {"detail": [{"type": "missing", "loc": ["body", "model"], "msg": "Field required"}]}, TierRequestError),
        (500, {"error": True, "message": "died"}, TierUnavailableError),
        (301, {"message": "Moved Permanently"}, TierUnavailableError),
        (429, {"error": {"code": "1113", "message": "Insufficient balance or no resource package."}}, TierKeyError),
        (429, {"error": {"code": "1113", "message": "您的账户已欠费，请充值后重试"}}, TierKeyError),
        (429, {"error": {"message": "Your account org-x is suspended, please check your plan."}}, TierKeyError),
        (400, {"error": {"message": "You have exhausted your credit balance"}}, TierKeyError),
        (400, {"error": {"code": 400, "message": "API key expired. Please renew the API key."}}, TierKeyError),
        (500, {"error": {"message": "no", "code": "invalid_api_key"}}, TierKeyError),
        (429, {"error": {"message": "You exceeded your current quota, check your plan and billing."}}, TierBusyError),
        (400, {"error": {"message": "The model is overloaded. Please try again later."}}, TierBusyError),
        (500, {"error": {"message": "Overloaded", "type": "overloaded_error"}}, TierBusyError),
        (503, {"error": {"message": "The model is overloaded.", "status": "UNAVAILABLE"}}, TierBusyError),
        (400, {"message": "Too many requests, please wait before trying again."}, TierBusyError),
        (403, {"message": "Rate exceeded"}, TierBusyError),
        (400, {"error": {"message": "It is gone.", "code": "model_decommissioned"}}, TierUnavailableError),
        (400, {"error": {"message": "Model Not Exist"}}, TierUnavailableError),
        (400, {"error": {"message": "invalid model ID"}}, TierUnavailableError),
        (400, {"error": {"message": "a/b is not a valid model ID", "code": 400}}, TierUnavailableError),
        (400, {"error": {"code": "1211", "message": "模型不存在，请检查模型代码。"}}, TierUnavailableError),
        (400, {"error": {"message": "User location is not supported for the API use."}}, TierUnavailableError),
        (404, {"error": {"message": "No endpoints found that support image input"}}, TierCapabilityError),
        (400, {"error": {"message": "unknown variant `image_url`, expected `text`"}}, TierCapabilityError),
        (400, {"error": {"message": "At most 0 image(s) may be provided in one prompt."}}, TierCapabilityError),
        (400, {"error": {"message": "illegal base64 data at input byte 5"}}, TierCapabilityError),
    ],
)
async def test_less_usual_statuses_are_the_servers_or_the_requests(
    status: int, said: Any, means: type[TierError]
) -> None:
    async with LoopbackServer(lambda call: call.reply(status, said)) as server:
        tier = RemoteTier(remote_spec(server.base_url))
        with pytest.raises(TierError) as raised:
            await collect(tier, chat())
        await tier.close()
    assert type(raised.value) is means
    assert "{" not in str(raised.value)
    assert "True" not in str(raised.value)


@pytest.mark.parametrize("whole", [False, True])
async def test_json_that_is_whole_is_an_answer_where_its_server_promised_more(whole: bool) -> None:
    body = json.dumps(message(content="Hi")).encode()

    async def play(call: Call) -> None:
        head = f"HTTP/1.1 200 X\r\ncontent-type: application/json\r\ncontent-length: {len(body) + 9}\r\n\r\n"
        await call.send(head.encode() + body)

    async with LoopbackServer(play) as server:
        tier = RemoteTier(remote_spec(server.base_url))
        (answer,), _ = await collect(tier, chat(whole=whole))
        await tier.close()
    assert answer.text == "Hi"


async def test_blanks_that_keep_a_connection_open_are_no_answer() -> None:
    async def play(call: Call) -> None:
        await call.begin_chunked("application/json")
        for part in (b" ", b"\n", json.dumps(message(content="Hi")).encode()):
            await call.send(b"%x\r\n%b\r\n" % (len(part), part))
        await call.end_chunked()

    async with LoopbackServer(play) as server:
        tier = RemoteTier(remote_spec(server.base_url))
        (answer,), _ = await collect(tier, chat())
        await tier.close()
    assert answer.text == "Hi"


async def test_thoughts_are_left_in_a_text_that_is_scored_or_goes_on_from_the_callers() -> None:
    case = Case("", None, message(content="<think>Hm.</think>Hi"))
    scored = chat(whole=True, sampling=SamplingParams(logprobs=0))
    turns = [*(scored.messages or ()), Turn.of("assistant", "So")]
    continued = msgspec.structs.replace(scored, sampling=SamplingParams(), messages=turns)
    for request in (scored, continued):
        (choice,), _ = await answered_to(case, request)
        assert (choice.content, choice.reasoning) == ("<think>Hm.</think>Hi", "")


OPENED = ("Hm", ".", "</th", "ink>", "\n\nHi")


async def streams(model: str, *answers: tuple[str, ...], **fields: Any) -> list[tuple[str, str]]:
    """The text and the thoughts of each of these streams, which come one after the other from one tier."""
    left = list(answers)

    async def play(call: Call) -> None:
        await call.begin()
        await call.send(chunks(*({"content": piece} for piece in left.pop(0))))

    async with LoopbackServer(play) as server:
        tier = RemoteTier(remote_spec(server.base_url, model=model))
        told = []
        for _ in answers:
            choice = CollectedChoice()
            async for delta in tier.generate(chat(max_tokens=400, **fields)):
                choice.take(delta)
            told.append((choice.content, choice.reasoning))
        await tier.close()
    return told


async def test_thoughts_that_were_opened_in_the_prompt_are_known_by_the_model_or_from_an_earlier_answer() -> None:
    assert await streams("QwQ-32B", OPENED) == [("Hi", "Hm.")]
    # The first stream of an unknown model has said its thought when the tag comes.
    assert await streams("m", OPENED, OPENED) == [("Hm.</think>\n\nHi", ""), ("Hi", "Hm.")]


async def test_an_answer_without_the_awaited_end_of_a_thought_is_text_and_the_next_is_no_thought() -> None:
    odd = tuple("`</think>` " * 3)
    assert await streams("QwQ-32B", odd, odd) == [("".join(odd), ""), ("".join(odd), "")]
    many = ("Hm. ", "`</think>`" * 300)
    assert await streams("QwQ-32B", many) == [("".join(many), "")]
    # By its name alone, nothing is said before it is known what it is.
    assert await streams("QwQ-32B", ("Hi", " there"), ("Hi",)) == [("Hi there", ""), ("Hi", "")]
    assert await streams("QwQ-32B", OPENED, ("Hi", " there")) == [("Hi", "Hm."), ("Hi there", "Hi there")]
    assert await streams("QwQ-32B", ("<think>Hm.</think>Hi",), ("Hi",)) == [("Hi", "Hm."), ("Hi", "")]


@pytest.mark.parametrize("text", ["<thinking>Hm.</thinking>Hi", '<tool_call>\n{"name": "get_weather"}\n</tool_call>'])
async def test_tags_that_the_caller_asked_for_are_text(text: str) -> None:
    asked = f"Begin with {text[: text.index('>') + 1]}."
    assert await streams("m", (text[:8], text[8:]), text=asked, tooling=TOOLING) == [(text, "")]
    assert await streams("m", (text,), text="Begin.", tooling=TOOLING) != [(text, "")]


@pytest.mark.parametrize(
    "told",
    [
        {"content": [{"token": "Hi", "logprob": -0.5}, {"token": "!", "logprob": float("-inf")}]},
        {"content": [{"token": "Hi", "logprob": "-0.5"}, {"token": "!", "logprob": None}]},
        [{"token": "Hi", "logprob": -0.5, "top_logprobs": None}, {"token": "!", "logprob": -9999.0}],
    ],
)
async def test_scores_that_json_does_not_have_keep_their_tokens(told: Any) -> None:
    whole = message(content="Hi!")
    whole["choices"][0]["logprobs"] = told
    (choice,), _ = await answered(Case("", None, whole), whole=True, sampling=SamplingParams(logprobs=0))
    assert [(one.token, one.logprob) for one in choice.logprobs] == [("Hi", -0.5), ("!", -9999.0)]


async def test_an_answer_with_another_status_of_success_is_one() -> None:
    async with LoopbackServer(lambda call: call.reply(201, message(content="Hi"))) as server:
        tier = RemoteTier(remote_spec(server.base_url))
        (answer,), _ = await collect(tier, chat(whole=True))
        await tier.close()
    assert answer.text == "Hi"
