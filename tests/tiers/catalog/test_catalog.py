"""Catalogues: the shipped ones are valid, and errors name the entry, the value and what is allowed."""

import copy
import re
import tomllib
from collections.abc import Callable
from importlib import resources
from pathlib import Path
from typing import Any

import pytest

from tiers.catalog.catalog import Catalog
from tiers.catalog.core_spec import group_spec
from tiers.catalog.hardware_check import validate_files
from tiers.catalog.load import load_catalog, parse_catalog, shipped_catalogs
from tiers.catalog.tier_spec import ChainOfThoughtSpec, PlainSpec, SelfConsistencySpec, TierClass
from tiers.errors import CatalogError

Edit = Callable[[dict[str, Any]], object]


def shipped_table(name: str = "laptop") -> dict[str, Any]:
    return tomllib.loads(resources.files("tiers.catalogs").joinpath(f"{name}.toml").read_text())


def complaint(*edits: Edit, name: str = "laptop") -> str:
    table = copy.deepcopy(shipped_table(name))
    for edit in edits:
        edit(table)
    with pytest.raises(CatalogError) as error:
        parse_catalog(table, "catalogue 'edited'")
    return str(error.value)


def put(path: str, value: object) -> Edit:
    def edit(table: dict[str, Any]) -> None:
        *parents, last = path.split(".")
        entry: Any = table
        for key in parents:
            entry = entry[int(key)] if isinstance(entry, list) else entry[key]
        entry[last] = value

    return edit


REMOTE = {"base_url": "https://example.org/v1", "model": "m", "max_context": 8192}


def make_remote(**changes: object) -> Edit:
    def edit(table: dict[str, Any]) -> None:
        del table["tiers"][0]["model"]
        table["tiers"][0]["remote"] = REMOTE | changes

    return edit


def make_replicated(*urls: str, **changes: object) -> Edit:
    return make_remote(base_url="", base_urls=list(urls), **changes)


def test_every_shipped_catalogue_loads() -> None:
    assert shipped_catalogs() == ["datacenter", "four-cards", "ladder", "laptop", "one-card"]
    tiers = {name: [t.number for t in load_catalog(name).tiers] for name in shipped_catalogs()}
    four = [1, 2, 3, 4]
    assert tiers == {"datacenter": four, "four-cards": [1, 2, 3], "ladder": four, "laptop": four, "one-card": [1, 2]}


@pytest.mark.parametrize("name", ["datacenter", "four-cards", "one-card"])
def test_catalogues_for_cards_name_models_to_download_and_count_nothing_by_hand(name: str) -> None:
    catalog = load_catalog(name)
    assert all(path.startswith("hf:") for path in catalog.model_paths.values())
    text = resources.files("tiers.catalogs").joinpath(f"{name}.toml").read_text(encoding="utf-8")
    assert not re.search("^(weight_bytes|num_layers|num_kv_heads|head_dim)", text, re.MULTILINE)
    for line in [line for line in text.splitlines() if re.match("# +[-=/] ", line)]:
        assert any(line == f"# {told}" for group in catalog.gpu_groups for told in group.memory_lines())


def test_the_laptop_catalogue_is_one_core_whose_files_are_installed() -> None:
    catalog = load_catalog("laptop")
    validate_files(catalog)
    assert [t.model for t in catalog.tiers] == ["smollm2-int4", "smollm2-bf16", "smollm2-bf16", "smollm2-bf16"]
    assert [type(t.policy) for t in catalog.tiers] == [PlainSpec, PlainSpec, SelfConsistencySpec, ChainOfThoughtSpec]
    assert [t.tier_class for t in catalog.tiers] == list(TierClass)
    assert [m.compute for m in catalog.core.models] == ["int4-int8", "bfloat16"]


def test_every_tier_has_the_six_fields_of_an_endpoint_registry() -> None:
    for tier in load_catalog("laptop").tiers:
        fields = (tier.number, tier.model_name, tier.url, tier.price, tier.mean_latency_ms, tier.max_tokens)
        assert all(fields)
    assert load_catalog("laptop").tier(1).url == "in-process"


def test_the_seventy_billion_plan_with_its_draft_leaves_about_90_thousand_tokens_on_four_cards() -> None:
    group = next(g for g in load_catalog("datacenter").gpu_groups if g.name == "gpu-70b")
    assert group.kv_bytes == pytest.approx(86.4e9 - group.models[0].weight_bytes - group.models[1].weight_bytes)
    lines = "\n".join(group.memory_lines())
    assert "40.9 GB for keys and values" in lines
    # 2 x 80 and 2 x 32 layers, 8 KV heads x 128 x 2 bytes.
    assert "/ 458752 bytes per token of llama-3.3-70b-awq and its draft llama-3.1-8b-draft = 89164 tokens" in lines


