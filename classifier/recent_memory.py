"""Verified outcomes since an artefact was trained: P(no worse) falls where they contradict it.

Two steps. *Is something wrong here?* Each recent outcome near a prompt gives a likelihood ratio between raised odds of
a worse answer and those that were predicted; their product, weighted by nearness, is an e-value, so that chance brings
it to `RecentSettings.evidence` in a neighbourhood with probability 1 / evidence at most (Vovk and Wang 2021).
*How wrong?* There P(no worse) is multiplied by the standardised ratio of observed to expected good answers, shrunk
towards 1 (Clayton and Kaldor 1987).

Nothing here ever raises a probability, and nothing looks at prices or quality targets.
"""

from typing import NamedTuple

import msgspec
import numpy as np
import numpy.typing as npt

from classifier.memory import Memory
from classifier.outcome_model import P_MIN

Float = npt.NDArray[np.float32]

# By how much the log odds of a worse answer may have risen; evidence is the mean over all of them.
SHIFTS = (0.5, 1.0, 2.0, 3.0)
_FACTORS = np.exp(SHIFTS)
# Powers of nearness: what is wrong may be a whole kind of prompts, or a few among many others that are fine.
SCALES = (1, 4)
_LEAST, _MOST = 0.005, 0.95
_SAMPLE = 512
_LOG_MOST = 80.0


class RecentSettings(msgspec.Struct, frozen=True, kw_only=True):
    """`capacity` outcomes at most are kept, each for `max_age_seconds`.

    `evidence`: e-value from which a neighbourhood is repaired. `tolerance`: how much more often than predicted answers
    may be worse and nobody minds. `prior`: expected good answers that count for the artefact's own word.
    `most_neighbourhoods` are listed and in force at a time. Raises `ValueError`.
    """

    capacity: int = 2048
    max_age_seconds: float = 7 * 86_400.0
    evidence: float = 20.0
    tolerance: float = 0.03
    prior: float = 2.0
    most_neighbourhoods: int = 64

    def __post_init__(self) -> None:
        for name in ("capacity", "most_neighbourhoods"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} is {getattr(self, name)}; it must be at least 1")
        for name in ("max_age_seconds", "prior"):
            if not getattr(self, name) > 0.0:
                raise ValueError(f"{name} is {getattr(self, name)}; it must be above 0")
        if not self.evidence > 1.0:
            raise ValueError(f"evidence is {self.evidence}; it must be above 1")
        if not 0.0 <= self.tolerance < 1.0:
            raise ValueError(f"tolerance is {self.tolerance}; it must lie in [0, 1)")


