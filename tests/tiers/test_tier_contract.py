"""The contract of `Tier`, tested on a local tier over a real core, remote ones over real sockets, and a replica set.

All use the same hash model, whose greedy continuation is known without any engine. The remote tiers' servers and both
replicas answer from a local tier, in the form of OpenAI, Anthropic, Gemini or Bedrock.
"""

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, aclosing, asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import pytest

from inference_core.engine.core import Core
from inference_core.protocol import SamplingParams
from inference_core.tokenization.tokenizer import Tokenizer
from inference_core.transport.core_thread import ThreadCoreClient
from tests.inference_core.hash_model import HashModelRunner
from tests.support.upstream import Call, LoopbackServer
from tests.tiers.remote.provider_shapes import (
    EVENT_STREAM,
    anthropic_start,
    anthropic_stream,
    bedrock_stream,
    gemini_event,
    gemini_stream,
)
from tests.tiers.tier_world import GREEDY, Answer, chat, collect, local_tier, remote_spec, tier_spec
from tiers.conversation import Turn
from tiers.errors import TierRequestError, TierUnavailableError
from tiers.local.local_tier import LocalTier
from tiers.remote.answer_reader import READING_ON
from tiers.remote.remote_tier import RemoteTier
from tiers.replicas.replica_set import ReplicaSet
from tiers.tier import Delta, GenerationRequest, Tier

SLAB_BYTES, SLABS = 4096, 64
# Providers whose answers have one choice and no log-probabilities.
ONE_CHOICE = ("anthropic", "gemini", "bedrock")
MAX_CONTEXT = 512


@dataclass
class World:
    """A started tier, the core behind it, and what that core's model says after a prompt."""

    tier: Tier
    core: ThreadCoreClient
    runner: HashModelRunner
    tokenizer: Tokenizer
    kind: str = "local"
    servers: list[LoopbackServer] = field(default_factory=list)
    flowing: asyncio.Event = field(default_factory=asyncio.Event)

    def hold_answers(self) -> None:
        """Servers stop after the first chunk of an answer, so that none is whole before its reader leaves."""
        self.flowing.clear()

    def expected(self, request: GenerationRequest, count: int) -> list[int]:
        messages = [{"role": m.role, "content": m.text} for m in request.messages or []]
        return self.runner.expected_tokens(self.tokenizer.encode_chat(messages), count)

    async def is_idle(self) -> bool:
        if self.servers:
            async with asyncio.timeout(120):
                waits = [asyncio.create_task(server.disconnected.wait()) for server in self.servers]
                _, idle = await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
                for wait in idle:
                    wait.cancel()
                for server in self.servers:
                    await server.drained()
        (model,) = (await self.core.stats()).models
        return model.running + model.waiting + model.blocks_in_use == 0

    async def lose_backend(self) -> None:
        for server in self.servers:
            await server.stop()
        if not self.servers:
            await self.core.close()


@asynccontextmanager
async def hash_core(tokenizer: Tokenizer, **fields: Any) -> AsyncIterator[tuple[ThreadCoreClient, HashModelRunner]]:
    memory = bytearray(SLABS * SLAB_BYTES)
    fields = {"vocab_size": tokenizer.vocab_size, "max_context": MAX_CONTEXT} | fields
    runner = HashModelRunner("m", memory, SLAB_BYTES, **fields)
    core = ThreadCoreClient(lambda: Core({"m": runner}, arena_bytes=len(memory), slab_bytes=SLAB_BYTES, seed=0))
    await core.start()
    try:
        yield core, runner
    finally:
        await core.close()


