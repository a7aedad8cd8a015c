"""Retraining: from stored outcomes to a classifier that is refused or put on trial. Every transition is a row with its
reason. `quality.rollout.rollout` continues the trial."""

import asyncio
import logging
import shutil
import time
from collections.abc import Callable
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal

import msgspec
import numpy as np
from safetensors.numpy import save_file
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from classifier.complexity.classes import adequacies, like_of
from classifier.errors import ArtefactError
from classifier.model.outcome_model import Manifest
from classifier.registry.acceptance import accepted_artefact
from classifier.registry.artefact import load_manifest
from classifier.registry.registry import ArtefactRegistry
from inference_core.extras import MissingExtraError
from quality.comparison.decision_gain import Serving, reference_serving
from quality.monitor.watches import tenants_changes
from quality.retraining.runs import Busy, LeaseLostError, Made, RetrainRuns, Run
from quality.retraining.training_process import ORDER, RESULT, ROWS, OnProgress, Order, Train, run_training_process
from quality.rollout.rollout import ACTOR, Rollouts, RolloutSettings
from quality.rollout.versions import ClassifierVersions, registry_transaction
from quality.store.queries import labels_count_from
from quality.verification.training_rows import Tensors, data_hash, export_rows, feature_spec

log = logging.getLogger(__name__)

Trigger = Literal["cron", "drift", "cli", "button"]
Outcome = Literal["canary", "promoted", "refused", "nothing new", "busy"]


class RetrainSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Settings of a run."""

    catalogue_fingerprint: str
    """Fingerprint of the catalogue of the rows."""
    models: dict[str, list[str | None]]
    """The catalogue's models, by tier."""
    tiers: list[str] = []
    """Fingerprints (`Catalog.tier_fingerprint`) by which rows are selected; if empty, they are selected by the number
    of tiers.
    """
    seed: int = 0
    prior: list[list[float]] = []
    """See `Order`; if empty, evenly spread tiers."""
    serving: Serving | None = None
    """See `Order`; None for reference prices and the default target."""
    lease_seconds: float = 120.0
    timeout_seconds: float = 3600.0
    rollout: RolloutSettings = RolloutSettings()
    """How an accepted candidate is rolled out."""
    keys_are_tenants: bool = False
    """See `export_rows`."""


class RetrainResult(msgspec.Struct, frozen=True, kw_only=True):
    """The result of a run."""

    run_id: str
    outcome: Outcome
    reason: str
    incumbent: str
    candidate: str | None = None
    judgement: dict[str, Any] | None = None
    """A `promotion_gate.Judgement` as plain data, None if nothing was trained."""


class _Trained(msgspec.Struct, frozen=True, kw_only=True):
    """The training process's result, decoded without importing the training code."""

    version: str
    path: str
    judgement: dict[str, Any]


async def retrain(
    engine: AsyncEngine,
    registry: ArtefactRegistry,
    settings: RetrainSettings,
    *,
    trigger: Trigger,
    due: datetime | None = None,
    on_progress: OnProgress = lambda step, share: None,
    clock: Callable[[], float] = time.time,
    train: Train = run_training_process,
) -> RetrainResult:
    """Train a candidate on all stored rows, and start its rollout if it is better (QM-06, QM-07).

    One run at a time over all replicas: a second start returns "busy". A run whose runner died is resumed. Nothing new
    are the data of the last run, and a scheduled run of which another has started since its `due` time. Any failure is
    written to the run's row and raised. `train` executes the order in a folder and leaves the result there.
    """
    runs = RetrainRuns(engine, settings.lease_seconds)
    run = await runs.acquire(trigger, clock(), None if due is None else due.timestamp())
    if not isinstance(run, Run):
        return RetrainResult(
            run_id=run.run_id,
            outcome="busy" if isinstance(run, Busy) else "nothing new",
            reason=_not_begun(run),
            incumbent=load_manifest(registry.current()).version,
        )
    result = await _Retraining(engine, registry, settings, runs, run, on_progress, clock, train).complete()
    if result.outcome != "canary":
        return result
    # The rollout is in the database: if this fails, the next replica to advance it starts here.
    said = await Rollouts(engine, registry, clock=clock).advance()
    if said is not None and said.act == "promote":
        return msgspec.structs.replace(result, outcome="promoted", reason=f"{result.reason}; {said.reason}")
    return result


