"""What judging a probe in one list would cost against pairs, and how many errors that would be worth."""

import pytest

from benchmarks.replay.ladder import Answer, Ladder, Prompt, declared_tiers
from benchmarks.replay.list_judging import errors_at_par, probe_costs


def ladder(*marks: float, length: int = 4000) -> Ladder:
    """One prompt whose answers are all so many characters long."""
    answers = tuple(Answer(f"{number}" * length, mark) for number, mark in enumerate(marks))
    return Ladder("made", declared_tiers(["a", "b", "c", "d"]), (Prompt("1", "k", "Why?", answers),))


def test_long_answers_are_read_four_times_in_a_list_for_six_times_two_in_pairs() -> None:
    pairs, in_list = probe_costs(ladder(9.0, 9.0, 9.0, 9.0), 1.0)
    assert pairs.answers == in_list.answers == pytest.approx(0.05 + 0.3 + 1.0, rel=0.01)
    # Of 1,000 tokens each: three pairs and one list of four, in two orders.
    assert pairs.judging == pytest.approx(12.0, rel=0.1)
    assert in_list.judging == pytest.approx(8.0, rel=0.1)
    assert pairs.opinions == in_list.opinions == 0.0


def test_second_opinions_are_on_answers_that_are_worse() -> None:
    pairs, in_list = probe_costs(ladder(1.0, 9.0, 9.0, 9.0), 1.0)
    # Another strongest answer, and one pair; a list of two is a pair.
    assert pairs.opinions == pytest.approx(1.0 + 4.0, rel=0.1)
    assert in_list.opinions == pytest.approx(pairs.opinions, rel=0.01)
    assert pairs.whole == pairs.answers + pairs.judging + pairs.opinions


def test_cheaper_labels_may_err_more_often() -> None:
    assert errors_at_par(0.1, 1.0) == pytest.approx(0.1)
    # At half the price each may tell half as much.
    assert (1 - 2 * errors_at_par(0.1, 0.5)) ** 2 == pytest.approx(0.5 * 0.8**2)
