"""Rows that every classifier has to be compared with: chance, a hand-written rule, the domain's label, other models."""

import hashlib
import re
from abc import ABC, abstractmethod
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from classifier.training.dataset import HEADS, TIER_MODELS, OutcomeRow
from classifier.training.logistic import fit_logistic
from classifier.training.per_source import FALLBACK, families, family, labels_of, observed_heads
from classifier.training.platt import Platt

Float = npt.NDArray[np.float32]
Float64 = npt.NDArray[np.float64]
SMOOTHING = 5.0  # rows of the collection's rate that a domain's own rate is mixed with

_MATHS = re.compile(r"[=+*/^<>$]|\\[a-z]+|\b(?:equation|probability|percent|ratio|theorem|integral|polynomial)\b", re.I)
_CODE = re.compile(r"```|\bdef |\bclass |\bassert |\bimport |\breturn |\b(?:function|python|algorithm|sql)\b", re.I)
_REASONING = re.compile(
    r"\b(?:why|prove|explain|derive|compare|analy[sz]e|evaluate|not|except|unless|both|which)\b", re.I
)


class Scored(ABC):
    """A score per prompt, made a probability per collection and head by Platt scaling on the valid rows."""

    name = ""

    @abstractmethod
    def score(self, rows: Sequence[OutcomeRow]) -> Float64:
        """[rows]; greater where tiers are likelier right."""

    def fit(self, train: Sequence[OutcomeRow], valid: Sequence[OutcomeRow]) -> None:
        self._curves: dict[tuple[str, int], Platt] = {}
        labels, score = labels_of(valid), self.score(valid)
        for name, members in families(valid).items():
            for head in observed_heads(labels[members]):
                seen = members[~np.isnan(labels[members, head])]
                self._curves[name, head] = Platt.fit(score[seen], labels[seen, head])

    def predict(self, rows: Sequence[OutcomeRow]) -> Float:
        p = np.full((len(rows), len(HEADS)), np.nan, np.float32)
        score = self.score(rows)
        known = {name for name, _ in self._curves}
        for name, members in families(rows).items():
            for head in range(len(HEADS)):
                curve = self._curves.get((name if name in known else FALLBACK, head))
                if curve is not None:
                    p[members, head] = curve(score[members])
        return p


class Random(Scored):
    """Chance: how far luck alone moves the figures."""

    name = "random"

    def score(self, rows: Sequence[OutcomeRow]) -> Float64:
        # By id, so that neither the order of the rows nor the company they come in moves the figure.
        digests = (hashlib.blake2b(row.id.encode(), digest_size=8).digest() for row in rows)
        return np.array([int.from_bytes(digest, "big") / 2**64 for digest in digests])


class LengthHeuristic(Scored):
    """Long prompts with maths, code or reasoning words are hard: what a router without training would do."""

    name = "heuristic (length, keywords)"

    def score(self, rows: Sequence[OutcomeRow]) -> Float64:
        def difficulty(text: str) -> float:
            signs = (
                0.5 * len(_MATHS.findall(text)) + 0.5 * len(_CODE.findall(text)) + 0.3 * len(_REASONING.findall(text))
            )
            return float(np.log1p(len(text))) + signs

        return -np.array([difficulty(row.prompt) for row in rows])


class DomainMean:
    """Is told each row's true domain and predicts its training rate: what knowing the benchmark is worth.

    Within a domain it ranks nothing. A domain that trained nothing gets the collection's rate.
    """

    name = "domain's mean (label known)"

    def fit(self, train: Sequence[OutcomeRow], valid: Sequence[OutcomeRow]) -> None:
        labels = labels_of(train)
        self._overall: dict[str, Float64] = {}
        self._rates: dict[tuple[str, str], Float64] = {}
        for name, members in families(train).items():
            self._overall[name] = overall = _rate(labels[members], None)
            domains = np.array([train[i].domain for i in members], dtype=np.str_)
            for domain in np.unique(domains):
                self._rates[name, str(domain)] = _rate(labels[members[domains == domain]], overall)

    def predict(self, rows: Sequence[OutcomeRow]) -> Float:
        fallback = self._overall.get(FALLBACK, next(iter(self._overall.values())))
        found = [self._rates.get((family(row), row.domain), self._overall.get(family(row), fallback)) for row in rows]
        return np.array(found, np.float32).reshape(len(rows), len(HEADS))


def _rate(labels: Float64, prior: Float64 | None) -> Float64:
    """Rate of each head, NaN where it was never observed, mixed with `SMOOTHING` rows of `prior`."""
    seen = (~np.isnan(labels)).sum(axis=0)
    right = np.nansum(labels, axis=0)
    with np.errstate(invalid="ignore", divide="ignore"):
        if prior is None:
            rate: Float64 = np.where(seen > 0, (right + 0.5) / (seen + 1.0), np.nan)
        else:
            rate = (right + SMOOTHING * prior) / (seen + SMOOTHING)
    return rate


class OtherModels:
    """Predicts a model's outcome from what *other* models made of the same prompt: no router can know this beforehand.

    An estimate of how predictable the outcomes are at all once the difficulty of the prompt itself is known. Logistic
    regression on the other models' scores, per collection and tier; of `no_worse_k` the other models are all but k.
    """

    name = "other models' outcomes"

    def fit(self, train: Sequence[OutcomeRow], valid: Sequence[OutcomeRow]) -> None:
        rows = [*train, *valid]
        labels = labels_of(rows)
        self._models: dict[tuple[str, int], tuple[list[str], Float64, float]] = {}
        for name, members in families(rows).items():
            known = sorted({model for i in members for model in rows[i].outcomes})
            for head in observed_heads(labels[members]):
                others = [model for model in known if model not in _told(name, head)]
                seen = members[~np.isnan(labels[members, head])]
                if not others:
                    continue
                x = _scores([rows[i] for i in seen], others)
                coef, bias = fit_logistic(x, labels[seen, head], np.ones(len(seen)), c=1.0)
                self._models[name, head] = others, coef, bias

    def predict(self, rows: Sequence[OutcomeRow]) -> Float:
        p = np.full((len(rows), len(HEADS)), np.nan, np.float32)
        for name, members in families(rows).items():
            for head in range(len(HEADS)):
                if (name, head) in self._models:
                    others, coef, bias = self._models[name, head]
                    z = _scores([rows[i] for i in members], others) @ coef + bias
                    p[members, head] = 1 / (1 + np.exp(-z))
        return p


def _told(family_name: str, head: int) -> set[str]:
    """Models whose outcome a head is made of: they would tell it, not predict it."""
    ladder = TIER_MODELS[family_name]
    kind, tier = HEADS[head].rsplit("_", 1)
    told = {ladder[int(tier) - 1], ladder[-1]} if kind == "no_worse" else {ladder[int(tier) - 1]}
    return {model for model in told if model is not None}


def _scores(rows: Sequence[OutcomeRow], models: Sequence[str]) -> Float64:
    """[rows, models], centred at a half; 0 where a model did not answer."""
    return np.array([[row.outcomes.get(model, 0.5) - 0.5 for model in models] for row in rows], np.float64)
