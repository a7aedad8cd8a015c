"""Answers that their caller leaves are read to their end where that is billed, else closed, and estimated."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import aclosing, asynccontextmanager
from typing import Any

import msgspec
import pytest

from tests.polling import eventually
from tests.support.clock import Clock
from tests.support.upstream import Call, Handler, LoopbackServer
from tests.tiers.tier_world import chat, collect, remote_spec
from tiers.dialects.rules import rules_of
from tiers.dialects.usage_counter import USUAL_SPEED, USUAL_TOKENS
from tiers.remote.answer_reader import ReadingOn
from tiers.remote.remote_tier import RemoteTier
from tiers.tier import GenerationRequest, Usage

HIDDEN = 3895
COUNTS = {
    "prompt_tokens": 9,
    "completion_tokens": HIDDEN + 3,
    "completion_tokens_details": {"reasoning_tokens": HIDDEN},
}
COUNTED = Usage(prompt_tokens=9, completion_tokens=HIDDEN + 3, reasoning_tokens=HIDDEN)
GPT, MISTRAL = "gpt-5", "magistral-medium-latest"


class World:
    """A tier of a provider, whose server says `first`, and the rest of `answer` once it may `go`."""

    def __init__(self, server: LoopbackServer, tier: RemoteTier, reading_on: ReadingOn, clock: Clock) -> None:
        self.server, self.tier, self.reading_on, self.clock = server, tier, reading_on, clock

    async def left(self, request: GenerationRequest, deltas: int = 1) -> GenerationRequest:
        """Ask, read so many deltas, and leave."""
        async with aclosing(self.tier.generate(request)) as answer:
            for _ in range(deltas):
                await anext(answer)
        return request


@asynccontextmanager
async def world(
    provider: str | None, answer: Handler, model: str = GPT, reading_on: ReadingOn | None = None, **remote: Any
) -> AsyncIterator[World]:
    kind = "openai-provider" if provider else "openai"
    async with LoopbackServer(answer) as server:
        spec = remote_spec(server.base_url, model=model, max_context=100_000, **{"kind": kind} | remote)
        spec = msgspec.structs.replace(spec, provider=provider, max_tokens=0)
        clock, reading_on = Clock(), reading_on or ReadingOn()
        tier = RemoteTier(spec, clock=clock, reading_on=reading_on)
        try:
            yield World(server, tier, reading_on, clock)
        finally:
            await tier.close()


def asked(**fields: Any) -> GenerationRequest:
    arguments: dict[str, Any] = {"max_tokens": 20_000, "salt": "t"} | fields
    return chat(**arguments)


def saying(go: asyncio.Event, *, finish: bool = False) -> Handler:
    """Text, and once it may `go` its end and counts. `finish`: why it ended comes with the text."""

    async def answer(call: Call) -> None:
        if not call.body.get("stream"):
            await go.wait()
            await call.whole("Hello there", COUNTS)
            return
        await call.begin()
        event = b'data: {"choices":[{"index":0,"delta":{"content":"Hello there"},"finish_reason":null}]}\n\n'
        end = b'data: {"choices":[{"index":0,"delta":{},"finish_reason":"stop"}]}\n\n'
        await call.send(event + (end if finish else b""))
        await go.wait()
        await call.end(COUNTS)

    return answer


async def hang(call: Call) -> None:
    await call.begin()
    await call.chunk("Hello there")
    await asyncio.Event().wait()


async def settled(request: GenerationRequest) -> Usage:
    """What is metered once all that is read on has ended."""
    assert request.meter.unsettled
    await asyncio.wait(request.meter.unsettled)
    return request.meter.usage()


@pytest.mark.parametrize("provider", ["mistral", "groq", "openrouter"])
async def test_a_stream_that_is_billed_to_its_end_is_read_to_its_counts_after_its_caller_left(provider: str) -> None:
    go = asyncio.Event()
    async with world(provider, saying(go), MISTRAL) as w:
        request = await w.left(asked())
        assert (w.reading_on.running, w.tier.load().running) == (1, 1)
        assert request.meter.usage().estimated
        go.set()
        assert await settled(request) == COUNTED
        await eventually(lambda: w.reading_on.running == 0)
        assert w.tier.load().running == 0


@pytest.mark.parametrize("provider", ["openai", "xai", "deepseek", None])
async def test_a_stream_that_is_not_billed_further_is_closed_when_its_caller_leaves(provider: str | None) -> None:
    async with world(provider, hang) as w:
        request = await w.left(asked())
        await w.server.disconnected.wait()
        assert (request.meter.unsettled, w.tier.load().running) == ([], 0)
        assert request.meter.usage().estimated


async def test_an_answer_that_has_ended_is_read_to_its_counts_by_any_provider() -> None:
    go = asyncio.Event()
    async with world("openai", saying(go, finish=True)) as w:
        request = await w.left(asked())
        go.set()
        assert await settled(request) == COUNTED


async def test_a_whole_answer_is_billed_to_its_end_with_and_without_a_waiting_caller() -> None:
    go = asyncio.Event()
    async with world("openai", saying(go)) as w:
        request = asked(whole=True)
        waiting = asyncio.create_task(collect(w.tier, request))
        await eventually(lambda: w.server.calls)
        waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)
        go.set()
        assert await settled(request) == COUNTED


async def test_a_caller_who_leaves_before_the_first_token_is_charged_for_what_was_thought() -> None:
    async def think(call: Call) -> None:
        await asyncio.Event().wait()

    async with world("openai", think) as w:
        request = asked()
        waiting = asyncio.create_task(collect(w.tier, request))
        await eventually(lambda: w.server.calls)
        w.clock.now += 12
        waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)
        used = request.meter.usage()
    assert used.completion_tokens == used.reasoning_tokens == 12 * USUAL_SPEED
    assert used.estimated


async def test_an_estimate_is_what_providers_publish_and_then_what_answers_of_the_same_effort_had() -> None:
    go = asyncio.Event()
    go.set()
    async with world("openai", saying(go)) as w:
        w.server.handler = hang
        before = await w.left(asked())
        w.server.handler = saying(go)
        await collect(w.tier, asked())
        w.server.handler = hang
        after, other = await w.left(asked()), await w.left(asked(reasoning_effort="low"))
    assert before.meter.usage().reasoning_tokens == USUAL_TOKENS
    assert after.meter.usage().reasoning_tokens == HIDDEN
    assert other.meter.usage().reasoning_tokens == USUAL_TOKENS * 0.4


async def test_models_that_hide_nothing_are_charged_for_what_was_heard() -> None:
    async with world("openai", hang, "gpt-4.1") as w:
        request = await w.left(asked())
    assert request.meter.usage().completion_tokens == 3


async def test_an_estimate_is_no_more_than_the_limit_which_budgets_hold() -> None:
    async with world("openai", hang) as w:
        request = await w.left(asked(max_tokens=100))
    assert request.meter.usage().completion_tokens == 100


async def test_what_ends_without_counts_is_an_estimate_with_its_hidden_thoughts() -> None:
    async def never_count(call: Call) -> None:
        await call.say("Hello there")

    async with world("openai", never_count) as w:
        _, usage = await collect(w.tier, asked())
    assert usage.estimated
    assert usage.completion_tokens == 3 + USUAL_TOKENS


async def test_an_answer_that_is_cut_here_is_read_to_its_counts_where_it_is_billed_to_its_end() -> None:
    async def say_more(call: Call) -> None:
        await call.begin()
        await call.chunk("One. Two. ")
        await call.chunk("Three. ")
        await call.end(COUNTS)

    stops = ("1", "2", "3", "4", "Two")
    async with world("groq", say_more, MISTRAL) as w:
        (choice,), usage = await collect(w.tier, asked(stop=stops))
    assert choice.text == "One. "
    assert usage == COUNTED


async def test_so_many_answers_are_read_on_at_once_and_fewer_of_one_tenant() -> None:
    go = asyncio.Event()
    async with world("mistral", saying(go), MISTRAL, ReadingOn(most=3, most_of_one=2)) as w:
        requests = [await w.left(asked(salt=tenant)) for tenant in ("a", "a", "a", "b", "c")]
        assert [len(request.meter.unsettled) for request in requests] == [1, 1, 0, 1, 0]
        assert w.tier.load().running == 3
        go.set()
        assert [(await settled(request)).estimated for request in (requests[0], requests[1], requests[3])] == [
            False
        ] * 3
        await eventually(lambda: w.reading_on.running == 0)
        go.clear()
        assert (await w.left(asked(salt="a"))).meter.unsettled


async def test_reading_on_ends_after_its_time_and_leaves_an_estimate() -> None:
    async with world("mistral", hang, MISTRAL, ReadingOn(seconds=0.01)) as w:
        request = await w.left(asked())
        assert (await settled(request)).estimated
        await w.server.disconnected.wait()


async def test_reading_on_ends_after_so_many_bytes() -> None:
    async def flood(call: Call) -> None:
        await call.begin()
        while True:
            await call.chunk("x" * 1000)

    async with world("mistral", flood, MISTRAL, ReadingOn(size=10_000)) as w:
        request = await w.left(asked())
        assert (await settled(request)).estimated
        await w.server.disconnected.wait()


async def test_a_tier_that_closes_ends_what_it_reads_on() -> None:
    async with world("mistral", hang, MISTRAL) as w:
        request = await w.left(asked())
        await w.tier.close()
        assert all(task.done() for task in request.meter.unsettled)
        assert request.meter.usage().estimated


async def test_an_error_of_what_is_read_on_reaches_no_caller_and_leaves_an_estimate() -> None:
    go = asyncio.Event()

    async def break_off(call: Call) -> None:
        await call.begin()
        await call.chunk("Hello there")
        await go.wait()

    async with world("mistral", break_off, MISTRAL) as w:
        request = await w.left(asked())
        go.set()
        assert (await settled(request)).estimated


@pytest.mark.parametrize(
    ("server", "model", "bills"),
    [
        ("vllm", "qwen", "no"),
        ("compatible", "qwen", "no"),
        ("anthropic", "claude-sonnet-4-5", "whole"),
        ("vertex-anthropic", "claude-sonnet-4-5", "all"),
        ("vertex-gemini", "gemini-2.5-pro", "all"),
        ("bedrock", "amazon.nova-pro-v1:0", "all"),
        ("provider", "any", "all"),
    ],
)
def test_servers_without_a_source_for_the_contrary_bill_all(server: str, model: str, bills: str) -> None:
    assert rules_of(server, model).bills_unread == bills


@pytest.mark.parametrize(
    ("server", "model", "hides"),
    [
        ("openai", "o3", "always"),
        ("openai", "gpt-5-mini", "always"),
        ("openai", "gpt-5.2", "asked"),
        ("openai", "gpt-5-chat-latest", "no"),
        ("openai", "gpt-4o", "no"),
        ("openrouter", "openai/gpt-5", "always"),
        ("vertex-gemini", "gemini-2.5-pro", "always"),
        ("gemini", "gemini-2.5-flash-lite", "no"),
        ("xai", "grok-4", "always"),
        ("xai", "grok-4-fast-non-reasoning", "no"),
        ("anthropic", "claude-opus-4-6", "asked"),
        ("vllm", "openai/gpt-oss-120b", "no"),
    ],
)
def test_models_that_bill_thoughts_that_they_do_not_show(server: str, model: str, hides: str) -> None:
    assert rules_of(server, model).hides_thoughts == hides
