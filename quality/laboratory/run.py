"""One run of a scenario: the loop and the world it lives in, and what came of it by the truth."""

import shutil
import tempfile
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from quality.laboratory.loop import ClosedLoop, Log, LoopSettings
from quality.laboratory.retraining import Trainer
from quality.laboratory.router import Predictions, Rule, lambda_for_cost
from quality.laboratory.scenario import Common, Scenario
from quality.laboratory.traffic import batches, mix
from quality.laboratory.truth import Truth, choices, cost, gap_closed, quality, utility
from quality.laboratory.verdicts import Judge
from quality.laboratory.world import World

BATCH = 500


class Routing(msgspec.Struct, frozen=True, kw_only=True):
    """A router by the truth: on the prompts of the shift, and on the whole mix of the traffic."""

    shift_quality: float
    shift_cost: float
    quality: float
    cost: float
    utility: float


class Promotion(msgspec.Struct, frozen=True, kw_only=True):
    """A promoted artefact: by how much its utility on fresh prompts is above the one's that it replaced."""

    request: int
    gain: float


class RunResult(msgspec.Struct, frozen=True, kw_only=True):
    """A run; `arm`: which parts of the loop were at work. Request numbers count from the start of the warm-up; `shift`
    is the first after it.

    `frozen`, `oracle` (None where nothing shifts), `artefact` (in force at the end, without repairs) and `days` (the
    router at the end of each day) are measured on fresh prompts, `served` day by day on what was really asked and
    answered. `detection` counts the verified samples of the shifted prompts up to the first alarm after the shift, None
    without one.
    """

    scenario: str
    arm: str
    seed: int
    requests: int
    shift: int
    lambda_: float
    detection: int | None
    shifted_samples: int
    alarms: list[int]
    fixed_rule: list[int]
    retrainings: list[tuple[int, str, bool, list[str]]]
    promotions: list[Promotion]
    frozen: Routing
    oracle: Routing | None
    artefact: Routing
    days: list[Routing]
    served: list[tuple[float, float]]
    repair_share: float
    verification_share: float
    peak_share: float
    verifications: dict[str, int]


class Measure:
    """Measures routers on fresh prompts."""

    def __init__(self, world: World, scenario: Scenario, common: Common, truth: Truth) -> None:
        self._world, self._truth, self._common = world, truth, common
        self._mix = mix(scenario, world.fresh)
        self.prices = tuple(scenario.prices_after or common.prices)

    def __call__(self, tiers: npt.NDArray[np.intp]) -> Routing:
        """`tiers` [n]: numbers of those that the fresh prompts would get."""
        columns, count, no_worse = tiers - 1, len(self.prices), self._truth.no_worse
        shift = choices(columns, self._world.fresh.shifted.astype(np.float64), count)
        everything = choices(columns, self._mix, count)
        return Routing(
            shift_quality=quality(no_worse, shift),
            shift_cost=cost(shift, self.prices),
            quality=quality(no_worse, everything),
            cost=cost(everything, self.prices),
            utility=utility(no_worse, everything, self.prices, self._common.lambda_ref),
        )


