"""Copying is weighed against computing by what both were measured to take (SPEC KV-09)."""

import pytest

from inference_core.engine.auto_tuner import StepCost
from inference_core.kv_cache.host_cache import SwapCost, SwapTimes

COST = StepCost(base=0.01, per_sequence=0.001, per_token=0.0001, per_pair=1e-7)


def swap_cost(out: float, back: float, cost: StepCost | None = COST) -> SwapCost:
    known = SwapCost(block_size=16)
    known.measure(SwapTimes(10, 10 * out, 10, 10 * back))
    known.seconds_per_token = None if cost is None else cost.further
    return known


def test_a_block_costs_its_tokens_and_their_attention() -> None:
    # Tokens 32 to 47 attend to 33 to 48 tokens, 40.5 on average.
    assert swap_cost(0, 0).computing(2, 1) == pytest.approx(16 * (1e-4 + 40.5e-7))
    assert swap_cost(0, 0).computing(0, 3) == pytest.approx(48 * (1e-4 + 24.5e-7))


def test_deep_blocks_are_worth_copying_where_shallow_ones_are_not() -> None:
    known = swap_cost(out=0.002, back=0.001)
    assert not known.worth_offloading(0, 1.0)
    assert known.worth_offloading(2000, 1.0)


def test_what_is_seldom_wanted_back_must_be_cheaper_to_copy_out() -> None:
    known = swap_cost(out=0.0008, back=0.0001)
    assert known.worth_offloading(0, 1.0)
    assert not known.worth_offloading(0, 0.25)


def test_restoring_counts_the_way_back_alone() -> None:
    assert swap_cost(out=1.0, back=0.001).worth_restoring(0, 4)
    assert not swap_cost(out=0.0, back=0.003).worth_restoring(0, 4)


def test_what_is_not_known_is_tried() -> None:
    assert SwapCost(16).worth_offloading(0, 1.0)
    assert swap_cost(out=9.0, back=9.0, cost=None).worth_restoring(0, 1)
    # A model of which only decodes were seen: a further token costs nothing that was measured.
    assert swap_cost(out=9.0, back=9.0, cost=StepCost(base=0.01)).worth_restoring(0, 1)


def test_a_refusal_is_overruled_now_and_then_and_new_measurements_count() -> None:
    known = swap_cost(out=1.0, back=1.0)
    assert sum(known.worth_offloading(0, 1.0) for _ in range(SwapCost.EXPLORE * 2)) == 2
    for _ in range(100):
        known.measure(SwapTimes(1, 0.0001, 1, 0.0001))
    assert known.worth_offloading(0, 1.0)
