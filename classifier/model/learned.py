"""What a retraining learned of all prompts of a catalogue, and that replaces the table by class: `Manifest.levels`.

The head over all keys gives P(as good) by tier from the prompt's classes, embedding and surface features: its logits
are the prior's plus a linear function. The class model moves the classes that ship by what labels say: its logits are
those of the shipped classes plus a linear function of the same inputs; the encoder, the n-grams and the trees stay
those that ship. `classifier.training.fitting.class_refit` fits both.
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
        p_good: Float = (1.0 / (1.0 + np.exp(-logits))).astype(np.float32, copy=False)
        return p_good

    @property
    def shape(self) -> tuple[int, int]:
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
    combined: Float = np.concatenate((classes, embedding / length, surface / size), axis=-1)
    return combined


def prior_logits(classes: Float, prior: Float) -> Float:
    """Return [..., tiers - 1]: the logits of P(as good) by class, at most those of 0.01 and 0.99."""
    p = np.minimum(np.maximum(classes @ prior, np.float32(_LEAST_PRIOR)), np.float32(1 - _LEAST_PRIOR))
    logits: Float = np.log(p / (1 - p))
    return logits


# Bound on the shipped probabilities, so that their logits are finite.
_LEAST_CLASS = 1e-4


@dataclass(frozen=True)
class RefittedClasses:
    """float32 `table` [4, tiers - 1], P(as good) by class, and `weights` [4 + d + f, 4] of the inputs."""

    table: Float
    weights: Float

    def classes(self, classes: Float, embedding: Float, surface: Float) -> Float:
        """Return P of the classes [..., 4] of prompts with these shipped `classes` [..., 4], `embedding` [..., d] of at
        most unit length and standardised `surface` [..., f]."""
        logits = class_logits(classes) + inputs(classes, embedding, surface) @ self.weights
        exponentials = np.exp(logits - logits.max(axis=-1, keepdims=True))
        p: Float = (exponentials / exponentials.sum(axis=-1, keepdims=True)).astype(np.float32, copy=False)
        return p

    def p(self, classes: Float, embedding: Float, surface: Float) -> Float:
        """Return P(as good) [..., tiers - 1] of prompts, given as for `classes`."""
        p_good: Float = self.classes(classes, embedding, surface) @ self.table
        return p_good

    @property
    def shape(self) -> tuple[int, int]:
        """The numbers of inputs and of weaker tiers."""
        return len(self.weights), self.table.shape[1]

    def tensors(self) -> dict[str, npt.NDArray[np.generic]]:
        """Return the parameters by name, float32, as safetensors stores them: without gaps."""
        named = {"refitted_classes.table": self.table, "refitted_classes.weights": self.weights}
        return {name: np.ascontiguousarray(array, np.float32) for name, array in named.items()}

    @classmethod
    def from_tensors(cls, tensors: Tensors) -> "RefittedClasses | None":
        """Rebuild the classes; None where there are none. Raises KeyError for a missing one of two tensors, ValueError
        for shapes that are of no four classes."""
        if "refitted_classes.table" not in tensors and "refitted_classes.weights" not in tensors:
            return None
        table, weights = (tensors[f"refitted_classes.{name}"].astype(np.float32) for name in ("table", "weights"))
        if table.ndim != 2 or weights.ndim != 2 or len(table) != 4 or weights.shape[1] != 4:
            raise ValueError(f"refitted classes: table {table.shape} and weights {weights.shape} are not of four")
        return cls(table, weights)


def class_logits(classes: Float) -> Float:
    """Return the logarithms [..., 4] of P of the shipped classes, which are at least those of 0.0001."""
    logs: Float = np.log(np.maximum(classes, np.float32(_LEAST_CLASS)))
    return logs


# Either gives P(as good) by tier, and one tenant moves it by at most `classifier.local.cells.LABELS_BOUND`.
LearnedHead = CatalogueHead | RefittedClasses


def learned_head(tensors: Tensors) -> LearnedHead | None:
    """Rebuild what was learned; None where nothing was. Raises KeyError or ValueError for tensors that do not fit, or
    for two of them."""
    head, refitted = CatalogueHead.from_tensors(tensors), RefittedClasses.from_tensors(tensors)
    if head is not None and refitted is not None:
        raise ValueError("it has a head over all keys and refitted classes, of which one decides")
    return refitted if head is None else head
