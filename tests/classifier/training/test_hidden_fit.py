"""The layer above hidden states: what it learns, that it is cross-fitted, how it is stored."""

import numpy as np
import pytest

from classifier.encoders.hidden_state_encoder import KernelLayer
from classifier.registry.artefact import Tensors
from classifier.training.fitting.static_encoder import FittedLayer, fit_layer
from classifier.training.metrics.metrics import auc

HIDDEN, ROWS = 24, 600


def states(n: int, seed: int) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal((n, HIDDEN)).astype(np.float32) * 3 + 10


def fitted(labels: np.ndarray, seed: int = 0) -> FittedLayer:
    return fit_layer(states(len(labels), seed), labels.astype(np.float32), np.arange(len(labels)) % 5, dim=6)


def crossed(x: np.ndarray) -> np.ndarray:
    """An outcome that no linear layer can tell: whether two coordinates are on the same side."""
    return ((x[:, 0] > 10) == (x[:, 1] > 10)).astype(np.float64)


def test_it_tells_outcomes_that_no_linear_layer_can() -> None:
    layer = fitted(crossed(states(ROWS, 0))[:, None]).above
    new = states(ROWS, 1)
    score = np.array([one.word_logits[0] for one in layer.encodings(new)])
    assert auc(crossed(new), score)[0] > 0.7


def test_a_training_rows_logits_come_from_layers_that_did_not_see_it() -> None:
    chance = np.random.default_rng(3).integers(0, 2, (ROWS, 1)).astype(np.float64)
    found = fitted(chance)
    seen = np.array([one.word_logits[0] for one in found.above.encodings(states(ROWS, 0))])
    assert auc(chance[:, 0], seen)[0] > 0.9
    assert abs(auc(chance[:, 0], found.logits[:, 0])[0] - 0.5) < 0.1


def test_rows_without_an_outcome_teach_nothing_of_it() -> None:
    labels = np.stack([crossed(states(ROWS, 0)), np.full(ROWS, np.nan)], axis=1)
    labels[::3, 0] = np.nan
    with np.errstate(all="ignore"), pytest.warns(RuntimeWarning, match="empty"):
        found = fitted(labels)
    assert not found.above.weights[::3].any()
    assert not found.above.weights[:, 1].any()
    assert (found.logits[:, 1] == 0).all()  # unobserved: even odds


def test_a_stored_encoder_gives_bit_identical_encodings() -> None:
    layer = fitted(crossed(states(ROWS, 0))[:, None]).above
    again = KernelLayer.from_tensors(layer.tensors())
    new = np.concatenate([states(20, 1), np.zeros((1, HIDDEN), np.float32), np.full((1, HIDDEN), 1e6, np.float32)])
    for one, other in zip(layer.encodings(new), again.encodings(new), strict=True):
        assert (one.embedding == other.embedding).all()
        assert (one.word_logits == other.word_logits).all()
        assert np.isfinite(one.word_logits).all()
        assert np.linalg.norm(one.embedding) == pytest.approx(1)


def test_tensors_that_do_not_belong_together_are_refused() -> None:
    tensors: Tensors = fitted(crossed(states(ROWS, 0))[:, None]).above.tensors()
    with pytest.raises(ValueError, match="do not belong together"):
        KernelLayer.from_tensors({**tensors, "encoder.weights": tensors["encoder.weights"][:-1]})
    with pytest.raises(ValueError, match="do not belong together"):
        KernelLayer.from_tensors({**tensors, "encoder.dim": np.array([1000], np.int32)})
