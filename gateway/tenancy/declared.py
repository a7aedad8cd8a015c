"""Teams, keys and budgets that a file declares, and how the stored ones become so.

The file is read whole, and refused with the file, table and field at fault. Then come the differences, and the
commands of the administration's API that make them up, all in one transaction.
"""

import re
import tomllib
from collections.abc import Awaitable, Callable, Mapping
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple

import msgspec
from msgspec import UNSET, Meta
from sqlalchemy import select
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from gateway.base.inference_request import Period
from gateway.base.settings import SettingsError
from gateway.tenancy.budgets.budget_commands import add_budget, add_removal
from gateway.tenancy.budgets.lease_book import MICRO, BudgetUsd
from gateway.tenancy.changes import Order, TenancyError, Writes, budgets_changed, tenancy_transaction
from gateway.tenancy.keys.directory import replaced_secrets
from gateway.tenancy.keys.key_commands import (
    FIRST_KEY_NOTICE,
    IssuedKey,
    KeyTerms,
    Name,
    add_key,
    add_revocation,
    add_rotation,
    add_team,
    add_terms,
    check_expiry,
    columns_of_new,
    new_id,
)
from gateway.tenancy.keys.key_secrets import MadeKey, given_secret, make_key
from inference_core.io.files import SecretError, read_text_file, secret_of
from migrations.tables.tenancy import api_keys, budgets, teams
from tiers.dialects.decoding import explained

_HASH = "sha256: and 64 hexadecimal digits, as `aio new-key` prints"
_AT = re.compile(r"(?P<what>.*) - at `\$\.(?P<table>\w+)(?:\[(?P<index>\d+)\])?\.?(?P<field>.*)`", re.DOTALL)


class DeclarationError(TenancyError):
    """A file that cannot be made so; `param` is the field."""

    def __init__(self, source: str, table: str, name: str, field: str, message: str) -> None:
        location = ", ".join(filter(None, (source, f"[[{table}]] {name}".rstrip() if table else "", field)))
        super().__init__(f"{location}: {message}", field or None)


