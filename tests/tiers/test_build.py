"""Building tiers from a catalogue: local and remote ones, and refusals before anything is loaded."""

import copy
import tomllib
from importlib import resources
from typing import Any

import pytest

from inference_core.tokenization.tokenizer import Tokenizer
from tests.tiers.tier_world import ScriptedCore
from tiers.build import build_tiers, require_a_key
from tiers.catalog.catalog import Catalog
from tiers.catalog.load import load_catalog, parse_catalog
from tiers.errors import CatalogError
from tiers.local.local_tier import LocalTier
from tiers.remote.remote_tier import RemoteTier
from tiers.replicas.replica_set import ReplicaSet

TABLE: dict[str, Any] = tomllib.loads(resources.files("tiers.catalogs").joinpath("laptop.toml").read_text())


def with_remote(*numbers: int, **remote: object) -> Catalog:
    table = copy.deepcopy(TABLE)
    for number in numbers:
        tier = table["tiers"][number - 1]
        del tier["model"]
        tier.pop("policy", None)
        tier["remote"] = {"base_url": "http://127.0.0.1:1/v1", "model": "big", "max_context": 8192} | remote
    return parse_catalog(table, "catalogue 'mixed'")


def test_local_and_remote_tiers_stand_side_by_side(tokenizer: Tokenizer) -> None:
    tiers = build_tiers(with_remote(4), {"cpu": ScriptedCore(tokenizer, lambda add: [])})
    assert [type(t) for t in tiers] == [LocalTier, LocalTier, LocalTier, RemoteTier]
    assert [t.number for t in tiers] == [1, 2, 3, 4]
    assert [t.name for t in tiers] == ["tier-1", "tier-2", "tier-3", "tier-4"]
    assert [t.model for t in tiers] == ["smollm2-int4", "smollm2-bf16", "smollm2-bf16", "big"]


def test_a_catalogue_of_servers_needs_no_core() -> None:
    assert len(build_tiers(with_remote(1, 2, 3, 4), {})) == 4


def test_one_tier_that_needs_no_missing_key_is_enough() -> None:
    table = copy.deepcopy(TABLE)
    for tier, variable in zip(table["tiers"], ["AWAY_KEY", "AWAY_KEY", "AWAY_KEY", None], strict=True):
        del tier["model"]
        tier.pop("policy", None)
        tier["remote"] = {"base_url": "http://127.0.0.1:1/v1", "model": "big"}
        tier["remote"] |= {} if variable is None else {"api_key_env": variable}
    catalog = parse_catalog(table, "catalogue 'mixed'")
    require_a_key(catalog, {})
    assert len(build_tiers(catalog, {})) == 4


def test_tiers_that_all_lack_their_keys_are_refused_with_the_variables() -> None:
    catalog = with_remote(1, 2, 3, 4, api_key_env="AWAY_KEY")
    with pytest.raises(CatalogError, match="no tier has its API key; set AWAY_KEY in the environment"):
        require_a_key(catalog, {"AWAY_KEY": ""})
    require_a_key(catalog, {"AWAY_KEY": "k"})


def test_several_servers_make_a_replica_set() -> None:
    first, *others = build_tiers(with_remote(1, 2, 3, 4, base_url="", base_urls=["http://a/v1", "http://b/v1"]), {})
    assert [replica.replica for replica in first.replicas()] == ["http://a/v1", "http://b/v1"]
    assert all(isinstance(tier, ReplicaSet) for tier in [first, *others])


def test_local_tiers_without_a_core_are_refused() -> None:
    with pytest.raises(CatalogError, match=r"tier-1, tier-2, tier-3 run on a core that is not there \(none\)"):
        build_tiers(with_remote(4), {})


def test_every_tier_runs_on_the_core_that_has_its_model(tokenizer: Tokenizer) -> None:
    cores = {name: ScriptedCore(tokenizer, lambda add: []) for name in ("cpu", "gpu-8b", "gpu-70b")}
    tiers = build_tiers(load_catalog("datacenter"), cores)
    assert [t.core_name for t in tiers] == ["cpu", "gpu-8b", "gpu-70b", "gpu-70b"]
    with pytest.raises(CatalogError, match=r"tier-3, tier-4 run on a core that is not there \(cpu, gpu-8b\)"):
        build_tiers(load_catalog("datacenter"), {name: cores[name] for name in ("cpu", "gpu-8b")})
