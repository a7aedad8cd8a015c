"""The rollout of a classifier version: a canary, then all traffic, then a watch, and a rollback on live evidence of
harm: on probes newer than both versions, and on served answers.

The row is authoritative and the registry's pointer follows it: `advance` decides by the evidence, then writes the rows,
and last the pointer, in one transaction at a time over all replicas. After a crash at any point the next `advance`
finds the committed stage and sets the pointer to it."""

import asyncio
import time
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

import msgspec
from sqlalchemy import insert, select, update
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from classifier.errors import ArtefactError
from classifier.model.outcome_model import OutcomeModel
from classifier.registry.acceptance import accepted_artefact
from classifier.registry.registry import ArtefactRegistry, Canary
from migrations.tables.audit import audited
from migrations.tables.quality import rollouts
from migrations.tables.requests import routing_decisions
from quality.comparison import live_arms
from quality.comparison.decision_gain import Serving
from quality.comparison.live_arms import LiveComparison
from quality.comparison.paired_outcomes import Paired, choice_of, compare, ladder_outcomes_since
from quality.rollout.versions import ClassifierVersions, VersionStatus, registry_transaction

Files = frozenset[tuple[str, int, int]]


class RolloutSettings(msgspec.Struct, frozen=True, kw_only=True):
    """How a version is rolled out. Levels are error probabilities that hold under continuous monitoring. Raises
    `ValueError`.
    """

    share: float = 0.1
    """Share of the requests for a canary; 0 promotes at once."""
    stop_level: float = 0.05
    """Probability of ending the trial of a harmless version."""
    rollback_level: float = 0.01
    """Probability of rolling back a promoted version that does no harm."""
    promote_level: float = 0.05
    """Probability of finding a loss of `margin` in utility harmless."""
    margin: float = 0.01
    live_margin: float = 0.05
    """The allowed rise of a canary's share of worse answers."""
    patience: int = 100
    """Probes of a canary, counted since the start."""
    watch_probes: int = 500
    """Probes of a promoted version, counted since the start."""
    days: float = 28.0
    """A canary that no evidence has decided ends after so many days."""
    promotes: bool = True
    """If False, a canary waits for an operator."""
    prior: list[list[float]] = []
    """[4][tiers]: P(good enough) of the catalogue's tiers by class, for a version that learned nothing about them;
    empty for evenly spread tiers.
    """
    serving: Serving | None = None
    """The target and the prices by which utility counts, as in `served_as`."""

    def __post_init__(self) -> None:
        if not 0.0 <= self.share < 1.0:
            raise ValueError(f"share is {self.share}; it must be at least 0 and below 1")
        for name in ("stop_level", "rollback_level", "promote_level", "margin", "live_margin"):
            if not 0.0 < getattr(self, name) < 1.0:
                raise ValueError(f"{name} is {getattr(self, name)}; it must lie between 0 and 1")
        if not self.days > 0.0:
            raise ValueError(f"days is {self.days}; it must be above 0")
        for name in ("patience", "watch_probes"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} is {getattr(self, name)}; it must be at least 1")


class Evidence(msgspec.Struct, frozen=True, kw_only=True):
    """The evidence on a version on trial."""

    paired: Paired = Paired()
    """Evidence on probes."""
    live: LiveComparison = LiveComparison()
    """Evidence on served answers."""
    broken: str | None = None
    """Why the version cannot serve at all."""
    problem: str | None = None
    """Why the two cannot be compared."""


