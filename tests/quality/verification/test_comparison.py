"""A verification compares cheap answers as well, within its budget and the prompt's consent."""

from collections.abc import Mapping
from typing import Any

import msgspec
import pytest
from sqlalchemy.ext.asyncio import AsyncEngine

from migrations.tables.quality import verifications
from quality.records.record import Attempt, ComparedAs
from quality.verification import comparison
from quality.verification.comparison import VerifiedComparison, agreeing, is_lost, place_of, read_agreements
from tests.quality.loop_world import PROMPT, ScriptedTier, record, rows, store_request, unavailable
from tests.quality.monitor.monitors import ALL, EVERY, monitor_of
from tiers.catalog.consent import Consent
from tiers.final_answer.extract import final_answer

KINDS = ("number", "choice")
NUMBER = ComparedAs(kind="number")
PAIR = VerifiedComparison(tiers=(1, 2), compared_as=NUMBER)
TWICE = VerifiedComparison(tiers=(1, 1), compared_as=NUMBER)
MODELS = {number: f"model-{number}" for number in (1, 2, 3, 4)}
ALONE = msgspec.structs.replace(ALL, second_opinions=0)


def ladder_of(*answers: str) -> list[ScriptedTier]:
    def reply(text: str) -> Any:
        return lambda request: text

    return [ScriptedTier(number, reply=reply(text)) for number, text in enumerate(answers, start=1)]


async def compared(
    engine: AsyncEngine,
    tiers: list[ScriptedTier],
    wanted: VerifiedComparison = PAIR,
    settings: Any = ALONE,
    **fields: Any,
) -> dict[str, Any]:
    """The first row of one verification; by default tier 1 answered 7."""
    monitor = await monitor_of(engine, tiers[-1], settings, tiers=tiers)
    served = record("one", **fields)
    await store_request(engine, served)
    await monitor.start()
    try:
        monitor.offer(served, lambda purpose: wanted)
        await monitor.drain()
    finally:
        await monitor.close()
    return (await rows(engine, verifications))[0]


def asked(tiers: list[ScriptedTier]) -> list[int]:
    return [len(tier.seen) for tier in tiers]


@pytest.mark.parametrize(
    ("partner", "reference", "found"),
    [("7", "7", (True, False)), ("7", "8", (True, True)), ("9", "7", (False, None))],
)
async def test_the_partner_is_asked_once_and_compared(
    engine: AsyncEngine, partner: str, reference: str, found: tuple[bool, bool | None]
) -> None:
    tiers = ladder_of("7", partner, "0", reference)
    row = await compared(engine, tiers)
    assert (row["compared"]["agreed"], row["compared"]["lost"]) == found
    assert row["compared"]["models"] == ["model-1", "model-2"]
    assert asked(tiers) == [0, 1, 0, 1]
    # 15 tokens by tier 2 and by the strongest.
    assert row["cost_usd"] == pytest.approx((2 + 4) * 15 / 1000)


async def test_the_strongests_answer_is_compared_with_without_being_asked_for_again(engine: AsyncEngine) -> None:
    tiers = ladder_of("7", "7", "7", "7")
    row = await compared(engine, tiers, tier=4, answer="8")
    assert (row["compared"]["agreed"], row["compared"]["lost"]) == (True, True)
    assert asked(tiers) == [1, 1, 1, 0]


async def test_a_probe_compares_the_answers_that_it_has_at_no_cost(engine: AsyncEngine) -> None:
    probing = msgspec.structs.replace(
        ALONE, sampling=msgspec.structs.replace(EVERY, rates=(0.0,) * 4, probe_rate=1.0, probe_share=0.5)
    )
    tiers = ladder_of("7", "7", "7", "7")
    row = await compared(engine, tiers, settings=probing)
    assert row["sampled_reason"] == "probe"
    assert (row["compared"]["agreed"], row["compared"]["lost"]) == (True, False)
    assert asked(tiers) == [0, 1, 1, 1]


@pytest.mark.parametrize(("budget", "partner"), [(0.06, 0), (0.08, 1)])
async def test_the_budget_pays_the_comparison_or_the_verification_alone(
    engine: AsyncEngine, budget: float, partner: int
) -> None:
    # At the served length the reference costs about 4 * 0.012 dollars, and the partner's answer 2 * 0.012. The one
    # request cost a dollar, and half of the share is for probes.
    sampling = msgspec.structs.replace(EVERY, budget_share=2 * budget)
    tiers = ladder_of("7", "7", "7", "7")
    row = await compared(engine, tiers, settings=msgspec.structs.replace(ALONE, sampling=sampling))
    assert (row["status"], row["label"]) == ("done", "no_worse")
    assert asked(tiers) == [0, partner, 0, 1]
    assert (row["compared"] is not None) == bool(partner)


async def test_a_partner_that_may_not_see_the_request_is_not_asked(engine: AsyncEngine) -> None:
    tiers = ladder_of("7", "7", "7", "7")
    row = await compared(engine, tiers, consent=Consent(tiers=frozenset({1, 4})))
    assert (row["label"], row["compared"]["agreed"]) == ("no_worse", None)
    assert asked(tiers) == [0, 0, 0, 1]


