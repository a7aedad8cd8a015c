"""AWQ and GPTQ folders load as what their formats define; whatever does not fit is refused (SPEC QZ-01, QZ-02)."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from inference_core.errors import ModelFileError
from inference_core.loaders.open_checkpoint import open_checkpoint
from inference_core.loaders.packed_tensor import dequantize
from inference_core.model_spec import Compute
from inference_core.native import cpu
from quality.evaluation.model_outputs import Side, Variant, window_outputs
from tests.inference_core.loaders.int4_checkpoints import (
    Model,
    packed_tensors,
    quantization_config,
    random_model,
    write_folder,
    write_packed,
)
from tests.inference_core.loaders.tensor_parts import check_parts

pytestmark = pytest.mark.models
FORMS = ["awq", "gptq", "gptq_v2"]
SIZES = [32, 64, 128]


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("group_size", [*SIZES, -1])
def test_every_weight_is_scale_times_code_less_zero_point(tmp_path: Path, form: str, group_size: int) -> None:
    model = random_model(group_size)
    tensors = open_checkpoint(write_packed(tmp_path, model, form, group_size)).tensors

    for name, expected in model.weights().items():
        np.testing.assert_array_equal(dequantize(tensors[name]), expected)
        assert not tensors[name].data.flags.writeable
    assert {tensors[f"{name}.weight"].kind for name in model.layers} == {"Q4_Z"}


def test_codes_in_a_hand_packed_word_come_out_in_the_order_of_their_format(tmp_path: Path) -> None:
    """The word 0x76543210 holds 0, 1, ..., 7 from its lowest bits up."""
    model = random_model(32)
    for form, order in (("gptq_v2", [0, 1, 2, 3, 4, 5, 6, 7]), ("awq", [0, 2, 4, 6, 1, 3, 5, 7])):
        tensors = packed_tensors(model, form)
        name = "model.layers.0.self_attn.o_proj"
        for part, value in (("qweight", 0x76543210), ("qzeros", 0)):
            tensors[f"{name}.{part}"] = np.full_like(tensors[f"{name}.{part}"], value)
        tensors[f"{name}.scales"] = np.ones_like(tensors[f"{name}.scales"])
        method = form.partition("_")[0]
        extra = {} if method == "awq" else {"checkpoint_format": form}
        folder = write_folder(tmp_path / form, tensors, quantization_config(method, 32, **extra))

        weight = dequantize(open_checkpoint(folder).tensors[f"{name}.weight"])

        eight = weight[0, :8] if method == "gptq" else weight[:8, 0]
        np.testing.assert_array_equal(eight[order], np.arange(8))


def test_the_first_gptq_format_stores_zero_points_less_one(tmp_path: Path) -> None:
    model = random_model(64)
    tensors = packed_tensors(model, "gptq")
    new = write_folder(tmp_path / "v2", tensors, quantization_config("gptq", 64, checkpoint_format="gptq_v2"))
    name = "model.layers.1.mlp.up_proj"

    weight = dequantize(open_checkpoint(new).tensors[f"{name}.weight"])

    layer = model.layers[name]
    steps = layer.scales[layer.groups].astype(np.float32).T
    np.testing.assert_allclose(weight - layer.weight, steps, rtol=1e-3)


def test_groups_in_any_order_are_multiplied_out_to_float16(tmp_path: Path) -> None:
    model = random_model(64, act_order=True)
    tensors = open_checkpoint(write_packed(tmp_path, model, "gptq", 64, desc_act=True)).tensors

    for name, layer in model.layers.items():
        tensor = tensors[f"{name}.weight"]
        assert tensor.kind == "Q_F16"
        np.testing.assert_array_equal(dequantize(tensor), layer.weight.astype(np.float16).astype(np.float32))


@pytest.mark.parametrize("form", ["gptq", "gptq_v2"])
@pytest.mark.parametrize("group_size", [32, 128, -1])
@pytest.mark.parametrize("symmetric", [False, True])
def test_weights_of_8_bits_are_scale_times_code_less_zero_point(
    tmp_path: Path, form: str, group_size: int, symmetric: bool
) -> None:
    model = random_model(group_size, bits=8, symmetric=symmetric)
    checkpoint = open_checkpoint(write_packed(tmp_path, model, form, group_size, bits=8, sym=symmetric))

    for name, expected in model.weights().items():
        tensor = checkpoint.tensors[name]
        np.testing.assert_array_equal(dequantize(tensor), expected)
        if name.removesuffix(".weight") in model.layers:
            assert tensor.kind == ("S8" if symmetric else "Q8_Z")
            check_parts(checkpoint, name)


@pytest.mark.parametrize("symmetric", [False, True])
def test_8_bits_whose_groups_are_in_any_order_are_multiplied_out_as_their_reference_does(
    tmp_path: Path, symmetric: bool
) -> None:
    """AutoGPTQ and GPTQModel dequantise in float16: scales[g_idx] * (codes - zeros[g_idx])."""
    model = random_model(64, act_order=True, bits=8, symmetric=symmetric)
    checkpoint = open_checkpoint(write_packed(tmp_path, model, "gptq", 64, bits=8, desc_act=True))

    for name, layer in model.layers.items():
        steps = (layer.codes - layer.zeros[layer.groups]).astype(np.float16)
        reference = (layer.scales[layer.groups] * steps).T
        assert checkpoint.tensors[f"{name}.weight"].kind == "Q_F16"
        np.testing.assert_array_equal(dequantize(checkpoint.tensors[f"{name}.weight"]), reference.astype(np.float32))
        check_parts(checkpoint, f"{name}.weight")


@pytest.mark.skipif(not cpu.AVAILABLE, reason="the torch path computes the dequantised weights themselves")
@pytest.mark.parametrize("symmetric", [False, True])
def test_a_decoder_of_8_bits_gives_the_logits_of_its_dequantised_weights(tmp_path: Path, symmetric: bool) -> None:
    model = random_model(64, bits=8, symmetric=symmetric)
    # Scales for 4 bits would make weights, and logits, sixteen times too large.
    layers = {name: replace(layer, scales=layer.scales / np.float16(16)) for name, layer in model.layers.items()}
    model = replace(model, layers=layers)
    packed = write_packed(tmp_path / "packed", model, "gptq", 64, bits=8)
    exact = logits(write_folder(tmp_path / "plain", model.weights()), "float32", tmp_path / "cache")

    bounds: dict[Compute, float] = {"float32": 1e-5, "int4": 1e-2, "int4-int8": 3e-2}
    for compute, bound in bounds.items():
        error = np.abs(logits(packed, compute, tmp_path / "cache") - exact).max()
        assert error <= bound * np.abs(exact).max(), compute


def logits(folder: Path, compute: Compute, cache: Path) -> np.ndarray[Any, np.dtype[np.float32]]:
    tokens = [3, 17, 40, 5, 5, 21, 0, 47, 9, 30, 12, 33, 8, 2, 46, 19]
    ((_, given),) = window_outputs(Side(str(folder), Variant(compute, "float32")), cache, [tokens])
    return given


# What is rounded: by int4 panels minima to float16; by int4-int8 also activations to 8 bits. Interleaved groups are
# bfloat16 under the first and 8 bits under the second.
BOUNDS: dict[Compute, tuple[float, float]] = {"float32": (1e-5, 1e-5), "int4": (2e-3, 1e-2), "int4-int8": (3e-2, 3e-2)}


@pytest.mark.skipif(not cpu.AVAILABLE, reason="the torch path computes the dequantised weights themselves")
@pytest.mark.parametrize("form", ["awq", "gptq", "gptq with act-order"])
def test_a_decoder_gives_the_logits_of_its_dequantised_weights(tmp_path: Path, form: str) -> None:
    ordered = form == "gptq with act-order"
    model: Model = random_model(64, act_order=ordered)
    packed = write_packed(tmp_path / "packed", model, form.split()[0], 64)
    weights = model.weights()
    if ordered:
        weights |= {name: weights[name].astype(np.float16) for name in weights if "proj" in name}
    plain = write_folder(tmp_path / "plain", weights)
    exact = logits(plain, "float32", tmp_path / "cache")

    for compute, bounds in BOUNDS.items():
        error = np.abs(logits(packed, compute, tmp_path / "cache") - exact).max()
        assert error <= bounds[ordered] * np.abs(exact).max(), compute


def test_a_layers_bias_of_zeros_is_ignored_and_any_other_is_refused(tmp_path: Path) -> None:
    model = random_model(128)
    tensors = packed_tensors(model, "gptq")
    bias = "model.layers.0.mlp.down_proj.bias"
    config = quantization_config("gptq", 128)

    ignored = open_checkpoint(write_folder(tmp_path / "a", tensors | {bias: np.zeros(128, np.float16)}, config))
    assert bias not in ignored.tensors
    with pytest.raises(ModelFileError, match=r"does not use, so its answers would be wrong: .*down_proj\.bias"):
        open_checkpoint(write_folder(tmp_path / "b", tensors | {bias: np.ones(128, np.float16)}, config))


@pytest.mark.parametrize(
    ("config", "reason"),
    [
        ({"quant_method": "gptq", "bits": 3, "group_size": 64}, "bits 3, .* is not supported; supported are 4-bit AWQ"),
        ({"quant_method": "gptq", "bits": 4, "dynamic": {".*down.*": {"bits": 8}}}, "dynamic = .*'bits': 8"),
        ({"quant_method": "gptq", "bits": 4, "rotation": "hadamard"}, "rotation = 'hadamard' of its quantization"),
        ({"quant_method": "awq", "bits": 8, "group_size": 64}, "bits 8, .* is not supported; supported are 4-bit AWQ"),
        ({"quant_method": "awq", "bits": 4, "group_size": 64, "version": "gemv"}, "version 'gemv'"),
        ({"quant_method": "gptq", "bits": 4, "group_size": 0}, "group_size 0"),
        ({"quant_method": "gptq", "bits": 4, "group_size": 64, "checkpoint_format": "marlin"}, "'marlin'"),
        ({"quant_method": "fp8", "fmt": "e5m2"}, "fmt 'e5m2'"),
        ({"quant_method": ["awq"]}, "is not understood"),
    ],
)
def test_another_quantisation_is_refused_by_its_settings(tmp_path: Path, config: dict[str, Any], reason: str) -> None:
    folder = write_folder(tmp_path, packed_tensors(random_model(64), "awq"), config)
    with pytest.raises(ModelFileError, match=reason):
        open_checkpoint(folder)


NAME = "model.layers.0.self_attn.k_proj"


@pytest.mark.parametrize(
    ("part", "array", "reason"),
    [
        ("scales", None, rf"holds '{NAME}\.qweight' but no '{NAME}\.scales'"),
        ("scales", np.ones((2, 64), np.float32), r"is F32 \(2, 64\); .* have F16 \(2, 64\)"),
        ("qzeros", np.ones((2, 4), np.int32), r"is I32 \(2, 4\); .* have I32 \(2, 8\)"),
        ("qweight", np.ones((8, 64), np.int32), r"'.*k_proj\.qzeros' is I32 \(2, 8\); .* have I32 \(1, 8\)"),
        ("qweight", np.ones(64, np.int32), "two dimensions are needed"),
        ("g_idx", np.full(128, 2, np.int32), "names groups outside of its 2"),
        ("g_idx", np.full(128, -1, np.int32), "names groups outside of its 2"),
    ],
)
def test_parts_that_do_not_fit_together_are_refused(
    tmp_path: Path, part: str, array: np.ndarray[Any, Any] | None, reason: str
) -> None:
    tensors = packed_tensors(random_model(64), "gptq")
    if array is None:
        del tensors[f"{NAME}.{part}"]
    else:
        tensors[f"{NAME}.{part}"] = array
    folder = write_folder(tmp_path, tensors, quantization_config("gptq", 64))
    with pytest.raises(ModelFileError, match=reason):
        dequantize(open_checkpoint(folder).tensors[f"{NAME}.weight"])


def test_layers_without_group_indices_have_successive_groups(tmp_path: Path) -> None:
    model = random_model(32)
    tensors = {name: array for name, array in packed_tensors(model, "gptq").items() if not name.endswith("g_idx")}
    folder = write_folder(tmp_path, tensors, quantization_config("gptq", 32))

    weight = dequantize(open_checkpoint(folder).tensors[f"{NAME}.weight"])

    np.testing.assert_array_equal(weight, model.layers[NAME].weight)