@asynccontextmanager
async def open_world(kind: str, tokenizer: Tokenizer, **fields: Any) -> AsyncIterator[World]:
    async with hash_core(tokenizer, **fields) as (core, runner):
        local = local_tier(tier_spec(), core, tokenizer)
        await local.start()
        if kind == "local":
            yield World(local, core, runner, tokenizer)
        else:
            async with AsyncExitStack() as stack:
                count = 2 if kind == "replicated" else 1
                flowing = asyncio.Event()
                flowing.set()
                dialect = DIALECTS.get(kind, DIALECTS["remote"])
                servers = [LoopbackServer(lambda call: serve(local, call, flowing, dialect)) for _ in range(count)]
                urls = [(await stack.enter_async_context(server)).base_url for server in servers]
                remote: Tier
                if kind == "replicated":
                    remote = ReplicaSet(remote_spec(base_urls=urls, max_context=MAX_CONTEXT))
                else:
                    wire = "openai" if kind == "remote" else kind
                    remote = RemoteTier(
                        remote_spec(urls[0], max_context=MAX_CONTEXT, kind=wire, api_key_env="KEY"),
                        environ={"KEY": "sk-some-key"},
                    )
                await remote.start()
                yield World(remote, core, runner, tokenizer, kind, servers, flowing)
                await remote.close()
        await local.close()


class Dialect(NamedTuple):
    """How a kind of server reads a request (fields of `GenerationRequest`), writes deltas, and refuses a prompt."""

    read: Callable[[Call], dict[str, Any]]
    write: Callable[[Delta], bytes]
    start: bytes
    end: bytes
    refusal: Callable[[TierRequestError], Any]
    media_type: str = "text/event-stream; charset=utf-8"


async def serve(tier: LocalTier, call: Call, flowing: asyncio.Event, dialect: Dialect) -> None:
    """Answer as a server of a kind does, as far as these tests go; past the first chunk while `flowing` is set."""
    request = GenerationRequest(request_id="served", **dialect.read(call))
    started = False
    try:
        async with aclosing(tier.generate(request)) as deltas:
            async for delta in deltas:
                if not started:
                    started = True
                    await call.begin(200, dialect.media_type)
                    await call.send(dialect.start)
                await call.send(dialect.write(delta))
                await flowing.wait()
    except TierRequestError as error:
        await call.reply(400, dialect.refusal(error))
        return
    await call.send(dialect.end)


def _read_openai(call: Call) -> dict[str, Any]:
    body = call.body
    return {
        "messages": [Turn.of(message["role"], message["content"]) for message in body["messages"]],
        "sampling": SamplingParams(temperature=body.get("temperature", 1.0), logprobs=body.get("top_logprobs")),
        "max_tokens": body["max_tokens"],
        "stop": tuple(body.get("stop", ())),
        "n": body.get("n", 1),
    }


def _write_openai(delta: Delta) -> bytes:
    return f"data: {json.dumps(_chunk(delta))}\n\n".encode()


def _refuse_openai(error: TierRequestError) -> Any:
    return {"error": {"message": str(error), "type": "invalid_request_error", "param": error.param, "code": error.code}}


def _turns(turns: list[dict[str, Any]], parts: str) -> list[Turn]:
    return [Turn.of(turn["role"], turn[parts][0]["text"]) for turn in turns]


def _sampled(temperature: float = 1.0) -> SamplingParams:
    return SamplingParams(temperature=temperature, seed=None)


def _read_anthropic(call: Call) -> dict[str, Any]:
    body = call.body
    return {
        "messages": _turns(body["messages"], "content"),
        "sampling": _sampled(body.get("temperature", 1.0)),
        "max_tokens": body["max_tokens"],
        "stop": tuple(body.get("stop_sequences", ())),
    }


def _write_anthropic(delta: Delta) -> bytes:
    if (end := delta.end) is not None:
        usage = end.usage
        counts = {"input_tokens": usage.prompt_tokens - usage.cached_tokens, "output_tokens": usage.completion_tokens}
        counts |= {"cache_read_input_tokens": usage.cached_tokens}
        return anthropic_stream([{"type": "message_delta", "delta": {}, "usage": counts}])
    if delta.finish_reason is not None:
        reason = {"length": "max_tokens"}.get(delta.finish_reason, "end_turn")
        return anthropic_stream([{"type": "message_delta", "delta": {"stop_reason": reason}}])
    piece = {"type": "text_delta", "text": delta.text}
    return anthropic_stream([{"type": "content_block_delta", "index": 0, "delta": piece}])


