"""Hugging Face folders written by transformers itself: settings, sharding, kinds, and what is refused."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file, save_file
from transformers import (
    LlamaConfig,
    LlamaForCausalLM,
    MistralConfig,
    MistralForCausalLM,
    Phi3Config,
    Phi3ForCausalLM,
    PreTrainedModel,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
)

from inference_core.errors import ModelFileError
from inference_core.loaders.open_checkpoint import open_checkpoint
from inference_core.loaders.packed_tensor import dequantize
from inference_core.model_config import RopeScaling
from inference_core.tokenization.load_tokenizer import load_tokenizer
from tests.fuzz.inference_core.hf_folder import TOKENIZER

SHAPE: dict[str, Any] = {
    "vocab_size": 40,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
    "bos_token_id": 1,
    "eos_token_id": 2,
}


def save(folder: Path, model: PreTrainedModel, **options: Any) -> Path:
    model.save_pretrained(folder, **options)
    return folder


def assert_same_weights(folder: Path, model: PreTrainedModel) -> None:
    tensors = open_checkpoint(folder).tensors
    for name, tensor in tensors.items():
        np.testing.assert_array_equal(dequantize(tensor), model.state_dict()[name].float().numpy())
        assert not tensor.data.flags.writeable


@pytest.mark.parametrize(
    ("config_type", "model_type", "options"),
    [
        (LlamaConfig, LlamaForCausalLM, {}),
        (LlamaConfig, LlamaForCausalLM, {"tie_word_embeddings": True}),
        (MistralConfig, MistralForCausalLM, {"sliding_window": 16}),
        (Qwen2Config, Qwen2ForCausalLM, {}),
        (Qwen3Config, Qwen3ForCausalLM, {"head_dim": 16}),
    ],
)
def test_every_architecture_loads_as_transformers_saved_it(
    tmp_path: Path, config_type: Any, model_type: Any, options: dict[str, Any]
) -> None:
    model = model_type(config_type(**SHAPE, **options))
    config = open_checkpoint(save(tmp_path, model)).config

    assert_same_weights(tmp_path, model)
    assert config.architecture == model.config.model_type
    assert config.head_dim == options.get("head_dim", 8)
    assert config.tie_embeddings == options.get("tie_word_embeddings", False)
    assert config.attention.sliding_window == options.get("sliding_window")
    assert config.attention.qkv_bias == (model_type is Qwen2ForCausalLM)
    assert config.attention.qk_norm == (model_type is Qwen3ForCausalLM)
    assert (config.bos_token_id, config.eos_token_ids) == (1, (2,))
    assert (config.max_position, config.rms_eps) == (64, model.config.rms_norm_eps)


def test_a_sharded_folder_is_one_model(tmp_path: Path) -> None:
    model = LlamaForCausalLM(LlamaConfig(**SHAPE))
    save(tmp_path, model, max_shard_size="20KB")

    assert len(list(tmp_path.glob("*.safetensors"))) > 1
    assert_same_weights(tmp_path, model)


@pytest.mark.parametrize(("dtype", "kind"), [(torch.bfloat16, "BF16"), (torch.float16, "F16")])
def test_half_precision_stays_packed(tmp_path: Path, dtype: torch.dtype, kind: str) -> None:
    model = LlamaForCausalLM(LlamaConfig(**SHAPE)).to(dtype)
    tensors = open_checkpoint(save(tmp_path, model)).tensors

    assert {tensor.kind for tensor in tensors.values()} == {kind}
    assert_same_weights(tmp_path, model)


def test_rope_settings_are_read_from_new_and_old_files(tmp_path: Path) -> None:
    rope = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
    rope |= {"original_max_position_embeddings": 32}
    model = LlamaForCausalLM(LlamaConfig(**SHAPE, rope_parameters=rope | {"rope_theta": 500000.0}))
    new = open_checkpoint(save(tmp_path, model)).config
    content = json.loads((tmp_path / "config.json").read_text())
    content.pop("rope_parameters")
    content |= {"rope_scaling": rope, "rope_theta": 500000.0}
    (tmp_path / "config.json").write_text(json.dumps(content))

    old = open_checkpoint(tmp_path).config

    assert new.rope.theta == 500000.0
    assert new.rope.scaling == RopeScaling(kind="llama3", factor=8.0, original_max_position=32)
    assert old == new


def test_the_generation_config_decides_what_ends_a_turn(tmp_path: Path) -> None:
    save(tmp_path, LlamaForCausalLM(LlamaConfig(**SHAPE)))
    (tmp_path / "generation_config.json").write_text('{"eos_token_id": [7, 2]}')

    assert open_checkpoint(tmp_path).config.eos_token_ids == (7, 2)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return save(tmp_path, LlamaForCausalLM(LlamaConfig(**SHAPE)))


def change_config(folder: Path, **changes: Any) -> None:
    file = folder / "config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | changes))


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"model_type": "gpt_neox"}, "model_type 'gpt_neox' is not supported"),
        ({"attention_bias": True}, "attention_bias is not supported"),
        ({"hidden_act": "gelu"}, "hidden_act 'gelu' is not supported"),
        ({"quantization_config": {"quant_method": "awq"}}, "quantization_config with .* is not supported"),
        ({"rope_parameters": {"rope_type": "dynamic"}}, "rope scaling 'dynamic' is not supported"),
        ({"num_hidden_layers": 3}, "lacks 9 of 30 tensors"),
        ({"hidden_size": "wide"}, "cannot be read"),
        ({"num_hidden_layers": 10**12}, "claim 1000000000000 layers, but it has 21 tensors"),
        ({"rope_parameters": {"rope_type": "linear", "factor": 0.0}}, "scaling factor is 0.0"),
        ({"rope_parameters": {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 4.0}}, "from 4.0 to 4.0"),
        ({"intermediate_size": 50}, r"has shape \(48, 32\); the model's settings imply \(50, 32\)"),
    ],
)
def test_settings_that_do_not_fit_are_refused(folder: Path, changes: dict[str, Any], reason: str) -> None:
    change_config(folder, **changes)

    with pytest.raises(ModelFileError, match=reason):
        open_checkpoint(folder)


def test_a_head_of_its_own_is_used_whatever_the_settings_say_of_it(tmp_path: Path) -> None:
    model = LlamaForCausalLM(LlamaConfig(**SHAPE))
    save(tmp_path, model)
    change_config(tmp_path, tie_word_embeddings=True)

    assert not open_checkpoint(tmp_path).config.tie_embeddings
    assert_same_weights(tmp_path, model)


def test_a_tied_head_that_is_stored_again_is_the_embedding(tmp_path: Path) -> None:
    save(tmp_path, LlamaForCausalLM(LlamaConfig(**SHAPE, tie_word_embeddings=True)))
    tensors = load_file(tmp_path / "model.safetensors")
    save_file(tensors | {"lm_head.weight": tensors["model.embed_tokens.weight"].copy()}, tmp_path / "model.safetensors")
    checkpoint = open_checkpoint(tmp_path)

    assert checkpoint.config.tie_embeddings
    assert "lm_head.weight" not in checkpoint.tensors


def test_whole_numbers_may_be_written_as_fractions_and_null_stands_for_the_default(folder: Path) -> None:
    usual = open_checkpoint(folder).config
    change_config(folder, num_hidden_layers=2.0, vocab_size=40.0, rope_theta=10000, attention_bias=None, mlp_bias=None)

    assert open_checkpoint(folder).config == usual


def test_an_unknown_key_is_named(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    open_checkpoint(folder)
    assert caplog.messages == []

    change_config(folder, head_gates=True, pretraining_tp=1)
    open_checkpoint(folder)

    assert [message.endswith("transformers' llama: head_gates") for message in caplog.messages] == [True]


def test_pickled_weights_are_refused(folder: Path) -> None:
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")

    with pytest.raises(ModelFileError, match=r"only pickled weights \(pytorch_model.bin\), which can run code"):
        open_checkpoint(folder)


def test_a_folder_without_weights_or_settings_is_refused(folder: Path) -> None:
    (folder / "model.safetensors").unlink()
    with pytest.raises(ModelFileError, match=r"no \*\.safetensors"):
        open_checkpoint(folder)

    (folder / "config.json").unlink()
    with pytest.raises(ModelFileError, match=r"has no config\.json"):
        open_checkpoint(folder)


def test_a_truncated_weight_file_is_refused_with_the_arithmetic(folder: Path) -> None:
    file = folder / "model.safetensors"
    content = file.read_bytes()
    file.write_bytes(content[:-100])

    with pytest.raises(ModelFileError, match=r"ends at byte \d+ of the data, but the file holds \d+"):
        open_checkpoint(folder)


@pytest.mark.parametrize("content", [b"", b"abc", b"\xff" * 8, (20).to_bytes(8, "little") + b"{not json" + b" " * 11])
def test_what_is_no_safetensors_file_is_refused(folder: Path, content: bytes) -> None:
    (folder / "model.safetensors").write_bytes(content)

    with pytest.raises(ModelFileError, match=r"model\.safetensors"):
        open_checkpoint(folder)


def test_tensors_that_share_bytes_are_refused(folder: Path) -> None:
    entry = {"dtype": "F32", "shape": [4], "data_offsets": [0, 16]}
    header = json.dumps({"a": entry, "b": entry | {"data_offsets": [8, 24]}}).encode()
    (folder / "model.safetensors").write_bytes(len(header).to_bytes(8, "little") + header + bytes(24))

    with pytest.raises(ModelFileError, match="the bytes of tensors 'a' and 'b' overlap"):
        open_checkpoint(folder)


def test_a_chat_template_that_is_no_text_is_refused(folder: Path) -> None:
    (folder / "tokenizer.json").write_bytes(TOKENIZER)
    (folder / "chat_template.jinja").write_bytes(b"\xff")

    with pytest.raises(ModelFileError, match="is not UTF-8"):
        load_tokenizer(folder)


def test_integer_weights_are_refused_by_name(folder: Path) -> None:
    file = folder / "model.safetensors"
    tensors = load_file(file)
    tensors["model.norm.weight"] = np.ones(32, np.int8)
    save_file(tensors, file)

    with pytest.raises(ModelFileError, match=r"tensor 'model\.norm\.weight' is of kind I8"):
        open_checkpoint(folder)


def test_an_index_may_not_point_outside_its_folder(folder: Path) -> None:
    index = {"weight_map": {"model.norm.weight": "../elsewhere.safetensors"}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))

    with pytest.raises(ModelFileError, match="points outside the folder"):
        open_checkpoint(folder)


@pytest.mark.parametrize(
    ("setting", "value"),
    [
        ("attn_logit_softcapping", 50.0),
        ("num_experts", 8),
        ("clip_qkv", 6.0),
        ("logits_scaling", 8.0),
        ("use_qk_norm", True),
        ("sliding_window", 8),
        ("partial_rotary_factor", 0.5),
    ],
)
def test_a_setting_that_would_change_the_computation_is_refused_by_name(
    tmp_path: Path, setting: str, value: float
) -> None:
    save(tmp_path, LlamaForCausalLM(LlamaConfig(**SHAPE)))
    content = json.loads((tmp_path / "config.json").read_text())
    open_checkpoint(tmp_path)
    (tmp_path / "config.json").write_text(json.dumps(content | {setting: value}))
    with pytest.raises(ModelFileError, match=setting):
        open_checkpoint(tmp_path)


@pytest.mark.parametrize("rows", [range(16), range(16, 32)])
def test_fused_projections_are_cut_by_heads_as_whole_ones_are(tmp_path: Path, rows: range) -> None:
    """A rank reads its heads of a fused, partly rotated projection: the rows of the whole, in the same order."""
    rope = {"rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 0.5}
    config = Phi3Config(**SHAPE, pad_token_id=0, rope_parameters=rope)
    checkpoint = open_checkpoint(save(tmp_path, Phi3ForCausalLM(config)))
    name = "model.layers.1.self_attn.q_proj.weight"

    whole, part = dequantize(checkpoint.tensors[name]), dequantize(checkpoint.cut(name, rows))

    np.testing.assert_array_equal(part, whole[rows.start : rows.stop])
    stored = load_file(tmp_path / "model.safetensors")["model.layers.1.self_attn.qkv_proj.weight"]
    np.testing.assert_array_equal(whole[:8], stored[[0, 1, 4, 5, 2, 3, 6, 7]])
    assert not any("qkv_proj" in name for name in checkpoint.tensors)