class RolloutEvidence:
    """Reads the database on every call, so that all replicas see the same; caches two models."""

    def __init__(self, engine: AsyncEngine, registry: ArtefactRegistry) -> None:
        self._engine, self._registry = engine, registry
        self._loaded: dict[str, tuple[Files, OutcomeModel]] = {}

    async def of(self, version: str, incumbent: str, since: float, settings: RolloutSettings) -> Evidence:
        """Return the evidence from everything stored after `since` (epoch seconds)."""
        self._loaded = {name: loaded for name, loaded in self._loaded.items() if name in (version, incumbent)}
        try:
            new = await asyncio.to_thread(self._model, version)
        except (ArtefactError, OSError) as error:
            return Evidence(broken=str(error))
        try:
            old = await asyncio.to_thread(self._model, incumbent)
        except (ArtefactError, OSError) as error:
            return Evidence(problem=str(error))
        arm = routing_decisions.c.classifier_version
        among = [arm.in_((version, incumbent)), routing_decisions.c.experiment_id.is_(None)]
        tiers = len(settings.prior[0]) if settings.prior else new.manifest.tiers
        served = await live_arms.served_answers(self._engine, since, tiers, arm, among)
        live = live_arms.compare(served, version, margin=settings.live_margin)
        probes = await ladder_outcomes_since(self._engine, since, tiers)
        prior, serving = settings.prior, settings.serving
        ours, theirs = (choice_of(model, tiers, prior, serving) for model in (new, old))
        paired = await asyncio.to_thread(compare, probes, ours, theirs, margin=settings.margin, serving=serving)
        return Evidence(paired=paired, live=live)

    def _model(self, version: str) -> OutcomeModel:
        """Load the version with every check that a server makes, again whenever a file has changed."""
        folder = self._registry.folder(version)
        files = frozenset((path.name, path.stat().st_size, path.stat().st_mtime_ns) for path in folder.iterdir())
        if version not in self._loaded or self._loaded[version][0] != files:
            self._loaded[version] = files, accepted_artefact(folder)
        return self._loaded[version][1]


Stage = Literal["canary", "watch"]
End = Literal["kept", "rolled_back", "superseded", "stopped"]
ACTOR = "rollout"


class Rollout(msgspec.Struct, frozen=True, kw_only=True):
    """A running rollout: `version` is on trial next to `incumbent`, or serves in its place and is watched."""

    rollout_id: str
    version: str
    incumbent: str
    stage: Stage
    share: float
    settings: RolloutSettings
    evidence: Evidence | None
    created_at: float


class RolloutDecision(msgspec.Struct, frozen=True):
    """The next action for a rollout, and the reason."""

    act: Literal["go on", "promote", "roll back", "keep", "end"]
    reason: str


def decide_rollout(rollout: Rollout, evidence: Evidence, now: float) -> RolloutDecision:
    """Decide by the evidence, and by the time `now` (epoch seconds) if there is too little.

    A canary is rolled back on evidence of harm, on probes or on its served answers, at `stop_level` for both together.
    It is promoted on evidence that it loses less than `margin`, or after `patience` probes without evidence of harm.
    With fewer after `days` it ends, and the incumbent stays: verified answers show harm, but not what was saved. A
    promoted version is rolled back on evidence of harm at `rollback_level`, and kept after `watch_probes` probes.
    """
    settings, paired, live = rollout.settings, evidence.paired, evidence.live
    if evidence.broken is not None:
        return RolloutDecision("roll back", evidence.broken)
    seen = f"{paired.probes} probes (gain {paired.gain:+.4f}, worse {paired.worse:+.4f}, cost {paired.cost:+.4f})"
    level = settings.rollback_level if rollout.stage == "watch" else settings.stop_level / 2
    if paired.harm >= 1 / level:
        return RolloutDecision("roll back", f"worse than {rollout.incumbent} on {seen}; evidence {paired.harm:.3g}")
    if rollout.stage == "watch":
        done = paired.probes >= settings.watch_probes
        return RolloutDecision("keep" if done else "go on", f"no evidence of harm on {seen}")
    if rollout.share == 0.0:
        return RolloutDecision("promote", "promoted at once; no share of the requests is set for canaries")
    if live.harm >= 1 / level:
        reason = f"{live.new.worse:.1%} of {live.new.answers} verified answers were worse, {live.old.worse:.1%} of "
        return RolloutDecision(
            "roll back", f"{reason}{live.old.answers} of {rollout.incumbent}'s; evidence {live.harm:.3g}"
        )
    if not settings.promotes:
        return RolloutDecision("go on", f"an operator's trial; {seen}")
    if paired.harmless >= 1 / settings.promote_level:
        return RolloutDecision(
            "promote", f"loses less than {settings.margin} on {seen}; evidence {paired.harmless:.3g}"
        )
    if paired.probes >= settings.patience:
        return RolloutDecision("promote", f"no evidence of harm on {seen}")
    if now - rollout.created_at >= settings.days * 86_400:
        return RolloutDecision(
            "end", f"no evidence in {settings.days:g} days: {seen}, {live.new.answers} verified answers"
        )
    return RolloutDecision("go on", f"not enough evidence yet; {seen}")


