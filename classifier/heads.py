"""The trained layers over an encoded turn: one linear head per outcome, and the calibrated blend of three opinions."""

from collections.abc import Mapping

import numpy as np
import numpy.typing as npt

Float = npt.NDArray[np.float32]
Tensors = Mapping[str, npt.NDArray[np.generic]]

# Embeddings are of unit length, standardised features of unit variance each; this balances the penalty on both.
EMBEDDING_SCALE = 4.0
CLIP = 5.0  # standard deviations; an odd prompt must not extrapolate
OPINIONS = ("features", "words", "neighbourhood")


class Heads:
    """Parameters for h outcomes over f surface features and a d-dimensional embedding.

    `mean`, `scale` [f] standardise the features; `coef` [f + d, h] and `bias` [h] are the linear heads; `blend`
    [3, h] and `blend_bias` [h] combine the logits of OPINIONS and calibrate them (fitted on the valid split).
    """

    def __init__(self, mean: Float, scale: Float, coef: Float, bias: Float, blend: Float, blend_bias: Float) -> None:
        if coef.shape[1] != len(bias) or blend.shape != (len(OPINIONS), len(bias)) or len(blend_bias) != len(bias):
            raise ValueError(f"heads: coef {coef.shape}, bias {bias.shape}, blend {blend.shape} do not belong together")
        self.mean, self.scale, self.coef, self.bias = mean, scale, coef, bias
        self.blend, self.blend_bias = blend, blend_bias
        self._inverse_scale = (1.0 / scale).astype(np.float32)
        self._blended_coef = coef * blend[0]
        self._blended_bias = bias * blend[0] + blend_bias

    def design(self, features: Float, embedding: Float) -> Float:
        """Inputs of the linear heads, [..., f + d], of `features` [..., f] and `embedding` [..., d]."""
        standard = np.minimum(np.maximum((features - self.mean) * self._inverse_scale, -CLIP), CLIP)
        return np.concatenate((standard, embedding * EMBEDDING_SCALE), axis=-1)

    def logits(self, design: Float, word_logits: Float, neighbourhood_logits: Float) -> Float:
        """Calibrated logits [..., h] of the outcomes."""
        blend = self.blend
        logits: Float = design @ self._blended_coef + word_logits * blend[1] + neighbourhood_logits * blend[2]
        logits += self._blended_bias
        return logits

    def tensors(self) -> dict[str, npt.NDArray[np.generic]]:
        """The parameters by name, float32."""
        names = ("mean", "scale", "coef", "bias", "blend", "blend_bias")
        return {f"heads.{name}": np.asarray(getattr(self, name), np.float32) for name in names}

    @classmethod
    def from_tensors(cls, tensors: Tensors) -> "Heads":
        """What `tensors` gave. Raises KeyError for a missing one, ValueError for shapes that disagree."""
        names = ("mean", "scale", "coef", "bias", "blend", "blend_bias")
        mean, scale, coef, bias, blend, blend_bias = (tensors[f"heads.{n}"].astype(np.float32) for n in names)
        return cls(mean, scale, coef, bias, blend, blend_bias)
