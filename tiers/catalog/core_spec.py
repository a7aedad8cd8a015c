"""The specifications of a catalogue's cores, with the objectives of the tiers on each model."""

from typing import Any, TypeVar

from msgspec import convert
from msgspec.structs import replace

from inference_core.engine.live_knobs import knob_schemas
from inference_core.model_spec import CoreSpec, DeviceCoreSpec, DeviceGroupSpec, DeviceModelSpec, ModelSpec
from inference_core.protocol import KnobValue
from tiers.catalog.catalog import Catalog

M = TypeVar("M", ModelSpec, DeviceModelSpec)
Values = dict[str, KnobValue]


def core_spec(catalog: Catalog) -> CoreSpec:
    """Return `catalog.core`; each model is tuned to its tiers' strictest objectives, unless its knobs or the core's say
    otherwise."""
    core = replace(catalog.core, knobs={"auto_tune": True, **catalog.core.knobs})
    return replace(core, models=[_with_objectives(model, catalog, core.knobs) for model in core.models])


def group_spec(catalog: Catalog, name: str) -> DeviceGroupSpec:
    """Return the core of GPU group `name`; its models' objectives as in `core_spec`."""
    group = catalog.group(name)
    core = convert(group, DeviceCoreSpec, from_attributes=True)
    cards = catalog.cards_of(group)
    return DeviceGroupSpec(
        name=name,
        device=group.device,
        cards=group.cards,
        pipeline=group.pipeline,
        first_card=cards.start if cards else 0,
        card_bytes=group.card_bytes,
        core=replace(core, models=[_with_objectives(model, catalog, group.knobs) for model in core.models]),
    )


def _with_objectives(model: M, catalog: Catalog, common: Values) -> M:
    objectives = [tier.objective for tier in catalog.tiers if tier.model == model.name]
    if not objectives:
        return model
    strictest: dict[str, Any] = {
        "itl_objective_ms": _in_range("itl_objective_ms", min(objective.itl_ms for objective in objectives)),
        "ttft_objective_ms": _in_range("ttft_objective_ms", min(objective.ttft_ms for objective in objectives)),
    }
    said = common.keys() | model.knobs.keys()
    unsaid = {name: value for name, value in strictest.items() if name not in said}
    return replace(model, knobs={**unsaid, **model.knobs})


def _in_range(knob: str, value: float) -> float:
    """Clip an objective to the knob's range: a tier may promise what no step can keep."""
    schema = knob_schemas()[knob]
    return float(min(max(value, schema["minimum"]), schema["maximum"]))
