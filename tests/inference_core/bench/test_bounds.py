"""Bounds are plain arithmetic: what reading takes or what computing takes, whichever is longer."""

import pytest

from inference_core.bench.bounds import Peaks, Work, bounds, closed_loop_tokens, decode_seconds, prefill_seconds
from inference_core.bench.peer_tables import GOALS
from inference_core.model_config import ModelConfig

WORK = Work(layer_macs=1000, head_macs=200, attention_macs=10, weight_bytes=500, kv_bytes=4)
SLOW_MEMORY = Peaks(read_bytes=1.0, int8_macs=1e12, float32_macs=1e12)
SLOW_ARITHMETIC = Peaks(read_bytes=1e12, int8_macs=1.0, float32_macs=0.5)


def test_a_model_costs_its_weights_once_per_token():
    config = ModelConfig(
        architecture="llama",
        vocab_size=100,
        hidden_size=8,
        intermediate_size=16,
        num_layers=3,
        num_heads=4,
        num_kv_heads=2,
        head_dim=2,
        max_position=64,
        rms_eps=1e-5,
        rope_theta=1e4,
    )

    work = Work.of_model(config, weight_bytes=1, kv_bytes=2)

    # q and o 8 x 8, k and v 8 x 4, gate, up and down 8 x 16; scores and values of 4 heads of 2.
    assert work.layer_macs == 3 * (2 * 64 + 2 * 32 + 3 * 128)
    assert (work.head_macs, work.attention_macs) == (800, 3 * 2 * 8)


def test_with_slow_memory_a_step_takes_as_long_as_its_bytes():
    assert decode_seconds(WORK, SLOW_MEMORY, sequences=3, context=10) == pytest.approx(500 + 3 * 10 * 4)
    assert prefill_seconds(WORK, SLOW_MEMORY, tokens=10) == pytest.approx(540)


def test_with_slow_arithmetic_it_takes_as_long_as_its_operations():
    assert decode_seconds(WORK, SLOW_ARITHMETIC, sequences=3, context=10) == pytest.approx(3 * 1200 + 3 * 100 / 0.5)
    assert prefill_seconds(WORK, SLOW_ARITHMETIC, tokens=10) == pytest.approx(10 * 1000 + 200 + 55 * 10 / 0.5)


def test_a_closed_loop_pays_each_prefill_alone_and_shares_the_steps():
    prefill = prefill_seconds(WORK, SLOW_MEMORY, tokens=10)
    step = decode_seconds(WORK, SLOW_MEMORY, sequences=4, context=12)

    speed = closed_loop_tokens(WORK, SLOW_MEMORY, streams=4, prompt=10, output=5)

    assert speed == pytest.approx(5 / (prefill + 4 * step / 4))


def test_every_bound_that_a_goal_names_is_computed():
    assert {goal.bound for goal in GOALS} - {None} == set(bounds(WORK, SLOW_MEMORY))
