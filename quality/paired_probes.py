"""Two ways of routing, compared on the same full-ladder probes: whatever either would choose, its outcome is known."""

from collections.abc import Callable
from typing import NamedTuple

import msgspec
import numpy as np
import numpy.typing as npt
from sqlalchemy import select
from sqlalchemy.ext.asyncio import AsyncEngine

from classifier.outcome_model import OutcomeModel
from classifier.worth import COST_WEIGHT, choose, reference_prices, utility
from migrations.tables import training_rows
from quality import betting

_F4 = np.dtype("<f4")
_BATCH = 512
# What an answer is worth differs by no more: an answer more, for the price of the strongest tier.
MOST = 1.0 + COST_WEIGHT

Float = npt.NDArray[np.floating]


class Probes(NamedTuple):
    """Full-ladder probes, oldest first: what the classifier sees, and `no_worse` [n, tiers] of 0 and 1.

    `vectors` [n, features + word logits] and `embedding` [n, d], float32, are those of the spec asked for.
    """

    vectors: npt.NDArray[np.float32]
    embedding: npt.NDArray[np.float32]
    no_worse: Float


Choice = Callable[[Probes], npt.NDArray[np.intp]]
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


async def probes_since(
    engine: AsyncEngine, since: float, tiers: int, feature_spec: str | None = None, *, newest: int | None = None
) -> Probes:
    """Those stored after `since` (epoch seconds) on which each of `tiers` has an outcome, of one encoder's or of any;
    at most the `newest`. Those of a catalogue with another number of tiers are left out."""
    columns = (training_rows.c.embedding, training_rows.c.features, training_rows.c.no_worse)
    query = (
        select(*columns)
        .where(training_rows.c.source == "probe", training_rows.c.created_at > since)
        .order_by(training_rows.c.created_at.desc(), training_rows.c.training_row_id.desc())
        .limit(newest)
    )
    if feature_spec is not None:
        query = query.where(training_rows.c.feature_spec == feature_spec, training_rows.c.features.is_not(None))
    async with engine.connect() as connection:
        found = (await connection.execute(query)).all()
    rows = [row for row in reversed(found) if None not in row.no_worse and len(row.no_worse) == tiers]
    no_worse = np.array([row.no_worse for row in rows], np.float64).reshape(-1, tiers)
    if feature_spec is None:
        nothing = np.zeros((len(rows), 0), np.float32)
        return Probes(nothing, nothing, no_worse)
    return Probes(
        np.array([np.frombuffer(row.features, _F4) for row in rows], np.float32),
        np.array([np.frombuffer(row.embedding, _F4) for row in rows], np.float32),
        no_worse,
    )


def choice_of(model: OutcomeModel) -> Choice:
    """What `model` chooses at the exchange rate of the yardstick, as it was judged before it was promoted."""

    def chosen(probes: Probes) -> npt.NDArray[np.intp]:
        return choose(p_ok_of(model, probes), reference_prices(model.manifest.tiers), "lambda", COST_WEIGHT)

    return chosen


def p_ok_of(model: OutcomeModel, probes: Probes) -> Float:
    """P(no worse) [n, tiers] that `model` gives the probes; the strongest tier's is 1."""
    names, weaker, parts = len(model.manifest.feature_names), model.manifest.tiers - 1, []
    for start in range(0, len(probes.vectors), _BATCH):
        vectors, embedding = (part[start : start + _BATCH] for part in (probes.vectors, probes.embedding))
        parts.append(model.outcomes(vectors[:, :names], embedding, vectors[:, names:]).p[:, :weaker])
    p = np.concatenate(parts) if parts else np.zeros((0, weaker), np.float32)
    return np.hstack([p, np.ones((len(p), 1))])


def tier_choice(tier: int) -> Choice:
    """The same tier for all."""
    return lambda probes: np.full(len(probes.no_worse), tier - 1)


def compare(probes: Probes, new: Choice, old: Choice, *, margin: float) -> Paired:
    """`new` against `old`."""
    n = len(probes.no_worse)
    if not n:
        return Paired()
    prices = reference_prices(probes.no_worse.shape[1])
    each, ours, theirs = np.arange(n), new(probes), old(probes)
    worth = utility(probes.no_worse, prices)
    gain = worth[each, ours] - worth[each, theirs]
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
