"""A model aims at the strictest objectives of the tiers that it serves."""

from typing import get_args

from msgspec.structs import replace

from inference_core.engine.live_knobs import start_knobs
from inference_core.model_spec import DeviceScheme
from tiers.catalog.catalog import Catalog
from tiers.catalog.core_spec import core_spec, group_spec
from tiers.catalog.gpu_group import COMPUTE, GpuWeights
from tiers.catalog.load import load_catalog


def objectives(catalog: Catalog) -> dict[str, tuple[float, float]]:
    knobs = start_knobs(core_spec(catalog))
    return {model: (k.itl_objective_ms, k.ttft_objective_ms) for model, k in knobs.items()}


def test_a_model_aims_at_the_strictest_objectives_of_its_tiers() -> None:
    assert objectives(load_catalog("laptop")) == {"smollm2-int4": (100, 1000), "smollm2-bf16": (150, 1500)}


def test_knobs_in_the_catalogue_come_before_the_tiers() -> None:
    catalog = load_catalog("laptop")
    int4, bf16 = catalog.core.models
    models = [int4, replace(bf16, knobs={"ttft_objective_ms": 9})]
    core = replace(catalog.core, knobs={"itl_objective_ms": 70}, models=models)
    assert objectives(replace(catalog, core=core)) == {"smollm2-int4": (70, 1000), "smollm2-bf16": (70, 9)}


def test_objectives_out_of_a_knobs_range_are_cut_to_it() -> None:
    catalog = load_catalog("laptop")
    tiers = [replace(t, objective=replace(t.objective, itl_ms=0.01, ttft_ms=1e9)) for t in catalog.tiers]
    assert objectives(replace(catalog, tiers=tiers)) == dict.fromkeys(("smollm2-int4", "smollm2-bf16"), (1, 3_600_000))


def test_a_gpu_group_is_loaded_as_the_catalogue_plans_it() -> None:
    spec = group_spec(load_catalog("datacenter"), "gpu-70b")
    assert (spec.device, spec.cards, spec.first_card, spec.card_bytes) == ("cuda", 4, 1, 24_000_000_000)
    assert (spec.core.memory_utilization, spec.core.max_num_batched_tokens) == (0.9, 8192)
    model, draft = spec.core.models
    assert (model.compute, model.kv_dtype, model.max_context) == ("int4", "float16", 8192)
    assert model.knobs == {"itl_objective_ms": 50.0, "ttft_objective_ms": 500.0, "speculation": "draft_model"}
    assert (model.draft, draft.draft, draft.compute) == (draft.name, None, "int4")


def test_a_group_that_captures_nothing_says_so_to_its_core() -> None:
    catalog = load_catalog("datacenter")
    groups = [replace(group, capture_steps=group.name != "gpu-70b") for group in catalog.gpu_groups]
    catalog = replace(catalog, gpu_groups=groups)
    assert [group_spec(catalog, name).core.capture_steps for name in ("gpu-8b", "gpu-70b")] == [True, False]


def test_slots_for_adapters_are_loaded_and_counted_as_the_catalogue_says() -> None:
    catalog = load_catalog("datacenter")
    group = catalog.group("gpu-70b")
    model = replace(group.models[0], max_adapters=8, max_adapter_rank=32, adapters={"sql": "/srv/sql"})
    adapted = replace(group, models=[model, *group.models[1:]])
    groups = [adapted if g.name == group.name else g for g in catalog.gpu_groups]

    loaded, _ = group_spec(replace(catalog, gpu_groups=groups), "gpu-70b").core.models

    assert (loaded.max_adapters, loaded.max_adapter_rank, loaded.adapters) == (8, 32, {"sql": "/srv/sql"})
    # A of q, k, v, gate and up and B of o and down lie on each of four cards; the rest is divided among them.
    whole = 5 * 8192 + 2 * 8192
    divided = (8192 + 2 * 1024 + 2 * 28672) + (8192 + 28672)
    taken = (4 * whole + divided) * 80 * 8 * 32 * 2
    assert group.kv_bytes - adapted.kv_bytes == taken
    assert f"- {taken / 1e9:.1f} GB: 8 slots for adapters of {model.name}" in "\n".join(adapted.memory_lines())


def test_every_format_of_weights_is_one_that_a_device_computes() -> None:
    assert set(COMPUTE) == set(get_args(GpuWeights))
    assert set(COMPUTE.values()) <= set(get_args(DeviceScheme))