class Rollouts:
    """Rows of `rollouts`, of which at most one is running, and the pointer of `registry`, which follows them."""

    def __init__(
        self, engine: AsyncEngine, registry: ArtefactRegistry, *, clock: Callable[[], float] = time.time
    ) -> None:
        self._engine, self.registry, self._clock = engine, registry, clock
        self._versions = ClassifierVersions(engine)
        self._evidence = RolloutEvidence(engine, registry)

    async def running(self, connection: AsyncConnection | None = None) -> Rollout | None:
        if connection is None:
            async with self._engine.connect() as opened:
                return await self.running(opened)
        query = select(rollouts).where(rollouts.c.status == "running")
        row = (await connection.execute(query)).mappings().first()
        return None if row is None else msgspec.convert({str(name): value for name, value in row.items()}, Rollout)

    async def begin(
        self,
        connection: AsyncConnection,
        version: str,
        incumbent: str,
        settings: RolloutSettings,
        *,
        actor: str,
        reason: str,
        stage: Stage = "canary",
    ) -> None:
        """Start the rollout of `version` in the caller's `registry_transaction`; a running rollout ends.

        The pointer is not set: call `project` before the end of the transaction, or `advance` after it.
        """
        now = self._clock()
        under_way = await self.running(connection)
        if under_way is not None and under_way.version != version:
            await self.end(connection, "superseded", actor=actor, reason=f"{version} takes its place")
        else:
            await self.close(connection, "superseded", reason=reason)
        row = {
            "rollout_id": uuid.uuid4().hex,
            "version": version,
            "incumbent": incumbent,
            "stage": stage,
            "status": "running",
            "share": settings.share,
            "settings": settings,
            "reason": reason,
            "created_at": now,
            "promoted_at": now if stage == "watch" else None,
        }
        await connection.execute(insert(rollouts).values(row))
        await self._versions.first_seen(connection, incumbent, self.registry.root / incumbent, now)
        canary = stage == "canary"
        await self._became(connection, version, "canary" if canary else "promoted", reason)
        details = {"share": settings.share, "incumbent": incumbent}
        action = "classifier.canary_started" if canary else "classifier.promoted"
        await self._audit(connection, actor, action, version, reason, details)

    async def end(self, connection: AsyncConnection, status: End, *, actor: str, reason: str) -> Rollout | None:
        """End the running rollout without a verdict in the caller's `registry_transaction`, and audit who did it."""
        rollout = await self.close(connection, status, reason=reason)
        if rollout is not None:
            ended = "classifier.canary_stopped" if rollout.stage == "canary" else "classifier.watch_ended"
            await self._audit(connection, actor, ended, rollout.version, reason, _details(rollout.evidence))
        return rollout

    async def close(self, connection: AsyncConnection, status: End, *, reason: str) -> Rollout | None:
        """Like `end`, if another audit row says so already; a canary is refused then."""
        rollout = await self.running(connection)
        if rollout is None:
            return None
        await self._set(connection, rollout, {"status": status, "reason": reason, "finished_at": self._clock()})
        if rollout.stage == "canary":
            await self._became(connection, rollout.version, "refused", f"its trial ended: {reason}")
        return rollout

    async def advance(self) -> RolloutDecision | None:
        """Check the evidence and act on it, unless another replica has; None without a rollout."""
        rollout = await self.running()
        if rollout is None:
            await self._end_orphan()
            return None
        evidence = await self._evidence.of(rollout.version, rollout.incumbent, rollout.created_at, rollout.settings)
        said = decide_rollout(rollout, evidence, self._clock())
        async with registry_transaction(self._engine) as connection:
            now = await self.running(connection)
            if now is None or (now.rollout_id, now.stage) != (rollout.rollout_id, rollout.stage):
                return None
            if (serves := self.registry.current().name) not in (rollout.version, rollout.incumbent):
                reason = f"{serves} was promoted behind its back"
                await self.end(connection, "superseded", actor=ACTOR, reason=reason)
                return None
            await self._carry_out(connection, rollout, said, evidence)
        return said

    async def _carry_out(
        self, connection: AsyncConnection, rollout: Rollout, said: RolloutDecision, evidence: Evidence
    ) -> None:
        now, details = self._clock(), _details(evidence)
        if said.act == "go on":
            if evidence != rollout.evidence:
                await self._set(connection, rollout, {"evidence": evidence, "reason": said.reason})
            self.project(rollout)
            return
        fields: dict[str, Any] = {"evidence": evidence, "reason": said.reason}
        if said.act == "end":
            await self._set(connection, rollout, {"evidence": evidence})
            await self.end(connection, "stopped", actor=ACTOR, reason=said.reason)
            self.registry.promote(rollout.incumbent)
        elif said.act == "promote":
            await self._set(connection, rollout, {**fields, "stage": "watch", "promoted_at": now})
            await self._became(connection, rollout.version, "promoted", said.reason)
            await self._audit(connection, ACTOR, "classifier.promoted", rollout.version, said.reason, details)
            self.registry.promote(rollout.version)
        elif said.act == "keep":
            await self._set(connection, rollout, {**fields, "status": "kept", "finished_at": now})
            await self._audit(connection, ACTOR, "classifier.kept", rollout.version, said.reason, details)
            self.registry.promote(rollout.version)
        else:
            await self._set(connection, rollout, {**fields, "status": "rolled_back", "finished_at": now})
            await self._became(connection, rollout.version, "rolled_back", said.reason)
            if rollout.stage == "watch":
                await self._became(connection, rollout.incumbent, "promoted", f"rolled back to: {said.reason}")
            await self._audit(connection, ACTOR, "classifier.rolled_back", rollout.version, said.reason, details)
            # For a canary this only ends the trial.
            self.registry.promote(rollout.incumbent)

    def project(self, rollout: Rollout) -> None:
        """Set the pointer to what `rollout` says, from any state."""
        if rollout.stage == "watch":
            self.registry.promote(rollout.version)
            return
        if self.registry.current().name != rollout.incumbent:
            self.registry.promote(rollout.incumbent)
        wanted = Canary(version=rollout.version, share=rollout.share)
        if rollout.share and self.registry.canary() != wanted:
            self.registry.start_canary(rollout.version, rollout.share)

    async def _end_orphan(self) -> None:
        """End a trial that the database does not know: its starter crashed before the commit."""
        if self.registry.canary() is None:
            return
        async with registry_transaction(self._engine) as connection:
            if await self.running(connection) is None and (orphan := self.registry.canary()) is not None:
                reason = "it was begun, but never written down"
                await self._audit(connection, ACTOR, "classifier.canary_stopped", orphan.version, reason, None)
                self.registry.stop_canary()

    async def _became(self, connection: AsyncConnection, version: str, status: VersionStatus, reason: str) -> None:
        folder: Path = self.registry.root / version
        await self._versions.became(connection, version, folder, status, reason, self._clock())

    async def _set(self, connection: AsyncConnection, rollout: Rollout, fields: dict[str, Any]) -> None:
        mine = rollouts.c.rollout_id == rollout.rollout_id
        await connection.execute(update(rollouts).where(mine).values(**fields))

    async def _audit(
        self, connection: AsyncConnection, actor: str, action: str, subject: str, reason: str, details: Any
    ) -> None:
        await connection.execute(audited(self._clock(), actor, action, subject, reason, details))


def _details(evidence: Evidence | None) -> Any:
    return None if evidence is None else msgspec.to_builtins(evidence)
