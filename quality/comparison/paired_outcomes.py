"""Compare two routing policies on the same full-ladder probes, where the outcome of every possible choice is known; and
the cost-quality curve of a classifier version over quality targets, measured on the same probes."""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import msgspec
import numpy as np
import numpy.typing as npt
from sqlalchemy import select
from sqlalchemy.ext.asyncio import AsyncEngine

from classifier.complexity.classes import adequacies, like_of
from classifier.complexity.model import shipped_complexity, standardised
from classifier.model.learned import LearnedHead
from classifier.model.outcome_model import OutcomeModel
from classifier.policy.utility import highest_utility, utility
from migrations.tables.quality import training_rows
from quality import statistics
from quality.comparison.decision_gain import Serving, reference_serving
from quality.verification.training_rows import ANY_CLASS, feature_spec, vector_of

Float = npt.NDArray[np.floating]


class Vectors(NamedTuple):
    """A prompt as stored: the bytes of its embedding and features, of the encoder `spec` (`feature_spec`)."""

    spec: str
    embedding: bytes
    features: bytes | None


class LadderOutcomes(NamedTuple):
    """Full-ladder probes, oldest first: P of the prompts' complexity `classes` [n, 4] and `no_worse` [n, tiers], 0 or
    1; and, where they are known, the prompts' vectors [n]."""

    classes: Float
    no_worse: Float
    vectors: Sequence[Vectors] = ()


Choice = Callable[[LadderOutcomes], npt.NDArray[np.intp]]
"""Column [n] of the tier that a way of routing gives each probe to."""


class Paired(msgspec.Struct, frozen=True, kw_only=True):
    """One routing policy against another on the same probes. All evidence is anytime-valid: it may be checked after
    every probe.
    """

    probes: int = 0
    other_choice: int = 0
    gain: float = 0.0
    """Mean difference of utility (`classifier.policy.utility`)."""
    worse: float = 0.0
    """The part of the gain that is the difference of the shares of worse answers."""
    cost: float = 0.0
    """The part of the gain that is the difference of the costs, relative to the strongest tier's."""
    harm: float = 1.0
    """Evidence that the gain is below 0."""
    harmless: float = 1.0
    """Evidence that the gain is above `-margin`."""
    benefit: float = 1.0
    """Evidence that the gain is above 0."""


async def ladder_outcomes_since(
    engine: AsyncEngine, since: float, tiers: int, *, newest: int | None = None
) -> LadderOutcomes:
    """Return the probes stored after `since` (epoch seconds) with an outcome for each of `tiers`, at most the `newest`
    ones. Probes of a catalogue with another number of tiers are left out."""
    query = (
        select(
            training_rows.c.classes,
            training_rows.c.no_worse,
            training_rows.c.feature_spec,
            training_rows.c.embedding,
            training_rows.c.features,
        )
        .where(training_rows.c.source == "probe", training_rows.c.created_at > since)
        .order_by(training_rows.c.created_at.desc(), training_rows.c.training_row_id.desc())
        .limit(newest)
    )
    async with engine.connect() as connection:
        newest_rows = (await connection.execute(query)).all()
    rows = [row for row in reversed(newest_rows) if None not in row.no_worse and len(row.no_worse) == tiers]
    return LadderOutcomes(
        np.array([row.classes or ANY_CLASS for row in rows], np.float64).reshape(-1, len(ANY_CLASS)),
        np.array([row.no_worse for row in rows], np.float64).reshape(-1, tiers),
        [Vectors(row.feature_spec, row.embedding, row.features) for row in rows],
    )


def table_of(model: OutcomeModel, tiers: int, prior: Sequence[Sequence[float]] = ()) -> Float:
    """Return a version's P(good enough) by class [4, tiers - 1] without own labels or a head.

    This is the table that the version learned if it was learned for `tiers` tiers, else `prior` [4][tiers], else the
    default for evenly spread tiers.
    """
    learned = model.adequacy
    if learned is not None and learned.shape[1] == tiers - 1:
        return learned
    if prior and len(prior[0]) == tiers:
        return np.array(prior, np.float64)[:, :-1]
    return adequacies(like_of(tiers))[:, :-1]


