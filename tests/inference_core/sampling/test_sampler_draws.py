"""Draws: they follow the law, repeat with the seed, and never depend on the rest of the batch."""

import math
import random

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from inference_core.errors import BadLogitsError
from inference_core.sampling.reference_sampler import distribution, uniform
from inference_core.sampling.sampler import sample
from tests.examples import examples

DRAWS = 8_000
LOGITS = torch.tensor(np.random.default_rng(5).normal(0, 2.5, 1200).astype(np.float32))


@pytest.mark.parametrize(
    "params",
    [
        {"temperature": 1.0},
        {"temperature": 0.6},
        {"temperature": 1.7},
        {"temperature": 1.0, "top_k": 7},
        {"temperature": 1.0, "top_p": 0.8},
        {"temperature": 1.0, "min_p": 0.1},
        {"temperature": 1.3, "top_k": 40, "top_p": 0.9, "min_p": 0.02},
    ],
)
def test_drawn_frequencies_follow_the_filtered_law(spec, params):
    specs = [spec(seed=1234, position=position, **params) for position in range(DRAWS)]
    law = distribution(LOGITS.numpy(), specs[0])

    drawn = sample(LOGITS.expand(DRAWS, -1), specs)

    counts = np.bincount([token.token_id for token in drawn], minlength=len(law))
    assert counts[law == 0].sum() == 0
    common = law * DRAWS >= 5
    observed = np.append(counts[common], counts[~common].sum())
    expected = np.append(law[common], law[~common].sum()) * DRAWS
    nonzero = expected > 0
    assert stats.chisquare(observed[nonzero], expected[nonzero]).pvalue > 1e-3


def test_one_position_of_many_seeds_follows_the_law_too(spec):
    specs = [spec(seed=seed, position=3, top_k=20) for seed in range(DRAWS)]
    law = distribution(LOGITS.numpy(), specs[0])

    drawn = sample(LOGITS.expand(DRAWS, -1), specs)

    counts = np.bincount([token.token_id for token in drawn], minlength=len(law))
    assert stats.chisquare(counts[law > 0], law[law > 0] * DRAWS).pvalue > 1e-3


def test_uniform_numbers_are_uniform_and_unrelated_between_neighbouring_seeds_and_positions():
    grid = np.array([[uniform(seed, position) for position in range(100)] for seed in range(-50, 150)])

    assert stats.kstest(grid.ravel(), "uniform").pvalue > 1e-3
    assert grid.min() >= 0
    assert grid.max() < 1
    for left, right in ((grid[:, :-1], grid[:, 1:]), (grid[:-1], grid[1:]), (grid[:-1, 1:], grid[1:, :-1])):
        assert abs(np.corrcoef(left.ravel(), right.ravel())[0, 1]) < 0.03


def test_seeds_one_step_of_the_generator_apart_do_not_share_a_shifted_stream():
    step = 0x9E3779B97F4A7C15

    assert [uniform(5, position) for position in range(1, 9)] != [uniform(5 + step, position) for position in range(8)]


def test_the_same_seed_and_position_draw_the_same_token_and_others_differ(spec):
    def drawn(seed):
        specs = [spec(seed=seed, position=position) for position in range(200)]
        return [token.token_id for token in sample(LOGITS.expand(200, -1), specs)]

    assert drawn(7) == drawn(7)
    assert drawn(7) != drawn(8)


def bits(token):
    """Everything about a sampled token, floats by their bits."""
    if token.logprob is None:
        return token.token_id
    return token.token_id, token.logprob.logprob.hex(), [(i, value.hex()) for i, value in token.logprob.top]


PARAMS = st.fixed_dictionaries(
    {
        "temperature": st.sampled_from([0.0, 0.3, 1.0, 2.0]),
        "top_k": st.sampled_from([0, 0, 1, 40]),
        "top_p": st.sampled_from([1.0, 1.0, 0.9, 0.3]),
        "min_p": st.sampled_from([0.0, 0.0, 0.05]),
        "repetition_penalty": st.sampled_from([1.0, 1.0, 1.3]),
        "presence_penalty": st.sampled_from([0.0, 0.0, 0.7]),
        "logit_bias": st.sampled_from([{}, {}, {5: 3.0, 77: -100.0}]),
        "logprobs": st.sampled_from([None, None, 0, 5]),
    }
)


