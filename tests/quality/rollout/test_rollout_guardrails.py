"""Guardrails end an experiment whose arm b costs or takes more than a margin allows, and count units (QM-11)."""

import math
from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

import msgspec
import numpy as np
import numpy.typing as npt
import pytest
from sqlalchemy.ext.asyncio import AsyncEngine

from classifier.policy.experiment_split import Arm
from classifier.registry.registry import ArtefactRegistry
from migrations.tables.audit import audit_events
from migrations.tables.quality import experiments
from quality.records.record import Timings
from quality.rollout import experiments as experiments_module
from quality.rollout.experiments import Experiments, Plan
from quality.rollout.guardrails import (
    FIRST_LOOK,
    GROWTH,
    Guarded,
    Guardrails,
    Measure,
    Samples,
    judged,
    looks_due,
    sample_of,
    unit_samples,
)
from quality.store.queries import insert_records
from tests.quality.loop_world import record, rows

ANN = {"actor": "ann", "reason": "does it cost too much?"}
USUAL: dict[str, float] = {"cost": 0.002, "ttft": 300.0, "e2e": 2000.0}


@pytest.fixture
def running(engine: AsyncEngine, registry: ArtefactRegistry) -> Experiments:
    return Experiments(engine, registry, clock=lambda: 5000.0)


class Served(NamedTuple):
    """A request of a unit of an arm; values as multiples of the usual ones."""

    arm: str
    unit: str | None
    cost: float = 1.0
    ttft: float = 1.0
    e2e: float = 1.0
    changes: Mapping[str, Any] = MappingProxyType({})


async def store(engine: AsyncEngine, experiment_id: str, served: Iterable[Served], first: int = 0) -> None:
    made = []
    for number, one in enumerate(served, first):
        times = Timings(route_ms=0.5, ttft_ms=one.ttft * USUAL["ttft"], e2e_ms=one.e2e * USUAL["e2e"], overhead_ms=1.0)
        kept = record(f"req-{number}", created_at=5001.0, cost_usd=one.cost * USUAL["cost"], timings=times)
        place = {"experiment_id": experiment_id, "arm": one.arm, "unit": one.unit}
        inputs = msgspec.structs.replace(kept.decision.inputs, **place)
        decision = msgspec.structs.replace(kept.decision, inputs=inputs)
        made.append(msgspec.structs.replace(kept, decision=decision, **one.changes))
    async with engine.begin() as connection:
        await insert_records(connection, made)


def traffic(measure: str = "cost", times: float = 1.0) -> list[Served]:
    """Three requests of each of twelve users in either arm, which differ by a tenth; arm b's are `times` as dear."""
    return [
        Served(arm, f"user:{arm}{user}", **{measure: (times if arm == "b" else 1.0) * (0.9 + 0.1 * (user % 3))})
        for _ in range(3)
        for user in range(12)
        for arm in ("a", "b")
    ]


async def begin(running: Experiments, guardrails: Guardrails) -> str:
    plan = Plan(share=0.5, a=Arm(tier=1), b=Arm(tier=2), tiers=4, by="user", guardrails=guardrails)
    return await running.start("dear?", plan, **ANN)


async def _last(engine: AsyncEngine, table: Any = experiments) -> dict[str, Any]:
    return (await rows(engine, table))[-1]


@pytest.mark.parametrize(
    ("measure", "said"),
    [
        ("cost", "the cost per request of b is $0.006 against $0.002 of a, 3.00 times as much"),
        ("ttft", "the time to the first token of b is 900 ms against 300 ms of a, 3.00 times as much"),
        ("e2e", "the time to the end of an answer of b is 6,000 ms against 2,000 ms of a, 3.00 times as much"),
    ],
)
async def test_a_planted_effect_in_cost_or_latency_ends_the_experiment_with_its_reason(
    engine: AsyncEngine, registry: ArtefactRegistry, running: Experiments, measure: Measure, said: str
) -> None:
    started = await begin(running, Guardrails(cost=1.0, ttft=1.0, e2e=1.0))
    await store(engine, started, traffic(measure, 3.0))

    reason = str(await running.advance())

    row, event = await _last(engine), await _last(engine, audit_events)
    assert said in reason
    assert "over the means of 12 and 12 units; at most 2.00 times is allowed" in reason
    assert (row["status"], row["reason"], row["metrics"]["breached"]) == ("stopped", reason, measure)
    assert row["metrics"]["winner"] is None
    assert (event["action"], event["actor"], event["reason"]) == ("experiment.stopped", "experiment", reason)
    assert event["details"]["breached"] == measure
    assert registry.experiment() is None


