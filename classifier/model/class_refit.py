"""The class model of a catalogue: the classes that ship, moved by what its labels say, and P(as good) by class.

Their logits are those of the shipped classes plus a linear function of the same inputs as the head's over all keys
(`classifier.training.fitting.class_refit` fits it). The encoder, the n-grams and the trees stay those that ship.
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from classifier.model.catalogue_head import Tensors, inputs

Float = npt.NDArray[np.float32]

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
        found = np.exp(logits - logits.max(axis=-1, keepdims=True))
        p: Float = (found / found.sum(axis=-1, keepdims=True)).astype(np.float32, copy=False)
        return p

    def p(self, classes: Float, embedding: Float, surface: Float) -> Float:
        """Return P(as good) [..., tiers - 1] of prompts, given as for `classes`."""
        found: Float = self.classes(classes, embedding, surface) @ self.table
        return found

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
    found: Float = np.log(np.maximum(classes, np.float32(_LEAST_CLASS)))
    return found
