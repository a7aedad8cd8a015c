"""Does routing pay? Its utility against every fixed tier and against the best mix of fixed tiers at the same cost; also
in one sentence for people, the same on the dashboard, the command line and in the log.

Utility is that of every decision (`classifier.policy.utility`). All figures come from full-ladder probes, for which the
outcome of every tier is known. The bounds are confidence sequences: their error
probability covers looking after every probe. A false "pays" needs a lower bound to fail against the comparator that is
truly as good, so each lower bound has the whole `LEVEL`; a false "does not pay" needs any upper bound to fail, so these
share it. The interval of both is at twice the level.

The best fixed tier in hindsight is a maximum that no statistic may pick; the bounds against it are the lowest of the
bounds against all. The mix is a lottery between two tiers with weights from the earlier probes alone, and counts with
its expected utility, so the bound is exact for this sequence of lotteries; they approach the best one. A lottery is
never better than the better of its tiers by this utility: the mix shows which part of a gain the choice of prompts
makes."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final, Literal, NamedTuple, get_args

import msgspec
import numpy as np
import numpy.typing as npt

from classifier.decision import exchange_of
from quality.statistics import Sums, deviation, sums_of, values_needed
from tiers.catalog.catalog import name_of_tier

Float = npt.NDArray[np.floating]

WorthVerdict = Literal["pays", "does_not_pay", "not_known_yet"]
VERDICTS: tuple[WorthVerdict, ...] = get_args(WorthVerdict)

LEVEL = 0.025
# Costs relative to the reference price are cut above this: those of much longer prompts than usual, and of escalations.
MOST_COST = 3.0
# Gains are near 0 where the verdict is in doubt, and centres are kept there.
_CENTRES = (-0.1, 0.1)
# An interval of a gain in utility that is wider says nothing: all answers good against none is a gain of 1.
_WIDEST = 1.0
# Before there are probes, gains are supposed to vary so much, and this supposition counts as so many probes.
_VARIANCE, _SUPPOSED = 0.2, 20
MOST_PROBES_NEEDED = 1_000_000
NO_NAMES: Final[Mapping[int, str]] = MappingProxyType({})


class Probes(NamedTuple):
    """Full-ladder probes, oldest first; arrays are [n] or [n, tiers]."""

    no_worse: Float
    """0 or 1, for each tier if it were the constant."""
    usd: Float
    """US dollars, for each tier if it were the constant."""
    routed: Float
    """The tier that routing chose."""
    routed_usd: Float
    reference: Float
    """The price of a strongest answer by which the decision counted costs."""

    @property
    def cost(self) -> Float:
        """Cost [n, tiers] relative to the reference price."""
        return np.minimum(self.usd / self.reference[:, None], MOST_COST)

    @property
    def routed_cost(self) -> Float:
        """Cost [n] of routing relative to the reference price."""
        return np.minimum(self.routed_usd / self.reference, MOST_COST)


class Bounded(msgspec.Struct, frozen=True, kw_only=True):
    """A mean with bounds that hold at all times at once."""

    value: float
    low: float
    high: float


class FixedTier(msgspec.Struct, frozen=True, kw_only=True):
    """A tier that answers everything."""

    tier: int
    gain: Bounded
    """The gain of routing over it in utility."""
    no_worse: Bounded
    """Its share of answers as good as the strongest tier's."""
    usd: float
    """US dollars per request."""


class RoutingWorth(msgspec.Struct, frozen=True, kw_only=True):
    """What the probes say."""

    verdict: WorthVerdict
    probes: int
    worth: float
    target: float
    no_worse: float
    """The share of routing's answers that are no worse."""
    usd: float
    """US dollars per request with routing."""
    best_tier: int
    """The best fixed tier by the estimate."""
    over_fixed: Bounded
    """Gain of routing over the best fixed tier."""
    over_mix: Bounded
    """Gain of routing over the best mix of tiers at the same cost."""
    tiers: list[FixedTier]
    constant: FixedTier | None
    """What is proposed instead if the verdict is `does_not_pay` and a tier costs no more and meets the target."""
    missing: int
    """The probes until a verdict if the next are like these; 0 if there is one."""


