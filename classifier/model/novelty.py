"""Novelty of a prompt: its relative Mahalanobis distance to the known domains, as a quantile among known prompts."""

from bisect import bisect_left
from collections.abc import Mapping

import numpy as np
import numpy.typing as npt

Float = npt.NDArray[np.float32]
Tensors = Mapping[str, npt.NDArray[np.generic]]
_NAMES = ("quadratic", "linear", "constant", "distances")


class Novelty:
    """Distance to the nearest of k known domains minus the distance to all known prompts together, each in units of its
    own spread: deviations shared by all prompts cancel (Ren et al. 2021, "A simple fix to Mahalanobis distance for
    improving near-OOD detection"). Multiplied out, it is one quadratic form and k linear ones.

    `quadratic` [d, d], `linear` [k, d], `constant` [k]; `distances` [m] ascending: of held-out prompts.
    """

    def __init__(self, quadratic: Float, linear: Float, constant: Float, distances: Float) -> None:
        d = len(quadratic)
        if quadratic.shape != (d, d) or linear.shape != (len(constant), d) or not len(constant) or not len(distances):
            raise ValueError(f"novelty: quadratic {quadratic.shape}, linear {linear.shape} and {len(constant)} differ")
        self.quadratic, self.linear, self.constant, self.distances = quadratic, linear, constant, distances
        self._ascending: list[float] = distances.tolist()

    @property
    def dim(self) -> int:
        """The length of the embeddings."""
        return len(self.quadratic)

    def distance(self, embeddings: Float) -> Float:
        """Return the relative distances [n] of `embeddings` [n, d]; may be negative."""
        own = np.einsum("nd,nd->n", embeddings @ self.quadratic, embeddings)
        found: Float = own + (embeddings @ self.linear.T + self.constant).min(axis=1)
        return found

    def shares(self, embeddings: Float) -> Float:
        """Return the novelty [n] in [0, 1]: share of the known prompts that are nearer; 1 for a prompt without a known
        word."""
        nearer = np.searchsorted(self.distances, self.distance(embeddings)) / len(self.distances)
        return np.where(embeddings.any(axis=1), nearer, 1.0).astype(np.float32)

    def share(self, embedding: Float) -> float:
        """Return the novelty of one `embedding` [d]."""
        # Not any() and min(): for one small vector numpy's wrappers take longer than the arithmetic.
        if not float(embedding @ embedding):
            return 1.0
        nearest = np.minimum.reduce(self.linear @ embedding + self.constant)
        distance = float(embedding @ (self.quadratic @ embedding) + nearest)
        return bisect_left(self._ascending, distance) / len(self._ascending)

    def tensors(self) -> dict[str, npt.NDArray[np.generic]]:
        """Return the parameters by name, float32."""
        return {f"novelty.{name}": np.asarray(getattr(self, name), np.float32) for name in _NAMES}

    @classmethod
    def from_tensors(cls, tensors: Tensors) -> "Novelty | None":
        """Rebuild from `tensors`; None if an artefact has none. Raises KeyError or ValueError for incomplete ones."""
        if "novelty.quadratic" not in tensors:
            return None
        return cls(*(tensors[f"novelty.{name}"].astype(np.float32) for name in _NAMES))
