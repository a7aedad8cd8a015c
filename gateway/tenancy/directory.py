"""All keys in memory: who asks is found there without any I/O; a poll brings what changed in the database."""

import asyncio
import hmac
import logging
import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec
from sqlalchemy import select
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.ext.asyncio import AsyncEngine

from gateway.caller import Allowance, BudgetRef, Caller
from gateway.keys import PREFIX_LENGTH, ApiKeys, bearer_of, digest_of
from gateway.tenancy.database_time import DatabaseTime
from gateway.tenancy.periods import MICRO
from migrations.tables import api_keys, budgets, tenancy_state
from tiers.catalog import Catalog

log = logging.getLogger(__name__)

INFERENCE: frozenset[str] = frozenset({"inference"})
ADMINISTRATION: frozenset[str] = frozenset({"viewer", "admin"})
_NOBODY = bytes(32)


class KnownKey(msgspec.Struct, frozen=True):
    """A secret of a stored key: good until `until` (epoch seconds), unless the key was revoked."""

    digest: bytes
    caller: Caller
    until: float
    revoked: bool


class UnknownKeyError(Exception):
    """No key that is good for this; the message says what is wrong, to whoever sent it."""


class KeysAwayError(Exception):
    """The stored keys have not been read yet, and the key is none of the settings."""


