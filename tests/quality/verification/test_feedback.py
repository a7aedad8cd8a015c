"""Feedback: it becomes the label and the training row, and replaces earlier ones."""

import asyncio
from typing import Any, Literal

import msgspec
import pytest
from sqlalchemy import insert
from sqlalchemy.ext.asyncio import AsyncEngine

from migrations.tables.quality import training_rows, verifications
from quality.estimates.verified_sample import acceptance
from quality.verification.feedback import Feedback, FeedbackDesk
from quality.verification.queue import VerificationQueue
from quality.verification.sampling import Draw, SamplingSettings, refusal
from quality.verification.training_rows import EncodedPrompt
from tests.quality.loop_world import record, rows, store_request

DRAWN = Draw(sampled=True, probability=0.05, reason="drawn")


async def _encode(messages: list[dict[str, str]]) -> EncodedPrompt:
    return EncodedPrompt(feature_spec="test-1", embedding=b"\0" * 8, features=None)


def _desk(engine: AsyncEngine) -> FeedbackDesk:
    return FeedbackDesk(engine, _encode, 4, clock=lambda: 1500.0)


@pytest.mark.parametrize(("score", "label", "good"), [(1.0, "no_worse", True), (0.2, "worse", False)])
async def test_a_thumb_is_stored_as_a_verdict_and_learned_from(
    any_engine: AsyncEngine, score: float, label: str, good: bool
) -> None:
    taken = await _desk(any_engine).take(record("req-1", tier=2), Feedback(score=score))

    assert (taken.tier, taken.label, taken.learned) == (2, label, True)
    [verdict] = await rows(any_engine, verifications)
    assert (verdict["label"], verdict["judge"], verdict["judge_reliability"]) == (label, "user", 1.0)
    assert (verdict["sampled_reason"], verdict["scores"], verdict["cost_usd"]) == ("feedback", {"user": score}, 0.0)
    [lesson] = await rows(any_engine, training_rows)
    assert (lesson["source"], lesson["no_worse"], lesson["weights"]) == (
        "feedback",
        [None, good, None, True],
        [0.0, 1.0, 0.0, 0.0],
    )


@pytest.mark.parametrize("how", [{"continued_at": 40}, {"resumed": True}])
async def test_an_answer_that_was_broken_off_and_went_on_makes_no_label(
    engine: AsyncEngine, how: dict[str, Any]
) -> None:
    whole = record("req-1", tier=2)
    attempts = [msgspec.structs.replace(whole.attempts[0], **how)]
    continued = msgspec.structs.replace(whole, attempts=attempts)
    assert (refusal(whole), refusal(continued)) == (None, "continued")

    taken = await _desk(engine).take(continued, Feedback(score=1.0))

    assert (taken.learned, taken.reason) == (
        False,
        "stored, but not learned from: the answer was broken off and went on",
    )
    assert await rows(engine, training_rows) == []


async def test_later_feedback_replaces_earlier_feedback(any_engine: AsyncEngine) -> None:
    desk = _desk(any_engine)
    await desk.take(record("req-1"), Feedback(score=1.0))

    await desk.take(record("req-1"), Feedback(score=0.0, comment="I was too quick."))

    [verdict] = await rows(any_engine, verifications)
    assert (verdict["label"], verdict["reason"]) == ("worse", "the user's score is 0: I was too quick.")
    [lesson] = await rows(any_engine, training_rows)
    assert lesson["no_worse"][0] is False


