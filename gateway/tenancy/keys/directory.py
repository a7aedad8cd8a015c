"""All keys in memory: callers are identified without any I/O; polling brings changes from the database."""

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec
from sqlalchemy import Column, Select, literal, select, tuple_
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from gateway.base.requests.caller import KEYLESS, Allowance, BudgetRef, Caller
from gateway.base.stores.database_time import DatabaseTime
from gateway.tenancy.budgets.periods import MICRO
from gateway.tenancy.keys.key_secrets import ApiKeys, SettingsKeys, bearer_of, digest_of
from gateway.tenancy.keys.known_keys import ADMINISTRATION, VIEWING, KnownKey, KnownKeys
from migrations.tables.tenancy import api_keys, budgets, teams, tenancy_state
from tiers.catalog.catalog import Catalog

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
    records that stored keys are required, so that a restart without the database does not open a closed gateway;
    `open_at_first`: whether callers without a key are admitted before anything could be read and without the marker.
    """

    def __init__(
        self,
        engine: AsyncEngine,
        catalog: Catalog,
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
        self._marker, self._open_at_first = marker, open_at_first and not marker.exists()
        self._revision: int | None = None
        self._budgets_revision: int | None = None
        self._known = KnownKeys(catalog, {})
        self._static: Mapping[str, Allowance] = {}
        self._stored_inference = self._stored_admin = self._may_answer = False
        self._loading = asyncio.Lock()

    @property
    def asks_for_keys(self) -> bool:
        """Whether callers need a key: keys for answers exist, ended ones too, or the gateway may not be open."""
        return (
            self._is_closed
            or bool(self._keys)
            or self._stored_inference
            or (self._revision is None and not self._open_at_first)
        )

    @property
    def is_read(self) -> bool:
        """Whether the stored keys have been read."""
        return self._revision is not None

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
        known = self._known.newest(key_id)
        if known is None:
            raise UnknownKeyError("This API key no longer exists.")
        self._check(known)
        return known.caller

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
        for known in self._known.secrets_of(key_id):
            if is_right(known.digest):
                self._check(known)
                return known.caller
        raise UnknownKeyError("Wrong API key.")

    async def load(self) -> bool:
        """Read the changes of what is stored; return whether there were any. Raises what the database raises.

        Reads a page at a time: no query returns more than `PAGE` rows, and other work runs in between. Keys committed
        meanwhile have a later revision and come with the next call.
        """
        async with self._loading, self._engine.connect() as connection:
            now = await self._clock.look(connection)
            state = tenancy_state.c
            revision, of_budgets = (await connection.execute(select(state.revision, state.budgets_revision))).one()
            if revision == self._revision:
                self._say_an_end(now)
                return False
            since = _UNREAD if self._revision is None else self._revision
            # The revision only decreases if an earlier state of the database was restored; then everything is read.
            afresh = since == _UNREAD or revision < since
            known, since = (KnownKeys(self._catalog, {}), _UNREAD) if afresh else (self._known, since)
            charges = None
            if afresh or of_budgets != self._budgets_revision:
                known.charge(charges := await self._charges(connection))
            order = (api_keys.c.revision, api_keys.c.key_id)
            async for row in _pages(connection, _KEYS_WITH_TEAMS, order, (since, "")):
                known.put(row)
        self._known, self._revision, self._budgets_revision = known, revision, of_budgets
        if charges is not None:
            charged = {name: charges.get(("key", name)) for name in self._keys.names}
            self._static = {name: Allowance(budgets=refs) for name, refs in charged.items() if refs}
        # A gateway that asked for keys goes on asking, though the only key was given another scope.
        self._stored_inference |= known.ask_for_answers or (self._marker.exists() and known.has_any)
        self._say_an_end(now)
        self._stored_admin = known.administer(now)
        if self._stored_inference:
            with suppress(OSError):
                self._marker.touch()
        return True

    def follow_catalogue(self, catalog: Catalog) -> None:
        """Read keys by this catalogue from now on; `renew` reads those that are known."""
        self._catalog = catalog

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
        found = self._known.with_digest(digest)
        if found is None:
            raise UnknownKeyError("Wrong API key.")
        self._check(found)
        return found.caller

    def _check(self, known: KnownKey) -> None:
        if known.revoked:
            raise UnknownKeyError("This API key was revoked.")
        if self._clock.now() >= known.until:
            if known.rotated:
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
