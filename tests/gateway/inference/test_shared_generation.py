"""Callers join a shared generation, leave it or see it fail at any moment: none misses a word, and one pays."""

import asyncio
from typing import Any

import msgspec
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from gateway.base.inference_request import InferenceRequest
from gateway.inference.answer_stores import AnswerStore
from gateway.inference.shared_generation import KeptAnswer, Replay, SharedGeneration, SharedGenerationReader
from inference_core.protocol import SamplingParams
from tests.examples import examples
from tests.gateway.chats import chat
from tests.gateway.inference.scripted_service import ScriptedService
from tests.support.app import scripted_tiers
from tests.support.scripted_tier import WORDS
from tiers.catalog.consent import Consent
from tiers.catalog.load import load_catalog
from tiers.errors import TierError
from tiers.tier import Delta, Usage

CATALOG = load_catalog("laptop")
ANSWER = "".join(WORDS)
# More turns of the loop than an answer takes.
TURNS = 16


class Caller(msgspec.Struct, frozen=True):
    """Asks after `comes` turns of the loop, and is gone after `stays` more if the answer is not there; None: waits.

    `again`: leaving is cancelled too, a turn later.
    """

    comes: int
    stays: int | None = None
    again: bool = False


CALLERS = st.builds(Caller, st.integers(0, TURNS), st.none() | st.integers(0, TURNS), st.booleans())


class SharingService(ScriptedService):
    """One whose callers may share a generation."""

    def request(self, number: int, *, stream: bool, keep: bool, model: str = "tier-1") -> InferenceRequest:
        return chat(
            request_id=f"chatcmpl-{number}",
            requested_model=model,
            sampling=SamplingParams(temperature=0),
            stream=stream,
            own_consent=Consent(reuse=keep),
        )

    async def said(self, number: int, *, stream: bool, keep: bool, model: str = "tier-1") -> str:
        request = self.request(number, stream=stream, keep=keep, model=model)
        if not stream:
            return (await self.service.complete(request)).choices[0].text
        answer = await self.service.start(request)
        try:
            return "".join([delta.text async for delta in answer])
        finally:
            await answer.aclose()


async def called(scripted: SharingService, number: int, caller: Caller, *, stream: bool, keep: bool) -> str | None:
    """What `caller` received; None if it left before the end, "error" if it failed."""
    for _ in range(caller.comes):
        await asyncio.sleep(0)
    asked = asyncio.create_task(scripted.said(number, stream=stream, keep=keep))
    for _ in range(TURNS * 9 if caller.stays is None else caller.stays):
        await asyncio.sleep(0)
    # Waiting callers were answered long ago: a reader that missed the wake-up fails here, not by a timeout.
    asked.cancel()
    if caller.again:
        await asyncio.sleep(0)
        asked.cancel()
    try:
        return await asked
    except asyncio.CancelledError:
        assert caller.stays is not None, "never answered"
        return None
    except TierError:
        return "error"


@settings(max_examples=examples(150), deadline=None)
@given(
    callers=st.lists(CALLERS, min_size=1, max_size=4),
    stream=st.booleans(),
    keep=st.booleans(),
    fail_at=st.none() | st.integers(0, len(WORDS) - 1),
)
@example(callers=[Caller(0), Caller(0)], stream=False, keep=True, fail_at=None)
@example(callers=[Caller(0, 4), Caller(3), Caller(3)], stream=True, keep=False, fail_at=None)
@example(callers=[Caller(0, 4), Caller(3, 2), Caller(3)], stream=False, keep=False, fail_at=4)
@example(callers=[Caller(14, 1), Caller(14), Caller(16)], stream=False, keep=False, fail_at=0)
async def test_no_reader_misses_a_word_and_every_generation_is_billed_once(
    callers: list[Caller], stream: bool, keep: bool, fail_at: int | None
) -> None:
    scripted = SharingService(cached=True)
    tier = scripted.tiers[0]
    tier.fail_at = fail_at
    received = await asyncio.gather(
        *(called(scripted, number, caller, stream=stream, keep=keep) for number, caller in enumerate(callers))
    )

    assert set(received) <= {None, ANSWER if fail_at is None else "error"}
    assert scripted.service.in_flight == 0
    assert not scripted.cache._shared
    asked = {f"chatcmpl-{number}" for number in range(len(callers))}
    assert len(scripted.records) == len({record.request_id for record in scripted.records} & asked)
    billed = [one for record in scripted.records if record.cache == "miss" for one in record.attempts]
    assert len([one for one in billed if one.cost_usd > 0]) == len(tier.requests)
    assert not any(one.cost_usd for record in scripted.records if record.cache != "miss" for one in record.attempts)
    if tier.requests:
        assert tier.ended.is_set()


class Shelf(AnswerStore):
    """Keeps what it is given, or fails with `error`."""

    def __init__(self) -> None:
        self.kept: dict[bytes, bytes] = {}
        self.error: Exception | None = None

    async def get(self, key: bytes) -> bytes | None:
        return self.kept.get(key)

    async def put(self, key: bytes, value: bytes) -> None:
        if self.error is not None:
            raise self.error
        self.kept[key] = value


