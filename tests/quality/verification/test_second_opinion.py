"""Second opinions: "worse" counts where the strongest tier agrees with itself and no other one with the answer."""

import json
import random
from collections.abc import Callable, Sequence
from typing import Any

import msgspec
import numpy as np
import pytest
from sqlalchemy.ext.asyncio import AsyncEngine

from migrations.tables.quality import training_rows, verifications
from quality.judges.calibration import Calibration, calibrate
from quality.judges.judge import Judge
from quality.judges.known_pairs import graded_pairs
from quality.judges.pairwise import PairwiseJudge
from quality.judges.panel import Panel, rule_based_judges
from quality.monitor.answer_monitor import AnswerMonitor
from quality.monitor.worker import MonitorSettings
from quality.records.record import Record
from quality.verification.job import VerificationJob
from quality.verification.queue import VerificationQueue
from quality.verification.sampling import SamplingSettings
from quality.verification.training_rows import EncodedPrompt
from quality.verification.verifier import Verifier
from tests.quality.judges.scripted_replies import by
from tests.quality.loop_world import ScriptedTerms, ScriptedTier, record, rows, store_request, unavailable
from tiers.tier import GenerationRequest

EVERY = SamplingSettings(rates=(1.0,) * 4, least_attention=1.0, probe_rate=0.0, budget_share=1e6)
TRUSTED = Calibration(judge="pairwise", true_no_worse=90, false_worse=10, true_worse=90, false_no_worse=10, abstained=0)


async def _encode(messages: list[dict[str, str]]) -> EncodedPrompt:
    return EncodedPrompt(feature_spec="test-1", embedding=np.zeros(2, "<f4").tobytes(), features=None)


async def verified(
    engine: AsyncEngine,
    tiers: Sequence[ScriptedTier],
    served: Record,
    *,
    opinions: int = 2,
    pairwise: bool = False,
    sampling: SamplingSettings = EVERY,
    max_tokens: int = 1024,
) -> AnswerMonitor:
    """A monitor, closed, that has verified `served`."""
    judges: list[Judge] = rule_based_judges()
    known = {judge.name: await calibrate(judge, graded_pairs()) for judge in judges}
    if pairwise:
        judges, known = [PairwiseJudge(tiers[-1])], {"pairwise": TRUSTED}
    settings = MonitorSettings(sampling=sampling, second_opinions=opinions, max_tokens=max_tokens, retry_seconds=0.0)
    monitor = AnswerMonitor(
        engine, tiers, settings, terms=ScriptedTerms(), panel=Panel(judges, known), encode=_encode, clock=lambda: 1500.0
    )
    await monitor.start()
    await store_request(engine, served)
    monitor.offer(served)
    await monitor.drain()
    await monitor.close()
    return monitor


def says(*answers: str) -> Callable[[GenerationRequest], str]:
    """A reply: each of `answers` in turn, the last one for ever."""
    left = list(answers)
    return lambda request: left.pop(0) if len(left) > 1 else left[0]


def ladder(strongest: ScriptedTier, third: ScriptedTier | None = None) -> list[ScriptedTier]:
    return [ScriptedTier(1), ScriptedTier(2), third or ScriptedTier(3), strongest]


async def outcome(engine: AsyncEngine) -> tuple[dict[str, Any], list[list[bool | None]]]:
    [verdict] = await rows(engine, verifications)
    return verdict, [row["no_worse"] for row in await rows(engine, training_rows)]


@pytest.mark.parametrize(
    ("strongest", "third", "because"),
    [
        (["8", "7"], "7", "compared with a second answer of tier 4 it is not worse"),
        (["8", "9"], "7", "tier 4 answered differently when asked again"),
        (["8", "8"], "7", "tier 3 agrees with it"),
    ],
)
async def test_an_error_of_the_strongest_tier_is_no_label_for_a_right_answer(
    engine: AsyncEngine, strongest: list[str], third: str, because: str
) -> None:
    tiers = ladder(ScriptedTier(reply=says(*strongest)), ScriptedTier(3, reply=says(third)))

    monitor = await verified(engine, tiers, record("req-1", answer="7"))

    verdict, learned = await outcome(engine)
    assert (verdict["status"], verdict["label"], verdict["judge"]) == ("done", "uncertain", "exact")
    assert because in verdict["reason"]
    assert learned == []
    status = await monitor.status()
    assert (status.queue.labelled, status.queue.uncertain) == (0, 1)
    assert status.upgrade_rates[0].needs_upgrade.total == 0
    assert status.acceptance == {}
    assert (status.second_opinions.confirmed, status.second_opinions.uncertain) == (0, 1)


async def test_what_only_the_strongest_tier_knows_is_still_learned(engine: AsyncEngine) -> None:
    """A weaker tier that is wrong in its own way says nothing for the answer."""
    tiers = ladder(ScriptedTier(reply=says("7")), ScriptedTier(3, reply=says("9")))

    await verified(engine, tiers, record("req-1", prompt="What is 3 + 4?", answer="8"))

    verdict, learned = await outcome(engine)
    assert (verdict["label"], learned) == ("worse", [[False, None, None, True]])


