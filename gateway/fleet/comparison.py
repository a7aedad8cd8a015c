"""Scaling rules side by side on one trace: fixed, reactive, predictive, and an oracle that knows the trace.

What a rule may be tuned on is never what it is reported on. Only the oracle, a bound, is chosen on the
reported part itself.
"""

from itertools import product

import msgspec

from gateway.fleet.hindsight import cheapest_schedule
from gateway.fleet.hpa import HpaBehaviour, by_in_flight, by_utilisation
from gateway.fleet.predictive import PredictiveKnobs, PredictiveRule
from gateway.fleet.scaling import FixedRule, ScalingRule
from gateway.fleet.scoring import Score, Setting, in_flight_target, score

# Knobs are chosen on the first `FITTED` of a trace's time; its first half lets the fleets find their size.
FITTED, _WARM_UP = 0.4, 0.5
# So many times a reactive rule's replica-hours may be spent there on missing fewer requests.
_BUDGET = 1.1
_BUSY = (0.5, 0.6, 0.7, 0.8, 0.9, 1.0, 1.1, 1.25, 1.4, 1.6)
_QUANTILES = (0.5, 0.95)
_DOWN_WINDOWS = (300.0, 900.0)
_FEW_MISSES = 0.99
REACTIVE = ("utilisation 70 %", "in flight", "in flight, no limit")


class Duel(msgspec.Struct, frozen=True, kw_only=True):
    """A reactive rule, the predictive one that may cost as much, and the oracle that misses no more than the latter.

    `hindsight`: the predictive rule with the knobs that turned out best on what is reported, at no more than `_BUDGET`
    times the reactive rule's replica-hours. Not a result, but how far better knobs could have brought it.
    """

    reactive: Score
    predictive: Score
    hindsight: Score
    oracle: Score

    def misses_gone(self, ahead: Score) -> float | None:
        """Share of the reactive rule's misses that `ahead` avoids; negative if it makes more; None of no misses."""
        return 1 - ahead.missed / self.reactive.missed if self.reactive.missed else None

    def hours_ratio(self, ahead: Score) -> float:
        """Of `ahead` over reactive."""
        return ahead.replica_hours / self.reactive.replica_hours

    @property
    def over_oracle(self) -> float:
        """What the predictive rule costs beyond the oracle, as a share."""
        return self.predictive.replica_hours / self.oracle.replica_hours - 1


class Comparison(msgspec.Struct, frozen=True, kw_only=True):
    """All rules on what is counted of one trace, and (time, ordered, ready) of their fleets."""

    trace: str
    profile: str
    cold_start_s: float
    since_s: float
    until_s: float
    fixed: Score
    duels: list[Duel]
    sizes: dict[str, list[tuple[float, int, int]]]


def compare(whole: Setting) -> Comparison:
    """Every rule on `whole` after its first `FITTED`, with knobs chosen on that first part."""
    setting, fit = whole.after(FITTED), _fitted_part(whole)
    target = in_flight_target(fit)
    replicas = fewest_fixed(fit)
    fixed = setting.run(FixedRule(replicas))
    sizes, duels = {"fixed": fixed.sizes}, []
    tried, later = _tried_knobs(fit), _tried_knobs(setting)
    for name in REACTIVE:
        reactive = setting.run(_reactive(name, target))
        _, knobs = _fewest_misses(tried, _BUDGET * score(fit, fit.run(_reactive(name, target))).replica_hours)
        ahead = setting.run(predictive(setting, knobs))
        found = score(setting, ahead, "predictive", _text(knobs))
        oracle = cheapest_schedule(setting, found.missed, start=ahead)
        duels.append(
            Duel(
                reactive=(against := score(setting, reactive, name)),
                predictive=found,
                hindsight=_fewest_misses(later, _BUDGET * against.replica_hours)[0],
                oracle=score(setting, oracle, "oracle"),
            )
        )
        sizes |= {
            f"reactive, {name}": reactive.sizes,
            f"predictive for {name}": ahead.sizes,
            f"oracle for {name}": oracle.sizes,
        }
    return Comparison(
        trace=setting.trace,
        profile=setting.profile.name,
        cold_start_s=setting.fleet.cold_start_s,
        since_s=setting.since,
        until_s=setting.until,
        fixed=score(setting, fixed, "fixed", f"{replicas} replicas"),
        duels=duels,
        sizes=sizes,
    )


def _fitted_part(whole: Setting) -> Setting:
    first = whole.first_part(FITTED)
    return first.after(_WARM_UP)


def predictive(setting: Setting, knobs: PredictiveKnobs) -> PredictiveRule:
    """The rule for a setting's fleet."""
    return PredictiveRule(
        setting.profile,
        interval_s=setting.fleet.interval_s,
        cold_start_s=setting.fleet.cold_start_s,
        objectives=setting.objectives,
        knobs=knobs,
    )


def fewest_fixed(fit: Setting) -> int:
    """The fewest replicas that serve 99 % of `fit` well."""
    for replicas in range(fit.fleet.least, fit.fleet.most):
        if score(fit, fit.run(FixedRule(replicas))).attainment >= _FEW_MISSES:
            return replicas
    return fit.fleet.most


def _tried_knobs(fit: Setting) -> list[tuple[Score, PredictiveKnobs]]:
    grid = (
        PredictiveKnobs(busy=busy, quantile=quantile, down_window_s=window)
        for busy, quantile, window in product(_BUSY, _QUANTILES, _DOWN_WINDOWS)
    )
    return [(score(fit, fit.run(predictive(fit, knobs)), "predictive", _text(knobs)), knobs) for knobs in grid]


def _fewest_misses(tried: list[tuple[Score, PredictiveKnobs]], hours: float) -> tuple[Score, PredictiveKnobs]:
    """Of those within `hours`; the cheapest if none is."""

    def rank(each: tuple[Score, PredictiveKnobs]) -> tuple[bool, float, float]:
        found, _ = each
        over = found.replica_hours > hours
        return over, found.replica_hours if over else float(found.missed), found.replica_hours

    return min(tried, key=rank)


def _reactive(name: str, target: float) -> ScalingRule:
    if name == REACTIVE[0]:
        return by_utilisation(0.7)
    return by_in_flight(target, HpaBehaviour(up_pods=None, up_share=None) if name == REACTIVE[2] else None)


def _text(knobs: PredictiveKnobs) -> str:
    return f"busy {knobs.busy:g}, quantile {knobs.quantile:g}, down {knobs.down_window_s:g} s"
