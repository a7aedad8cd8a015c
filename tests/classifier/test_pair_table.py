"""The sparse table of word pairs."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from classifier.pair_table import PairTable

WORDS, FIRST_ROW, MISSING = 12, 100, 9999
ids = st.integers(0, WORDS - 1)
# Numbers that stand for unknown words, as far beyond the words as an encoder's are.
any_ids = st.one_of(ids, st.integers(WORDS, 500), st.just(MISSING))


def table_of(pairs: list[tuple[int, int]]) -> PairTable:
    return PairTable(np.array(pairs, np.int32).reshape(-1, 2), WORDS, FIRST_ROW)


@given(st.sets(st.tuples(ids, ids)).map(sorted), st.lists(st.tuples(any_ids, any_ids), max_size=60))
def test_known_pairs_have_their_own_row_and_all_others_none(
    pairs: list[tuple[int, int]], others: list[tuple[int, int]]
) -> None:
    row_of = {pair: FIRST_ROW + place for place, pair in enumerate(pairs)}
    asked = np.array([*pairs, *others], np.intp).reshape(-1, 2)
    found = table_of(pairs).rows(asked[:, 0], asked[:, 1], MISSING)
    assert found.tolist() == [row_of.get(pair, MISSING) for pair in [*pairs, *others]]


def test_a_word_with_more_followers_than_fit_between_others_finds_room_behind_them() -> None:
    pairs = [(first, second) for first in range(WORDS) for second in range(WORDS)]
    asked = np.array(pairs, np.intp)
    found = table_of(pairs).rows(asked[:, 0], asked[:, 1], MISSING)
    assert found.tolist() == list(range(FIRST_ROW, FIRST_ROW + WORDS**2))