async def test_an_arm_within_its_margin_goes_on_and_shows_where_it_stands(
    engine: AsyncEngine, registry: ArtefactRegistry, running: Experiments
) -> None:
    started = await begin(running, Guardrails(cost=2.5))
    await store(engine, started, traffic("cost", 3.0))

    assert await running.advance() is None

    metrics = (await _last(engine))["metrics"]
    [shown] = metrics["guardrails"]
    assert (shown["measure"], shown["units_a"], shown["units_b"], metrics["looks"]) == ("cost", 12, 12, looks_due(72))
    assert shown["b"] / shown["a"] == pytest.approx(3.0)
    assert shown["p_value"] > 0.5
    assert registry.experiment() is not None


async def test_a_heavy_user_in_one_arm_is_one_unit_of_many(engine: AsyncEngine, running: Experiments) -> None:
    started = await begin(running, Guardrails(cost=0.2))
    heavy = [Served("b", "user:heavy", cost=3.0)] * 200
    await store(engine, started, traffic() + heavy)

    assert await running.advance() is None

    metrics = (await _last(engine))["metrics"]
    assert metrics["b"]["cost_usd"] > 2 * metrics["a"]["cost_usd"], "by request it would be far beyond the margin"
    assert metrics["guardrails"][0]["units_b"] == 13


async def test_without_guardrails_nothing_but_the_evidence_of_probes_ends_it(
    engine: AsyncEngine, running: Experiments
) -> None:
    started = await begin(running, Guardrails())
    await store(engine, started, traffic("cost", 50.0))

    assert await running.advance() is None
    assert (await _last(engine))["metrics"]["guardrails"] == []


async def test_each_unit_counts_once_with_the_mean_of_the_answers_that_were_made_for_it(
    any_engine: AsyncEngine,
) -> None:
    served = [
        Served("a", "user:x", cost=1.0), Served("a", "user:x", cost=2.0), Served("a", "user:y", cost=4.0),
        Served("a", "user:y", cost=90.0, changes={"cache": "hit"}),
        Served("a", "user:y", cost=4.0, e2e=90.0, changes={"status": "error"}),
        Served("a", None, cost=6.0), Served("a", None, cost=6.0),
        Served("b", "user:x", cost=8.0),
    ]  # fmt: skip
    await store(any_engine, "mine", served)
    await store(any_engine, "another", [Served("a", "user:z", cost=50.0)], first=len(served))

    found = await unit_samples(any_engine, "mine")

    cost, e2e = found["a", "cost"], found["a", "e2e"]
    assert (cost.size, found["b", "cost"].size) == (4, 1), "two users, and two requests from before there were units"
    assert cost.mean == pytest.approx((1.5 + 4.0 + 6.0 + 6.0) / 4 * USUAL["cost"])
    assert cost.variance == pytest.approx(float(np.var([1.5, 4.0, 6.0, 6.0], ddof=1)) * USUAL["cost"] ** 2)
    assert (e2e.mean, e2e.variance) == (pytest.approx(USUAL["e2e"]), pytest.approx(0.0))


async def test_a_look_is_made_once_over_all_replicas(
    engine: AsyncEngine, running: Experiments, registry: ArtefactRegistry, monkeypatch: pytest.MonkeyPatch
) -> None:
    started = await begin(running, Guardrails(cost=1.0))
    await store(engine, started, traffic())
    asked: list[str] = []

    async def overtaken(engine: AsyncEngine, experiment_id: str) -> Samples:
        asked.append(experiment_id)
        if len(asked) == 1:
            # While this replica adds up, another one makes the same look and finds nothing.
            await Experiments(engine, registry).advance()
            dear = sample_of(20, 2000.0, 200_000.0)
            return {("a", "cost"): sample_of(20, 20.0, 20.0), ("b", "cost"): dear}
        return await unit_samples(engine, experiment_id)

    monkeypatch.setattr(experiments_module, "unit_samples", overtaken)

    assert await running.advance() is None
    assert await running.advance() is None
    assert len(asked) == 2, "no third look before there are more requests"
    assert (await _last(engine))["metrics"]["guardrails"][0]["b"] == pytest.approx(USUAL["cost"])


