"""From the words of a turn to a vector: the Encoder protocol and the static encoder that artefacts contain.

Matrices are stored as int8 with one scale per row: a quarter of the size; rounding is idempotent. Slow encoders keep
their last encodings in an `EncodingCache`.
"""

import hashlib
import math
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from functools import cached_property
from itertools import repeat
from threading import Lock
from typing import Any, Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt

from classifier.native import KERNELS

Float = npt.NDArray[np.float32]
# int8 [n, d] and the scale of each row, float32 [n].
Int8Rows = tuple[npt.NDArray[np.int8], Float]


def quantise(matrix: Float) -> Int8Rows:
    """Return (int8 [n, d], float32 [n]) such that row i is about int8[i] x scale[i]; a row of zeros has scale 0."""
    scale = (np.abs(matrix).max(axis=1, initial=0.0) / 127).astype(np.float32)
    safe = np.where(scale > 0, scale, 1.0)[:, None]
    return np.rint(matrix / safe).astype(np.int8), scale


def dequantise(values: npt.NDArray[np.int8], scale: Float) -> Float:
    """Return float32 [n, d] from the result of `quantise`."""
    return values.astype(np.float32) * scale[:, None]


# Weight of a term that occurs n times: 1 + log n; a turn has at most some hundred words.
_SUBLINEAR = (1.0 + np.log(np.maximum(np.arange(1024), 1))).astype(np.float32)

Tensors = Mapping[str, npt.NDArray[np.generic]]


class Encoder(Protocol):
    """Encodes turns. Frozen once an artefact is released: stored embeddings must stay comparable."""

    name: str
    dim: int

    def encode(self, turn: str, tokens: Sequence[str]) -> Float:
        """Return the embedding float32 [dim] of one turn, of unit length, or all zero for a turn without a known word;
        `tokens` are `tokenise(turn)`. Deterministic, and fast enough for the request path."""


@runtime_checkable
class BatchEncoder(Protocol):
    """An encoder that is faster with many turns at once, with the same results as `encode`."""

    def encode_many(self, turns: Sequence[str]) -> list[Float]:
        """Encode turns in one batch."""


@runtime_checkable
class SlowEncoder(Protocol):
    """An encoder that takes milliseconds and batches concurrent prompts."""

    def warm(self) -> None:
        """Load what the first prompt would otherwise wait for. Raises `ArtefactError` if that fails."""

    def submit(self, turn: str) -> Future[Float]:
        """Start to encode; a later `encode` of the same turn returns the result."""


class StoredEncoder(Encoder, Protocol):
    """An encoder within an artefact."""

    def tensors(self) -> dict[str, npt.NDArray[np.generic]]:
        """Return the encoder's tensors for the artefact, with names that start with "encoder."."""

    def description(self) -> dict[str, Any]:
        """The encoder's entry in the manifest, without the fingerprint."""


