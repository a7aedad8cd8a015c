"""A model of step time finds what steps cost, keeps what it cannot see, and follows a machine that changes."""

from dataclasses import astuple
from random import Random

import pytest

from inference_core.engine.auto_tuner import StepTimeModel

BASE, PER_SEQUENCE, PER_TOKEN, PER_PAIR = 0.006, 0.0006, 0.00027, 3e-7


def seconds(
    sequences: int, tokens: int, random: Random, depth: float = 0.0, noise: float = 0.05, slower: float = 1.0
) -> float:
    exact = BASE + PER_SEQUENCE * sequences + (PER_TOKEN + PER_PAIR * depth) * (tokens - sequences)
    return slower * exact * random.lognormvariate(0, noise)


def mixed_steps(model: StepTimeModel, count: int, random: Random, slower: float = 1.0) -> None:
    for step in range(count):
        sequences = random.randint(1, 32)
        tokens = sequences + random.choice([0, 0, 0, 127, 255, 400])
        depth = random.choice([64, 500, 4000])
        model.observe(sequences, tokens, depth, seconds(sequences, tokens, random, depth, slower=slower))
        if step % 8 == 7:
            model.learn()


def test_the_costs_of_a_mixed_load_are_found() -> None:
    model = StepTimeModel()
    mixed_steps(model, 400, Random(1))
    found = (model.cost.base, model.cost.per_sequence, model.cost.per_token, model.cost.per_pair)
    assert found == pytest.approx((BASE, PER_SEQUENCE, PER_TOKEN, PER_PAIR), rel=0.1)
    deep = BASE + 10 * PER_SEQUENCE + 200 * (PER_TOKEN + PER_PAIR * 2000)
    assert model.cost.predict(10, 210, 2000) == pytest.approx(deep, rel=0.05)
    assert model.cost.predict(10, 210) == pytest.approx(BASE + 10 * PER_SEQUENCE + 200 * PER_TOKEN, rel=0.03)


def test_what_the_load_does_not_show_is_remembered() -> None:
    random, model = Random(2), StepTimeModel()
    mixed_steps(model, 400, random)
    for _ in range(1000):
        for _ in range(8):
            model.observe(8, 8, 0, seconds(8, 8, random))
        model.learn()
    assert model.cost.predict(8, 8) == pytest.approx(BASE + 8 * PER_SEQUENCE, rel=0.05)
    assert model.cost.predict(8, 408) == pytest.approx(BASE + 8 * PER_SEQUENCE + 400 * PER_TOKEN, rel=0.15)


def test_a_machine_that_slows_down_is_believed_within_a_few_hundred_steps() -> None:
    random, model = Random(3), StepTimeModel()
    mixed_steps(model, 400, random)
    mixed_steps(model, 400, random, slower=4.0)
    assert model.cost.predict(10, 210) == pytest.approx(4 * (BASE + 10 * PER_SEQUENCE + 200 * PER_TOKEN), rel=0.1)


def test_one_pause_of_the_machine_moves_the_model_little() -> None:
    random, model = Random(4), StepTimeModel()
    mixed_steps(model, 400, random)
    before = model.cost.predict(10, 210)
    model.observe(10, 210, 100, 30.0)
    model.learn()
    assert model.cost.predict(10, 210) == pytest.approx(before, rel=0.1)


def test_the_tail_says_how_far_the_worst_twentieth_of_steps_goes() -> None:
    random, model = Random(5), StepTimeModel()
    slow = 0
    for step in range(6000):
        took = seconds(8, 8, random, noise=0.2)
        slow += step >= 1000 and took > model.cost.predict(8, 8) * model.tail
        model.observe(8, 8, 0, took)
        model.learn()
    assert slow / 5000 == pytest.approx(0.05, abs=0.02)


def test_no_coefficient_is_negative_whatever_steps_take() -> None:
    random, model = Random(6), StepTimeModel()
    for step in range(2000):
        # The more, the faster: nonsense that plain least squares would answer with negative costs.
        sequences = random.randint(1, 32)
        tokens, depth = sequences + random.randint(0, 500), random.randint(0, 8000)
        model.observe(sequences, tokens, depth, random.choice([0.0, 1.0 / sequences, 5.0]))
        if step % 8 == 7:
            model.learn()
            assert min(astuple(model.cost)) >= 0
            assert 1 <= model.tail <= 3


def test_without_steps_nothing_is_predicted() -> None:
    model = StepTimeModel()
    model.learn()
    assert (model.cost.predict(3, 30), model.is_warm) == (0.0, False)