def routing_worth(probes: Probes, target: float, worth: float) -> RoutingWorth:
    """Return the verdict on `probes`. `target`: the quality target, whose exchange rate utility has, and a constant's
    least share no worse; `worth`: the utility that routing must gain to be kept. Raises `ValueError` without probes."""
    n, tiers = probes.no_worse.shape
    if not n:
        raise ValueError("there are no probes, and one is needed")
    weight = exchange_of(target)
    gains = gains_of(probes, weight)
    level = LEVEL / (tiers + 1)
    sums = [sums_of_gains(column, weight) for column in gains.T]
    bounds = [_bounded(gain_sums, LEVEL, level) for gain_sums in sums]
    verdict: WorthVerdict = "not_known_yet"
    if all(bound.low > 0 for bound in bounds):
        verdict = "pays"
    elif any(bound.high < worth for bound in bounds):
        verdict = "does_not_pay"
    fixed = [_fixed(probes, column, gain) for column, gain in enumerate(bounds[:-1])]
    usd = float(probes.routed_usd.mean())
    best = min(fixed, key=lambda tier: tier.gain.value)
    return RoutingWorth(
        verdict=verdict,
        probes=n,
        worth=worth,
        target=target,
        no_worse=float(probes.routed.mean()),
        usd=usd,
        best_tier=best.tier,
        over_fixed=_least(bounds[:-1]),
        over_mix=bounds[-1],
        tiers=fixed,
        constant=constant_of(fixed, usd, target, worth) if verdict == "does_not_pay" else None,
        missing=0 if verdict != "not_known_yet" else missing_probes(n, sums, worth, level),
    )


def constant_of(fixed: list[FixedTier], usd: float, target: float, worth: float) -> FixedTier | None:
    """Return the tier over which routing gains the least, of those over which it gains less than `worth`, that cost at
    most `usd` a request, and whose share no worse is at least `target` by its lower bound; None without one."""
    open_to = [tier for tier in fixed if tier.gain.high < worth and tier.usd <= usd and tier.no_worse.low >= target]
    return min(open_to, key=lambda tier: tier.gain.value, default=None)


def missing_probes(n: int, sums: list[Sums], worth: float, level: float) -> int:
    """Return how many probes beyond `n` decide, if means and variances stay as they are now."""
    pays, pays_not = 0, MOST_PROBES_NEEDED
    for gain_sums in sums:
        mean = float(gain_sums.total[-1]) * gain_sums.scale / n
        variance = (float(gain_sums.variance[-1]) * gain_sums.scale**2 + _SUPPOSED * _VARIANCE) / (n + _SUPPOSED)
        pays = max(pays, values_needed(mean, variance, gain_sums.scale, LEVEL, MOST_PROBES_NEEDED))
        nearer = values_needed(worth - mean, variance, gain_sums.scale, level, MOST_PROBES_NEEDED)
        pays_not = min(pays_not, nearer)
    return max(min(pays, pays_not) - n, 1)


def gains_of(probes: Probes, weight: float) -> Float:
    """Return the gain in utility [n, tiers + 1] of routing over each tier, then over the mix."""
    utilities = probes.no_worse - weight * probes.cost
    routed = probes.routed - weight * probes.routed_cost
    chosen = mix_weights(probes)
    return np.column_stack([routed[:, None] - utilities, routed - (chosen * utilities).sum(axis=1)])


def mix_weights(probes: Probes) -> Float:
    """Return the weights [n, tiers] of the best lottery between two tiers that costs at most what routing did so far,
    by the earlier probes alone. The first is chosen as if quality rose evenly with the tier."""
    n, tiers = probes.no_worse.shape
    first_cost = probes.cost[0]
    seen = np.arange(1, n + 1)[:, None]
    quality = _earlier(probes.no_worse, np.arange(1, tiers + 1) / tiers) / seen
    costs = _earlier(probes.cost, first_cost) / seen
    spent = (_earlier(probes.routed_cost[:, None], first_cost.mean()[None]) / seen)[:, 0]
    weights = np.zeros((n, tiers))
    # The cheapest alone where every tier costs more.
    best, rows = np.full(n, -1.0), np.arange(n)
    weights[rows, costs.argmin(axis=1)] = 1.0
    for a in range(tiers):
        for b in range(tiers):
            low, high = costs[:, a], costs[:, b]
            rise = high - low
            share = np.where(rise > 0, np.clip((spent - low) / np.where(rise > 0, rise, 1.0), 0.0, 1.0), 0.0)
            reached = (1 - share) * quality[:, a] + share * quality[:, b]
            better = (low <= spent) & (high >= low) & (reached > best)
            weights[better] = 0.0
            weights[better, a] = 1 - share[better]
            weights[better, b] += share[better]
            best[better] = reached[better]
    return weights


