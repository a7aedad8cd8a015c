"""2:4 sparse folders load as dense weights with zeros, and are described as sparse (SPEC TI-11)."""

import logging
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from click.testing import CliRunner
from numpy.typing import NDArray
from safetensors.torch import save_file

from gateway.cli.planning.models import models
from inference_core.errors import ModelFileError
from inference_core.loaders.checkpoint import describe_sparsity
from inference_core.loaders.open_checkpoint import open_checkpoint
from inference_core.loaders.packed_tensor import dequantize
from inference_core.loading.load_core import load_core
from inference_core.model_spec import CoreSpec, ModelSpec
from tests.gateway.tiny_versions import tiny_catalog
from tests.inference_core.loaders.int4_checkpoints import random_model, write_folder
from tests.inference_core.loaders.tensor_parts import check_parts

Tensors = dict[str, torch.Tensor]
MODEL = random_model(32)
TEXT = "2:4 sparse: held and multiplied as dense, zeros included"
NAME = "model.layers.1.mlp.down_proj"


def masked(weight: NDArray[np.float32]) -> NDArray[np.float32]:
    """The two largest of every four weights, the others zero."""
    fours = weight.copy().reshape(-1, 4)
    np.put_along_axis(fours, np.argsort(np.abs(fours), axis=1)[:, :2], 0, axis=1)
    return fours.reshape(weight.shape)


DRAWN = {
    name: np.random.default_rng(i).normal(0, 0.1, layer.weight.shape).astype(np.float32)
    for i, (name, layer) in enumerate(MODEL.layers.items())
}
DENSE = {name: masked(weight) for name, weight in DRAWN.items()}


def sparse_parts(name: str, weight: torch.Tensor, stored: NDArray[Any]) -> Tensors:
    """`weight` [N, K] without the zeros of `stored`, bit by bit as compressed-tensors lays it out."""
    mask, kept = np.packbits(stored != 0, axis=1, bitorder="little"), np.flatnonzero(stored)
    flat = weight.view(torch.uint8).reshape(weight.numel(), -1)[kept]
    values = flat.reshape(-1).view(weight.dtype).reshape(weight.shape[0], -1)
    shape = torch.tensor(weight.shape).reshape(-1, 1)
    return {f"{name}.compressed": values, f"{name}.bitmask": torch.from_numpy(mask), f"{name}.shape": shape}


def sparsity(form: str, structure: str = "2:4", **extra: Any) -> dict[str, Any]:
    stated = {"format": form, "sparsity_structure": structure, "global_sparsity": 0.5, "targets": ["Linear"]}
    return {"quant_method": "compressed-tensors", "sparsity_config": stated} | extra


def write(folder: Path, layers: Tensors, config: dict[str, Any] | None) -> Path:
    write_folder(folder, MODEL.others, config)
    others = {name: torch.from_numpy(array) for name, array in MODEL.others.items()}
    save_file({name: tensor.contiguous() for name, tensor in (others | layers).items()}, folder / "model.safetensors")
    return folder


def plain(dtype: torch.dtype = torch.float16) -> Tensors:
    tensors: Tensors = {}
    for name, weight in DENSE.items():
        tensors |= sparse_parts(name, torch.from_numpy(weight).to(dtype), weight)
    return tensors


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_weights_without_their_zeros_are_the_masked_dense_ones(tmp_path: Path, dtype: torch.dtype) -> None:
    checkpoint = open_checkpoint(write(tmp_path, plain(dtype), sparsity("sparse-24-bitmask")))

    for name, weight in DENSE.items():
        tensor = checkpoint.tensors[f"{name}.weight"]
        assert tensor.kind == {torch.float16: "F16", torch.bfloat16: "BF16", torch.float32: "F32"}[dtype]
        expected = torch.from_numpy(weight).to(dtype).float().numpy()
        np.testing.assert_array_equal(dequantize(tensor), expected)
        assert ((dequantize(tensor).reshape(-1, 4) != 0).sum(axis=1) == 2).all()
        assert not tensor.data.flags.writeable
        check_parts(checkpoint, f"{name}.weight")


