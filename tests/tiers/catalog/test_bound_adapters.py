"""A tier may bind a LoRA adapter of its model: by name or by path, and only where one can be loaded (SPEC TI-10)."""

import tomllib
from importlib import resources
from typing import Any

import pytest

from tests.tiers.catalog.test_catalog_defaults import catalogue, remote
from tiers.catalog.core_spec import core_spec
from tiers.catalog.load import parse_catalog
from tiers.errors import CatalogError

PATH = "models/one.gguf"


def local(name: str, **more: Any) -> dict[str, Any]:
    return {"name": name, "model": PATH, **more}


def test_tiers_of_one_model_differ_by_their_adapters_alone() -> None:
    catalog = catalogue(local("plain"), local("maths", adapter="runs/maths"), local("law", adapter="runs/law"))
    (model,) = core_spec(catalog).models
    assert model.adapters == {"maths": "runs/maths", "law": "runs/law"}
    assert [tier.adapter for tier in catalog.tiers] == [None, "maths", "law"]
    assert [tier.served_name for tier in catalog.tiers] == ["one", "one:maths", "one:law"]
    assert len(set(catalog.tier_fingerprints)) == 3


def test_one_folder_is_one_adapter_and_equal_names_of_two_folders_get_numbers() -> None:
    model = {"name": "one", "path": PATH, "compute": "int4", "adapters": {"known": "runs/known"}}
    tiers = [local("a", model="one", adapter=name) for name in ("known", "runs/known", "1/best run", "2/best run")]
    tiers = [tier | {"name": f"tier-{letter}"} for tier, letter in zip(tiers, "abcd", strict=True)]
    catalog = catalogue(*tiers, core={"models": [model]})
    assert [tier.adapter for tier in catalog.tiers] == ["known", "known", "best-run", "best-run-2"]
    assert catalog.core.models[0].adapters == {
        "known": "runs/known", "best-run": "1/best run", "best-run-2": "2/best run",
    }  # fmt: skip


def test_another_folder_of_the_same_name_is_another_tier_to_labels() -> None:
    old, new = (catalogue(local("plain"), local("maths", adapter=f"{run}/maths")) for run in "12")
    assert old.tier(2) == new.tier(2)
    assert old.tier_fingerprint(1) == new.tier_fingerprint(1)
    assert old.tier_fingerprint(2) != new.tier_fingerprint(2)


@pytest.mark.parametrize(
    ("tier", "why"),
    [
        (remote("maths", adapter="runs/maths"), "adapters are loaded over models in process"),
        (local("maths", adapter="maths"), "one has no such adapter (it has: none); give the path of a PEFT folder"),
    ],
)
def test_an_adapter_that_no_core_can_load_is_refused(tier: dict[str, Any], why: str) -> None:
    with pytest.raises(CatalogError) as refused:
        catalogue(local("plain"), tier)
    assert "tiers 'maths'.adapter = " in str(refused.value)
    assert why in str(refused.value)


def test_a_model_without_slots_binds_none() -> None:
    model = {"name": "one", "path": PATH, "compute": "int4", "max_adapters": 0}
    with pytest.raises(CatalogError, match="one has no slot for adapters; give it max_adapters = 1 or more"):
        catalogue(local("plain", model="one"), local("b", model="one", adapter="runs/b"), core={"models": [model]})


def test_a_gpu_group_binds_adapters_where_its_model_has_slots() -> None:
    table = tomllib.loads(resources.files("tiers.catalogs").joinpath("datacenter.toml").read_text("utf-8"))
    model = table["gpu_groups"][0]["models"][0]
    tier = next(tier for tier in table["tiers"] if tier.get("model") == model["name"])
    tier["adapter"] = "runs/maths"
    with pytest.raises(CatalogError, match="has no slot for adapters"):
        parse_catalog(table, "datacenter")
    model["max_adapters"] = 1
    assert parse_catalog(table, "datacenter").gpu_groups[0].models[0].adapters == {"maths": "runs/maths"}
