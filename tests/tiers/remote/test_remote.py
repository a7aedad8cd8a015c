"""The remote tier against servers that behave well, badly and not at all, over real sockets."""

import asyncio
import json
import logging
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import aclosing, asynccontextmanager
from typing import Any

import httpx
import pytest

from inference_core.protocol import SamplingParams
from tests.support.upstream import Call, LoopbackServer
from tests.tiers.tier_world import GREEDY, chat, collect, remote_spec, tier_spec
from tiers.conversation import Turn
from tiers.errors import TierAnswerError, TierBusyError, TierError, TierRequestError, TierUnavailableError
from tiers.remote.http_transport import HttpTransport
from tiers.remote.remote_tier import RemoteTier
from tiers.tier import GenerationRequest, TraceHeaders, Usage

KEY = "sk-very-secret"
DONE = b"data: [DONE]\n\n"


@asynccontextmanager
async def upstream(
    handler: Callable[[Call], Coroutine[Any, Any, None]], **remote: Any
) -> AsyncIterator[tuple[RemoteTier, LoopbackServer]]:
    async with LoopbackServer(handler) as server:
        tier = RemoteTier(remote_spec(server.base_url, **remote), environ={"THE_KEY": KEY})
        yield tier, server
        await tier.close()


async def hello(call: Call) -> None:
    await call.begin()
    await call.chunk("Hello", role="assistant")
    await call.chunk(finish="stop")
    await call.event({"choices": [], "usage": {"prompt_tokens": 7, "completion_tokens": 2}})
    await call.send(DONE)


async def failure(tier: RemoteTier, request: GenerationRequest | None = None) -> TierError:
    with pytest.raises(TierError) as error:
        await collect(tier, request or chat())
    return error.value


def refusing(status: int, payload: object) -> Callable[[Call], Coroutine[Any, Any, None]]:
    return lambda call: call.reply(status, payload)


async def test_only_what_was_asked_for_is_sent() -> None:
    async with upstream(hello) as (tier, server):
        await collect(tier, chat("Hi", sampling=SamplingParams(temperature=0.3, top_p=0.9), max_tokens=5))
    assert server.calls[0].path == "/v1/chat/completions"
    assert server.calls[0].body == {
        "model": "upstream",
        "messages": [{"role": "user", "content": "Hi"}],
        "stream": True,
        "stream_options": {"include_usage": True},
        "max_tokens": 5,
        "temperature": 0.3,
        "top_p": 0.9,
    }
    assert "authorization" not in server.calls[0].headers


@pytest.mark.parametrize("whole", [False, True])
async def test_through_httpx_which_serves_proxies_requests_and_answers_are_the_same(whole: bool) -> None:
    async def say(call: Call) -> None:
        choice = {"index": 0, "message": {"content": "Hello"}, "finish_reason": "stop"}
        await (call.reply(200, {"choices": [choice]}) if whole else hello(call))

    request = chat(whole=whole, trace=TraceHeaders("00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01", "a=b"))
    async with LoopbackServer(say) as server:
        spec = remote_spec(server.base_url, api_key_env="THE_KEY")
        tiers = [RemoteTier(spec, environ={"THE_KEY": KEY}, connect=connect) for connect in (HttpTransport, by_httpx)]
        answers = [await collect(tier, request) for tier in tiers]
        for tier in tiers:
            await tier.close()
    own, through_httpx = server.calls
    assert answers[0] == answers[1]
    assert (own.path, own.headers, own.body) == (through_httpx.path, through_httpx.headers, through_httpx.body)
    assert (own.headers["tracestate"], own.headers["authorization"]) == ("a=b", f"Bearer {KEY}")


def by_httpx(url: httpx.URL) -> httpx.AsyncBaseTransport:
    return httpx.AsyncHTTPTransport()


async def test_every_parameter_has_its_name_on_the_wire() -> None:
    sampling = SamplingParams(
        seed=3, presence_penalty=0.1, frequency_penalty=0.2, logit_bias={5: 1.0}, logprobs=2, top_k=4, min_p=0.1,
        repetition_penalty=1.1, min_tokens=2, ignore_eos=True, stop_token_ids=(9,),
    )  # fmt: skip
    request = GenerationRequest(
        request_id="r", messages=[Turn.of("user", "Hi", name="ann")], sampling=sampling, stop=("x",)
    )
    async with upstream(hello, max_tokens_field="max_completion_tokens", stream_usage=False) as (tier, server):
        await collect(tier, request)
    body = server.calls[0].body
    assert body["messages"] == [{"role": "user", "content": "Hi", "name": "ann"}]
    assert body["max_completion_tokens"] == tier_spec().default_max_tokens
    assert "stream_options" not in body
    expected = {
        "seed": 3, "presence_penalty": 0.1, "frequency_penalty": 0.2, "logit_bias": {"5": 1.0}, "logprobs": True,
        "top_logprobs": 2, "top_k": 4, "min_p": 0.1, "repetition_penalty": 1.1, "min_tokens": 2, "ignore_eos": True,
        "stop_token_ids": [9], "stop": ["x"],
    }  # fmt: skip
    assert body.items() >= expected.items()


