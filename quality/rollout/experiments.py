"""A/B experiments: two versions or two tiers, each for a share of the users, conversations or requests, until evidence,
a guardrail or patience ends them (SPEC QM-11).

The verdict on quality rests on full-ladder probes. They are pairs: the outcome of both arms' choices is known for each
prompt, in whichever arm its user is, so that the assignment plays no part in it. Cost and latency are only known of the
arm that a request had; `quality.rollout.guardrails` compares them by unit. Arm a is the control, arm b the treatment.
The rows are authoritative and the registry's pointer follows, as in `quality.rollout.rollout`.
"""

import asyncio
import time
import uuid
from collections.abc import Callable
from typing import Any, Literal, NamedTuple

import msgspec
from sqlalchemy import func, insert, select, update
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from classifier.errors import ArtefactError
from classifier.policy.experiment_split import Arm, ArmName, Split, SplitBy
from classifier.registry.acceptance import accepted_artefact
from classifier.registry.registry import ArtefactRegistry
from migrations.tables.audit import audited
from migrations.tables.quality import experiments
from migrations.tables.requests import requests, routing_decisions
from quality.comparison import live_arms
from quality.comparison.decision_gain import Serving
from quality.comparison.live_arms import ArmAnswers
from quality.comparison.paired_outcomes import Choice, Paired, choice_of, compare, ladder_outcomes_since, tier_choice
from quality.rollout.guardrails import Guarded, Guardrails, Measure, judged, looks_due, unit_samples
from quality.rollout.versions import registry_transaction

ACTOR = "experiment"
# The largest difference of utility that counts as a tie.
MARGIN = 0.01


class ExperimentError(ValueError):
    """The experiment is not possible; the message says why."""


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """An experiment as an operator plans it. Raises `ValueError`."""

    share: float
    """Share of the units that is split between the arms `a` and `b`."""
    a: Arm
    b: Arm
    tiers: int
    level: float = 0.05
    """The probability of finding a difference in quality where there is none, and that of a breach of `guardrails`
    where b is within them, both under continuous monitoring.
    """
    most_probes: int = 1000
    """The probes after which the result is no difference."""
    prior: list[list[float]] = []
    """See `RolloutSettings`."""
    serving: Serving | None = None
    """See `RolloutSettings`."""
    by: SplitBy = "request"
    """What a unit is."""
    guardrails: Guardrails = Guardrails()

    def __post_init__(self) -> None:
        self.split("")
        if not 0.0 < self.level < 1.0:
            raise ValueError(f"level is {self.level}; it must lie between 0 and 1")
        if self.most_probes < 1:
            raise ValueError(f"most_probes is {self.most_probes}; it must be at least 1")
        for arm in (self.a, self.b):
            if arm.tier is not None and not 1 <= arm.tier <= self.tiers:
                raise ValueError(f"an arm is tier {arm.tier}; there are the tiers 1 to {self.tiers}")

    def split(self, experiment_id: str) -> Split:
        """Return the split as servers apply it."""
        return Split(experiment_id=experiment_id, share=self.share, a=self.a, b=self.b, by=self.by)


class ArmStatistics(msgspec.Struct, frozen=True, kw_only=True):
    """An arm's requests: mean cost, mean time to the end, and the number `verified`."""

    requests: int = 0
    cost_usd: float | None = None
    e2e_ms: float | None = None
    verified: ArmAnswers = ArmAnswers()


class Results(msgspec.Struct, frozen=True, kw_only=True):
    """The results of an experiment."""

    paired: Paired = Paired()
    """Arm b against arm a on probes."""
    a: ArmStatistics = ArmStatistics()
    b: ArmStatistics = ArmStatistics()
    winner: ArmName | None = None
    """The better arm; None while undecided."""
    looks: int = 0
    """Number of looks."""
    guardrails: list[Guarded] = []
    """The guardrails at the last look."""
    breached: Measure | None = None
    """The guardrail that ended the experiment."""
    problem: str | None = None


class Experiment(msgspec.Struct, frozen=True, kw_only=True):
    """A running experiment."""

    experiment_id: str
    name: str
    config: Plan
    """Its plan."""
    metrics: Results | None
    created_at: float

    @property
    def split(self) -> Split:
        return self.config.split(self.experiment_id)


def concluded(plan: Plan, paired: Paired) -> tuple[ArmName | None, str] | None:
    """Return the winner, or none, and the reason; None while the experiment continues. Each side has half the level."""
    seen = f"{paired.probes} probes: b gains {paired.gain:+.4f} (worse {paired.worse:+.4f}, cost {paired.cost:+.4f})"
    if paired.benefit >= 2 / plan.level:
        return "b", f"{plan.b} is better than {plan.a} on {seen}; evidence {paired.benefit:.3g}"
    if paired.harm >= 2 / plan.level:
        return "a", f"{plan.a} is better than {plan.b} on {seen}; evidence {paired.harm:.3g}"
    if paired.probes >= plan.most_probes:
        return None, f"no difference was found on {seen}"
    return None


class Ending(NamedTuple):
    """How an experiment ends: with a verdict (`done`), or without one."""

    status: Literal["done", "stopped"]
    results: Results
    reason: str


