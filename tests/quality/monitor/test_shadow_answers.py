"""Shadow answers: what routing would have answered is asked in the background, judged against the given answer, and
paid from the budget of verification."""

from itertools import count
from typing import Any

import msgspec
import numpy as np
import pytest
from sqlalchemy.ext.asyncio import AsyncEngine

from migrations.tables.quality import training_rows, verifications
from quality.comparison.observed_routing import ObservedRouting, in_words, observed_routing
from quality.judges.calibration import calibrate
from quality.judges.known_pairs import graded_pairs
from quality.judges.pairwise import PairwiseJudge
from quality.judges.panel import Panel
from quality.judges.rules import ExactJudge
from quality.monitor.answer_monitor import AnswerMonitor
from quality.monitor.worker import MonitorSettings
from quality.records.record import Record
from quality.verification.sampling import SamplingSettings, Spending, draw, refusal, thinning
from quality.verification.training_rows import EncodedPrompt
from tests.quality.judges.scripted_replies import always
from tests.quality.loop_world import ScriptedTerms, ScriptedTier, record, rows, store_request, unavailable
from tiers.tier import Tier

EVERY = SamplingSettings(
    rates=(0.0,) * 4, probe_rate=0.0, shadow_rate=1.0, least_attention=1.0, budget_share=1e6, probe_share=0.0
)
RICH = Spending(serving_usd=1e6, answered={4: 10})


def watched(request_id: str, *, tier: int = 4, would_be: int = 1, **changes: Any) -> Record:
    """Answered by `tier` while routing, which would have taken another one, was only observed."""
    served = record(request_id, tier=tier, **changes)
    return msgspec.structs.replace(served, decision=msgspec.structs.replace(served.decision, would_be=would_be))


async def _encode(messages: list[dict[str, str]]) -> EncodedPrompt:
    return EncodedPrompt(feature_spec="test-1", embedding=np.zeros(2, "<f4").tobytes(), features=None)


def tiers_of(*cheapest: ScriptedTier) -> list[Tier]:
    return [*cheapest, *(ScriptedTier(number) for number in range(len(cheapest) + 1, 5))]


async def monitored(
    engine: AsyncEngine, tiers: list[Tier], sampling: SamplingSettings = EVERY, opinions: int = 0, **more: Any
) -> AnswerMonitor:
    panel = Panel([ExactJudge()], {"exact": await calibrate(ExactJudge(), graded_pairs())})
    settings = MonitorSettings(sampling=sampling, second_opinions=opinions, retry_seconds=0.0, max_attempts=2)
    monitor = AnswerMonitor(
        engine, tiers, settings, terms=ScriptedTerms(fingerprints=["one", "two", "three", "four"]),
        panel=panel, encode=_encode, **({"clock": lambda: 1500.0} | more),
    )  # fmt: skip
    await monitor.start()
    return monitor


async def reported(engine: AsyncEngine, since: float = 0.0) -> ObservedRouting:
    return await observed_routing(engine, since, 2000.0)


async def served(monitor: AnswerMonitor, engine: AsyncEngine, *records: Record) -> None:
    for one in records:
        await store_request(engine, one)
        monitor.offer(one)
    await monitor.drain()


async def test_the_tier_of_routing_is_asked_and_judged_against_the_given_answer(engine: AsyncEngine) -> None:
    cheap = ScriptedTier(1, reply=lambda request: "The answer is 8.")
    tiers = tiers_of(cheap)
    monitor = await monitored(engine, tiers)

    await served(monitor, engine, watched("req-1"))
    await monitor.close()

    [verdict] = await rows(engine, verifications)
    assert (verdict["sampled_reason"], verdict["status"], verdict["label"]) == ("shadow", "done", "worse")
    assert (verdict["tier"], verdict["model"], verdict["verifier_tier"]) == (1, "model-1", 4)
    assert (verdict["verifier_answer"], verdict["judged_answer"]) == ("7", "The answer is 8.")
    # Tier 1 alone was asked, and the rule that judged costs nothing.
    assert verdict["judged_cost_usd"] == verdict["cost_usd"] == pytest.approx((10 + 5) / 1000)
    assert [request.priority for request in cheap.seen] == [3]
    assert not any(tier.seen for tier in tiers[1:] if isinstance(tier, ScriptedTier))
    [learned] = await rows(engine, training_rows)
    assert (learned["source"], learned["no_worse"]) == ("verification", [False, None, None, True])


