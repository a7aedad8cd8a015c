"""A judge's error rates from real pairs: verdicts on answers of which a check or an operator says the truth as well.

Planted errors are easier than real ones, so a test on planted pairs is only a weak prior (`PRIOR` pseudo-verdicts per
truth). Three kinds of verdicts count on top: those on pairs that a rule decided; those that an operator has read, who
picks them by what the judge said; and the others, of which only the share of "worse" is known. What an operator reads
depends on the verdict alone, so the reviews tell the truth given the verdict (Begg and Greenes 1983, "Assessment of
diagnostic tests when disease verification is subject to selection bias"), and the judge's shares of verdicts give the
rest: a latent class of two values with one rater (Dawid and Skene 1979) whose truth is partly known. The posterior of
sensitivity, specificity and the share of answers that are no worse is computed on a grid.

Feedback of callers counts for their own keys alone, so it moves no judge's weight.
"""

from typing import Final

import numpy as np
from numpy.typing import NDArray
from sqlalchemy import func, select
from sqlalchemy.ext.asyncio import AsyncEngine

from migrations.tables.quality import verifications
from quality.estimates.upgrade_rate import PEOPLE, has_verdict
from quality.judges.calibration import Bias, Calibration, InUse, RealPairs, Verdicts

# Pseudo-verdicts per truth that a test on planted or generated pairs is worth.
PRIOR = 8.0
# The newest verdicts that count, and how many of them the share of "worse" counts for at most: it is that of other
# prompts than the checked ones.
NEWEST_VERDICTS, MOST_SHARED = 2_000, 400.0
# The score of a verification that an operator's review gave; `PEOPLE` is a caller's.
REVIEW: Final = "review"
# The score that is the answer's share of the characters of both answers.
LENGTH: Final = "length"

_RATES = (np.arange(81) + 0.5) / 81
_SHARES = (np.arange(61) + 0.5) / 61

Grid = NDArray[np.float64]


def in_use(prior: Calibration, pairs: RealPairs) -> InUse:
    """Return the error rates by `pairs` on top of the `prior`: means, and the balanced accuracy's 95% interval."""
    s, c, p = np.meshgrid(_RATES, _RATES, _SHARES, indexing="ij", sparse=True)
    known = [a + b for a, b in zip(_prior_verdicts(prior), pairs.checked.in_order, strict=True)]
    log = known[0] * np.log(s) + known[1] * np.log1p(-s) + known[2] * np.log(c) + known[3] * np.log1p(-c)
    said_fine, said_worse = p * s + (1 - p) * (1 - c), p * (1 - s) + (1 - p) * c
    fine, worse = _shared(pairs)
    log = log + fine * np.log(said_fine) + worse * np.log(said_worse)
    right_fine, wrong_worse, right_worse, wrong_fine = pairs.reviewed.in_order
    log += right_fine * np.log(p * s / said_fine) + wrong_fine * np.log((1 - p) * (1 - c) / said_fine)
    log += right_worse * np.log((1 - p) * c / said_worse) + wrong_worse * np.log(p * (1 - s) / said_worse)
    posterior = np.exp(log - log.max()).sum(axis=2)
    posterior /= posterior.sum()
    return _summary(posterior, pairs)


def _prior_verdicts(prior: Calibration) -> tuple[float, ...]:
    """Return pseudo-verdicts by truth and verdict: answers of the catalogue's own tiers count in full."""
    counts = (prior.true_no_worse, prior.false_worse, prior.true_worse, prior.false_no_worse)
    if prior.pairs == "answered":
        return tuple(map(float, counts))
    shares = (prior.sensitivity, 1 - prior.sensitivity, prior.specificity, 1 - prior.specificity)
    return tuple(PRIOR * share for share in shares)


def _shared(pairs: RealPairs) -> tuple[float, float]:
    """Return how often the judge said of open answers that they are no worse, and worse, as far as that counts."""
    reviewed = pairs.reviewed
    fine = pairs.said_no_worse + reviewed.true_no_worse + reviewed.false_no_worse
    worse = pairs.said_worse + reviewed.true_worse + reviewed.false_worse
    scale = min(1.0, MOST_SHARED / max(fine + worse, 1))
    return scale * fine, scale * worse


def _summary(posterior: Grid, pairs: RealPairs) -> InUse:
    balanced = (_RATES[:, None] + _RATES[None, :]) / 2
    order = np.argsort(balanced, axis=None)
    below = np.cumsum(posterior.ravel()[order])
    low, high = (float(balanced.ravel()[order][np.searchsorted(below, level)]) for level in (0.025, 0.975))
    return InUse(
        pairs=pairs,
        sensitivity=float(posterior.sum(axis=1) @ _RATES),
        specificity=float(posterior.sum(axis=0) @ _RATES),
        low=low,
        high=high,
    )


async def newest_verdict(engine: AsyncEngine, judging: str) -> float:
    """Return when the newest verdict of the judge of that fingerprint was stored or reviewed; 0.0 without one."""
    query = select(func.max(verifications.c.finished_at)).where(verifications.c.judging == judging)
    async with engine.connect() as connection:
        return await connection.scalar(query) or 0.0


async def real_pairs(engine: AsyncEngine, judge: str, judging: str, since: float) -> RealPairs:
    """Count the newest verdicts of `judge` of the fingerprint `judging`, later than `since` (epoch seconds)."""
    v = verifications.c
    query = (
        select(v.judge, v.label, v.scores)
        .where(v.judging == judging, v.finished_at > since, has_verdict())
        .order_by(v.finished_at.desc())
        .limit(NEWEST_VERDICTS)
    )
    async with engine.connect() as connection:
        rows = (await connection.execute(query)).all()
    checked, reviewed, said, bias = Verdicts(), Verdicts(), {True: 0, False: 0}, Bias()
    for decided, label, scores in rows:
        if (score := (scores or {}).get(judge)) is None:
            continue
        # A tie is no worse.
        truth, verdict = label != "worse", score > 0.0
        if decided == judge:
            said[verdict] += 1
        elif decided != PEOPLE:
            checked = checked.with_one(truth, verdict)
        elif REVIEW in scores:
            reviewed = reviewed.with_one(truth, verdict)
        else:
            continue
        if decided != judge and score == float(not truth) and LENGTH in scores:
            bias = bias.with_wrong(longer=(score == 1.0) is (scores[LENGTH] > 0.5))
    return RealPairs(checked=checked, reviewed=reviewed, said_no_worse=said[True], said_worse=said[False], bias=bias)
