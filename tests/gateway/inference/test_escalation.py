"""An answer whose own evidence speaks against it goes to the next tier before the caller has seen any of it."""

import asyncio
import logging
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from classifier.policy.agreement_counts import AgreementPlace, AgreementTable
from classifier.registry.registry import ArtefactRegistry
from gateway.inference.answer import Answer
from gateway.inference.escalation import ActiveProbes
from tests.examples import examples
from tests.gateway.inference.known_probes import known_probes
from tests.gateway.inference.scripted_service import CATALOG, ScriptedService
from tiers.catalog.catalog import CatalogInUse
from tiers.conversation import Turn
from tiers.errors import TierError
from tiers.tier import Delta, TierLoad

UNSURE, SURE = -4.0, -0.1
LONG = tuple(f" w{i}" for i in range(12))
SECOND = "Hello there, how are you?"  # of tier 2


class EscalatingService(ScriptedService):
    """One with probes of tier 1, which says twelve words; tier 2 says its usual five."""

    def __init__(self, **knobs: object) -> None:
        super().__init__(probed=True, **knobs)
        self.tiers[0].words = LONG
        self.classifier.p_ok = (0.999, 0.9, 0.9, 1.0)


async def test_streams_are_not_held_and_nothing_is_asked_of_the_tier_by_default() -> None:
    scripted = EscalatingService()
    scripted.tiers[0].sureness, scripted.tiers[0].hold_at = (UNSURE,), 1
    answer = await scripted.answer()  # returns although the second word has not been drawn
    assert not scripted.tiers[0].go.is_set()
    scripted.tiers[0].go.set()
    assert "".join([delta.text async for delta in answer]) == "".join(LONG)
    assert scripted.attempts() == [(1, "ok", None)]
    assert scripted.tiers[0].requests[0].evidence is None


async def test_an_unsure_opening_escalates_a_stream_that_may_wait_and_nothing_of_it_is_seen() -> None:
    scripted = EscalatingService(hold_tokens=8)
    scripted.tiers[0].sureness = (UNSURE,)
    assert await scripted.streamed() == SECOND
    assert scripted.attempts() == [(1, "escalated", "opening"), (2, "ok", None)]
    record = scripted.records[0]
    # 2 words of the caller and 4 of the template, and the 8 tokens held; then 6 and 5 at tier 2's prices.
    assert [attempt.cost_usd for attempt in record.attempts] == [0.00000375, 0.000013125]
    assert record.cost_usd == pytest.approx(0.000016875)
    assert (record.tier, record.completion_tokens, record.status) == (2, 5, "ok")


async def test_a_sure_stream_is_held_for_no_more_than_hold_tokens_and_delivered_whole() -> None:
    scripted = EscalatingService(hold_tokens=4)
    scripted.tiers[0].hold_at = 4
    answer = await scripted.answer()  # returns although the fifth word has not been drawn
    assert not scripted.tiers[0].go.is_set()
    scripted.tiers[0].go.set()
    assert "".join([delta.text async for delta in answer]) == "".join(LONG)
    assert scripted.attempts() == [(1, "ok", "opening")]
    assert answer.p_ok == pytest.approx(1 / (1 + 2.718281828**-3.62), abs=1e-3)


async def test_an_answer_that_is_held_counts_its_tokens_when_its_tier_gave_them() -> None:
    scripted = EscalatingService(hold_tokens=4)
    answer = await scripted.answer()
    await answer.whole()
    stamps = answer.stamps
    assert stamps.first_made is not None
    assert stamps.first_delta is not None
    # All four words that were held were drawn before the first was passed on.
    assert stamps.first_made + sum(gap for gap, _ in stamps.gaps[:3]) <= stamps.first_delta
    assert len(stamps.gaps) == len(LONG) - 1


async def test_a_stream_is_not_let_go_before_its_opening_is_judged() -> None:
    scripted = EscalatingService(hold_tokens=4)
    scripted.tiers[0].hold_at = 3
    opening = asyncio.create_task(scripted.answer())
    await scripted.tiers[0].holding.wait()
    await asyncio.sleep(0)
    assert not opening.done()
    scripted.tiers[0].go.set()
    await (await opening).aclose()


