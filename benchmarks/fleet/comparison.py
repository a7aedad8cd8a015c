"""Compares scaling rules on one trace: fixed, reactive, predictive, and an oracle that knows the trace.

A rule is never reported on the part it was tuned on. Only the oracle, a bound, is chosen on the reported part.
"""

from collections.abc import Sequence
from functools import cache
from itertools import product

import msgspec

from benchmarks.fleet.hindsight import cheapest_schedule
from benchmarks.fleet.hpa import HpaBehaviour, by_in_flight, by_utilisation
from benchmarks.fleet.rules import FixedRule, ScalingRule
from benchmarks.fleet.scoring import Score, Setting, in_flight_target, score
from benchmarks.fleet.simulation import FleetRun
from gateway.planning.scaling.predictive import PredictiveKnobs, PredictiveRule

# Knobs are chosen on the first `FITTED` of a trace's time; the start of that part lets the fleets settle.
FITTED, _WARM_UP = 0.4, 0.25
# Future load differs: a choice must stay within the budget at all of these speeds.
_SPEEDS = (0.8, 1.0, 1.25)
# Multiple of a reactive rule's replica-hours that may be spent on missing fewer requests.
_BUDGET = 1.1
_BUSY = (0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0, 1.1, 1.25, 1.4, 1.6, 2.0)
_QUANTILES = (0.5, 0.9)
_FEW_MISSES = 0.99
REACTIVE = ("utilisation 70 %", "in flight", "in flight, no limit")


class Duel(msgspec.Struct, frozen=True, kw_only=True):
    """A reactive rule, the predictive one chosen against it, and an oracle that misses no more than that.

    `hindsight`: the predictive rule with the knobs that were best on the reported part, at no more than `_BUDGET` times
    the reactive rule's replica-hours, and its oracle. It is not a result; it shows how far better knobs could have
    gone.
    """

    reactive: Score
    predictive: Score
    oracle: Score
    hindsight: Score
    hindsight_oracle: Score

    def misses_gone(self, ahead: Score) -> float | None:
        """Return the share of the reactive rule's misses that `ahead` avoids; negative if it adds some; None without
        misses."""
        return 1 - ahead.missed / self.reactive.missed if self.reactive.missed else None

    def hours_ratio(self, ahead: Score) -> float:
        """Replica-hours of `ahead` relative to the reactive rule."""
        return ahead.replica_hours / self.reactive.replica_hours

    @property
    def over_oracle(self) -> float:
        """Cost of the predictive rule beyond the oracle, as a share."""
        return self.predictive.replica_hours / self.oracle.replica_hours - 1

    @property
    def hindsight_over_oracle(self) -> float:
        """Return the same for the knobs of hindsight, relative to their own oracle."""
        return self.hindsight.replica_hours / self.hindsight_oracle.replica_hours - 1


class Comparison(msgspec.Struct, frozen=True, kw_only=True):
    """All rules on the counted part of one trace, and (time, ordered, ready) of their fleets."""

    trace: str
    profile: str
    cold_start_s: float
    since_s: float
    until_s: float
    fixed: Score
    duels: list[Duel]
    sizes: dict[str, list[tuple[float, int, int]]]


def compare(whole: Setting) -> Comparison:
    """Run every rule on `whole` after its first `FITTED`, with knobs chosen on that first part."""
    setting, fits = whole.after(FITTED), _fitted_parts(whole)
    target = in_flight_target(whole.first_part(FITTED))
    replicas = fewest_fixed(fits[_SPEEDS.index(1.0)])
    fixed = setting.run(FixedRule(replicas))
    sizes, duels = {"fixed": fixed.sizes}, []
    tried = [(knobs, [score(fit, fit.run(predictive(fit, knobs))) for fit in fits]) for knobs in _grid()]
    later = [(knobs, [score(setting, setting.run(predictive(setting, knobs)))]) for knobs in _grid()]

    @cache
    def scored(knobs: PredictiveKnobs) -> tuple[FleetRun, Score, FleetRun, Score]:
        """Score the rule with these knobs on the reported part, and its oracle."""
        run = setting.run(predictive(setting, knobs))
        found = score(setting, run, "predictive", _text(knobs))
        oracle = cheapest_schedule(setting, found.missed, start=run)
        return run, found, oracle, score(setting, oracle, "oracle")

    for name in REACTIVE:
        reactive = setting.reactive().run(_reactive(name, target))
        against = score(setting, reactive, name)
        fitted = [score(fit, fit.reactive().run(_reactive(name, target))) for fit in fits]
        ahead, found, oracle, bound = scored(fewest_misses(tried, fitted))
        _, later_found, _, later_bound = scored(fewest_misses(later, [against]))
        duels.append(
            Duel(
                reactive=against,
                predictive=found,
                oracle=bound,
                hindsight=later_found,
                hindsight_oracle=later_bound,
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


def _fitted_parts(whole: Setting) -> list[Setting]:
    return [whole.first_part(FITTED).after(_WARM_UP).at_speed(speed) for speed in _SPEEDS]


def predictive(setting: Setting, knobs: PredictiveKnobs) -> PredictiveRule:
    """Return the predictive rule for a setting's fleet."""
    return PredictiveRule(
        setting.profile,
        interval_s=setting.fleet.interval_s,
        cold_start_s=setting.fleet.cold_start_s,
        objectives=setting.objectives,
        knobs=knobs,
    )


def fewest_fixed(fit: Setting) -> int:
    """Return the fewest replicas that serve 99 % of `fit` well."""
    for replicas in range(fit.fleet.least, fit.fleet.most):
        if score(fit, fit.run(FixedRule(replicas))).attainment >= _FEW_MISSES:
            return replicas
    return fit.fleet.most


def _grid() -> list[PredictiveKnobs]:
    return [PredictiveKnobs(busy=busy, quantile=quantile) for busy, quantile in product(_BUSY, _QUANTILES)]


def fewest_misses(
    tried: Sequence[tuple[PredictiveKnobs, Sequence[Score]]], reactive: Sequence[Score]
) -> PredictiveKnobs:
    """Return the knobs with the fewest misses in all fits together, within `_BUDGET` times the reactive rule's
    replica-hours in each; if none is within, those that exceed it least. `reactive`, and each of `tried`, has a score
    per fit."""

    def rank(each: tuple[PredictiveKnobs, Sequence[Score]]) -> tuple[bool, float, float]:
        dearest = max(
            found.replica_hours / against.replica_hours for found, against in zip(each[1], reactive, strict=True)
        )
        over = dearest > _BUDGET
        return over, dearest if over else float(sum(found.missed for found in each[1])), dearest

    return min(tried, key=rank)[0]


def _reactive(name: str, target: float) -> ScalingRule:
    if name == REACTIVE[0]:
        return by_utilisation(0.7)
    return by_in_flight(target, HpaBehaviour(up_pods=None, up_share=None) if name == REACTIVE[2] else None)


def _text(knobs: PredictiveKnobs) -> str:
    return f"busy {knobs.busy:g}, quantile {knobs.quantile:g}"