def test_the_strongest_tier_of_the_datacenter_is_drafted_for_in_its_own_core() -> None:
    catalog = load_catalog("datacenter")
    spec = group_spec(catalog, catalog.core_of(str(catalog.tier(4).model)))
    target, draft = spec.core.models
    assert (target.name, target.draft) == (catalog.tier(4).model, draft.name)
    assert target.knobs["speculation"] == "draft_model"
    assert draft.knobs.get("speculation", "off") == "off"


def test_a_catalogue_is_read_from_a_path(tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    path.write_text(resources.files("tiers.catalogs").joinpath("laptop.toml").read_text().replace('"laptop"', '"mine"'))
    assert load_catalog(str(path)).name == "mine"


def test_an_unknown_catalogue_name_says_which_names_ship(tmp_path: Path) -> None:
    with pytest.raises(
        CatalogError, match="datacenter, four-cards, ladder, laptop, one-card, or the path of a TOML file"
    ):
        load_catalog(str(tmp_path / "absent"))


def test_broken_toml_is_named_with_its_line(tmp_path: Path) -> None:
    path = tmp_path / "broken.toml"
    path.write_text("name = \n")
    with pytest.raises(CatalogError, match=r"not valid TOML.*line 1"):
        load_catalog(str(path))


@pytest.mark.parametrize(
    ("edits", "expected"),
    [
        ([put("core.colour", "red")], "core.colour = 'red': unknown; allowed here: arena_bytes, knobs, models"),
        ([put("tiers.0.adress", "http://x")], "tiers[0].adress = 'http://x': unknown; allowed here: adapter, api_key"),
        ([put("tiers.0.prise", 1)], "tiers[0].prise = 1: unknown; did you mean price? allowed here"),
        ([put("tiers.0.max_contex", 1)], "did you mean max_context?"),
        ([put("tiers.0.max_context", 1)], "max_context is for a tier with url (a server's address)"),
        ([put("core.knobs", {"max_num_seqs": 0})], "core.knobs: max_num_seqs is 0; allowed: a whole number from 1"),
        ([put("core.models.0.knobs", {"threads": 2})], "knobs: threads is the same for all models; set core.threads"),
        ([put("core.models.1.knobs", {"speed": 2})], "core.models 'smollm2-bf16', knobs: speed is no knob"),
        (
            [lambda t: t["tiers"].__delitem__(slice(1, None))],
            "tiers: there are 1; a catalogue has 2 to 8: add another [[tiers]]",
        ),
        ([lambda t: t["tiers"].extend(t["tiers"] * 2)], "tiers: there are 12; a catalogue has 2 to 8: remove 4"),
        ([put("tiers.1.number", 1)], "numbers are [1, 1, 3, 4]; they must be 1 to 4 in this order"),
        ([put("tiers.0.number", 9)], "tiers[0].number = 9"),
        ([put("tiers.1.name", "tier-1")], "tiers: the name 'tier-1' occurs 2 times; names must be unique: rename"),
        ([put("core.models.1.name", "smollm2-int4")], "models: the name 'smollm2-int4' occurs 2 times"),
        (
            [put("tiers.0.model", "gpt")],
            "tiers 'tier-1'.model = 'gpt': unknown; models of this catalogue: smollm2",
        ),
        ([lambda t: t["tiers"][0].pop("model")], "tiers 'tier-1': exactly one of model and remote"),
        ([lambda t: t["tiers"][0].pop("name")], "tiers[0].name: missing"),
        ([lambda t: t["tiers"][1].pop("number")], "numbers are [1, None, 3, 4]; number all tiers, or none"),
        ([put("tiers.0.url", "http://x/v1"), put("tiers.0.remote", REMOTE)], "tiers[0].url = 'http://x/v1': unknown"),
        (
            [put("tiers.0.price.input_usd_per_million", -1)],
            "tiers[0].price.input_usd_per_million = -1: must be 0 or more",
        ),
        ([put("tiers.0.mean_latency_ms", float("inf"))], "tiers[0].mean_latency_ms = inf: must be a finite number"),
        ([put("tiers.0.class", "HARD")], "tiers[0].class = 'HARD': allowed: SIMPLE, MEDIUM, COMPLEX, EXPERT"),
        ([put("core.models.0.compute", "int2")], "allowed: bfloat16, float32, int4, int4-int8"),
        ([put("private", {"rules": ["emial"]})], "private.rules = ['emial']: allowed: api-key, card, email, iban"),
        ([put("core.models.0.max_context", 1)], "core.models[0].max_context = 1: must be 2 or more"),
        ([put("core.models.0.max_context", 1024)], "max_tokens = 2048: must be below the model's context of 1024"),
        ([put("core.models.0.block_size", 0)], "core.models[0].block_size = 0: must be 1 or more"),
        ([put("core.arena_bytes", 1)], "core.arena_bytes = 1: must hold at least one slab"),
        ([put("core.slab_bytes", 0)], "core.slab_bytes = 0: must be 1 or more"),
        ([put("core.threads", 0)], "core.threads = 0: must be 1 or more"),
        ([put("tiers.0.objective.itl_ms", 0)], "tiers[0].objective.itl_ms = 0: must be more than 0"),
        ([put("tiers.0.objective.ttft_ms", 9000)], "the first token cannot be due after the whole answer"),
        ([put("tiers.2.policy.kind", "magic")], "kind must be one of plain, self-consistency, chain-of-thought"),
        ([put("tiers.2.policy.samples", 1)], "tiers[2].policy"),
        ([put("tiers.3.policy.budget_tokens", 2040)], "budget_tokens + min_answer_tokens = 2104"),
        ([put("tiers.3.default_max_tokens", 600)], "= 686 must not pass default_max_tokens = 600"),
        ([put("tiers.0.default_max_tokens", 4000)], "default_max_tokens = 4000: must not pass max_tokens = 2048"),
        ([put("tiers.3.policy.end_markers", [""])], "end_markers: an empty marker"),
        ([put("tiers.3.policy.settled_probes", 16)], "take 768 tokens, and budget_tokens = 622"),
        ([put("tiers.3.expected_answer_tokens", 150)], "less than $0.003000 of tier-3; costs must not fall"),
        ([make_remote(base_url="ftp://x/v1")], "tiers 'tier-1'.remote.base_url = 'ftp://x/v1': expected http://"),
        ([make_remote(base_url="http://x:99999/v1")], "base_url = 'http://x:99999/v1': not a URL"),
        ([make_remote(base_url="https://x/v1?key=1")], "without query and fragment"),
        ([make_remote(api_key_env="not a name")], "expected the name of an environment variable"),
        ([make_remote(read_timeout_seconds=900)], "must not pass total_timeout_seconds = 600"),
        ([make_remote(read_timeout_seconds=0.5)], "so good answers would be cut off"),
        ([make_remote(read_timeout_seconds=-1)], "tiers[0].remote.read_timeout_seconds = -1: must be more than 0"),
        (
            [make_remote(base_url="")],
            "tiers 'tier-1'.remote: exactly one of base_url, base_urls, replicas and engine must be set",
        ),
        ([make_remote(base_urls=["http://a/v1"])], "exactly one of base_url, base_urls, replicas and engine"),
        ([make_replicated("http://a/v1", "ftp://b/v1")], "remote.base_urls[1] = 'ftp://b/v1': expected http://"),
        ([make_replicated("http://a/v1", "http://a/v1/")], "the name 'http://a/v1' occurs 2 times"),
        (
            [make_replicated("http://a/v1", balancing={"retry_share": 2})],
            "tiers[0].remote.balancing.retry_share = 2: must be 1 or less",
        ),
        (
            [make_replicated("http://a/v1", balancing={"first_token_timeout_seconds": 0.5})],
            "first_token_timeout_seconds = 0.5: shorter than the objective",
        ),
        ([make_remote(balancing={"hedging": True})], "remote.balancing: there is one server"),
        (
            [make_remote(base_url="", replicas=[{"base_url": "http://a/v1", "weight": 0}])],
            "tiers[0].remote.replicas[0].weight = 0: must be more than 0",
        ),
        (
            [make_remote(base_url="", replicas=[{"base_url": "http://a/v1", "api_key_env": "no name"}])],
            "tiers 'tier-1'.remote.replicas[0].api_key_env: expected the name",
        ),
        ([make_remote(), put("tiers.0.policy", {"kind": "self-consistency"})], "policy kind 'plain' only"),
    ],
)
def test_a_wrong_entry_is_named(edits: list[Edit], expected: str) -> None:
    assert expected in complaint(*edits)


def test_credentials_in_a_url_are_refused_without_being_shown() -> None:
    message = complaint(make_remote(base_url="https://user:hunter2@example.org/v1"))
    assert "holds credentials" in message
    assert "hunter2" not in message


def test_something_that_is_not_a_variable_name_is_taken_for_a_key_and_not_shown() -> None:
    assert "sk-secret" not in complaint(make_remote(api_key_env="sk-secret"))


def test_all_problems_are_reported_together() -> None:
    message = complaint(
        put("tiers.0.price.input_usd_per_million", -1),
        put("tiers.0.max_tokens", "many"),
        put("tiers.3.objective.itl_ms", -5),
        put("core.models.0.compute", "int2"),
    )
    assert "4 problem(s)" in message
    message = complaint(put("tiers.0.model", "gpt"), put("tiers.1.name", "tier-1"), put("core.arena_bytes", 1))
    assert "3 problem(s)" in message


def test_weights_that_do_not_fit_their_cards_are_explained_by_the_arithmetic() -> None:
    message = complaint(put("gpu_groups.1.cards", 1), name="datacenter")
    assert "39.8 GB weights of llama-3.3-70b-awq" in message
    assert "= -23.9 GB for keys and values" in message


@pytest.mark.parametrize(
    ("edits", "expected"),
    [
        ([put("gpu_groups.0.name", "cpu")], "gpu_groups 'cpu': 'cpu' is the name of the CPU's own core"),
        ([put("gpu_groups.0.name", "a b")], "gpu_groups[0].name = 'a b'"),
        ([put("gpu_groups.0.models", [])], "gpu_groups 'gpu-8b': has no models"),
        ([put("gpu_groups.0.knobs", {"speed": 1})], "gpu_groups 'gpu-8b'.knobs: speed is no knob"),
        ([put("gpu_groups.0.knobs", {"max_num_seqs": 999})], "memory is set aside for 256"),
        (
            [put("gpu_groups.0.knobs", {"speculation": "draft_model"})],
            "speculation = 'draft_model' needs a draft, another model of this group",
        ),
        ([put("gpu_groups.0.models.0.draft", "gpt")], ".draft = 'gpt': must be another model of this group"),
        ([put("gpu_groups.1.models.0.knobs", {"max_num_batched_tokens": 9000})], "is set aside for 8192"),
        ([put("gpu_groups.0.models.0.kv_dtype", "int8")], "models[0].kv_dtype = 'int8': allowed:"),
        ([put("gpu_groups.0.models.0.weights", "int3")], "models[0].weights = 'int3': allowed:"),
        ([put("gpu_groups.0.device", "tpu")], "gpu_groups[0].device = 'tpu': allowed: "),
        ([put("gpu_groups.1.cards", 3)], "8 KV heads cannot be split over 3 cards"),
        ([put("gpu_groups.1.pipeline", 3)], "4 cards cannot make 3 equal stages; pipeline must divide cards"),
        (
            [put("gpu_groups.1.cards", 128), put("gpu_groups.1.pipeline", 128)],
            "80 layers cannot make 128 stages",
        ),
    ],
)
def test_a_wrong_gpu_group_is_named(edits: list[Edit], expected: str) -> None:
    assert expected in complaint(*edits, name="datacenter")


def test_a_missing_model_file_is_named_with_its_model() -> None:
    table = shipped_table()
    table["core"]["models"][1]["path"] = "nowhere/model.gguf"
    with pytest.raises(CatalogError, match=r"'smollm2-bf16': model 'nowhere/model.gguf' does not exist"):
        validate_files(parse_catalog(table, "catalogue 'edited'"))


def test_the_fingerprint_follows_models_and_policies_but_not_prices() -> None:
    original = load_catalog("laptop").fingerprint
    table = shipped_table()
    table["tiers"][0]["price"]["input_usd_per_million"] = 0.1
    assert parse_catalog(table, "x").fingerprint == original
    table["tiers"][2]["policy"]["samples"] = 7
    assert parse_catalog(table, "x").fingerprint != original


def test_one_more_replica_of_the_same_model_leaves_the_fingerprint_and_is_shown() -> None:
    def catalog(*urls: str) -> Catalog:
        table = copy.deepcopy(shipped_table())
        make_replicated(*urls, model="big")(table)
        return parse_catalog(table, "x")

    two, three = catalog("http://a/v1", "http://b/v1"), catalog("http://a/v1", "http://b/v1", "http://c/v1")
    assert two.fingerprint == three.fingerprint != load_catalog("laptop").fingerprint
    assert two.tier(1).url == "http://a/v1, http://b/v1"
