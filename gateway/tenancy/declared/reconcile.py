"""Makes the stored teams, keys and budgets what a file declares: the differences first, then the commands of the
administration's API, all in one transaction."""

from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Literal, NamedTuple

import msgspec
from sqlalchemy import select
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from gateway.base.requests.caller import Period
from gateway.tenancy.budgets.budget_commands import remove_budget, set_budget
from gateway.tenancy.budgets.periods import MICRO
from gateway.tenancy.changes.errors import TenancyError
from gateway.tenancy.changes.orders import Order, tenancy_transaction
from gateway.tenancy.declared.declaration import Declaration, DeclaredBudgets, DeclaredKey
from gateway.tenancy.keys.key_commands import IssuedKey, change_key, create_key, create_team, revoke_key, rotate_key
from gateway.tenancy.keys.key_terms import KeyTerms, check_expiry, columns_of_new
from migrations.tables.tenancy import api_keys, budgets, teams

Action = Literal[
    "team.created", "key.created", "key.changed", "key.rotated", "key.revoked", "budget.set", "budget.removed"
]
Kind = Literal["team", "key"]


class Change(msgspec.Struct, frozen=True, kw_only=True):
    """A difference: its `action` in the audit trail, what it is of, and what changes, as name → [old, new]."""

    action: Action
    kind: Kind
    name: str
    changed: dict[str, list[Any]] = {}


class Applied(msgspec.Struct, frozen=True, kw_only=True):
    """The differences, and the keys that were made for them, which are shown only once. `kept`: keys of administrators
    that the file does not name, and that pruning leaves. `notice`: what changes for callers without a key."""

    changes: list[Change]
    keys: list[IssuedKey] = []
    kept: list[str] = []
    notice: str | None = None


class _Step(NamedTuple):
    change: Change
    carry_out: Callable[[AsyncConnection, Order], Awaitable[object]]


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
        done = [await step.carry_out(connection, order) for step in plan.steps]
    issued = [one for one in done if isinstance(one, IssuedKey)]
    return Applied(
        changes=[step.change for step in plan.steps],
        keys=[one for one in issued if one.key],
        kept=plan.kept,
        notice=next((one.notice for one in issued if one.notice is not None), None),
    )


async def _read(connection: AsyncConnection) -> _Stored:
    tables = (teams, api_keys, budgets)
    found = [[dict(row) for row in (await connection.execute(select(table))).mappings()] for table in tables]
    return _Stored(
        {row["name"]: row for row in found[0]},
        {row["name"]: row for row in found[1]},
        {(row["subject_kind"], row["subject"], row["period"]): row for row in found[2]},
    )


