"""What a catalogue's core is loaded with: its own specification, and the objectives of the tiers on each model."""

from typing import Any

from msgspec.structs import replace

from inference_core.live_knobs import knob_schemas
from inference_core.model_spec import CoreSpec, ModelSpec
from tiers.catalog import Catalog


def core_spec(catalog: Catalog) -> CoreSpec:
    """`catalog.core`, each model aiming at the strictest objectives of its tiers unless its knobs or the core's say."""
    return replace(catalog.core, models=[_with_objectives(model, catalog) for model in catalog.core.models])


def _with_objectives(model: ModelSpec, catalog: Catalog) -> ModelSpec:
    objectives = [tier.objective for tier in catalog.tiers if tier.model == model.name]
    if not objectives:
        return model
    strictest: dict[str, Any] = {
        "itl_objective_ms": _in_range("itl_objective_ms", min(objective.itl_ms for objective in objectives)),
        "ttft_objective_ms": _in_range("ttft_objective_ms", min(objective.ttft_ms for objective in objectives)),
    }
    said = catalog.core.knobs.keys() | model.knobs.keys()
    unsaid = {name: value for name, value in strictest.items() if name not in said}
    return replace(model, knobs={**unsaid, **model.knobs})


def _in_range(knob: str, value: float) -> float:
    """A tier may promise what no step can keep; the knob aims at the nearest that it can say."""
    schema = knob_schemas()[knob]
    return float(min(max(value, schema["minimum"]), schema["maximum"]))