async def test_a_partner_that_fails_leaves_the_label(engine: AsyncEngine) -> None:
    tiers = ladder_of("7", "7", "7", "7")
    tiers[1] = ScriptedTier(2, faults=[unavailable()])
    row = await compared(engine, tiers)
    assert (row["status"], row["label"], row["compared"]["agreed"]) == ("done", "no_worse", None)
    table = await read_agreements(engine, MODELS)
    assert table.levels(place_of("alice", "alice", NUMBER), (1, 2))[-1].compared == 0


async def test_two_samples_of_a_tier_are_its_answer_and_one_more(engine: AsyncEngine) -> None:
    tiers = ladder_of("7", "0", "0", "7")
    row = await compared(engine, tiers, TWICE)
    assert (row["compared"]["agreed"], row["compared"]["lost"]) == (True, False)
    assert asked(tiers) == [1, 0, 0, 1]
    assert tiers[0].seen[0].sampling.temperature > 0


async def test_no_verification_costs_more_than_is_reserved(engine: AsyncEngine) -> None:
    tiers = ladder_of("8", "8", "8", "7")
    monitor = await monitor_of(engine, tiers[-1], ALL, tiers=tiers)
    served = record("one", answer="8")
    await store_request(engine, served)
    monitor.offer(served, lambda purpose: PAIR)
    await monitor._take_offer()
    job = await monitor._queue.next_job(2000.0)
    assert job is not None
    bound = monitor._verifier.bound_usd(job)
    without = monitor._verifier.bound_usd(msgspec.structs.replace(job, compared=None))
    assert bound - without == pytest.approx(2 * (10 + 1024) / 1000)
    spent = sum(ruling.cost_usd for ruling in await monitor._verifier.verify(job))
    assert spent <= bound


async def test_what_verification_compared_is_counted_for_the_models_of_now(any_engine: AsyncEngine) -> None:
    await compared(any_engine, ladder_of("7", "7", "7", "8"))
    place = place_of("alice", "alice", NUMBER)
    here = (await read_agreements(any_engine, MODELS)).levels(place, (1, 2))[-1]
    assert (here.compared, here.agreed, here.verified, here.lost) == (1, 1, 1, 1)
    changed = await read_agreements(any_engine, MODELS | {2: "another"})
    assert changed.levels(place, (1, 2))[-1].compared == 0


@pytest.mark.parametrize(
    ("texts", "agreed"), [(("7", "7"), [2, 1]), (("6", "7"), []), (("6", "7", "7"), [3, 2]), (("7", "7", "6"), [])]
)
def test_those_agree_that_say_what_the_last_one_says(texts: tuple[str, ...], agreed: list[int]) -> None:
    assert agreeing(range(1, len(texts) + 1), [final_answer(PROMPT, text) for text in texts]) == agreed


@pytest.mark.parametrize(
    ("labels", "equal", "lost"),
    [
        ({1: "worse"}, True, True),
        ({1: "tie"}, False, False),
        ({1: "no_worse"}, False, False),
        ({1: "uncertain"}, False, None),
        ({1: None}, False, True),
        ({1: None}, True, False),
        ({3: "worse"}, True, False),  # no label of an agreed answer
    ],
)
def test_a_judge_says_what_is_lost_and_equality_where_none_does(
    labels: Mapping[int, str | None], equal: bool, lost: bool | None
) -> None:
    end, other = final_answer(PROMPT, "7"), final_answer(PROMPT, "8")
    verdicts = {number: (label, 0.9) for number, label in labels.items()}
    found, informed = is_lost([2, 1], verdicts, end, end if equal else other)
    assert found is lost
    assert informed == pytest.approx(0.8 if labels.get(1) in ("worse", "tie", "no_worse") else 1.0)


def test_the_judge_who_calls_an_answer_worse_is_the_one_whose_errors_count() -> None:
    end = final_answer(PROMPT, "7")
    assert is_lost([2, 1], {1: ("no_worse", 0.7), 2: ("worse", 0.9)}, end, end) == (True, pytest.approx(0.8))
    assert is_lost([2, 1], {1: ("no_worse", 0.7), 2: ("tie", 0.9)}, end, end) == (False, pytest.approx(0.8))
    assert is_lost([2, 1], {1: ("worse", None)}, end, end) == (True, 1.0)


async def test_a_rare_kind_is_counted_however_many_requests_of_others_are_newer(
    any_engine: AsyncEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(comparison, "MOST_OF_A_KIND", 3)
    for number, kind in enumerate(["number", *["choice"] * 5]):
        found = ComparedAs(kind=kind)
        both = [
            Attempt(tier=1, model="model-1", status="agreed", cost_usd=1.0, compared_as=found),
            Attempt(tier=2, model="model-2", status="ok", cost_usd=1.0, compared_as=found),
        ]
        await store_request(any_engine, record(f"{kind}-{number}", attempts=both, created_at=1000.0 + number))
    for number in range(5):
        await store_request(any_engine, record(f"other-{number}", created_at=2000.0 + number))
    table = await read_agreements(any_engine, MODELS)
    counted = {kind: table.levels(place_of("alice", "alice", ComparedAs(kind=kind)), (1, 2)) for kind in KINDS}
    assert {kind: levels[-1].compared for kind, levels in counted.items()} == {"number": 1, "choice": 3}
