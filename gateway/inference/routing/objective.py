"""By what utility a catalogue serves now: what trials, experiments and retrainings compare versions by."""

from classifier.class_predictor import threshold_of
from classifier.complexity.quality_setting import target_of
from gateway.base.settings import Settings
from gateway.inference.routing.knobs import RoutingKnobFile
from quality.comparison.decision_gain import Serving
from tiers.catalog.catalog import Catalog
from tiers.catalog.pricing import predicted_costs


def objective_of(settings: Settings, catalog: Catalog) -> Serving:
    """Return the quality target by the knobs, else by the settings, and what a request of usual length costs at each
    tier."""
    knob = RoutingKnobFile(settings.routing_knobs_path).active.quality_target
    costs = predicted_costs(catalog, catalog.reference_prompt_tokens, None)
    return Serving(
        target=threshold_of(target_of(settings.quality_target if knob is None else knob)),
        cost_shares=[cost / costs[-1] for cost in costs],
    )
