"""Retraining compares decisions at the target and prices that serve: of the catalogue, the settings and the knob."""

from pathlib import Path

import pytest

from gateway.base.settings import Settings
from gateway.inference.routing_knobs import RoutingKnobFile
from gateway.operations.labels.loop_setup import retrain_settings
from tiers.catalog.load import load_catalog
from tiers.catalog.pricing import predicted_costs


def test_decisions_are_compared_at_the_target_and_the_prices_that_serve(tmp_path: Path) -> None:
    catalog, settings = load_catalog("laptop"), Settings(data_dir=str(tmp_path), quality_target="careful")
    serving = retrain_settings(settings, catalog).serving
    assert serving is not None
    costs = predicted_costs(catalog, catalog.reference_prompt_tokens, None)
    assert serving.cost_shares == pytest.approx([cost / costs[-1] for cost in costs])
    assert serving.cost_shares[0] < serving.cost_shares[-1] == 1.0
    assert serving.target == 0.9

    settings.data_path.mkdir(parents=True, exist_ok=True)
    RoutingKnobFile(settings.routing_knobs_path).change({"quality_target": 0.5})
    changed = retrain_settings(settings, catalog).serving
    assert changed is not None
    assert changed.target == 0.5