async def test_a_review_is_stored_although_another_writer_comes_between(
    engine: AsyncEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    desk, others = _desk(engine), []
    before = desk._before

    async def interrupted(*given: Any) -> Any:
        found = await before(*given)
        others.append(asyncio.create_task(store_request(engine, record("req-2"))))
        # Another's transaction either ends here or waits for this one.
        await asyncio.wait(others, timeout=0.3)
        return found

    monkeypatch.setattr(desk, "_before", interrupted)
    taken = await desk.take(record("req-1"), Feedback(score=1.0), "ann")
    await asyncio.gather(*others)

    assert taken.learned


@pytest.mark.parametrize(("reviewer", "left"), [(None, {"verification", "feedback"}), ("ann", {"review"})])
async def test_a_review_removes_the_label_of_a_judge_and_a_thumb_leaves_it(
    engine: AsyncEngine, reviewer: str | None, left: set[str]
) -> None:
    lesson = {
        "request_id": "req-1",
        "source": "verification",
        "feature_spec": "test-1",
        "embedding": b"",
        "no_worse": [True, None, None, True],
        "weights": [0.9, 0, 0, 0],
        "created_at": 1.0,
    }
    async with engine.begin() as connection:
        await connection.execute(insert(training_rows).values(**lesson))

    await _desk(engine).take(record("req-1"), Feedback(score=0.0), reviewer)

    found = {row["source"]: row["no_worse"][0] for row in await rows(engine, training_rows)}
    assert set(found) == left
    assert all(good == (source == "verification") for source, good in found.items())


async def test_a_thumb_leaves_a_review(engine: AsyncEngine) -> None:
    await _desk(engine).take(record("req-1"), Feedback(score=1.0), "ann")
    await _desk(engine).take(record("req-1"), Feedback(score=0.0))
    assert {row["source"]: row["no_worse"][0] for row in await rows(engine, training_rows)} == {
        "review": True, "feedback": False,
    }  # fmt: skip


async def test_a_verification_that_still_waits_is_spared(engine: AsyncEngine) -> None:
    queue = VerificationQueue(engine, SamplingSettings(), lease_seconds=100.0, max_attempts=3)
    await store_request(engine, record("req-1"))
    await queue.add(record("req-1"), DRAWN, 1400.0)

    await _desk(engine).take(record("req-1"), Feedback(score=1.0))

    assert await queue.next_job(1500.0) is None
    [verdict] = await rows(engine, verifications)
    assert (verdict["status"], verdict["sampled_reason"], verdict["sampled_probability"]) == ("done", "sample", 0.05)


async def test_a_verification_under_way_ends_as_it_will_so_that_its_money_is_booked(engine: AsyncEngine) -> None:
    queue = VerificationQueue(engine, SamplingSettings(budget_share=1e6), lease_seconds=100.0, max_attempts=3)
    await store_request(engine, record("req-1"))
    await queue.add(record("req-1"), DRAWN, 1400.0)
    job = await queue.next_job(1400.0)
    assert job is not None
    await queue.claim(job, 0.5, 1400.0)

    taken = await _desk(engine).take(record("req-1"), Feedback(score=0.0))

    assert taken.learned
    [verdict] = await rows(engine, verifications)
    assert (verdict["status"], verdict["label"], verdict["reserved_usd"]) == ("pending", None, 0.5)


@pytest.mark.parametrize(
    ("feedback", "label"),
    [
        (Feedback(correction="It is 7."), "no_worse"),
        (Feedback(correction="It is 8."), "worse"),
        # A correction with a checkable number outweighs the score given with it.
        (Feedback(correction="It is 8.", score=1.0), "worse"),
        (Feedback(correction="It is 7.", check="failed"), "no_worse"),
    ],
)
async def test_a_correction_that_can_be_checked_speaks_for_itself(
    engine: AsyncEngine, feedback: Feedback, label: str
) -> None:
    assert (await _desk(engine).take(record("req-1"), feedback)).label == label


async def test_a_correction_of_an_open_answer_says_that_it_was_wrong(engine: AsyncEngine) -> None:
    served = record("req-1", prompt="Tell me about Lyon.", answer="A town in Spain.")

    taken = await _desk(engine).take(served, Feedback(correction="A town in France."))

    assert taken.label == "worse"
    [verdict] = await rows(engine, verifications)
    assert verdict["verifier_answer"] == "A town in France."


@pytest.mark.parametrize(
    ("changes", "why"),
    [({"messages": None, "answer": None}, "texts of this request were not kept"), ({"tier": 4}, "no tier is stronger")],
)
async def test_feedback_that_makes_no_label_is_stored_with_a_reason(
    engine: AsyncEngine, changes: dict[str, object], why: str
) -> None:
    served = record("req-1", **changes)

    taken = await _desk(engine).take(served, Feedback(score=0.0, correction="secret", comment="secret"))

    assert not taken.learned
    assert why in taken.reason
    [verdict] = await rows(engine, verifications)
    assert ("secret" in str(verdict)) == (served.messages is not None)
    assert await rows(engine, training_rows) == []


async def test_those_who_complain_do_not_lower_the_estimate_of_what_was_drawn_at_random(engine: AsyncEngine) -> None:
    for i in range(5):
        await store_request(engine, record(f"req-{i}"))
        await _desk(engine).take(record(f"req-{i}"), Feedback(score=0.0))

    assert (await acceptance(engine)).by_tier == {}


@pytest.mark.parametrize(("check", "label"), [("passed", "no_worse"), ("failed", "worse")])
async def test_a_check_of_the_callers_own_is_a_label(
    engine: AsyncEngine, check: Literal["passed", "failed"], label: str
) -> None:
    taken = await _desk(engine).take(record("req-1"), Feedback(check=check))

    assert (taken.label, taken.learned, taken.reason) == (label, True, f"the user's check {check}")
    [verdict] = await rows(engine, verifications)
    assert (verdict["label"], verdict["scores"]) == (label, {})


async def test_empty_feedback_is_refused(engine: AsyncEngine) -> None:
    with pytest.raises(ValueError, match="score, a check or a correction"):
        await _desk(engine).take(record("req-1"), Feedback(comment="hm"))


def test_feedback_is_plain_data() -> None:
    assert msgspec.json.decode(b'{"score": 0.5}', type=Feedback).score == 0.5
