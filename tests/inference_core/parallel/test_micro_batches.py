"""Steps cut for pipeline stages: every token once, in order, in pieces of nearly equal size (SPEC PX-03)."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from inference_core.parallel.rank_runner import bubble, micro_batch_count, micro_batches
from inference_core.step_plan import ScheduledSequence


@given(lengths=st.lists(st.integers(1, 40), min_size=1, max_size=12), count=st.integers(1, 20))
def test_pieces_hold_every_token_once_at_its_position(lengths: list[int], count: int) -> None:
    sequences = [
        ScheduledSequence(f"s{i}", list(range(1000 * i, 1000 * i + n)), 7 * i, [i, i + 1], None)
        for i, n in enumerate(lengths)
    ]

    pieces = micro_batches(sequences, count)

    placed = [
        (s.sequence_id, s.start + at, token) for piece in pieces for s in piece for at, token in enumerate(s.token_ids)
    ]
    assert placed == [(s.sequence_id, s.start + at, token) for s in sequences for at, token in enumerate(s.token_ids)]
    sizes = [sum(len(s.token_ids) for s in piece) for piece in pieces]
    assert len(pieces) == min(count, sum(lengths))
    assert max(sizes) - min(sizes) <= 1
    assert all(s.block_table is sequences[int(s.sequence_id[1:])].block_table for piece in pieces for s in piece)


@pytest.mark.parametrize(
    ("stages", "pieces", "idle"), [(1, 1, 0.0), (2, 1, 0.5), (4, 1, 0.75), (4, 4, 3 / 7), (4, 12, 0.2), (2, 8, 1 / 9)]
)
def test_the_bubble_is_p_less_1_over_m_plus_p_less_1(stages: int, pieces: int, idle: float) -> None:
    assert bubble(stages, pieces) == pytest.approx(idle)


def test_few_tokens_make_one_piece_since_each_piece_reads_all_weights() -> None:
    assert micro_batch_count(8, 4, limit=8, min_tokens=64) == 1
    assert micro_batch_count(256, 4, limit=8, min_tokens=64) == 4
    assert micro_batch_count(4096, 4, limit=8, min_tokens=64) == 8
    assert micro_batch_count(4096, 1, limit=8, min_tokens=64) == 1
