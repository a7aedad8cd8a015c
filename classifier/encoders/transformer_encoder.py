"""A fine-tuned transformer as an artefact's encoder, computed by the native extension in INT8.

A projection makes an embedding of the pooled state.
"""

import threading
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from classifier.encoders.checkpoint import checkpoint_folder, verify_checkpoint
from classifier.encoders.micro_batcher import MicroBatcher
from classifier.encoders.native_transformer import NativeTransformer
from classifier.encoders.static_encoder import RememberedEncodings

Float = npt.NDArray[np.float32]
Tensors = Mapping[str, npt.NDArray[np.generic]]


class PooledProjection:
    """`mean` [hidden]; `projection` [hidden, dim]; float32."""

    def __init__(self, mean: Float, projection: Float) -> None:
        """Raises `ValueError` for shapes that disagree."""
        if len(mean) != len(projection):
            raise ValueError(f"encoder: mean {mean.shape} and projection {projection.shape} do not belong together")
        self.mean, self.projection = mean, projection

    @property
    def dim(self) -> int:
        """Length of an embedding."""
        return int(self.projection.shape[1])

    def encodings(self, pooled: Float) -> list[Float]:
        """Convert pooled states [n, hidden] to embeddings of unit length."""
        embedding = (pooled - self.mean) @ self.projection
        norm = np.sqrt((embedding * embedding).sum(axis=1, keepdims=True))
        return list(np.divide(embedding, norm, out=np.zeros_like(embedding), where=norm > 1e-6))

    def tensors(self) -> dict[str, npt.NDArray[np.generic]]:
        """Return both tensors by name, float32."""
        return {f"encoder.{name}": np.asarray(getattr(self, name), np.float32) for name in ("mean", "projection")}

    @classmethod
    def from_tensors(cls, tensors: Tensors) -> "PooledProjection":
        """Rebuild the projection from `tensors`. Raises KeyError for a missing one, ValueError if shapes disagree."""
        return cls(*(tensors[f"encoder.{name}"].astype(np.float32) for name in ("mean", "projection")))


NAME = "transformer"


class TransformerEncoder:
    """Pooled states of a checkpoint, centred and projected to `dim`.

    The checkpoint is stored in the registry under its hash, and is loaded with the first prompt or by `warm`.
    Thread-safe: concurrent prompts are batched.
    """

    name = NAME

    def __init__(self, folder: Path, sha256: str, *, max_tokens: int, above: PooledProjection) -> None:
        self.folder, self.sha256, self.max_tokens = folder, sha256, max_tokens
        self.above, self.dim = above, above.dim
        self._loading = threading.Lock()
        self._transformer: NativeTransformer | None = None
        self._batcher = MicroBatcher(self._encode_and_remember)
        self._remembered = RememberedEncodings()

    def warm(self) -> None:
        """Load the checkpoint now. Raises `CheckpointError` as `NativeTransformer.load`, and if it was changed."""
        self._loaded()

    def submit(self, turn: str) -> "Future[Float]":
        """Return a future of a turn's encoding, batched with others; for callers that must not block."""
        return self._batcher.submit(turn)

    def encode(self, turn: str, tokens: Sequence[str]) -> Float:
        """Encode one turn; `tokens` are ignored, because the checkpoint reads the text.

        Returns at once if the turn was submitted shortly before; otherwise blocks for milliseconds.
        """
        remembered = self._remembered.get(turn)
        return self.submit(turn).result() if remembered is None else remembered

    def encode_many(self, turns: Sequence[str]) -> list[Float]:
        """Encode turns one after another; none depends on its neighbours."""
        return self.above.encodings(self._loaded().encode(turns))

    def _encode_and_remember(self, turns: list[str]) -> list[Float]:
        encodings = self.encode_many(turns)
        self._remembered.put(turns, encodings)
        return encodings

    def tensors(self) -> dict[str, npt.NDArray[np.generic]]:
        """Return what `from_tensors` needs besides the checkpoint. It includes the checkpoint's hash, so that encoders
        over different checkpoints have different fingerprints."""
        return {
            "encoder.checkpoint_sha256": np.frombuffer(bytes.fromhex(self.sha256), np.uint8),
            "encoder.max_tokens": np.array([self.max_tokens], np.int32),
            **self.above.tensors(),
        }

    def description(self) -> dict[str, Any]:
        """The encoder's entry in the manifest, without the fingerprint."""
        return {
            "name": self.name,
            "dim": self.dim,
            "checkpoint_sha256": self.sha256,
            "checkpoint": f"{self.folder.parent.name}/{self.folder.name}",
            "max_tokens": self.max_tokens,
            "pooling": "mean",
        }

    @classmethod
    def from_tensors(cls, tensors: Tensors, registry: Path | None) -> "TransformerEncoder":
        """Rebuild the encoder saved by `tensors`, over its checkpoint in `registry`, whose hash is checked; it is
        loaded later.

        Without `registry` it cannot encode. Raises KeyError for a missing tensor, ValueError for shapes that disagree,
        `CheckpointError` for a checkpoint that is missing or was changed.
        """
        sha256 = tensors["encoder.checkpoint_sha256"].tobytes().hex()
        folder = checkpoint_folder(Path() if registry is None else registry, sha256)
        if registry is not None:
            verify_checkpoint(folder, sha256)
        return cls(
            folder,
            sha256,
            max_tokens=int(tensors["encoder.max_tokens"][0]),
            above=PooledProjection.from_tensors(tensors),
        )

    def _loaded(self) -> NativeTransformer:
        with self._loading:
            if self._transformer is None:
                verify_checkpoint(self.folder, self.sha256)
                self._transformer = NativeTransformer.load(self.folder, max_tokens=self.max_tokens)
            return self._transformer