async def test_a_raw_prompt_goes_to_completions_and_its_log_probabilities_come_back() -> None:
    async def complete(call: Call) -> None:
        await call.begin()
        logprobs = {"tokens": ["a", "b"], "token_logprobs": [None, -2.0], "top_logprobs": [None, {"b": -2.0}]}
        await call.event({"choices": [{"index": 0, "text": "ab", "logprobs": logprobs, "finish_reason": "length"}]})
        await call.send(DONE)

    request = GenerationRequest(request_id="r", prompt="Once", sampling=SamplingParams(logprobs=1), max_tokens=2)
    async with upstream(complete) as (tier, server):
        (answer,), _ = await collect(tier, request)
    assert server.calls[0].path == "/v1/completions"
    assert (server.calls[0].body["prompt"], server.calls[0].body["logprobs"]) == ("Once", 1)
    assert (answer.text, answer.finish_reason) == ("ab", "length")
    assert [(t.token, t.logprob, t.top) for t in answer.logprobs] == [("a", 0.0, []), ("b", -2.0, [("b", b"b", -2.0)])]


async def test_reasoning_usage_and_details_are_understood() -> None:
    async def think(call: Call) -> None:
        await call.begin()
        await call.chunk(reasoning_content="Hm. ")
        await call.chunk(reasoning="So.")
        await call.chunk("4", finish="stop")
        details = {"prompt_tokens_details": {"cached_tokens": 6}, "completion_tokens_details": {"reasoning_tokens": 3}}
        await call.event({"choices": [], "usage": {"prompt_tokens": 9, "completion_tokens": 5} | details})
        await call.send(DONE)

    async with upstream(think) as (tier, _):
        (answer,), usage = await collect(tier, chat())
    assert (answer.reasoning, answer.text) == ("Hm. So.", "4")
    assert usage == Usage(prompt_tokens=9, completion_tokens=5, cached_tokens=6, reasoning_tokens=3)


async def test_bytes_cut_anywhere_give_the_same_text() -> None:
    async def drip(call: Call) -> None:
        await call.begin()
        payload = json.dumps({"choices": [{"delta": {"content": "Grüße 🌍"}}]}, ensure_ascii=False).encode()
        for byte in b": hi\r\ndata: " + payload + b"\r\n\r\n":
            await call.send(bytes([byte]))
        await call.chunk(finish="stop")

    async with upstream(drip) as (tier, _):
        (answer,), _ = await collect(tier, chat())
    assert answer.text == "Grüße 🌍"


async def test_without_reported_usage_tokens_are_estimated_not_free() -> None:
    async def quiet(call: Call) -> None:
        await call.begin()
        await call.chunk("x" * 40, finish="stop")
        await call.send(DONE)

    async with upstream(quiet) as (tier, _):
        _, usage = await collect(tier, chat("y" * 80))
    assert (usage.prompt_tokens, usage.completion_tokens) == (24, 10)


async def test_finish_reasons_keep_their_meaning() -> None:
    reasons = {
        "stop": "stop",
        "length": "length",
        "content_filter": "content_filter",
        "other": "stop",
    }
    for theirs, ours in reasons.items():

        async def end(call: Call, reason: str = theirs) -> None:
            await call.begin()
            await call.chunk("x", finish=reason)

        async with upstream(end) as (tier, _):
            (answer,), _ = await collect(tier, chat())
        assert answer.finish_reason == ours


@pytest.mark.parametrize("status", [400, 422])
async def test_what_the_caller_did_wrong_is_the_callers_with_its_parameter(status: int) -> None:
    error = {"message": "too hot", "type": "invalid_request_error", "param": "temperature", "code": "range"}
    async with upstream(refusing(status, {"error": error})) as (tier, _):
        raised = await failure(tier)
        assert isinstance(raised, TierRequestError)
        assert (raised.param, raised.code) == ("temperature", "range")
        assert "too hot" in str(raised)
        assert tier.load().healthy


