"""Training rows without texts: encoded prompts, labels, weights and clusters, as stored in `base.safetensors`."""

from collections.abc import Sequence
from dataclasses import dataclass, fields

import numpy as np
import numpy.typing as npt

from classifier.encoders.static_encoder import Encoder, dequantise, quantise
from classifier.errors import TrainingDataError
from classifier.features.routing_input import RoutingInput
from classifier.features.surface_features import FEATURE_NAMES
from classifier.model.outcome_model import encode_turns
from classifier.registry.artefact import Tensors

Float = npt.NDArray[np.float32]


@dataclass(frozen=True)
class EncodedRows:
    """n prompts. float32 unless stated: `features` [n, f], `embedding` [n, d], `word_logits` [n, h], `labels` [n, h] in
    [0, 1] with NaN unobserved, `weights` [n]; `group` int32 [n] numbers the cluster (domain); `held` bool [n] marks
    rows that are held out from the heads' training and calibrate them."""

    features: Float
    embedding: Float
    word_logits: Float
    labels: Float
    weights: Float
    group: npt.NDArray[np.int32]
    held: npt.NDArray[np.bool_]

    def __post_init__(self) -> None:
        sizes = {f.name: len(getattr(self, f.name)) for f in fields(self)}
        if len(set(sizes.values())) > 1:
            raise TrainingDataError(f"encoded rows disagree in length: {sizes}.")
        seen = self.labels[~np.isnan(self.labels)]
        if seen.size and (seen.min() < 0 or seen.max() > 1):
            raise TrainingDataError(f"labels lie in [{seen.min()}, {seen.max()}]; allowed is [0, 1] or NaN.")

    def __len__(self) -> int:
        return len(self.weights)

    def take(self, rows: npt.NDArray[np.generic]) -> "EncodedRows":
        """Return the chosen rows (a mask or indices)."""
        return EncodedRows(**{f.name: getattr(self, f.name)[rows] for f in fields(self)})

    def joined(self, other: "EncodedRows") -> "EncodedRows":
        """Return these rows followed by the other's."""
        return EncodedRows(
            **{f.name: np.concatenate([getattr(self, f.name), getattr(other, f.name)]) for f in fields(self)}
        )

    def stored(self) -> "EncodedRows":
        """Return these rows rounded as in storage."""
        return EncodedRows.from_tensors(self.tensors())

    def tensors(self) -> Tensors:
        """Return the rows by name, rounded for storage; the rounding is idempotent."""
        values, scale = quantise(self.embedding)
        return {
            "features": self.features.astype(np.float16),
            "embedding": values,
            "embedding_scale": scale,
            "word_logits": self.word_logits.astype(np.float16),
            "labels": self.labels.astype(np.float16),
            "weights": self.weights.astype(np.float32),
            "group": self.group.astype(np.int32),
            "held": self.held.astype(np.uint8),
        }

    @classmethod
    def from_tensors(cls, tensors: Tensors) -> "EncodedRows":
        """Rebuild rows from `tensors`. Raises `TrainingDataError` naming a missing tensor."""
        try:
            return cls(
                features=tensors["features"].astype(np.float32),
                embedding=dequantise(
                    tensors["embedding"].astype(np.int8), tensors["embedding_scale"].astype(np.float32)
                ),
                word_logits=tensors["word_logits"].astype(np.float32),
                labels=tensors["labels"].astype(np.float32),
                weights=tensors["weights"].astype(np.float32),
                group=tensors["group"].astype(np.int32),
                held=tensors["held"].astype(np.bool_),
            )
        except KeyError as error:
            raise TrainingDataError(f"base rows have no tensor {error}.") from error


def encode_rows(
    encoder: Encoder,
    prompts: Sequence[RoutingInput],
    labels: Float,
    *,
    weights: Float | None = None,
    group: npt.NDArray[np.int32] | None = None,
    held: npt.NDArray[np.bool_] | None = None,
) -> EncodedRows:
    """Encode prompts with a frozen encoder (`OutcomeModel.encoder`), rounded as in storage.

    `labels` [n, heads] with NaN unobserved. Without `held`, every fifth row calibrates; without `group`, all are one
    new cluster (-1).
    """
    n = len(prompts)
    turns = encode_turns(encoder, prompts)
    return EncodedRows(
        features=np.array([t.features for t in turns], np.float32).reshape(n, len(FEATURE_NAMES)),
        embedding=np.array([t.embedding for t in turns], np.float32).reshape(n, encoder.dim),
        word_logits=np.array([t.word_logits for t in turns], np.float32).reshape(n, labels.shape[1]),
        labels=labels.astype(np.float32),
        weights=np.ones(n, np.float32) if weights is None else weights.astype(np.float32),
        group=np.full(n, -1, np.int32) if group is None else group,
        held=np.arange(n) % 5 == 4 if held is None else held,
    ).stored()
