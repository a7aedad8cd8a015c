"""How often the verdict on routing is wrong, and how many probes it takes, on recorded outcomes.

Probes are drawn from a file's rows with replacement, so that the truth about a router on them is known. A router sends
a share of the prompts to the tier of the highest utility in hindsight, the others to a tier drawn evenly. The share is
set so that it gains so many points of utility over the best fixed tier; without a gain, or with a loss, no verdict may
say that it pays. `shuffled` is the first router with a gain, its choices shuffled over the prompts. The verdict is
looked at after every probe.
"""

import gzip
import json
from collections.abc import Sequence
from math import log
from pathlib import Path
from typing import NamedTuple

import msgspec
import numpy as np
import numpy.typing as npt

from classifier.policy.utility import DEFAULT_EXCHANGE, utility
from quality.comparison.routing_worth import LEVEL, Probes, gains_of, sums_of_gains
from quality.estimates.verified_sample import Share, wilson_interval
from quality.statistics import log_evidence

Float = npt.NDArray[np.floating]
Bools = npt.NDArray[np.bool_]


class Found(msgspec.Struct, frozen=True, kw_only=True):
    """One router over all runs. `gain`: its true gain over the best fixed tier, in points of utility. `pays`: runs that
    found at any time that it pays; `pays_not`: that it does not. `probes`: the median until the first verdict of the
    runs with one."""

    router: str
    gain: float
    pays: Share
    pays_not: Share
    probes: float | None


class _Router(NamedTuple):
    """`best`: the share of prompts that go to the best tier in hindsight; `shuffled`: over the prompts."""

    name: str
    best: float
    shuffled: bool = False


def read_ladder(path: Path, models: Sequence[str]) -> Float:
    """Return whether each of `models` is no worse than the last one [n, tiers], of the rows of `path` with an
    outcome of all. Raises `ValueError` without any."""
    rows = []
    with gzip.open(path, "rt") if path.suffix == ".gz" else path.open() as lines:
        for line in lines:
            known = {name.lower(): outcome for name, outcome in json.loads(line)["outcomes"].items()}
            if all(model.lower() in known for model in models):
                rows.append([known[model.lower()] >= 0.5 for model in models])
    if not rows:
        raise ValueError(f"{path}: no row has outcomes of {', '.join(models)}")
    right = np.array(rows)
    no_worse: Float = (right | ~right[:, -1:]).astype(np.float64)
    return no_worse


def verdict_after_each(gains: Float, worth: float, weight: float) -> tuple[Bools, Bools]:
    """Return whether routing is found to pay [n], and not to pay [n], by `gains` [n, tiers + 1] up to each probe."""
    sums = [sums_of_gains(column, weight) for column in gains.T]
    supposed = worth / sums[0].scale * np.arange(1, len(gains) + 1)
    above = [log_evidence(one.total, one.variance) > log(1 / LEVEL) for one in sums]
    below = [log_evidence(supposed - one.total, one.variance) > log(len(sums) / LEVEL) for one in sums]
    pays = np.all(above, axis=0)
    return pays, np.any(below, axis=0) & ~pays


def verdicts(
    no_worse: Float, prices: Float, points: Sequence[float], *, worth: float, probes: int, runs: int, seed: int
) -> list[Found]:
    """Return what `runs` of `probes` each find of a router for each gain in `points`, and of the shuffled one. `worth`
    in utility. Raises `ValueError` for a gain that no router reaches."""
    weight = DEFAULT_EXCHANGE
    utilities = utility(no_worse, prices, prices[-1], weight)
    fixed, best, even = utilities.mean(axis=0).max(), utilities.max(axis=1).mean(), utilities.mean()
    routers = [_Router(f"{gain:+g} points", (gain / 100 + fixed - even) / (best - even)) for gain in points]
    if unreached := [one.name for one in routers if not 0 <= one.best <= 1]:
        raise ValueError(f"{', '.join(unreached)}: routers on this ladder gain {100 * (even - fixed):.1f} to "
                         f"{100 * (best - fixed):.1f} points")  # fmt: skip
    gaining = next((one for one, gain in zip(routers, points, strict=True) if gain > 0), routers[0])
    routers.append(_Router("shuffled", gaining.best, shuffled=True))
    rng, found = np.random.default_rng(seed), []
    for router in routers:
        pays = pays_not = 0
        first: list[int] = []
        for _ in range(runs):
            gains = gains_of(_drawn(router, no_worse, utilities, prices, probes, rng), weight)
            said, denied = verdict_after_each(gains, worth, weight)
            pays += bool(said.any())
            pays_not += bool(denied.any())
            if (said | denied).any():
                first.append(int((said | denied).argmax()) + 1)
        gain = best * router.best + even * (1 - router.best) - fixed
        if router.shuffled:
            shares = _shares(router.best, utilities)
            gain = float(shares @ utilities.mean(axis=0)) - fixed
        found.append(
            Found(
                router=router.name,
                gain=round(100 * float(gain), 2),
                pays=wilson_interval(pays, runs),
                pays_not=wilson_interval(pays_not, runs),
                probes=float(np.median(first)) if first else None,
            )
        )
    return found


def _shares(best: float, utilities: Float) -> Float:
    """Return the share of prompts [tiers] that the router sends to each tier."""
    tiers = utilities.shape[1]
    shares: Float = best * np.bincount(utilities.argmax(axis=1), minlength=tiers) / len(utilities) + (1 - best) / tiers
    return shares


def _drawn(
    router: _Router, no_worse: Float, utilities: Float, prices: Float, probes: int, rng: np.random.Generator
) -> Probes:
    rows, tiers = rng.integers(len(no_worse), size=probes), no_worse.shape[1]
    if router.shuffled:
        chosen = rng.choice(tiers, size=probes, p=_shares(router.best, utilities))
    else:
        even = rng.integers(tiers, size=probes)
        chosen = np.where(rng.random(probes) < router.best, utilities[rows].argmax(axis=1), even)
    outcomes = no_worse[rows]
    usd = np.tile(prices, (probes, 1))
    return Probes(outcomes, usd, outcomes[np.arange(probes), chosen], prices[chosen], usd[:, -1])