async def test_an_answer_is_kept_that_just_fits_and_a_store_that_fails_is_asked_again(
    caplog: pytest.LogCaptureFixture,
) -> None:
    scripted = SharingService(cached=True)
    scripted.cache.store = shelf = Shelf()
    shelf.error = RuntimeError("no")
    for number in range(2):
        assert await scripted.said(number, stream=False, keep=True) == ANSWER
        await scripted.service.idle()
    assert "an answer is not kept: RuntimeError" in caplog.text
    shelf.error = None
    await scripted.said(2, stream=False, keep=True)
    await scripted.service.idle()
    (value,) = shelf.kept.values()
    for number, (most, kept) in enumerate(((len(value) - 1, 0), (len(value), 1)), start=3):
        shelf.kept.clear()
        scripted.cache.knobs.change({"max_bytes": most})
        await scripted.said(number, stream=False, keep=True)
        await scripted.service.idle()
        assert len(shelf.kept) == kept


@pytest.mark.parametrize(("pieces", "turns"), [(126, 1), (127, 2), (128, 2)])
async def test_a_replay_lets_others_work_after_64_deltas(pieces: int, turns: int) -> None:
    decision: Any = None
    kept = KeptAnswer(tier=1, p_ok=1.0, attempts=[], usage=Usage(), pieces=[Delta(text="x")] * pieces)
    replay, turned = Replay(kept, decision, scripted_tiers()[0], "hit"), 0
    over = asyncio.Event()

    async def others() -> None:
        nonlocal turned
        while not over.is_set():
            await asyncio.sleep(0)
            turned += 1

    working = asyncio.create_task(others())
    await asyncio.sleep(0)
    said = 0
    while True:
        try:
            await replay.__anext__()
        except StopAsyncIteration:
            break
        said += 1
    over.set()
    assert (said, turned) == (pieces + 1, turns)
    await working


async def test_each_delta_reaches_a_reader_that_waits_and_leaving_takes_until_the_tier_is_free() -> None:
    scripted = SharingService(cached=True)
    tier = scripted.tiers[0]
    tier.hold_at, tier.slow_close = 1, asyncio.Event()
    answer = await scripted.service.start(scripted.request(1, stream=True, keep=True))
    reading = aiter(answer)
    first = asyncio.create_task(anext(reading))
    await tier.holding.wait()
    assert (await first).text == WORDS[0]
    second = asyncio.create_task(anext(reading))
    for _ in range(TURNS):
        await asyncio.sleep(0)
    assert not second.done()
    # It goes on to the next word alone.
    tier.hold_at = 2
    tier.go.set()
    tier.go.clear()
    assert (await second).text == WORDS[1]
    leaving = asyncio.create_task(answer.aclose())
    await tier.closing.wait()
    for _ in range(TURNS):
        await asyncio.sleep(0)
    assert not leaving.done()
    tier.slow_close.set()
    await leaving


class Decided:
    """A generation without words: what it decided, and what it tells of another decision."""

    rerouted, decision = False, "theirs"

    def told(self, decision: str) -> str:
        return f"told of {decision}"

    def __aiter__(self) -> "Decided":
        return self

    async def __anext__(self) -> Delta:
        raise StopAsyncIteration

    async def aclose(self) -> None:
        """Nothing is open."""


async def test_a_reader_has_its_own_decision_unless_another_route_took_its_place() -> None:
    generation: Any = Decided()
    own: Any = "own"
    shared = SharedGeneration(generation, lambda shared: None)
    reader = SharedGenerationReader(shared, own, stream=False)
    said = [str(reader.decision)]
    generation.rerouted = True
    said.append(str(reader.decision))
    await reader.aclose()
    assert said == ["told of own", "theirs"]


async def test_a_tier_that_takes_over_is_read_from_its_first_word() -> None:
    scripted = SharingService(cached=True)
    scripted.tiers[0].fail_at = 2
    asked = [asyncio.create_task(scripted.said(n, stream=False, keep=False, model="auto")) for n in range(2)]
    assert await asyncio.gather(*asked) == [ANSWER] * 2
    assert [len(tier.requests) for tier in scripted.tiers] == [1, 1, 0, 0]


@pytest.mark.parametrize(("words", "requests"), [(0, 2), (1, 1)])
async def test_a_stream_begins_again_only_before_its_first_word(words: int, requests: int) -> None:
    scripted = SharingService(cached=True)
    tier = scripted.tiers[0]
    tier.hold_at = tier.fail_at = words
    asked = [asyncio.create_task(scripted.said(number, stream=True, keep=False)) for number in range(2)]
    await tier.holding.wait()
    for _ in range(TURNS):
        await asyncio.sleep(0)
    tier.go.set()
    await tier.ended.wait()
    tier.fail_at = None
    leader, follower = await asyncio.gather(*asked, return_exceptions=True)
    assert isinstance(leader, TierError)
    assert follower == ANSWER if requests == 2 else isinstance(follower, TierError)
    assert len(tier.requests) == requests
