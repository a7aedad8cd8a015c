"""The knobs of the laptop catalogue keep its tiers' objective between tokens, in virtual time (SPEC BS-06, BS-10)."""

import pytest
from msgspec.structs import replace

from inference_core.engine.live_knobs import start_knobs
from inference_core.protocol import Knobs
from tests.inference_core.engine.test_tuned_core import Load
from tiers.catalog.core_spec import core_spec
from tiers.catalog.load import load_catalog


def shipped() -> Knobs:
    return start_knobs(core_spec(load_catalog("laptop")))["smollm2-int4"]


@pytest.mark.parametrize("slower", [0.5, 1.0, 3.0])
def test_eight_streams_keep_the_objective_during_a_prompt_of_8000_tokens(slower: float) -> None:
    """The same on a fast and on a slow machine, where the operator's limits alone would take five times as long."""
    load = Load(replace(shipped(), prefix_caching=False), {"m": 8}, prompt=100, answer=400)
    load.runners["m"].slower = slower
    load.p95_ms(20)
    steps = load.runners["m"].steps
    steps.clear()
    load.ask("m", prompt=8000, answer=1)
    assert load.p95_ms(5) <= 100
    mixed = [(decodes, prompt) for decodes, prompt in steps if decodes >= 8 and prompt]
    assert len(mixed) > 20
    # The cost of `CostRunner`'s steps, so that no clock counts: what a twentieth of the steps may pass.
    slow = [d for d in mixed if slower * (0.006 + 0.0006 * (d[0] + 1) + 0.00027 * d[1]) > 0.1]
    assert len(slow) <= len(mixed) / 20


def test_cores_of_a_catalogue_are_tuned_unless_it_says_otherwise() -> None:
    catalog = load_catalog("laptop")
    assert shipped().auto_tune
    fixed = replace(catalog, core=replace(catalog.core, knobs={"auto_tune": False}))
    assert not any(knobs.auto_tune for knobs in start_knobs(core_spec(fixed)).values())