async def test_a_whole_answer_is_judged_whole() -> None:
    scripted = EscalatingService()
    scripted.tiers[0].sureness = (*[SURE] * 10, *[-12.0] * 2)  # a fifth of the tokens
    answer = await scripted.answer(stream=False)
    assert answer.choices[0].text == SECOND
    assert scripted.attempts() == [(1, "escalated", "whole"), (2, "ok", None)]
    # The whole first answer is billed: 6 tokens in, 12 out.
    assert scripted.records[0].attempts[0].cost_usd == 0.00000525
    assert "judged by the whole answer: P(good enough) is 0.0" in str(scripted.records[0].attempts[0].reason)
    assert answer.escalated_from is not None


async def test_no_hidden_state_is_asked_for() -> None:
    scripted = EscalatingService()
    await (await scripted.answer(stream=False)).aclose()
    evidence = scripted.tiers[0].requests[0].evidence
    assert evidence is not None
    assert (evidence.layer, evidence.tokens) == (None, True)


async def test_a_tier_that_tells_no_evidence_is_asked_for_logprobs_which_the_caller_does_not_see() -> None:
    scripted = EscalatingService()
    scripted.tiers[0].num_layers = 0
    answer = await scripted.answer(stream=False)
    request = scripted.tiers[0].requests[0]
    assert (request.evidence, request.sampling.logprobs) == (None, 0)
    assert answer.p_ok == pytest.approx(1 / (1 + 2.718281828 ** -(4 - 4 * 0.2231)), abs=1e-3)  # all of -0.25
    assert not answer.choices[0].logprobs


async def test_an_answer_is_judged_by_its_text_where_the_tier_tells_no_uncertainty() -> None:
    scripted = EscalatingService()
    scripted.tiers[0].words = ("I am sorry,", " as an AI model I cannot", " do that.")
    answer = await scripted.answer(stream=False)
    assert answer.choices[0].text == SECOND
    assert scripted.attempts() == [(1, "escalated", "whole"), (2, "ok", None)]


async def test_a_stream_that_is_handed_over_is_billed_for_what_was_held_even_without_reported_tokens() -> None:
    scripted = EscalatingService(hold_tokens=8)
    scripted.tiers[0].sureness = (UNSURE,)
    scripted.tiers[0].tells_token_ids = False
    await scripted.streamed()
    assert scripted.attempts()[0] == (1, "escalated", "opening")
    # 6 tokens of the prompt and 8 held.
    assert scripted.records[0].attempts[0].cost_usd == 0.00000375


async def test_a_stream_that_ends_while_it_is_held_is_judged_whole() -> None:
    scripted = EscalatingService(hold_tokens=8)
    scripted.tiers[0].words = ("a", "b")
    scripted.tiers[0].sureness = (UNSURE,)
    assert await scripted.streamed() == SECOND
    assert scripted.attempts()[0] == (1, "escalated", "whole")


async def test_knobs_change_while_serving() -> None:
    scripted = EscalatingService(judge_answers=False)
    scripted.tiers[0].sureness = (UNSURE,)
    assert (await scripted.answer(stream=False)).choices[0].text == "".join(LONG)
    assert scripted.tiers[0].requests[-1].evidence is None  # what is not looked at is not asked for
    scripted.knobs.change({"judge_answers": True})
    assert (await scripted.answer(stream=False)).choices[0].text == SECOND


@pytest.mark.parametrize(
    "fields", [{"requested_model": "tier-1"}, {"n": 2}, {"max_cost_usd": 0.00009}, {"best_of": 2}, {"adapter": "sql"}]
)
async def test_requests_that_leave_no_choice_are_not_judged(fields: dict[str, object]) -> None:
    scripted = EscalatingService()
    scripted.tiers[0].sureness = (UNSURE,)
    await (await scripted.answer(stream=False, **fields)).aclose()
    assert scripted.attempts() == [(1, "ok", None)]
    assert scripted.tiers[0].requests[0].evidence is None