class _Retraining:
    """One run, step by step: export, train and judge in a process, decide. Each step is idempotent."""

    def __init__(
        self,
        engine: AsyncEngine,
        registry: ArtefactRegistry,
        settings: RetrainSettings,
        runs: RetrainRuns,
        run: Run,
        on_progress: OnProgress,
        clock: Callable[[], float],
        train: Train,
    ) -> None:
        self._engine = engine
        self._registry = registry
        self._settings = settings
        self._runs = runs
        self._run = run
        self._on_progress = on_progress
        self._clock = clock
        self._train = train
        self._versions = ClassifierVersions(engine)
        self._rollouts = Rollouts(engine, registry, clock=clock)
        self._folder = registry.root / ".runs" / run.run_id
        self._tiers = max(map(len, settings.models.values()), default=0)
        self._prior = settings.prior or adequacies(like_of(self._tiers)).tolist()
        self._serving = settings.serving or reference_serving(self._tiers)
        self._rollout = msgspec.structs.replace(settings.rollout, prior=self._prior, serving=self._serving)

    async def complete(self) -> RetrainResult:
        keeping = asyncio.create_task(self._keep_lease())
        working = asyncio.create_task(self._work())
        try:
            await asyncio.wait({keeping, working}, return_when=asyncio.FIRST_COMPLETED)
            if not working.done():
                # Without the lease this runner may not write.
                keeping.result()
            return await working
        except Exception as error:
            await self._fail(error)
            raise
        except asyncio.CancelledError:
            await asyncio.shield(self._let_go())
            raise
        finally:
            for task in (keeping, working):
                task.cancel()
            await asyncio.gather(keeping, working, return_exceptions=True)

    async def _work(self) -> RetrainResult:
        incumbent_folder = self._registry.current()
        incumbent = load_manifest(incumbent_folder)
        await self._versions.ensure(incumbent, incumbent_folder, self._clock())
        if self._tiers < 2:
            return await self._nothing_new(incumbent, "", "the catalogue has no tiers to choose between")
        root_folder = self._root_of(incumbent)
        by_tenant = await tenants_changes(self._engine)
        changes = by_tenant.get(None, {})
        tiers, apart = self._settings.tiers or [""] * self._tiers, self._settings.keys_are_tenants
        tensors = await export_rows(self._engine, incumbent, tiers, by_tenant, apart)
        asked = (msgspec.json.encode(part).decode() for part in (self._settings, changes))
        hashed = data_hash(tensors, root_folder.name, *asked)
        if not len(tensors["at"]):
            return await self._nothing_new(incumbent, hashed, "no verified outcome to train on is stored")
        if hashed == await self._runs.last_trained_hash():
            return await self._nothing_new(incumbent, hashed, "the stored outcomes are those of the last run")
        await self._runs.advance(self._run, "exported", self._clock(), {"data_hash": hashed})
        trained = await self._trained(incumbent_folder, root_folder, tensors, changes, hashed)
        await self._versions.trained(trained.version, Path(trained.path), incumbent.version, self._clock())
        return await self._decide(incumbent, trained, hashed, float(tensors["at"][0]))

    async def _trained(
        self, incumbent: Path, root: Path, tensors: Tensors, changes: dict[int, float], hashed: str
    ) -> _Trained:
        """Return the training process's result; a resumed run uses its predecessor's, if the data are the same."""
        folder = self._folder / hashed[:16]
        if not (folder / RESULT).is_file():
            start, end = _iso(float(tensors["at"][0])), _iso(float(tensors["at"][-1]))
            order = Order(
                root_artefact=str(root),
                incumbent=str(incumbent),
                registry=str(self._registry.root),
                catalogue_fingerprint=self._settings.catalogue_fingerprint,
                models=self._settings.models,
                window_start=start,
                window_end=end,
                seed=self._settings.seed,
                look=1 + await self._runs.judged(),
                changes=changes,
                prior=self._prior,
                serving=self._serving,
            )
            folder.mkdir(parents=True, exist_ok=True)
            save_file({name: np.ascontiguousarray(values) for name, values in tensors.items()}, folder / ROWS)
            (folder / ORDER).write_bytes(msgspec.json.encode(order))
            await self._train(folder, self._on_progress, timeout_seconds=self._settings.timeout_seconds)
        trained = msgspec.json.decode((folder / RESULT).read_bytes(), type=_Trained)
        await self._runs.advance(self._run, "trained", self._clock(), {"classifier_version": trained.version})
        return trained

    async def _decide(self, incumbent: Manifest, trained: _Trained, hashed: str, oldest: float) -> RetrainResult:
        """Refuse the candidate or start its rollout, in the transaction that ends the run. `oldest`: the time of the
        first label that it learned from."""
        reasons: list[str] = list(trained.judgement["reasons"])
        reasons += await asyncio.to_thread(self._unfit, trained, incumbent)
        now, folder = self._clock(), Path(trained.path)
        async with registry_transaction(self._engine) as connection:
            if (rolled_back := await self._versions.why_rolled_back(connection, trained.version)) is not None:
                reasons.append(f"was rolled back before: {rolled_back}")
            if oldest <= await labels_count_from(connection):
                reasons.append("the labels that it learned from have been reset meanwhile")
            accepted = not reasons
            outcome: Literal["canary", "refused"] = "canary" if accepted else "refused"
            reason = f"better than {incumbent.version} on held-out rows" if accepted else "; ".join(reasons)
            reason += "".join(
                f"; {rows} new rows are from before tier {tier}'s answers changed"
                for tier, rows in trained.judgement["outdated"].items()
            )
            action = "retrain.accepted" if accepted else "classifier.refused"
            await self._finish(connection, now, action, reason, hashed, trained)
            under_way = await self._rollouts.running(connection)
            if under_way is None or under_way.version != trained.version:
                await self._versions.became(
                    connection, trained.version, folder, outcome, reason, now,
                    parent=incumbent.version, metrics=trained.judgement,
                )  # fmt: skip
                if accepted:
                    await self._rollouts.begin(
                        connection, trained.version, incumbent.version, self._rollout,
                        actor=ACTOR, reason=reason,
                    )  # fmt: skip
        shutil.rmtree(self._folder, ignore_errors=True)
        return RetrainResult(
            run_id=self._run.run_id,
            outcome=outcome,
            reason=reason,
            incumbent=incumbent.version,
            candidate=trained.version,
            judgement=trained.judgement,
        )

    def _unfit(self, trained: _Trained, incumbent: Manifest) -> list[str]:
        """Return why a server would refuse the candidate, whatever the judgement says."""
        if trained.version == incumbent.version:
            return ["the candidate is the incumbent"]
        try:
            model = accepted_artefact(
                Path(trained.path), self._settings.catalogue_fingerprint, tiers=self._tiers, must_be_measured=True
            )
        except (ArtefactError, OSError) as error:
            return [str(error)]
        if feature_spec(model.manifest) != feature_spec(incumbent):
            return [f"its features are not those of {incumbent.version}, of which the stored rows are"]
        return []

    async def _nothing_new(self, incumbent: Manifest, hashed: str, reason: str) -> RetrainResult:
        now = self._clock()
        async with self._engine.begin() as connection:
            await self._finish(connection, now, "retrain.nothing_new", reason, hashed, None)
        return RetrainResult(run_id=self._run.run_id, outcome="nothing new", reason=reason, incumbent=incumbent.version)

    async def _finish(
        self, connection: AsyncConnection, now: float, action: str, reason: str, hashed: str, trained: _Trained | None
    ) -> None:
        fields = {
            "status": "done",
            "data_hash": hashed,
            "classifier_version": trained.version if trained is not None else None,
            "metrics": trained.judgement if trained is not None else None,
        }
        await self._runs.finish(connection, self._run, now, action=action, reason=reason, fields=fields)

    async def _fail(self, error: Exception) -> None:
        """Store the failure; if the lease or the database is lost, another runner will resume the run."""
        message = str(error) if isinstance(error, MissingExtraError) else f"{type(error).__name__}: {error}"
        log.error("retraining run %s failed: %s", self._run.run_id, message)
        with suppress(Exception):
            async with self._engine.begin() as connection:
                await self._runs.finish(
                    connection,
                    self._run,
                    self._clock(),
                    action="retrain.failed",
                    reason="the run failed; the incumbent stays",
                    fields={"status": "failed", "error": message},
                )
            shutil.rmtree(self._folder, ignore_errors=True)

    async def _let_go(self) -> None:
        with suppress(SQLAlchemyError, LeaseLostError):
            await self._runs.release(self._run, self._clock())

    async def _keep_lease(self) -> None:
        while True:
            await asyncio.sleep(self._runs.lease_seconds / 4)
            try:
                await self._runs.renew(self._run, self._clock())
            except SQLAlchemyError:
                log.warning("the lease of run %s could not be renewed; trying again", self._run.run_id, exc_info=True)

    def _root_of(self, incumbent: Manifest) -> Path:
        """Return the artefact that the lineage started with: every candidate is trained from it on all stored rows."""
        manifest = incumbent
        while manifest.parent is not None:
            manifest = load_manifest(self._registry.folder(manifest.parent))
        return self._registry.folder(manifest.version)


def _not_begun(run: Busy | Made) -> str:
    if isinstance(run, Made):
        return f"run {run.run_id} has been made since this one was due"
    return f"run {run.run_id} is under way, held by {run.owner}"


def _iso(epoch: float) -> str:
    return datetime.fromtimestamp(epoch, UTC).isoformat(timespec="seconds")
