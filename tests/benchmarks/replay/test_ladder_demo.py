"""The demonstration with real answers: its questions, its figures, its properties and their chances of a false failure;
and, as a slow test, ten of its runs."""

from collections.abc import Callable
from math import comb, erfc, sqrt
from pathlib import Path

import msgspec
import numpy as np
import pytest

from benchmarks.replay.checked_ladder import (
    ADAPTER,
    WORSE_TIER,
    CheckedLadder,
    Question,
    Said,
    checked_ladder,
    questions,
    write_catalogue,
)
from benchmarks.replay.deployment import Retraining, Spent
from benchmarks.replay.figures import Figure
from benchmarks.replay.ladder import Prompt
from benchmarks.replay.ladder_demo import QUESTIONS, Told, certainly_worse, counts, demo, picture, properties, worths
from benchmarks.replay.timeline import COLD, RETRAINED, Look
from quality.judges.rules import ExactJudge
from tiers.catalog.load import load_catalog

HELD, TRAFFIC, RULES = counts(QUESTIONS)
MOST = 0.001
USD = (1.0, 2.0, 25.0, 100.0)


def ladder(rng: np.random.Generator) -> CheckedLadder:
    """Eighty questions of two kinds: tier 2 is right about the first, the strongest about both, the cheapest hardly."""
    asked = [Question(Prompt(f"p{n}", "kind", f"question {n}", ()), str.isdigit) for n in range(80)]
    chances = [((0.2, 0.9, 0.9, 0.9), (0.1, 0.1, 0.2, 0.8))[n % 2] for n in range(80)]
    said = [[Said(tier=k + 1, text="", right=bool(rng.random() < p[k]), usd=USD[k]) for k in range(4)] for p in chances]
    return checked_ladder(["tier-1", "tier-2", "tier-3", "tier-4"], asked, said)


def told(tiers_before: list[int], tiers_after: list[int], **changed: object) -> Told:
    """What happens where the held-out questions, two kinds in turn, go to these tiers before and after the labels."""
    asked = ladder(np.random.default_rng(0))
    run = Retraining(trigger="button", status="done", reason="no gain", version=None, accepted=False)
    looks = [
        Look(
            phase=phase,
            spent=Spent(1, 0.0, 0.0, 0, 0),
            version="v1",
            tiers=tuple(tiers * 40),
            ladder=asked,
            retrainings=runs,
            alarms=[],
            worse_tier=None,
        )
        for phase, tiers, runs in ((COLD, tiers_before, []), (RETRAINED, tiers_after, [run]))
    ]
    cold, after = looks
    known = Told(cold=cold, after=after, labelled=7, of=7, trust=(0.8, 0.4), answers=9)
    return msgspec.structs.replace(known, **changed)


HEALTHY = [2, 3], [2, 4]


def failed(one: Told) -> list[str]:
    return [check.name for check in properties(one) if not check.passed]


def test_no_question_is_in_two_lists_and_the_rules_check_the_last_ones() -> None:
    made = questions(3, HELD, TRAFFIC, RULES)
    texts = [[one.prompt.text for one in part] for part in (made.held, made.traffic, made.rules)]
    assert [len(part) for part in texts] == [HELD, TRAFFIC, RULES]
    assert len({text for part in texts for text in part}) == HELD + TRAFFIC + RULES == QUESTIONS
    assert all(ExactJudge().may_decide(text, None) for text in texts[2])
    again = questions(3, HELD, TRAFFIC, RULES)
    assert texts == [[one.prompt.text for one in part] for part in (again.held, again.traffic, again.rules)]
    assert {"chat", "sums", "logic"} <= {one.prompt.kind for one in made.held}


def test_more_questions_than_there_are_are_refused() -> None:
    with pytest.raises(ValueError, match="ask for fewer"):
        questions(0, HELD, TRAFFIC, 400)


def test_the_tier_that_gets_worse_loses_its_adapter_and_no_other_does(tmp_path: Path) -> None:
    file = tmp_path / "ladder.toml"
    write_catalogue(file)
    before = load_catalog(str(file))
    write_catalogue(file, without=ADAPTER)
    after = load_catalog(str(file))
    changed = [tier.number for tier in before.tiers if after.tier(tier.number).adapter != tier.adapter]
    assert changed == [WORSE_TIER]
    assert after.tier(WORSE_TIER).adapter is None


def test_the_figures_are_of_right_answers_and_of_what_was_billed() -> None:
    healthy = told(*HEALTHY)
    known = healthy.after.ladder
    rows = {one.name: one for one in worths(healthy)}
    right = known.no_worse
    for number in range(4):
        assert rows[f"always tier-{number + 1}"].quality.value == pytest.approx(right[:, number].mean())
        assert rows[f"always tier-{number + 1}"].cost.value == pytest.approx(USD[number] / USD[3])
    after = rows["AIO, after the labels"]
    assert after.quality.value == pytest.approx((right[::2, 1].sum() + right[1::2, 3].sum()) / 80)
    assert after.cost.value == pytest.approx((2.0 + 100.0) / 2 / 100.0)
    assert rows["a lottery, at AIO's cost"].cost.value == pytest.approx(after.cost.value)


