"""A step is padded to the next captured size, and not far."""

import pytest

from inference_core.device.block_tables import Padding, StepBuckets
from inference_core.protocol import SamplingParams
from inference_core.step_plan import SampleSpec, ScheduledSequence

SPEC = SampleSpec(SamplingParams(), [], [], 1, 0, ())


def step(*lengths: int, drafts: int = 0, sampled: bool = True) -> list[ScheduledSequence]:
    sequences = [
        ScheduledSequence(str(n), [1] * length, 0, [], SPEC if sampled else None) for n, length in enumerate(lengths)
    ]
    for sequence in sequences:
        sequence.num_drafts = drafts
    return sequences


@pytest.mark.parametrize("most", [1, 3, 8, 60, 64, 250, 256, 1000])
def test_every_batch_up_to_the_largest_has_a_bucket_that_is_little_larger(most: int) -> None:
    buckets = StepBuckets.up_to(2000, most)
    for sequences in range(1, most + 1):
        padding = buckets.padding(step(*[1] * sequences))
        assert padding is not None
        assert sequences <= padding.tokens == padding.rows <= most
        assert padding.tokens - sequences < max(8, sequences / 8)
    assert buckets.padding(step(*[1] * (most + 1))) is None


def test_single_streams_and_pairs_are_not_padded() -> None:
    sizes = [StepBuckets.up_to(64, 64).padding(step(*[1] * n)) for n in (1, 2, 3, 4, 5, 33)]
    assert sizes == [Padding(n, n) for n in (1, 2, 4, 4, 8, 40)]


def test_prompts_are_padded_to_tokens_and_to_few_numbers_of_rows() -> None:
    buckets = StepBuckets.up_to(8192, 80)
    assert buckets.padding(step(17)) == Padding(32, 8)
    assert buckets.padding(step(130, 1, 1)) == Padding(160, 8)
    assert buckets.padding(step(300, *[1] * 8)) == Padding(320, 64)
    assert buckets.padding(step(300, *[1] * 70)) == Padding(384, 80)
    assert buckets.padding(step(512)) == Padding(512, 8)
    assert buckets.padding(step(513)) is None
    assert buckets.padding(step(300, *[1] * 80)) is None  # more rows than any step has


def test_drafts_are_rows_of_their_own() -> None:
    buckets = StepBuckets.up_to(8192, 80)
    assert buckets.padding(step(100, 5, drafts=4)) == Padding(128, 64)
    assert buckets.padding(step(100, 5, drafts=4, sampled=False)) == Padding(128, 8)


def test_no_bucket_is_larger_than_the_largest_step() -> None:
    buckets = StepBuckets.up_to(100, 8)
    assert (buckets.prompts, buckets.prompt_rows, buckets.most_tokens) == ((32, 64, 96), (8,), 96)
    assert StepBuckets().padding(step(1)) is None
