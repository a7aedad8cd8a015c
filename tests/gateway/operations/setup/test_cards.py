"""`aio init` on machines with GPUs, by inventories of a fake NVML: catalogues that load and that fit by the planner."""

import json
import math
import re
import tomllib
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
from click.testing import Result

from gateway.operations.setup import cards as card_inventory
from gateway.operations.setup.cards import MAX_CONTEXT, SEQUENCES, TABLE, read_cards
from gateway.runtime import core_factory
from gateway.telemetry.gpus import Gpus
from inference_core.device.cards import visible_cards
from inference_core.errors import CoreError, DevicesMissingError
from inference_core.loaders.decoder_tensors import SHAPES, decoder_tensors
from inference_core.loaders.hub_model import HubModel, Pin, pins_file
from inference_core.loaders.huggingface.hf_config import read_config
from inference_core.model_config import DECODER_KINDS
from inference_core.parallel.mesh import Mesh
from inference_core.placement.hardware import Device, Machines, Workload
from inference_core.placement.planner import place
from inference_core.placement.weight_formats import FORMATS
from tests.fuzz.inference_core.hf_folder import CONFIG, TOKENIZER
from tests.gateway.in_process_cli import aio
from tests.gateway.telemetry.fake_nvml import FakeNvml
from tests.support.served import Serve
from tiers.catalog.catalog import Catalog
from tiers.catalog.core_spec import group_spec
from tiers.catalog.hardware_check import require_servable
from tiers.catalog.load import load_catalog, parse_catalog
from tiers.catalog.providers import PROVIDERS
from tiers.errors import CatalogError

TEXTS = Path(__file__).with_name("card_catalogues")
MIB = 2**20
# Memory as NVML gives it.
CARDS: dict[str, tuple[str, int, tuple[int, int]]] = {
    "24gb": ("NVIDIA L4", 23_034 * MIB, (8, 9)),
    "48gb": ("NVIDIA L40S", 46_068 * MIB, (8, 9)),
    "80gb": ("NVIDIA H100 80GB HBM3", 81_559 * MIB, (9, 0)),
}
SERVED = {"max_position_embeddings": 256}
MACHINES = [(1, "24gb"), (2, "48gb"), (4, "24gb"), (4, "80gb"), (8, "80gb")]


def nvml(*kinds: str) -> FakeNvml:
    return FakeNvml(*(card(number, *CARDS[kind]) for number, kind in enumerate(kinds)))


def card(number: int, name: str, size: int, capability: tuple[int, int]) -> dict[str, Any]:
    memory = SimpleNamespace(total=size, used=500 * MIB, free=size - 500 * MIB)
    return {"uuid": f"GPU-{number:08d}", "name": name, "memory": memory, "capability": capability}


