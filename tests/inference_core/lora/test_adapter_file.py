"""PEFT folders are read as PEFT means them, and refused with a reason where they ask for more or do not fit."""

import json
import math
import os

import numpy as np
import pytest
from adapters import TINY, write_adapter

from inference_core.errors import ModelFileError
from inference_core.lora.adapter_file import MAX_RANK, read_adapter

Q0 = "base_model.model.model.layers.0.self_attn.q_proj"


def test_every_layer_has_its_factors_and_scale(tmp_path):
    adapter = read_adapter(write_adapter(tmp_path, rank=4, lora_alpha=6), TINY)

    assert len(adapter.layers) == TINY.num_layers
    low = adapter.layers[1]["down_proj"]
    assert (low.down.shape, low.up.shape, low.scale) == ((4, 96), (64, 4), 1.5)
    assert adapter.rank == 4


def test_rank_stabilised_adapters_are_scaled_by_the_root_of_their_rank(tmp_path):
    adapter = read_adapter(write_adapter(tmp_path, rank=4, lora_alpha=6, use_rslora=True), TINY)

    assert adapter.layers[0]["q_proj"].scale == 6 / math.sqrt(4)


def test_patterns_change_rank_and_alpha_of_the_modules_that_they_name(tmp_path):
    patterns = {"rank_pattern": {"v_proj": 8}, "alpha_pattern": {"layers.1.self_attn.v_proj": 2}}
    adapter = read_adapter(write_adapter(tmp_path, ranks={"v_proj": 8}, lora_alpha=16, **patterns), TINY)

    assert [layer["v_proj"].scale for layer in adapter.layers] == [2.0, 0.25, 2.0]
    assert [layer["q_proj"].scale for layer in adapter.layers] == [4.0] * 3
    assert adapter.layers[0]["v_proj"].rank == adapter.rank == 8


def test_layers_without_tensors_stay_as_they_are(tmp_path):
    adapter = read_adapter(write_adapter(tmp_path, modules=("o_proj",), layers=[2]), TINY)

    assert [sorted(layer) for layer in adapter.layers] == [[], [], ["o_proj"]]


def test_the_digest_is_of_the_content_and_not_of_the_place(tmp_path):
    one, same = write_adapter(tmp_path / "a"), write_adapter(tmp_path / "b")
    scaled, other = write_adapter(tmp_path / "c", lora_alpha=1), write_adapter(tmp_path / "d", seed=1)

    digests = [read_adapter(folder, TINY).digest for folder in (one, same, scaled, other)]

    assert digests[0] == digests[1]
    assert len(set(digests)) == 3


@pytest.mark.parametrize(
    ("setting", "reason"),
    [
        ({"peft_type": "LOHA"}, "peft_type is 'LOHA'; supported is 'LORA'"),
        ({"bias": "all"}, "bias is 'all'"),
        ({"use_dora": True}, "use_dora is True; plain LoRA is served, without use_dora"),
        ({"modules_to_save": ["lm_head"]}, "modules_to_save"),
        ({"fan_in_fan_out": True}, "fan_in_fan_out"),
        ({"lora_bias": True}, "lora_bias"),
        ({"init_lora_weights": "pissa_niter_4"}, "changes the base model too"),
        ({"rank_pattern": {"layers\\.[0-2]": 4}}, "is a regular expression"),
        ({"r": 0}, "ranks are at least 1"),
        ({"r": 8}, r"is \[4, \d+\]; by adapter_config.json and the model it is \[8, \d+\]"),
        ({"lora_alpha": "much"}, "cannot be read"),
        ({"target_modules": ["q_proj", "lm_head"]}, "target_modules names 'lm_head'"),
    ],
)
def test_what_is_not_plain_lora_for_this_model_is_refused_with_the_reason(tmp_path, setting, reason):
    with pytest.raises(ModelFileError, match=reason):
        read_adapter(write_adapter(tmp_path, **setting), TINY)


@pytest.mark.parametrize(
    ("tensor", "value", "reason"),
    [
        ("base_model.model.lm_head.lora_A.weight", np.zeros((4, 64)), "is not supported; supported is LoRA"),
        ("base_model.model.model.layers.0.mlp.q_proj.lora_A.weight", np.zeros((4, 64)), "supported is LoRA"),
        (f"{Q0}.lora_magnitude_vector", np.zeros(64), "supported is LoRA"),
        (Q0.replace("layers.0", "layers.7") + ".lora_A.weight", np.zeros((4, 64)), "layer 7; the model has 3"),
        (f"{Q0}.lora_B.weight", np.zeros((65, 4)), r"is \[65, 4\]; .* \[64, 4\]"),
        (f"{Q0}.lora_A.weight", np.full((4, 64), np.inf), "holds NaN or infinity"),
        (f"{Q0}.lora_A.weight", np.zeros((4, 64), np.int32), "of kind I32; supported are F32, F16, BF16"),
    ],
)
def test_tensors_that_do_not_fit_the_model_are_refused(tmp_path, tensor, value, reason):
    value = value if value.dtype == np.int32 else value.astype(np.float32)
    with pytest.raises(ModelFileError, match=reason):
        read_adapter(write_adapter(tmp_path, changed={tensor: value}), TINY)


def test_half_a_pair_is_refused(tmp_path):
    changed = {"base_model.model.model.layers.0.self_attn.q_proj.lora_A.weight": np.zeros((4, 64), np.float32)}
    folder = write_adapter(tmp_path, modules=("v_proj",), changed=changed)

    with pytest.raises(ModelFileError, match="q_proj has only lora_A"):
        read_adapter(folder, TINY)


def test_ranks_beyond_the_largest_are_refused(tmp_path):
    folder = write_adapter(tmp_path, modules=("q_proj",), layers=[0], rank=MAX_RANK + 1)

    with pytest.raises(ModelFileError, match=f"rank {MAX_RANK + 1}; supported are ranks up to {MAX_RANK}"):
        read_adapter(folder, TINY)


@pytest.mark.parametrize("name", ["adapter_config.json", "adapter_model.safetensors"])
@pytest.mark.parametrize("kind", ["pipe", "device", "3 GiB"])
def test_only_regular_files_of_a_bounded_size_are_read(tmp_path, name, kind):
    folder = write_adapter(tmp_path)
    (folder / name).unlink()
    if kind == "pipe":
        os.mkfifo(folder / name)
    elif kind == "device":
        (folder / name).symlink_to("/dev/zero")
    else:
        (folder / name).touch()
        os.truncate(folder / name, 3 << 30)

    with pytest.raises(ModelFileError, match=r"regular file|at most|has no|damaged|header"):
        read_adapter(folder, TINY)


def test_missing_and_damaged_files_are_named(tmp_path):
    with pytest.raises(ModelFileError, match=r"has no adapter_config\.json"):
        read_adapter(tmp_path, TINY)
    (tmp_path / "adapter_config.json").write_text(json.dumps({"r": 4}))
    with pytest.raises(ModelFileError, match=r"has no adapter_model.safetensors"):
        read_adapter(tmp_path, TINY)
    (tmp_path / "adapter_model.safetensors").write_bytes(b"\x08")
    with pytest.raises(ModelFileError, match="truncated"):
        read_adapter(tmp_path, TINY)
