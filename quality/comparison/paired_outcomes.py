"""Two ways of routing, compared on the same full-ladder probes: whatever either would choose, its outcome is known."""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import msgspec
import numpy as np
import numpy.typing as npt
from sqlalchemy import select
from sqlalchemy.ext.asyncio import AsyncEngine

from classifier.complexity.prior import adequacies, like_of
from classifier.model.outcome_model import OutcomeModel
from classifier.policy.utility import COST_WEIGHT, highest_utility, reference_prices, utility
from migrations.tables import training_rows
from quality.statistics import betting
from quality.verification.training_rows import ANY_CLASS

# What an answer is worth differs by no more: an answer more, for the price of the strongest tier.
MOST = 1.0 + COST_WEIGHT

Float = npt.NDArray[np.floating]


class LadderOutcomes(NamedTuple):
    """Full-ladder probes, oldest first: P of the prompts' complexity `classes` [n, 4], and `no_worse` [n, tiers] of 0
    and 1."""

    classes: Float
    no_worse: Float


Choice = Callable[[LadderOutcomes], npt.NDArray[np.intp]]
"""Column [n] of the tier that a way of routing gives each probe to."""


class Paired(msgspec.Struct, frozen=True, kw_only=True):
    """What probes say of one way of routing against another.

    `gain`: mean difference of utility, the share no worse minus 0.1 of the cost share; `worse` and `cost`: its parts,
    the differences of the share of worse answers and of the cost relative to the strongest tier's. `harm`: evidence
    that the gain is below 0; `harmless`: that it is above `-margin`; `benefit`: that it is above 0. All of it may be
    looked at after every probe.
    """

    probes: int = 0
    other_choice: int = 0
    gain: float = 0.0
    worse: float = 0.0
    cost: float = 0.0
    harm: float = 1.0
    harmless: float = 1.0
    benefit: float = 1.0


async def ladder_outcomes_since(
    engine: AsyncEngine, since: float, tiers: int, *, newest: int | None = None
) -> LadderOutcomes:
    """Those stored after `since` (epoch seconds) on which each of `tiers` has an outcome; at most the `newest`. Those
    of a catalogue with another number of tiers are left out."""
    query = (
        select(training_rows.c.classes, training_rows.c.no_worse)
        .where(training_rows.c.source == "probe", training_rows.c.created_at > since)
        .order_by(training_rows.c.created_at.desc(), training_rows.c.training_row_id.desc())
        .limit(newest)
    )
    async with engine.connect() as connection:
        found = (await connection.execute(query)).all()
    rows = [row for row in reversed(found) if None not in row.no_worse and len(row.no_worse) == tiers]
    return LadderOutcomes(
        np.array([row.classes or ANY_CLASS for row in rows], np.float64).reshape(-1, len(ANY_CLASS)),
        np.array([row.no_worse for row in rows], np.float64).reshape(-1, tiers),
    )


def table_of(model: OutcomeModel, tiers: int, prior: Sequence[Sequence[float]] = ()) -> Float:
    """[4, tiers - 1]: what a version says of `tiers` tiers by class without own labels: the table that it learned of as
    many tiers, else `prior` [4][tiers], else that of tiers spread evenly."""
    learned = model.adequacy
    if learned is not None and learned.shape[1] == tiers - 1:
        return learned
    if prior and len(prior[0]) == tiers:
        return np.array(prior, np.float64)[:, :-1]
    return adequacies(like_of(tiers))[:, :-1]


def choice_of(table: Float) -> Choice:
    """What a version with this `table` [4, tiers - 1] chooses at the exchange rate of the yardstick: a version whose
    probabilities are nearer to the truth then never loses by them, whatever target is served."""
    return lambda probes: highest_utility(p_ok_of(table, probes), reference_prices(table.shape[1] + 1))


def p_ok_of(table: Float, probes: LadderOutcomes) -> Float:
    """P(good enough) [n, tiers] that `table` [4, tiers - 1] gives the probes; the strongest tier's is 1."""
    return np.hstack([probes.classes @ table, np.ones((len(probes.classes), 1))])


def tier_choice(tier: int) -> Choice:
    """The same tier for all."""
    return lambda probes: np.full(len(probes.no_worse), tier - 1)


def compare(probes: LadderOutcomes, new: Choice, old: Choice, *, margin: float) -> Paired:
    """`new` against `old`."""
    n = len(probes.no_worse)
    if not n:
        return Paired()
    prices = reference_prices(probes.no_worse.shape[1])
    each, ours, theirs = np.arange(n), new(probes), old(probes)
    utilities = utility(probes.no_worse, prices)
    gain = utilities[each, ours] - utilities[each, theirs]
    worse = probes.no_worse[each, theirs] - probes.no_worse[each, ours]
    cost = (prices[ours] - prices[theirs]) / prices[-1]
    return Paired(
        probes=n,
        other_choice=int((ours != theirs).sum()),
        gain=round(float(gain.mean()), 6),
        worse=round(float(worse.mean()), 6),
        cost=round(float(cost.mean()), 6),
        harm=betting.evidence(-gain, MOST),
        harmless=betting.evidence(gain + margin, MOST - margin),
        benefit=betting.evidence(gain, MOST),
    )