@pytest.fixture(autouse=True)
def empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """No key in the environment, no Hugging Face cache, and an empty working directory."""
    for provider in PROVIDERS.values():
        for variable in provider.key_variables:
            monkeypatch.delenv(variable, raising=False)
    for variable in ("OPENAI_BASE_URL", "AZURE_OPENAI_ENDPOINT", "AIO_CATALOG", "CUDA_VISIBLE_DEVICES", "HF_HOME"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    here = tmp_path / "here"
    here.mkdir()
    monkeypatch.chdir(here)
    return here


@pytest.fixture
def init(monkeypatch: pytest.MonkeyPatch) -> Any:
    def run(cards: FakeNvml, *arguments: str) -> Result:
        monkeypatch.setattr(card_inventory, "Gpus", lambda: Gpus(cards))
        return aio("init", "--yes", "--ports", "1", *arguments)

    return run


@pytest.mark.parametrize(("count", "kind"), MACHINES, ids=[f"{count}x{kind}" for count, kind in MACHINES])
def test_a_machine_with_cards_gets_a_catalogue_that_loads_and_fits(
    init: Any, request: pytest.FixtureRequest, count: int, kind: str
) -> None:
    result = init(nvml(*[kind] * count))
    assert result.exit_code == 0, result.output
    catalog, text = load_catalog("aio.toml"), Path("aio.toml").read_text(encoding="utf-8")
    require_servable(catalog, cards=count)
    assert [number for group in catalog.gpu_groups for number in catalog.cards_of(group)] == list(range(count))
    assert not re.search("weight_bytes|num_layers|num_kv_heads|head_dim", text)
    assert group_spec(catalog, catalog.gpu_groups[-1].name).card_bytes == CARDS[kind][1]
    for group in catalog.gpu_groups:
        assert f"= {group.kv_bytes / 1e9:.1f} GB for keys and values" in text
        assert f"({group.name}), {group.kv_bytes / 1e9:.1f} GB for keys and values" in result.output
        for model in group.models:
            assert planned_tokens(group.cards, group.card_bytes, model.shape or "", model.weights) >= MAX_CONTEXT
        in_all = sum(model.kv_bytes_per_token for model in group.models)
        assert group.kv_bytes // in_all >= SEQUENCES // len(group.models) * MAX_CONTEXT
    # One process leads at most one group of several cards.
    meshes = [group for group in catalog.gpu_groups if group.cards > 1]
    assert ("aio serve --gateway-workers 2 " in result.output) == (len(meshes) > 1)
    costs = [tier.price.input_usd_per_million for tier in catalog.tiers]
    assert costs == sorted(costs)
    assert {tier.model for tier in catalog.tiers if "awq" in str(tier.model).lower()} == set(catalog.unmeasured)

    path = TEXTS / f"{count}x{kind}.toml"
    shown = re.sub(r"on \d{4}-\d\d-\d\d", "on DAY", text)
    if request.config.getoption("--update-snapshots"):
        path.write_text(shown, encoding="utf-8")
    assert shown == path.read_text(encoding="utf-8")


@pytest.mark.parametrize(("name", "inventory"), [("one-card", "1x24gb"), ("four-cards", "4x24gb")])
def test_the_shipped_catalogues_are_what_their_cards_are_proposed(name: str, inventory: str) -> None:
    """Cards of one size differ by some megabytes; the catalogue counts on the smallest."""
    shipped, proposed = load_catalog(name), load_catalog(str(TEXTS / f"{inventory}.toml"))
    planned = [msgspec.structs.replace(group, card_bytes=24 * 10**9) for group in proposed.gpu_groups]
    assert shipped.gpu_groups == planned
    assert [(tier.name, tier.model, tier.price) for tier in shipped.tiers] == [
        (tier.name, tier.model, tier.price) for tier in proposed.tiers
    ]


def planned_tokens(cards: int, card_bytes: int, shape: str, weights: str) -> int:
    device = Device(name="card", kind="gpu", memory_bytes=card_bytes, compute_capability=8.0)
    machines, mesh = Machines(device=device, devices_per_node=cards), Mesh(tensor=cards)
    return place(SHAPES[shape], machines, Workload(), FORMATS[weights], mesh).kv_tokens


def test_proposals_for_every_size_fit_and_rise_in_size(init: Any) -> None:
    for size in (16, 40, 80, 141):
        for count in (1, 2, 4, 8):
            cards = FakeNvml(*(card(number, "a card", size * 10**9, (8, 0)) for number in range(count)))
            result = init(cards, "--force")
            assert result.exit_code == 0, result.output
            catalog = load_catalog("aio.toml")
            weights = [model.weight_bytes for group in catalog.gpu_groups for model in group.models]
            assert weights == sorted(weights)
            assert len(weights) == {1: 2, 2: 2, 4: 3, 8: 4}[count]


def test_cards_that_cannot_be_used_are_left_out_with_a_sentence(init: Any, tmp_path: Path) -> None:
    old = FakeNvml(card(0, "Tesla T4", 15_360 * MIB, (7, 5)))
    result = init(old)
    assert result.exit_code == 1
    assert "no model is proposed for Tesla T4: the kernels need compute capability 8" in result.output

    mixed = nvml("80gb", "24gb")
    assert read_cards({}, Gpus(mixed)).bytes_each == CARDS["24gb"][1]
    assert "24.2 GB of the smallest" in read_cards({}, Gpus(mixed)).note
    assert read_cards({"CUDA_VISIBLE_DEVICES": "0"}, Gpus(mixed)).bytes_each == CARDS["80gb"][1]
    assert read_cards({"CUDA_VISIBLE_DEVICES": "GPU-00000001,7,0"}, Gpus(mixed)).name == "NVIDIA L4"
    assert read_cards({"CUDA_VISIBLE_DEVICES": ""}, Gpus(mixed), tmp_path).count == 0

    assert read_cards({}, Gpus(FakeNvml(broken=True)), tmp_path) == card_inventory.Cards()
    (tmp_path / "dev").mkdir()
    (tmp_path / "dev" / "kfd").touch()
    assert "AMD cards are not supported" in read_cards({}, Gpus(FakeNvml(broken=True)), tmp_path).note
    (tmp_path / "dev" / "nvidia0").touch()
    assert re.search("nvidia-smi|pip install", read_cards({}, Gpus(FakeNvml(broken=True)), tmp_path).note)

    three = init(nvml("24gb", "24gb", "24gb"))
    assert "1 of 3 cards get no model" in three.output


def write_model(folder: Path, **changes: Any) -> int:
    """Write a random model's folder in BF16; return the bytes of its weights."""
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps(CONFIG | changes))
    directory, end = {}, 0
    for name, shape in decoder_tensors(read_config(folder)).items():
        size = 2 * math.prod(shape)
        directory[name] = {"dtype": "BF16", "shape": shape, "data_offsets": [end, end + size]}
        end += size
    header = json.dumps(directory).encode()
    (folder / "model.safetensors").write_bytes(len(header).to_bytes(8, "little") + header + bytes(end))
    return end


