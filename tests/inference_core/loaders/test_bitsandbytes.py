"""Folders of bitsandbytes load as what their format defines, 4 bits and LLM.int8() (SPEC QZ-07)."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from inference_core.errors import ModelFileError
from inference_core.linear.panels import int8_codes, panel_kind
from inference_core.loaders.open_checkpoint import open_checkpoint
from inference_core.loaders.packed_tensor import PackedTensor, dequantize
from inference_core.model_spec import Compute
from inference_core.native import cpu
from quality.evaluation.model_outputs import Side, Variant, window_outputs
from tests.inference_core.loaders.bitsandbytes_checkpoints import Packed, config, pack
from tests.inference_core.loaders.int4_checkpoints import Arrays, random_model, write_folder
from tests.inference_core.loaders.tensor_parts import check_parts

MODEL = random_model(32)
NAME = "model.layers.0.mlp.down_proj"


def packed_model(kind: str = "nf4", *, nested: bool = False, storage: type = np.uint8) -> dict[str, Packed]:
    return {name: pack(layer.weight, kind, nested=nested, storage=storage) for name, layer in MODEL.layers.items()}


def tensors_of(packed: dict[str, Packed]) -> Arrays:
    return MODEL.others | {f"{name}.{part}": array for name, p in packed.items() for part, array in p.parts.items()}


@pytest.mark.parametrize("kind", ["nf4", "fp4"])
@pytest.mark.parametrize("nested", [False, True])
@pytest.mark.parametrize("storage", [np.uint8, np.float16])
def test_every_weight_is_its_entry_of_the_table_times_the_scale_of_its_block(
    tmp_path: Path, kind: str, nested: bool, storage: type
) -> None:
    packed = packed_model(kind, nested=nested, storage=storage)
    checkpoint = open_checkpoint(write_folder(tmp_path, tensors_of(packed), config()))

    for name, layer in packed.items():
        tensor = checkpoint.tensors[f"{name}.weight"]
        assert tensor.kind == kind.upper()
        assert not tensor.data.flags.writeable
        np.testing.assert_array_equal(dequantize(tensor), layer.weight)
        check_parts(checkpoint, f"{name}.weight")
    np.testing.assert_array_equal(dequantize(checkpoint.tensors["lm_head.weight"]), MODEL.others["lm_head.weight"])


def test_blocks_go_on_from_one_row_to_the_next(tmp_path: Path) -> None:
    """Rows of 96 weights do not begin where blocks of 64 do."""
    weight = np.random.default_rng(1).normal(0, 1, (128, 96)).astype(np.float32)
    packed = pack(weight, nested=True)
    folder = write_folder(tmp_path, MODEL.others | {f"x.{part}": array for part, array in packed.parts.items()})
    from inference_core.loaders.huggingface.safetensors_file import SafetensorsFile
    from inference_core.loaders.huggingface.table_layers import table_layers

    file = SafetensorsFile(folder / "model.safetensors")
    layer = table_layers(folder, dict.fromkeys(file, file))["x.weight"]

    np.testing.assert_array_equal(dequantize(layer.tensor(folder)), packed.weight)
    part = layer.cut(folder, range(3, 60), range(32, 96))
    np.testing.assert_array_equal(dequantize(part), packed.weight[3:60, 32:96])


@pytest.mark.parametrize("kind", ["nf4", "fp4"])
def test_as_8_bit_codes_no_weight_moves_by_more_than_a_254th_of_its_groups_largest(kind: str) -> None:
    packed = pack(np.random.default_rng(2).normal(0, 0.02, (64, 256)).astype(np.float32), kind)
    tensor = PackedTensor("F32", packed.weight.shape, packed.weight)
    assert panel_kind(PackedTensor("NF4" if kind == "nf4" else "FP4", tensor.shape, tensor.data), "int4-int8") == "int8"

    codes, scale = int8_codes(tensor)

    groups = packed.weight.reshape(64, 8, 32)
    error = np.abs(codes.reshape(64, 8, 32) * scale[:, :, None] - groups)
    largest = np.abs(groups).max(axis=2, keepdims=True)
    # Scales are rounded to float16, which adds 2 ** -11 of a weight.
    assert (error <= largest * (1 / 254 + 2**-11)).all()
    assert np.sqrt((error**2).mean() / (groups**2).mean()) < 0.007


def logits(folder: Path, compute: Compute, cache: Path) -> np.ndarray[Any, np.dtype[np.float32]]:
    tokens = [3, 17, 40, 5, 5, 21, 0, 47, 9, 30, 12, 33, 8, 2, 46, 19]
    ((_, given),) = window_outputs(Side(str(folder), Variant(compute, "float32")), cache, [tokens])
    return given


@pytest.mark.skipif(not cpu.AVAILABLE, reason="the torch path computes the dequantised weights themselves")
@pytest.mark.parametrize("nested", [False, True])
def test_a_decoder_gives_the_logits_of_its_dequantised_weights(tmp_path: Path, nested: bool) -> None:
    packed = packed_model(nested=nested)
    folder = write_folder(tmp_path / "packed", tensors_of(packed), config())
    weights = MODEL.others | {f"{name}.weight": p.weight for name, p in packed.items()}
    exact = logits(write_folder(tmp_path / "plain", weights), "float32", tmp_path / "cache")

    bounds: dict[Compute, float] = {"float32": 1e-5, "int4": 1e-2, "int4-int8": 3e-2}
    for compute, bound in bounds.items():
        error = np.abs(logits(folder, compute, tmp_path / "cache") - exact).max()
        assert error <= bound * np.abs(exact).max(), compute


def test_weights_of_llm_int8_are_codes_times_the_largest_of_their_output_over_127(tmp_path: Path) -> None:
    tensors, expected = dict(MODEL.others), {}
    for name, layer in MODEL.layers.items():
        largest = np.abs(layer.weight).max(axis=1)
        codes = np.rint(layer.weight / largest[:, None] * 127).astype(np.int8)
        tensors |= {f"{name}.weight": codes, f"{name}.SCB": largest, f"{name}.weight_format": np.array(0, np.uint8)}
        expected[name] = codes * (largest / np.float32(127))[:, None]
    eight = config(load_in_4bit=False, load_in_8bit=True, llm_int8_threshold=6.0)
    checkpoint = open_checkpoint(write_folder(tmp_path, tensors, eight))

    for name, weight in expected.items():
        assert checkpoint.tensors[f"{name}.weight"].kind == "S8"
        np.testing.assert_array_equal(dequantize(checkpoint.tensors[f"{name}.weight"]), weight)
        check_parts(checkpoint, f"{name}.weight")

    tensors[f"{NAME}.weight_format"] = np.array(2, np.uint8)
    with pytest.raises(ModelFileError, match="names another order than row after row"):
        open_checkpoint(write_folder(tmp_path / "ampere", tensors, eight))


def state(**changes: Any) -> np.ndarray[Any, np.dtype[np.uint8]]:
    given = {"quant_type": "nf4", "blocksize": 64, "dtype": "bfloat16", "shape": [128, 256]} | changes
    return np.frombuffer(json.dumps(given).encode(), np.uint8)


STATE = "weight.quant_state.bitsandbytes__nf4"


@pytest.mark.parametrize(
    ("part", "array", "reason"),
    [
        ("weight.absmax", None, r"down_proj\.weight\.absmax' is missing; 512 numbers of F32"),
        ("weight.absmax", np.ones(511, np.float32), r"is F32 \(511,\); 512 numbers"),
        ("weight.absmax", np.ones(512, np.uint8), r"is U8 \(512,\); 512 numbers of F32"),
        ("weight", np.ones((7, 1), np.uint8), r"does not hold the 32768 codes of \(128, 256\)"),
        ("weight.quant_map", np.linspace(-1, 1, 16).astype(np.float32), "is not the table of nf4"),
        (STATE, state(blocksize=48), "with a scale per 48"),
        (STATE, state(quant_type="af4"), "is af4 "),
        (STATE, state(shape=[256, 16 * 8 - 1]), "inputs and blocks in multiples of 32"),
        (STATE, state(nested_blocksize=256, nested_offset=0.0), "512 numbers of U8 are needed"),
        (STATE, state(rotated=True), "unknown field `rotated`"),
        (STATE, np.frombuffer(b"{", np.uint8), "is not understood"),
    ],
)
def test_parts_that_do_not_fit_are_named(
    tmp_path: Path, part: str, array: np.ndarray[Any, Any] | None, reason: str
) -> None:
    tensors = tensors_of({NAME: pack(MODEL.layers[NAME].weight)})
    tensors |= {f"{name}.weight": layer.weight for name, layer in MODEL.layers.items() if name != NAME}
    del tensors[f"{NAME}.{part}"]
    if array is not None:
        tensors[f"{NAME}.{part}"] = array
    with pytest.raises(ModelFileError, match=reason):
        open_checkpoint(write_folder(tmp_path, tensors, config()))


def test_a_config_that_says_neither_or_both_is_refused(tmp_path: Path) -> None:
    folder = write_folder(tmp_path, tensors_of({}), config(load_in_4bit=False))
    with pytest.raises(ModelFileError, match=r"load_in_4bit False.* is not supported; supported are"):
        open_checkpoint(folder)
