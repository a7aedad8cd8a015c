"""The law that tokens are drawn from: filters, penalties, bias and masks, against independent computations."""

import math

import numpy as np
import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st
from transformers.generation.logits_process import (
    MinPLogitsWarper,
    RepetitionPenaltyLogitsProcessor,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)

from inference_core.errors import InvalidRequestError
from inference_core.sampling.reference_sampler import distribution
from inference_core.sampling.sampler import sample


def array(values):
    return np.asarray(values, dtype=np.float32)


def naive_law(logits, temperature, top_k, top_p, min_p):
    """Each filter by its definition, over one sorted list."""
    order = sorted(range(len(logits)), key=lambda i: (-logits[i], i))
    best = float(logits[order[0]])
    weights = {i: math.exp((float(logits[i]) - best) / temperature) for i in order}
    kept = order[: top_k or len(order)]
    if top_p < 1:
        total, reached, nucleus = sum(weights[i] for i in kept), 0.0, []
        for i in kept:
            nucleus.append(i)
            reached += weights[i] / total
            assume(abs(reached - top_p) > 1e-9)  # on the very edge either answer is right
            if reached >= top_p:
                break
        kept = nucleus
    assume(all(abs(weights[i] - min_p) > 1e-12 for i in kept) or min_p in (0, 1))
    kept = [i for i in kept if weights[i] >= min_p]
    total = sum(weights[i] for i in kept)
    law = np.zeros(len(logits))
    for i in kept:
        law[i] = weights[i] / total
    return law


tied = st.lists(st.integers(-6, 6).map(float), min_size=1, max_size=40)
spread = st.lists(st.floats(-30, 30, width=32), min_size=1, max_size=700)


@given(
    logits=tied | spread,
    temperature=st.floats(0.05, 4),
    top_k=st.integers(0, 50),
    top_p=st.floats(0, 1),
    min_p=st.floats(0, 1),
)
def test_combined_filters_follow_their_definitions(spec, logits, temperature, top_k, top_p, min_p):
    got = distribution(array(logits), spec(temperature=temperature, top_k=top_k, top_p=top_p, min_p=min_p))

    np.testing.assert_allclose(got, naive_law(logits, temperature, top_k, top_p, min_p), atol=1e-9)


@given(
    seed=st.integers(0, 2**32 - 1),
    temperature=st.floats(0.3, 2),
    top_k=st.integers(1, 64),
    top_p=st.floats(0.05, 0.99),
    min_p=st.floats(0.001, 0.5),
)
def test_combined_filters_agree_with_transformers_where_no_logits_tie(spec, seed, temperature, top_k, top_p, min_p):
    logits = np.random.default_rng(seed).normal(0, 4, 500).astype(np.float32)
    scores = torch.from_numpy(logits).double()[None]
    for warper in (
        TemperatureLogitsWarper(temperature),
        TopKLogitsWarper(top_k),
        TopPLogitsWarper(top_p),
        MinPLogitsWarper(min_p),
    ):
        scores = warper(None, scores)

    got = distribution(logits, spec(temperature=temperature, top_k=top_k, top_p=top_p, min_p=min_p))

    np.testing.assert_allclose(got, torch.softmax(scores, -1)[0].numpy(), atol=1e-9)


@pytest.mark.parametrize("temperature", [0.7, 3.0])
def test_a_nucleus_too_wide_for_the_partial_sort_is_still_exact(spec, temperature):
    logits = np.random.default_rng(1).normal(0, 2, 49152).astype(np.float32)
    scores = TopPLogitsWarper(0.95)(None, torch.from_numpy(logits).double()[None] / temperature)

    got = distribution(logits, spec(temperature=temperature, top_p=0.95))

    np.testing.assert_allclose(got, torch.softmax(scores, -1)[0].numpy(), atol=1e-9)


def test_top_k_among_equal_logits_keeps_the_smallest_ids(spec):
    law = distribution(array([1, 5, 5, 5, 5, 0]), spec(top_k=3))

    assert law.nonzero()[0].tolist() == [1, 2, 3]


def test_top_p_keeps_one_token_even_at_zero(spec):
    assert distribution(array([1, 3, 2]), spec(top_p=0.0)).tolist() == [0, 1, 0]