def cached(repo: str, **changes: Any) -> Path:
    folder = pins_file(repo).parent
    write_model(folder / "snapshots" / "abc", **changes)
    (folder / "refs").mkdir()
    (folder / "refs" / "main").write_text("abc")
    return folder / "snapshots" / "abc"


def test_offline_the_models_of_the_cache_are_proposed_with_the_numbers_of_their_headers(init: Any) -> None:
    refused = init(nvml("24gb"), "--offline")
    assert refused.exit_code == 1
    assert "hf:" not in refused.output

    small, _ = cached("me/small"), cached("me/wide", hidden_size=128, intermediate_size=512)
    cached("me/olmo", model_type="olmo2", num_hidden_layers=9)  # several cards do not compute it
    pin = {HubModel("me/wide").key: Pin(commit="abc", files=["config.json", "model.safetensors"])}
    pins_file("me/wide").write_bytes(msgspec.json.encode(pin))

    assert init(nvml("24gb"), "--offline").exit_code == 0
    (group,) = load_catalog("aio.toml").gpu_groups
    assert [(model.name, model.path) for model in group.models] == [("small", str(small)), ("wide", "hf:me/wide")]
    assert [(m.num_layers, m.num_kv_heads, m.head_dim) for m in group.models] == [(1, 1, 16), (1, 1, 64)]
    stored = tomllib.loads(Path("aio.toml").read_text())["gpu_groups"][0]["models"]
    assert stored[0].keys() == {"name", "path", "weights", "max_context"}


def test_a_model_whose_heads_its_cards_cannot_share_is_not_proposed_for_them(init: Any) -> None:
    for width, heads in ((64, 4), (128, 4), (256, 4), (512, 1)):
        cached(f"me/wide-{width}", hidden_size=width, num_attention_heads=4, num_key_value_heads=heads)
    assert init(nvml(*["24gb"] * 4), "--offline").exit_code == 0
    groups = load_catalog("aio.toml").gpu_groups
    assert [(group.cards, group.models[0].name) for group in groups] == [
        (1, "wide-64"),
        (1, "wide-128"),
        (2, "wide-256"),
    ]


def on_the_host(text: str) -> str:
    """The catalogue with its groups' cards replaced by as much of this machine's memory as tiny models need."""
    small = "card_bytes = 100_000_000\nslab_bytes = 1_048_576\ndevice = 'cpu'"
    return re.sub("card_bytes = .*", f"{small}\nmax_num_batched_tokens = 64\nmax_num_seqs = 4", text)


