"""The graded task set: seeded, complete, and with checks that separate right from wrong."""

from collections import Counter

import pytest

from quality.evaluation.task_set import LEVELS, Task, check, tasks


def test_the_same_seed_gives_the_same_tasks_and_another_seed_others() -> None:
    assert tasks(1, 3) == tasks(1, 3)
    assert tasks(1, 3) != tasks(2, 3)


def test_every_kind_and_level_has_as_many_distinct_tasks_as_asked() -> None:
    made = tasks(seed=5, per_level=8)

    assert Counter((task.kind, task.level) for task in made) == {
        (kind, level): 8 for kind in ("copy", "spell", "compare", "arithmetic") for level in LEVELS
    }
    assert len({task.prompt for task in made}) == len(made)


def test_every_right_answer_is_right_and_a_changed_one_is_wrong() -> None:
    for task in tasks(seed=2, per_level=20):
        assert check(task, task.answer), task
        assert not check(task, task.answer + task.answer[-1]), task
        assert not check(task, ""), task


@pytest.mark.parametrize("text", ["The answer is 7.", "3 + 4 = 7", "**7**", "7.0"])
def test_a_number_may_stand_in_a_sentence(text: str) -> None:
    assert check(Task(prompt="What is 3 + 4?", answer="7", kind="arithmetic", level=1), text)


def test_more_tasks_than_exist_are_refused() -> None:
    with pytest.raises(ValueError, match="ask for fewer"):
        tasks(seed=0, per_level=500)
