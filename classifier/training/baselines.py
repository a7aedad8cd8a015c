"""The simple predictors that a classifier must beat: text features under a standard learner."""

from collections.abc import Sequence
from functools import cache

import numpy as np
import numpy.typing as npt

from classifier.training.dataset import HEADS, OutcomeRow
from classifier.training.learners import Fitted, Learner, logistic, mlp, neighbours
from classifier.training.per_source import FALLBACK, families, labels_of, observed_heads
from classifier.training.platt import Platt, logit
from classifier.training.text_features import Features, HandFeatures, Joined, Remembered, StaticFeatures, TfidfFeatures

Float = npt.NDArray[np.float32]
Float64 = npt.NDArray[np.float64]


class TextPredictor:
    """Features fitted on all training prompts, then one learner for each collection and head.

    Scores are made probabilities by Platt scaling on the valid rows, which leaves their ranking as it is. Fitting
    again on the same rows does nothing.
    """

    def __init__(self, name: str, features: Features, learner: Learner) -> None:
        self.name = name
        self._features, self._learner = features, learner
        self._rows: int | None = None
        self._models: dict[tuple[str, int], tuple[Fitted, Platt]] = {}

    def fit(self, train: Sequence[OutcomeRow], valid: Sequence[OutcomeRow]) -> None:
        key = hash((tuple(row.id for row in train), tuple(row.id for row in valid)))
        if key == self._rows:
            return
        self._models = {}
        self._features.fit([row.prompt for row in train])
        x, x_valid = (self._features.transform([row.prompt for row in rows]) for rows in (train, valid))
        y, y_valid = labels_of(train), labels_of(valid)
        others = families(valid)
        for name, members in families(train).items():
            for head in observed_heads(y[members]):
                at = members[~np.isnan(y[members, head])]
                tuned = others.get(name, members[:0])
                tuned = tuned[~np.isnan(y_valid[tuned, head])]
                fitted = self._learner(x[at], y[at, head], x_valid[tuned], y_valid[tuned, head])
                score = logit(fitted(x_valid[tuned]))
                self._models[name, head] = fitted, Platt.fit(score, y_valid[tuned, head])
        self._rows = key

    def predict(self, rows: Sequence[OutcomeRow]) -> Float:
        p = np.full((len(rows), len(HEADS)), np.nan, np.float32)
        x = self._features.transform([row.prompt for row in rows])
        known = {name for name, _ in self._models}
        for name, members in families(rows).items():
            for head in range(len(HEADS)):
                if (model := self._models.get((name if name in known else FALLBACK, head))) is not None:
                    fitted, curve = model
                    p[members, head] = curve(logit(fitted(x[members])))
        return p


class MeanLogit:
    """The mean of several predictors' logits; they are fitted if they are not yet."""

    def __init__(self, name: str, parts: Sequence[TextPredictor]) -> None:
        self.name, self._parts = name, parts

    def fit(self, train: Sequence[OutcomeRow], valid: Sequence[OutcomeRow]) -> None:
        for part in self._parts:
            part.fit(train, valid)

    def predict(self, rows: Sequence[OutcomeRow]) -> Float:
        logits = np.mean([logit(part.predict(rows).astype(np.float64)) for part in self._parts], axis=0)
        p: Float = (1 / (1 + np.exp(-logits))).astype(np.float32)
        return p


# Features and predictors are made once, so that rows of the table which share them compute them once.
@cache
def _hand() -> Remembered:
    return Remembered(HandFeatures(), "hand-made counts")


@cache
def _tfidf() -> Remembered:
    return Remembered(TfidfFeatures(), "TF-IDF, words and characters")


@cache
def _static() -> Remembered:
    return Remembered(StaticFeatures(), "tokenise, static 256-d")


@cache
def hand_logistic() -> TextPredictor:
    return TextPredictor("hand + LR", _hand(), logistic)


@cache
def tfidf_logistic() -> TextPredictor:
    return TextPredictor("TF-IDF + LR", _tfidf(), logistic)


@cache
def static_logistic() -> TextPredictor:
    return TextPredictor("static-256 + LR", _static(), logistic)


@cache
def static_mlp() -> TextPredictor:
    return TextPredictor("static-256 + MLP", _static(), mlp)


@cache
def static_neighbours() -> TextPredictor:
    return TextPredictor("static-256 + kNN", _static(), neighbours)


@cache
def hand_static_logistic() -> TextPredictor:
    return TextPredictor("hand+static + LR", Joined(_hand(), _static()), logistic)


@cache
def mean_logit() -> MeanLogit:
    return MeanLogit("mean logit: TF-IDF, hand+static", [tfidf_logistic(), hand_static_logistic()])


def dense_features() -> list[Remembered]:
    """The feature groups of the baselines, as they are shared between them."""
    return [_hand(), _tfidf(), _static()]
