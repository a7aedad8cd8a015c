"""A kNN memory over embeddings: verified outcomes of similar prompts, and the novelty of a prompt.

Novelty is a prompt's relative Mahalanobis distance to the known domains, as a quantile among known prompts.
"""

from bisect import bisect_left
from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from classifier.encoders.static_encoder import dequantise, quantise
from classifier.native import KERNELS

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
        return len(self.quadratic)

    def distance(self, embeddings: Float) -> Float:
        """Return the relative distances [n] of `embeddings` [n, d]; may be negative."""
        own = np.einsum("nd,nd->n", embeddings @ self.quadratic, embeddings)
        found: Float = own + (embeddings @ self.linear.T + self.constant).min(axis=1)
        return found

    def shares(self, embeddings: Float) -> Float:
        """Return the novelty [n] in [0, 1]: the share of known prompts that are nearer; 1 without a known word."""
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


NEIGHBOURS = 64
NOVELTY_NEIGHBOURS = 8
SHARPNESS = 10.0  # weight of a neighbour: exp(SHARPNESS x (cosine - 1))
PRIOR_WEIGHT = 0.05  # weight of the base rate, in neighbours at cosine 1; dominates where there are no near neighbours


class Neighbourhood(NamedTuple):
    """`logits` float32 [n, heads]: rate of each outcome among the neighbours; `distance` [n]: mean cosine distance to
    the eight nearest; `novelty` [n] in [0, 1]: share of known prompts that are nearer to the known domains, or, in a
    memory without domains, share of remembered prompts that are closer to their own neighbours."""

    logits: Float
    distance: Float
    novelty: Float


class Nearby(NamedTuple):
    """The neighbourhood of one prompt: `logits` float32 [heads], `novelty` in [0, 1]; as in `Neighbourhood`."""

    logits: Float
    novelty: float


