"""The trained layer over an encoded turn: one calibrated linear head per outcome."""

from collections.abc import Mapping

import numpy as np
import numpy.typing as npt

from classifier.native import KERNELS

Float = npt.NDArray[np.float32]
Tensors = Mapping[str, npt.NDArray[np.generic]]

CLIP = 5.0  # standard deviations; outliers must not extrapolate
_NAMES = ("mean", "scale", "coef", "bias")


class Heads:
    """Parameters for h outcomes over n inputs: surface features, embedding, word logits [h], neighbourhood logits [h].

    The word and neighbourhood logits of training rows are made without the row itself (cross-fitted; its own memory row
    left out), so that training matches serving. Each head sees both for every outcome. `mean`, `scale` [n] standardise
    the inputs; `coef` [n, h] and `bias` [h] give the logits.
    """

    def __init__(self, mean: Float, scale: Float, coef: Float, bias: Float) -> None:
        if not mean.shape == scale.shape == coef.shape[:1] or coef.shape[1:] != bias.shape:
            raise ValueError(
                f"heads: mean {mean.shape}, scale {scale.shape}, coef {coef.shape}, bias {bias.shape} do not agree"
            )
        self.mean, self.scale, self.coef, self.bias = mean, scale, coef, bias
        self._inverse_scale = (1.0 / scale).astype(np.float32)
        self._first = coef[:, 0].copy()
        self._native = self._for_kernels() if KERNELS is not None else None

    def design(self, features: Float, embedding: Float, word_logits: Float, neighbourhood_logits: Float) -> Float:
        """Return the standardised inputs [..., n]; the arguments' leading axes agree."""
        standard = np.concatenate((features, embedding, word_logits, neighbourhood_logits), axis=-1)
        standard -= self.mean
        standard *= self._inverse_scale
        # Twice as fast as np.clip on one row.
        inputs: Float = np.minimum(np.maximum(standard, -CLIP, out=standard), CLIP, out=standard)
        return inputs

    def logits(self, design: Float) -> Float:
        """Return the calibrated logits [..., h] of the outcomes."""
        logits: Float = design @ self.coef
        logits += self.bias
        return logits

    def explained(
        self, features: Float, embedding: Float, word_logits: Float, neighbourhood_logits: Float, most: int
    ) -> tuple[Float, list[tuple[int, float]]]:
        """Return the calibrated logits [h] of one prompt and the `most` largest additive parts of the first logit,
        relative to an average prompt, largest first: (i, effect) for feature i, or for the embedding, the word logits
        and the neighbourhood as wholes, numbered after the features."""
        given = (features, embedding, word_logits, neighbourhood_logits)
        if KERNELS is not None:
            logits = np.empty(len(self.bias), np.float32)
            return logits, KERNELS.apply_heads(self._native, *given, logits, most)
        design = self.design(*given)
        parts, known = design * self._first, len(features)
        # At most `most` features can be among the largest parts.
        largest = np.abs(parts[:known]).argsort()[-most:]
        effects = list(zip(largest.tolist(), parts.take(largest).tolist(), strict=True))
        wholes = np.array([known, known + len(embedding), known + len(embedding) + len(word_logits)])
        effects += enumerate(np.add.reduceat(parts, wholes).tolist(), start=known)
        effects.sort(key=_size, reverse=True)
        return self.logits(design), effects[:most]

    def _for_kernels(self) -> object:
        """Return the heads in the kernels' layout."""
        parts = (self.mean, self._inverse_scale, self.coef, self.bias)
        return KERNELS.make_heads(*(np.ascontiguousarray(part, np.float32) for part in parts), CLIP)

    def tensors(self) -> dict[str, npt.NDArray[np.generic]]:
        """Return the parameters by name, float32."""
        return {f"heads.{name}": np.asarray(getattr(self, name), np.float32) for name in _NAMES}

    @classmethod
    def from_tensors(cls, tensors: Tensors) -> "Heads":
        """Rebuild the heads from `tensors`. Raises KeyError for a missing one, ValueError for bad shapes or numbers."""
        mean, scale, coef, bias = (tensors[f"heads.{name}"].astype(np.float32) for name in _NAMES)
        return cls(mean, scale, coef, bias)


def _size(effect: tuple[int, float]) -> float:
    return abs(effect[1])