async def test_a_prompt_that_was_flagged_is_no_matter_of_the_key() -> None:
    error = {"message": 'x/y requires moderation. Your input was flagged for "violence".', "code": 403}
    async with upstream(refusing(403, {"error": error})) as (tier, _):
        assert isinstance(await failure(tier), TierRequestError)
        assert tier.load().healthy


@pytest.mark.parametrize("status", [401, 402, 403, 404])
async def test_what_is_the_operators_to_mend_makes_the_tier_unavailable_for_a_while(status: int) -> None:
    now = 100.0
    async with LoopbackServer(refusing(status, {"error": {"message": "no"}})) as server:
        tier = RemoteTier(remote_spec(server.base_url), cooldown_seconds=10, clock=lambda: now)
        raised = await failure(tier)
        assert isinstance(raised, TierUnavailableError)
        assert f"answered {status}" in str(raised)
        now += 6
        assert (tier.load().healthy, tier.load().down_seconds) == (False, 4)
        now += 4
        assert (tier.load().healthy, tier.load().down_seconds) == (True, 0)
        await tier.close()


@pytest.mark.parametrize("status", [429, 502, 503, 504, 524, 307])
async def test_a_server_that_cannot_answer_is_asked_again_after_longer_and_longer_pauses(status: int) -> None:
    now, is_up = 100.0, False
    refuse = refusing(status, {"error": {"message": "no"}})

    async def served(call: Call) -> None:
        await (call.say("fine") if is_up else refuse(call))

    async with LoopbackServer(served) as server:
        tier = RemoteTier(remote_spec(server.base_url), cooldown_seconds=10, clock=lambda: now)

        async def pauses(count: int) -> list[float]:
            nonlocal now
            seen = []
            for _ in range(count):
                # The second was sent before the pause.
                for raised in (await failure(tier), await failure(tier)):
                    assert isinstance(raised, TierUnavailableError)
                    assert f"answered {status}" in str(raised)
                seen.append(tier.load().down_seconds)
                now += seen[-1]
                assert tier.load().healthy
            return seen

        assert await pauses(6) == [1, 2, 4, 8, 10, 10]
        is_up = True
        await collect(tier, chat())
        is_up = False
        assert await pauses(2) == [1, 2]
        await tier.close()


@pytest.mark.parametrize("status", [0, 408, 424, 500])
async def test_one_request_that_a_server_cannot_bear_leaves_its_tier_to_all_others(status: int) -> None:
    now = 100.0
    refuse = refusing(status, {"error": {"message": "no"}})

    async def served(call: Call) -> None:
        if "poison" not in str(call.body):
            await call.say("fine")
        elif status:
            await refuse(call)

    async with LoopbackServer(served) as server:
        tier = RemoteTier(remote_spec(server.base_url), cooldown_seconds=10, clock=lambda: now)
        poison = chat("poison")
        for _ in range(3):
            assert isinstance(await failure(tier, poison), TierUnavailableError)
            # Asked again, as clients do.
            await failure(tier, poison)
            assert tier.load().healthy
            await collect(tier, chat())
        await failure(tier, poison)
        await failure(tier, chat("another poison"))
        assert not tier.load().healthy
        now += 10
        assert tier.load().healthy
        # Nothing has shown that it answers again.
        await failure(tier, poison)
        assert not tier.load().healthy
        await tier.close()


@pytest.mark.parametrize("kind", ["openai", "vllm", "sglang", "tensorrt-llm"])
@pytest.mark.parametrize(
    ("status", "code"), [(404, 404), (404, "model_not_found"), (400, "model_not_found")], ids=["vllm", "openai", "400"]
)
async def test_a_model_that_the_server_lacks_makes_the_tier_unavailable(
    kind: str, status: int, code: int | str
) -> None:
    error = {"message": "The model `upstream` does not exist.", "type": "NotFoundError", "param": "model", "code": code}
    async with upstream(refusing(status, {"error": error}), kind=kind) as (tier, _):
        raised = await failure(tier)
        assert isinstance(raised, TierUnavailableError)
        assert "`upstream` does not exist. (check url and model = 'upstream'" in str(raised)
        assert not tier.load().healthy


