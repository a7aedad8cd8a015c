"""A/B experiments: two versions or two tiers, each for a share of the requests, until the evidence or patience ends it
(SPEC QM-11).

The verdict is on full-ladder probes, which show what either arm would have chosen on the same prompt; what became of
the requests in each arm is shown beside it. Rows are the truth and the registry's pointer follows, as in
`quality.rollout.rollout`.
"""

import asyncio
import time
import uuid
from collections.abc import Callable
from typing import Any, Literal

import msgspec
from sqlalchemy import func, insert, select, update
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from classifier.errors import ArtefactError
from classifier.policy.experiment_split import Arm, ArmName, Split
from classifier.registry.acceptance import accepted_artefact
from classifier.registry.registry import ArtefactRegistry
from migrations.tables import audit_events, experiments, requests, routing_decisions
from quality.comparison import live_arms
from quality.comparison.live_arms import ArmAnswers
from quality.comparison.paired_outcomes import (
    Choice,
    Paired,
    choice_of,
    compare,
    ladder_outcomes_since,
    table_of,
    tier_choice,
)
from quality.rollout.registry_transaction import registry_transaction

ACTOR = "experiment"
# Of a tie: by how much utility the arms may differ.
MARGIN = 0.01


class ExperimentError(ValueError):
    """An experiment that cannot be; the message says why."""


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """`share` of the requests is split between the arms `a` and `b`. `level`: the probability of finding a difference
    where none is, however often one looks; after `most_probes` none was found. `prior` as for `RolloutSettings`. Raises
    `ValueError`."""

    share: float
    a: Arm
    b: Arm
    tiers: int
    level: float = 0.05
    most_probes: int = 1000
    prior: list[list[float]] = []

    def __post_init__(self) -> None:
        Split(experiment_id="", share=self.share, a=self.a, b=self.b)
        if not 0.0 < self.level < 1.0:
            raise ValueError(f"level is {self.level}; it must lie between 0 and 1")
        if self.most_probes < 1:
            raise ValueError(f"most_probes is {self.most_probes}; it must be at least 1")
        for arm in (self.a, self.b):
            if arm.tier is not None and not 1 <= arm.tier <= self.tiers:
                raise ValueError(f"an arm is tier {arm.tier}; there are the tiers 1 to {self.tiers}")


class ArmStatistics(msgspec.Struct, frozen=True, kw_only=True):
    """What became of an arm's requests: means of their cost and of their time to the end; `verified` of them."""

    requests: int = 0
    cost_usd: float | None = None
    e2e_ms: float | None = None
    verified: ArmAnswers = ArmAnswers()


class Results(msgspec.Struct, frozen=True, kw_only=True):
    """`paired`: arm b against arm a on probes. `winner`: the arm that is better, None while none is known to be."""

    paired: Paired = Paired()
    a: ArmStatistics = ArmStatistics()
    b: ArmStatistics = ArmStatistics()
    winner: ArmName | None = None
    problem: str | None = None


class Experiment(msgspec.Struct, frozen=True, kw_only=True):
    """One under way; `config` is its plan."""

    experiment_id: str
    name: str
    config: Plan
    metrics: Results | None
    created_at: float

    @property
    def split(self) -> Split:
        """As servers follow it."""
        return Split(experiment_id=self.experiment_id, share=self.config.share, a=self.config.a, b=self.config.b)


def concluded(plan: Plan, paired: Paired) -> tuple[ArmName | None, str] | None:
    """The winner and why, or that there is none; None while the experiment goes on. Either side has half the level."""
    seen = f"{paired.probes} probes: b gains {paired.gain:+.4f} (worse {paired.worse:+.4f}, cost {paired.cost:+.4f})"
    if paired.benefit >= 2 / plan.level:
        return "b", f"{plan.b} is better than {plan.a} on {seen}; evidence {paired.benefit:.3g}"
    if paired.harm >= 2 / plan.level:
        return "a", f"{plan.a} is better than {plan.b} on {seen}; evidence {paired.harm:.3g}"
    if paired.probes >= plan.most_probes:
        return None, f"no difference was found on {seen}"
    return None


