"""Commands on keys and teams: made, changed, rotated, paused, revoked, each with its audit row.

The terms of a key say what it may do and for how long. The lists of keys, teams and budgets show no hashes. The orders
are the bodies of endpoints and what commands check.
"""

import secrets
from collections.abc import Awaitable, Callable, Mapping
from typing import Annotated, Any, Literal, NamedTuple

import msgspec
from msgspec import UNSET, Meta, UnsetType
from sqlalchemy import String, cast, or_, select
from sqlalchemy.exc import IntegrityError
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from classifier.complexity.quality_setting import QualitySetting
from gateway.base.inference_request import Period, Scope
from gateway.base.numbers import MOST_EPOCH, EpochSeconds, utc_text
from gateway.tenancy.budgets.lease_book import BudgetUsd
from gateway.tenancy.changes import (
    Database,
    Order,
    TenancyError,
    UnknownSubjectError,
    Writes,
    tenancy_transaction,
)
from gateway.tenancy.keys.key_secrets import MadeKey, make_key
from migrations.tables.tenancy import api_keys, budgets, teams
from quality.store.pages import Listing
from tiers.catalog.tier_spec import TierNumber

# Names are shown in logs and lists; ids begin with key_ and team_.
Name = Annotated[
    str,
    Meta(
        pattern=r"^(?!key_|team_|budget_)[A-Za-z0-9][A-Za-z0-9 ._@:-]{0,127}\Z",
        description="1 to 128 Latin letters, digits, spaces and characters of ._@:-, which begins with a letter or a "
        "digit and not as an id does (key_, team_, budget_)",
    ),
]
Count = Annotated[int, Meta(ge=1, le=2**31 - 1)]
ModelName = Annotated[str, Meta(min_length=1, max_length=256)]
# `auto` and the tiers keep their names.
Alias = Annotated[
    str,
    Meta(min_length=1, max_length=256, pattern=r"^(?!(auto|tier-[0-9]+)$)", description="a name except auto, tier-1 …"),
]