@pytest.mark.parametrize(
    ("stated", "seconds"),
    [
        ("7", 7),
        ("0.5", 0.5),
        ("86400", 300),
        ("Fri, 20 Nov 2020 00:00:00 GMT", 0),
        ("soon", 1),
        ("2\r\nretry-after-ms: 1500", 1.5),
        ("60s", 60.0),
        ("1m30s", 90.0),
        ("350ms", 0.35),
        ("30, 30", 30),
        ("4102444800", 300),
        ("1600000000", 0),
        ("1600000000000", 0),
    ],
)
async def test_a_busy_server_is_avoided_for_as_long_as_it_says(stated: str, seconds: float) -> None:
    now = 100.0

    async def busy(call: Call) -> None:
        await call.send(f"HTTP/1.1 429 X\r\nretry-after: {stated}\r\ncontent-length: 2\r\n\r\n{{}}".encode())

    async with LoopbackServer(busy) as server:
        tier = RemoteTier(remote_spec(server.base_url), cooldown_seconds=10, clock=lambda: now)
        assert isinstance(await failure(tier), TierBusyError)
        now += seconds - 0.01
        assert not tier.load().healthy
        now += 0.02
        assert tier.load().healthy
        await tier.close()


@pytest.mark.parametrize(
    ("payload", "message"),
    [
        ({"error": "just text"}, "just text"),
        ({"object": "error", "message": "old style"}, "old style"),
        ({"detail": "framework style"}, "framework style"),
        (["odd"], "odd"),
    ],
)
async def test_error_bodies_of_all_kinds_are_read(payload: object, message: str) -> None:
    async with upstream(refusing(400, payload)) as (tier, _):
        assert message in str(await failure(tier))