class Experiments:
    """Rows of `experiments`, of which one at most is running."""

    def __init__(
        self, engine: AsyncEngine, registry: ArtefactRegistry, *, clock: Callable[[], float] = time.time
    ) -> None:
        self._engine, self._registry, self._clock = engine, registry, clock

    async def start(self, name: str, plan: Plan, *, actor: str, reason: str) -> str:
        """Begin; returns its id. Raises `ExperimentError` while another one runs, or for versions that probes cannot
        compare, and `ArtefactError` for a version that cannot serve."""
        await asyncio.to_thread(self._choices, plan)
        experiment_id, now = uuid.uuid4().hex[:16], self._clock()
        row = {"experiment_id": experiment_id, "name": name, "status": "running", "config": plan, "reason": reason}
        async with registry_transaction(self._engine) as connection:
            if (other := await self._running(connection)) is not None:
                raise ExperimentError(f"experiment {other.experiment_id} ({other.name}) is running; stop it first")
            await connection.execute(insert(experiments).values(**row, created_at=now))
            await self._audit(connection, actor, "experiment.started", experiment_id, reason, msgspec.to_builtins(plan))
            self._registry.set_experiment(Split(experiment_id=experiment_id, share=plan.share, a=plan.a, b=plan.b))
        return experiment_id

    async def stop(self, experiment_id: str, *, actor: str, reason: str) -> bool:
        """End it without a verdict; False if it is not running."""
        async with registry_transaction(self._engine) as connection:
            running = await self._running(connection)
            if running is None or running.experiment_id != experiment_id:
                return False
            await self._end(connection, running, "stopped", running.metrics, actor, reason)
        return True

    async def advance(self) -> str | None:
        """Look at the evidence; the reason, if it has ended the experiment, unless another replica was faster."""
        async with self._engine.connect() as connection:
            running = await self._running(connection)
        if running is None and self._registry.experiment() is None:
            return None
        found = None if running is None else await self._results(running)
        async with registry_transaction(self._engine) as connection:
            now = await self._running(connection)
            if now is None:
                self._registry.set_experiment(None)
            if now is None or running is None or found is None or now.experiment_id != running.experiment_id:
                return None
            ended = concluded(now.config, found.paired)
            if ended is not None:
                winner, reason = ended
                results = msgspec.structs.replace(found, winner=winner)
                await self._end(connection, now, "done", results, ACTOR, reason)
                return reason
            if found.problem is not None:
                await self._end(connection, now, "stopped", found, ACTOR, found.problem)
                return found.problem
            if found != now.metrics:
                await self._set(connection, now, {"metrics": found})
            self._registry.set_experiment(now.split)
        return None

    async def _results(self, running: Experiment) -> Results:
        plan, since = running.config, running.created_at
        mine = routing_decisions.c.experiment_id == running.experiment_id
        answers = await live_arms.served_answers(self._engine, since, plan.tiers, routing_decisions.c.arm, [mine])
        verified = live_arms.compare(answers, "b", margin=MARGIN)
        figures = await self._figures(running)
        a_shown = msgspec.structs.replace(figures["a"], verified=verified.old)
        b_shown = msgspec.structs.replace(figures["b"], verified=verified.new)
        try:
            a, b = await asyncio.to_thread(self._choices, plan)
        except (ArtefactError, OSError) as error:
            return Results(a=a_shown, b=b_shown, problem=str(error))
        probes = await ladder_outcomes_since(self._engine, since, plan.tiers)
        paired = await asyncio.to_thread(compare, probes, b, a, margin=MARGIN)
        return Results(a=a_shown, b=b_shown, paired=paired)

    async def _figures(self, running: Experiment) -> dict[str, ArmStatistics]:
        query = (
            select(routing_decisions.c.arm, func.count(), func.avg(requests.c.cost_usd), func.avg(requests.c.e2e_ms))
            .join(requests, requests.c.request_id == routing_decisions.c.request_id)
            .where(routing_decisions.c.experiment_id == running.experiment_id)
            .group_by(routing_decisions.c.arm)
        )
        async with self._engine.connect() as connection:
            rows = (await connection.execute(query)).all()
        found = {arm: ArmStatistics(requests=count, cost_usd=cost, e2e_ms=e2e) for arm, count, cost, e2e in rows}
        return {arm: found.get(arm, ArmStatistics()) for arm in ("a", "b")}

    def _choices(self, plan: Plan) -> tuple[Choice, Choice]:
        """What each arm chooses for a probe. Raises `ArtefactError`."""

        def choice(arm: Arm) -> Choice:
            if arm.version is None:
                return tier_choice(arm.tier or 1)
            return choice_of(table_of(accepted_artefact(self._registry.folder(arm.version)), plan.tiers, plan.prior))

        return choice(plan.a), choice(plan.b)

    async def _running(self, connection: AsyncConnection) -> Experiment | None:
        query = select(experiments).where(experiments.c.status == "running")
        row = (await connection.execute(query)).mappings().first()
        return None if row is None else msgspec.convert({str(k): v for k, v in row.items()}, Experiment)

    async def _end(
        self,
        connection: AsyncConnection,
        running: Experiment,
        status: Literal["done", "stopped"],
        results: Results | None,
        actor: str,
        reason: str,
    ) -> None:
        fields = {"status": status, "metrics": results, "reason": reason, "finished_at": self._clock()}
        await self._set(connection, running, fields)
        details = None if results is None else msgspec.to_builtins(results)
        await self._audit(connection, actor, f"experiment.{status}", running.experiment_id, reason, details)
        self._registry.set_experiment(None)

    async def _set(self, connection: AsyncConnection, running: Experiment, fields: dict[str, Any]) -> None:
        mine = experiments.c.experiment_id == running.experiment_id
        await connection.execute(update(experiments).where(mine).values(**fields))

    async def _audit(
        self, connection: AsyncConnection, actor: str, action: str, subject: str, reason: str, details: Any
    ) -> None:
        row = {"actor": actor, "action": action, "subject": subject, "reason": reason, "details": details}
        await connection.execute(insert(audit_events).values(created_at=self._clock(), **row))