class DeclaredBudgets(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """US dollars per day or month (UTC) and in total; an omitted one does not exist."""

    day: BudgetUsd | None = None
    month: BudgetUsd | None = None
    total: BudgetUsd | None = None

    def amounts(self) -> dict[Period, float]:
        """Return the budgets that exist, US dollars by period."""
        wanted: dict[Period, float | None] = {"day": self.day, "month": self.month, "total": self.total}
        return {period: usd for period, usd in wanted.items() if usd is not None}


class DeclaredTeam(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A team and what it may spend."""

    name: Name
    budgets: DeclaredBudgets = DeclaredBudgets()


class DeclaredKey(KeyTerms, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A key, its terms and budgets; omitted terms are those of a new key.

    Its secret is in the environment variable `secret_env`, or only its SHA-256 is known (`secret_hash`, as
    `aio new-key` prints it); without either, it is made with the key, and shown once.
    """

    name: Name
    team: Annotated[str, Meta(min_length=1, max_length=128)] | None = None
    secret_env: Annotated[str, Meta(min_length=1, max_length=256)] | None = None
    secret_hash: Annotated[str, Meta(pattern=r"^sha256:[0-9a-fA-F]{64}\Z", description=_HASH)] | None = None
    budgets: DeclaredBudgets = DeclaredBudgets()

    @property
    def secret_field(self) -> str:
        """The field that gives its secret, if one does."""
        return "secret_hash" if self.secret_env is None else "secret_env"

    def columns(self, now: float) -> dict[str, Any]:
        """Its terms as columns of a new key; what has expired may stay declared."""
        terms = KeyTerms(**{name: getattr(self, name) for name in KeyTerms.__struct_fields__ if name != "expires_at"})
        return columns_of_new(terms, now) | {"expires_at": None if self.expires_at is UNSET else self.expires_at}


class DeclaredSettingsKey(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The budgets of a key of AIO_API_KEYS, by its name."""

    name: Annotated[str, Meta(min_length=1, max_length=128)]
    budgets: DeclaredBudgets = DeclaredBudgets()


class _File(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    teams: list[DeclaredTeam] = []
    keys: list[DeclaredKey] = []
    settings_keys: list[DeclaredSettingsKey] = []


class Declaration(msgspec.Struct, frozen=True, kw_only=True):
    """What a file declares."""

    source: str
    """The file's name in messages."""
    teams: list[DeclaredTeam]
    keys: list[DeclaredKey]
    settings_keys: list[DeclaredSettingsKey]
    secrets: dict[str, MadeKey]
    """The given secrets, by the key's name."""

    def error(self, table: str, name: str, field: str, message: str) -> DeclarationError:
        return DeclarationError(self.source, table, name, field, message)


def read_declaration(path: Path, settings_keys: frozenset[str], environ: Mapping[str, str]) -> Declaration:
    """Return what the file declares; `settings_keys` are the names of AIO_API_KEYS. Raises `DeclarationError`."""
    source = str(path)
    try:
        raw = tomllib.loads(read_text_file(path))
    except OSError as error:
        raise DeclarationError(source, "", "", "", f"cannot be read ({error.strerror})") from error
    except ValueError as error:
        raise DeclarationError(source, "", "", "", f"is no TOML: {error}") from error
    for key in _tables(raw, "keys"):
        if isinstance(when := key.get("expires_at"), date):
            key["expires_at"] = _epoch(when, source, str(key.get("name", "")))
    try:
        file = msgspec.convert(raw, _File)
    except msgspec.ValidationError as error:
        raise _located(error, raw, source) from error
    for table, names in (
        ("teams", [team.name for team in file.teams]),
        ("keys", [key.name for key in file.keys]),
        ("settings_keys", [key.name for key in file.settings_keys]),
    ):
        if twice := _twice(names):
            raise DeclarationError(source, table, twice, "name", "occurs twice")
    for unknown in (key.name for key in file.settings_keys if key.name not in settings_keys):
        raise DeclarationError(source, "settings_keys", unknown, "name", "is not a name in AIO_API_KEYS")
    secrets = {key.name: made for key in file.keys if (made := _secret(key, source, environ)) is not None}
    owners: dict[bytes, str] = {}
    for name, made in secrets.items():
        if (other := owners.setdefault(made.digest, name)) != name:
            field = next(key.secret_field for key in file.keys if key.name == name)
            raise DeclarationError(source, "keys", name, field, f"is the secret of {other} too")
    return Declaration(
        source=source, teams=file.teams, keys=file.keys, settings_keys=file.settings_keys, secrets=secrets
    )


def _secret(key: DeclaredKey, source: str, environ: Mapping[str, str]) -> MadeKey | None:
    if key.secret_env is not None and key.secret_hash is not None:
        raise DeclarationError(source, "keys", key.name, "secret_hash", "stands next to secret_env; give one of them")
    secret = key.secret_hash if key.secret_env is None else _secret_text(key, source, environ)
    if secret == "":
        raise DeclarationError(source, "keys", key.name, "secret_env", f"the variable {key.secret_env} is not set")
    if secret is None:
        return None
    try:
        return given_secret(key.name, secret, key.secret_env or "secret_hash")
    except SettingsError as error:
        raise DeclarationError(source, "keys", key.name, key.secret_field, str(error)) from error


def _secret_text(key: DeclaredKey, source: str, environ: Mapping[str, str]) -> str:
    try:
        return secret_of(environ, key.secret_env or "")
    except SecretError as error:
        raise DeclarationError(source, "keys", key.name, "secret_env", str(error)) from None


def _epoch(when: date, source: str, name: str) -> float:
    """Return a TOML date, which is midnight in UTC, or time with its offset in epoch seconds."""
    if not isinstance(when, datetime):
        return datetime(when.year, when.month, when.day, tzinfo=UTC).timestamp()
    if when.tzinfo is None:
        raise DeclarationError(source, "keys", name, "expires_at", f"{when} lacks an offset; append Z for UTC")
    return when.timestamp()


def _tables(raw: Mapping[str, Any], name: str) -> list[dict[str, Any]]:
    tables = raw.get(name)
    return [table for table in tables if isinstance(table, dict)] if isinstance(tables, list) else []


def _located(error: msgspec.ValidationError, raw: Mapping[str, Any], source: str) -> DeclarationError:
    said = explained(error, _File)
    match = _AT.fullmatch(said)
    if match is None:
        return DeclarationError(source, "", "", "", said)
    table, index = match["table"], match["index"]
    entry = None if index is None else raw[table][int(index)]
    name = entry.get("name") if isinstance(entry, dict) else None
    number = "" if index is None else f"number {int(index) + 1}"
    return DeclarationError(source, table, str(name) if name else number, match["field"], match["what"])


def _twice(names: list[str]) -> str | None:
    seen: set[str] = set()
    return next((name for name in names if name in seen or seen.add(name)), None)  # type: ignore[func-returns-value]


Action = Literal[
    "team.created", "key.created", "key.changed", "key.rotated", "key.revoked", "budget.set", "budget.removed"
]
Kind = Literal["team", "key"]
_PERIODS: tuple[Period, ...] = ("day", "month", "total")


class Change(msgspec.Struct, frozen=True, kw_only=True):
    """A difference: its `action` in the audit trail, what it is of, and what changes, as name → [old, new]."""

    action: Action
    kind: Kind
    name: str
    changed: dict[str, list[Any]] = {}


class Applied(msgspec.Struct, frozen=True, kw_only=True):
    """The differences, and the keys that were made for them, which are shown only once."""

    changes: list[Change]
    keys: list[IssuedKey] = []
    kept: list[str] = []
    """Keys of administrators that the file does not name, and that pruning leaves."""
    notice: str | None = None
    """What changes for callers without a key."""


# What a step does: it adds to what is written, and returns the key that it makes, or reads what that takes first.
_Carry = Callable[[AsyncConnection, Writes], IssuedKey | Awaitable[object] | None]


class _Step(NamedTuple):
    change: Change
    carry_out: _Carry


class _Stored(NamedTuple):
    """Rows by name; budgets by kind, id (of a key of the settings its name) and period."""

    teams: Mapping[str, Mapping[str, Any]]
    keys: Mapping[str, Mapping[str, Any]]
    budgets: Mapping[tuple[str, str, str], Mapping[str, Any]]


async def differences(
    engine: AsyncEngine | None, declared: Declaration, now: float, *, prune: bool = False, may_show: bool = True
) -> Applied:
    """Return what `apply_declaration` would do; without an engine, to a database that is empty. Raises
    `DeclarationError` for what cannot be done."""
    stored = _Stored({}, {}, {})
    if engine is not None:
        async with engine.connect() as connection:
            stored = await _read(connection)
    plan = _Plan(declared, stored, now, 0.0)
    plan.make(prune)
    if not may_show:
        plan.refuse_new_secrets()
    return Applied(changes=[step.change for step in plan.steps], kept=plan.kept)


async def apply_declaration(
    engine: AsyncEngine,
    declared: Declaration,
    order: Order,
    *,
    prune: bool = False,
    grace_seconds: float,
    may_show: bool = True,
) -> Applied:
    """Make the stored teams, keys and budgets what the file declares, all or nothing; a second call changes nothing.

    A replaced secret stays valid for `grace_seconds`. `prune`: revoke keys and remove budgets that the file does not
    name, but no key of an administrator. Unless `may_show`, no secret is made. Raises `DeclarationError`.
    """
    before = await differences(engine, declared, order.now, prune=prune, may_show=may_show)
    if not before.changes:
        return before
    async with tenancy_transaction(engine) as connection:
        # Read again, now that every other transaction of this kind has to wait.
        plan = _Plan(declared, await _read(connection), order.now, grace_seconds)
        plan.make(prune)
        if not may_show:
            plan.refuse_new_secrets()
        writes = Writes(order)
        done: list[object] = []
        for step in plan.steps:
            outcome = step.carry_out(connection, writes)
            done.append(await outcome if isinstance(outcome, Awaitable) else outcome)
        await writes.send(connection)
        if any(step.change.action.startswith("budget.") for step in plan.steps):
            await budgets_changed(connection)
    return Applied(
        changes=[step.change for step in plan.steps],
        keys=[issued for issued in done if isinstance(issued, IssuedKey) and issued.key],
        kept=plan.kept,
        notice=FIRST_KEY_NOTICE if plan.has_first_key else None,
    )


async def _read(connection: AsyncConnection) -> _Stored:
    tables = (teams, api_keys, budgets)
    team_rows, key_rows, budget_rows = [
        [dict(row) for row in (await connection.execute(select(table))).mappings()] for table in tables
    ]
    return _Stored(
        {row["name"]: row for row in team_rows},
        {row["name"]: row for row in key_rows},
        {(row["subject_kind"], row["subject"], row["period"]): row for row in budget_rows},
    )


class _Plan:
    """The steps from what is stored to what is declared, in the order in which they can be carried out."""

    def __init__(self, declared: Declaration, stored: _Stored, now: float, grace_seconds: float) -> None:
        self._declared, self._stored, self._now, self._grace = declared, stored, now, grace_seconds
        self._owners = {
            digest: name
            for name, row in stored.keys.items()
            for digest in (row["digest"], *(digest for digest, _ in replaced_secrets(row)))
        }
        self._budgets_met: set[tuple[str, str, str]] = set()
        # Ids by name, also of teams that are made.
        self._teams: dict[str, str] = {name: row["team_id"] for name, row in stored.teams.items()}
        self.steps: list[_Step] = []
        self.kept: list[str] = []
        # Whether a key for answers is made, and there never was one.
        self.has_first_key = False
        self._usual = columns_of_new(KeyTerms(), now)
        self._had_answers = any("inference" in row["scopes"] for row in stored.keys.values())

    def make(self, prune: bool) -> None:
        """Collect the steps. Raises `DeclarationError`."""
        for team in self._declared.teams:
            is_new = team.name not in self._teams
            if is_new:
                self._team_created(team.name)
            self._budgets("team", team.name, self._teams[team.name], team.budgets, is_new)
        for key in self._declared.keys:
            row = self._stored.keys.get(key.name)
            key_id = new_id("key") if row is None else row["key_id"]
            if row is None:
                self._key_created(key, key_id)
            else:
                self._key_changed(key, row)
            self._budgets("key", key.name, key_id, key.budgets, row is None)
        for static in self._declared.settings_keys:
            self._budgets("key", static.name, static.name, static.budgets)
        if prune:
            self._prune()

    def refuse_new_secrets(self) -> None:
        """Raise `DeclarationError` for a key that would be made with a secret that is never shown."""
        for change in (step.change for step in self.steps):
            if change.action == "key.created" and change.name not in self._declared.secrets:
                message = "is missing, and so is secret_hash; `aio keys apply` makes the key and shows it"
                raise self._declared.error("keys", change.name, "secret_env", message)

    def _add(
        self,
        action: Action,
        kind: Kind,
        name: str,
        changed: dict[str, list[Any]],
        carry_out: _Carry,
    ) -> None:
        self.steps.append(_Step(Change(action=action, kind=kind, name=name, changed=changed), carry_out))

    def _team_created(self, name: str) -> None:
        team_id = self._teams[name] = new_id("team")
        self._add("team.created", "team", name, {}, lambda _, writes: add_team(writes, team_id, name))

    def _key_created(self, key: DeclaredKey, key_id: str) -> None:
        declared, made = self._declared, self._declared.secrets.get(key.name)
        if key.team is not None and key.team not in self._teams:
            raise declared.error("keys", key.name, "team", f"there is no team {key.team}, neither stored nor declared")
        self._check_secret(key)
        columns, usual = key.columns(self._now), self._usual
        self._check_expiry(key, columns["expires_at"])
        changed = {name: [None, value] for name, value in columns.items() if value != usual[name]}
        if key.team is not None:
            changed = {"team": [None, key.team]} | changed
        if "inference" in columns["scopes"]:
            self.has_first_key |= not self._had_answers
        team_id = None if key.team is None else self._teams[key.team]
        self._add(
            "key.created", "key", key.name, changed,
            lambda _, writes: add_key(writes, key_id, key.name, team_id, columns, made or make_key()),
        )  # fmt: skip

    def _key_changed(self, key: DeclaredKey, row: Mapping[str, Any]) -> None:
        declared = self._declared
        if row["revoked_at"] is not None:
            raise declared.error("keys", key.name, "name", "was revoked, which is permanent; names are not used again")
        team_id = None if key.team is None else self._stored.teams.get(key.team, {"team_id": ""})["team_id"]
        if team_id != row["team_id"]:
            others = {team["team_id"]: name for name, team in self._stored.teams.items()}
            is_of = f"of the team {others[row['team_id']]}" if row["team_id"] in others else "without a team"
            raise declared.error("keys", key.name, "team", f"the key is {is_of}, which cannot be changed")
        changed = {name: [row[name], value] for name, value in key.columns(self._now).items() if row[name] != value}
        if changed:
            if "expires_at" in changed:
                self._check_expiry(key, changed["expires_at"][1])
            self._add(
                "key.changed", "key", key.name, changed, lambda _, writes: add_terms(writes, row["key_id"], changed)
            )
        made = declared.secrets.get(key.name)
        if made is not None and made.digest.hex() != row["digest"]:
            self._check_secret(key)
            self._add(
                "key.rotated", "key", key.name, {"prefix": [row["prefix"], made.prefix]},
                lambda _, writes: add_rotation(writes, row, self._grace, made),
            )  # fmt: skip

    def _check_expiry(self, key: DeclaredKey, expires_at: float | None) -> None:
        try:
            check_expiry(expires_at, self._now)
        except TenancyError as error:
            raise self._declared.error("keys", key.name, "expires_at", str(error)) from error

    def _check_secret(self, key: DeclaredKey) -> None:
        made = self._declared.secrets.get(key.name)
        owner = None if made is None else self._owners.get(made.digest.hex())
        if owner is not None and owner != key.name:
            raise self._declared.error("keys", key.name, key.secret_field, f"is, or was, the secret of the key {owner}")

    def _budgets(self, kind: Kind, name: str, subject: str, declared: DeclaredBudgets, is_new: bool = False) -> None:
        """Set the budgets of a key or team of the id `subject`, and remove others; `is_new`: it is made here."""
        amounts, keys = declared.amounts(), [(kind, subject, period) for period in _PERIODS]
        self._budgets_met.update(keys)
        for period, usd in amounts.items():
            row = self._stored.budgets.get((kind, subject, period))
            if row is None or row["amount_microusd"] != round(usd * MICRO):
                self._budget_set(kind, name, (subject, period, usd, row), is_new)
        for key in keys:
            if key[2] not in amounts and (row := self._stored.budgets.get(key)) is not None:
                self._budget_removed(kind, name, row)

    def _budget_set(
        self, kind: Kind, name: str, budget: tuple[str, Period, float, Mapping[str, Any] | None], is_new: bool
    ) -> None:
        _, period, usd, row = budget
        before = None if row is None else row["amount_microusd"] / MICRO
        self._add(
            "budget.set", kind, name, {period: [before, usd]},
            lambda connection, writes: add_budget(None if is_new else connection, writes, kind, *budget),
        )  # fmt: skip

    def _budget_removed(self, kind: Kind, name: str, row: Mapping[str, Any]) -> None:
        self._add(
            "budget.removed", kind, name, {row["period"]: [row["amount_microusd"] / MICRO, None]},
            lambda _, writes: add_removal(writes, row),
        )  # fmt: skip

    def _prune(self) -> None:
        named = {key.name for key in self._declared.keys}
        names = {row["team_id"]: name for name, row in self._stored.teams.items()}
        kept_ids = set()
        for name, row in self._stored.keys.items():
            names[row["key_id"]] = name
            if name in named or row["revoked_at"] is not None:
                continue
            if "admin" in row["scopes"]:
                self.kept.append(name)
                kept_ids.add(row["key_id"])
            else:
                self._revoked(name, row["key_id"])
        for (kind, subject, period), row in self._stored.budgets.items():
            if (kind, subject, period) not in self._budgets_met and subject not in kept_ids:
                self._budget_removed("team" if kind == "team" else "key", names.get(subject, subject), row)

    def _revoked(self, name: str, key_id: str) -> None:
        self._add("key.revoked", "key", name, {}, lambda _, writes: add_revocation(writes, key_id, name))