async def test_the_key_is_sent_but_never_shown(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    async with upstream(refusing(401, {"error": {"message": f"Incorrect API key: {KEY}"}}), api_key_env="THE_KEY") as (
        tier,
        server,
    ):
        message = str(await failure(tier))
        assert server.calls[0].headers["authorization"] == f"Bearer {KEY}"
    assert "[key]" in message
    assert KEY not in message + repr(vars(tier).get("_spec")) + caplog.text


async def test_the_key_is_not_shown_by_an_answer_that_breaks_off_with_it() -> None:
    async def fail(call: Call) -> None:
        await call.begin()
        await call.send(b'data: {"error": {"message": "key %s is spent"}}\n\n' % KEY.encode())

    async with upstream(fail, api_key_env="THE_KEY") as (tier, _):
        raised = await failure(tier)
    assert "key [key] is spent" in str(raised)


async def test_a_tier_without_its_key_does_not_start_and_asks_no_server() -> None:
    async with LoopbackServer(hello) as server:
        tier = RemoteTier(remote_spec(server.base_url, api_key_env="THE_KEY"), environ={"THE_KEY": " "})
        with pytest.raises(TierUnavailableError, match="environment variable THE_KEY, which is not set; set it"):
            await tier.start()
        assert (server.looks, server.calls) == ([], [])


@pytest.mark.parametrize(
    ("environ", "variable", "advice"),
    [
        ({"THE_KEY": KEY}, "THE_KEY", "check the key in THE_KEY"),
        ({}, None, "name the environment variable that holds it as api_key_env"),
    ],
)
async def test_a_server_that_refuses_the_key_names_what_to_change(
    environ: dict[str, str], variable: str | None, advice: str
) -> None:
    async with LoopbackServer(hello) as server:
        server.looked_at = refusing(401, {"error": {"message": "Incorrect API key"}})
        tier = RemoteTier(remote_spec(server.base_url, api_key_env=variable), environ=environ)
        with pytest.raises(TierUnavailableError, match=advice):
            await tier.start()
        await tier.close()


@pytest.mark.parametrize(
    "event", [b'data: {"error": {"message": "out of memory"}}\n\n', b"event: error\ndata: out of memory\n\n"]
)
async def test_an_error_event_in_mid_stream_ends_the_answer(event: bytes) -> None:
    async def fail(call: Call) -> None:
        await call.begin()
        await call.chunk("Hel")
        await call.send(event)

    async with upstream(fail) as (tier, _):
        raised = await failure(tier)
    assert type(raised) is TierAnswerError
    assert "out of memory" in str(raised)


@pytest.mark.parametrize("junk", [b"data: {not json\n\n", b"data: [7]\n\n", b'data: "text"\n\n'])
async def test_an_event_that_is_no_chunk_ends_the_answer(junk: bytes) -> None:
    async def babble(call: Call) -> None:
        await call.begin()
        await call.send(junk)

    async with upstream(babble) as (tier, _):
        assert "not a chunk" in str(await failure(tier))


async def test_a_stream_that_just_ends_is_not_taken_for_an_answer() -> None:
    async def vanish(call: Call) -> None:
        await call.begin()
        await call.chunk("Hel")

    async with upstream(vanish) as (tier, _):
        assert "before its choices were finished" in str(await failure(tier))


@pytest.mark.parametrize("begun", [False, True])
async def test_a_silent_server_is_given_up_after_the_read_timeout(begun: bool) -> None:
    async def silent(call: Call) -> None:
        if begun:
            await call.begin()
            await call.chunk("Hel")
        await asyncio.Event().wait()

    async with upstream(silent, read_timeout_seconds=0.05) as (tier, server):
        assert isinstance(await failure(tier), TierUnavailableError)
        await server.disconnected.wait()


async def test_a_server_that_never_ends_is_cut_off_at_the_total_timeout() -> None:
    async def endless(call: Call) -> None:
        await call.begin()
        while True:
            await call.send(b": still here\n\n")
            await asyncio.sleep(0)

    async with upstream(endless, read_timeout_seconds=20, total_timeout_seconds=0.1) as (tier, server):
        assert isinstance(await failure(tier), TierUnavailableError)
        await server.disconnected.wait()


async def test_a_connection_that_cannot_be_made_is_unavailable_at_start_and_later() -> None:
    tier = RemoteTier(remote_spec("http://127.0.0.1:1/v1"))
    with pytest.raises(TierUnavailableError, match="cannot be reached"):
        await tier.start()
    assert isinstance(await failure(tier), TierUnavailableError)
    await tier.close()


async def test_closing_the_iterator_closes_the_connection_at_once() -> None:
    async def endless(call: Call) -> None:
        await call.begin()
        await call.chunk("Hel")
        await asyncio.Event().wait()

    async with upstream(endless) as (tier, server):
        async with aclosing(tier.generate(chat(sampling=GREEDY))) as deltas:
            assert (await anext(deltas)).text == "Hel"
            assert tier.load().running == 1
        assert tier.load().running == 0
        await server.disconnected.wait()


async def test_token_ids_are_counted_exactly_and_text_by_its_bytes() -> None:
    tier = RemoteTier(remote_spec("http://127.0.0.1:1/v1"))
    ids = GenerationRequest(request_id="r", sampling=GREEDY, prompt=[1, 2, 3])
    assert tier.count_prompt_tokens(ids) == 3
    assert tier.count_prompt_tokens(chat("abcdefgh")) == 6


WHOLE = {
    "choices": [
        {
            "index": 0,
            "message": {
                "content": "Grüße",
                "reasoning_content": "hm",
                "tool_calls": [
                    {"id": "a", "type": "function", "function": {"name": "f", "arguments": "{}"}},
                    {"id": "b", "type": "function", "function": {"name": "g", "arguments": "[]"}},
                ],
            },
            "finish_reason": "tool_calls",
        }
    ],
    "usage": {"prompt_tokens": 7, "completion_tokens": 9, "prompt_tokens_details": {"cached_tokens": 4}},
}


async def test_what_a_caller_wants_whole_is_asked_whole_and_says_nothing_of_first_tokens() -> None:
    async with upstream(lambda call: call.reply(200, WHOLE)) as (tier, server):
        deltas = [delta async for delta in tier.generate(chat(whole=True))]
    assert server.calls[0].body["stream"] is False
    assert "stream_options" not in server.calls[0].body
    said, finish, last = deltas
    assert (said.text, said.reasoning, finish.finish_reason) == ("Grüße", "hm", "tool_calls")
    assert [(call.index, call.id, call.name) for call in said.tool_calls] == [(0, "a", "f"), (1, "b", "g")]
    assert last.end.usage == Usage(prompt_tokens=7, completion_tokens=9, cached_tokens=4)
    assert all(delta.at_once for delta in deltas)


async def test_a_server_may_be_made_to_stream_what_is_wanted_whole() -> None:
    async with upstream(hello, stream_whole=True) as (tier, server):
        answers, _ = await collect(tier, chat(whole=True))
    assert server.calls[0].body["stream"] is True
    assert answers[0].text == "Hello"


@pytest.mark.parametrize(
    ("payload", "message"),
    [
        ({"error": {"message": "out of memory"}}, "out of memory"),
        ({"choices": []}, "before its choices were finished"),
        ([1], "not a chunk"),
    ],
)
async def test_a_whole_answer_that_is_none_is_an_error(payload: object, message: str) -> None:
    async with upstream(lambda call: call.reply(200, payload)) as (tier, _):
        with pytest.raises(TierError, match=message):
            await collect(tier, chat(whole=True))


async def test_a_redirect_is_not_followed() -> None:
    async with LoopbackServer(hello) as elsewhere:

        async def redirect(call: Call) -> None:
            there = f"{elsewhere.base_url}/chat/completions"
            await call.send(f"HTTP/1.1 307 X\r\nlocation: {there}\r\ncontent-length: 0\r\n\r\n".encode())

        async with upstream(redirect) as (tier, _):
            assert isinstance(await failure(tier), TierUnavailableError)
        assert elsewhere.calls == []
