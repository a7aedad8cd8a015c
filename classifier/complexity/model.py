"""The complexity model: three cumulative logits, P(class <= k), from n-grams, the encoding and surface features.

Character and word n-grams are rows of two hashed tables: no vocabulary, any language."""

import math
import zlib
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from safetensors import SafetensorError
from safetensors.numpy import load_file, save_file

from classifier.encoders.boosted_trees import Trees
from classifier.errors import ArtefactError
from classifier.native import KERNELS

Rows = npt.NDArray[np.uint16]

BITS = 16
ROWS = 1 << BITS
# Multiplicative hashing (Knuth, The Art of Computer Programming, vol. 3, 6.4): use the upper bits of the product.
_MULTIPLIER = np.uint64(0x9E3779B97F4A7C15)
_PLACES = (np.uint64(0xC2B2AE3D27D4EB4F), np.uint64(0x165667B19E3779F9), np.uint64(1))
_SHIFT = np.uint64(64 - BITS)


def trigram_rows(turn: str) -> Rows:
    """Return rows [n] of the distinct character trigrams of `turn`, lower-cased and padded with spaces, ascending."""
    text = f" {turn.lower()} ".encode("utf-32-le", errors="replace")
    codes = np.frombuffer(text, np.uint32).astype(np.uint64)
    if len(codes) < 3:
        return np.zeros(0, np.uint16)
    return _distinct(codes[:-2] * _PLACES[0] + codes[1:-1] * _PLACES[1] + codes[2:] * _PLACES[2])


def word_rows(tokens: Sequence[str]) -> Rows:
    """Return rows [n] of the distinct words and pairs of neighbouring words among `tokens`, ascending."""
    if not tokens:
        return np.zeros(0, np.uint16)
    words = np.fromiter(map(zlib.crc32, map(str.encode, tokens)), np.uint64, len(tokens))
    pairs = words[:-1] * _PLACES[0] + words[1:] * _PLACES[1]
    return _distinct(np.concatenate((words, pairs)))


def _distinct(keys: npt.NDArray[np.uint64]) -> Rows:
    # numpy sorts 16-bit numbers by radix sort, which is faster than marking them in a table of all rows.
    rows = ((keys * _MULTIPLIER) >> _SHIFT).astype(np.uint16)
    rows.sort()
    first = np.empty(len(rows), np.bool_)
    first[0] = True
    np.not_equal(rows[1:], rows[:-1], out=first[1:])
    return rows[first]


Float = npt.NDArray[np.float32]
Tensors = Mapping[str, npt.NDArray[np.generic]]

SHIPPED = Path(__file__).parent / "complexity.safetensors"
CUTS = 3
# Bounds on probabilities: a few thousand prompts justify no greater certainty.
LEAST = 0.002
_MOST_LOGIT = 30.0


