"""Prompt lookup proposes what followed before."""

from hypothesis import given
from hypothesis import strategies as st

from inference_core.engine.drafter import PromptLookup
from inference_core.engine.sequence import Sequence
from inference_core.protocol import AddRequest, Knobs, SamplingParams

KNOBS = Knobs(lookup_ngram=2)


def sequence_of(token_ids: list[int]) -> Sequence:
    request = AddRequest(request_id="r", model="m", prompt_token_ids=token_ids, sampling=SamplingParams())
    return Sequence.of_request(
        request, 0, number=0, request_seed=0, eos_token_ids=(), max_context=10_000, leader=None, now=0.0
    )


def proposal(lookup: PromptLookup, sequence: Sequence, most: int, knobs: Knobs = KNOBS) -> list[int]:
    reach = lookup.reach(sequence, knobs, most)
    return lookup.propose([(sequence, reach.most)], knobs)[0].token_ids if reach.most else []


def test_what_last_followed_the_last_tokens_is_proposed():
    assert proposal(PromptLookup(), sequence_of([1, 2, 7, 8, 9, 1, 2, 5, 6, 4, 1, 2]), 3) == [5, 6, 4]


def test_nothing_is_proposed_without_an_earlier_occurrence():
    assert proposal(PromptLookup(), sequence_of([1, 2, 3, 4, 5]), 3) == []
    assert proposal(PromptLookup(), sequence_of([1]), 3) == []


def test_a_text_that_repeats_itself_is_taken_to_go_on():
    assert proposal(PromptLookup(), sequence_of([9, 1, 2, 3, 1, 2]), 7) == [3, 1, 2, 3, 1, 2, 3]
    assert proposal(PromptLookup(), sequence_of([5, 5, 5]), 4) == [5, 5, 5, 5]


@given(st.lists(st.integers(0, 3), min_size=1, max_size=60), st.integers(1, 3), st.integers(1, 6))
def test_an_incremental_index_finds_the_matches_of_a_search(token_ids: list[int], ngram: int, most: int):
    knobs = Knobs(lookup_ngram=ngram)
    lookup, sequence = PromptLookup(), sequence_of(token_ids[:1])
    for token in token_ids[1:]:
        lookup.reach(sequence, knobs, most)
        sequence.token_ids.append(token)

    ends = [i for i in range(ngram, len(token_ids)) if token_ids[i - ngram : i] == token_ids[-ngram:]]
    expected = []
    if ends and len(token_ids) >= ngram:
        start = ends[-1]
        expected = [token_ids[start + i % (len(token_ids) - start)] for i in range(most)]
    assert proposal(lookup, sequence, most, knobs) == expected


def test_another_length_of_match_rebuilds_the_index():
    lookup, sequence = PromptLookup(), sequence_of([1, 2, 3, 9, 2, 3])
    assert proposal(lookup, sequence, 1, Knobs(lookup_ngram=3)) == []
    assert proposal(lookup, sequence, 1, Knobs(lookup_ngram=2)) == [9]


def test_a_sequence_that_left_is_forgotten():
    lookup, sequence = PromptLookup(), sequence_of([1, 1, 1])
    lookup.reach(sequence, KNOBS, 1)
    lookup.forget(sequence)
    assert not lookup._indexes


def test_the_longer_two_places_agree_the_more_is_promised():
    lookup = PromptLookup()
    for agreed, promise in ((2, 0), (3, 0), (4, 1), (7, 1), (8, 2), (20, 2)):
        text = [99, *range(agreed), 50, 98, *range(agreed)]
        sequence = sequence_of(text)
        assert lookup.reach(sequence, KNOBS, 3) == (3, promise), agreed