def test_the_picture_has_each_fixed_tier_and_both_days_where_their_figures_are() -> None:
    rows = worths(told(*HEALTHY))
    head, *lines = picture(rows, 4)
    assert "1 to 4" in head
    drawn = lines[:17]
    for mark, row in zip("1234AB", (*rows[:4], rows[-1], rows[-2]), strict=True):
        line = drawn[16 - round(row.quality.value * 16)]
        assert line[7 + round(row.cost.value * 64)] == mark, (mark, line)
    assert all(any(row.name in line for line in lines) for row in rows)


def test_a_life_that_is_as_it_should_be_has_every_property() -> None:
    assert failed(told(*HEALTHY)) == []


@pytest.mark.parametrize(
    ("broken", "name"),
    [
        (lambda: told(*HEALTHY, labelled=6), "every checked prompt became a label"),
        (lambda: told([2, 3], [4, 2]), "AIO is not certainly worse than a lottery, at equal cost"),
        (lambda: told([2, 4], [4, 2]), "the labels made it not certainly worse, at equal cost"),
        (lambda: told(*HEALTHY, trust=(0.8, 0.7)), "tier 2 without its adapter was noticed"),
    ],
)
def test_each_way_to_break_the_loop_fails_its_property(broken: Callable[[], Told], name: str) -> None:
    assert name in failed(broken())


def test_a_routing_that_costs_less_than_each_tier_alone_is_compared_with_the_nearest() -> None:
    healthy = told([1, 2], [1, 2])
    usd = tuple(((1.0, 9.5, 50.0, 99.0), (9.0, 1.0, 50.0, 99.0))[n % 2] for n in range(80))
    looks = [
        msgspec.structs.replace(look, ladder=msgspec.structs.replace(look.ladder, usd=usd))
        for look in (healthy.cold, healthy.after)
    ]
    cheap = msgspec.structs.replace(healthy, cold=looks[0], after=looks[1])
    rows = {one.name: one for one in worths(cheap)}
    assert rows["AIO, after the labels"].cost.value == pytest.approx(1 / 99)
    assert rows["a lottery, at AIO's cost"].cost.value == pytest.approx(5 / 99)


def test_only_a_loss_of_enough_standard_errors_is_certain_and_rounding_is_none() -> None:
    assert certainly_worse(Figure(-0.20, -0.30, -0.10))
    assert not certainly_worse(Figure(-0.20, -0.32, -0.08))
    assert not certainly_worse(Figure(-1e-17, -1e-17, -1e-17))


def test_a_missing_retraining_and_a_ladder_of_equals_fail() -> None:
    after = told(*HEALTHY).after
    assert failed(told(*HEALTHY, after=msgspec.structs.replace(after, retrainings=[]))) == [
        "the retraining ended, with its reason"
    ]
    equal = [msgspec.structs.replace(one, answers=(one.answers[3],) * 4) for one in after.ladder.prompts]
    same = msgspec.structs.replace(after.ladder, prompts=tuple(equal))
    assert failed(told(*HEALTHY, after=msgspec.structs.replace(after, ladder=same)))[0] == (
        "the strongest tier is right more often than the cheapest"
    )


def binomial(n: int, p: float) -> np.ndarray:
    return np.array([comb(n, k) * p**k * (1 - p) ** (n - k) for k in range(n + 1)])


def test_a_ladder_as_measured_is_hardly_ever_taken_for_none() -> None:
    strongest, cheapest = binomial(HELD, 0.45), binomial(HELD, 0.17)
    chance = sum(strongest[k] * cheapest[k:].sum() for k in range(HELD + 1))
    assert chance < 1e-4 < MOST


def test_a_routing_as_good_as_each_lottery_is_hardly_ever_called_worse_than_the_best_of_six() -> None:
    assert 6 * 0.5 * erfc(3.59 / sqrt(2)) <= MOST


def test_a_tier_without_its_adapter_hardly_ever_gets_labels_that_show_nothing() -> None:
    worse, good = 0.35, 0.1
    none = 1 - worse - good
    noticed = sum(
        comb(RULES, bad) * comb(RULES - bad, fine) * worse**bad * good**fine * none ** (RULES - bad - fine)
        for bad in range(12, RULES + 1)
        for fine in range(min(bad, RULES - bad + 1))
    )
    assert 1 - noticed < 1e-4 < MOST


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("seed", range(10))
async def test_the_demonstration_has_every_property(seed: int, tmp_path: Path) -> None:
    said: list[str] = []
    assert await demo(said.append, tmp_path / "page.md", seed), "\n".join(said)
    assert "| always tier-4" in (tmp_path / "page.md").read_text(encoding="utf-8")
