"""From the words of a turn to a vector: the Encoder protocol and the artefact's own static encoder."""

import hashlib
import math
from collections.abc import Mapping, Sequence
from itertools import repeat
from typing import NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from classifier.quantised import dequantise, quantise

Float = npt.NDArray[np.float32]
# Weight of a term by how often it occurs: 1 + log n; a turn has at most some hundred words.
_SUBLINEAR = (1.0 + np.log(np.maximum(np.arange(1024), 1))).astype(np.float32)
_EDGE = np.ones(1, np.bool_)
_NO_PAIR = np.iinfo(np.int64).max

Tensors = Mapping[str, npt.NDArray[np.generic]]


class Encoding(NamedTuple):
    """A turn as numbers.

    `embedding` float32 [dim], of unit length, or all zero for a turn without a known word.
    `word_logits` float32 [heads]: what the words alone say about each head, as a logit.
    """

    embedding: Float
    word_logits: Float


class Encoder(Protocol):
    """Turns into vectors. Frozen once an artefact is released: stored embeddings must stay comparable."""

    name: str
    dim: int

    def encode(self, turn: str, tokens: Sequence[str]) -> Encoding:
        """Encode one turn; `tokens` are `tokenise(turn)`. Deterministic, and fast enough for the request path."""


class StaticEncoder:
    """TF-IDF over known words and word pairs, projected by a learned table (latent semantic analysis).

    Row r of the table belongs to word r, then to the pairs. The same sparse vector also meets a linear layer trained
    on outcomes, whose results are the `word_logits`. Deerwester et al., 1990; numpy only, tens of microseconds.
    """

    name = "static-lsa"

    def __init__(
        self,
        *,
        words: Sequence[str],
        pairs: npt.NDArray[np.int32],
        idf: Float,
        table: Float,
        logit_table: Float,
        logit_bias: Float,
    ) -> None:
        """`pairs` int32 [P, 2] are word indices in ascending order of (first, second); `idf` [W + P];
        `table` [W + P, dim]; `logit_table` [W + P, heads]; `logit_bias` [heads]."""
        self.words, self.pairs, self.idf, self.logit_bias = list(words), pairs, idf, logit_bias
        self.dim = table.shape[1]
        self._index = {word: i for i, word in enumerate(self.words)}
        # The last key belongs to no pair: look-ups need no special case at the end.
        self._pair_keys = np.append(pairs[:, 0].astype(np.int64) * len(self.words) + pairs[:, 1], _NO_PAIR)
        # Kept as int8: a turn touches hundreds of rows, and what it costs is memory traffic.
        self._values, self._scale = quantise(table)
        self._logit_table = logit_table.astype(np.float32)

    def terms(self, tokens: Sequence[str]) -> tuple[npt.NDArray[np.intp], Float]:
        """The sparse vector of `tokens`: (rows of the table, ascending; weights of unit length)."""
        ids = np.fromiter(map(self._index.get, tokens, repeat(-1)), np.int64, len(tokens))
        keys = (ids[:-1] * len(self.words) + ids[1:])[(ids[:-1] >= 0) & (ids[1:] >= 0)]
        at = np.searchsorted(self._pair_keys, keys)
        known = at[self._pair_keys[at] == keys]
        found = np.concatenate((ids[ids >= 0], known + len(self.words)))
        found.sort()
        if not len(found):
            return found, np.zeros(0, np.float32)
        starts = np.flatnonzero(np.concatenate((_EDGE, found[1:] != found[:-1], _EDGE)))
        rows = found[starts[:-1]]
        weights = _SUBLINEAR[np.minimum(starts[1:] - starts[:-1], len(_SUBLINEAR) - 1)] * self.idf[rows]
        return rows, weights / np.float32(math.sqrt(weights @ weights))

    def encode(self, turn: str, tokens: Sequence[str]) -> Encoding:
        rows, weights = self.terms(tokens)
        embedding = (weights * self._scale[rows]) @ self._values[rows].astype(np.float32)
        norm = math.sqrt(embedding @ embedding)
        word_logits = weights @ self._logit_table[rows] + self.logit_bias
        return Encoding(embedding / norm if norm > 1e-6 else embedding * 0.0, word_logits)

    def tensors(self) -> dict[str, npt.NDArray[np.generic]]:
        """What `from_tensors` needs, by name; the table as int8 rows, the vocabulary as UTF-8 bytes."""
        return {
            "encoder.words": np.frombuffer("\n".join(self.words).encode(), np.uint8),
            "encoder.pairs": self.pairs.astype(np.int32),
            "encoder.idf": self.idf.astype(np.float32),
            "encoder.table": self._values,
            "encoder.table_scale": self._scale,
            "encoder.logit_table": self._logit_table.astype(np.float16),
            "encoder.logit_bias": self.logit_bias.astype(np.float32),
        }

    @classmethod
    def from_tensors(cls, tensors: Tensors) -> "StaticEncoder":
        """The encoder saved by `tensors`. Raises KeyError for a missing tensor, ValueError for shapes that disagree."""
        words = tensors["encoder.words"].tobytes().decode().split("\n")
        pairs = tensors["encoder.pairs"].astype(np.int32)
        idf = tensors["encoder.idf"].astype(np.float32)
        table = dequantise(tensors["encoder.table"].astype(np.int8), tensors["encoder.table_scale"].astype(np.float32))
        logit_table = tensors["encoder.logit_table"].astype(np.float32)
        rows = len(words) + len(pairs)
        if not len(idf) == len(table) == len(logit_table) == rows:
            raise ValueError(
                f"encoder: {len(words)} words and {len(pairs)} pairs need {rows} rows; idf has {len(idf)}, "
                f"table {len(table)}, logit_table {len(logit_table)}"
            )
        bias = tensors["encoder.logit_bias"].astype(np.float32)
        return cls(words=words, pairs=pairs, idf=idf, table=table, logit_table=logit_table, logit_bias=bias)


def encoder_fingerprint(tensors: Tensors) -> str:
    """SHA-256 over the saved encoder; embeddings of encoders with equal fingerprints are comparable."""
    digest = hashlib.sha256()
    for name, tensor in sorted(tensors.items()):
        if name.startswith("encoder."):
            digest.update(name.encode() + tensor.tobytes())
    return digest.hexdigest()
