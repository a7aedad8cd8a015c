"""The specifications of a catalogue's cores, with the objectives of the tiers on each model and their adapters.

LoRA adapters that tiers bind (SPEC TI-10): a path becomes an adapter of the model, and rules say what fits.
"""

import re
from collections.abc import Iterator, Mapping
from itertools import count
from pathlib import PurePath
from typing import Any, TypeVar

from msgspec import convert
from msgspec.structs import replace

from inference_core.engine.live_knobs import knob_schemas
from inference_core.io.files import prepare_types
from inference_core.model_spec import CoreSpec, DeviceCoreSpec, DeviceGroupSpec, DeviceModelSpec, ModelSpec
from inference_core.protocol import KnobValue
from tiers.catalog.catalog import Catalog
from tiers.catalog.gpu_group import GpuModelSpec
from tiers.catalog.tier_spec import TierSpec

_LONGEST_NAME = 60


def with_bound_adapters(catalog: Catalog) -> Catalog:
    """Return `catalog` with every path that a tier gives as its `adapter` among the adapters of the tier's model, under
    the name of the folder, which replaces the path. A model that is loaded once then serves all of its tiers."""
    adapters_by_model = {model.name: dict(model.adapters) for model in _models(catalog)}
    tiers = [
        _named(tier, adapters_by_model[tier.model]) if tier.model in adapters_by_model else tier
        for tier in catalog.tiers
    ]
    core = replace(catalog.core, models=[replace(m, adapters=adapters_by_model[m.name]) for m in catalog.core.models])
    groups = [
        replace(group, models=[replace(m, adapters=adapters_by_model[m.name]) for m in group.models])
        for group in catalog.gpu_groups
    ]
    return replace(catalog, core=core, gpu_groups=groups, tiers=tiers)


def adapter_problems(catalog: Catalog, tier: TierSpec) -> Iterator[str]:
    """Return why the adapter of `tier` cannot be served, as far as the catalogue shows; the rest shows at loading."""
    if tier.adapter is None:
        return
    if tier.remote is not None or tier.provider is not None:
        yield (
            f"adapter = {tier.adapter!r}: adapters are loaded over models in process, and this tier is on another "
            "server; load it there, and give the name that the server has for it as the tier's model"
        )
        return
    model = next((m for m in _models(catalog) if m.name == tier.model), None)
    if model is None:
        return
    if tier.adapter not in model.adapters:
        names = ", ".join(model.adapters) or "none"
        yield (
            f"adapter = {tier.adapter!r}: {model.name} has no such adapter (it has: {names}); give the path of a PEFT "
            "folder, with a '/'"
        )
    elif not model.max_adapters:
        yield f"adapter = {tier.adapter!r}: {model.name} has no slot for adapters; give it max_adapters = 1 or more"


def _models(catalog: Catalog) -> Iterator[ModelSpec | GpuModelSpec]:
    yield from catalog.core.models
    for group in catalog.gpu_groups:
        yield from group.models


def _named(tier: TierSpec, adapters: dict[str, str]) -> TierSpec:
    """Return `tier` with its adapter's name, and add a path to `adapters`."""
    path = tier.adapter
    if path is None or path in adapters or "/" not in path:
        return tier
    name = next((name for name, adapter_path in adapters.items() if adapter_path == path), None)
    if name is None:
        name = _free_name(path, adapters)
        adapters[name] = path
    return replace(tier, adapter=name)


def _free_name(path: str, taken: Mapping[str, str]) -> str:
    """Return the folder's name in the characters that adapters' names may have, with a number if it is taken."""
    name = re.sub(r"[^A-Za-z0-9._-]", "-", PurePath(path).name).lstrip("._-")[:_LONGEST_NAME] or "adapter"
    if name not in taken:
        return name
    return next(numbered for number in count(2) if (numbered := f"{name}-{number}") not in taken)


M = TypeVar("M", ModelSpec, DeviceModelSpec)
Values = dict[str, KnobValue]


prepare_types(DeviceCoreSpec)


def core_spec(catalog: Catalog) -> CoreSpec:
    """Return `catalog.core`; each model is tuned to its tiers' strictest objectives, unless knobs say otherwise."""
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
