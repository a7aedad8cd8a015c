"""Callers' files, stored in the database in parts, so that no process holds a whole file in memory.

In the database they are shared by all replicas, erased with their user and backed up with everything else; a name
chosen by a caller never becomes a path. Lists are pages of one tenant's rows, ordered by time-sorted ids.
"""

import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Any, Literal

import msgspec
from sqlalchemy import ColumnElement, Table, delete, func, insert, or_, select, update
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from gateway.base.identity import new_request_id
from migrations.tables.api_objects import file_parts, files


class OwnedPage(msgspec.Struct, frozen=True):
    """One page of what a caller owns."""

    rows: list[dict[str, Any]]
    """Rows by column."""
    has_more: bool
    """Whether more rows follow."""


async def owned_page(
    engine: AsyncEngine,
    table: Table,
    conditions: list[ColumnElement[bool]],
    *,
    after: str | None,
    limit: int,
    ascending: bool,
) -> OwnedPage:
    """Return the rows after the id `after` that meet `conditions`, which the index puts before the table's only key."""
    key = next(iter(table.primary_key.columns))
    if after is not None:
        conditions = [*conditions, key > after if ascending else key < after]
    query = select(table).where(*conditions).order_by(key if ascending else key.desc()).limit(limit + 1)
    async with engine.connect() as connection:
        rows = [dict(row) for row in (await connection.execute(query)).mappings()]
    return OwnedPage(rows[:limit], len(rows) > limit)


Purpose = Literal["batch", "user_data", "assistants", "vision", "batch_output"]

PART_BYTES = 1 << 20
# A file that is still unfinished then was cut off with its process.
ABANDONED_SECONDS = 86_400.0
DAY_SECONDS = 86_400.0
# Files deleted per transaction, so that other writers do not wait for long.
_DELETED_AT_ONCE = 20
_QUOTA_LOCK = 0x41494F09  # PostgreSQL advisory lock number: "AIO", 9; the second one is the tenant's


class Owner(msgspec.Struct, frozen=True):
    """The owner of something: all callers of `tenant` may see it, and it is erased with the user of `key_id`."""

    tenant: str
    key_id: str | None


class StoredFile(msgspec.Struct, frozen=True, kw_only=True):
    """A file without its content. Times are UTC epoch seconds."""

    file_id: str
    key_id: str | None
    tenant: str
    purpose: Purpose
    filename: str
    size: int
    """Bytes."""
    created_at: float
    expires_at: float | None
    """None for never."""


class QuotaError(ValueError):
    """A tenant's files would exceed `quota` bytes in total."""

    def __init__(self, quota: int) -> None:
        super().__init__(f"all files of a caller may hold {quota} bytes in total")
        self.quota = quota


class FileStore:
    """The files of all tenants.

    `quota`: bytes that one tenant's files may hold in total. `keep_seconds`: default lifetime unless the owner chose
    another; None for ever.
    """

    def __init__(self, engine: AsyncEngine, quota: int, keep_seconds: float | None = None) -> None:
        self._engine, self._quota, self._keep = engine, quota, keep_seconds

    async def begin_upload(self, owner: Owner, size: int) -> "FileWriter":
        """Start a file of at least `size` bytes that counts against the owner's quota as it arrives, together with all
        uploads at the same time. Raises `QuotaError` if it cannot fit."""
        async with self._engine.connect() as connection:
            if await _bytes_of(connection, owner.tenant) + max(size, 1) > self._quota:
                raise QuotaError(self._quota)
        return FileWriter(self._engine, owner, self._quota, self._keep)

    def begin(self, owner: Owner) -> "FileWriter":
        """Start a file of our own for the owner, which no quota refuses. It is invisible until it is finished."""
        return FileWriter(self._engine, owner, None, self._keep)

    async def find(self, tenant: str, file_id: str) -> StoredFile | None:
        """Return the tenant's file of this id, unless it has expired."""
        query = select(files).where(files.c.file_id == file_id, files.c.tenant == tenant, *self._visible())
        async with self._engine.connect() as connection:
            row = (await connection.execute(query)).mappings().first()
        return None if row is None else _stored(dict(row))

    async def page(
        self, tenant: str, purpose: str | None, *, after: str | None, limit: int, ascending: bool
    ) -> tuple[list[StoredFile], bool]:
        """Return the tenant's files after `after`, and whether there are more."""
        conditions = [files.c.tenant == tenant, *self._visible()]
        if purpose is not None:
            conditions.append(files.c.purpose == purpose)
        page: OwnedPage = await owned_page(
            self._engine, files, conditions, after=after, limit=limit, ascending=ascending
        )
        return [_stored(row) for row in page.rows], page.has_more

    async def content(self, file_id: str) -> AsyncIterator[bytes]:
        """Yield its bytes in parts; a file deleted meanwhile ends early."""
        number = 0
        while True:
            part = select(file_parts.c.content).where(file_parts.c.file_id == file_id, file_parts.c.number == number)
            async with self._engine.connect() as connection:
                content: bytes | None = await connection.scalar(part)
            if content is None:
                return
            yield content
            number += 1

    async def delete(self, tenant: str, file_id: str) -> bool:
        """Delete the file; return whether the tenant had it."""
        mine = delete(files).where(files.c.file_id == file_id, files.c.tenant == tenant, *self._visible())
        async with self._engine.begin() as connection:
            return bool((await connection.execute(mine)).rowcount)

    async def sweep(self) -> int:
        """Delete expired and abandoned files; return how many."""
        now = time.time()
        unfinished = (files.c.status == "uploading") & (files.c.created_at < now - ABANDONED_SECONDS)
        gone = select(files.c.file_id).where(or_(files.c.expires_at <= now, unfinished)).limit(_DELETED_AT_ONCE)
        total = 0
        while True:
            async with self._engine.connect() as connection:
                ids = list((await connection.execute(gone)).scalars())
            if not ids:
                return total
            async with self._engine.begin() as connection:
                total += (await connection.execute(delete(files).where(files.c.file_id.in_(ids)))).rowcount

    def _visible(self) -> list[Any]:
        return [
            files.c.status == "processed",
            or_(files.c.expires_at.is_(None), files.c.expires_at > time.time()),
        ]


