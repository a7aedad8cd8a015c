"""The meter of a request knows the usage of a tier at any moment the answer ends, under every policy."""

import asyncio
import math
from contextlib import aclosing
from typing import Any

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from inference_core.protocol import AddRequest, SamplingParams
from inference_core.tokenization.tokenizer import Tokenizer
from tests.examples import examples
from tests.polling import eventually
from tests.support.upstream import Call, LoopbackServer
from tests.tiers.test_tier_contract import hash_core
from tests.tiers.tier_world import GREEDY, ScriptedCore, chat, collect, local_tier, remote_spec, tier_spec
from tiers.catalog.tier_spec import ChainOfThoughtSpec, PolicySpec, SelfConsistencySpec
from tiers.conversation import ToolCallDelta
from tiers.dialects.usage_counter import Tally
from tiers.errors import TierRequestError
from tiers.local.local_tier import LocalTier
from tiers.remote.remote_tier import RemoteTier
from tiers.tier import Delta, GenerationRequest, Usage

QUESTION = "What is 5 + 8?"
THINKING = ChainOfThoughtSpec(
    budget_tokens=40,
    opening="Let me think.\n",
    answer_opening="\nFinal answer:",
    min_answer_tokens=8,
    settled_probes=2,
    probe_every_tokens=5,
    probe_tokens=6,
)
POLICIES: dict[str, PolicySpec | None] = {
    "plain": None,
    "echo": None,
    "votes": SelfConsistencySpec(samples=3, temperature=0.6),
    "thoughts": THINKING,
    "thoughts, never probed": msgspec.structs.replace(THINKING, settled_probes=0),
}


class World:
    """A local tier of a policy over a core that stops each of its requests after `hold` rounds; None: goes on."""

    def __init__(self, tokenizer: Tokenizer, policy: str, hold: int | None) -> None:
        self.tokenizer = tokenizer
        self.core = ScriptedCore(tokenizer, self._says, hold=hold)
        self.tier: LocalTier = local_tier(tier_spec(POLICIES[policy]), self.core, tokenizer)
        self.echo = policy == "echo"

    def request(self, n: int) -> GenerationRequest:
        if not self.echo:
            return chat(QUESTION, n=n, max_tokens=60)
        sampling = SamplingParams(temperature=0.0, logprobs=None)
        return GenerationRequest(request_id="r", sampling=sampling, prompt=QUESTION, max_tokens=30, n=n, echo=True)

    @property
    def thought(self) -> int:
        """Tokens drawn for thoughts and probes."""
        kinds = zip(self.core.added, self.core.drawn, strict=True)
        return sum(drawn for added, drawn in kinds if not self._is_answer(added))

    def _says(self, add: AddRequest) -> list[str]:
        if self._thinks(add):
            return ["Five is a number. Eight is one too. Both are small. Their sum is 13. Let me check."] * add.n
        return [f"It is {index}, and that is it." for index in range(add.n)]

    def _thinks(self, add: AddRequest) -> bool:
        return self.tokenizer.decode(add.prompt_token_ids).endswith(THINKING.opening)

    def _is_answer(self, add: AddRequest) -> bool:
        return not self._thinks(add) and add.sampling.max_tokens != THINKING.probe_tokens


@settings(max_examples=examples(60), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    policy=st.sampled_from(sorted(POLICIES)),
    n=st.integers(1, 3),
    hold=st.integers(0, 30),
    deltas=st.integers(0, 40),
    cancelled=st.booleans(),
)
async def test_every_policy_meters_what_its_core_drew_wherever_it_ends(
    tokenizer: Tokenizer, policy: str, n: int, hold: int, deltas: int, cancelled: bool
) -> None:
    world = World(tokenizer, policy, hold)
    await world.tier.start()
    request = world.request(n)
    reading = asyncio.create_task(read(world, request, None if cancelled else deltas))
    held = asyncio.create_task(world.core.held.wait())
    await asyncio.wait([reading, held], return_when=asyncio.FIRST_COMPLETED)
    await cancel(reading, held)
    used = request.meter.usage()
    assert used.completion_tokens == sum(world.core.drawn)
    assert used.reasoning_tokens == (world.thought if policy.startswith("thoughts") else 0)
    assert used.prompt_tokens == (world.tier.count_prompt_tokens(request) if world.core.added else 0)
    await world.tier.close()


async def read(world: World, request: GenerationRequest, deltas: int | None) -> None:
    """That many deltas, or all of them."""
    async with aclosing(world.tier.generate(request)) as answer:
        while deltas != 0:
            if await anext(answer, None) is None:
                return
            deltas = None if deltas is None else deltas - 1


async def cancel(*tasks: "asyncio.Task[Any]") -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


@pytest.mark.parametrize("policy", sorted(POLICIES))
async def test_at_the_end_the_meter_is_the_usage(tokenizer: Tokenizer, policy: str) -> None:
    world = World(tokenizer, policy, None)
    await world.tier.start()
    request = world.request(2)
    _, usage = await collect(world.tier, request)
    assert request.meter.usage() == usage
    assert usage.completion_tokens == sum(world.core.drawn)
    await world.tier.close()


