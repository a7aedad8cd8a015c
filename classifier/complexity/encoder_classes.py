"""The complexity class of a prompt by a fine-tuned encoder, in place of the n-gram model's.

It is a checkpoint's folder with one more file: the layer of three cumulative logits.
"""

from concurrent.futures import Future
from pathlib import Path

import numpy as np
import numpy.typing as npt
from safetensors import SafetensorError
from safetensors.numpy import load_file, save_file

from classifier.complexity.model import CUTS, class_probabilities
from classifier.encoders.checkpoint import CHECKPOINTS, checkpoint_folder, checkpoint_sha256
from classifier.encoders.native_transformer import MAX_TOKENS
from classifier.encoders.transformer_encoder import PooledProjection, TransformerEncoder
from classifier.errors import CheckpointError

Float = npt.NDArray[np.float32]

CLASSES = "classes.safetensors"


class ClassLayer(PooledProjection):
    """The logits of P(class <= k) in place of an embedding: `weight` [hidden, 3] and `bias` [3]."""

    def __init__(self, weight: Float, bias: Float) -> None:
        super().__init__(np.zeros(len(weight), np.float32), weight)
        self._bias = bias

    def encodings(self, pooled: Float) -> list[Float]:
        return list((pooled @ self.projection + self._bias).astype(np.float32))


class EncoderClasses:
    """P(SIMPLE) to P(EXPERT) from the text alone. Thread-safe; `name` has the first digits of the files' hash."""

    def __init__(self, encoder: TransformerEncoder) -> None:
        self._encoder, self.name = encoder, f"encoder {encoder.sha256[:16]}"

    def submit(self, turn: str) -> "Future[Float]":
        """Begin to classify `turn`, so that `probabilities` need not wait for milliseconds."""
        return self._encoder.submit(turn)

    def probabilities(self, turn: str) -> list[float]:
        """Return P of the four classes of a turn, ascending."""
        return class_probabilities(self._encoder.encode(turn, ()).tolist())


def save_classes(folder: Path, weight: Float, bias: Float) -> None:
    """Add the layer of P(class <= k) in logits, `weight` [hidden, 3] and `bias` [3], to the checkpoint in `folder`."""
    save_file({"weight": np.ascontiguousarray(weight), "bias": np.ascontiguousarray(bias)}, folder / CLASSES)


def load_classes(checkpoint: str, registry: Path) -> EncoderClasses:
    """Load the encoder in the folder `checkpoint`, or the one of that hash in `encoders/` of the `registry`.

    Raises `CheckpointError` if it is missing, was changed, has no such layer, or cannot be served here.
    """
    kept = registry / CHECKPOINTS / checkpoint
    is_kept = "/" not in checkpoint and kept.is_dir()
    folder = kept if is_kept else Path(checkpoint).expanduser()
    sha256 = checkpoint_sha256(folder)
    if is_kept and kept != checkpoint_folder(registry, sha256):
        raise CheckpointError(f"{folder}: SHA-256 is {sha256[:16]}…; the files were changed. Restore them.")
    try:
        layer = load_file(folder / CLASSES)
        weight, bias = layer["weight"].astype(np.float32), layer["bias"].astype(np.float32)
        if weight.shape[1:] != (CUTS,) or bias.shape != (CUTS,):
            raise ValueError(f"layer of {weight.shape} and {bias.shape}")
    except (OSError, SafetensorError, KeyError, ValueError) as error:
        raise CheckpointError(
            f"{folder / CLASSES}: {error}; `aio classifier complexity --encoder` makes it."
        ) from error
    encoder = TransformerEncoder(folder, sha256, max_tokens=MAX_TOKENS, above=ClassLayer(weight, bias))
    encoder.warm()
    return EncoderClasses(encoder)
