"""compressed-tensors and FP8 folders load as what their formats define, and what does not fit is refused (SPEC QZ-03,
QZ-04)."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from inference_core.errors import ModelFileError
from inference_core.loaders.block_formats import E4M3
from inference_core.loaders.open_checkpoint import open_checkpoint
from inference_core.loaders.packed_tensor import dequantize
from tests.inference_core.loaders.int4_checkpoints import pack_nibbles, random_layer, random_model, write_folder
from tests.inference_core.loaders.tensor_parts import check_parts

Tensors = dict[str, torch.Tensor]
MODEL = random_model(32)
LAYERS = {name: layer.weight for name, layer in MODEL.layers.items()}


def group_config(kind: str, bits: int, form: str, **weights: Any) -> dict[str, Any]:
    arguments = {"num_bits": bits, "type": kind, "symmetric": True} | weights
    return {
        "quant_method": "compressed-tensors",
        "format": form,
        "config_groups": {"group_0": {"targets": ["Linear"], "weights": arguments}},
        "ignore": ["lm_head"],
    }


def write(folder: Path, layers: Tensors, config: dict[str, Any]) -> Path:
    write_folder(folder, MODEL.others, config)
    others = {name: torch.from_numpy(array) for name, array in MODEL.others.items()}
    save_file({name: tensor.contiguous() for name, tensor in (others | layers).items()}, folder / "model.safetensors")
    return folder


def check(folder: Path, expected: dict[str, np.ndarray], kind: str) -> None:
    checkpoint = open_checkpoint(folder)
    tensors = checkpoint.tensors
    for name, weight in expected.items():
        check_parts(checkpoint, f"{name}.weight")
        tensor = tensors[f"{name}.weight"]
        assert tensor.kind == kind
        assert not tensor.data.flags.writeable
        np.testing.assert_array_equal(dequantize(tensor), weight)
    np.testing.assert_array_equal(dequantize(tensors["lm_head.weight"]), MODEL.others["lm_head.weight"])


def int8_parts(weight: np.ndarray, scales: torch.Tensor) -> tuple[torch.Tensor, np.ndarray]:
    """Codes for scales that spread over [N, K], and the weights that both stand for."""
    spread = scales.float().numpy()
    codes = np.clip(np.rint(weight / spread), -127, 127).astype(np.int8)
    return torch.from_numpy(codes), spread * codes.astype(np.float32)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("per_tensor", [True, False])
def test_int8_weights_are_codes_times_the_scale_of_their_channel_or_tensor(
    tmp_path: Path, dtype: torch.dtype, per_tensor: bool
) -> None:
    tensors, expected = {}, {}
    for name, weight in LAYERS.items():
        peaks = np.abs(weight).max() if per_tensor else np.abs(weight).max(1, keepdims=True)
        scales = torch.from_numpy(np.atleast_1d(peaks / 127)).to(dtype)
        tensors[f"{name}.weight"], expected[name] = int8_parts(weight, scales)
        tensors[f"{name}.weight_scale"] = scales
    check(write(tmp_path, tensors, group_config("int", 8, "int-quantized")), expected, "S8")


def e4m3(weight: np.ndarray, spread: np.ndarray) -> tuple[torch.Tensor, np.ndarray]:
    codes = torch.from_numpy(weight / spread).to(torch.float8_e4m3fn)
    return codes, (spread * codes.float().numpy()).astype(np.float32)


def test_fp8_weights_are_codes_times_the_scale_of_their_channel(tmp_path: Path) -> None:
    tensors, expected = {}, {}
    for name, weight in LAYERS.items():
        scales = (np.abs(weight).max(1, keepdims=True) / 448).astype(np.float32)
        tensors[f"{name}.weight"], expected[name] = e4m3(weight, scales)
        tensors[f"{name}.weight_scale"] = torch.from_numpy(scales)
        tensors[f"{name}.input_scale"] = torch.ones(1)
    check(write(tmp_path, tensors, group_config("float", 8, "float-quantized")), expected, "F8")


def test_fp8_weights_in_blocks_share_a_scale_per_block_of_rows_and_inputs(tmp_path: Path) -> None:
    """As DeepSeek's and Qwen3's FP8 files have them; a last block may be smaller."""
    tensors, expected = {}, {}
    for name, weight in LAYERS.items():
        grid = (
            np.random.default_rng(len(name))
            .uniform(0.01, 0.02, (-(-weight.shape[0] // 128), -(-weight.shape[1] // 128)))
            .astype(np.float32)
        )
        spread = np.kron(grid, np.ones((128, 128), np.float32))[: weight.shape[0], : weight.shape[1]]
        tensors[f"{name}.weight"], expected[name] = e4m3(weight, spread)
        tensors[f"{name}.weight_scale_inv"] = torch.from_numpy(grid)
    config = {"quant_method": "fp8", "fmt": "e4m3", "activation_scheme": "dynamic", "weight_block_size": [128, 128]}
    check(write(tmp_path, tensors, config), expected, "F8")


def test_the_codes_of_e4m3_stand_for_torchs_numbers() -> None:
    theirs = torch.arange(256, dtype=torch.int32).to(torch.uint8).view(torch.float8_e4m3fn).float().numpy()
    np.testing.assert_array_equal(E4M3, theirs)


@pytest.mark.parametrize("symmetric", [True, False])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_packed_four_bits_are_scale_times_code_less_zero_point(
    tmp_path: Path, symmetric: bool, dtype: torch.dtype
) -> None:
    tensors: Tensors = {}
    expected = {}
    for number, (name, weight) in enumerate(LAYERS.items()):
        layer = random_layer(*weight.shape, 64, seed=number)
        codes, zeros = layer.codes.T, np.full_like(layer.zeros.T, 8) if symmetric else layer.zeros.T
        scales = torch.from_numpy(layer.scales.T.astype(np.float32)).to(dtype)
        words = [[pack_nibbles(row[k : k + 8]) for k in range(0, len(row), 8)] for row in codes]
        tensors[f"{name}.weight_packed"] = torch.tensor(words, dtype=torch.int32)
        tensors[f"{name}.weight_scale"] = scales
        tensors[f"{name}.weight_shape"] = torch.tensor(weight.shape, dtype=torch.int64)
        if not symmetric:
            packed = [
                [pack_nibbles(zeros[n : n + 8, g]) for g in range(zeros.shape[1])] for n in range(0, len(zeros), 8)
            ]
            tensors[f"{name}.weight_zero_point"] = torch.tensor(packed, dtype=torch.int32)
        spread = scales.float().numpy()[:, layer.groups]
        expected[name] = (spread * (codes - zeros[:, layer.groups])).astype(np.float32)
    config = group_config("int", 4, "pack-quantized", strategy="group", group_size=64, symmetric=symmetric)
    check(write(tmp_path, tensors, config), expected, "Q4_0" if symmetric else "Q4_Z")


@pytest.mark.parametrize(
    "config",
    [
        group_config("int", 3, "pack-quantized"),
        group_config("float", 4, "nvfp4-pack-quantized"),
        {"quant_method": "compressed-tensors", "format": "int-quantized"},
        {"quant_method": "fp8", "fmt": "e5m2"},
    ],
)
def test_what_is_not_supported_is_refused_by_what_was_written(tmp_path: Path, config: dict[str, Any]) -> None:
    folder = write(tmp_path, {f"{name}.weight": torch.from_numpy(w) for name, w in LAYERS.items()}, config)
    with pytest.raises(ModelFileError, match="is not supported; supported are") as caught:
        open_checkpoint(folder)
    assert config["quant_method"] in str(caught.value)


def int8_folder(folder: Path) -> Path:
    tensors = {}
    for name, weight in LAYERS.items():
        scales = torch.full((weight.shape[0], 1), 0.01)
        tensors[f"{name}.weight"], _ = int8_parts(weight, scales)
        tensors[f"{name}.weight_scale"] = scales
    return write(folder, tensors, group_config("int", 8, "int-quantized"))


NAME = "model.layers.0.mlp.down_proj"


@pytest.mark.parametrize(
    ("part", "value", "message"),
    [
        ("weight_scale", None, "needs two dimensions and one of weight_scale"),
        ("weight_scale", torch.ones(7, 1), "does not spread over weights"),
        ("weight_scale", torch.ones(128, 1, dtype=torch.int32), "does not spread over weights"),
        ("weight_zero_point", torch.ones(128, 1, dtype=torch.int8), "has zero points"),
    ],
)
def test_parts_that_do_not_fit_are_named(tmp_path: Path, part: str, value: torch.Tensor | None, message: str) -> None:
    folder = int8_folder(tmp_path)
    tensors = load_file(folder / "model.safetensors")
    tensors.pop(f"{NAME}.{part}", None)
    if value is not None:
        tensors[f"{NAME}.{part}"] = value
    save_file(tensors, folder / "model.safetensors")
    with pytest.raises(ModelFileError, match=message) as caught:
        open_checkpoint(folder)
    assert NAME in str(caught.value)


def test_a_folder_says_by_its_config_what_it_is(tmp_path: Path) -> None:
    folder = int8_folder(tmp_path)
    config = json.loads((folder / "config.json").read_text())
    del config["quantization_config"]
    (folder / "config.json").write_text(json.dumps(config))
    with pytest.raises(ModelFileError, match="is of kind I8"):
        open_checkpoint(folder)
