"""All keys in memory: callers are identified without any I/O; polling brings changes from the database.

A stored key is found by the SHA-256 of its secret, and replaced when its row changes.
"""

import asyncio
import logging
import math
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec
from sqlalchemy import Column, Select, literal, select, tuple_
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from classifier.complexity.quality_setting import target_of
from gateway.base.inference_request import KEYLESS, Allowance, BudgetRef, Caller
from gateway.base.stores.data_folder import KEYS_REQUIRED
from gateway.base.stores.database import DatabaseTime
from gateway.tenancy.budgets.lease_book import MICRO
from gateway.tenancy.keys.key_secrets import ApiKeys, SettingsKeys, bearer_of, digest_of
from migrations.tables.tenancy import api_keys, budgets, teams, tenancy_state
from tiers.catalog.catalog import Catalog, CatalogInUse
from tiers.catalog.consent import Consent
from tiers.catalog.tier_spec import TierSpec

VIEWING: frozenset[str] = frozenset({"viewer"})
ADMINISTRATION = VIEWING | {"admin"}
# A budget's subject: its kind, and the id of the key or team.
Charges = Mapping[tuple[str, str], tuple[BudgetRef, ...]]


class KnownKey(msgspec.Struct, frozen=True):
    """A secret of a stored key: valid until `until` (epoch seconds), unless the key was revoked or is paused."""

    digest: bytes
    caller: Caller
    until: float
    revoked: bool
    paused: bool
    rotated: bool = False
    """Whether it was replaced by another one."""


class KnownKeys:
    """The stored keys of one catalogue. `charges`: the budgets that they are charged to."""

    def __init__(self, catalog: Catalog, charges: Charges) -> None:
        self._catalog, self._charges = catalog, charges
        self._by_digest: dict[bytes, KnownKey] = {}
        self._by_id: dict[str, tuple[KnownKey, ...]] = {}
        self._inference: set[str] = set()

    def with_digest(self, digest: bytes) -> KnownKey | None:
        """Return the key whose secret has this SHA-256. The time that it takes tells of the digest alone, and from no
        digest can a caller work towards a key."""
        return self._by_digest.get(digest)

    def secrets_of(self, key_id: str) -> Sequence[KnownKey]:
        """Return the key's current secret, and those before it that may still be valid."""
        return self._by_id.get(key_id, ())

    def newest(self, key_id: str) -> KnownKey | None:
        """Return the key's current secret; None if there is no such key."""
        return self._by_id.get(key_id, (None,))[0]

    @property
    def ask_for_answers(self) -> bool:
        """Whether any key may request answers, ended ones included."""
        return bool(self._inference)

    def may_answer(self, now: float) -> bool:
        """Whether any key valid at `now` (epoch seconds) may request answers."""
        return any(
            key.until > now and not key.revoked for key_id in self._inference for key in self._by_id.get(key_id, ())
        )

    def administer(self, now: float) -> bool:
        """Whether any key valid at `now` (epoch seconds) may administer or view."""
        return any(
            key.until > now and not key.revoked and not ADMINISTRATION.isdisjoint(key.caller.scopes)
            for key in self._all()
        )

    def put(self, row: Mapping[str, Any]) -> None:
        """Add or replace a row of `api_keys`, with the `team_name`."""
        caller = self.caller_of(row)
        until = row["expires_at"] or math.inf
        refused = row["revoked_at"] is not None, row["paused_at"] is not None
        secrets = [KnownKey(bytes.fromhex(row["digest"]), caller, until, *refused)]
        for digest, ends in replaced_secrets(row):
            secrets.append(KnownKey(bytes.fromhex(digest), caller, min(until, ends), *refused, rotated=True))
        self._replace(row["key_id"], tuple(secrets))

    def charge(self, charges: Charges) -> None:
        """Use these budgets from now on."""
        before, self._charges = self._charges, charges
        changed = {subject for subject in {*before, *charges} if before.get(subject) != charges.get(subject)}
        for key_id, secrets in list(self._by_id.items()) if changed else ():
            caller = secrets[0].caller
            if ("key", key_id) in changed or ("team", caller.team or "") in changed:
                allowance = msgspec.structs.replace(caller.allowance, budgets=self._budgets(key_id, caller.team))
                charged = msgspec.structs.replace(caller, allowance=allowance)
                self._replace(key_id, tuple(msgspec.structs.replace(key, caller=charged) for key in secrets))

    def _all(self) -> Iterator[KnownKey]:
        return (key for keys in self._by_id.values() for key in keys)

    def _replace(self, key_id: str, secrets: tuple[KnownKey, ...]) -> None:
        for gone in self._by_id.get(key_id, ()):
            self._by_digest.pop(gone.digest, None)
        for key in secrets:
            self._by_digest[key.digest] = key
        self._by_id[key_id] = secrets
        if "inference" in secrets[0].caller.scopes:
            self._inference.add(key_id)
        else:
            self._inference.discard(key_id)

    def caller_of(self, row: Mapping[str, Any]) -> Caller:
        """Return the caller with the key of a row of `api_keys`, with the `team_name`; its hashes are not read."""
        return Caller(
            key_id=row["key_id"],
            name=row["name"],
            team=row["team_id"],
            team_name=row.get("team_name"),
            scopes=frozenset(row["scopes"]),
            consent=Consent(
                tiers=self._tiers(row["tiers"], row["models"]), local=row["local_only"], reuse=row["consent"]
            ),
            quality_target=target_of(row["quality"]),
            # A minimum tier above a catalogue that has become shorter means its strongest tier.
            min_tier=None if row["min_tier"] is None else min(row["min_tier"], len(self._catalog.tiers)),
            max_cost_usd=row["max_cost_usd_per_request"],
            priority_ceiling=row["priority_ceiling"],
            strict=row["strict"],
            aliases=row["aliases"] or {},
            allowance=Allowance(
                requests_per_minute=row["requests_per_minute"],
                tokens_per_minute=row["tokens_per_minute"],
                concurrency=row["concurrency"],
                budgets=self._budgets(row["key_id"], row["team_id"]),
            ),
        )

    def _budgets(self, key_id: str, team: str | None) -> tuple[BudgetRef, ...]:
        return self._charges.get(("key", key_id), ()) + self._charges.get(("team", team or ""), ())

    def _tiers(self, tiers: list[int] | None, models: list[str] | None) -> frozenset[int] | None:
        """Return the catalogue's tiers in both lists; a model is named by its own, its adapter's or its tier's name."""
        if tiers is None and models is None:
            return None
        return frozenset(
            spec.number
            for spec in self._catalog.tiers
            if (tiers is None or spec.number in tiers) and (models is None or not _names(spec).isdisjoint(models))
        )