async def test_what_a_slow_reader_has_not_come_to_yet_is_metered_up_to_its_stop_string(tokenizer: Tokenizer) -> None:
    async with hash_core(tokenizer) as (core, _):
        tier = local_tier(tier_spec(), core, tokenizer)
        await tier.start()
        (whole,), _ = await collect(tier, chat(max_tokens=40))
        for stop, all_of_it in ((), True), ((whole.text[20:24],), False):
            _, usage = await collect(tier, chat(max_tokens=40, stop=stop))
            request = chat(max_tokens=40, stop=stop)
            async with aclosing(tier.generate(request)) as deltas:
                await anext(deltas)
                await eventually(lambda: is_idle(core))
            assert request.meter.usage().completion_tokens == usage.completion_tokens
            assert (usage.completion_tokens == 40) is all_of_it
        await tier.close()


async def is_idle(core: Any) -> bool:
    (model,) = (await core.stats()).models
    return bool(model.running + model.waiting == 0)


async def test_a_request_that_no_model_took_has_used_nothing(tokenizer: Tokenizer) -> None:
    world = World(tokenizer, "plain", None)
    await world.tier.start()
    refused, unread = chat("word " * 500), chat()
    with pytest.raises(TierRequestError):
        await collect(world.tier, refused)
    await world.tier.generate(unread).aclose()
    assert refused.meter.usage() == unread.meter.usage() == Usage()
    await world.tier.close()


async def test_the_same_request_may_be_answered_again_and_each_answer_has_its_own_usage(tokenizer: Tokenizer) -> None:
    world = World(tokenizer, "thoughts", None)
    await world.tier.start()
    request = chat(QUESTION, max_tokens=60)
    _, first = await collect(world.tier, request)
    _, second = await collect(world.tier, request)
    assert first == second
    assert request.meter.usage() == Usage.total([first, second])
    await world.tier.close()


async def remote_usage(*events: Any, wait_for: int, **fields: Any) -> Usage:
    """What is metered of a server's answer of these `events` that is given up after `wait_for` deltas."""

    async def say(call: Call) -> None:
        if not call.body["stream"]:
            await asyncio.Event().wait()
        await call.begin()
        for event in events:
            await call.event(event)
        await asyncio.Event().wait()

    async with LoopbackServer(say) as server:
        tier = RemoteTier(remote_spec(server.base_url))
        request = chat("y" * 80, sampling=GREEDY, **fields)
        async with aclosing(tier.generate(request)) as deltas:
            opening = asyncio.create_task(anext(deltas))
            if wait_for:
                await opening
                for _ in range(wait_for - 1):
                    await anext(deltas)
            else:
                await eventually(lambda: server.calls)
            await cancel(opening)
        await tier.close()
        return request.meter.usage()


def said(text: str = "", *, usage: tuple[int, int] | None = None, **delta: Any) -> dict[str, Any]:
    counts = None if usage is None else {"prompt_tokens": usage[0], "completion_tokens": usage[1]}
    return {"choices": [{"index": 0, "delta": {"content": text, **delta}}], "usage": counts}


async def test_a_stream_that_is_left_is_estimated_by_its_text_thoughts_and_calls() -> None:
    call = {"index": 0, "function": {"name": "add", "arguments": "12345"}}
    events = said("four"), said(reasoning_content="eight by"), said(tool_calls=[call])
    used = await remote_usage(*events, wait_for=3)
    assert used == Usage(prompt_tokens=24, completion_tokens=5, reasoning_tokens=2, estimated=True)


async def test_what_comes_after_a_servers_report_is_estimated_on_top_of_it() -> None:
    events = said("x" * 400, usage=(9, 3)), said("four"), said("y" * 400, usage=(9, 5)), said("four")
    opening, whole = await remote_usage(events[0], wait_for=1), await remote_usage(*events, wait_for=4)
    assert opening == Usage(prompt_tokens=9, completion_tokens=3, estimated=True)
    assert whole == Usage(prompt_tokens=9, completion_tokens=6, estimated=True)


@pytest.mark.parametrize("whole", [False, True])
async def test_of_a_server_that_has_said_nothing_the_prompt_is_known(whole: bool) -> None:
    assert await remote_usage(wait_for=0, whole=whole) == Usage(prompt_tokens=24, estimated=True)


TEXTS = st.text(max_size=24)
DELTAS = st.builds(
    lambda index, text, reasoning, call: Delta(
        index=index,
        text=text,
        reasoning=reasoning,
        tool_calls=[ToolCallDelta(index=0, id="", name="", arguments=call)] if call else [],
    ),
    st.integers(0, 2), TEXTS, TEXTS, TEXTS,
)  # fmt: skip


@settings(max_examples=examples(50))
@given(deltas=st.lists(DELTAS, max_size=12), max_tokens=st.integers(1, 40), reports=st.sets(st.integers(0, 11)))
def test_an_estimate_only_grows_and_never_passes_what_was_asked_for(
    deltas: list[Delta], max_tokens: int, reports: set[int]
) -> None:
    tally = Tally(3, 24)
    assert tally.usage() == Usage()
    tally.sent, tally.max_tokens = True, max_tokens
    told, before, text = 0, Usage(prompt_tokens=24), 0
    for index, delta in enumerate(deltas):
        if index in reports:
            told = min(before.completion_tokens + 3, 3 * max_tokens)
            tally.report(Usage(prompt_tokens=24, completion_tokens=told))
            text = 0
        else:
            text += len((delta.text + delta.reasoning + "".join(c.arguments for c in delta.tool_calls)).encode())
        tally.passed([delta])
        used = tally.usage()
        assert before.completion_tokens <= used.completion_tokens <= 3 * max_tokens
        assert used.completion_tokens >= min(3 * max_tokens, told + math.ceil(text / 4))
        assert used.reasoning_tokens <= used.completion_tokens
        before = used