class CheckableService(EscalatingService):
    """Tier 1 says with a P of 0.5 that there are 36 legs, and `second` when it is asked again."""

    def __init__(self, second: str, **knobs: object) -> None:
        super().__init__(**knobs)
        first = self.tiers[0]
        first.words, first.later_words, first.sureness = ("There are 36.",), (second,), (-1.718,)
        self.verified(20, agreed=20)

    def verified(self, compared: int, agreed: int, lost: int = 0) -> None:
        """What verification found on two samples of tier 1's numbers."""
        place = AgreementPlace("", "", "", "number")
        for number in range(compared):
            self.agreements.table.compared(place, (1, 1), number < agreed)
        for number in range(agreed):
            self.agreements.table.verified(place, (1, 1), float(number < lost))

    async def asked(self, **fields: Any) -> Answer:
        return await self.answer(stream=False, **{"messages": [QUESTION]} | fields)


QUESTION = Turn.of("user", "How many legs do nine dogs have?")


async def test_a_second_sample_that_agrees_keeps_a_checkable_answer_and_both_are_billed() -> None:
    scripted = CheckableService("So it is 36 legs.")
    answer = await scripted.asked()
    assert answer.choices[0].text == "There are 36."
    assert scripted.attempts() == [(1, "compared", None), (1, "ok", "agreement")]
    assert not scripted.tiers[1].requests
    second = scripted.tiers[0].requests[1]
    assert (second.sampling.temperature, second.sampling.seed) == (0.8, None)
    record = scripted.records[0]
    # The prompt's 11 tokens and one of the answer, twice; usage is that of the answer that was given.
    assert record.attempts[0].cost_usd == record.attempts[1].cost_usd > 0
    assert record.cost_usd == pytest.approx(2 * record.attempts[1].cost_usd)
    assert record.completion_tokens == 1
    assert answer.p_ok > 0.99


async def test_a_second_sample_that_differs_escalates() -> None:
    scripted = CheckableService("It is 32.")
    answer = await scripted.asked()
    assert answer.choices[0].text == SECOND
    assert scripted.attempts() == [(1, "compared", None), (1, "escalated", "agreement"), (2, "ok", None)]
    assert scripted.records[0].cost_usd == pytest.approx(sum(one.cost_usd for one in scripted.records[0].attempts))


async def test_a_second_sample_that_fails_leaves_the_first_verdict_and_the_fall_over() -> None:
    scripted = CheckableService("It is 36.")
    scripted.tiers[1].fail_at = 0
    first = scripted.tiers[0]
    generate = first.generate

    def failing(request: Any) -> Any:
        if first.requests:
            first.fail_at = 0
        return generate(request)

    first.generate = failing  # type: ignore[method-assign]
    answer = await scripted.asked()
    assert answer.tier.number == 3
    assert [attempt.status for attempt in scripted.records[0].attempts] == ["compared", "escalated", "error", "ok"]


@pytest.mark.parametrize(
    ("fields", "sureness"),
    [
        ({"messages": [Turn.of("user", "Say hello.")]}, -1.718),  # nothing to check
        ({}, -6.0),  # agreement is too unlikely to pay for the sample
        ({"deadline_seconds": 30.0}, -1.718),  # no time for another answer
        ({"max_cost_usd": 0.01}, -1.718),
    ],
)
async def test_no_second_sample_is_drawn_where_it_does_not_pay(fields: dict[str, Any], sureness: float) -> None:
    scripted = CheckableService("There are 36.")
    scripted.tiers[0].sureness = (sureness,)
    await scripted.asked(**fields)
    assert [attempt[:2] for attempt in scripted.attempts()] == [(1, "escalated"), (2, "ok")]
    assert len(scripted.tiers[0].requests) == 1


