"""The head over all keys of a catalogue: P(as good) by tier from the prompt's classes, embedding and surface features.

Its logits are the prior's plus a linear function (`classifier.local.head_fit` fits it).
"""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Float = npt.NDArray[np.float32]
Tensors = Mapping[str, npt.NDArray[np.generic]]

# Bound on the prior's probabilities, so that its logits are finite.
_LEAST_PRIOR = 0.01


@dataclass(frozen=True)
class CatalogueHead:
    """float32 `prior` [4, tiers - 1], P(as good) by class, and `weights` [4 + d + f, tiers - 1] of the inputs."""

    prior: Float
    weights: Float

    def p(self, classes: Float, embedding: Float, surface: Float) -> Float:
        """Return P(as good) [..., tiers - 1] of prompts of `classes` [..., 4] with `embedding` [..., d] of at most unit
        length and standardised `surface` [..., f]."""
        logits = prior_logits(classes, self.prior) + inputs(classes, embedding, surface) @ self.weights
        found: Float = (1.0 / (1.0 + np.exp(-logits))).astype(np.float32, copy=False)
        return found

    @property
    def shape(self) -> tuple[int, int]:
        """The numbers of inputs and of weaker tiers."""
        inputs_and_tiers: tuple[int, int] = self.weights.shape
        return inputs_and_tiers

    def tensors(self) -> dict[str, npt.NDArray[np.generic]]:
        """Return the parameters by name, float32, as safetensors stores them: without gaps."""
        named = {"catalogue_head.prior": self.prior, "catalogue_head.weights": self.weights}
        return {name: np.ascontiguousarray(array, np.float32) for name, array in named.items()}

    @classmethod
    def from_tensors(cls, tensors: Tensors) -> "CatalogueHead | None":
        """Rebuild the head; None where there is none. Raises KeyError for a missing one of two tensors, ValueError
        for shapes that disagree."""
        if "catalogue_head.prior" not in tensors and "catalogue_head.weights" not in tensors:
            return None
        prior, weights = (tensors[f"catalogue_head.{name}"].astype(np.float32) for name in ("prior", "weights"))
        if prior.shape != (4, weights.shape[-1]) or weights.ndim != 2:
            raise ValueError(f"catalogue head: prior {prior.shape} and weights {weights.shape} do not agree")
        return cls(prior, weights)


def inputs(classes: Float, embedding: Float, surface: Float) -> Float:
    """Return [..., 4 + d + f]: the classes, the embedding, and the features; each of at most unit length."""
    features = surface.shape[-1]
    size = np.sqrt(np.maximum((surface * surface).sum(axis=-1, keepdims=True), np.float32(features)))
    length = np.sqrt(np.maximum((embedding * embedding).sum(axis=-1, keepdims=True), np.float32(1)))
    found: Float = np.concatenate((classes, embedding / length, surface / size), axis=-1)
    return found


def prior_logits(classes: Float, prior: Float) -> Float:
    """Return [..., tiers - 1]: the logits of P(as good) by class, at most those of 0.01 and 0.99."""
    p = np.minimum(np.maximum(classes @ prior, np.float32(_LEAST_PRIOR)), np.float32(1 - _LEAST_PRIOR))
    found: Float = np.log(p / (1 - p))
    return found