def _earlier(values: Float, first: Float) -> Float:
    """Return the sums [n, k] of the rows before each, with `first` [k] before all of them."""
    return np.vstack([first[None], first[None] + np.cumsum(values, axis=0)[:-1]])


def sums_of_gains(gains: Float, weight: float) -> Sums:
    """Return the running sums of one comparator's gains [n] in utility, whose cost counts by `weight`."""
    most = 1.0 + weight * MOST_COST
    return sums_of(gains, -most, most, _CENTRES)


def _bounded(sums: Sums, low_level: float, high_level: float) -> Bounded:
    last = Sums(sums.total[-1:], sums.variance[-1:], sums.scale)
    n = len(sums.total)
    value = float(last.total[0]) * sums.scale / n
    below, above = (float(deviation(last.variance, level)[0]) * sums.scale / n for level in (low_level, high_level))
    return Bounded(value=value, low=value - below, high=value + above)


def _fixed(probes: Probes, column: int, gain: Bounded) -> FixedTier:
    outcomes = probes.no_worse[:, column]
    share = _bounded(sums_of(outcomes, 0.0, 1.0), LEVEL, LEVEL)
    last = column == probes.no_worse.shape[1] - 1 and bool(outcomes.all())
    return FixedTier(
        tier=column + 1,
        gain=gain,
        # The strongest tier is no worse than itself.
        no_worse=Bounded(value=share.value, low=1.0 if last else max(share.low, 0.0), high=min(share.high, 1.0)),
        usd=float(probes.usd[:, column].mean()),
    )


def _least(bounds: list[Bounded]) -> Bounded:
    return Bounded(**{name: min(getattr(bound, name) for bound in bounds) for name in ("value", "low", "high")})


def in_words(estimate: RoutingWorth | None, constant: str = "propose", names: Mapping[int, str] = NO_NAMES) -> str:
    """Return the verdict in a sentence or two; `constant`: the routing knob, off, propose or act; `names`: of tiers."""
    if estimate is None:
        return (
            "Whether routing pays here is not known yet: no request has been answered by all tiers, which the budget "
            "of verification pays for."
        )
    widest = max(gain.high - gain.low for gain in (estimate.over_fixed, estimate.over_mix))
    if estimate.verdict == "not_known_yet" and widest > _WIDEST:
        return (
            f"Whether routing pays here is not known yet: {estimate.probes:,} probes are too few for an estimate; "
            f"about {estimate.missing:,} more decide it."
        )
    measured = (
        f"its utility is {_points(estimate.over_fixed)} above that of {name_of_tier(estimate.best_tier, names)} alone, "
        f"the best fixed tier, and {_points(estimate.over_mix)} above the best mix of fixed tiers at the same cost, by "
        f"{estimate.probes:,} probes"
    )
    if estimate.verdict == "pays":
        return f"Routing pays here: {measured}."
    if estimate.verdict == "not_known_yet":
        return (
            f"Whether routing pays here is not known yet: {measured}; about {estimate.missing:,} more probes like "
            "these decide it."
        )
    said = f"Routing does not pay here, which takes {100 * estimate.worth:g} points: {measured}."
    return said if constant == "off" else f"{said} {_proposed(estimate, constant, names)}"


def _proposed(estimate: RoutingWorth, constant: str, names: Mapping[int, str]) -> str:
    fixed = estimate.constant
    if fixed is None:
        return (
            f"No fixed tier that is as good costs at most ${estimate.usd:.6f} a request, as routing does, and is shown "
            f"to meet the quality target {estimate.target:.2f}, so none is proposed."
        )
    what = (
        f"Alone, {name_of_tier(fixed.tier, names)} costs ${fixed.usd:.6f} a request instead of ${estimate.usd:.6f}, "
        f"and {fixed.no_worse.value:.0%} of its answers are no worse than the strongest tier's "
        f"(at least {fixed.no_worse.low:.0%}; routing: {estimate.no_worse:.0%})"
    )
    if constant == "act":
        return f"{what}: it answers."
    return f"{what}: the routing knob constant=act lets it answer."


def _points(gain: Bounded) -> str:
    return f"{100 * gain.value:+.1f} points [{100 * gain.low:+.1f}, {100 * gain.high:+.1f}]"
