"""Kinds of prompts by their embeddings: spherical k-means over an artefact's memory (Dhillon and Modha 2001), in numpy.

They follow from the artefact alone, so that every process and every replay finds the same ones.
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from classifier.memory import Memory

Float = npt.NDArray[np.float32]

CLUSTERS = 8
_ROUNDS = 25


@dataclass(frozen=True)
class Clusters:
    """`centres` float32 [k, dim] of unit length."""

    centres: Float

    @classmethod
    def of(cls, memory: Memory, count: int = CLUSTERS, seed: int = 0) -> "Clusters":
        """At most `count` clusters of what `memory` remembers; the same memory gives the same ones."""
        vectors = memory.vectors
        centres = _spread(vectors, min(count, len(vectors)), np.random.default_rng(seed))
        for _ in range(_ROUNDS):
            nearest = np.argmax(vectors @ centres.T, axis=1)
            sums = np.zeros_like(centres)
            np.add.at(sums, nearest, vectors)
            length = np.linalg.norm(sums, axis=1, keepdims=True)
            moved = np.where(length > 1e-6, sums / np.maximum(length, 1e-6), centres).astype(np.float32)
            if np.array_equal(moved, centres):
                break
            centres = moved
        return cls(centres)

    def nearest(self, embeddings: Float) -> npt.NDArray[np.intp]:
        """The cluster [n] of each embedding [n, dim]."""
        found: npt.NDArray[np.intp] = np.argmax(embeddings @ self.centres.T, axis=1)
        return found


def _spread(vectors: Float, count: int, rng: np.random.Generator) -> Float:
    """First centres by k-means++ (Arthur and Vassilvitskii 2007)."""
    chosen = [int(rng.integers(len(vectors)))]
    while len(chosen) < count:
        distance = np.maximum(1.0 - (vectors @ vectors[chosen].T).max(axis=1), 0.0).astype(np.float64)
        total = float(distance.sum())
        chosen.append(int(rng.choice(len(vectors), p=distance / total) if total > 0 else rng.integers(len(vectors))))
    return vectors[chosen].copy()