class StaticEncoder:
    """TF-IDF over known words and word pairs, projected by a table that imitates a language model's hidden states.

    Row r of the table belongs to word r; the pairs follow. After model2vec (Tulkens and van Dongen, 2024), with pairs
    and with the table regressed on whole prompts; numpy only, tens of microseconds.
    """

    name = "static-distilled"

    def __init__(
        self,
        *,
        words: Sequence[str],
        pairs: npt.NDArray[np.int32],
        idf: Float,
        table: Int8Rows,
    ) -> None:
        """`pairs` int32 [P, 2] are word indices in ascending order of (first, second); `idf` [W + P];
        `table` [W + P, dim], as `quantise` returns it."""
        self.words, self.pairs, self.idf = list(words), pairs, idf
        self.dim = table[0].shape[1]
        # Unknown words and pairs get the number after the table's last row, which sorts after all rows.
        self._unknown = len(self.words) + len(pairs)
        # One number per pair, ascending; the last one is a sentinel larger than any pair's.
        self._pair_keys = np.append(_pair_keys(pairs[:, 0], pairs[:, 1]), np.iinfo(np.int64).max)
        self._native = None if KERNELS is None else self._for_kernels(table)
        # The kernels' copy of the rows is the only one: they are most of what a classifier takes of memory.
        self._kept = table if KERNELS is None else KERNELS.read_encoder

    def terms(self, tokens: Sequence[str]) -> tuple[npt.NDArray[np.intp], Float]:
        """Return the sparse vector of `tokens`: (rows of the table, ascending; weights of unit length)."""
        unknown = self._unknown
        ids = np.fromiter(map(self._index.get, tokens, repeat(unknown)), np.intp, len(tokens))
        keys = _pair_keys(ids[:-1], ids[1:])
        places = self._pair_keys.searchsorted(keys)
        pairs = np.where(self._pair_keys.take(places) == keys, places + len(self.words), unknown)
        term_ids = np.concatenate((ids, pairs))
        term_ids.sort()
        edges = np.empty(len(term_ids) + 1, np.bool_)
        edges[0] = edges[-1] = True
        np.not_equal(term_ids[1:], term_ids[:-1], out=edges[1:-1])
        starts = edges.nonzero()[0]
        rows, counts = term_ids.take(starts[:-1]), starts[1:] - starts[:-1]
        if len(rows) and rows[-1] == unknown:
            rows, counts = rows[:-1], counts[:-1]
        if not len(rows):
            return rows, np.zeros(0, np.float32)
        weights = _SUBLINEAR.take(counts, mode="clip") * self.idf.take(rows)
        return rows, weights / np.float32(math.sqrt(weights @ weights))

    @cached_property
    def _index(self) -> dict[str, int]:
        """The row of each word; the kernels have a table of their own."""
        return _index_of(self.words)

    @cached_property
    def _projection(self) -> Float:
        """The table as float32 [W + P, dim]."""
        return dequantise(*self._rows())

    def _rows(self) -> Int8Rows:
        if isinstance(self._kept, tuple):
            return self._kept
        rows = np.empty((len(self.idf), self.dim), np.int8), np.empty(len(self.idf), np.float32)
        self._kept(self._native, *rows)
        return rows

    def _for_kernels(self, table: Int8Rows) -> object:
        """Return the encoder in the kernels' layout: rows of int8, a quarter of the memory to read."""
        parts = (self.idf, *table)
        packed = [np.ascontiguousarray(part, part.dtype) for part in parts]
        return KERNELS.make_encoder(_index_of(self.words), np.ascontiguousarray(self.pairs, np.int32), *packed)

    @property
    def native(self) -> Any:
        """The encoder as the kernels have it, for those that read a whole turn; None without kernels."""
        return self._native

    def encode(self, turn: str, tokens: Sequence[str]) -> Float:
        if KERNELS is not None:
            embedding = np.empty(self.dim, np.float32)
            KERNELS.encode(self._native, tokens, embedding)
            return embedding
        rows, weights = self.terms(tokens)
        embedding = weights @ self._projection.take(rows, axis=0)
        norm = math.sqrt(embedding @ embedding)
        return embedding / np.float32(norm) if norm > 1e-6 else embedding * np.float32(0)

    def tensors(self) -> dict[str, npt.NDArray[np.generic]]:
        """Return what `from_tensors` needs, by name; the table as int8 rows, the vocabulary as UTF-8 bytes."""
        values, scale = self._rows()
        return {
            "encoder.words": np.frombuffer("\n".join(self.words).encode(), np.uint8),
            "encoder.pairs": self.pairs.astype(np.int32),
            "encoder.idf": self.idf.astype(np.float32),
            "encoder.table": values,
            "encoder.table_scale": scale,
        }

    def description(self) -> dict[str, Any]:
        """The encoder's entry in the manifest, without the fingerprint."""
        return {"name": self.name, "dim": self.dim, "words": len(self.words), "pairs": len(self.pairs)}

    @classmethod
    def from_tensors(cls, tensors: Tensors) -> "StaticEncoder":
        """Rebuild the encoder saved by `tensors`. Raises KeyError for a missing one, ValueError if shapes disagree."""
        words = tensors["encoder.words"].tobytes().decode().split("\n")
        pairs = tensors["encoder.pairs"].astype(np.int32)
        idf = tensors["encoder.idf"].astype(np.float32)
        # As stored: floats would be four times as large, three times over, in the memory of a start.
        table = tensors["encoder.table"].astype(np.int8), tensors["encoder.table_scale"].astype(np.float32)
        rows = len(words) + len(pairs)
        if not len(idf) == len(table[0]) == len(table[1]) == rows:
            raise ValueError(
                f"encoder: {len(words)} words and {len(pairs)} pairs need {rows} rows; idf has {len(idf)}, "
                f"table {len(table[0])}"
            )
        return cls(words=words, pairs=pairs, idf=idf, table=table)


def _index_of(words: Sequence[str]) -> dict[str, int]:
    return {word: i for i, word in enumerate(words)}


def _pair_keys(firsts: npt.NDArray[np.signedinteger], seconds: npt.NDArray[np.signedinteger]) -> npt.NDArray[np.int64]:
    return (firsts.astype(np.int64) << 32) + seconds


def encoder_fingerprint(tensors: Tensors) -> str:
    """Return the SHA-256 over the saved encoder; embeddings are comparable if the fingerprints are equal."""
    digest = hashlib.sha256()
    for name, tensor in sorted(tensors.items()):
        if name.startswith("encoder."):
            digest.update(name.encode() + tensor.tobytes())
    return digest.hexdigest()


# The cache holds encodings computed ahead of a decision, and those of repeated prompts.
REMEMBERED = 512


class RememberedEncodings:
    """The encodings of the last `REMEMBERED` turns; thread-safe."""

    def __init__(self) -> None:
        self._known: OrderedDict[str, Float] = OrderedDict()
        self._lock = Lock()

    def get(self, turn: str) -> Float | None:
        """Return the encoding of `turn`, or None."""
        with self._lock:
            return self._known.get(turn)

    def put(self, turns: Sequence[str], encodings: Sequence[Float]) -> None:
        """Add these, and evict the oldest."""
        with self._lock:
            self._known.update(zip(turns, encodings, strict=True))
            while len(self._known) > REMEMBERED:
                self._known.popitem(last=False)