def served_as(serving: Serving | None, tiers: int) -> Serving:
    """Return how the catalogue serves; None, and another number of tiers, is the default target at reference
    prices."""
    return serving if serving is not None and len(serving.cost_shares) == tiers else reference_serving(tiers)


def most_difference(serving: Serving) -> float:
    """Return the largest possible difference of utility: one more good answer, for the price of the strongest tier."""
    return 1.0 + serving.exchange


def choice_of(
    model: OutcomeModel, tiers: int, prior: Sequence[Sequence[float]] = (), serving: Serving | None = None
) -> Choice:
    """Return the choice of a version that maximises utility: by its head over all keys, if it learned one for `tiers`
    tiers and the probe's vectors are of its encoder, else by its table (`table_of`). `serving` as in `served_as`."""
    served = served_as(serving, tiers)
    table, learned = table_of(model, tiers, prior), model.adequacy
    head = model.learned_head if learned is not None and learned.shape[1] == tiers - 1 else None

    def choose(probes: LadderOutcomes) -> npt.NDArray[np.intp]:
        p_ok = p_ok_of(table, probes)
        if head is not None:
            _replace_by_head(p_ok, head, model, probes)
        return highest_utility(p_ok, served.prices, served.exchange)

    return choose


def _replace_by_head(p_ok: Float, head: LearnedHead, model: OutcomeModel, probes: LadderOutcomes) -> None:
    """Overwrite `p_ok` [n, tiers] of the probes whose vectors are of the model's encoder."""
    spec, names, scale = feature_spec(model.manifest), len(model.manifest.feature_names), shipped_complexity()
    encoded = [
        (i, vectors)
        for i, vectors in enumerate(probes.vectors)
        if vectors.spec == spec and vectors.features is not None
    ]
    if not encoded:
        return
    rows = [i for i, _ in encoded]
    features = np.stack([vector_of(vectors.features or b"")[:names] for _, vectors in encoded])
    embedding = np.stack([vector_of(vectors.embedding) for _, vectors in encoded])
    surface = standardised(features, scale.centre, scale.scale)
    p_ok[rows, :-1] = head.p(probes.classes[rows].astype(np.float32), embedding, surface)


def p_ok_of(table: Float, probes: LadderOutcomes) -> Float:
    """Return P(good enough) [n, tiers] of the probes by `table` [4, tiers - 1]; the strongest tier's is 1."""
    return np.hstack([probes.classes @ table, np.ones((len(probes.classes), 1))])


def tier_choice(tier: int) -> Choice:
    return lambda probes: np.full(len(probes.no_worse), tier - 1)


def compare(
    probes: LadderOutcomes, new: Choice, old: Choice, *, margin: float, serving: Serving | None = None
) -> Paired:
    """Compare `new` with `old` by the utility of a catalogue that serves as `serving` says (`served_as`)."""
    n = len(probes.no_worse)
    if not n:
        return Paired()
    served = served_as(serving, probes.no_worse.shape[1])
    prices, most = served.prices, most_difference(served)
    each, ours, theirs = np.arange(n), new(probes), old(probes)
    utilities = utility(probes.no_worse, prices, prices[-1], served.exchange)
    gain = utilities[each, ours] - utilities[each, theirs]
    worse = probes.no_worse[each, theirs] - probes.no_worse[each, ours]
    cost = (prices[ours] - prices[theirs]) / prices[-1]
    return Paired(
        probes=n,
        other_choice=int((ours != theirs).sum()),
        gain=round(float(gain.mean()), 6),
        worse=round(float(worse.mean()), 6),
        cost=round(float(cost.mean()), 6),
        harm=statistics.evidence(-gain, most),
        harmless=statistics.evidence(gain + margin, most - margin),
        benefit=statistics.evidence(gain, most),
    )