async def test_the_given_tier_is_asked_again_before_the_answer_of_routing_counts_as_worse(engine: AsyncEngine) -> None:
    tiers = tiers_of(ScriptedTier(1, reply=lambda request: "8"))
    tiers[-1] = again = ScriptedTier(4, reply=lambda request: "8")
    monitor = await monitored(engine, tiers, opinions=2)

    await served(monitor, engine, watched("req-1"))
    found = await reported(engine)
    await monitor.close()

    [verdict] = await rows(engine, verifications)
    assert (verdict["label"], verdict["verifier_answer"], len(again.seen)) == ("uncertain", "7", 1)
    assert (found.judged, found.worse, found.shadows.undecided) == (0, 0, 1)
    assert await rows(engine, training_rows) == []


async def test_against_another_answer_than_the_strongests_nothing_is_learned(engine: AsyncEngine) -> None:
    monitor = await monitored(engine, tiers_of(ScriptedTier(1)))

    await served(monitor, engine, watched("req-1", tier=2))
    await monitor.close()

    [verdict] = await rows(engine, verifications)
    assert (verdict["label"], verdict["verifier_tier"]) == ("no_worse", 2)
    assert await rows(engine, training_rows) == []


async def test_where_routing_would_have_changed_nothing_nothing_is_asked(engine: AsyncEngine) -> None:
    monitor = await monitored(engine, tiers_of())

    await served(monitor, engine, watched("req-1", would_be=4))
    await monitor.close()

    assert await rows(engine, verifications) == []


@pytest.mark.parametrize(
    "changes",
    [
        {"messages": None, "answer": None},
        {"messages": [{"role": "user", "content": "What is this?", "attachments": "[image, 9 bytes, 00]"}]},
        {"finish_reason": "tool_calls"},
        {"cache": "hit"},
        {"api": "completion"},
    ],
)
async def test_what_may_not_be_stored_or_cannot_be_compared_has_no_shadow(changes: dict[str, Any]) -> None:
    one = watched("req-1", **changes)

    assert refusal(one) is not None
    assert not draw(one, RICH, 0.0, EVERY).sampled


async def test_every_observed_request_is_drawn_with_the_same_chance_at_the_knobs_share(engine: AsyncEngine) -> None:
    share = 0.0
    monitor = await monitored(engine, tiers_of(), shadow_rate=lambda: share)
    await served(monitor, engine, *(watched(f"off-{k}") for k in range(20)))
    assert await rows(engine, verifications) == []

    share = 1.0
    await served(monitor, engine, *(watched(f"on-{k}") for k in range(20)))
    await monitor.close()
    assert len(await rows(engine, verifications)) == 20

    drawn = [draw(watched(f"req-{k}"), RICH, 0.0, msgspec.structs.replace(EVERY, shadow_rate=0.2)) for k in range(4000)]
    assert {(one.probability, one.purpose) for one in drawn} == {(0.2, "shadow")}
    assert 680 < sum(one.sampled for one in drawn) < 920


def test_the_share_is_thinned_to_what_the_budget_allows() -> None:
    settings = msgspec.structs.replace(EVERY, shadow_rate=0.5, budget_share=0.1)
    spending = Spending(serving_usd=100.0, answered={4: 1000}, committed_usd=2.0, verifications=20, shadow_share=0.8)

    # 400 of the 1,000 chats are wanted at ten cents each; ten dollars pay for a quarter.
    assert thinning(spending, 0.1, "shadow", settings) == pytest.approx(0.25)


async def test_shadows_never_cost_more_than_the_budget(engine: AsyncEngine) -> None:
    sampling = msgspec.structs.replace(EVERY, budget_share=0.1)
    seconds = count(1500)
    monitor = await monitored(engine, tiers_of(ScriptedTier(1)), sampling, clock=lambda: float(next(seconds)))

    # Each is served for a dollar; an answer of 1,024 tokens is bounded by a bit more than a dollar.
    await served(monitor, engine, *(watched(f"req-{k}") for k in range(60)))
    status = await monitor.status()
    await monitor.close()

    done = [row for row in await rows(engine, verifications) if row["status"] == "done"]
    assert done
    spent = sum(row["cost_usd"] + row["reserved_usd"] for row in await rows(engine, verifications))
    assert spent <= status.budget_usd == pytest.approx(0.1 * status.spending.serving_usd)