@pytest.mark.parametrize(
    ("dtype", "kind", "form", "largest"),
    [(torch.int8, "S8", "int-quantized", 127), (torch.float8_e4m3fn, "F8", "float-quantized", 448)],
)
def test_codes_without_their_zeros_are_multiplied_by_their_scales(
    tmp_path: Path, dtype: torch.dtype, kind: str, form: str, largest: int
) -> None:
    tensors, expected = {}, {}
    for name, weight in DENSE.items():
        scales = torch.from_numpy(np.abs(weight).max(1, keepdims=True) / largest)
        codes = (torch.from_numpy(weight) / scales).round().to(dtype)
        # The mask is the weights', also where one of them is rounded to the code 0.
        tensors |= sparse_parts(name, codes, weight) | {f"{name}.weight_scale": scales}
        expected[name] = (codes.float() * scales).numpy()
    weights = {"num_bits": 8, "type": "int" if kind == "S8" else "float", "symmetric": True}
    groups = {"group_0": {"targets": ["Linear"], "weights": weights}}
    checkpoint = open_checkpoint(
        write(tmp_path, tensors, sparsity("sparse-24-bitmask", format=form, config_groups=groups))
    )

    for name, weight in expected.items():
        assert checkpoint.tensors[f"{name}.weight"].kind == kind
        np.testing.assert_array_equal(dequantize(checkpoint.tensors[f"{name}.weight"]), weight)
        check_parts(checkpoint, f"{name}.weight")


def dense_folder(folder: Path, config: dict[str, Any] | None, weights: dict[str, NDArray[np.float32]]) -> Path:
    return write(folder, {f"{name}.weight": torch.from_numpy(weight) for name, weight in weights.items()}, config)


def test_a_sparse_model_is_called_so_whether_its_settings_say_it_or_only_its_zeros(tmp_path: Path) -> None:
    folders = {
        "stored without zeros": write(tmp_path / "a", plain(), sparsity("sparse-24-bitmask")),
        "stated": dense_folder(tmp_path / "b", sparsity("dense"), DENSE),
        "only zeros": dense_folder(tmp_path / "c", None, DENSE),
        "unmasked": dense_folder(tmp_path / "d", None, DRAWN),
        "one layer unmasked": dense_folder(tmp_path / "e", None, DENSE | {NAME: DRAWN[NAME]}),
        "unstructured": dense_folder(tmp_path / "f", sparsity("dense", "unstructured"), DRAWN),
        "all zeros": dense_folder(tmp_path / "g", None, {name: w * 0 for name, w in DENSE.items()}),
    }
    described = {name: describe_sparsity(open_checkpoint(folder)) for name, folder in folders.items()}

    assert {name for name, given in described.items() if given == TEXT} == {
        "stored without zeros",
        "stated",
        "only zeros",
    }
    assert set(described.values()) == {TEXT, None}


def test_a_sparse_model_is_logged_at_load_and_listed_as_such(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    folder = write(tmp_path / "model", plain(), sparsity("sparse-24-bitmask"))
    spec = CoreSpec(
        models=[ModelSpec(name="m", path=str(folder), compute="float32")], arena_bytes=2**20, slab_bytes=2**20
    )
    with caplog.at_level(logging.INFO):
        load_core(spec, tmp_path / "cache")
    assert f"m is {TEXT}" in caplog.messages

    catalog = tmp_path / "catalog.toml"
    catalog.write_text(tiny_catalog(folder))
    shown = CliRunner().invoke(models, ["--catalog", str(catalog), "--data-dir", str(tmp_path)])
    assert f"tiny is {TEXT}" in shown.output


@pytest.mark.parametrize(
    ("part", "tensor", "reason"),
    [
        ("bitmask", None, rf"holds '{NAME}\.compressed' but no '{NAME}\.bitmask'"),
        ("shape", torch.tensor([[128], [128]]), r"2:4 sparse weight \[128, 128\]"),
        ("bitmask", torch.full((128, 32), 0b00110111, dtype=torch.uint8), "does not name two of every four weights"),
        ("compressed", torch.ones(128, 64), r"the numbers \(128, 64\) and the bits \(128, 32\)"),
    ],
)
def test_parts_that_do_not_fit_are_named(tmp_path: Path, part: str, tensor: torch.Tensor | None, reason: str) -> None:
    tensors = plain()
    del tensors[f"{NAME}.{part}"]
    if tensor is not None:
        tensors[f"{NAME}.{part}"] = tensor
    folder = write(tmp_path, tensors, sparsity("sparse-24-bitmask"))
    with pytest.raises(ModelFileError, match=reason):
        dequantize(open_checkpoint(folder).tensors[f"{NAME}.weight"])


def test_zeros_in_any_place_and_transformed_weights_are_refused_by_name(tmp_path: Path) -> None:
    folder = dense_folder(tmp_path / "a", sparsity("sparse-bitmask", "unstructured"), DENSE)
    with pytest.raises(ModelFileError, match="sparsity_config with format 'sparse-bitmask' is not supported"):
        open_checkpoint(folder)
    rotated = sparsity("dense", transform_config={"config_groups": {"u": {"type": "hadamard"}}})
    with pytest.raises(ModelFileError, match=r"transform_config = .*hadamard"):
        open_checkpoint(dense_folder(tmp_path / "b", rotated, DENSE))
