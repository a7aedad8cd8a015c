"""Erase a user: delete the user's rows, and replace the classifier versions that were trained on them."""

import asyncio
from collections.abc import Mapping

import msgspec
from sqlalchemy import insert, select, update
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from classifier.registry.artefact import load_manifest
from classifier.registry.erasure import forget, versions_without
from classifier.registry.registry import ArtefactRegistry
from migrations.tables.audit import audit_events, erased_embeddings
from migrations.tables.quality import classifier_versions, rollouts
from quality.rollout.classifier_versions import ClassifierVersions, VersionStatus
from quality.rollout.registry_transaction import registry_transaction
from quality.store.queries import ErasedRows, delete_key_data, record_audit


class Erased(msgspec.Struct, frozen=True, kw_only=True):
    """The result of erasing a user. `replaced`: new classifier versions without the user's rows, by old version."""

    key_id: str
    rows: ErasedRows
    replaced: dict[str, str]


async def erase_user(
    engine: AsyncEngine, registry: ArtefactRegistry, key_id: str, *, actor: str, reason: str, now: float
) -> Erased:
    """Delete all data of the user with this key up to `now`, and audit who requested it.

    Raises `ArtefactError` if a classifier version cannot be read: the rows are deleted by then, and the next call or
    `forget_erased` replaces the versions.
    """
    rows = await delete_key_data(engine, key_id, now=now)
    await record_audit(
        engine, at=now, actor=actor, action="user.erased", subject=key_id, reason=reason, details={"rows": rows}
    )
    return Erased(key_id=key_id, rows=rows, replaced=await forget_erased(engine, registry, actor=actor, now=now))


async def forget_erased(engine: AsyncEngine, registry: ArtefactRegistry, *, actor: str, now: float) -> dict[str, str]:
    """Replace the versions that hold rows of recently erased users, including versions finished since.

    Return the new versions by the old ones; each has an audit row. A running rollout continues with the new ones.
    Raises `ArtefactError`.
    """
    async with engine.connect() as connection:
        digests = list((await connection.execute(select(erased_embeddings.c.digest))).scalars())
    replaced = await asyncio.to_thread(versions_without, registry, digests)
    if replaced:
        async with registry_transaction(engine) as connection:
            for old, new in replaced.items():
                await _write_down(connection, ClassifierVersions(engine), registry, (old, new), actor, now)
            await _go_on(connection, replaced, now)
            registry.replace(replaced)
        await asyncio.to_thread(forget, registry, list(replaced))
    return replaced


async def _write_down(
    connection: AsyncConnection,
    versions: ClassifierVersions,
    registry: ArtefactRegistry,
    names: tuple[str, str],
    actor: str,
    now: float,
) -> None:
    """Put the new version in the old one's place in the rows of versions."""
    old, new = names
    columns = classifier_versions.c
    known = await connection.execute(select(columns.version, columns.status).where(columns.version.in_(names)))
    statuses: dict[str, VersionStatus] = {row.version: row.status for row in known}
    status: VersionStatus = statuses.get(old, "retired")
    gone = f"deleted: {new} is without an erased user's rows"
    if status == "promoted" or new not in statuses:
        manifest = load_manifest(registry.folder(new))
        reason = f"{old} without an erased user's rows"
        folder, parent, metrics = registry.folder(new), manifest.parent, manifest.metrics
        await versions.became(connection, new, folder, status, reason, now, parent=parent, metrics=metrics)
    await versions.became(connection, old, registry.root / old, "retired", gone, now)
    event = {
        "created_at": now,
        "actor": actor,
        "action": "classifier.erased_from",
        "subject": new,
        "reason": f"{old} remembered rows of an erased user and was deleted",
        "details": {"replaced": old},
    }
    await connection.execute(insert(audit_events), event)


async def _go_on(connection: AsyncConnection, replaced: Mapping[str, str], now: float) -> None:
    """Make the running rollout refer to the new versions; end it if both are the same now."""
    under_way = rollouts.c.status == "running"
    for old, new in replaced.items():
        for column in (rollouts.c.version, rollouts.c.incumbent):
            await connection.execute(update(rollouts).where(under_way, column == old).values({column: new}))
    ended = {"status": "superseded", "reason": "nothing but an erased user's rows set them apart", "finished_at": now}
    await connection.execute(
        update(rollouts).where(under_way, rollouts.c.version == rollouts.c.incumbent).values(**ended)
    )