def ending_of(plan: Plan, results: Results) -> Ending | None:
    """Return how what was found ends the experiment; None while it continues. A verdict on quality goes first."""
    if (verdict := concluded(plan, results.paired)) is not None:
        winner, reason = verdict
        return Ending("done", msgspec.structs.replace(results, winner=winner), reason)
    if (broken := next((guarded for guarded in results.guardrails if guarded.is_breached), None)) is not None:
        return Ending("stopped", msgspec.structs.replace(results, breached=broken.measure), broken.reason)
    return None if results.problem is None else Ending("stopped", results, results.problem)


class Experiments:
    """Rows of `experiments`, of which at most one is running."""

    def __init__(
        self, engine: AsyncEngine, registry: ArtefactRegistry, *, clock: Callable[[], float] = time.time
    ) -> None:
        self._engine, self._registry, self._clock = engine, registry, clock

    async def start(self, name: str, plan: Plan, *, actor: str, reason: str) -> str:
        """Start an experiment; return its id. Raises `ExperimentError` while another one runs or for versions that
        probes cannot compare, and `ArtefactError` for a version that cannot serve."""
        await asyncio.to_thread(self._choices, plan)
        experiment_id, now = uuid.uuid4().hex[:16], self._clock()
        row = {"experiment_id": experiment_id, "name": name, "status": "running", "config": plan, "reason": reason}
        async with registry_transaction(self._engine) as connection:
            if (other := await self._running(connection)) is not None:
                raise ExperimentError(f"experiment {other.experiment_id} ({other.name}) is running; stop it first")
            await connection.execute(insert(experiments).values(**row, created_at=now))
            details = msgspec.to_builtins(plan)
            await connection.execute(audited(now, actor, "experiment.started", experiment_id, reason, details))
            self._registry.set_experiment(plan.split(experiment_id))
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
        """Check the evidence; return the reason if it ended the experiment, unless another replica was faster."""
        async with self._engine.connect() as connection:
            running = await self._running(connection)
        if running is None and self._registry.experiment() is None:
            return None
        results = None if running is None else await self._results(running)
        async with registry_transaction(self._engine) as connection:
            now = await self._running(connection)
            if now is None:
                self._registry.set_experiment(None)
            if now is None or running is None or results is None or now.experiment_id != running.experiment_id:
                return None
            if now.metrics is not None and now.metrics.looks > (running.metrics or Results()).looks:
                # Another replica was faster with this look; a second one at the same level would raise it.
                results = msgspec.structs.replace(results, looks=now.metrics.looks, guardrails=now.metrics.guardrails)
            if (ending := ending_of(now.config, results)) is not None:
                await self._end(connection, now, ending.status, ending.results, ACTOR, ending.reason)
                return ending.reason
            if results != now.metrics:
                await self._set(connection, now, {"metrics": results})
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
        looks, guarded = await self._look(running, figures["a"].requests + figures["b"].requests)
        seen = Results(a=a_shown, b=b_shown, looks=looks, guardrails=guarded)
        try:
            a, b = await asyncio.to_thread(self._choices, plan)
        except (ArtefactError, OSError) as error:
            return msgspec.structs.replace(seen, problem=str(error))
        probes = await ladder_outcomes_since(self._engine, since, plan.tiers)
        paired = await asyncio.to_thread(compare, probes, b, a, margin=MARGIN, serving=plan.serving)
        return msgspec.structs.replace(seen, paired=paired)

    async def _look(self, running: Experiment, num_requests: int) -> tuple[int, list[Guarded]]:
        """Return the number of the newest look at the guardrails, and what it shows; made now if it is due."""
        before, due, plan = running.metrics or Results(), looks_due(num_requests), running.config
        if due <= before.looks or not plan.guardrails.margins:
            return before.looks, before.guardrails
        samples = await unit_samples(self._engine, running.experiment_id)
        return due, judged(plan.guardrails, samples, plan.level, due)

    async def _figures(self, running: Experiment) -> dict[str, ArmStatistics]:
        query = (
            select(routing_decisions.c.arm, func.count(), func.avg(requests.c.cost_usd), func.avg(requests.c.e2e_ms))
            .join(requests, requests.c.request_id == routing_decisions.c.request_id)
            .where(routing_decisions.c.experiment_id == running.experiment_id)
            .group_by(routing_decisions.c.arm)
        )
        async with self._engine.connect() as connection:
            rows = (await connection.execute(query)).all()
        by_arm = {arm: ArmStatistics(requests=count, cost_usd=cost, e2e_ms=e2e) for arm, count, cost, e2e in rows}
        return {arm: by_arm.get(arm, ArmStatistics()) for arm in ("a", "b")}

    def _choices(self, plan: Plan) -> tuple[Choice, Choice]:
        """Return what each arm chooses for a probe. Raises `ArtefactError`."""

        def choice(arm: Arm) -> Choice:
            if arm.version is None:
                return tier_choice(arm.tier or 1)
            model = accepted_artefact(self._registry.folder(arm.version))
            return choice_of(model, plan.tiers, plan.prior, plan.serving)

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
        subject = running.experiment_id
        await connection.execute(audited(self._clock(), actor, f"experiment.{status}", subject, reason, details))
        self._registry.set_experiment(None)

    async def _set(self, connection: AsyncConnection, running: Experiment, fields: dict[str, Any]) -> None:
        mine = experiments.c.experiment_id == running.experiment_id
        await connection.execute(update(experiments).where(mine).values(**fields))
