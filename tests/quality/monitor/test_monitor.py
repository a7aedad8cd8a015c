"""The monitor: from an offered record to a stored verdict and a training row."""

import msgspec
import pytest
from sqlalchemy.ext.asyncio import AsyncEngine

from classifier.complexity.classes import Complexity
from migrations.tables.quality import training_rows, verifications
from quality.judges.calibration import Calibration
from quality.judges.pairwise import PairwiseJudge
from quality.judges.panel import Panel
from quality.judges.rules import ExactJudge, SimilarityJudge
from tests.quality.judges.scripted_replies import always
from tests.quality.loop_world import ScriptedTier, record, rows
from tests.quality.monitor.monitors import ALL, EVERY, TIERS, running_monitor, serve

TRUSTED = Calibration(
    judge="pairwise", true_no_worse=90, false_worse=5, true_worse=90, false_no_worse=5, abstained=0, pairs="planted"
)


async def test_a_good_answer_becomes_a_label_and_a_training_row(engine: AsyncEngine) -> None:
    async with running_monitor(engine, ScriptedTier(reply=lambda request: "The answer is 7.")) as monitor:
        await serve(monitor, engine, record("req-1", tier=2))

    [verdict] = await rows(engine, verifications)
    assert (verdict["status"], verdict["label"], verdict["judge"]) == ("done", "no_worse", "exact")
    assert (verdict["tier"], verdict["verifier_tier"], verdict["sampled_probability"]) == (2, 4, 1.0)
    [learned] = await rows(engine, training_rows)
    assert learned["no_worse"] == [None, True, None, True]
    assert learned["weights"][0] == 0.0
    assert learned["weights"][1] > 0.9
    assert (learned["feature_spec"], learned["correct"], learned["key_id"]) == ("test-1", None, "alice")
    assert learned["tiers"] == TIERS


async def test_a_wrong_answer_is_labelled_worse(engine: AsyncEngine) -> None:
    async with running_monitor(engine, ScriptedTier()) as monitor:
        await serve(monitor, engine, record("req-1", answer="8"))

    [learned] = await rows(engine, training_rows)
    assert learned["no_worse"] == [False, None, None, True]


async def test_verification_costs_what_the_tier_billed(engine: AsyncEngine) -> None:
    async with running_monitor(engine, ScriptedTier()) as monitor:
        await serve(monitor, engine, record("req-1", prompt="What is 3 + 4"))

    [verdict] = await rows(engine, verifications)
    assert verdict["cost_usd"] == pytest.approx(4 * (5 + 5) / 1000)


async def test_a_probe_asks_every_other_tier_and_teaches_all_outcomes(engine: AsyncEngine) -> None:
    settings = msgspec.structs.replace(ALL, sampling=msgspec.structs.replace(EVERY, probe_rate=1.0))
    tiers = [ScriptedTier(1, reply=lambda request: "8"), ScriptedTier(2), ScriptedTier(3), ScriptedTier()]
    async with running_monitor(engine, tiers[-1], settings, tiers=tiers) as monitor:
        await serve(monitor, engine, record("req-1", tier=2))
        evidence = (await monitor.status()).evidence_of_shift

    found = {row["tier"]: row["label"] for row in await rows(engine, verifications)}
    assert found == {1: "worse", 2: "no_worse", 3: "no_worse"}
    # Each tier is looked at by what the probe said of it; prompts of the class by what was served.
    assert {f"tier {tier}, familiar prompts" for tier in (1, 2, 3)} <= set(evidence)
    assert evidence["tier 1, familiar prompts"] > 1 > evidence["tier 2, familiar prompts"]
    assert sum(stream in {f"{one.name} prompts" for one in Complexity} for stream in evidence) <= 1
    # The strongest is asked again about the worse answer; the third tier's answer is its second opinion.
    assert [len(tier.seen) for tier in tiers] == [1, 0, 1, 2]
    [learned] = await rows(engine, training_rows)
    assert (learned["source"], learned["no_worse"]) == ("probe", [False, True, True, True])
    assert all(learned["weights"][:3])


@pytest.mark.parametrize(
    ("served", "asked", "judged"),
    # Tier 4 is asked again about a worse answer, and tier 2 has the second opinion.
    [(4, [0, 1, 1, 1], {3: "worse"}), (3, [0, 1, 0, 1], {2: "no_worse", 3: "no_worse"})],
)
async def test_a_dear_answer_is_compared_with_the_tier_below_to_find_what_was_overpaid(
    engine: AsyncEngine, served: int, asked: list[int], judged: dict[int, str]
) -> None:
    tiers = [ScriptedTier(1), ScriptedTier(2), ScriptedTier(3, reply=lambda request: "8"), ScriptedTier()]
    async with running_monitor(engine, tiers[-1], tiers=tiers) as monitor:
        await serve(monitor, engine, record("req-1", tier=served))

    found = await rows(engine, verifications)
    assert {row["tier"]: row["label"] for row in found} == judged
    assert {row["sampled_reason"] for row in found} == {"downgrade"}
    assert [len(tier.seen) for tier in tiers] == asked


