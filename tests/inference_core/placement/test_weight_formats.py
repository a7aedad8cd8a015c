"""Weights to the byte, against arithmetic by hand from the models' published shapes."""

import pytest

from inference_core.errors import MeshError
from inference_core.loaders.decoder_tensors import SHAPES, shape
from inference_core.parallel.mesh import Mesh, divide
from inference_core.placement.hardware import device
from inference_core.placement.weight_formats import (
    FORMATS,
    model_weights,
    preferred_format,
    rank_weights,
    split_units_of,
    weight_format,
)


def test_a_70b_model_has_70_55_billion_weights() -> None:
    """Per layer: q and o 8192 x 8192, k and v 1024 x 8192, three of 28672 x 8192."""
    weights = model_weights(shape("llama-3.3-70b"))

    assert weights.linear == 80 * (2 * 67_108_864 + 2 * 8_388_608 + 3 * 234_881_024) == 68_451_041_280
    assert weights.vocabulary == 2 * 128_256 * 8192
    assert weights.vectors == (2 * 80 + 1) * 8192
    assert weights.total == pytest.approx(70.55e9, rel=1e-3)


def test_its_awq_file_has_39_8_gb_and_the_8b_gptq_file_5_73_gb() -> None:
    assert model_weights(shape("llama-3.3-70b")).num_bytes(FORMATS["awq-int4"]) == 39_767_785_472
    eight = model_weights(shape("llama-3.1-8b"))
    assert eight.num_bytes(FORMATS["gptq-int4"]) == 3_625_975_808 + 2_101_346_304 + 532_480


@pytest.mark.parametrize(
    ("name", "billions"),
    [("smollm2-135m", 0.1345), ("llama-3.2-1b", 1.236), ("llama-3.2-3b", 3.213), ("mistral-7b", 7.248),
     ("qwen2.5-7b", 7.616), ("llama-3.1-8b", 8.030), ("qwen3-32b", 32.76), ("llama-3.1-405b", 405.9)],
)  # fmt: skip
def test_shapes_have_the_published_numbers_of_weights(name: str, billions: float) -> None:
    assert model_weights(shape(name)).total / 1e9 == pytest.approx(billions, rel=1e-3)


@pytest.mark.parametrize("name", ["llama-3.3-70b", "llama-3.2-3b", "qwen2.5-7b"])
@pytest.mark.parametrize("mesh", [Mesh(tensor=2), Mesh(tensor=4), Mesh(pipeline=4), Mesh(tensor=2, pipeline=2)])
def test_the_ranks_hold_all_linear_weights_once_and_norms_on_every_shard(name: str, mesh: Mesh) -> None:
    config = SHAPES[name]
    whole = model_weights(config)
    shares = divide(config, mesh, split_units_of(config, FORMATS["awq-int4"]))
    ranks = [rank_weights(config, share) for share in shares]

    assert sum(rank.linear for rank in ranks) == whole.linear
    twice = config.tie_embeddings and mesh.pipeline > 1
    assert sum(rank.vocabulary for rank in ranks) == whole.vocabulary * (2 if twice else 1)
    norms = (2 * config.num_layers + 1) * config.hidden_size
    biases = config.num_layers * (config.num_heads + 2 * config.num_kv_heads) * config.head_dim
    assert sum(rank.vectors for rank in ranks) == norms * mesh.tensor + biases * config.attention.qkv_bias


def test_devices_are_given_the_format_that_they_multiply_best() -> None:
    names = ("xeon-8480", "l4", "a100-80gb", "h100", "b200")
    assert [preferred_format(device(name)).name for name in names] == ["q4_k", "awq-int4", "awq-int4", "fp8", "fp8"]


def test_an_unknown_format_is_answered_with_the_known_ones() -> None:
    with pytest.raises(MeshError, match="no weight format 'int3'; known are float32, bfloat16"):
        weight_format("int3")
