"""An answer, without HTTP: whatever ends it, its tier is released and exactly one record is left."""

import asyncio
from contextlib import suppress

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gateway.base.errors import ApiError
from gateway.inference.answer import Answer
from gateway.inference.service import Service
from quality.records.record import Record
from tests.examples import examples
from tests.gateway.chats import chat
from tests.gateway.inference.scripted_service import ScriptedService
from tests.support.scripted_tier import ScriptedTier
from tiers.catalog.load import load_catalog
from tiers.errors import TierError, TierRequestError, TierUnavailableError
from tiers.tier import GenerationRequest

CATALOG = load_catalog("laptop")


@pytest.fixture
def scripted() -> ScriptedService:
    return ScriptedService()


async def consume(answer: Answer, deltas: int) -> None:
    for _ in range(deltas):
        if await anext(answer, None) is None:
            return


@settings(max_examples=examples(60), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    stream=st.booleans(),
    n=st.integers(1, 3),
    fail_at=st.none() | st.integers(0, 5),
    second_fail_at=st.none() | st.integers(0, 5),
    error=st.sampled_from([TierError("x"), TierUnavailableError("x"), TierRequestError("x", "seed"), KeyError("bug")]),
    read=st.integers(0, 30),
)
async def test_one_record_and_no_open_tier_whatever_happens(
    stream: bool, n: int, fail_at: int | None, second_fail_at: int | None, error: Exception, read: int
) -> None:
    scripted = ScriptedService()
    first, second = scripted.tiers[0], scripted.tiers[1]
    first.fail_at, first.error, second.fail_at = fail_at, error, second_fail_at
    request = chat(stream=stream, n=n)
    with suppress(TierError, KeyError):
        if stream:
            answer = await scripted.service.start(request)
            try:
                await consume(answer, read)
            finally:
                await answer.aclose()
        else:
            await scripted.service.complete(request)
    assert scripted.service.in_flight == 0
    (record,) = scripted.records
    assert all(tier.ended.is_set() for tier in scripted.tiers if tier.requests)
    assert record.cost_usd == pytest.approx(sum(attempt.cost_usd for attempt in record.attempts))
    assert [attempt.status for attempt in record.attempts[:-1]] == ["error"] * (len(record.attempts) - 1)
    assert record.attempts[-1].status == record.status
    assert len(record.attempts) <= 2
    if record.status == "ok":
        assert record.answer == "Hello there, how are you?"
        assert record.completion_tokens == 5 * n


async def test_cancelling_the_reader_records_an_aborted_answer(scripted: ScriptedService) -> None:
    tier = scripted.tiers[0]
    tier.hold_at = 2
    answer = await scripted.service.start(chat(stream=True))
    reading = asyncio.create_task(consume(answer, 99))
    await tier.holding.wait()
    reading.cancel()
    await asyncio.gather(reading, return_exceptions=True)
    await answer.aclose()
    await answer.aclose()
    assert [record.status for record in scripted.records] == ["aborted"]
    assert tier.closed_early == 1


async def test_what_a_tier_has_generated_is_billed_even_if_it_is_closed_meanwhile(
    scripted: ScriptedService, monkeypatch: pytest.MonkeyPatch
) -> None:
    def gone(self: ScriptedTier, request: GenerationRequest) -> int:
        raise TierUnavailableError("the tier is closed")

    answer = await scripted.service.start(chat(stream=True))
    monkeypatch.setattr(ScriptedTier, "count_prompt_tokens", gone)
    await answer.aclose()
    (record,) = scripted.records
    assert (record.status, record.prompt_tokens, record.completion_tokens) == ("aborted", 6, 1)


async def test_a_failing_sink_spoils_neither_the_answer_nor_the_other_sinks(scripted: ScriptedService) -> None:
    def broken(answer: Answer, record: Record) -> None:
        raise OSError("disk full")

    scripted.service = Service(scripted.routing, [broken, lambda answer, record: scripted.records.append(record)])
    answer = await scripted.service.complete(chat())
    assert answer.choices[0].text == "Hello there, how are you?"
    assert len(scripted.records) == 1


async def test_a_draining_service_refuses_and_counts_what_is_left(scripted: ScriptedService) -> None:
    scripted.tiers[0].hold_at = 1
    answer = await scripted.service.start(chat(stream=True))
    assert await scripted.service.drain(0) == 1
    with pytest.raises(ApiError) as caught:
        await scripted.service.start(chat(stream=True))
    assert caught.value.status == 503
    await answer.aclose()
    assert await scripted.service.drain(0) == 0


async def test_a_fall_over_asks_the_next_tier_with_its_own_defaults(scripted: ScriptedService) -> None:
    scripted.tiers[0].fail_at = 0
    answer = await scripted.service.complete(chat())
    first, second = scripted.tiers[0].requests[0], scripted.tiers[1].requests[0]
    assert first.deadline is not None
    assert second.deadline is not None
    assert second.deadline - second.arrival == pytest.approx(CATALOG.tier(2).objective.ttft_ms / 1e3)
    assert answer.tier.number == 2