@pytest.mark.processes
@pytest.mark.parametrize(("count", "kind"), MACHINES, ids=[f"{count}x{kind}" for count, kind in MACHINES])
def test_what_is_proposed_serves_with_cards_on_the_host(init: Any, count: int, kind: str, served: Serve) -> None:
    """Every group of the proposal loads, a mesh over as many ranks as it has cards, and every tier answers."""
    for width in (32, 64, 128, 256):
        sizes = {"hidden_size": width, "intermediate_size": width}
        folder = cached(f"me/wide-{width}", **SERVED, **sizes, num_attention_heads=4, num_key_value_heads=4)
        (folder / "tokenizer.json").write_bytes(TOKENIZER)
        (folder / "chat_template.jinja").write_text("{% for m in messages %}{{ m.content }}{% endfor %}")
    proposed = init(nvml(*[kind] * count), "--offline")
    assert proposed.exit_code == 0, proposed.output
    path = Path("aio.toml").absolute()
    path.write_text(on_the_host(path.read_text(encoding="utf-8")), encoding="utf-8")
    catalog = load_catalog(str(path))
    assert sum(group.cards for group in catalog.gpu_groups) == count
    workers = ["--gateway-workers", "2"] if "--gateway-workers 2" in proposed.output else []
    aio = served("--catalog", str(path), *workers)
    aio.until_whole()
    for tier in catalog.tiers:
        messages: Any = [{"role": "user", "content": "ab"}]
        # Of equal logits the first token's is taken, which ends nothing.
        asked: Any = {"model": tier.name, "messages": messages, "max_tokens": 3, "temperature": 0}
        answer = aio.client.chat.completions.create(**asked)
        assert answer.usage is not None
        assert answer.usage.completion_tokens == 3


@pytest.mark.skipif(visible_cards() > 0, reason="this machine has cards")
def test_nothing_is_downloaded_for_cards_that_are_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[HubModel] = []
    monkeypatch.setattr(core_factory, "download", lambda model, form, say: asked.append(model))
    catalog = load_catalog(str(TEXTS / "4x24gb.toml"))
    with pytest.raises(DevicesMissingError, match=r"group cards-2-3 .* needs 2, cards 2 to 3"):
        core_factory.fetch_core_models(catalog, catalog.core_names)
    assert asked == []


def with_model(**model: Any) -> Catalog:
    entry = {"name": "m", "max_context": 64, "weights": "bfloat16"} | model
    group = {"name": "card", "cards": 1, "card_bytes": 10**9, "models": [entry]}
    tiers = [{"name": "a", "model": "m"}, {"name": "b", "url": "http://127.0.0.1:1/v1"}]
    return parse_catalog({"name": "x", "gpu_groups": [group], "tiers": tiers}, "catalogue 'x'")


def test_a_group_needs_no_number_that_a_file_or_a_shape_has(tmp_path: Path) -> None:
    size = write_model(tmp_path / "model")
    (model,) = with_model(path=str(tmp_path / "model")).gpu_groups[0].models
    assert (model.weight_bytes, model.num_layers, model.num_kv_heads, model.head_dim) == (size, 1, 1, 16)
    stated = with_model(path=str(tmp_path / "model"), weight_bytes=7).gpu_groups[0].models[0]
    assert (stated.weight_bytes, stated.num_layers) == (7, 1)

    shaped = with_model(path="hf:me/none", shape="smollm2-135m").gpu_groups[0].models[0]
    assert (shaped.num_layers, shaped.num_kv_heads, shaped.head_dim) == (30, 3, 64)
    assert shaped.weight_bytes == 2 * sum(map(math.prod, decoder_tensors(SHAPES["smollm2-135m"]).values()))

    with pytest.raises(CatalogError, match="aio models pull 'me/none'; or name its shape"):
        with_model(path="hf:me/none")


def test_every_model_of_the_table_can_be_served_by_cards() -> None:
    for repo, shape, weights in TABLE:
        assert [SHAPES[shape].not_computed_by(where) for where in DECODER_KINDS] == [[], []]
        assert ("awq" in repo.lower()) == (weights == "awq-int4")
        try:
            for cards in (1, 2, 4):
                planned_tokens(cards, 200 * 10**9, shape, weights)
        except CoreError as error:
            pytest.fail(f"{repo} on {cards} cards: {error}")