class Directory:
    """The keys of the settings, and those that are stored.

    `marker`: a file that says that stored keys are asked for, so that a restart without the database does not open what
    was closed; `open_at_first`: whether keyless callers may come in before anything could be read and without marker.
    """

    def __init__(
        self,
        engine: AsyncEngine,
        catalog: Catalog,
        keys: ApiKeys,
        admin_keys: ApiKeys,
        clock: DatabaseTime,
        *,
        marker: Path,
        open_at_first: bool,
    ) -> None:
        self._engine, self._catalog, self._clock = engine, catalog, clock
        self._keys, self._admin_keys = keys, admin_keys
        self._marker, self._open_at_first = marker, open_at_first and not marker.exists()
        self._revision: int | None = None
        self._known: Mapping[str, Sequence[KnownKey]] = {}
        self._static: Mapping[str, Allowance] = {}
        self._stored_inference = self._stored_admin = False

    @property
    def asks_for_keys(self) -> bool:
        """Whether there are keys that ask for answers, ended ones too: the last one's end opens nothing."""
        return bool(self._keys) or self._stored_inference or (self._revision is None and not self._open_at_first)

    @property
    def has_admin(self) -> bool:
        """Whether there is a key that may administer, or look on."""
        return bool(self._admin_keys) or self._stored_admin

    def is_static(self, name: str) -> bool:
        """Whether a key of the settings has this name."""
        return name in self._keys.names

    def inference_caller(self, authorization: str | None) -> Caller:
        """Who asks for answers. Raises `UnknownKeyError` or `KeysAwayError`."""
        owner = self._keys.owner(authorization) if self._keys else None
        if owner is not None:
            caller = self._keys.caller(owner, INFERENCE)
            allowance = self._static.get(owner)
            return caller if allowance is None else msgspec.structs.replace(caller, allowance=allowance)
        return self._stored(authorization)

    def admin_caller(self, authorization: str | None) -> Caller:
        """Who administers. Raises `UnknownKeyError` or `KeysAwayError`."""
        owner = self._admin_keys.owner(authorization) if self._admin_keys else None
        return self._stored(authorization) if owner is None else self._admin_keys.caller(owner, ADMINISTRATION)

    async def load(self) -> bool:
        """Read what is stored, if it changed; returns whether it had. Raises what the database raises."""
        async with self._engine.connect() as connection:
            now = await self._clock.look(connection)
            revision = await connection.scalar(select(tenancy_state.c.revision))
            if revision == self._revision:
                return False
            rows = (await connection.execute(select(api_keys))).mappings().all()
            bounds = (await connection.execute(select(budgets))).mappings().all()
        self._take([dict(row) for row in rows], [dict(row) for row in bounds], now)
        self._revision = revision
        return True

    async def follow(self, seconds: float) -> None:
        """Look for changes every `seconds`, for ever. While the database is away, what was read last holds."""
        away = False
        while True:
            await asyncio.sleep(seconds)
            try:
                await self.load()
                away = False
            except (SQLAlchemyError, OSError) as error:
                if not away:
                    log.warning("keys cannot be read (%s); those known go on to hold", type(error).__name__)
                away = True

    def _stored(self, authorization: str | None) -> Caller:
        secret = bearer_of(authorization)
        if secret is None:
            raise UnknownKeyError("Missing API key.")
        if self._revision is None:
            raise KeysAwayError
        digest, found = digest_of(secret), None
        candidates = self._known.get(secret[:PREFIX_LENGTH], ())
        # One comparison at least, so that a known prefix takes no longer than an unknown one.
        hmac.compare_digest(digest, _NOBODY)
        for known in candidates:
            if hmac.compare_digest(digest, known.digest):
                found = known
        if found is None:
            raise UnknownKeyError("Wrong API key.")
        if found.revoked:
            raise UnknownKeyError("This API key was revoked.")
        if self._clock.now() >= found.until:
            raise UnknownKeyError("This API key has expired.")
        return found.caller

    def _take(self, rows: list[dict[str, Any]], bounds: list[dict[str, Any]], now: float) -> None:
        charged: dict[tuple[str, str], list[BudgetRef]] = defaultdict(list)
        for row in bounds:
            ref = BudgetRef(budget_id=row["budget_id"], period=row["period"], amount_usd=row["amount_microusd"] / MICRO)
            charged[row["subject_kind"], row["subject"]].append(ref)
        known: dict[str, list[KnownKey]] = defaultdict(list)
        for row in rows:
            refs = (*charged["key", row["key_id"]], *charged["team", row["team_id"] or ""])
            caller = self._caller(row, refs)
            until, revoked = row["expires_at"] or math.inf, row["revoked_at"] is not None
            known[row["prefix"]].append(KnownKey(bytes.fromhex(row["digest"]), caller, until, revoked))
            if row["old_digest"] is not None:
                old = KnownKey(bytes.fromhex(row["old_digest"]), caller, min(until, row["old_until"]), revoked)
                known[row["old_prefix"]].append(old)
        self._known = dict(known)
        ids = {row["key_id"] for row in rows}
        self._static = {
            subject: Allowance(budgets=tuple(refs))
            for (kind, subject), refs in charged.items()
            if kind == "key" and subject not in ids and refs
        }
        self._stored_inference = any("inference" in row["scopes"] for row in rows)
        live = (row for row in rows if row["revoked_at"] is None and (row["expires_at"] or math.inf) > now)
        self._stored_admin = any(not ADMINISTRATION.isdisjoint(row["scopes"]) for row in live)
        if self._stored_inference:
            with suppress(OSError):
                self._marker.touch()

    def _caller(self, row: Mapping[str, Any], refs: tuple[BudgetRef, ...]) -> Caller:
        return Caller(
            key_id=row["key_id"],
            name=row["name"],
            team=row["team_id"],
            scopes=frozenset(row["scopes"]),
            consent=row["consent"],
            tiers=self._tiers(row["tiers"], row["models"]),
            priority_ceiling=row["priority_ceiling"],
            allowance=Allowance(
                requests_per_minute=row["requests_per_minute"],
                tokens_per_minute=row["tokens_per_minute"],
                concurrency=row["concurrency"],
                budgets=refs,
            ),
        )

    def _tiers(self, tiers: list[int] | None, models: list[str] | None) -> frozenset[int] | None:
        """The catalogue's tiers that are in both lists; a model may be called by its own or by a tier's name."""
        if tiers is None and models is None:
            return None
        return frozenset(
            spec.number
            for spec in self._catalog.tiers
            if (tiers is None or spec.number in tiers)
            and (models is None or not {spec.model_name, spec.name, f"tier-{spec.number}"}.isdisjoint(models))
        )
