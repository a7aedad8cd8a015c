"""The ladder's tasks: their own answers are right, wordings are held out, thoughts compute what they say."""

import random
import re
from pathlib import Path

import pytest

from benchmarks.ladder import wordings as steps
from benchmarks.ladder.tasks import LEVELS, Part, everyday_prompts, families, ladder_task, ladder_tasks, stored_tasks
from quality.evaluation import ladder
from quality.evaluation.everyday_tasks import everyday_tasks

PARTS: tuple[Part, ...] = ("trained", "held-out", "untrained")


@pytest.mark.parametrize("part", PARTS)
def test_every_task_takes_its_answer_and_refuses_another(part: Part) -> None:
    for task in ladder_tasks(5, 6, part):
        assert task.is_right(f"{task.answers[0]}."), task
        assert not task.is_right("I cannot say"), task
        assert not any(task.is_right(other) for other in task.others), task


@pytest.mark.parametrize("part", PARTS)
def test_a_seed_gives_the_same_different_tasks_of_every_family_and_level(part: Part) -> None:
    tasks = ladder_tasks(1, 3, part)
    assert tasks == ladder_tasks(1, 3, part) != ladder_tasks(2, 3, part)
    assert len({task.prompt for task in tasks}) == len(tasks) == len(families(part)) * len(LEVELS) * 3


def test_the_parts_share_no_family_and_no_prompt() -> None:
    assert set(families("trained")).isdisjoint(families("untrained"))
    assert len(families("trained")) == 11
    held_out = {task.prompt for task in ladder_tasks(1, 6, "held-out")}
    drawn = random.Random(3)
    trained = {
        ladder_task(drawn, family, level, "trained").prompt
        for family in families("trained")
        for level in LEVELS
        for _ in range(60)
    }
    assert held_out.isdisjoint(trained)
    # Frames of one part are not those of the other.
    assert not any(re.search("Can you solve this|Tell me the result", prompt) for prompt in trained)
    assert all(re.search("Can you solve this|Tell me the result", prompt) for prompt in held_out)


def test_the_tasks_that_ship_are_those_that_are_made_now() -> None:
    """Else: `python -m benchmarks ladder-tasks quality/evaluation/ladder_tasks.json`."""
    assert (Path(ladder.__file__).parent / ladder.FILE).read_bytes() == stored_tasks()


def test_more_tasks_than_there_are_different_ones_are_refused() -> None:
    with pytest.raises(ValueError, match="ask for fewer"):
        ladder_tasks(1, 500, "held-out")


@pytest.mark.parametrize("part", PARTS)
def test_every_equation_of_a_thought_holds(part: Part) -> None:
    checked = 0
    for task in ladder_tasks(9, 8, part):
        for thought in (task.brief, task.detailed):
            for left, right in re.findall(r"(?<![\d:] )(?<!\d)(\d+(?: [-+x/] -?\d+)+) = (-?\d+)", thought):
                assert eval(left.replace("x", "*")) == int(right), (left, right, thought)
                checked += 1
    assert checked > 50


def test_both_thoughts_of_a_task_are_one_line_and_the_longer_one_is_longer_on_the_whole() -> None:
    tasks = ladder_tasks(2, 6, "trained")
    assert not any("\n" in task.brief + task.detailed or "Answer:" in task.brief + task.detailed for task in tasks)
    assert sum(len(task.detailed) for task in tasks) > 2 * sum(len(task.brief) for task in tasks)


@pytest.mark.parametrize(
    ("written", "wanted"),
    [
        (steps.added(47, 38), "47 + 38: 7 + 8 = 15, 5 carry 1. 4 + 3 + 1 = 8. 47 + 38 = 85."),
        (steps.added(5, 4), "5 + 4 = 9."),
        (steps.added(8, 95), "8 + 95: 8 + 5 = 13, 3 carry 1. 0 + 9 + 1 = 10, 0 carry 1. 8 + 95 = 103."),
        (steps.taken(52, 38), "52 - 38: 12 - 8 = 4, borrow 1. 5 - 3 - 1 = 1. 52 - 38 = 14."),
        (steps.multiplied(23, 4), "20 x 4 = 80. 3 x 4 = 12. 80 + 12 = 92. 23 x 4 = 92."),
        (steps.compared(260, 283), "260 and 283: 2 = 2, 6 < 8. 283 is larger."),
        (steps.compared(88, 3), "88 and 3: 2 and 1 digits. 88 is larger."),
    ],
)
def test_steps_are_written_as_a_child_writes_them(written: str, wanted: str) -> None:
    assert written == wanted


def test_everyday_prompts_are_many_and_none_is_a_question_that_measures() -> None:
    prompts = everyday_prompts(0, 1200)
    assert prompts == everyday_prompts(0, 1200)
    assert len(set(prompts)) == len(prompts) == 1200
    assert not any("{" in prompt for prompt in prompts)
    measured = {task.prompt for seed in range(5) for task in everyday_tasks(seed, 10)}
    assert measured.isdisjoint(everyday_prompts(0, 10_000))
