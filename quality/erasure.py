"""Erasing a user: her rows leave the store, and the classifier versions that remember them are replaced."""

import asyncio

import msgspec
from sqlalchemy import insert, select, update
from sqlalchemy.ext.asyncio import AsyncEngine

from classifier.artefact import load_manifest
from classifier.erasure import erase_from_registry
from classifier.registry import ArtefactRegistry
from migrations.tables import classifier_versions, erased_embeddings
from quality.store import ErasedRows, delete_key_data, record_audit


class Erased(msgspec.Struct, frozen=True, kw_only=True):
    """What erasing a user did. `replaced`: the classifier versions without her rows, by those that had them."""

    key_id: str
    rows: ErasedRows
    replaced: dict[str, str]


async def erase_user(
    engine: AsyncEngine, registry: ArtefactRegistry, key_id: str, *, actor: str, reason: str, now: float
) -> Erased:
    """Delete everything up to `now` of the user with this key, and write down who wanted it.

    Raises `ArtefactError` if a classifier version cannot be read: the rows are gone by then, and the next call or
    `forget_erased` sees to the versions.
    """
    rows = await delete_key_data(engine, key_id, now=now)
    await record_audit(
        engine, at=now, actor=actor, action="user.erased", subject=key_id, reason=reason, details={"rows": rows}
    )
    return Erased(key_id=key_id, rows=rows, replaced=await forget_erased(engine, registry, actor=actor, now=now))


async def forget_erased(engine: AsyncEngine, registry: ArtefactRegistry, *, actor: str, now: float) -> dict[str, str]:
    """Replace the versions that remember anybody who was erased lately, those finished since included.

    Returns the new versions by the old ones; each has an audit row. Raises `ArtefactError`.
    """
    async with engine.connect() as connection:
        digests = list((await connection.execute(select(erased_embeddings.c.digest))).scalars())
    replaced = await asyncio.to_thread(erase_from_registry, registry, digests)
    for old, new in replaced.items():
        await _note(engine, registry, old, new, now)
        await record_audit(
            engine,
            at=now,
            actor=actor,
            action="classifier.erased_from",
            subject=new,
            reason=f"{old} remembered rows of an erased user and was deleted",
            details={"replaced": old},
        )
    return replaced


async def _note(engine: AsyncEngine, registry: ArtefactRegistry, old: str, new: str, now: float) -> None:
    """The new version takes the old one's place among the rows of versions."""
    versions = classifier_versions
    manifest = load_manifest(registry.folder(new))
    async with engine.execution_options(sqlite_begin="BEGIN IMMEDIATE").begin() as connection:
        known = {
            row.version: row.status
            for row in await connection.execute(
                select(versions.c.version, versions.c.status).where(versions.c.version.in_((old, new)))
            )
        }
        status = known.get(old, "retired")
        gone = {"status": "retired", "retired_at": now, "reason": f"deleted: {new} is without an erased user's rows"}
        await connection.execute(update(versions).where(versions.c.version == old).values(**gone))
        fields = {
            "status": status,
            "path": str(registry.folder(new)),
            "reason": f"{old} without an erased user's rows",
            "promoted_at": now if status == "promoted" else None,
        }
        if new in known:
            if status == "promoted":
                await connection.execute(update(versions).where(versions.c.version == new).values(**fields))
        else:
            row = {"version": new, "parent": manifest.parent, "metrics": manifest.metrics, "created_at": now}
            await connection.execute(insert(versions).values(**row, **fields))
