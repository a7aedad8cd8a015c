"""`aio models check`: what serves a model, from its headers."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from click.testing import CliRunner, Result

from gateway.cli import main
from gateway.planning.model_check import check_model
from inference_core.device.load_device_core import device_layout
from inference_core.errors import ModelFileError
from inference_core.loaders.hub_download import download
from inference_core.loaders.hub_model import HubModel
from inference_core.loaders.open_checkpoint import open_checkpoint
from inference_core.loading.load_core import layout_of, weight_bytes
from inference_core.model_spec import DeviceModelSpec, ModelSpec
from inference_core.native import cpu
from tests.inference_core.loaders.int4_checkpoints import random_model, write_packed
from tests.inference_core.loaders.model_hub import ModelHub, running_hub
from tests.inference_core.quantization.tiny_model import write_tiny_model
from tests.inference_core.tiny_gguf import decoder_weights, write_gguf

SHAPE: dict[str, Any] = {
    "vocab_size": 257,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "max_position_embeddings": 128,
}
CHAT = "{% for message in messages %}{{ message['content'] }}{% endfor %}"


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ModelHub]:
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "hub"))
    with running_hub() as server:
        monkeypatch.setenv("HF_ENDPOINT", server.url)
        yield server


def saved(folder: Path, config: transformers.PretrainedConfig, template: str = CHAT) -> Path:
    """A random model with a tokeniser of bytes."""
    write_tiny_model(folder)
    torch.manual_seed(3)
    transformers.AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16).save_pretrained(folder)
    (folder / "chat_template.jinja").write_text(template)
    return folder


def aio(*arguments: str) -> Result:
    return CliRunner().invoke(main, ["models", "check", *arguments])


def shown(*arguments: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(aio(*arguments, "--json").stdout)
    return found


def devices(found: dict[str, Any]) -> dict[str, dict[str, Any]]:
    return {one["device"]: one for one in found["devices"]}


def test_a_model_of_the_hub_is_checked_as_its_folder_without_its_weights(hub: ModelHub, tmp_path: Path) -> None:
    folder = saved(tmp_path / "m", transformers.Qwen3Config(**SHAPE))
    commit = hub.add_folder("org/model", folder)
    found, local = shown("org/model"), shown(str(folder))
    assert (found["commit"], found["works"], found["has_chat_template"]) == (commit, True, True)
    for part in ("facts", "devices", "tokenizer_problem", "engine"):
        assert found[part] == local[part]
    file = folder / "model.safetensors"
    assert hub.read(file.name) == 8 + int.from_bytes(file.read_bytes()[:8], "little")
    assert found["read_bytes"] < found["download_bytes"]
    assert list((tmp_path / "hub").glob("*")) == [], "nothing is left in the cache"


def test_the_numbers_are_those_that_a_start_counts_with(tmp_path: Path) -> None:
    folder = saved(tmp_path / "m", transformers.LlamaConfig(**SHAPE))
    found, checkpoint = check_model(str(folder)), open_checkpoint(folder)
    model = transformers.AutoModelForCausalLM.from_pretrained(folder)
    assert found.facts.parameters == sum(parameter.numel() for parameter in model.parameters())
    assert found.facts.stored_bytes == 2 * found.facts.parameters
    assert found.facts.kinds == {"BF16": 1.0}
    assert found.facts.context == 128
    spec = ModelSpec(name="m", path=str(folder), compute="int4-int8")
    device = DeviceModelSpec(name="m", path=str(folder))
    on_cpu, on_gpu, _ = found.devices
    assert on_cpu.weight_bytes == weight_bytes(checkpoint, spec)
    assert on_cpu.kv_bytes_per_token == layout_of(spec, checkpoint.config).bytes_per_token
    assert on_gpu.kv_bytes_per_token == device_layout(device, checkpoint.config).bytes_per_token
    assert on_cpu.memory_bytes == weight_bytes(checkpoint, spec) + 128 * on_cpu.kv_bytes_per_token


def test_an_architecture_that_no_loader_knows_is_refused_with_the_engine_that_serves_it(
    hub: ModelHub, tmp_path: Path
) -> None:
    folder = saved(tmp_path / "m", transformers.GPT2Config(vocab_size=257, n_embd=32, n_layer=1, n_head=2))
    hub.add_folder("org/model", folder)
    found = shown("org/model")
    assert not found["works"]
    assert found["facts"]["architecture"] == "gpt2"
    assert found["facts"]["stored_bytes"] > 0
    assert {one["refused"] for one in found["devices"]} == {found["devices"][0]["refused"]}
    assert "org/model/config.json: model_type 'gpt2' is not supported" in found["devices"][0]["refused"]
    answer = aio("org/model")
    assert answer.exit_code == 1
    assert '  [[tiers]]\n  engine = "vllm"\n  model = "org/model"' in answer.output


def test_settings_within_settings_are_refused_by_the_name_of_their_architecture(tmp_path: Path) -> None:
    folder = saved(tmp_path / "m", transformers.LlamaConfig(**SHAPE))
    config = {"model_type": "llava", "text_config": json.loads((folder / "config.json").read_text())}
    (folder / "config.json").write_text(json.dumps(config))
    found = check_model(str(folder))
    assert all("model_type 'llava' is not supported" in str(one.refused) for one in found.devices)


def test_a_gguf_file_of_another_architecture_is_for_llama_server(tmp_path: Path) -> None:
    path = write_gguf(tmp_path / "m.gguf", decoder_weights(), architecture="mamba")
    found = shown(str(path))
    assert not found["works"]
    assert found["engine"] == 'engine = "llama-server"'
    assert found["facts"]["architecture"] == "mamba"
    assert "'mamba' is not supported" in found["devices"][0]["refused"]


@pytest.mark.skipif(not cpu.AVAILABLE, reason="without native kernels every size of a head computes")
def test_a_device_is_refused_by_itself_with_its_reason(tmp_path: Path) -> None:
    odd = saved(tmp_path / "odd", transformers.LlamaConfig(**SHAPE | {"head_dim": 24}))
    found = devices(shown(str(odd)))
    assert "multiples of 16" in found["cpu"]["refused"]
    assert found["gpu"]["refused"] is found["mesh"]["refused"] is None
    narrow = devices(shown(str(saved(tmp_path / "narrow", transformers.LlamaConfig(**SHAPE | {"head_dim": 12})))))
    assert "multiples of 8" in narrow["gpu"]["refused"]
    one_head = {"num_attention_heads": 1, "num_key_value_heads": 1}
    answer = aio(str(saved(tmp_path / "one", transformers.LlamaConfig(**SHAPE | one_head))))
    assert answer.exit_code == 0, "the CPU and a GPU serve it"
    assert "mesh: 1 query heads" in answer.output


def test_a_tokeniser_that_cannot_be_read_refuses_the_model(tmp_path: Path) -> None:
    folder = saved(tmp_path / "m", transformers.LlamaConfig(**SHAPE))
    (folder / "tokenizer.json").unlink()
    found = shown(str(folder))
    assert "tokenizer.json" in found["tokenizer_problem"]
    assert not found["works"]
    assert aio(str(folder)).exit_code == 1


def test_a_model_without_a_chat_template_is_said_to_complete_only(tmp_path: Path) -> None:
    folder = write_tiny_model(tmp_path / "m")
    assert not check_model(str(folder)).has_chat_template
    assert "completions only" in aio(str(folder)).output


def test_four_bits_are_shown_by_their_format(hub: ModelHub, tmp_path: Path) -> None:
    folder = write_tiny_model(tmp_path / "m")
    write_packed(folder, random_model(32), "gptq", 32, desc_act=True)
    hub.add_folder("org/model", folder)
    found = check_model("org/model")
    assert found.facts.quantisation == "gptq, 4 bits, groups of 32"
    assert any("desc_act" in note for note in found.notes)
    assert found.devices == check_model(str(folder)).devices


def test_a_model_that_is_downloaded_is_checked_without_network(hub: ModelHub, tmp_path: Path) -> None:
    hub.add_folder("org/model", saved(tmp_path / "m", transformers.LlamaConfig(**SHAPE)))
    download(HubModel("org/model"))
    hub.requests.clear()
    assert check_model("org/model").works
    assert hub.requests == []


def test_a_name_that_is_nowhere_is_said_to_be(hub: ModelHub, tmp_path: Path) -> None:
    answer = aio("org/none")
    assert answer.exit_code == 1
    assert "no public repository" in answer.output
    with pytest.raises(ModelFileError, match="does not exist"):
        check_model(str(tmp_path / "none"))
