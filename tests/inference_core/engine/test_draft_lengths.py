"""How many tokens are drafted is what pays most (SPEC SD-04, SD-05)."""

import random
from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from inference_core.engine.speculator import Candidate, draft_lengths

rates = st.floats(0.05, 0.95)


def expected_tokens(rate: float, drafted: int) -> float:
    """Expected tokens of a round with `drafted` drafts, each accepted with `rate`, the model's own included:
    (1 - a^(K+1)) / (1 - a) (Leviathan, Kalman and Matias, "Fast inference from transformers via speculative decoding",
    2023)."""
    return float(drafted + 1) if rate >= 1 else (1 - rate ** (drafted + 1)) / (1 - rate)


def gain(candidate: Candidate, length: int) -> float:
    return sum(candidate.first * candidate.later**place for place in range(length))


@given(
    candidates=st.lists(st.builds(Candidate, rates, rates, st.integers(0, 4)), min_size=1, max_size=3),
    room=st.integers(0, 12),
    per_row=st.floats(0.001, 1),
    per_draft=st.floats(0, 0.5),
)
def test_no_other_choice_gives_more_tokens_a_second(
    candidates: list[Candidate], room: int, per_row: float, per_draft: float
):
    """Where chances fall with the length, as they do unless later tokens are likelier than the first."""
    candidates = [Candidate(max(c.first, c.later), min(c.first, c.later), c.most) for c in candidates]
    rows = len(candidates)

    def speed(lengths: tuple[int, ...]) -> float:
        tokens = rows + sum(map(gain, candidates, lengths))
        rounds = [sum(n > place for n in lengths) for place in range(max(lengths))]
        drafting = sum(0.1 * (n > 0) + per_draft * n for n in rounds)
        return tokens / (1 + per_row * (rows + sum(lengths)) + drafting)

    chosen = draft_lengths(
        candidates,
        rows,
        room,
        1 + per_row * rows,
        lambda n: 1 + per_row * n,
        lambda n: 0.1 + per_draft * n,
        least_gain=0.0,
    )
    possible = [n for n in product(*(range(c.most + 1) for c in candidates)) if sum(n) <= room]
    # Tokens come by likelihood, which for each total is best but for the rounds that they open.
    assert speed(tuple(chosen)) >= 0.93 * max(map(speed, possible))
    if len(candidates) == 1:
        assert speed(tuple(chosen)) == pytest.approx(max(map(speed, possible)))


def test_the_best_length_is_that_of_the_speed_model():
    """At a draft that costs a fifteenth and a rate of 0.8, seven tokens are best, for 2.84 times the speed."""
    speeds = [expected_tokens(0.8, k) / (k / 15 + 1) for k in range(12)]
    assert speeds.index(max(speeds)) == 7
    assert max(speeds) == pytest.approx(2.84, abs=0.005)

    assert draft_lengths([Candidate(0.8, 0.8, 20)], 1, 99, 1.0, lambda _: 1.0, lambda _: 1 / 15, least_gain=0.0) == [7]


def test_five_tokens_at_a_rate_of_four_fifths_are_expected_to_give_3_69():
    """As the formula says (SD-04), and as a simulation finds."""
    assert expected_tokens(0.8, 5) == pytest.approx(3.689, abs=0.001)
    assert expected_tokens(1.0, 5) == 6
    rng = random.Random(0)
    rounds = [next((k for k in range(5) if rng.random() >= 0.8), 5) + 1 for _ in range(40_000)]
    assert sum(rounds) / len(rounds) == pytest.approx(3.689, abs=0.03)
    for seconds, drafted in ((3.68, 5), (3.70, 0)):
        # Only a step of five drafts is not far too slow: it is taken while it gives more tokens than steps in its time.
        lengths = draft_lengths(
            [Candidate(0.8, 0.8, 5)],
            1,
            5,
            1.0,
            lambda rows, seconds=seconds: seconds if rows == 6 else 99.0,
            lambda _: 0.0,
            least_gain=0.0,
        )
        assert lengths == [drafted]


def test_what_gains_too_little_is_not_drafted():
    candidates = [Candidate(0.5, 0.5, 5)]
    assert draft_lengths(candidates, 1, 9, 1.0, lambda n: 0.55 + 0.45 * n, lambda _: 0.0, least_gain=0.05) == [0]
    assert draft_lengths(candidates, 1, 9, 1.0, lambda n: 0.55 + 0.45 * n, lambda _: 0.0, least_gain=0.0) == [1]


def test_room_goes_to_the_likeliest_tokens():
    candidates = [Candidate(0.5, 0.5, 5), Candidate(0.9, 0.9, 5)]
    assert draft_lengths(candidates, 2, 3, 1.0, lambda _: 1.0, lambda _: 0.0, least_gain=0.0) == [0, 3]