async def test_a_probe_is_billed_once_within_its_bound(engine: AsyncEngine) -> None:
    settings = msgspec.structs.replace(ALL, sampling=msgspec.structs.replace(EVERY, probe_rate=1.0))
    async with running_monitor(engine, ScriptedTier(), settings) as monitor:
        await serve(monitor, engine, record("req-1", tier=2, prompt="What is 3 + 4"))

    found = await rows(engine, verifications)
    # Tiers 1, 3 and 4 answered with 5 tokens each after 5 of the prompt; the second tier's answer was there.
    assert sum(row["cost_usd"] for row in found) == pytest.approx((1 + 3 + 4) * (5 + 5) / 1000)


async def test_no_reference_is_bought_for_an_open_question_that_no_trusted_judge_can_label(engine: AsyncEngine) -> None:
    verifier = ScriptedTier(reply=always("tie"))
    async with running_monitor(
        engine, verifier, judges=[ExactJudge(), SimilarityJudge(), PairwiseJudge(verifier)]
    ) as monitor:
        await serve(monitor, engine, record("open", prompt="Tell me about Lyon.", answer="A town."), record("closed"))
        status = await monitor.status()

    assert [row["request_id"] for row in await rows(engine, verifications)] == ["closed"]
    assert (status.sampled, status.held, status.no_judge) == (1, 1, 0)
    # The closed question's reference, and the second one of a verdict of worse.
    assert all("Lyon" not in str(request.messages) for request in verifier.seen)


async def test_open_answers_drawn_before_a_judge_is_trusted_are_verified_once_one_is(engine: AsyncEngine) -> None:
    verifier = ScriptedTier(reply=always("tie"))
    judge = PairwiseJudge(verifier)
    settings = msgspec.structs.replace(ALL, max_held=3)
    async with running_monitor(engine, verifier, settings, judges=[judge]) as monitor:
        await serve(
            monitor, engine, *(record(f"open-{n}", prompt="Tell me about Lyon.", answer="A town.") for n in range(5))
        )
        before = await monitor.status()
        asked = list(verifier.seen)

        monitor.panel = Panel([judge], {"pairwise": TRUSTED})
        await monitor.drain()
        after = await monitor.status()

    assert (before.held, before.no_judge, asked) == (3, 2, [])
    assert (after.held, after.no_judge, after.sampled) == (0, 2, 3)
    found = {row["request_id"]: row["label"] for row in await rows(engine, verifications)}
    assert found == {"open-2": "tie", "open-3": "tie", "open-4": "tie"}


async def test_what_has_waited_for_a_judge_too_long_is_given_up(engine: AsyncEngine) -> None:
    verifier, now = ScriptedTier(reply=always("tie")), 1500.0
    judge = PairwiseJudge(verifier)
    async with running_monitor(engine, verifier, judges=[judge], clock=lambda: now) as monitor:
        await serve(monitor, engine, record("open", prompt="Tell me about Lyon.", answer="A town."))

        now += ALL.expire_seconds + 1000.0
        monitor.panel = Panel([judge], {"pairwise": TRUSTED})
        await monitor.drain()
        status = await monitor.status()

    assert (status.held, status.no_judge, status.sampled) == (0, 1, 0)


async def test_two_different_valid_answers_are_stored_without_a_label_and_say_why(engine: AsyncEngine) -> None:
    async with running_monitor(engine, ScriptedTier(reply=lambda request: "I cannot say.")) as monitor:
        await serve(monitor, engine, record("req-1"))

    [verdict] = await rows(engine, verifications)
    assert (verdict["status"], verdict["label"], verdict["judge"]) == ("done", None, None)
    assert "no judge decided" in verdict["reason"]
    assert await rows(engine, training_rows) == []


async def test_an_untrusted_pairwise_judge_makes_no_label_but_its_cost_counts(engine: AsyncEngine) -> None:
    verifier = ScriptedTier(reply=always("tie"))
    # The question is one that a trusted judge may decide, and the answers are none that it does.
    async with running_monitor(engine, verifier, judges=[ExactJudge(), PairwiseJudge(verifier)]) as monitor:
        await serve(monitor, engine, record("req-1"))

    [verdict] = await rows(engine, verifications)
    assert (verdict["label"], verdict["judge"]) == (None, "pairwise")
    assert "reliability of judge pairwise is unknown" in verdict["reason"]
    assert len(verifier.seen) == 4
    asked = sum(verifier.count_prompt_tokens(request) + 5 for request in verifier.seen)
    assert verdict["cost_usd"] == pytest.approx(4 * asked / 1000)


async def test_a_cut_off_reference_makes_no_label(engine: AsyncEngine) -> None:
    async with running_monitor(engine, ScriptedTier(finish_reason="length")) as monitor:
        await serve(monitor, engine, record("req-1"))

    [verdict] = await rows(engine, verifications)
    assert (verdict["status"], verdict["label"]) == ("done", None)
    assert "cut off" in verdict["reason"]
