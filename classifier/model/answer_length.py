"""Expected tokens of each tier's answer: a ridge regression of their logarithm on the prompt's features and
embedding."""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from classifier.errors import ArtefactError

Float = npt.NDArray[np.float32]
Tensors = dict[str, npt.NDArray[np.generic]]

# As in the outcome heads: embeddings have unit length, standardised features unit variance each.
EMBEDDING_SCALE = 4.0
CLIP = 5.0
NAMES = ("mean", "scale", "coef", "bias", "smear", "bounds")


class AnswerLength:
    """Parameters for t tiers over f surface features and a d-dimensional embedding.

    `mean`, `scale` [f]; `coef` [f + d, t], `bias` [t]: the mean of log(1 + tokens); `smear` [t]: mean of the
    exponentials of the residuals, which turns medians into means (Duan 1983); `bounds` [2, t]: the least and the most
    tokens seen, which clip predictions. `encoder`: hash of the encoder of the embedding.
    """

    def __init__(
        self,
        encoder: str,
        tiers: list[int],
        *,
        mean: Float,
        scale: Float,
        coef: Float,
        bias: Float,
        smear: Float,
        bounds: Float,
    ) -> None:
        t = len(tiers)
        if coef.ndim != 2 or coef.shape[1] != t or mean.shape != scale.shape or len(coef) < len(mean):
            raise ArtefactError(f"answer lengths: coef {coef.shape}, {len(mean)} features, {t} tiers; they disagree.")
        if bias.shape != (t,) or smear.shape != (t,) or bounds.shape != (2, t):
            raise ArtefactError(f"answer lengths: bias {bias.shape}, bounds {bounds.shape}, {t} tiers; they disagree.")
        if not all(np.isfinite(part).all() for part in (mean, scale, coef, bias, smear, bounds)):
            raise ArtefactError("answer lengths: values that are not finite. Fit them again.")
        self.encoder, self.tiers = encoder, tiers
        self.mean, self.scale, self.coef, self.bias, self.smear, self.bounds = mean, scale, coef, bias, smear, bounds

    def tokens(self, features: Float, embedding: Float) -> Float:
        """Return expected tokens [..., t] for `features` [..., f] and `embedding` [..., d]."""
        log = length_design(features, embedding, self.mean, self.scale) @ self.coef + self.bias
        tokens: Float = np.exp(log) * self.smear - 1.0
        bounded: Float = np.minimum(np.maximum(tokens, self.bounds[0]), self.bounds[1])
        return bounded

    def by_tier(self, features: Float, embedding: Float) -> list[float | None]:
        """Return `tokens` of one prompt by tier from tier 1 on, None for a tier without a prediction."""
        tokens_by_tier = dict(zip(self.tiers, self.tokens(features, embedding).tolist(), strict=True))
        return [tokens_by_tier.get(tier) for tier in range(1, max(self.tiers, default=0) + 1)]

    def of_tiers(self, tiers: Sequence[int]) -> "AnswerLength | None":
        """Return the model restricted to `tiers`; None if it has none of them."""
        kept = [index for index, tier in enumerate(self.tiers) if tier in tiers]
        if not kept:
            return None
        return AnswerLength(
            self.encoder,
            [self.tiers[index] for index in kept],
            mean=self.mean,
            scale=self.scale,
            coef=self.coef[:, kept],
            bias=self.bias[kept],
            smear=self.smear[kept],
            bounds=self.bounds[:, kept],
        )

    def tensors(self) -> Tensors:
        """Return the parameters by name, float32."""
        return {f"length.{name}": np.asarray(getattr(self, name), np.float32) for name in NAMES}

    @classmethod
    def from_tensors(cls, encoder: str, tiers: list[int], tensors: Tensors) -> "AnswerLength":
        """Rebuild the model from `tensors`. Raises `ArtefactError`."""
        try:
            values = {name: tensors[f"length.{name}"].astype(np.float32) for name in NAMES}
        except KeyError as error:
            raise ArtefactError(f"{error} is missing. Fit the probes again.") from error
        return cls(encoder, tiers, **values)


def length_design(features: Float, embedding: Float, mean: Float, scale: Float) -> Float:
    """Return the inputs [..., f + d] of the regression."""
    standard = np.minimum(np.maximum((features - mean) / scale, -CLIP), CLIP)
    design: Float = np.concatenate((standard, embedding * EMBEDDING_SCALE), axis=-1)
    return design
