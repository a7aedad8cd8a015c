"""Operator commands on classifier versions: promote by hand, roll back, start and stop a canary.

The rows are written first and the pointer last, in one transaction: an unavailable database (`SQLAlchemyError`,
`OSError`) leaves everything unchanged.
"""

import time

from sqlalchemy.ext.asyncio import AsyncEngine

from classifier.errors import ArtefactError
from classifier.registry.registry import ArtefactRegistry
from migrations.tables.audit import audited
from quality.comparison.decision_gain import Serving
from quality.rollout.rollout import Rollouts, RolloutSettings
from quality.rollout.versions import ClassifierVersions, registry_transaction


async def promote(
    engine: AsyncEngine,
    registry: ArtefactRegistry,
    version: str,
    *,
    actor: str,
    reason: str,
    prior: list[list[float]] | None = None,
    serving: Serving | None = None,
) -> str:
    """Make `version` current by hand and watch it; return the version it replaced. `prior` and `serving` of the
    catalogue as for `RolloutSettings`. Raises `ArtefactError` for an unknown version."""
    before = registry.current().name
    rollouts = Rollouts(engine, registry)
    async with registry_transaction(engine) as connection:
        if before == version:
            await rollouts.end(connection, "superseded", actor=actor, reason=reason)
        else:
            settings = RolloutSettings(prior=prior or [], serving=serving)
            await rollouts.begin(connection, version, before, settings, actor=actor, reason=reason, stage="watch")
        registry.promote(version)
    return before


async def rollback(
    engine: AsyncEngine, registry: ArtefactRegistry, *, actor: str, reason: str, now: float | None = None
) -> str:
    """Make the previous classifier current again, audit who did it and why, and return its version.

    Raises `ArtefactError` if there is no previous one.
    """
    retired, previous = registry.current().name, registry.previous()
    if previous is None:
        raise ArtefactError(f"{registry.root} names no previous version to roll back to.")
    folder, now = registry.folder(previous), time.time() if now is None else now
    async with registry_transaction(engine) as connection:
        await Rollouts(engine, registry).close(connection, "superseded", reason=reason)
        said = f"rolled back to: {reason}"
        await ClassifierVersions(engine).became(connection, previous, folder, "promoted", said, now)
        await connection.execute(audited(now, actor, "classifier.rolled_back", previous, reason, {"retired": retired}))
        registry.rollback()
    return previous


async def start_canary(
    engine: AsyncEngine,
    registry: ArtefactRegistry,
    version: str,
    share: float,
    *,
    actor: str,
    reason: str,
    prior: list[list[float]] | None = None,
    serving: Serving | None = None,
) -> None:
    """Let `version` decide on a `share` of the requests, until the operator or live evidence ends it.

    `prior` and `serving` as for `promote`. Raises `ArtefactError` if that is not possible.
    """
    registry.check_canary(version, share)
    rollouts = Rollouts(engine, registry)
    settings = RolloutSettings(share=share, promotes=False, prior=prior or [], serving=serving)
    async with registry_transaction(engine) as connection:
        await rollouts.begin(connection, version, registry.current().name, settings, actor=actor, reason=reason)
        registry.start_canary(version, share)


async def stop_canary(engine: AsyncEngine, registry: ArtefactRegistry, *, actor: str, reason: str) -> str | None:
    """End the trial, or the watch of a promoted version, which goes on serving; return it, None without one."""
    async with registry_transaction(engine) as connection:
        ended = await Rollouts(engine, registry).end(connection, "stopped", actor=actor, reason=reason)
        orphan = registry.canary()
        if ended is None and orphan is not None:
            await connection.execute(audited(time.time(), actor, "classifier.canary_stopped", orphan.version, reason))
        registry.stop_canary()
    if ended is not None:
        return ended.version
    return None if orphan is None else orphan.version