def test_min_p_of_one_keeps_the_best_token(spec):
    assert distribution(array([1, 3, 2]), spec(min_p=1.0)).tolist() == [0, 1, 0]


@pytest.mark.parametrize("temperature", [1e-3, 1e-9, 1e-300])
def test_a_vanishing_temperature_becomes_greedy(spec, temperature):
    logits = array([2.0, 2.25, -1.0, 2.125])

    cold = distribution(logits, spec(temperature=temperature))

    np.testing.assert_allclose(cold, distribution(logits, spec(temperature=0)), atol=1e-12)


@given(seed=st.integers(0, 2**32 - 1), penalty=st.floats(0.5, 2), length=st.integers(0, 30))
def test_repetition_penalty_agrees_with_transformers_over_prompt_and_output(spec, seed, penalty, length):
    rng = np.random.default_rng(seed)
    logits = rng.normal(0, 3, 40).astype(np.float32)
    history = rng.integers(0, 40, length).tolist()
    cut = length // 3
    processor = RepetitionPenaltyLogitsProcessor(penalty)
    expected = processor(torch.tensor([history], dtype=torch.long), torch.from_numpy(logits)[None].clone())

    got = distribution(logits, spec(prompt=history[:cut], output=history[cut:], repetition_penalty=penalty))

    np.testing.assert_allclose(got, torch.softmax(expected.double(), -1)[0].numpy(), rtol=1e-4, atol=1e-9)


def softmax(values):
    weights = np.exp(np.asarray(values, dtype=np.float64) - max(values))
    return weights / weights.sum()


def test_presence_and_frequency_penalties_count_the_output_alone(spec):
    law = distribution(
        array([1, 1, 1, 1]), spec(prompt=[0, 0, 0], output=[1, 2, 2], presence_penalty=0.5, frequency_penalty=0.25)
    )

    np.testing.assert_allclose(law, softmax([1, 1 - 0.75, 1 - 1.0, 1]), rtol=1e-6)


def test_bias_comes_before_the_repetition_penalty(spec):
    # -1 + 3 = 2 is positive, so the penalty divides; the other order would give -1 * 2 + 3 = 1.
    law = distribution(array([0, -1]), spec(prompt=[1], logit_bias={1: 3.0}, repetition_penalty=2.0))

    np.testing.assert_allclose(law, softmax([0, 1.0]), rtol=1e-6)


def test_penalties_come_before_the_temperature(spec):
    law = distribution(array([1, 1]), spec(output=[1], presence_penalty=1.0, temperature=0.5))

    np.testing.assert_allclose(law, softmax([2, 0]), rtol=1e-6)


def test_end_tokens_are_masked_below_the_minimum_length_and_free_from_it_on(spec):
    logits = array([9, 8, 1, 0])
    options = {"temperature": 0, "min_tokens": 2, "stop_token_ids": (1,), "eos": (0,)}

    below = distribution(logits, spec(output=[3], **options))
    reached = distribution(logits, spec(output=[3, 3], **options))

    assert below.argmax() == 2
    assert reached.argmax() == 0


@pytest.mark.parametrize(
    ("options", "param"),
    [
        ({"logit_bias": {4: 1.0}}, "logit_bias"),
        ({"logit_bias": {-1: 1.0}}, "logit_bias"),
        ({"min_tokens": 1, "stop_token_ids": (9,)}, "stop_token_ids"),
    ],
)
def test_a_token_id_outside_the_vocabulary_is_refused_by_name(spec, options, param):
    with pytest.raises(InvalidRequestError) as caught:
        sample(torch.zeros(1, 4), [spec(**options)])

    assert caught.value.param == param


@given(gap=st.floats(0, 40, width=32), temperature=st.floats(0.1, 10))
def test_a_weight_is_the_exponential_to_half_a_unit_of_the_best_ones_2_to_the_44(spec, gap, temperature):
    law = distribution(array([0, -gap]), spec(temperature=temperature))

    exact = math.exp(-float(np.float32(gap)) / temperature)
    assert abs(law[1] / law[0] - exact) <= 2.0**-45 + 2e-13 * exact
