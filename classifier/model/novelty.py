"""How unlike the known domains a prompt is: its relative Mahalanobis distance, as a share of known prompts."""

from bisect import bisect_left
from collections.abc import Mapping

import numpy as np
import numpy.typing as npt

Float = npt.NDArray[np.float32]
Tensors = Mapping[str, npt.NDArray[np.generic]]
_NAMES = ("quadratic", "linear", "constant", "distances")


class Novelty:
    """Distance to the nearest of k known domains less the distance to all known prompts together, each in units of its
    own spread: what is odd about every prompt counts in both and cancels (Ren et al. 2021, "A simple fix to
    Mahalanobis distance for improving near-OOD detection"). Multiplied out, it is one quadratic form and k linear ones.

    `quadratic` [d, d], `linear` [k, d], `constant` [k]; `distances` [m] ascending: of prompts that trained nothing.
    """

    def __init__(self, quadratic: Float, linear: Float, constant: Float, distances: Float) -> None:
        d = len(quadratic)
        if quadratic.shape != (d, d) or linear.shape != (len(constant), d) or not len(constant) or not len(distances):
            raise ValueError(f"novelty: quadratic {quadratic.shape}, linear {linear.shape} and {len(constant)} differ")
        self.quadratic, self.linear, self.constant, self.distances = quadratic, linear, constant, distances
        self._ascending: list[float] = distances.tolist()

    @property
    def dim(self) -> int:
        """Length of the embeddings that it takes."""
        return len(self.quadratic)

    def distance(self, embeddings: Float) -> Float:
        """Relative distances [n] of `embeddings` [n, d]; may be negative."""
        own = np.einsum("nd,nd->n", embeddings @ self.quadratic, embeddings)
        found: Float = own + (embeddings @ self.linear.T + self.constant).min(axis=1)
        return found

    def shares(self, embeddings: Float) -> Float:
        """Novelty [n] in [0, 1]: share of the known prompts that are nearer; 1 for a prompt without a known word."""
        nearer = np.searchsorted(self.distances, self.distance(embeddings)) / len(self.distances)
        return np.where(embeddings.any(axis=1), nearer, 1.0).astype(np.float32)

    def share(self, embedding: Float) -> float:
        """The novelty of one `embedding` [d]."""
        # Not any() and min(): around one small vector numpy's wrappers would take longer than the arithmetic.
        if not float(embedding @ embedding):
            return 1.0
        nearest = np.minimum.reduce(self.linear @ embedding + self.constant)
        distance = float(embedding @ (self.quadratic @ embedding) + nearest)
        return bisect_left(self._ascending, distance) / len(self._ascending)

    def tensors(self) -> dict[str, npt.NDArray[np.generic]]:
        """The parameters by name, float32."""
        return {f"novelty.{name}": np.asarray(getattr(self, name), np.float32) for name in _NAMES}

    @classmethod
    def from_tensors(cls, tensors: Tensors) -> "Novelty | None":
        """What `tensors` gave; None where an artefact has none. Raises KeyError or ValueError for a part of it."""
        if "novelty.quadratic" not in tensors:
            return None
        return cls(*(tensors[f"novelty.{name}"].astype(np.float32) for name in _NAMES))
