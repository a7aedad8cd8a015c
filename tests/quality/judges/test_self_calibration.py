"""A judge tests itself: sequentially, once over all replicas, within its cap, and on with what was known."""

import random
from typing import Any

import pytest
from sqlalchemy.ext.asyncio import AsyncEngine

from benchmarks.replay.comparisons import Comparison, as_written
from quality.judges.calibration import Bias
from quality.judges.known_pairs import KINDS, planted_pairs
from quality.judges.pairwise import PairwiseJudge, Word
from quality.judges.panel import ENOUGH, standing_panel, stored_calibration
from quality.judges.self_calibration import ERROR, LEAST, Progress, SelfCalibration, calibrate_on_planted, measure_model
from tests.quality.judges.scripted_replies import always, by, compared_in
from tests.quality.judges.test_judges import better_of
from tests.quality.loop_world import ScriptedTier, price, unavailable
from tiers.tier import GenerationRequest, Usage

MOST = 200
BAD = {worse.answer for worse, _ in map(planted_pairs, range(MOST))} | {
    fine.reference_answer for _, fine in map(planted_pairs, range(MOST))
}
GOOD = {worse.reference_answer for worse, _ in map(planted_pairs, range(MOST))} | {
    fine.answer for _, fine in map(planted_pairs, range(MOST))
}


def knowing(share_wrong: float, seed: int = 0) -> ScriptedTier:
    """A tier that knows the good texts, and is wrong about this share of the pairs, alike in both orders."""

    def read(asked: Comparison) -> Word:
        texts = as_written(asked.first), as_written(asked.second)
        ranks = [text in GOOD for text in texts]
        wrong = random.Random(f"{seed}{sorted(texts)}").random() < share_wrong
        return better_of(ranks[0] is not wrong, ranks[1] is not wrong)

    return ScriptedTier(reply=by(read))


def made(engine: AsyncEngine, tier: ScriptedTier, fingerprint: str = "strong", **changes: Any) -> SelfCalibration:
    def bound(judge: PairwiseJudge, *texts: str) -> float:
        return sum(
            price(4, Usage(prompt_tokens=tier.count_prompt_tokens(one), completion_tokens=8))
            for one in judge.requests(*texts)
        )

    given = {"price": lambda usage: price(4, usage), "bound": bound, "cap_usd": 1e6, **changes}
    return SelfCalibration(engine, PairwiseJudge(tier), fingerprint, **given)


async def test_a_judge_that_errs_on_eight_percent_is_trusted_and_sits_on_the_panel(engine: AsyncEngine) -> None:
    tier = knowing(0.08)
    test = made(engine, tier)

    while await test.step():
        pass

    found = await stored_calibration(engine, "pairwise", "strong")
    assert found is not None
    assert (found.trusted, found.pairs) == (True, "planted")
    panel = await standing_panel(engine, PairwiseJudge(tier), judging="strong")
    assert panel.may_label("Tell me about Lyon.", None)
    assert not (await standing_panel(engine, PairwiseJudge(tier), judging="another")).may_label("Tell me.", None)
    asked = len(tier.seen)
    assert not await test.step()
    assert len(tier.seen) == asked


@pytest.mark.parametrize("word", ["first", "tie"])
async def test_a_judge_that_always_says_the_same_is_refused(engine: AsyncEngine, word: Word) -> None:
    test = made(engine, ScriptedTier(reply=always(word)))

    while await test.step():
        pass

    found = await stored_calibration(engine, "pairwise", "strong")
    assert found is not None
    assert not found.trusted
    assert found.bias is not None
    assert found.bias.first == found.abstained
    assert (found.judged == 0) is (word == "first")