@settings(max_examples=examples(25))
@given(rows=st.lists(PARAMS, min_size=1, max_size=9), vocab=st.sampled_from([101, 49152]), seed=st.integers(0, 999))
def test_a_row_gives_the_same_bits_alone_as_in_any_batch(spec, rows, vocab, seed):
    rng = np.random.default_rng(seed)
    logits = torch.from_numpy(rng.normal(0, 3, (len(rows), vocab)).astype(np.float32))
    specs = [
        spec(seed=int(rng.integers(2**63)), output=rng.integers(0, vocab, 6).tolist(), prompt=[1, 2, 3], **params)
        for params in rows
    ]
    alone = [bits(sample(logits[i : i + 1].clone(), [specs[i]])[0]) for i in range(len(rows))]
    order = random.Random(seed).sample(range(len(rows)), len(rows))

    together = sample(logits[order], [specs[i] for i in order])

    assert [bits(token) for token in together] == [alone[i] for i in order]


def test_sampling_leaves_the_logits_as_they_were(spec):
    logits = LOGITS.repeat(2, 1)
    before = logits.clone()

    sample(logits, [spec(logit_bias={1: 5.0}, repetition_penalty=1.5, prompt=[3]), spec(temperature=0.5, top_p=0.5)])

    assert torch.equal(logits, before)


def test_greedy_takes_the_smallest_id_among_equal_logits(spec):
    logits = torch.tensor([[0.0, 7.0, 7.0, 7.0], [4.0, 4.0, 1.0, 4.0]])

    tokens = sample(logits, [spec(temperature=0), spec(temperature=0)])

    assert [token.token_id for token in tokens] == [1, 0]


def test_no_rows_give_no_tokens():
    assert sample(torch.empty(0, 10), []) == []


@given(seed=st.integers(0, 2**32 - 1), k=st.integers(0, 20), temperature=st.sampled_from([0.0, 1.0]))
def test_logprobs_are_the_raw_log_softmax_best_first(spec, seed, k, temperature):
    logits = torch.from_numpy(np.random.default_rng(seed).normal(0, 3, (1, 300)).astype(np.float32))
    expected = torch.log_softmax(logits[0], -1)

    token = sample(logits, [spec(seed=seed, logprobs=k, temperature=temperature, top_p=0.9, logit_bias={3: 9.0})])[0]

    assert token.logprob.token_id == token.token_id
    assert token.logprob.logprob == pytest.approx(expected[token.token_id].item(), abs=1e-5)
    values, ids = torch.topk(expected, k)
    assert [i for i, _ in token.logprob.top] == ids.tolist()
    assert [value for _, value in token.logprob.top] == pytest.approx(values.tolist(), abs=1e-5)


def test_the_most_likely_tokens_are_listed_by_id_where_they_tie(spec):
    token = sample(torch.tensor([[1.0, 2.0, 2.0, 2.0, 0.0]]), [spec(temperature=0, logprobs=2)])[0]

    assert [i for i, _ in token.logprob.top] == [1, 2]


def test_a_masked_logit_is_never_drawn_and_has_no_probability(spec):
    logits = torch.tensor([[0.0, -math.inf, 0.0]])
    specs = [spec(seed=seed, logprobs=3) for seed in range(300)]

    tokens = sample(logits.expand(300, -1), specs)

    assert {token.token_id for token in tokens} == {0, 2}
    assert tokens[0].logprob.top[-1] == (1, -math.inf)


@pytest.mark.parametrize("value", [math.nan, math.inf])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("native", [None, False])
def test_rows_without_a_usable_logit_are_named(spec, value, temperature, native):
    logits = torch.zeros(4, 6)
    logits[1, 3] = value
    logits[3] = -math.inf

    with pytest.raises(BadLogitsError, match="1, 3") as caught:
        sample(logits, [spec(temperature=temperature) for _ in range(4)], native=native)

    assert caught.value.rows == [1, 3]


def test_a_row_without_an_allowed_token_is_named(spec):
    with pytest.raises(BadLogitsError) as caught:
        sample(torch.zeros(2, 2), [spec(), spec(min_tokens=1, stop_token_ids=(0, 1))])

    assert caught.value.rows == [1]