class _Plan:
    """The steps from what is stored to what is declared, in the order in which they can be carried out."""

    def __init__(self, declared: Declaration, stored: _Stored, now: float, grace_seconds: float) -> None:
        self._declared, self._stored, self._now, self._grace = declared, stored, now, grace_seconds
        self._owners = {
            digest: name
            for name, row in stored.keys.items()
            for digest in (row["digest"], row["old_digest"])
            if digest is not None
        }
        self._budgets_met: set[tuple[str, str, str]] = set()
        self.steps: list[_Step] = []
        self.kept: list[str] = []

    def make(self, prune: bool) -> None:
        """Collect the steps. Raises `DeclarationError`."""
        for team in self._declared.teams:
            row = self._stored.teams.get(team.name)
            if row is None:
                self._team_created(team.name)
            self._budgets("team", team.name, None if row is None else row["team_id"], team.budgets)
        for key in self._declared.keys:
            row = self._stored.keys.get(key.name)
            if row is None:
                self._key_created(key)
            else:
                self._key_changed(key, row)
            self._budgets("key", key.name, None if row is None else row["key_id"], key.budgets)
        for static in self._declared.settings_keys:
            self._budgets("key", static.name, static.name, static.budgets, static=True)
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
        carry_out: Callable[[AsyncConnection, Order], Awaitable[object]],
    ) -> None:
        self.steps.append(_Step(Change(action=action, kind=kind, name=name, changed=changed), carry_out))

    def _team_created(self, name: str) -> None:
        self._add("team.created", "team", name, {}, lambda connection, order: create_team(connection, name, order))

    def _key_created(self, key: DeclaredKey) -> None:
        declared, made = self._declared, self._declared.secrets.get(key.name)
        if key.team is not None and key.team not in {*self._stored.teams, *(team.name for team in declared.teams)}:
            raise declared.error("keys", key.name, "team", f"there is no team {key.team}, neither stored nor declared")
        self._check_secret(key)
        columns, usual = self._columns(key), columns_of_new(KeyTerms(), self._now)
        self._check_expiry(key, columns["expires_at"])
        changed = {name: [None, value] for name, value in columns.items() if value != usual[name]}
        if key.team is not None:
            changed = {"team": [None, key.team]} | changed
        self._add(
            "key.created",
            "key",
            key.name,
            changed,
            lambda connection, order: create_key(connection, key.name, key.team, key.terms, order, made),
        )

    def _key_changed(self, key: DeclaredKey, row: Mapping[str, Any]) -> None:
        declared = self._declared
        if row["revoked_at"] is not None:
            raise declared.error("keys", key.name, "name", "was revoked, which is permanent; names are not used again")
        team_id = None if key.team is None else self._stored.teams.get(key.team, {"team_id": ""})["team_id"]
        if team_id != row["team_id"]:
            others = {team["team_id"]: name for name, team in self._stored.teams.items()}
            is_of = f"of the team {others[row['team_id']]}" if row["team_id"] in others else "without a team"
            raise declared.error("keys", key.name, "team", f"the key is {is_of}, which cannot be changed")
        changed = {name: [row[name], value] for name, value in self._columns(key).items() if row[name] != value}
        if changed:
            if "expires_at" in changed:
                self._check_expiry(key, changed["expires_at"][1])
            terms = KeyTerms(**{name: new for name, (_, new) in changed.items()})
            self._add(
                "key.changed", "key", key.name, changed,
                lambda connection, order: change_key(connection, row["key_id"], terms, order),
            )  # fmt: skip
        made = declared.secrets.get(key.name)
        if made is not None and made.digest.hex() != row["digest"]:
            self._check_secret(key)
            self._add(
                "key.rotated", "key", key.name, {"prefix": [row["prefix"], made.prefix]},
                lambda connection, order: rotate_key(connection, row["key_id"], self._grace, order, made),
            )  # fmt: skip

    def _columns(self, key: DeclaredKey) -> dict[str, Any]:
        """The key's terms as columns; what has expired may stay declared."""
        return columns_of_new(msgspec.structs.replace(key.terms, expires_at=None), self._now) | {
            "expires_at": None if isinstance(key.expires_at, msgspec.UnsetType) else key.expires_at
        }

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

    def _budgets(
        self, kind: Kind, name: str, subject: str | None, declared: DeclaredBudgets, static: bool = False
    ) -> None:
        """Set the budgets of a key or team, and remove others; `subject`: its id, None before it is made."""
        amounts = declared.amounts()
        for period, usd in amounts.items():
            row = None if subject is None else self._stored.budgets.get((kind, subject, period))
            if row is None or row["amount_microusd"] != round(usd * MICRO):
                before = None if row is None else row["amount_microusd"] / MICRO
                self._budget_set(kind, name, period, [before, usd], static)
        if subject is not None:
            self._budgets_met |= {(kind, subject, period) for period in ("day", "month", "total")}
            for period in ("day", "month", "total"):
                if period not in amounts and (row := self._stored.budgets.get((kind, subject, period))) is not None:
                    self._budget_removed(kind, name, row)

    def _budget_set(self, kind: Kind, name: str, period: Period, amount: list[Any], static: bool) -> None:
        self._add(
            "budget.set", kind, name, {period: amount},
            lambda connection, order: set_budget(connection, kind, name, period, amount[1], order, static),
        )  # fmt: skip

    def _budget_removed(self, kind: Kind, name: str, row: Mapping[str, Any]) -> None:
        self._add(
            "budget.removed", kind, name, {row["period"]: [row["amount_microusd"] / MICRO, None]},
            lambda connection, order: remove_budget(connection, row["budget_id"], order),
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
        self._add("key.revoked", "key", name, {}, lambda connection, order: revoke_key(connection, key_id, order))
