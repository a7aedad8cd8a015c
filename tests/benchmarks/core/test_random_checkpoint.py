"""Random models have true shapes, sane activations and the same numbers every time."""

import msgspec
import numpy as np
import pytest

from benchmarks.core.random_checkpoint import SHAPES, RandomCheckpoint, RandomKind
from inference_core.errors import ModelFileError
from inference_core.loaders.decoder_tensors import decoder_tensors
from inference_core.loaders.packed_tensor import dequantize

SMALL = msgspec.structs.replace(
    SHAPES["llama-3.2-1b"], vocab_size=96, hidden_size=512, intermediate_size=1024, num_layers=1, num_heads=8
)


@pytest.mark.parametrize(
    ("name", "billions"),
    [("llama-3.2-1b", 1.24), ("llama-3.2-3b", 3.21), ("llama-3.1-8b", 8.03), ("llama-3.3-70b", 70.6)],
)
def test_shapes_have_as_many_parameters_as_their_names_say(name: str, billions: float) -> None:
    parameters = sum(int(np.prod(shape)) for shape in decoder_tensors(SHAPES[name]).values())
    assert parameters == pytest.approx(billions * 1e9, rel=0.01)


@pytest.mark.parametrize("kind", ["Q4_0", "Q8_0", "BF16"])
def test_a_product_keeps_the_size_of_what_it_is_given(kind: RandomKind) -> None:
    tensor = RandomCheckpoint(SMALL, kind).tensors["model.layers.0.mlp.gate_proj.weight"]
    weight = dequantize(tensor)
    assert weight.shape == tensor.shape == (1024, 512)
    assert weight.std() * np.sqrt(512) == pytest.approx(1.0, abs=0.25)
    assert abs(weight.mean()) < 0.12 * weight.std()


def test_the_same_seed_gives_the_same_numbers_and_tensors_differ() -> None:
    one, same, other = (
        RandomCheckpoint(SMALL, "Q4_0"),
        RandomCheckpoint(SMALL, "Q4_0"),
        RandomCheckpoint(SMALL, "Q4_0", 1),
    )
    name = "model.layers.0.self_attn.q_proj.weight"
    assert np.array_equal(one.tensors[name].data, same.tensors[name].data)
    assert not np.array_equal(one.tensors[name].data, other.tensors[name].data)
    assert not np.array_equal(one.tensors[name].data, one.tensors["model.layers.0.self_attn.o_proj.weight"].data)
    assert one.fingerprint == same.fingerprint != other.fingerprint


def test_rows_that_are_no_whole_number_of_blocks_are_refused() -> None:
    with pytest.raises(ModelFileError, match="rows of 100 weights are no whole number of Q4_0 blocks"):
        RandomCheckpoint(msgspec.structs.replace(SMALL, hidden_size=100), "Q4_0").tensors  # noqa: B018