class ComplexityModel:
    """Immutable and thread-safe.

    A cumulative-link model without the assumption of parallel slopes: one logistic regression per cut, over tables of
    hashed n-grams (their sum over the root of their number), the encoder's embedding and standardised surface features.
    Its logits are averaged with those of boosted trees over the surface features and the linear logits.
    """

    def __init__(
        self,
        *,
        trigrams: Float,
        words: Float,
        embedding: Float,
        surface: Float,
        centre: Float,
        scale: Float,
        bias: Float,
        trees: Trees,
        tree_bias: Float,
        encoder: str,
    ) -> None:
        """`trigrams`, `words` [ROWS, 3]; `embedding` [d, 3]; `surface` [f, 3] for features standardised by `centre` and
        `scale` [f]; `bias` [3]; `trees` over f + 3 numbers, the features and the linear logits, with `tree_bias` [3];
        `encoder`: fingerprint of the embedding's encoder. Raises ValueError for shapes that disagree."""
        if trigrams.shape != (ROWS, CUTS) or words.shape != (ROWS, CUTS) or bias.shape != (CUTS,):
            raise ValueError(f"complexity: tables of {trigrams.shape}, {words.shape} and {bias.shape}")
        if trees.features != len(surface) + CUTS or trees.heads != CUTS:
            raise ValueError(f"complexity: trees over {trees.features} numbers, features are {len(surface)}")
        self.trigrams, self.words, self.embedding, self.surface = trigrams, words, embedding, surface
        self.centre, self.scale, self.bias = centre, scale, bias
        self.trees, self.tree_bias, self.encoder = trees, tree_bias, encoder
        self._native = None
        if KERNELS is not None:
            parts = (trigrams, words, embedding, surface, centre, scale, bias, tree_bias)
            self._native = KERNELS.make_complexity(*(np.ascontiguousarray(part, np.float32) for part in parts))

    @property
    def native(self) -> Any:
        """The model as the kernels have it, for those that read a whole turn; None without kernels."""
        return self._native

    def probabilities(self, turn: str, tokens: Sequence[str], features: Float, embedding: Float) -> list[float]:
        """Return P of the four classes of a turn, ascending, from its `tokens`, `features` [f] and `embedding` [d]."""
        if KERNELS is not None:
            probabilities: list[float] = KERNELS.class_probabilities(
                self._native, self.trees.native, turn.lower(), tokens, features, embedding
            )
            return probabilities
        linear = self._linear_logits(turn, tokens, features, embedding)
        logits = linear + self.tree_bias
        self.trees.add_to(logits, np.concatenate((features, linear)))
        return class_probabilities((logits / 2).tolist())

    def _linear_logits(self, turn: str, tokens: Sequence[str], features: Float, embedding: Float) -> Float:
        """Return the three logits [3] before the trees."""
        logits = self.bias + standardised(features, self.centre, self.scale) @ self.surface + embedding @ self.embedding
        for table, rows in ((self.trigrams, trigram_rows(turn)), (self.words, word_rows(tokens))):
            if len(rows):
                logits += table.take(rows, axis=0).sum(axis=0) / np.float32(math.sqrt(len(rows)))
        whole: Float = logits.astype(np.float32, copy=False)
        return whole

    def save(self, path: Path) -> None:
        """Write the model as one safetensors file, tables in half precision."""
        tensors = {
            "trigrams": self.trigrams.astype(np.float16),
            "words": self.words.astype(np.float16),
            "embedding": self.embedding,
            "surface": self.surface,
            "centre": self.centre,
            "scale": self.scale,
            "bias": self.bias,
            "linear_tree_bias": self.tree_bias,
            **{name.replace("encoder.", ""): array for name, array in self.trees.tensors().items()},
        }
        save_file(
            {name: np.ascontiguousarray(array) for name, array in tensors.items()}, path, {"encoder": self.encoder}
        )


def standardised(features: Float, centre: Float, scale: Float) -> Float:
    """Return features [..., f] in standard deviations, clipped to four of them."""
    scaled: Float = np.minimum(np.maximum((features - centre) / scale, np.float32(-4)), np.float32(4))
    return scaled


def class_probabilities(logits: Sequence[float]) -> list[float]:
    """Return P of each class from the logits of P(class <= k); a running maximum orders cuts that cross."""
    probabilities: list[float] = []
    below = 0.0
    for logit in logits:
        cumulative = max(below, 1.0 / (1.0 + math.exp(-min(max(logit, -_MOST_LOGIT), _MOST_LOGIT))))
        probabilities.append(cumulative - below)
        below = cumulative
    clipped = [max(p, LEAST) for p in (*probabilities, 1.0 - below)]
    total = sum(clipped)
    return [p / total for p in clipped]


def load_complexity(path: Path = SHIPPED) -> ComplexityModel:
    """Load the model in `path`. Raises `ArtefactError` naming what is wrong with the file."""
    from safetensors import safe_open

    try:
        tensors: Tensors = load_file(path)
        with safe_open(path, "np") as file:
            encoder = (file.metadata() or {})["encoder"]
        surface = tensors["surface"].astype(np.float32)
        trees = {f"encoder.{name}": array for name, array in tensors.items() if name.startswith("tree_")}
        return ComplexityModel(
            trigrams=tensors["trigrams"].astype(np.float32),
            words=tensors["words"].astype(np.float32),
            embedding=tensors["embedding"].astype(np.float32),
            surface=surface,
            centre=tensors["centre"].astype(np.float32),
            scale=tensors["scale"].astype(np.float32),
            bias=tensors["bias"].astype(np.float32),
            tree_bias=tensors["linear_tree_bias"].astype(np.float32),
            trees=Trees.from_tensors(trees, features=len(surface) + CUTS, heads=CUTS),
            encoder=encoder,
        )
    except (OSError, SafetensorError, KeyError, ValueError) as error:
        raise ArtefactError(f"{path}: {error}. Install the package again, or train the file.") from error


@cache
def shipped_complexity() -> ComplexityModel:
    """Return the model that ships with this package. Raises `ArtefactError`."""
    return load_complexity()
