"""A catalogue is served if its files and cards are there; otherwise the error names what is missing and what to do."""

from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from inference_core.errors import DevicesMissingError
from tests.inference_core.tiny_gguf import CONTEXT, HEAD_DIM, KV_HEADS, LAYERS, decoder_weights, write_gguf
from tiers.catalog.catalog import Catalog
from tiers.catalog.core_spec import group_spec
from tiers.catalog.gpu_group import GpuGroupSpec, GpuModelSpec
from tiers.catalog.hardware_check import require_plans, require_servable, validate_files
from tiers.catalog.load import load_catalog
from tiers.catalog.tier_spec import RemoteSpec
from tiers.errors import CatalogError

REMOTE = RemoteSpec(base_url="http://10.0.0.1:8000/v1", model="big", max_context=8192)


@pytest.fixture
def datacenter() -> Catalog:
    return load_catalog("datacenter")


def with_groups(catalog: Catalog, **changes: dict[str, Any]) -> Catalog:
    groups = [replace(group, **changes.get(group.name.replace("-", "_"), {})) for group in catalog.gpu_groups]
    return replace(catalog, gpu_groups=groups)


def test_a_machine_without_the_cards_gets_an_error_naming_the_groups_their_needs_and_alternatives(
    datacenter: Catalog,
) -> None:
    with pytest.raises(DevicesMissingError) as refused:
        require_servable(datacenter, cards=0)
    said = str(refused.value)
    assert "this machine, which has 0 CUDA device(s) (none)" in said
    assert "group gpu-8b (tier-2: llama-3.1-8b-int4) needs 1, card 0" in said
    assert "group gpu-70b (tier-3: llama-3.3-70b-awq, tier-4: llama-3.3-70b-awq) needs 4, cards 1 to 4" in said
    assert "'laptop'" in said
    assert "[tiers.remote]" in said


def test_groups_take_their_cards_one_after_another(datacenter: Catalog) -> None:
    assert [list(datacenter.cards_of(group)) for group in datacenter.gpu_groups] == [[0], [1, 2, 3, 4]]
    require_servable(datacenter, cards=5)
    with pytest.raises(DevicesMissingError, match="needs 4, cards 1 to 4") as refused:
        require_servable(datacenter, cards=4)
    assert "gpu-8b" not in str(refused.value)


def test_only_the_cores_that_are_served_here_need_their_cards(datacenter: Catalog) -> None:
    require_servable(datacenter, cards=0, cores=["cpu"])
    require_servable(datacenter, cards=1, cores=["gpu-8b"])
    with pytest.raises(DevicesMissingError):
        require_servable(datacenter, cards=1, cores=["gpu-70b"])


def test_a_group_may_say_which_cards_are_its_own(datacenter: Catalog) -> None:
    apart = with_groups(datacenter, gpu_70b={"first_card": 0})
    assert [list(apart.cards_of(group)) for group in apart.gpu_groups] == [[0], [0, 1, 2, 3]]
    require_servable(apart, cards=4)
    assert group_spec(with_groups(datacenter, gpu_8b={"first_card": 2}), "gpu-70b").first_card == 3


def test_a_group_that_no_tier_runs_on_is_a_plan_and_needs_nothing(datacenter: Catalog) -> None:
    tiers = [t if t.number < 3 else replace(t, model=None, remote=REMOTE) for t in datacenter.tiers]
    catalog = replace(datacenter, tiers=tiers)
    assert catalog.core_names == ["cpu", "gpu-8b"]
    require_servable(catalog, cards=1)


def test_a_group_on_the_host_needs_no_cards(datacenter: Catalog) -> None:
    catalog = with_groups(datacenter, gpu_8b={"device": "cpu"})
    with pytest.raises(DevicesMissingError, match="needs 4, cards 0 to 3"):
        require_servable(catalog, cards=0)
    require_servable(catalog, cards=4)


def test_missing_files_of_every_core_are_named(datacenter: Catalog) -> None:
    with pytest.raises(CatalogError) as missing:
        validate_files(datacenter)
    for part in ("core.models 'llama-3.2-3b-int4'", "gpu_groups 'gpu-8b'.models", "gpu_groups 'gpu-70b'.models"):
        assert part in str(missing.value)
    with pytest.raises(CatalogError) as missing:
        validate_files(datacenter, ["gpu-8b"])
    assert "gpu-70b" not in str(missing.value)
    assert "core.models" not in str(missing.value)


@pytest.mark.parametrize(
    ("changes", "cards", "said"),
    [
        ({}, 2, None),
        ({"num_layers": 80}, 1, f"'m'.num_layers = 80: {{path}} has {LAYERS}"),
        ({"num_kv_heads": 8, "head_dim": 128}, 1, f"'m'.head_dim = 128: {{path}} has {HEAD_DIM}"),
        ({"max_context": 4096}, 1, f"'m'.max_context = 4096: {{path}} was trained for {CONTEXT} tokens"),
        ({"num_kv_heads": KV_HEADS}, 3, "'m': 4 query heads cannot be split over 3 cards"),
    ],
)
def test_a_file_must_be_what_was_planned_with(
    tmp_path: Path, datacenter: Catalog, changes: dict[str, Any], cards: int, said: str | None
) -> None:
    path = tmp_path / "tiny.gguf"
    write_gguf(path, decoder_weights())
    stated = {"num_layers": LAYERS, "num_kv_heads": KV_HEADS, "head_dim": HEAD_DIM, "max_context": CONTEXT} | changes
    model = GpuModelSpec(name="m", path=str(path), weights="bfloat16", weight_bytes=1, **stated)
    group = GpuGroupSpec(name="card", cards=cards, card_bytes=1 << 30, models=[model])
    tiers = [replace(datacenter.tier(1), model="m"), *datacenter.tiers[1:]]
    catalog = replace(datacenter, gpu_groups=[*datacenter.gpu_groups, group], tiers=tiers)
    if said is None:
        require_plans(catalog, tmp_path, ["card"])
    else:
        with pytest.raises(CatalogError) as refused:
            require_plans(catalog, tmp_path, ["card"])
        assert said.format(path=path) in str(refused.value)