class FileWriter:
    """A file being written: `write` its bytes, then `finish` it; leaving the block earlier deletes it.

    `quota`: bytes that the owner's files may hold with this one; None for any number.
    """

    def __init__(self, engine: AsyncEngine, owner: Owner, quota: int | None, keep: float | None) -> None:
        self.file_id = new_request_id("file")
        self.size = 0
        self._engine, self._owner, self._quota, self._keep = engine, owner, quota, keep
        self._held = bytearray()
        self._parts = 0
        self._finished = False
        self._created_at = time.time()

    async def __aenter__(self) -> "FileWriter":
        return self

    async def __aexit__(self, *reason: object) -> None:
        if not self._finished and self._parts:
            # If the database is down, the sweep deletes it later.
            with suppress(SQLAlchemyError, OSError):
                await self._discard()

    async def write(self, content: bytes) -> None:
        """Append bytes. Raises `QuotaError`."""
        self._held += content
        self.size += len(content)
        while len(self._held) >= PART_BYTES:
            await self._store(PART_BYTES)

    async def finish(self, purpose: Purpose, filename: str, expires_in: float | None = None) -> StoredFile:
        """Make it visible. `expires_in`: seconds from its creation. Raises `QuotaError`."""
        try:
            async with self._within_quota() as connection:
                stored = await self.finish_in(connection, purpose, filename, expires_in)
        except BaseException:
            self._finished = False
            raise
        return stored

    async def finish_in(
        self, connection: AsyncConnection, purpose: Purpose, filename: str, expires_in: float | None = None
    ) -> StoredFile:
        """As `finish`, in the caller's transaction and without a quota. At most one part may be unwritten."""
        seconds = self._keep if expires_in is None else expires_in
        stored = StoredFile(
            file_id=self.file_id,
            key_id=self._owner.key_id,
            tenant=self._owner.tenant,
            purpose=purpose,
            filename=filename,
            size=self.size,
            created_at=self._created_at,
            expires_at=None if seconds is None else self._created_at + seconds,
        )
        await self._store_in(connection, len(self._held))
        values = {
            "purpose": purpose,
            "filename": filename,
            "status": "processed",
            "expires_at": stored.expires_at,
        }
        await connection.execute(update(files).where(files.c.file_id == self.file_id).values(values))
        self._finished = True
        return stored

    async def _discard(self) -> None:
        async with self._engine.begin() as connection:
            await connection.execute(delete(files).where(files.c.file_id == self.file_id))

    async def _store(self, size: int) -> None:
        async with self._within_quota() as connection:
            await self._store_in(connection, size)

    async def _store_in(self, connection: AsyncConnection, size: int) -> None:
        if not self._parts:
            row = {
                "file_id": self.file_id,
                "key_id": self._owner.key_id,
                "tenant": self._owner.tenant,
                "purpose": "",
                "filename": "",
                "bytes": size,
                "status": "uploading",
                "created_at": self._created_at,
            }
            await connection.execute(insert(files), row)
        else:
            more = update(files).where(files.c.file_id == self.file_id).values(bytes=files.c.bytes + size)
            await connection.execute(more)
        part = {"file_id": self.file_id, "number": self._parts, "content": bytes(self._held[:size])}
        await connection.execute(insert(file_parts), part)
        del self._held[:size]
        self._parts += 1

    @asynccontextmanager
    async def _within_quota(self) -> AsyncIterator[AsyncConnection]:
        """A transaction that is undone if the owner's files, unfinished ones of all processes included, then exceed the
        quota. Raises `QuotaError`."""
        async with self._engine.begin() as connection:
            if self._quota is not None and connection.dialect.name == "postgresql":
                # SQLite has one writer at a time anyway.
                lock = func.pg_advisory_xact_lock(_QUOTA_LOCK, func.hashtext(self._owner.tenant))
                await connection.execute(select(lock))
            yield connection
            if self._quota is not None and await _bytes_of(connection, self._owner.tenant) > self._quota:
                raise QuotaError(self._quota)


async def _bytes_of(connection: AsyncConnection, tenant: str) -> int:
    return int(await connection.scalar(select(func.sum(files.c.bytes)).where(files.c.tenant == tenant)) or 0)


def _stored(row: dict[str, Any]) -> StoredFile:
    return StoredFile(size=row.pop("bytes"), **{name: row[name] for name in row if name != "status"})