def _read_gemini(call: Call) -> dict[str, Any]:
    generation = call.body["generationConfig"]
    return {
        "messages": _turns(call.body["contents"], "parts"),
        "sampling": _sampled(generation.get("temperature", 1.0)),
        "max_tokens": generation["maxOutputTokens"],
        "stop": tuple(generation.get("stopSequences", ())),
    }


def _write_gemini(delta: Delta) -> bytes:
    if (end := delta.end) is not None:
        usage = end.usage
        counts = {"promptTokenCount": usage.prompt_tokens, "candidatesTokenCount": usage.completion_tokens}
        counts |= {"cachedContentTokenCount": usage.cached_tokens}
        return gemini_stream([{"candidates": [], "usageMetadata": counts}])
    finish = {None: None, "length": "MAX_TOKENS"}.get(delta.finish_reason, "STOP")
    parts = [{"text": delta.text}] if delta.text else []
    event = gemini_event(*parts, finish=finish)
    del event["usageMetadata"]
    return gemini_stream([event])


def _read_bedrock(call: Call) -> dict[str, Any]:
    inference = call.body["inferenceConfig"]
    return {
        "messages": _turns(call.body["messages"], "content"),
        "sampling": _sampled(inference.get("temperature", 1.0)),
        "max_tokens": inference["maxTokens"],
        "stop": tuple(inference.get("stopSequences", ())),
    }


def _write_bedrock(delta: Delta) -> bytes:
    if (end := delta.end) is not None:
        usage = end.usage
        counts = {"inputTokens": usage.prompt_tokens - usage.cached_tokens, "outputTokens": usage.completion_tokens}
        return bedrock_stream([("metadata", {"usage": counts | {"cacheReadInputTokens": usage.cached_tokens}})])
    if delta.finish_reason is not None:
        reason = {"length": "max_tokens"}.get(delta.finish_reason, "end_turn")
        return bedrock_stream([("messageStop", {"stopReason": reason})])
    return bedrock_stream([("contentBlockDelta", {"contentBlockIndex": 0, "delta": {"text": delta.text}})])


DIALECTS = {
    "remote": Dialect(_read_openai, _write_openai, b"", b"data: [DONE]\n\n", _refuse_openai),
    "anthropic": Dialect(
        _read_anthropic,
        _write_anthropic,
        anthropic_stream([anthropic_start(input_tokens=0, output_tokens=0)]),
        anthropic_stream([{"type": "message_stop"}]),
        lambda error: {"type": "error", "error": {"type": "invalid_request_error", "message": "prompt is too long"}},
    ),
    "gemini": Dialect(
        _read_gemini,
        _write_gemini,
        b"",
        b"",
        lambda error: {"error": {"message": "The input token count exceeds the maximum number of tokens allowed"}},
    ),
    "bedrock": Dialect(
        _read_bedrock,
        _write_bedrock,
        bedrock_stream([("messageStart", {"role": "assistant"})]),
        b"",
        lambda error: {"message": "Input is too long for requested model."},
        EVENT_STREAM,
    ),
}


def _chunk(delta: Delta) -> dict[str, Any]:
    if (end := delta.end) is not None:
        usage = end.usage
        details = {"cached_tokens": usage.cached_tokens}
        counts = {"prompt_tokens": usage.prompt_tokens, "completion_tokens": usage.completion_tokens}
        return {"choices": [], "usage": counts | {"prompt_tokens_details": details}}
    choice: dict[str, Any] = {"index": delta.index, "delta": {"content": delta.text}}
    choice["finish_reason"] = delta.finish_reason
    if delta.logprobs is not None:
        content = [
            {
                "token": t.token,
                "bytes": list(t.token_bytes),
                "logprob": t.logprob,
                "top_logprobs": [{"token": o, "bytes": list(b), "logprob": p} for o, b, p in t.top],
            }
            for t in delta.logprobs
        ]
        choice["logprobs"] = {"content": content}
    return {"choices": [choice]}


