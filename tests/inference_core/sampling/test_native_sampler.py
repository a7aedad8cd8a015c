"""The native sampler draws what the NumPy reference draws: same tokens, same log-probabilities to the last bit."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from inference_core.errors import BadLogitsError, InvalidRequestError
from inference_core.native import cpu
from inference_core.sampling.reference_sampler import distribution, sample_row
from inference_core.sampling.sampler import sample, sample_rows
from tests.examples import examples

pytestmark = pytest.mark.skipif(not cpu.AVAILABLE, reason="the native kernels were not built (no C++ compiler)")

INSTRUCTION_SETS = cpu.extension().instruction_sets() if cpu.AVAILABLE else []


@pytest.fixture(params=INSTRUCTION_SETS, scope="module", autouse=True)
def instruction_set(request):
    cpu.extension().use_instruction_set(request.param)
    yield request.param
    cpu.extension().use_instruction_set(INSTRUCTION_SETS[0])


def best_of_rows(logits):
    """The first greatest token id per row, -1 where it is not finite, as `sample_rows` finds it."""
    return cpu.extension().best_of_rows(logits.data_ptr(), logits.stride(0), logits.shape[1], logits.shape[0])


def both(logits, specs):
    """What the native sampler and the reference make of rows that no error spoils."""
    return sample_rows(torch.from_numpy(logits), specs), [
        sample_row(row, one) for row, one in zip(logits, specs, strict=True)
    ]


def random_rows(rng, kind, rows, vocab):
    scale = float(rng.choice([1e-3, 1, 3, 30]))
    logits = rng.normal(0, scale, (rows, vocab)).astype(np.float32)
    if kind == "tied":
        logits = np.round(logits)
    elif kind == "masked":
        logits[rng.random((rows, vocab)) < 0.5] = -np.inf
    elif kind == "peaked":
        logits[:, rng.integers(vocab, size=3)] += 20
    elif kind == "extreme":
        extremes = np.array([3e38, -3e38, 1e-45, -1e-45, 0.0, -0.0, 1e20], np.float32)
        logits = rng.choice(extremes, (rows, vocab))
    return logits


# Each list names the ordinary value more than once, so that filters meet alone as well as together.
PARAMS = st.fixed_dictionaries(
    {
        "temperature": st.sampled_from([1.0, 0.7, 0.05, 2.0, 0.0, 1e6, 1e-9, 1e-300, 5e-324, 1e300]),
        "top_k": st.sampled_from([0, 0, 1, 5, 40, 200, 1000, 10**30]),
        "top_p": st.sampled_from([1.0, 1.0, 0.9, 0.5, 0.999999, 1e-12, 0.0]) | st.floats(0, 1),
        "min_p": st.sampled_from([0.0, 0.0, 0.0, 0.05, 1e-4, 1e-20, 1.0]) | st.floats(0, 1),
        "repetition_penalty": st.sampled_from([1.0, 1.0, 1.3, 0.7]),
        "presence_penalty": st.sampled_from([0.0, 0.0, 0.7, -0.1]),
        "frequency_penalty": st.sampled_from([0.0, 0.0, 0.3]),
        "min_tokens": st.sampled_from([0, 0, 99]),
        "logprobs": st.sampled_from([None, None, 0, 5, 300]),
    }
)
KINDS = st.sampled_from(["plain", "tied", "masked", "peaked", "extreme"])
VOCABULARIES = st.sampled_from([1, 2, 7, 16, 31, 33, 255, 256, 257, 1000, 4099, 20_000])


@settings(max_examples=examples(80))
@given(params=PARAMS, kind=KINDS, vocab=VOCABULARIES, seed=st.integers(0, 2**32 - 1))
def test_every_row_is_drawn_as_the_reference_draws_it(spec, params, kind, vocab, seed):
    rng = np.random.default_rng(seed)
    logits = random_rows(rng, kind, 4, vocab)
    bias = {int(i): float(rng.normal(0, 5)) for i in rng.integers(vocab, size=rng.integers(3))}
    specs = [
        spec(
            seed=int(rng.integers(-(2**63), 2**63)),
            prompt=rng.integers(vocab, size=9).tolist(),
            output=rng.integers(vocab, size=9).tolist(),
            eos=(vocab - 1,),
            logit_bias=bias,
            **params,
        )
        for _ in logits
    ]

    native, reference = both(logits, specs)

    assert native == reference


@pytest.mark.parametrize("vocab", [3, 16, 40])
def test_weights_equal_the_references_to_the_last_unit(spec, vocab):
    # With few tokens one unit of one weight shows in the logarithm of their sum.
    logits = np.random.default_rng(vocab).normal(0, 2, (3000, vocab)).astype(np.float32)
    specs = [spec(temperature=0, logprobs=0)] * len(logits)

    native, reference = both(logits, specs)

    assert [token.logprob.logprob.hex() for token in native] == [token.logprob.logprob.hex() for token in reference]


@pytest.mark.parametrize("temperature", [0.6, 1.0, 3.0])
@pytest.mark.parametrize("top_p", [0.7, 0.95, 1.0])
def test_a_whole_vocabulary_is_drawn_as_the_reference_draws_it(spec, temperature, top_p):
    rng = np.random.default_rng(11)
    logits = np.concatenate([random_rows(rng, kind, 2, 49152) for kind in ("plain", "tied", "peaked")])
    specs = [spec(seed=row, position=row, temperature=temperature, top_p=top_p) for row in range(len(logits))]

    native, reference = both(logits, specs)

    assert native == reference


@pytest.mark.parametrize(("top_p", "kept"), [(0.25, 1), (0.2500001, 2), (0.5, 2), (0.75, 3), (0.7500001, 4)])
def test_top_p_at_an_exact_border_keeps_the_smallest_sufficient_set(spec, top_p, kept):
    logits = np.tile(np.array([1, 5, 5, 0, 5, 5], np.float32) * 100, (200, 1))
    specs = [spec(seed=seed, top_p=top_p) for seed in range(len(logits))]

    native, reference = both(logits, specs)

    assert native == reference
    assert {token.token_id for token in native} == set([1, 2, 4, 5][:kept])


def test_a_nucleus_of_exactly_the_requested_weight_is_not_extended(spec):
    logits = np.random.default_rng(4).normal(0, 1, (400, 12)).astype(np.float32)
    laws = [np.sort(distribution(row, spec()))[::-1] for row in logits]
    specs = [spec(seed=row, top_p=float(law[: 1 + row % 7].sum())) for row, law in enumerate(laws)]

    native, reference = both(logits, specs)

    assert native == reference


@pytest.mark.parametrize("place", [0, 15, 16, 255, 256, 299])
@pytest.mark.parametrize("value", [math.nan, math.inf])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_row_with_a_bad_logit_anywhere_is_named_whatever_masks_it(spec, place, value, temperature):
    logits = torch.zeros(3, 300)
    logits[1, place] = value

    with pytest.raises(BadLogitsError) as caught:
        sample(logits, [spec(temperature=temperature, eos=(place,), min_tokens=1)] * 3, native=True)

    assert caught.value.rows == [1]
    assert best_of_rows(logits) == [0, -1, 0]


def test_a_row_of_masks_alone_is_named(spec):
    logits = torch.full((2, 70), -math.inf)
    logits[1, 69] = -3e38

    assert sample_rows(logits, [spec(temperature=0)] * 2)[0] is None
    assert best_of_rows(logits) == [-1, 69]


@given(vocab=st.integers(1, 5000), seed=st.integers(0, 2**32 - 1))
@settings(max_examples=examples(40))
def test_the_best_of_a_row_is_the_first_of_the_greatest(vocab, seed):
    logits = np.round(np.random.default_rng(seed).normal(0, 1, (5, vocab))).astype(np.float32)

    assert best_of_rows(torch.from_numpy(logits)) == logits.argmax(-1).tolist()


def test_draws_do_not_depend_on_the_number_of_threads(spec):
    logits = torch.from_numpy(np.random.default_rng(2).normal(0, 3, (40, 900)).astype(np.float32))
    specs = [spec(seed=row, top_p=0.9, logprobs=2) for row in range(40)]
    cpu.set_threads(1)
    alone = sample_rows(logits, specs)
    cpu.set_threads(3)

    together = sample_rows(logits, specs)

    cpu.set_threads(None)
    assert together == alone


@pytest.mark.parametrize(
    "turn", [lambda x: x.double(), lambda x: x.T.contiguous().T, lambda x: x.repeat(1, 2)[:, :900]]
)
def test_logits_may_lie_in_memory_in_any_way(spec, turn):
    logits = torch.from_numpy(np.random.default_rng(2).normal(0, 3, (5, 900)).astype(np.float32))
    specs = [spec(seed=row) for row in range(5)]

    assert sample_rows(turn(logits), specs) == sample_rows(logits, specs)


@pytest.mark.parametrize(
    ("options", "param"),
    [
        ({"logit_bias": {4: 1.0}}, "logit_bias"),
        ({"logit_bias": {2**70: 1.0}}, "logit_bias"),
        ({"min_tokens": 1, "stop_token_ids": (9,)}, "stop_token_ids"),
        ({"min_tokens": 1, "eos": (-1,)}, "eos_token_ids"),
        ({"repetition_penalty": 1.1, "prompt": [7]}, "prompt_token_ids"),
        ({"presence_penalty": 1.1, "output": [7]}, "output_token_ids"),
    ],
)
@pytest.mark.parametrize("native", [True, False])
def test_a_token_id_outside_the_vocabulary_is_refused_alike(spec, options, param, native):
    with pytest.raises(InvalidRequestError, match=r"token id -?\d+ in \w+ is not in the vocabulary") as caught:
        sample(torch.zeros(1, 4), [spec(position=0, **options)], native=native)

    assert caught.value.param == param


def test_a_spec_of_the_wrong_kind_is_refused(spec):
    with pytest.raises(AttributeError):
        sample_rows(torch.zeros(1, 4), [object()])
    with pytest.raises(TypeError):
        sample_rows(torch.zeros(1, 4), [spec(temperature="hot")])


def test_a_vocabulary_too_large_to_sum_is_refused(spec):
    with pytest.raises(ValueError, match="524287"):
        sample(torch.zeros(1, 2**19), [spec()])
