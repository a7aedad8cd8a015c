"""A model aims at the strictest objectives of the tiers that it serves."""

from msgspec.structs import replace

from inference_core.live_knobs import start_knobs
from tiers.catalog import Catalog
from tiers.catalog_file import load_catalog
from tiers.core_spec import core_spec


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