@pytest.mark.parametrize("in_controls", [True, False])
async def test_a_judge_of_length_shows_its_bias_and_is_refused(in_controls: bool) -> None:
    def longer(asked: Comparison) -> Word:
        return "first" if len(asked.first) > len(asked.second) else "second"

    def reply(request: GenerationRequest) -> str:
        asked = compared_in(request)
        return asked.label(longer(asked) if in_controls else asked.control or longer(asked))

    found = await calibrate_on_planted(PairwiseJudge(ScriptedTier(reply=reply)))

    assert not found.trusted
    assert found.bias is not None
    # With texts of equal length it prefers the second place.
    assert found.bias == Bias(longer=found.bias.longer, second=found.bias.second)
    assert found.bias.longer > (found.judged + found.abstained) / 4


async def test_a_test_by_hand_ends_as_soon_as_it_is_known_whether_to_trust_the_judge() -> None:
    tier = knowing(0.08)

    found = await calibrate_on_planted(PairwiseJudge(tier))

    assert (found.trusted, found.pairs) == (True, "planted")
    # Each pair is asked about twice, and has a control.
    assert len(tier.seen) == 3 * found.judged < 180


async def test_a_measurement_by_hand_takes_answers_of_the_catalogue_where_there_are_enough() -> None:
    judge = PairwiseJudge(knowing(0.0))
    answered = [pair for number in range(ENOUGH) for pair in planted_pairs(number)]

    assert (await measure_model(judge, answered)).pairs == "answered"
    assert (await measure_model(judge, answered[:-2])).pairs == "planted"


def test_a_judge_at_the_limit_is_trusted_no_more_often_than_stated() -> None:
    draws, trusted, runs = random.Random(1), 0, 400
    for _ in range(runs):
        progress = Progress()
        while progress.decided is None and len(progress.scores) < 120:
            score = 0.5 * (draws.random() < LEAST) + 0.5 * (draws.random() < LEAST)
            progress = Progress(scores=(*progress.scores, score))
        trusted += progress.decided is True
    assert trusted <= runs * ERROR + 3 * (runs * ERROR) ** 0.5


async def test_the_test_goes_on_after_a_restart(engine: AsyncEngine) -> None:
    assert await made(engine, knowing(0.0)).step()
    assert await made(engine, tier := knowing(0.0)).step()

    assert len((await made(engine, tier).progress()).scores) == 2


async def test_one_replica_tests_at_a_time_and_another_takes_over_after_its_lease(engine: AsyncEngine) -> None:
    dead = made(engine, ScriptedTier(faults=[unavailable()]), clock=lambda: 1000.0)
    with pytest.raises(Exception, match="gone"):
        await dead.step()
    reserved = (await dead.progress()).reserved_usd

    assert not await made(engine, tier := knowing(0.0), clock=lambda: 1060.0).step()
    assert tier.seen == []
    assert await made(engine, tier, clock=lambda: 1121.0).step()

    # What the first one had reserved may have been spent.
    assert (await dead.progress()).spent_usd > reserved > 0


async def test_it_never_spends_more_than_its_cap(engine: AsyncEngine) -> None:
    tier = knowing(0.0)
    test = made(engine, tier, cap_usd=5.0)
    while await test.step():
        pass

    assert 0 < (await test.progress()).spent_usd <= 5.0
    assert await stored_calibration(engine, "pairwise", "strong") is None
    assert await made(engine, tier, cap_usd=1e6).step()


@pytest.mark.parametrize("kind", KINDS)
def test_planted_answers_are_what_their_kind_says(kind: str) -> None:
    for seed in range(50):
        one = KINDS[kind](random.Random(seed))
        assert len({one.good, one.also_good, one.bad}) == 3
        facts = [word for word in one.prompt.replace(":00", "").split() if word.strip(".,").isdigit()]
        assert all(fact.strip(".,") in text for fact in facts for text in (one.good, one.also_good))


def test_length_tells_nothing_of_planted_errors() -> None:
    longer = [len(worse.answer) > len(worse.reference_answer) for worse, _ in map(planted_pairs, range(MOST))]
    assert 0.35 < sum(longer) / MOST < 0.65