@pytest.mark.parametrize(
    ("compared", "agreed", "lost", "drawn"),
    [
        (19, 19, 0, False),  # too few are verified
        (20, 20, 0, True),
        (40, 40, 30, False),  # what agrees is wrong
        (300, 20, 0, False),  # too few agree
    ],
)
async def test_a_second_sample_is_drawn_only_where_verified_counts_of_the_kind_show_a_gain(
    compared: int, agreed: int, lost: int, drawn: bool
) -> None:
    scripted = CheckableService("There are 36.")
    scripted.agreements.table = AgreementTable()
    scripted.verified(compared, agreed, lost)
    await scripted.asked()
    assert len(scripted.tiers[0].requests) == 1 + drawn


async def test_a_caller_who_leaves_during_a_second_sample_is_billed_for_it() -> None:
    scripted = CheckableService("There are 36.")
    first = scripted.tiers[0]
    generate = first.generate

    def holding(request: Any) -> Any:
        if first.requests:
            first.later_words, first.hold_at = ("There", " are"), 1
        return generate(request)

    first.generate = holding  # type: ignore[method-assign]
    asking = asyncio.create_task(scripted.asked())
    await first.holding.wait()
    asking.cancel()
    with suppress(asyncio.CancelledError):
        await asking
    assert [attempt.status for attempt in scripted.records[0].attempts] == ["compared", "aborted"]
    assert all(attempt.cost_usd > 0 for attempt in scripted.records[0].attempts)
    assert first.ended.is_set()
    assert scripted.service.in_flight == 0


@pytest.mark.parametrize(("late", "answers"), [((2,), 3), ((2, 3), 4), ((2, 3, 4), 1)])
async def test_a_deadline_that_no_tier_above_can_keep_keeps_the_answer(late: tuple[int, ...], answers: int) -> None:
    scripted = EscalatingService(hold_tokens=8)
    scripted.tiers[0].sureness, scripted.tiers[0].hold_at = (UNSURE,), 2
    reading = asyncio.create_task(scripted.streamed(deadline_seconds=5.0))
    await scripted.tiers[0].holding.wait()
    for number in late:
        scripted.tiers[number - 1].health = TierLoad(predicted_wait_seconds=9.0)
    scripted.tiers[0].go.set()
    assert await reading == ("".join(LONG) if answers == 1 else SECOND)
    assert scripted.records[0].tier == answers
    if answers != 1:
        return
    assert scripted.attempts() == [(1, "ok", "opening")]
    assert "tier 2's queue takes 9000 ms, the deadline leaves" in str(scripted.records[0].attempts[0].reason)


async def test_two_answers_that_cost_more_than_the_maximum_are_not_bought() -> None:
    scripted = EscalatingService()
    scripted.tiers[0].sureness = (UNSURE,)
    # Tier 2 alone is predicted at $0.00038, with tier 1's whole answer at $0.00045.
    answer = await scripted.answer(stream=False, max_cost_usd=0.0004)
    assert answer.tier.number == 1
    assert "above the maximum" in str(scripted.records[0].attempts[0].reason)


@pytest.mark.parametrize(
    ("p_ok", "target", "answers"),
    [
        ((0.99, 0.05, 0.05, 1.0), 0.0, 1),  # a strongest answer is worth no more than what it costs
        ((0.99, 0.2, 0.2, 1.0), 0.0, 2),
        ((0.99, 0.2, 0.2, 1.0), 0.7, 4),  # and here 70 points
        ((0.99, 0.2, 0.95, 1.0), 0.7, 3),
    ],
)
async def test_the_tier_above_that_is_worth_most_takes_over_if_it_is_worth_more(
    p_ok: tuple[float, ...], target: float, answers: int
) -> None:
    scripted = EscalatingService()
    scripted.tiers[0].sureness = (UNSURE,)  # 0.08
    scripted.classifier.p_ok = p_ok
    answer = await scripted.answer(stream=False, quality_target=target)
    assert answer.tier.number == answers


async def test_the_second_answer_is_not_judged_again() -> None:
    scripted = EscalatingService()
    scripted.tiers[0].sureness = (UNSURE,)
    await scripted.answer(stream=False)
    assert scripted.tiers[1].requests[0].evidence is None
    assert not scripted.tiers[2].requests