class Reach(NamedTuple):
    """Nearness by cosine: 0 up to `far`, where most prompts are to each other, 1 from `near`, where neighbours are."""

    far: float
    near: float

    @classmethod
    def of(cls, memory: Memory) -> "Reach":
        """What cosines mean to the encoder that filled `memory`: between any two prompts, and between neighbours."""
        some = memory.vectors[:: max(len(memory) // _SAMPLE, 1)][:_SAMPLE]
        between = (some @ some.T)[~np.eye(len(some), dtype=np.bool_)]
        far = float(np.quantile(between, 0.95)) if between.size else 0.0
        near = 1.0 - float(np.median(memory.distances)) if len(memory) else 1.0
        return cls(far, max(near, far + 0.05))

    def nearness(self, cosine: Float) -> Float:
        """In [0, 1], of the shape of `cosine`."""
        near: Float = np.clip((cosine - np.float32(self.far)) / np.float32(self.near - self.far), 0.0, 1.0)
        return near


class Neighbourhood(NamedTuple):
    """A place where the probabilities of a `tier` are lowered. Of `answers` (sum of nearness) `worse` were worse, where
    `expected` were predicted; `factor` in (0, 1) multiplies P(no worse). Times in epoch seconds."""

    tier: int
    answers: float
    worse: float
    expected: float
    evidence: float
    factor: float
    embedding: Float
    oldest: float
    newest: float
    expires: float


class RecentOutcomes:
    """Immutable: what `RecentMemory` knew at one moment; `adjust` is pure and safe from many threads."""

    def __init__(
        self, reach: Reach, settings: RecentSettings, embeddings: Float, tables: Float, at: npt.NDArray[np.float64]
    ) -> None:
        self._reach, self._settings = reach, settings
        self._embeddings, self._tables, self._at = embeddings, tables, at
        self._centres = embeddings[:0]

    def __len__(self) -> int:
        return len(self._embeddings)

    @property
    def centres(self) -> Float:
        """[c, dim]: the middles of the neighbourhoods in force."""
        return self._centres

    def adjust(self, embeddings: Float, p_ok: Float) -> Float:
        """`p_ok` [n, tiers - 1] of prompts `embeddings` [n, dim], lowered where recent outcomes contradict it."""
        if not len(self._centres):
            return p_ok
        touched = np.flatnonzero(((embeddings @ self._centres.T) > self._reach.far).any(axis=1))
        if not len(touched):
            return p_ok
        evidence, factor, _ = self._look_up(embeddings[touched])
        adjusted = p_ok.copy()
        lowered = np.where(evidence >= self._settings.evidence, p_ok[touched] * factor, p_ok[touched])
        adjusted[touched] = np.minimum(np.maximum(lowered, P_MIN), p_ok[touched])
        return adjusted

    def neighbourhoods(self) -> list[Neighbourhood]:
        """Where something is in force, the strongest evidence first."""
        found = []
        if len(self._centres):
            evidence, factor, sums = self._look_up(self._centres)
            near = self._reach.nearness(self._centres @ self._embeddings.T) > 0
            for centre, tier in np.argwhere(evidence >= self._settings.evidence):
                known = near[centre] & (self._tables[:, tier, -1] > 0)
                times = self._at[known]
                good, expected, answers = sums[centre, tier].tolist()
                found.append(
                    Neighbourhood(
                        tier=int(tier) + 1,
                        answers=answers,
                        worse=max(answers - good, 0.0),
                        expected=answers - expected,
                        evidence=float(evidence[centre, tier]),
                        factor=float(factor[centre, tier]),
                        embedding=self._centres[centre],
                        oldest=float(times.min()),
                        newest=float(times.max()),
                        expires=float(times.max()) + self._settings.max_age_seconds,
                    )
                )
        return sorted(found, key=lambda one: -one.evidence)

    def with_centres(self, candidates: Float) -> "RecentOutcomes":
        """The same outcomes, in force around those `candidates` [c, dim] that have the evidence, none near another."""
        again = RecentOutcomes(self._reach, self._settings, self._embeddings, self._tables, self._at)
        if len(candidates) and len(self):
            evidence = self._look_up(candidates)[0].max(axis=1)
            kept: list[int] = []
            for one in np.argsort(-evidence, kind="stable"):
                if evidence[one] < self._settings.evidence or len(kept) == self._settings.most_neighbourhoods:
                    break
                if not kept or (candidates[kept] @ candidates[one]).max() < self._reach.near:
                    kept.append(int(one))
            again._centres = candidates[kept]
        return again

    def _look_up(self, embeddings: Float) -> tuple[Float, Float, Float]:
        """Per prompt and tier: evidence and factor [n, tiers - 1], and sums [n, tiers - 1, 3] of good answers, of those
        expected and of all, by nearness at the scale that tells most."""
        near = self._reach.nearness(embeddings @ self._embeddings.T)
        known = np.flatnonzero(near.any(axis=0))
        near, tables = near[:, known], self._tables[known]
        scales = np.stack([np.tensordot(near**power, tables, axes=1) for power in SCALES])
        # Means of e-values are e-values, over shifts and over scales.
        evidence = np.exp(np.minimum(scales[..., : len(SHIFTS)], _LOG_MOST)).mean(axis=-1)
        telling = np.argmax(evidence, axis=0)[None, ..., None]
        sums = np.maximum(np.take_along_axis(scales[..., -3:], telling, axis=0)[0], 0.0)
        factor = np.minimum((self._settings.prior + sums[..., 0]) / (self._settings.prior + sums[..., 1]), 1.0)
        return evidence.mean(axis=0), factor, sums


class RecentMemory:
    """The last verified outcomes, oldest first; one owner changes it, and readers take its `snapshot`.

    Labels of a judge that errs are discounted: `weights` are its informedness, twice its balanced accuracy less 1. How
    likely a request was to be verified does not matter here: it depends on the prompt and the decision alone, and
    outcomes are compared with what was predicted for the very same prompts.
    """

    def __init__(self, reach: Reach, tiers: int, settings: RecentSettings | None = None) -> None:
        self.settings = settings or RecentSettings()
        self._reach, self._weaker = reach, tiers - 1
        self._at = np.zeros(0)
        self._embeddings = self._centres = np.zeros((0, 0), np.float32)
        self._tables = np.zeros((0, self._weaker, len(SHIFTS) + 3), np.float32)
        self._snapshot: RecentOutcomes | None = None
        self._expires = np.inf

    def __len__(self) -> int:
        return len(self._at)

    @property
    def newest(self) -> float:
        """When the last outcome was taken in for, in epoch seconds; minus infinity before the first."""
        return float(self._at[-1]) if len(self) else -np.inf

    def add(self, embeddings: Float, no_worse: Float, p_ok: Float, weights: Float, at: npt.ArrayLike) -> None:
        """Take in n outcomes: `embeddings` [n, dim] of unit length, `no_worse` [n, tiers - 1] with NaN unobserved, what
        the artefact predicts for them `p_ok` [n, tiers - 1], `weights` [n] in [0, 1], times `at` [n] ascending."""
        if not len(embeddings):
            return
        fresh = _tables(no_worse, p_ok, np.asarray(weights, np.float32)[:, None], self.settings.tolerance)
        kept = slice(-self.settings.capacity, None)
        self._embeddings = _joined(self._embeddings, embeddings)[kept]
        self._tables = np.concatenate([self._tables, fresh])[kept]
        self._at = np.concatenate([self._at, np.asarray(at, np.float64)])[kept]
        # A neighbourhood comes into force with a worse answer in it.
        self._centres = _joined(self._centres, embeddings[(no_worse < 0.5).any(axis=1)])
        self._snapshot = None

    def snapshot(self, now: float) -> RecentOutcomes:
        """What is known at `now` (epoch seconds) and has not expired."""
        if self._snapshot is None or now >= self._expires:
            self._forget_before(now - self.settings.max_age_seconds)
            outcomes = RecentOutcomes(self._reach, self.settings, self._embeddings, self._tables, self._at)
            self._snapshot = outcomes.with_centres(self._centres)
            self._centres = self._snapshot.centres
            self._expires = self._at[0] + self.settings.max_age_seconds if len(self) else np.inf
        return self._snapshot

    def adjust(self, embeddings: Float, p_ok: Float, now: float) -> Float:
        """`RecentOutcomes.adjust` of what is known at `now`."""
        return self.snapshot(now).adjust(embeddings, p_ok)

    def _forget_before(self, oldest: float) -> None:
        first = int(np.searchsorted(self._at, oldest, side="right"))
        self._at, self._embeddings, self._tables = self._at[first:], self._embeddings[first:], self._tables[first:]


def _joined(old: Float, new: Float) -> Float:
    return np.concatenate([old.reshape(-1, new.shape[1]), new]).astype(np.float32, copy=False)


def _tables(no_worse: Float, p_ok: Float, weights: Float, tolerance: float) -> Float:
    """[n, tiers - 1, shifts + 3]: what each outcome adds, at nearness 1, to the log ratio of every shift, to the good
    answers, to those expected, and to all; nothing where it was not observed."""
    seen = ~np.isnan(no_worse) & (weights > 0)
    worse = np.nan_to_num(no_worse) < 0.5
    allowed = np.clip(1.0 - p_ok + tolerance, _LEAST, _MOST)
    error = (1.0 - weights) / 2.0

    def judged_worse(probability: npt.NDArray[np.floating]) -> npt.NDArray[np.floating]:
        return error + weights * probability

    odds = allowed / (1.0 - allowed)
    columns = []
    for factor in _FACTORS:
        shifted = judged_worse(factor * odds / (1.0 + factor * odds))
        usual = judged_worse(allowed)
        columns.append(np.where(worse, np.log(shifted / usual), np.log((1.0 - shifted) / (1.0 - usual))))
    # An unbiased count of good answers by a judge that errs, each weighted by what such a judge tells.
    columns += [weights * (~worse - error), weights**2 * p_ok, np.broadcast_to(weights**2, p_ok.shape)]
    stacked: Float = np.where(seen[..., None], np.stack(columns, axis=-1), 0.0).astype(np.float32)
    return stacked