class KeyTerms(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """An omitted field stays as it is; in a new key it takes its default. `null` means no limit."""

    scopes: Annotated[
        Annotated[list[Scope], Meta(min_length=1, max_length=3)] | UnsetType,
        Meta(description="inference (default), viewer (reads `/v1/admin` and `/admin/api`), admin (changes them too)."),
    ] = UNSET
    tiers: Annotated[
        Annotated[list[TierNumber], Meta(min_length=1)] | UnsetType | None,
        Meta(description="Tiers that may answer. `models` has to allow them too."),
    ] = UNSET
    models: Annotated[
        Annotated[list[ModelName], Meta(min_length=1, max_length=64)] | UnsetType | None,
        Meta(description="Models that may answer. `tiers` has to allow them too."),
    ] = UNSET
    quality: Annotated[
        QualitySetting | UnsetType | None,
        Meta(description="Quality target of requests that name none; null is the server's."),
    ] = UNSET
    min_tier: Annotated[TierNumber | UnsetType | None, Meta(description="Lowest tier that may answer.")] = UNSET
    consent: Annotated[
        bool | UnsetType,
        Meta(description="Whether texts may be stored, sampled and learned from."),
    ] = UNSET
    local_only: Annotated[
        bool | UnsetType,
        Meta(description="Whether only tiers that the catalogue labels local may see its requests."),
    ] = UNSET
    priority_ceiling: Annotated[
        Annotated[int, Meta(ge=0, le=2)] | UnsetType,
        Meta(description="Highest priority that a request may ask for. 0 allows all."),
    ] = UNSET
    requests_per_minute: Annotated[
        Count | UnsetType | None,
        Meta(description="Requests in any sliding minute."),
    ] = UNSET
    tokens_per_minute: Annotated[Count | UnsetType | None, Meta(description="Tokens in any sliding minute.")] = UNSET
    concurrency: Annotated[Count | UnsetType | None, Meta(description="Requests in flight.")] = UNSET
    max_cost_usd_per_request: Annotated[
        Annotated[float, Meta(ge=0, le=1e6)] | UnsetType | None,
        Meta(description="Maximum predicted cost of one request in US dollars, as in the header `x-aio-max-cost`."),
    ] = UNSET
    strict: Annotated[
        bool | UnsetType,
        Meta(description="Whether AIO refuses a request with unknown fields. Otherwise it ignores them."),
    ] = UNSET
    aliases: Annotated[
        Annotated[dict[Alias, ModelName], Meta(min_length=1, max_length=64)] | UnsetType | None,
        Meta(description="Names that it may use for models: name to `auto`, a tier or a model; `*`: any other name."),
    ] = UNSET
    expires_at: Annotated[
        EpochSeconds | UnsetType | None,
        Meta(description="End of the key, in UTC epoch seconds."),
    ] = UNSET


_NEW: dict[str, Any] = {
    "scopes": ["inference"],
    "consent": True,
    "local_only": False,
    "priority_ceiling": 0,
    "strict": False,
}


def given(terms: KeyTerms) -> dict[str, Any]:
    """Return the given fields, as columns of `api_keys`."""
    return {name: value for name in terms.__struct_fields__ if (value := getattr(terms, name)) is not UNSET}


def columns_of_new(terms: KeyTerms, now: float) -> dict[str, Any]:
    """Return all columns for a new key. Raises `TenancyError` if it would have expired already."""
    columns = dict.fromkeys(terms.__struct_fields__) | _NEW | given(terms)
    check_expiry(columns["expires_at"], now)
    return columns


def check_expiry(expires_at: float | None, now: float) -> None:
    """Raises `TenancyError` for a time in the past (to end a key now, revoke it), or beyond the year 2100."""
    if expires_at is None or now < expires_at <= MOST_EPOCH:
        return
    reason = "has passed" if expires_at <= now else f"is after {utc_text(MOST_EPOCH)}"
    raise TenancyError(f"expires_at {utc_text(expires_at)} {reason}; it is {utc_text(now)}", "expires_at")


FIRST_KEY_NOTICE = (
    "This is the first key for answers: callers without a key are refused from now on, also once this key has ended."
)
# How long a replaced secret stays valid, unless the order says.
GRACE_SECONDS = 24 * 3600.0
# Columns never shown with a key.
UNSHOWN = ("digest", "old_digest", "older_secrets", "revision")
# Replaced secrets of a key that are kept besides the last one.
_MOST_OLDER = 8


class IssuedKey(msgspec.Struct, frozen=True, kw_only=True):
    """A key that was issued, with its secret."""

    key_id: str
    name: str
    prefix: str
    key: str
    """The secret, shown only once: only its hash is stored."""
    old_until: float | None = None
    """Until when the old secret is valid after a rotation."""
    notice: str | None = None
    """What changes for callers because of this key, or which older secrets are still valid; None for most."""


async def create_team(database: Database, name: str, order: Order) -> str:
    """Create a team and return its id. Raises `TenancyError` if the name is taken."""
    team_id, writes = new_id("team"), Writes(order)
    add_team(writes, team_id, name)
    try:
        async with tenancy_transaction(database) as connection:
            await writes.send(connection)
    except IntegrityError as error:
        raise TenancyError(f"there is a team {name!r} already", "name") from error
    return team_id


async def create_key(
    database: Database, name: str, team: str | None, terms: KeyTerms, order: Order, made: MadeKey | None = None
) -> IssuedKey:
    """Create a key, permanently of `team` (its name or id); `made`: its secret, else a random one. Raises
    `TenancyError` if the name is taken, or there is no such team."""
    columns = columns_of_new(terms, order.now)
    try:
        async with tenancy_transaction(database) as connection:
            team_id = None if team is None else await _team_id(connection, team)
            is_first = "inference" in columns["scopes"] and not await _ever_had(connection, "inference")
            issued = await _insert_key(connection, name, team_id, columns, order, made)
    except IntegrityError as error:
        raise TenancyError(f"there is, or was, a key {name!r} already; names are not used again", "name") from error
    return msgspec.structs.replace(issued, notice=FIRST_KEY_NOTICE) if is_first else issued


async def create_first_admin_key(engine: AsyncEngine, order: Order) -> IssuedKey | None:
    """Create a key with the scope admin, if the database has never had one; None if it has, ended ones included.

    If several processes call this at the same time, one gets the key.
    """
    async with engine.connect() as connection:
        if await _ever_had(connection, "admin"):
            return None
    async with tenancy_transaction(engine) as connection:
        # Check again, now that every other transaction of this kind has to wait.
        if await _ever_had(connection, "admin"):
            return None
        name = f"first-admin-{secrets.token_hex(4)}"
        return await _insert_key(connection, name, None, columns_of_new(KeyTerms(scopes=["admin"]), order.now), order)


async def change_key(database: Database, key: str, terms: KeyTerms, order: Order) -> dict[str, Any]:
    """Change the terms of the key of this id or name; return what changed, as name → [old, new]."""
    wanted = given(terms)
    check_expiry(wanted.get("expires_at"), order.now)
    async with tenancy_transaction(database) as connection:
        row = await _live_key(connection, key)
        changed = {name: [row[name], value] for name, value in wanted.items() if row[name] != value}
        if changed:
            writes = Writes(order)
            add_terms(writes, row["key_id"], changed)
            await writes.send(connection)
    return changed


def add_terms(writes: Writes, key_id: str, changed: dict[str, Any]) -> None:
    """Add changed terms of a key, as name → [old, new], to what is written."""
    _add_change(writes, key_id, {name: new for name, (_, new) in changed.items()}, "key.changed", changed)


async def rotate_key(
    database: Database, key: str, grace_seconds: float, order: Order, made: MadeKey | None = None
) -> IssuedKey:
    """Give the key of this id or name a new secret, `made` or random; the previous one stays valid for `grace_seconds`,
    older ones until their own time or that one's, whichever is earlier."""
    writes = Writes(order)
    async with tenancy_transaction(database) as connection:
        issued = add_rotation(writes, await _live_key(connection, key), grace_seconds, made or make_key())
        await writes.send(connection)
    return issued


def add_rotation(writes: Writes, row: Mapping[str, Any], grace_seconds: float, secret: MadeKey) -> IssuedKey:
    """Add the rotation of the key of `row` to what is written; see `rotate_key`."""
    until = writes.order.now + grace_seconds
    old = {"old_prefix": row["prefix"], "old_digest": row["digest"], "old_until": until}
    older = _older_secrets(row, writes.order.now, until, secret)
    values = old | {"older_secrets": older or None, "rotated_at": writes.order.now} | _kept(secret)
    details = {"prefix": secret.prefix, "old_prefix": row["prefix"], "old_until": until}
    _add_change(writes, row["key_id"], values, "key.rotated", details)
    notice = None
    if older:
        end = utc_text(max(former["until"] for former in older))
        prefixes = ", ".join(former["prefix"] for former in older)
        notice = f"Secrets before that one are valid too, to {end} at the latest: {prefixes}"
    return IssuedKey(
        key_id=row["key_id"], name=row["name"], prefix=secret.prefix, key=secret.key, old_until=until, notice=notice
    )


def _older_secrets(row: Mapping[str, Any], now: float, until: float, secret: MadeKey) -> list[dict[str, Any]]:
    """Return the secrets of a key of `row` that were replaced before this rotation to `secret` and stay valid, the last
    replaced first: each until the time that its own rotation named, but not beyond `until`."""
    last = {"prefix": row["old_prefix"], "digest": row["old_digest"], "until": row["old_until"]}
    replaced = [] if row["old_digest"] is None else [last, *(row["older_secrets"] or ())]
    bounded = [former | {"until": min(former["until"], until)} for former in replaced]
    valid = [former for former in bounded if former["until"] > now and former["digest"] != secret.digest.hex()]
    return valid[:_MOST_OLDER]


async def revoke_key(database: Database, key: str, order: Order) -> str:
    """Revoke the key of this id or name permanently; return its id."""
    return await _stamp(database, key, order, "key.revoked", "revoked_at", order.now)


def add_revocation(writes: Writes, key_id: str, name: str) -> None:
    """Add the end of a key to what is written."""
    _add_change(writes, key_id, {"revoked_at": writes.order.now}, "key.revoked", {"name": name})


async def pause_key(database: Database, key: str, order: Order) -> str:
    """Refuse the key of this id or name until it is resumed; return its id. A paused one stays paused."""
    return await _stamp(database, key, order, "key.paused", "paused_at", order.now)


async def resume_key(database: Database, key: str, order: Order) -> str:
    """End the pause of the key of this id or name; return its id. One that is not paused stays as it is."""
    return await _stamp(database, key, order, "key.resumed", "paused_at", None)


class KeyVerb(NamedTuple):
    """A change of a key that takes nothing but a reason. Its endpoint, its command and its form on the page of a key
    are made of this, so that another verb is a function and an entry of `VERBS`.
    """

    name: str
    """The name in paths and on the command line."""
    manner: str
    """For how long, after "By id or name;" and "Revoke KEY"."""
    done: str
    """What the key is then."""
    follows: str
    """What servers do from then on."""
    command: Callable[[Database, str, Order], Awaitable[str]]
    offered: Callable[[Mapping[str, Any]], bool]
    """Whether the page of a key with this row has the form."""
    endpoint: str
    """The last part of its `operationId`."""
    lasts: bool = False
    """Whether it cannot be undone, so that the page asks first."""

    @property
    def title(self) -> str:
        """The name as the first word of a sentence."""
        return self.name.capitalize()


VERBS = (
    KeyVerb(
        "pause",
        "until it is resumed",
        "paused",
        "refuse it",
        pause_key,
        lambda key: key["paused_at"] is None,
        "pause_key",
    ),
    KeyVerb(
        "resume",
        "after a pause",
        "resumed",
        "admit it",
        resume_key,
        lambda key: key["paused_at"] is not None,
        "resume_key",
    ),
    KeyVerb("revoke", "permanently", "revoked", "refuse it", revoke_key, lambda key: True, "end_key", lasts=True),
)


async def shown_key(engine: AsyncEngine, key: str) -> dict[str, Any]:
    """Return the row of the key of this id or name, without its hashes. Raises `UnknownSubjectError`."""
    async with engine.connect() as connection:
        row = await _key(connection, key)
    older = [{"prefix": former["prefix"], "until": former["until"]} for former in row["older_secrets"] or ()]
    return {name: value for name, value in row.items() if name not in UNSHOWN} | {"older_secrets": older or None}


async def team_named(engine: AsyncEngine, team: str) -> str:
    """Return the id of the team of this id or name. Raises `UnknownSubjectError`."""
    async with engine.connect() as connection:
        return await _team_id(connection, team)


async def name_of_team(engine: AsyncEngine, team_id: str | None) -> str | None:
    """Return the name of a team; None if there is none of this id."""
    async with engine.connect() as connection:
        name: str | None = await connection.scalar(select(teams.c.name).where(teams.c.team_id == team_id))
    return name


async def _insert_key(
    connection: AsyncConnection,
    name: str,
    team_id: str | None,
    columns: dict[str, Any],
    order: Order,
    made: MadeKey | None = None,
) -> IssuedKey:
    writes = Writes(order)
    issued = add_key(writes, new_id("key"), name, team_id, columns, made or make_key())
    await writes.send(connection)
    return issued


def new_id(kind: str) -> str:
    """Return a random id for a key or a team."""
    return f"{kind}_{secrets.token_hex(8)}"


def add_key(
    writes: Writes, key_id: str, name: str, team_id: str | None, columns: dict[str, Any], secret: MadeKey
) -> IssuedKey:
    """Add a new key with all its `columns` to what is written."""
    row = {"key_id": key_id, "name": name, "team_id": team_id, "created_at": writes.order.now}
    writes.insert(api_keys, row | _kept(secret) | columns)
    writes.write_down("key.created", key_id, {"name": name, "team_id": team_id, "prefix": secret.prefix} | columns)
    return IssuedKey(key_id=key_id, name=name, prefix=secret.prefix, key=secret.key)


def add_team(writes: Writes, team_id: str, name: str) -> None:
    """Add a new team to what is written."""
    writes.insert(teams, {"team_id": team_id, "name": name, "created_at": writes.order.now})
    writes.write_down("team.created", team_id, {"name": name})


async def _ever_had(connection: AsyncConnection, scope: str) -> bool:
    """Return whether any key, ended ones included, has this scope."""
    # A JSON list of scope names: only one of them contains the word.
    has_scope = cast(api_keys.c.scopes, String).like(f'%"{scope}"%')
    return await connection.scalar(select(api_keys.c.key_id).where(has_scope).limit(1)) is not None


async def _live_key(connection: AsyncConnection, key: str) -> dict[str, Any]:
    row = await _key(connection, key)
    if row["revoked_at"] is not None:
        raise TenancyError(f"the key {key!r} was revoked, which is permanent", "key")
    return row


async def _key(connection: AsyncConnection, key: str) -> dict[str, Any]:
    query = select(api_keys).where(or_(api_keys.c.key_id == key, api_keys.c.name == key))
    row = (await connection.execute(query)).mappings().first()
    if row is None:
        raise UnknownSubjectError(f"there is no key {key[:128]!r}", "key")
    return dict(row)


async def _team_id(connection: AsyncConnection, team: str) -> str:
    query = select(teams.c.team_id).where(or_(teams.c.team_id == team, teams.c.name == team))
    team_id: str | None = await connection.scalar(query)
    if team_id is None:
        raise UnknownSubjectError(f"there is no team {team[:128]!r}", "team")
    return team_id


async def _stamp(database: Database, key: str, order: Order, action: str, column: str, value: float | None) -> str:
    """Set or clear a time of a key that is not revoked; nothing is written where it is set or clear already."""
    async with tenancy_transaction(database) as connection:
        row = await _live_key(connection, key)
        if (row[column] is None) != (value is None):
            writes = Writes(order)
            _add_change(writes, row["key_id"], {column: value}, action, {"name": row["name"]})
            await writes.send(connection)
    key_id: str = row["key_id"]
    return key_id


def _add_change(writes: Writes, key_id: str, values: dict[str, Any], action: str, details: dict[str, Any]) -> None:
    writes.update(api_keys, "key_id", key_id, values)
    writes.write_down(action, key_id, details)


def _kept(made: MadeKey) -> dict[str, str]:
    return {"prefix": made.prefix, "digest": made.digest.hex()}


KEYS = Listing(api_keys, "key_id", ("team_id",), hidden=UNSHOWN)
TEAMS = Listing(teams, "team_id", ())
BUDGETS = Listing(budgets, "budget_id", ("subject",))


Reason = Annotated[str, Meta(min_length=1, max_length=1024)]
MOST_GRACE_SECONDS = 90 * 24 * 3600.0


class KeyOrder(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A new key: its name, its team (name or id), and its terms."""

    name: Name
    team: str | None = None
    terms: KeyTerms = KeyTerms()
    reason: Reason | None = None


class ChangeOrder(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """New terms of a key; omitted fields of `terms` stay."""

    terms: KeyTerms
    reason: Reason | None = None


class RotateOrder(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How long the old secret stays valid besides the new one; a day by default, at most 90."""

    grace_seconds: Annotated[float, Meta(ge=0, le=MOST_GRACE_SECONDS)] = GRACE_SECONDS
    reason: Reason | None = None


class VerbOrder(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The reason, which is recorded."""

    reason: Reason | None = None


class TeamOrder(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A new team."""

    name: Name
    reason: Reason | None = None


class BudgetOrder(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """At most `amount_usd` per calendar day or month (UTC) or in total, for the key or team of this id or name."""

    kind: Literal["key", "team"]
    subject: Annotated[str, Meta(min_length=1, max_length=128)]
    period: Period
    amount_usd: BudgetUsd
    reason: Reason | None = None