async def test_a_tier_that_fails_after_an_escalation_is_still_replaced_once() -> None:
    scripted = EscalatingService()
    scripted.tiers[0].sureness = (UNSURE,)
    scripted.tiers[1].fail_at = 0
    assert (await scripted.answer(stream=False)).choices[0].text == SECOND
    assert scripted.attempts() == [(1, "escalated", "whole"), (2, "error", None), (3, "ok", None)]


async def test_a_caller_who_leaves_while_the_stream_is_held_frees_the_work_and_is_billed_for_it() -> None:
    scripted = EscalatingService(hold_tokens=8)
    scripted.tiers[0].hold_at = 3
    opening = asyncio.create_task(scripted.answer())
    await scripted.tiers[0].holding.wait()
    opening.cancel()
    with suppress(asyncio.CancelledError):
        await opening
    assert scripted.tiers[0].closed_early == 1
    assert [attempt.status for attempt in scripted.records[0].attempts] == ["aborted"]
    assert scripted.records[0].completion_tokens == 3
    assert scripted.service.in_flight == 0


async def test_models_fitted_on_another_tier_are_refused(caplog: pytest.LogCaptureFixture) -> None:
    scripted = EscalatingService()
    scripted.probes.use(known_probes(CATALOG, fingerprint="another"))
    scripted.tiers[0].sureness = (UNSURE,)
    assert (await scripted.answer(stream=False)).choices[0].text == "".join(LONG)
    assert "is not what answers there now" in caplog.text


async def test_an_artefact_of_an_earlier_version_is_skipped_with_one_line_that_says_what_to_run(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "probes-old").mkdir()
    (tmp_path / "probes-old" / "manifest.json").write_text('{"schema_version": 1, "version": "probes-old"}')
    ArtefactRegistry(tmp_path).promote("probes-old")
    scripted = EscalatingService()
    scripted.service.probes = probes = ActiveProbes(tmp_path, CatalogInUse(CATALOG), scripted.knobs)
    probes.load()
    (line,) = [one.getMessage() for one in caplog.records if one.levelno >= logging.ERROR]
    assert "Run `aio classifier collect` into a new folder and `aio classifier probes`" in line
    scripted.tiers[0].sureness = (UNSURE,)
    assert (await scripted.answer(stream=False)).choices[0].text == "".join(LONG)


@settings(max_examples=examples(80), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    stream=st.booleans(),
    hold=st.integers(0, 8),
    words=st.lists(st.text("ab ", min_size=1, max_size=3), max_size=14),
    sureness=st.lists(st.sampled_from([SURE, UNSURE]), min_size=1, max_size=10),
    fail_at=st.none() | st.integers(0, 12),
    read=st.integers(0, 30),
)
async def test_what_is_heard_is_one_tiers_answer_from_its_beginning_and_in_order(
    stream: bool,
    hold: int,
    words: list[str],
    sureness: list[float],
    fail_at: int | None,
    read: int,
) -> None:
    scripted = EscalatingService(hold_tokens=hold)
    first = scripted.tiers[0]
    first.words, first.sureness, first.fail_at = tuple(words), tuple(sureness), fail_at
    heard: list[Delta] = []
    answer: Answer | None = None
    with suppress(TierError):
        answer = await scripted.answer(stream=stream)
        while stream and len(heard) < read and (delta := await anext(answer, None)) is not None:
            heard.append(delta)
    if answer is not None:
        await answer.aclose()
    assert scripted.service.in_flight == 0
    (record,) = scripted.records
    text = "".join(delta.text for delta in heard) if stream else (record.answer or "")
    own = "".join(words) if record.tier == 1 else SECOND
    assert own.startswith(text)
    if record.status == "ok":
        assert text == own or (stream and len(heard) == read)
    assert all(tier.ended.is_set() for tier in scripted.tiers if tier.requests)
    assert [a.status for a in record.attempts].count("escalated") <= 1
    assert record.cost_usd == pytest.approx(sum(attempt.cost_usd for attempt in record.attempts))