@pytest.fixture(params=["local", "remote", "replicated", "anthropic", "gemini", "bedrock"])
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
async def world(kind: str, tokenizer: Tokenizer) -> AsyncIterator[World]:
    async with open_world(kind, tokenizer) as opened:
        yield opened


async def test_an_answer_is_the_models_continuation_then_its_end_then_the_bill(world: World) -> None:
    request = chat(max_tokens=40)
    (answer,), usage = await collect(world.tier, request)
    assert answer.text == world.tokenizer.decode(world.expected(request, 40))
    assert answer.finish_reason == "length"
    assert usage.completion_tokens == 40
    assert usage.prompt_tokens == len(world.tokenizer.encode_chat([{"role": "user", "content": "Hello there"}]))


async def test_an_answer_that_the_model_ends_stops(kind: str, tokenizer: Tokenizer) -> None:
    async with open_world(kind, tokenizer, eos_probability=0.1) as world:
        request = chat(max_tokens=300)
        expected = world.expected(request, 300)
        (answer,), usage = await collect(world.tier, request)
        assert len(expected) < 300
        assert answer.finish_reason == "stop"
        assert answer.text == tokenizer.decode(expected)
        assert usage.completion_tokens == len(expected)


async def test_without_a_limit_the_answer_ends_with_the_context(kind: str, tokenizer: Tokenizer) -> None:
    async with open_world(kind, tokenizer, max_context=128) as world:
        request = chat(max_tokens=None)
        (answer,), usage = await collect(world.tier, request)
        assert answer.finish_reason == "length"
        assert usage.prompt_tokens + usage.completion_tokens == 128


async def test_each_of_several_choices_ends_once_and_all_are_billed(world: World) -> None:
    request = chat("word " * 60, n=3, sampling=SamplingParams(temperature=1.0, seed=1))
    answers, usage = await collect(world.tier, request)
    assert [a.finish_reason for a in answers] == ["length"] * 3
    assert len({a.text for a in answers}) == 3
    assert usage.completion_tokens == 3 * 12
    # Where each choice is a request of its own, a later one may find the prompt of an earlier one cached.
    assert usage.cached_tokens == 0 or world.kind in ONE_CHOICE


async def test_text_from_a_stop_string_on_is_never_seen(world: World) -> None:
    request = chat(max_tokens=40)
    (whole,), _ = await collect(world.tier, request)
    middle = len(whole.text) // 2
    stop = whole.text[middle : middle + 9]
    (cut,), usage = await collect(world.tier, chat(max_tokens=40, stop=("not in there", stop)))
    assert cut.text == whole.text[: whole.text.index(stop)]
    assert cut.finish_reason == "stop"
    assert 0 < usage.completion_tokens < 40


async def test_cached_tokens_are_known_even_if_a_stop_string_ends_the_answer(world: World) -> None:
    prompt = "word " * 60
    (whole,), first = await collect(world.tier, chat(prompt, max_tokens=40))
    _, second = await collect(world.tier, chat(prompt, max_tokens=40, stop=(whole.text[5:10],)))
    assert first.cached_tokens == 0
    assert second.completion_tokens < 40
    assert 0 < second.cached_tokens < second.prompt_tokens


async def test_log_probabilities_are_those_of_the_text(world: World) -> None:
    request = chat(sampling=SamplingParams(temperature=0.0, logprobs=1), max_tokens=20)
    if world.kind in ONE_CHOICE:
        with pytest.raises(TierRequestError, match="logprobs"):
            await collect(world.tier, request)
        return
    (answer,), _ = await collect(world.tier, request)
    joined = b"".join(t.token_bytes for t in answer.logprobs)
    assert len(answer.logprobs) == 20
    assert joined.decode("utf-8", "replace") == answer.text
    assert all(t.logprob == 0.0 and t.top == [(t.token, t.token_bytes, 0.0)] for t in answer.logprobs)


