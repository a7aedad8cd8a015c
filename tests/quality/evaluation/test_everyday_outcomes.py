"""Everyday tasks: reproducible by seed and checked by rule; results are stored per task and tier, without texts."""

from collections.abc import AsyncGenerator
from pathlib import Path

import msgspec
import pytest

from quality.evaluation.everyday_outcomes import (
    EverydayOutcomesError,
    begun_outcomes,
    measured_tier,
    read_outcomes,
    write_outcomes,
)
from quality.evaluation.everyday_tables import LEVELS
from quality.evaluation.everyday_tasks import EverydayTask, everyday_tasks, is_right
from tests.quality.evaluation.knowing_tier import KnowingTier
from tiers.catalog.load import load_catalog
from tiers.tier import AnswerEnd, Delta, GenerationRequest, Usage

LAPTOP = load_catalog("laptop")


class EverydayTier(KnowingTier):
    """Tier 1, which says what stands in `answers` for a prompt, else "I cannot say"."""

    def __init__(self, answers: dict[str, str]) -> None:
        super().__init__(1, lambda task: True, seed=1, per_level=1)
        self._answers = answers

    async def generate(self, request: GenerationRequest) -> AsyncGenerator[Delta, None]:
        assert request.messages is not None
        yield Delta(text=self._answers.get(request.messages[-1].text, "I cannot say"))
        yield Delta(finish_reason="stop")
        yield Delta(end=AnswerEnd(usage=Usage(prompt_tokens=10, completion_tokens=20)))


def task(kind: str, *answers: str, others: tuple[str, ...] = ()) -> EverydayTask:
    fields = {"prompt": "?", "answers": answers, "others": others, "kind": kind, "level": 1}
    return msgspec.convert(fields, EverydayTask)


def test_a_seed_gives_the_same_tasks_of_every_kind_and_level_and_none_twice() -> None:
    tasks = everyday_tasks(1, 10)
    assert tasks == everyday_tasks(1, 10) != everyday_tasks(2, 10)
    assert len({t.prompt for t in tasks}) == len(tasks) == 8 * len(LEVELS) * 10


def test_every_task_accepts_its_own_answers_and_refuses_an_empty_one() -> None:
    for made in everyday_tasks(3, 10):
        assert all(is_right(made, f"{answer}.") for answer in made.answers), made
        assert not is_right(made, ""), made


@pytest.mark.parametrize(
    ("asked", "text", "right"),
    [
        (task("fact", "Paris"), "The capital of France is **Paris**.", True),
        (task("fact", "Au"), "Australia", False),
        (task("translate", "adiós", "adios"), "ADIOS!", True),
        (task("reason", "Anna", others=("Ben",)), "Anna is taller than Ben.", True),
        (task("reason", "Anna", others=("Ben",)), "Ben is taller than Anna.", False),
        (task("sum", "12"), "Leo has 7 + 5 = 12 coins.", True),
        (task("sum", "12"), "Leo has 7 coins.", False),
        (task("yes-no", "no"), "No, a whale is a mammal. Yes, it swims.", True),
        (task("list", "1, 2, 3"), "1,2,3.", True),
        (task("list", "1, 2, 3"), "Sure! 1, 2, 3", False),
    ],
)
def test_an_answer_is_checked_by_the_rule_of_its_kind(asked: EverydayTask, text: str, right: bool) -> None:
    assert is_right(asked, text) is right


def test_more_tasks_than_there_are_different_ones_are_refused() -> None:
    with pytest.raises(ValueError, match="ask for fewer"):
        everyday_tasks(1, 13)


async def test_scores_stand_in_the_order_of_the_tasks_and_read_back_without_any_text(tmp_path: Path) -> None:
    outcomes = begun_outcomes(LAPTOP, seed=1, per_level=2, kernels="avx2")
    tasks = outcomes.tasks()
    knows = {t.prompt: t.answers[0] for t in tasks if t.level <= 2}
    tier = EverydayTier(knows)

    scores = await measured_tier(tier, LAPTOP, tasks, 3, lambda stage, share: None)
    outcomes = msgspec.structs.replace(outcomes, tiers={1: scores})
    write_outcomes(outcomes, tmp_path / "outcomes.json")

    assert scores.scores == [int(t.level <= 2) for t in tasks]
    assert scores.fingerprint == LAPTOP.tier_fingerprint(1)
    assert read_outcomes(tmp_path / "outcomes.json") == outcomes
    text = (tmp_path / "outcomes.json").read_text()
    assert not any(t.prompt in text or t.answers[0] in text for t in tasks if len(t.answers[0]) > 4)


def test_results_of_other_tasks_than_the_program_makes_are_refused() -> None:
    outcomes = begun_outcomes(LAPTOP, seed=1, per_level=2, kernels="avx2")
    with pytest.raises(EverydayOutcomesError, match="measure again"):
        msgspec.structs.replace(outcomes, tasks_sha256="0" * 64).tasks()


def test_a_file_that_holds_something_else_is_refused_by_name(tmp_path: Path) -> None:
    (tmp_path / "x.json").write_text("[]")
    with pytest.raises(EverydayOutcomesError, match=r"x\.json holds no results"):
        read_outcomes(tmp_path / "x.json")
