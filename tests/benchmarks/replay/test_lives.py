"""Lives without a gateway: the same choices each time, better than a lottery with labels of prompts that come in
families, and worse with verdicts that say nothing."""

import pytest

from benchmarks.replay.lives import Gains, gains
from benchmarks.replay.plans import own_plans
from benchmarks.replay.timeline import Plan


@pytest.fixture(scope="module")
def plan() -> Plan:
    return own_plans(200, labels=80, rounds=1, seed=3)[0]


@pytest.fixture(scope="module")
def lived(plan: Plan) -> Gains:
    return gains([plan], 2, 0.08)


def test_a_life_is_the_same_each_time_and_another_life_has_other_labels(plan: Plan, lived: Gains) -> None:
    again = gains([plan], 2, 0.08)
    assert again.choices == lived.choices
    assert again.together.tolist() == lived.together.tolist() == lived.alone.tolist()
    assert len(set(lived.together.tolist())) == 2


def test_many_labels_of_prompts_in_families_are_better_than_a_lottery_and_than_few() -> None:
    many = gains(own_plans(400, labels=300, rounds=1, seed=0), 2, 0.08)
    few = gains(own_plans(400, labels=20, rounds=1, seed=0), 2, 0.08)
    assert many.over_shuffled.min() > 0
    assert many.together.min() > 0
    assert many.together.mean() > few.together.mean()


def test_a_judge_that_says_nothing_teaches_nothing() -> None:
    plans = own_plans(400, labels=300, rounds=1, seed=0)
    assert gains(plans, 2, 0.5).together.mean() < gains(plans, 2, 0.0).together.mean()
