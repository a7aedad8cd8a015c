"""The layer above hidden states: what it keeps of them, and how it is stored."""

import numpy as np
import numpy.typing as npt
import pytest

from classifier.encoders.hidden_state_encoder import PrincipalDirections
from classifier.training.fitting.static_encoder import fit_directions

Float = npt.NDArray[np.float32]
HIDDEN, ROWS, DIM = 24, 600, 3


def states(n: int, seed: int) -> Float:
    """States that differ in two directions most, and a little in all others."""
    rng = np.random.default_rng(seed)
    along = np.random.default_rng(9).standard_normal((2, HIDDEN))
    return (rng.standard_normal((n, 2)) @ along * 5 + rng.standard_normal((n, HIDDEN)) * 0.1 + 10).astype(np.float32)


def test_embeddings_keep_the_directions_in_which_states_differ_most() -> None:
    layer, new = fit_directions(states(ROWS, 0), dim=DIM), states(100, 1)
    standard = (new - layer.mean) / layer.scale
    whole = standard / np.linalg.norm(standard, axis=1, keepdims=True)
    kept = np.array(layer.encodings(new))
    assert kept.shape == (100, DIM)
    np.testing.assert_allclose(kept @ kept.T, whole @ whole.T, atol=0.1)


def test_a_stored_layer_gives_bit_identical_embeddings_of_unit_length() -> None:
    layer = fit_directions(states(ROWS, 0), dim=DIM)
    again = PrincipalDirections.from_tensors(layer.tensors())
    new = np.concatenate([states(20, 1), np.zeros((1, HIDDEN), np.float32), np.full((1, HIDDEN), 1e6, np.float32)])
    for one, other in zip(layer.encodings(new), again.encodings(new), strict=True):
        assert (one == other).all()
        assert np.linalg.norm(one) == pytest.approx(1)


def test_a_layer_of_an_earlier_release_gives_the_directions_of_its_embedding() -> None:
    wide, layer = fit_directions(states(ROWS, 0), dim=8), fit_directions(states(ROWS, 0), dim=DIM)
    stored = wide.tensors() | {"encoder.dim": np.array([DIM], np.int32)}
    new = states(20, 1)
    np.testing.assert_allclose(PrincipalDirections.from_tensors(stored).encodings(new), layer.encodings(new), atol=1e-5)


def test_tensors_that_do_not_belong_together_are_refused() -> None:
    tensors = fit_directions(states(ROWS, 0), dim=DIM).tensors()
    with pytest.raises(ValueError, match="do not belong together"):
        PrincipalDirections.from_tensors({**tensors, "encoder.scale": tensors["encoder.scale"][:-1]})
    with pytest.raises(ValueError, match="do not belong together"):
        PrincipalDirections.from_tensors({**tensors, "encoder.dim": np.array([1000], np.int32)})