class Memory:
    """A few thousand remembered prompts. Rows are embeddings of unit length, rounded as an artefact stores them; a
    look-up is one matrix product."""

    def __init__(
        self,
        vectors: Float,
        labels: Float,
        weights: Float,
        base_rates: Float,
        distances: Float,
        novelty: Novelty | None = None,
    ) -> None:
        """`vectors` [m, dim]; `labels` [m, heads] in [0, 1], NaN unobserved; `weights` [m]; `base_rates` [heads];
        `distances` [m] ascending: every remembered prompt's own mean distance to its nearest neighbours."""
        if not len(vectors) == len(labels) == len(weights) == len(distances):
            raise ValueError(f"memory: {len(vectors)} vectors, {len(labels)} labels, {len(weights)} weights differ")
        self._values, self._scale = quantise(vectors)
        self.vectors, self.labels, self.weights = dequantise(self._values, self._scale), labels, weights
        self.base_rates, self.distances, self.novelty = base_rates, distances, novelty
        self._prior = PRIOR_WEIGHT * base_rates
        self._sorted_distances: list[float] = distances.tolist()
        seen = ~np.isnan(labels) * weights[:, None]
        self._evidence = np.hstack([np.nan_to_num(labels) * seen, seen]).astype(np.float32)
        self._native = self._for_kernels() if KERNELS is not None else None

    @classmethod
    def build(
        cls, vectors: Float, labels: Float, weights: Float, base_rates: Float, novelty: Novelty | None = None
    ) -> "Memory":
        """Build the memory of these rows, and compute every row's own novelty distance."""
        unsorted = cls(vectors, labels, weights, base_rates, np.zeros(len(vectors), np.float32))
        distance = unsorted.look_up(vectors, own_rows=np.arange(len(vectors))).distance
        return cls(vectors, labels, weights, base_rates, np.sort(distance), novelty)

    def __len__(self) -> int:
        return len(self.vectors)

    def look_up(self, embeddings: Float, own_rows: npt.NDArray[np.intp] | None = None) -> Neighbourhood:
        """Return the neighbourhoods of `embeddings` [n, dim]. `own_rows` [n]: each prompt's own row here, or -1; it is
        left out, so that a training row does not find its own label."""
        if KERNELS is not None:
            return self._look_up_each(embeddings, own_rows)
        similarity = embeddings @ self.vectors.T
        if own_rows is not None:
            mine = np.flatnonzero(own_rows >= 0)
            similarity[mine, own_rows[mine]] = -1.0
        k = min(NEIGHBOURS, len(self))
        nearest = np.argpartition(similarity, len(self) - k, axis=1)[:, len(self) - k :]
        cosine = similarity[np.arange(len(similarity))[:, None], nearest]
        evidence = np.einsum("nk,nkh->nh", np.exp(SHARPNESS * (cosine - 1.0)), self._evidence[nearest])
        few = min(NOVELTY_NEIGHBOURS, k)
        distance = 1.0 - np.sort(cosine, axis=1)[:, k - few :].sum(axis=1) / few
        novelty = np.searchsorted(self.distances, distance) / max(len(self), 1)
        novelty = novelty.astype(np.float32) if self.novelty is None else self.novelty.shares(embeddings)
        return Neighbourhood(self._logits(evidence), distance.astype(np.float32), novelty)

    def look_up_one(self, embedding: Float) -> Nearby:
        """Return the neighbourhood of one `embedding` [dim]: `look_up` optimised for the request path."""
        if KERNELS is not None:
            logits = np.empty(len(self.base_rates), np.float32)
            nearer = KERNELS.look_up(self._native, embedding, -1, logits)[1]
            return Nearby(logits, nearer if self.novelty is None else self.novelty.share(embedding))
        similarity = self.vectors @ embedding
        rest = max(len(self) - NEIGHBOURS, 0)
        nearest = similarity.argpartition(rest)[rest:]
        cosine = similarity.take(nearest)
        evidence = np.exp(SHARPNESS * (cosine - 1.0)) @ self._evidence.take(nearest, axis=0)
        cosine.sort()
        few = cosine[-NOVELTY_NEIGHBOURS:]
        distance = float(1.0 - few.sum() / len(few))
        nearer = bisect_left(self._sorted_distances, distance) / max(len(self), 1)
        return Nearby(self._logits(evidence), nearer if self.novelty is None else self.novelty.share(embedding))

    def _look_up_each(self, embeddings: Float, own_rows: npt.NDArray[np.intp] | None) -> Neighbourhood:
        n = len(embeddings)
        logits = np.empty((n, len(self.base_rates)), np.float32)
        own = [-1] * n if own_rows is None else own_rows.tolist()
        given = zip(np.ascontiguousarray(embeddings, np.float32), own, logits, strict=True)
        found = [KERNELS.look_up(self._native, embedding, row, into) for embedding, row, into in given]
        distance, nearer = np.array(found, np.float32).reshape(n, 2).T
        return Neighbourhood(logits, distance, nearer if self.novelty is None else self.novelty.shares(embeddings))

    def _for_kernels(self) -> object:
        """Return the memory in the kernels' layout: rows of int8, a quarter of the memory to read."""
        numbers = (self._scale, self._evidence, self._prior, self.distances)
        packed = [np.ascontiguousarray(part, np.float32) for part in numbers]
        return KERNELS.make_memory(self._values, *packed, NEIGHBOURS, NOVELTY_NEIGHBOURS, SHARPNESS, PRIOR_WEIGHT)

    def _logits(self, evidence: Float) -> Float:
        """Return rates as logits [..., heads]; `evidence` [..., 2 x heads]: weights of good outcomes, then of all."""
        heads = len(self.base_rates)
        rate = (evidence[..., :heads] + self._prior) / (evidence[..., heads:] + PRIOR_WEIGHT)
        rate = np.minimum(np.maximum(rate, 1e-4), 1 - 1e-4)
        logits: Float = np.log(rate / (1 - rate)).astype(np.float32, copy=False)
        return logits