async def test_simultaneous_requests_under_one_id_do_not_mix(world: World) -> None:
    requests = [chat(f"Prompt number {i}", max_tokens=25) for i in range(8)]
    collected = await asyncio.gather(*(collect(world.tier, r) for r in requests))
    for request, ((answer,), _) in zip(requests, collected, strict=True):
        assert answer.text == world.tokenizer.decode(world.expected(request, 25))


async def test_a_prompt_that_does_not_fit_is_refused_before_the_first_delta(world: World) -> None:
    with pytest.raises(TierRequestError) as error:
        await collect(world.tier, chat("word " * 2 * MAX_CONTEXT))
    assert (error.value.param, error.value.code) == ("messages", "context_length_exceeded")
    (answer,), _ = await collect(world.tier, chat())
    assert answer.text


@pytest.fixture
def read_on_briefly(monkeypatch: pytest.MonkeyPatch) -> None:
    """Some providers bill the whole answer though its caller left; it is then read to its end, or for so long."""
    monkeypatch.setattr(READING_ON, "_seconds", 0.1)


@pytest.mark.usefixtures("read_on_briefly")
async def test_closing_the_iterator_early_frees_the_work(world: World) -> None:
    world.hold_answers()
    async with aclosing(world.tier.generate(chat(max_tokens=400))) as deltas:  # type: ignore[type-var]
        await anext(deltas)
    assert await world.is_idle()


async def test_the_meter_of_an_answer_that_is_closed_early_holds_what_was_passed_on(world: World) -> None:
    for count in (0, 1, 7):
        request = chat(max_tokens=400, n=2)
        passed: list[Delta] = []
        async with aclosing(world.tier.generate(request)) as deltas:  # type: ignore[type-var]
            while len(passed) < count:
                passed.append(await anext(deltas))
        used = request.meter.usage()
        # A server elsewhere tells no tokens: four bytes are one.
        least = sum(len(delta.token_ids) or len(delta.text.encode()) / 4 for delta in passed)
        assert least <= used.completion_tokens <= 800
        # Where each choice is a request of its own, each has its prompt.
        prompts = used.prompt_tokens / world.tier.count_prompt_tokens(request)
        assert prompts in ((0,) if not count else (1, 2) if world.kind in ONE_CHOICE else (1,))


async def test_at_the_end_the_meter_is_the_usage(world: World) -> None:
    request = chat(max_tokens=20, n=2)
    _, usage = await collect(world.tier, request)
    assert request.meter.usage() == usage


@pytest.mark.usefixtures("read_on_briefly")
async def test_cancelling_the_consumer_frees_the_work(world: World) -> None:
    world.hold_answers()
    first = asyncio.Event()

    async def consume() -> Answer:
        async for _ in world.tier.generate(chat(max_tokens=400)):
            first.set()
        return Answer()

    task = asyncio.create_task(consume())
    await first.wait()
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    assert await world.is_idle()


async def test_a_lost_backend_makes_the_tier_unavailable_and_says_so_to_routing(world: World) -> None:
    assert world.tier.load().healthy
    await world.lose_backend()
    with pytest.raises(TierUnavailableError, match="tier-1"):
        await collect(world.tier, chat())
    assert not world.tier.load().healthy


async def test_load_counts_what_runs(world: World) -> None:
    assert world.tier.load().running == 0
    await collect(world.tier, chat(sampling=GREEDY))
    assert world.tier.load().healthy


async def test_a_prompt_is_counted_without_asking_anyone(world: World) -> None:
    short, long = (world.tier.count_prompt_tokens(chat("word " * k)) for k in (5, 50))
    assert 5 <= short < long <= 150


async def test_closing_twice_is_as_good_as_once(world: World) -> None:
    await world.tier.close()
    await world.tier.close()
    assert world.tier.load().running == 0