def run(
    world: World,
    scenario: Scenario,
    common: Common,
    settings: LoopSettings,
    *,
    arm: str,
    seed: int,
    mean_cost: float,
) -> RunResult:
    """Simulate `scenario` once; the same arguments give the same result."""
    streams = [np.random.default_rng([seed, part]) for part in range(5)]
    traffic_rng, judge_rng, loop_rng, world_rng, oracle_rng = streams
    before = world.traffic_truth
    after, fresh_after = before, world.fresh_truth
    if scenario.tier is not None:
        after = before.degraded(scenario.tier, scenario.flip_correct_to_wrong, world_rng)
        fresh_after = world.fresh_truth.degraded(scenario.tier, scenario.flip_correct_to_wrong, world_rng)
    prices = tuple(common.prices)
    known = ~np.isin(world.traffic.domain, scenario.held_out)
    usual = Predictions.of(world.model, world.traffic.encoded.take(known))
    rule = Rule(lambda_for_cost(usual, prices, mean_cost), prices)
    judge = Judge(before, scenario.judge_error, judge_rng)
    measure = Measure(world, scenario, common, fresh_after)
    total, shift = common.warm_up_requests + scenario.requests, common.warm_up_requests
    folder = Path(tempfile.mkdtemp(prefix="aio-laboratory-"))
    try:
        trainer = Trainer(world.shipped, folder)
        loop = ClosedLoop(
            world.model,
            world.traffic.encoded,
            rule,
            judge,
            trainer.judged,
            settings,
            loop_rng,
            batch=BATCH,
            requests=total,
        )
        days, promotions = [], []
        incumbent = measure(_alone(world.model, world, measure, rule))
        for batch in batches(scenario, common, world.traffic, BATCH, traffic_rng):
            if batch.start == shift:
                judge.see(after)
                loop.reprice(Rule(rule.lambda_, measure.prices))
            in_force = loop.model
            loop.take(batch)
            end = batch.start + len(batch.rows)
            if loop.model is not in_force:
                promoted = measure(_alone(loop.model, world, measure, rule))
                promotions.append(Promotion(request=end, gain=promoted.utility - incumbent.utility))
                incumbent = promoted
            if end % common.requests_per_day == 0:
                days.append(measure(loop.tiers(world.fresh.encoded, end)))
        oracle: Routing | None = None
        if scenario.shifts:
            seen = _seen(loop.log, shift, common, before, after)
            best = trainer.oracle(world.traffic.encoded, seen, oracle_rng)
            oracle = measure(_alone(best, world, measure, rule))
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    return RunResult(
        scenario=scenario.name,
        arm=arm,
        seed=seed,
        requests=total,
        shift=shift,
        lambda_=rule.lambda_,
        **_detection(loop.log, world, scenario, shift),
        alarms=[alarm.request for alarm in loop.log.alarms],
        fixed_rule=loop.log.fixed_rule,
        retrainings=[(one.request, one.trigger, one.promoted, one.reasons) for one in loop.log.retrainings],
        promotions=promotions,
        frozen=measure(_alone(world.model, world, measure, rule)),
        oracle=oracle,
        artefact=incumbent,
        days=days,
        served=_served(loop.log, shift, common, prices, measure.prices, before, after),
        repair_share=loop.log.repair_cost / loop.log.serving_cost,
        verification_share=loop.log.verification_cost / loop.log.serving_cost,
        peak_share=loop.log.peak_share,
        verifications=dict(loop.log.purposes),
    )


def _alone(model: Any, world: World, measure: Measure, rule: Rule) -> npt.NDArray[np.intp]:
    """The tiers of the fresh prompts by an artefact without anything that was learned since."""
    return Predictions.of(model, world.fresh.encoded).tiers(Rule(rule.lambda_, measure.prices))


def _seen(
    log: Log, shift: int, common: Common, before: Truth, after: Truth
) -> list[tuple[npt.NDArray[np.bool_], Truth]]:
    """Which prompts came while which outcomes were true."""
    day, asked = shift // common.requests_per_day, log.served.sum(axis=2)
    if after is before:
        return [(asked.sum(axis=0) > 0, after)]
    return [(asked[:day].sum(axis=0) > 0, before), (asked[day:].sum(axis=0) > 0, after)]


def _detection(log: Log, world: World, scenario: Scenario, shift: int) -> dict[str, Any]:
    """Verified samples of the shifted prompts; where a tier is what shifts, of the answers that it served."""

    def count(until: float) -> int:
        return sum(
            shift <= request <= until
            and bool(world.traffic.shifted[row])
            and (scenario.tier is None or tier == scenario.tier)
            for request, row, tier in log.verified
        )

    first = next((alarm.request for alarm in log.alarms if alarm.request >= shift), None)
    return {"detection": None if first is None else count(first), "shifted_samples": count(float("inf"))}


def _served(
    log: Log,
    shift: int,
    common: Common,
    prices: tuple[float, ...],
    prices_after: tuple[float, ...],
    before: Truth,
    after: Truth,
) -> list[tuple[float, float]]:
    """Quality and cost of what was served on each day."""
    found = []
    for day, served in enumerate(log.served):
        shifted = day * common.requests_per_day >= shift
        truth, paid = (after, prices_after) if shifted else (before, prices)
        found.append((quality(truth.no_worse, served), cost(served, paid)))
    return found


def shift_gap(result: RunResult, routing: Routing) -> float | None:
    """The gap in quality on the prompts of the shift that a router closes; None where nothing shifts."""
    if result.oracle is None:
        return None
    return gap_closed(routing.shift_quality, result.frozen.shift_quality, result.oracle.shift_quality)