async def test_a_wrong_answer_is_worse_once_both_opinions_confirm_it_and_they_are_paid_from_the_budget(
    engine: AsyncEngine,
) -> None:
    tiers = ladder(ScriptedTier(reply=says("7")))

    monitor = await verified(engine, tiers, record("req-1", prompt="What is 3 + 4?", answer="8"))

    verdict, learned = await outcome(engine)
    assert (verdict["label"], learned) == ("worse", [[False, None, None, True]])
    first, again = tiers[-1].seen
    assert (first.sampling.temperature, again.sampling.temperature) == (0.0, 0.7)
    given = (await monitor.status()).second_opinions
    # An answer bills ten tokens: two of tier 4 and one of tier 3, of which all but the first are opinions.
    assert given.cost_usd == pytest.approx((4 + 3) * 10 / 1000)
    assert verdict["cost_usd"] == pytest.approx((4 + 4 + 3) * 10 / 1000)
    queue = VerificationQueue(engine, EVERY, lease_seconds=1.0, max_attempts=1)
    assert (await queue.spending(1600.0)).committed_usd == pytest.approx(verdict["cost_usd"])


@pytest.mark.parametrize(("budget", "verifications_drawn"), [(0.027, 0), (0.029, 1)])
async def test_a_budget_that_does_not_cover_the_expected_price_starts_no_verification(
    engine: AsyncEngine, budget: float, verifications_drawn: int
) -> None:
    sampling = msgspec.structs.replace(EVERY, budget_share=budget, probe_share=0.0)
    served = record("req-1", prompt="What is 3 + 4?", answer="8", prompt_tokens=5)

    await verified(engine, ladder(ScriptedTier()), served, sampling=sampling, max_tokens=5)

    found = await rows(engine, verifications)
    assert [(row["status"], row["label"]) for row in found] == [("done", "worse")] * verifications_drawn


async def test_without_opinions_the_first_answer_decides(engine: AsyncEngine) -> None:
    tiers = ladder(ScriptedTier(reply=says("8", "7")))

    await verified(engine, tiers, record("req-1", answer="7"), opinions=0)

    verdict, learned = await outcome(engine)
    assert (verdict["label"], learned, len(tiers[-1].seen)) == ("worse", [[False, None, None, True]], 1)


async def test_an_answer_that_fails_a_check_of_its_own_needs_no_opinion(engine: AsyncEngine) -> None:
    tiers = ladder(ScriptedTier(reply=says(json.dumps({"name": "Ada"}))))
    asked = record("req-1", prompt="Return a JSON object with the name of Ada.", answer="name: Ada")

    await verified(engine, tiers, asked)

    verdict, learned = await outcome(engine)
    assert (verdict["judge"], verdict["label"], len(tiers[-1].seen)) == ("json", "worse", 1)
    assert learned == [[False, None, None, True]]


async def test_a_tier_that_is_away_gives_no_opinion_and_stops_nothing(engine: AsyncEngine) -> None:
    away = ScriptedTier(3, faults=[unavailable()])

    await verified(engine, ladder(ScriptedTier(), away), record("req-1", answer="8"))

    verdict, _ = await outcome(engine)
    assert (verdict["status"], verdict["attempts"], verdict["label"], len(away.seen)) == ("done", 1, "worse", 1)


@pytest.mark.parametrize(
    ("words", "label"), [("second first second first", "worse"), ("second first tie tie", "uncertain")]
)
async def test_an_open_answer_is_judged_against_a_second_answer_too(
    engine: AsyncEngine, words: str, label: str
) -> None:
    told = iter(words.split())
    strongest = ScriptedTier(reply=by(lambda asked: next(told), lambda request: "A city in France."))  # type: ignore[arg-type, return-value]
    tiers = ladder(strongest)

    await verified(engine, tiers, record("req-1", prompt="Tell me about Lyon.", answer="A town."), pairwise=True)

    verdict, learned = await outcome(engine)
    assert verdict["label"] == label
    assert len(learned) == (label == "worse")
    # Two answers and twice three comparisons by the strongest tier; another tier's preference would say nothing.
    assert (len(strongest.seen), len(tiers[2].seen)) == (8, 0)


@pytest.mark.parametrize("lasting", [False, True])
async def test_a_tenth_of_planted_errors_makes_no_false_labels(lasting: bool) -> None:
    """The weaker tiers know all answers, so that every "worse" is an error of the strongest tier. `lasting`: it errs
    alike when it is asked again."""
    known = {f"What is {n} + 1? Answer with the number only.": n + 1 for n in range(100, 300)}

    def planted(request: GenerationRequest) -> str:
        assert request.messages is not None
        prompt = request.messages[-1].text
        again = bool(request.sampling.temperature) and not lasting
        wrong = random.Random(f"{prompt}{again}").random() < 0.1
        return f"The answer is {3 if wrong else known[prompt]}."

    def right(request: GenerationRequest) -> str:
        assert request.messages is not None
        return f"The answer is {known[request.messages[-1].text]}."

    tiers = [ScriptedTier(number, reply=right) for number in (1, 2, 3)]
    judges = rule_based_judges()
    panel = Panel(judges, {judge.name: await calibrate(judge, graded_pairs()) for judge in judges})
    labels: dict[int, list[str]] = {}
    for opinions in (0, 2):
        verifier = Verifier(
            [*tiers, ScriptedTier(reply=planted)],
            panel,
            ScriptedTerms(lambda tier, usage: 0.0),
            max_tokens=64,
            opinions=opinions,
        )
        jobs = [
            VerificationJob(
                verification_id=number, request_id=f"req-{number}", key_id=None, purpose="sample", served_tier=1,
                messages=[{"role": "user", "content": prompt}], answer=f"The answer is {answer}.", attempts=0,
            )
            for number, (prompt, answer) in enumerate(known.items())
        ]  # fmt: skip
        labels[opinions] = [ruling.label for job in jobs for ruling in await verifier.verify(job)]

    assert 0.05 < labels[0].count("worse") / len(known) < 0.15
    assert labels[2].count("worse") == 0
    assert labels[2].count("uncertain") == labels[0].count("worse")
