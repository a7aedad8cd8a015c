"""A batch is padded to the next captured size, and not far."""

import pytest

from inference_core.device.buckets import DecodeBuckets


@pytest.mark.parametrize("most", [1, 3, 8, 60, 64, 250, 256, 1000])
def test_every_batch_up_to_the_largest_has_a_bucket_that_is_little_larger(most: int) -> None:
    buckets = DecodeBuckets.up_to(most)
    for sequences in range(1, most + 1):
        padded = buckets.padded(sequences)
        assert padded is not None
        assert sequences <= padded <= most
        assert padded - sequences < max(8, sequences / 8)
    assert buckets.padded(most + 1) is None


def test_single_streams_and_pairs_are_not_padded() -> None:
    assert [DecodeBuckets.up_to(64).padded(n) for n in (1, 2, 3, 4, 5, 33)] == [1, 2, 4, 4, 8, 40]