def replaced_secrets(row: Mapping[str, Any]) -> Iterator[tuple[str, float]]:
    """Yield the digest, hexadecimal, of each replaced secret in a row of `api_keys`, and its end in epoch seconds."""
    if row["old_digest"] is not None:
        yield row["old_digest"], row["old_until"]
    for older in row["older_secrets"] or ():
        yield older["digest"], older["until"]


def _names(spec: TierSpec) -> set[str]:
    return {spec.model_name, spec.served_name, spec.name, f"tier-{spec.number}"}


log = logging.getLogger(__name__)

INFERENCE: frozenset[str] = frozenset({"inference"})
# Rows per query.
PAGE = 1000
_UNREAD = -1
_KEYS_WITH_TEAMS = select(api_keys, teams.c.name.label("team_name")).select_from(api_keys.outerjoin(teams))


class UnknownKeyError(Exception):
    """No key that is valid for this; the message for the caller says what is wrong."""


class KeysUnavailableError(Exception):
    """The stored keys have not been read yet, and the key is not one of the settings."""


class Directory:
    """The keys of the settings, and the stored ones.

    `may_be_open`: whether callers without a key are admitted where no keys for answers exist. `marker`: a file that
    records that stored keys are required. While it exists callers need a key, whatever the database says: a database
    that is away, lost or emptied does not open a closed gateway. `open_at_first`: whether callers without a key are
    admitted before anything could be read and without the marker.
    """

    def __init__(
        self,
        engine: AsyncEngine,
        catalog: CatalogInUse,
        keys: SettingsKeys,
        clock: DatabaseTime,
        *,
        may_be_open: bool,
        marker: Path,
        open_at_first: bool,
    ) -> None:
        self._engine, self._catalog, self._clock = engine, catalog, clock
        self._keys = keys.answers
        self._administrators = ((keys.admins, ADMINISTRATION), (keys.viewers, VIEWING))
        self._is_closed = not may_be_open
        self._marker, self._open_at_first = marker, open_at_first
        self._revision: int | None = None
        self._budgets_revision: int | None = None
        self._known = KnownKeys(catalog.current, {})
        self._static: Mapping[str, Allowance] = {}
        self._is_marked = self._requires_keys = marker.exists()
        self._stored_admin = self._may_answer = self._is_lost = False
        self._failure: str | None = None
        self._loading = asyncio.Lock()

    @property
    def asks_for_keys(self) -> bool:
        """Whether callers need a key: keys for answers exist or existed, or the gateway may not be open."""
        return (
            self._is_closed
            or bool(self._keys)
            or self._requires_keys
            or (self._revision is None and not self._open_at_first)
        )

    @property
    def is_read(self) -> bool:
        """Whether the stored keys have been read."""
        return self._revision is not None

    @property
    def is_unusable(self) -> bool:
        """Whether every caller is refused because the keys cannot be read: none has a key of the settings."""
        return self._revision is None and self._failure is not None and self.asks_for_keys and not self._keys

    @property
    def problem(self) -> str | None:
        """Why stored keys do not work, or may be outdated; None if they work."""
        if self._revision is None and self._failure is not None:
            return f"stored keys cannot be read ({self._failure}): requests with them get 503"
        if self._failure is not None:
            return f"changes of stored keys cannot be read ({self._failure}): known keys stay valid"
        if self._is_lost:
            return f"there is none for answers, but {KEYS_REQUIRED} says that there were some: every caller is refused"
        return None

    @property
    def has_admin(self) -> bool:
        """Whether a key that may administer or view exists."""
        return any(keys for keys, _ in self._administrators) or self._stored_admin

    def knows(self, authorization: str | None) -> bool:
        """Return whether the header has a key that is valid now, for any use."""
        for find in (self.inference_caller, self.admin_caller):
            with suppress(UnknownKeyError, KeysUnavailableError):
                find(authorization)
                return True
        return False

    def is_static(self, name: str) -> bool:
        """Return whether a key of the settings has this name."""
        return name in self._keys.names

    def inference_caller(self, authorization: str | None) -> Caller:
        """Return the caller that requests answers. Raises `UnknownKeyError` or `KeysUnavailableError`."""
        owner = self._keys.owner(authorization) if self._keys else None
        if owner is not None:
            return self._static_caller(owner)
        return self._stored(authorization)

    def admin_caller(self, authorization: str | None) -> Caller:
        """Return the caller that administers. Raises `UnknownKeyError` or `KeysUnavailableError`."""
        static = self._administrator(lambda keys: keys.owner(authorization))
        return static or self._stored(authorization)

    def caller_of(self, key_id: str | None) -> Caller:
        """Return the caller of a former request, with its current terms; None means no key was needed. Raises
        `UnknownKeyError` or `KeysUnavailableError`."""
        if key_id is None:
            if self.asks_for_keys:
                raise UnknownKeyError("A key is required now.")
            return KEYLESS
        if self.is_static(key_id):
            return self._static_caller(key_id)
        if self._revision is None:
            raise KeysUnavailableError
        key = self._known.newest(key_id)
        if key is None:
            raise UnknownKeyError("This API key no longer exists.")
        self._check(key)
        return key.caller

    def admin_with(self, digest: bytes) -> Caller:
        """As `admin_caller`, for a key with this SHA-256."""
        static = self._administrator(lambda keys: keys.owner_of(digest))
        return static or self._known_by(digest)

    def admin_named(self, key_id: str, is_right: Callable[[bytes], bool]) -> Caller:
        """As `admin_caller`, for a key that was given earlier: its id, and whether a SHA-256 is that key's."""

        def owner_in(keys: ApiKeys) -> str | None:
            digest = keys.digest_of_owner(key_id)
            return key_id if digest is not None and is_right(digest) else None

        if static := self._administrator(owner_in):
            return static
        if self._revision is None:
            raise KeysUnavailableError
        for key in self._known.secrets_of(key_id):
            if is_right(key.digest):
                self._check(key)
                return key.caller
        raise UnknownKeyError("Wrong API key.")

    async def load(self) -> bool:
        """Read the changes of what is stored; return whether there were any. Raises what the database raises."""
        try:
            changed = await self._load()
        except (SQLAlchemyError, OSError) as error:
            self._failure = type(error).__name__
            raise
        self._failure = None
        return changed

    async def _load(self) -> bool:
        """As `load`.

        Reads a page at a time: no query returns more than `PAGE` rows, and other work runs in between. Keys committed
        meanwhile have a later revision and come with the next call.
        """
        async with self._loading, self._engine.connect() as connection:
            now = await self._clock.look(connection)
            state = tenancy_state.c
            revision, of_budgets = (await connection.execute(select(state.revision, state.budgets_revision))).one()
            if revision == self._revision:
                self._say_an_end(now)
                self._mark()
                return False
            since = _UNREAD if self._revision is None else self._revision
            # The revision only decreases if an earlier state of the database was restored; then everything is read.
            afresh = since == _UNREAD or revision < since
            known_keys, since = (KnownKeys(self._catalog.current, {}), _UNREAD) if afresh else (self._known, since)
            charges = None
            if afresh or of_budgets != self._budgets_revision:
                known_keys.charge(charges := await self._charges(connection))
            order = (api_keys.c.revision, api_keys.c.key_id)
            async for row in _pages(connection, _KEYS_WITH_TEAMS, order, (since, "")):
                known_keys.put(row)
        self._known, self._revision, self._budgets_revision = known_keys, revision, of_budgets
        if charges is not None:
            charged = {name: charges.get(("key", name)) for name in self._keys.names}
            self._static = {name: Allowance(budgets=refs) for name, refs in charged.items() if refs}
        self._is_lost = self._is_marked and not known_keys.ask_for_answers and not self._keys
        if afresh and self._is_lost:
            log.warning(
                "the database has no key for answers, but %s says that there were some, so every caller needs a key: "
                "restore a backup of the database or make a key (`aio keys create NAME`). To serve callers without a "
                "key again, stop the server and remove the file",
                self._marker,
            )
        # A gateway that asked for keys goes on asking, though the only key was given another scope.
        self._requires_keys |= known_keys.ask_for_answers
        self._say_an_end(now)
        self._stored_admin = known_keys.administer(now)
        self._mark()
        return True

    async def renew(self) -> None:
        """Read everything again, as another catalogue requires; known keys stay valid until then."""
        self._revision = None if self._revision is None else _UNREAD
        try:
            await self.load()
        except (SQLAlchemyError, OSError) as error:
            log.warning("keys cannot be read (%s); the previous catalogue's tiers apply", type(error).__name__)

    async def follow(self, seconds: float) -> None:
        """Look for changes every `seconds` until cancelled. While the database is down, the last state applies."""
        away = False
        while True:
            await asyncio.sleep(seconds)
            try:
                await self.load()
                away = False
            except (SQLAlchemyError, OSError) as error:
                if not away:
                    log.warning("keys cannot be read (%s); known keys stay valid", type(error).__name__)
                away = True

    def _mark(self) -> None:
        """Make the marker if keys are required, at the next look if the disk refuses it now."""
        if self._requires_keys and not self._is_marked:
            with suppress(OSError):
                self._marker.touch()
                self._is_marked = True

    def _say_an_end(self, now: float) -> None:
        """Warn once where no stored key may request answers any more: by a change, or because its time is over."""
        could_answer, self._may_answer = self._may_answer, self._known.may_answer(now)
        if could_answer and not self._may_answer and not self._keys:
            log.warning(
                "the last stored key for answers has ended: every caller is refused until there is another one "
                "(`aio keys create NAME`)"
            )

    def _administrator(self, owner_in: Callable[[ApiKeys], str | None]) -> Caller | None:
        """Return the caller with a key of the settings that may administer or view; None if `owner_in` finds none."""
        for keys, scopes in self._administrators:
            owner = owner_in(keys)
            if owner is not None:
                return keys.caller(owner, scopes)
        return None

    def _static_caller(self, owner: str) -> Caller:
        caller, allowance = self._keys.caller(owner, INFERENCE), self._static.get(owner)
        return caller if allowance is None else msgspec.structs.replace(caller, allowance=allowance)

    def _stored(self, authorization: str | None) -> Caller:
        secret = bearer_of(authorization)
        if secret is None:
            raise UnknownKeyError("Missing API key.")
        return self._known_by(digest_of(secret))

    def _known_by(self, digest: bytes) -> Caller:
        if self._revision is None:
            raise KeysUnavailableError
        key = self._known.with_digest(digest)
        if key is None:
            raise UnknownKeyError("Wrong API key.")
        self._check(key)
        return key.caller

    def _check(self, key: KnownKey) -> None:
        if key.revoked:
            raise UnknownKeyError("This API key was revoked.")
        if key.paused:
            raise UnknownKeyError("This API key is paused until an administrator resumes it.")
        if self._clock.now() >= key.until:
            if key.rotated:
                raise UnknownKeyError("This API key was rotated: use its new secret.")
            raise UnknownKeyError("This API key has expired.")

    async def _charges(self, connection: AsyncConnection) -> dict[tuple[str, str], tuple[BudgetRef, ...]]:
        charged: dict[tuple[str, str], tuple[BudgetRef, ...]] = {}
        async for row in _pages(connection, select(budgets), (budgets.c.budget_id,), ("",)):
            ref = BudgetRef(
                budget_id=row["budget_id"],
                period=row["period"],
                amount_usd=row["amount_microusd"] / MICRO,
                subject_kind=row["subject_kind"],
            )
            subject = row["subject_kind"], row["subject"]
            charged[subject] = (*charged.get(subject, ()), ref)
        return charged


async def _pages(
    connection: AsyncConnection, query: Select[Any], order: tuple[Column[Any], ...], after: tuple[Any, ...]
) -> AsyncIterator[Mapping[str, Any]]:
    """Return rows of a query in the order of columns that are unique together, after a position."""
    while True:
        beyond = tuple_(*order) > tuple_(*(literal(value) for value in after))
        rows = (await connection.execute(query.where(beyond).order_by(*order).limit(PAGE))).mappings().all()
        for row in rows:
            yield dict(row)
        if len(rows) < PAGE:
            return
        after = tuple(rows[-1][column.name] for column in order)
