"""Invalid requests are refused before they are queued; the error names field, value and allowed values."""

import math

import pytest
from core_driver import CoreDriver

from inference_core.errors import InvalidRequestError, QueueFullError
from inference_core.protocol import Knobs, SamplingParams


@pytest.fixture
def driver() -> CoreDriver:
    """One model: vocabulary 50, context 200, one slab of 16 blocks of 4 tokens."""
    return CoreDriver(slabs=1, knobs=Knobs(max_waiting=6))


@pytest.mark.parametrize(
    ("fields", "param", "message"),
    [
        ({"model": "gpt"}, "model", "'gpt' is unknown; loaded: m"),
        ({"prompt": []}, "prompt_token_ids", "is empty"),
        ({"prompt": [1, 50]}, "prompt_token_ids", "holds token 50; allowed: 0 to 49"),
        ({"prompt": [-1]}, "prompt_token_ids", "holds token -1"),
        ({"prompt": [1] * 200}, "prompt_token_ids", "200 tokens.*context of 200.*at most 199"),
        ({"n": 0}, "n", "is 0; allowed: 1 to 6"),
        ({"n": 7}, "n", "is 7; allowed: 1 to 6"),
        ({"priority": 3}, "priority", "is 3; allowed: 0"),
        ({"arrival": -1.0}, "arrival", "is -1"),
        ({"deadline": math.nan}, "deadline", "is nan"),
    ],
)
def test_a_bad_request_is_refused(driver: CoreDriver, fields: dict, param: str, message: str) -> None:
    with pytest.raises(InvalidRequestError, match=message) as caught:
        driver.add(**{"prompt": [1, 2, 3]} | fields)
    assert caught.value.param == param
    assert not driver.core.has_work


@pytest.mark.parametrize(
    ("param", "value"),
    [
        ("temperature", -0.1),
        ("temperature", math.inf),
        ("temperature", math.nan),
        ("top_p", 0.0),
        ("top_p", 1.1),
        ("top_k", -1),
        ("min_p", 1.5),
        ("min_p", -0.1),
        ("repetition_penalty", 0.0),
        ("presence_penalty", 2.5),
        ("frequency_penalty", -2.5),
        ("logit_bias", {50: 1.0}),
        ("logit_bias", {1: 101.0}),
        ("logit_bias", {1: math.nan}),
        ("seed", 2**63),
        ("max_tokens", 0),
        ("min_tokens", -1),
        ("min_tokens", 17),
        ("stop_token_ids", (50,)),
        ("logprobs", -1),
        ("logprobs", 51),
    ],
)
def test_a_sampling_parameter_out_of_range_is_refused(driver: CoreDriver, param: str, value: object) -> None:
    with pytest.raises(InvalidRequestError, match=param) as caught:
        driver.add([1], sampling=SamplingParams(**{param: value}))
    assert caught.value.param == param


def test_a_request_that_never_fits_the_arena_is_refused_with_the_arithmetic(driver: CoreDriver) -> None:
    """KV-10: 16 blocks hold 64 tokens, and the last token needs no room."""
    with pytest.raises(
        InvalidRequestError,
        match=r"30 prompt tokens \+ 36 answer tokens keep 65 tokens in 17 blocks of 4, but .* 16 blocks of 64 bytes",
    ) as caught:
        driver.add([1] * 30, sampling=SamplingParams(temperature=0, max_tokens=36))
    assert caught.value.param == "max_tokens"
    with pytest.raises(InvalidRequestError) as caught:
        driver.add([1] * 65, sampling=SamplingParams(temperature=0, max_tokens=1))
    assert caught.value.param == "prompt_token_ids"


def test_the_largest_request_that_fits_is_served(driver: CoreDriver) -> None:
    request = driver.add([1] * 30, sampling=SamplingParams(temperature=0, max_tokens=35, ignore_eos=True))
    driver.drain()
    assert len(driver.tokens[request, 0]) == 35


def test_a_live_request_id_is_refused_and_a_finished_one_is_free_again(driver: CoreDriver) -> None:
    driver.add([1], request_id="same")
    with pytest.raises(InvalidRequestError, match="'same' is in use") as caught:
        driver.add([2], request_id="same")
    assert caught.value.param == "request_id"
    driver.abort("same")
    driver.finished.clear()
    driver.add([3], request_id="same")
    driver.drain()


def test_a_full_queue_refuses_until_it_has_room(driver: CoreDriver) -> None:
    """BS-13: the queue is bounded in sequences, and refusing leaves no trace."""
    for _ in range(3):
        driver.add([1], n=2)
    with pytest.raises(QueueFullError, match="6 sequences wait and 1 more would pass the limit of 6"):
        driver.add([2])
    driver.core.check_integrity()
    driver.step()
    driver.add([2])
    driver.drain()


@pytest.mark.parametrize(
    ("param", "value"),
    [
        ("max_num_batched_tokens", 0),
        ("max_num_seqs", 0),
        ("prefill_chunk", -1),
        ("max_waiting", 0),
        ("ageing_seconds", 0.0),
        ("ageing_seconds", math.nan),
    ],
)
def test_a_knob_out_of_range_is_refused_and_changes_nothing(driver: CoreDriver, param: str, value: float) -> None:
    before = driver.core.knobs
    with pytest.raises(InvalidRequestError, match=f"{param} is") as caught:
        driver.core.set_knobs({"prefix_caching": False, param: value})
    assert caught.value.param == param
    assert driver.core.knobs == before