async def test_a_shadow_may_be_twice_as_long_as_the_given_answer(engine: AsyncEngine) -> None:
    cheap = ScriptedTier(1)
    monitor = await monitored(engine, tiers_of(cheap))

    await served(monitor, engine, watched("short"), watched("long", completion_tokens=3000))
    await monitor.close()

    assert [request.max_tokens for request in cheap.seen] == [1024, 6000]


async def test_a_tier_that_fails_is_asked_again_and_then_given_up_which_the_report_says(engine: AsyncEngine) -> None:
    cheap = ScriptedTier(1, faults=[unavailable(), None, unavailable(), unavailable()])
    monitor = await monitored(engine, tiers_of(cheap))

    await served(monitor, engine, watched("req-1"))
    await served(monitor, engine, watched("req-2"))
    await monitor.close()

    assert len(cheap.seen) == 4
    found = await reported(engine)
    assert (found.shadows.judged, found.shadows.failed) == (1, 1)
    assert found.shadows.error is not None
    assert "the core is gone" in found.shadows.error
    assert any("that failed: 1" in sentence for sentence in in_words(found))


async def test_a_tier_of_a_longer_catalogue_is_given_up(engine: AsyncEngine) -> None:
    monitor = await monitored(engine, tiers_of())

    await served(monitor, engine, watched("req-1", would_be=7))
    await monitor.close()

    [verdict] = await rows(engine, verifications)
    assert verdict["status"] == "failed"
    assert "tiers 1 to 4" in verdict["error"]


async def test_the_bound_covers_the_judge_that_asks_the_strongest_tier(engine: AsyncEngine) -> None:
    strongest = ScriptedTier(4, reply=always("tie"))
    tiers: list[Tier] = [ScriptedTier(1, reply=lambda request: "a b c"), ScriptedTier(2), ScriptedTier(3), strongest]
    pairwise = PairwiseJudge(strongest)
    calibration = msgspec.structs.replace(await calibrate(ExactJudge(), graded_pairs()), judge="pairwise")
    monitor = await monitored(engine, tiers)
    monitor.panel = Panel([pairwise], {"pairwise": calibration})

    await served(monitor, engine, watched("req-1", prompt="Tell me something.", answer="x y z"))
    await monitor.close()

    [verdict] = await rows(engine, verifications)
    assert (verdict["label"], verdict["judge"], verdict["scores"]) == ("tie", "pairwise", {"pairwise": 0.5})
    # Both orders and the control were asked, at the strongest tier, after tier 1 had answered.
    assert len(strongest.seen) == 3
    assert verdict["cost_usd"] > verdict["judged_cost_usd"]


async def test_the_report_reads_requests_answers_and_verdicts(any_engine: AsyncEngine) -> None:
    engine = any_engine
    cheap = ScriptedTier(1, reply=lambda request: "8")
    monitor = await monitored(engine, tiers_of(cheap))
    await served(monitor, engine, watched("worse"), watched("same", would_be=4))
    # Without consent, and answered by routing: the one counts for the saving, the other not at all.
    await served(monitor, engine, watched("quiet", messages=None, answer=None), record("routed"))
    await monitor.close()

    found = await reported(engine)

    assert (found.requests, found.same, found.judged, found.worse) == (3, 1, 1, 1)
    # A dollar each; tier 1 costs a quarter of tier 4 by the prediction, and 0.015 by its one answer.
    assert found.cost_ratio == pytest.approx(0.015 / 0.25)
    assert found.net.paid_usd == pytest.approx(1 + 2 * 0.015)
    assert found.net.checks_usd == pytest.approx(0.015)
    [case] = found.worst
    assert (case.request_id, case.label, case.given, case.would_be) == ("worse", "worse", 4, 1)
    assert case.answer_usd == pytest.approx(0.015)
    later = await reported(engine, since=1001.0)
    assert (later.requests, later.worst) == (0, [])


async def test_a_probe_of_an_observed_request_is_a_shadow_of_it_too(engine: AsyncEngine) -> None:
    sampling = SamplingSettings(rates=(0.0,) * 4, probe_rate=1.0, shadow_rate=0.0, budget_share=1e6)
    monitor = await monitored(engine, tiers_of(ScriptedTier(1, reply=lambda request: "8")), sampling)

    await served(monitor, engine, watched("req-1"))
    await monitor.close()

    found = await reported(engine)
    assert (found.judged, found.worse, found.priced) == (1, 1, 1)