def test_looks_come_after_ever_more_requests_and_their_levels_stay_below_the_whole() -> None:
    due = [looks_due(number) for number in (0, 49, 50, 74, 76, 113, 1_000_000)]
    levels = [judged(Guardrails(cost=0.0, e2e=0.0), {}, 0.05, look)[0].level for look in range(1, 1000)]

    assert due == [0, 0, 1, 1, 2, 3, 25]
    assert 0.99 * 0.025 < sum(levels) < 0.025


def test_too_few_units_are_not_tested() -> None:
    samples: Samples = {("a", "cost"): sample_of(9, 9.0, 9.0), ("b", "cost"): sample_of(50, 500.0, 5000.0)}
    [found] = judged(Guardrails(cost=0.1), samples, 0.05, 1)

    assert (found.is_breached, found.p_value) == (False, 1.0)


def test_a_margin_below_zero_is_refused() -> None:
    with pytest.raises(ValueError, match=r"the margin of ttft is -0\.1"):
        Guardrails(ttft=-0.1)


Ints = npt.NDArray[np.intp]
Floats = npt.NDArray[np.float64]


def _experiment(seed: int, sigma: float, users: int = 100, num_requests: int = 1200) -> tuple[Ints, Ints, Floats]:
    """Users by arm [users], and the user and cost [num_requests] of each request. A few users ask for most of it, and
    what one asks for costs about the same every time."""
    rng = np.random.default_rng(seed)
    activity = rng.pareto(1.1, users) + 0.05
    who = rng.choice(users, num_requests, p=activity / activity.sum())
    cost = rng.lognormal(0.0, sigma, users)[who] * rng.lognormal(0.0, 0.3, num_requests)
    return rng.integers(0, 2, users), who, cost


def _ends(arms: Ints, who: Ints, cost: Floats, margin: float, *, by_user: bool) -> bool:
    """Whether the guardrail of `margin` ends the experiment at any look."""
    for look in range(1, looks_due(len(cost)) + 1):
        seen = math.ceil(FIRST_LOOK * GROWTH ** (look - 1))
        units = who[:seen] if by_user else np.arange(seen)
        arm_of = arms if by_user else arms[who[:seen]]
        counts = np.bincount(units, minlength=len(arm_of))
        means = np.bincount(units, cost[:seen], len(arm_of)) / np.maximum(counts, 1)
        sides = [means[(counts > 0) & (arm_of == side)] for side in (0, 1)]
        samples: Samples = {
            (arm, "cost"): sample_of(len(side), float(side.sum()), float((side * side).sum()))
            for arm, side in zip(("a", "b"), sides, strict=True)
            if len(side)
        }
        if any(one.is_breached for one in judged(Guardrails(cost=margin), samples, 0.05, look)):
            return True
    return False


def test_in_a_against_a_heavy_users_raise_no_more_false_alarms_than_the_level() -> None:
    made = [_experiment(seed, sigma=1.0) for seed in range(200)]
    by_user, by_request = (
        sum(_ends(*one, 0.0, by_user=by_user) for one in made) / len(made) for by_user in (True, False)
    )

    assert by_user <= 0.05
    assert by_request > 0.25, "counting requests would find differences that are not there"


def test_in_a_against_b_a_dearer_arm_is_found_among_heavy_users() -> None:
    found = 0
    for seed in range(50):
        arms, who, cost = _experiment(seed, sigma=0.5)
        found += _ends(arms, who, np.where(arms[who] == 1, 3 * cost, cost), 0.2, by_user=True)

    assert found >= 45


def test_a_guardrail_that_was_stored_is_read_again() -> None:
    stored = Guarded(measure="cost", margin=1.0, level=0.01, units_a=12, units_b=12, a=0.0, b=0.1, p_value=0.0)

    assert msgspec.json.decode(msgspec.json.encode(stored), type=Guarded) == stored
    assert (stored.times, stored.is_breached) == (None, True)
    assert "of b is $0.1 against $0 of a, over" in stored.reason


async def test_a_later_look_is_kept_and_ends_an_experiment_that_the_first_one_did_not(
    engine: AsyncEngine, running: Experiments
) -> None:
    started = await begin(running, Guardrails(cost=1.0))
    await store(engine, started, traffic())
    assert await running.advance() is None
    assert (await _last(engine))["metrics"]["looks"] == looks_due(72)

    await store(engine, started, traffic("cost", 20.0), first=72)

    assert "guardrail: the cost per request" in str(await running.advance())
    metrics = (await _last(engine))["metrics"]
    assert (metrics["looks"], metrics["breached"]) == (looks_due(144), "cost")
