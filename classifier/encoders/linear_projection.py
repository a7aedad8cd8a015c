"""From the pooled state of a network to an encoding: a projection for the embedding, a linear layer for the logits."""

from collections.abc import Mapping

import numpy as np
import numpy.typing as npt

from classifier.encoders.static_encoder import Encoding

Float = npt.NDArray[np.float32]
Tensors = Mapping[str, npt.NDArray[np.generic]]

_NAMES = ("mean", "projection", "head_weight", "head_bias")


class PooledProjection:
    """`mean` [hidden]; `projection` [hidden, dim]; `head_weight` [hidden, heads]; `head_bias` [heads]; float32."""

    def __init__(self, mean: Float, projection: Float, head_weight: Float, head_bias: Float) -> None:
        """Raises `ValueError` for shapes that disagree."""
        if not len(mean) == len(projection) == len(head_weight) or head_weight.shape[1] != len(head_bias):
            raise ValueError(
                f"encoder: mean {mean.shape}, projection {projection.shape}, heads {head_weight.shape} and "
                f"{head_bias.shape} do not belong together"
            )
        self.mean, self.projection, self.head_weight, self.head_bias = mean, projection, head_weight, head_bias

    @property
    def dim(self) -> int:
        """Length of an embedding."""
        return int(self.projection.shape[1])

    def encodings(self, pooled: Float) -> list[Encoding]:
        """Convert pooled states [n, hidden] to embeddings of unit length and logits."""
        embedding = (pooled - self.mean) @ self.projection
        norm = np.sqrt((embedding * embedding).sum(axis=1, keepdims=True))
        embedding = np.divide(embedding, norm, out=np.zeros_like(embedding), where=norm > 1e-6)
        logits = pooled @ self.head_weight + self.head_bias
        return [Encoding(e, w) for e, w in zip(embedding, logits.astype(np.float32), strict=True)]

    def tensors(self) -> dict[str, npt.NDArray[np.generic]]:
        """Return the four tensors by name, float32."""
        return {f"encoder.{name}": np.asarray(getattr(self, name), np.float32) for name in _NAMES}

    @classmethod
    def from_tensors(cls, tensors: Tensors) -> "PooledProjection":
        """Rebuild the projection from `tensors`. Raises KeyError for a missing one, ValueError for shapes that
        disagree."""
        return cls(*(tensors[f"encoder.{name}"].astype(np.float32) for name in _NAMES))
