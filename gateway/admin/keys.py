"""Keys, teams and budgets: made, changed, rotated, paused and revoked, with an audit trail; spending against budgets.

The endpoints `/admin/api/keys`, `/admin/api/teams` and `/admin/api/budgets`, then the pages.
"""

import math
from collections.abc import Awaitable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any

import msgspec
from litestar import delete, get, patch, post, put
from litestar.handlers import HTTPRouteHandler
from litestar.params import FromPath, FromQuery, JSONBody
from litestar.response import Response
from sqlalchemy import select
from sqlalchemy.ext.asyncio import AsyncEngine

from gateway.admin.resource import (
    Admin,
    AdminContext,
    AsCsv,
    admin_context,
    form_time,
    json_or_csv,
    list_endpoint,
    names_of,
    query_page,
)
from gateway.base.numbers import number, utc_text
from gateway.base.stores.database import reached
from gateway.edge.asgi import HttpRequest
from gateway.operations.dashboard.html.forms import (
    Form,
    WrongField,
    filled_in,
    form_of,
    given_of,
    is_changed,
    list_of,
    parse_form,
    text_of,
)
from gateway.operations.dashboard.html.rendering import Page, back_to, page
from gateway.operations.running import operations_of
from gateway.tenancy.budgets.budget_commands import BudgetState, remove_budget, set_budget, states_of
from gateway.tenancy.budgets.lease_book import period_bounds
from gateway.tenancy.changes import Order
from gateway.tenancy.keys.key_commands import (
    BUDGETS,
    KEYS,
    MOST_GRACE_SECONDS,
    TEAMS,
    VERBS,
    BudgetOrder,
    ChangeOrder,
    IssuedKey,
    KeyOrder,
    KeyVerb,
    RotateOrder,
    TeamOrder,
    VerbOrder,
    change_key,
    create_key,
    create_team,
    rotate_key,
    shown_key,
)
from gateway.tenancy.keys.key_use import KeyUse
from migrations.tables.tenancy import budgets, teams


class KeyChanged(msgspec.Struct, frozen=True, kw_only=True):
    """What changed, as name → [old, new]."""

    changed: dict[str, list[Any]]


class KeyVerbDone(msgspec.Struct, frozen=True, kw_only=True):
    """The key is refused or admitted here at once, by other processes within their polling interval."""

    key_id: str


class TeamMade(msgspec.Struct, frozen=True, kw_only=True):
    """The new team's id."""

    team_id: str


class KeyShown(msgspec.Struct, frozen=True, kw_only=True):
    """The columns of a key without its hashes."""

    key: dict[str, Any]


list_keys = list_endpoint(
    "/keys", KEYS, "List keys", "Newest first, including ended ones. Query: `team_id`, and as for verifications."
)


@post("/keys", summary="Make a key")
async def make_key(data: JSONBody[KeyOrder], admin: Admin) -> Response[IssuedKey]:
    """The answer contains the key, only this once. 409 if the name was used before."""
    return _shown_once(await admin.run(partial(_create_key, data), data.reason))


def _create_key(wanted: KeyOrder, database: AsyncEngine, order: Order) -> Awaitable[IssuedKey]:
    return create_key(database, wanted.name, wanted.team, wanted.terms, order)


@get("/keys/{key:str}", summary="Show a key")
async def show_key(key: FromPath[str], admin: Admin, as_csv: AsCsv) -> Response[KeyShown]:
    """By id or name, without its hashes."""
    row = await admin.run(lambda database, order: shown_key(database, key))
    return json_or_csv(as_csv, "key", KeyShown(key=row), list(row), [row])


@patch("/keys/{key:str}", summary="Change what a key may do")
async def limit_key(key: FromPath[str], data: JSONBody[ChangeOrder], admin: Admin) -> KeyChanged:
    """By id or name: scopes, tiers, models, rates, concurrency, consent, expiry; not the team."""
    changed = await admin.run(lambda database, order: change_key(database, key, data.terms, order), data.reason)
    return KeyChanged(changed=changed)


@post("/keys/{key:str}/rotate", status_code=200, summary="Give a key a new secret")
async def renew_key(key: FromPath[str], data: JSONBody[RotateOrder], admin: Admin) -> Response[IssuedKey]:
    """By id or name. The answer contains the new secret, only this once; the old one is valid for the grace period."""
    grace = data.grace_seconds
    issued = await admin.run(lambda database, order: rotate_key(database, key, grace, order), data.reason)
    return _shown_once(issued, 200)


def _verb_endpoint(verb: KeyVerb) -> HTTPRouteHandler:
    async def obey(key: FromPath[str], data: JSONBody[VerbOrder], admin: Admin) -> KeyVerbDone:
        done = await admin.run(lambda database, order: verb.command(database, key, order), data.reason)
        return KeyVerbDone(key_id=done)

    obey.__name__, obey.__doc__ = verb.endpoint, f"By id or name; {verb.manner}."
    return post(f"/keys/{{key:str}}/{verb.name}", status_code=200, summary=f"{verb.title} a key")(obey)


key_verbs = [_verb_endpoint(verb) for verb in VERBS]


list_teams = list_endpoint("/teams", TEAMS, "List teams", "Newest first. Query: as for verifications.")


@post("/teams", summary="Make a team")
async def make_team(data: JSONBody[TeamOrder], admin: Admin) -> TeamMade:
    """Keys of a team share its budgets, caches and prefixes. 409 if the name is taken."""
    made = await admin.run(lambda database, order: create_team(database, data.name, order), data.reason)
    return TeamMade(team_id=made)


def _shown_once(issued: IssuedKey, status: int = 201) -> Response[IssuedKey]:
    return Response(issued, status_code=status, media_type="application/json", headers={"cache-control": "no-store"})


class BudgetSet(msgspec.Struct, frozen=True, kw_only=True):
    """It applies here at once, in other processes within their polling interval."""

    budget_id: str


class BudgetRemoved(msgspec.Struct, frozen=True, kw_only=True):
    """It no longer limits anything."""

    removed: bool = True


class BudgetPage(msgspec.Struct, frozen=True, kw_only=True):
    """One page of budgets."""

    rows: list[BudgetState]
    next: str | None
    """The cursor of the next page, None on the last."""


@get("/budgets", summary="List budgets")
async def list_budgets(request: HttpRequest, admin: Admin, as_csv: AsCsv) -> Response[BudgetPage]:
    """Newest first, with the current period as last reported by replicas. Query: `subject` (an id, or the name of a key
    of the settings), and as for verifications."""
    page = await query_page(admin.database, BUDGETS, request.query_params)
    states = await reached(states_of(admin.database, page.rows, admin.operations.access.tenancy.clock.now()))
    shown = BudgetPage(rows=states, next=page.next)
    return json_or_csv(as_csv, "budgets", shown, BudgetState.__struct_fields__, states)


@put("/budgets", summary="Set a budget")
async def put_budget(data: JSONBody[BudgetOrder], admin: Admin) -> BudgetSet:
    """What was spent before in the period counts. An existing budget of the same subject and period is changed and
    keeps its spending."""
    return BudgetSet(budget_id=await _set_budget(admin, data))


def _set_budget(admin: AdminContext, wanted: BudgetOrder) -> Awaitable[str]:
    subject = wanted.subject
    static = wanted.kind == "key" and admin.operations.access.tenancy.directory.is_static(subject)

    def work(database: AsyncEngine, order: Order) -> Awaitable[str]:
        return set_budget(database, wanted.kind, subject, wanted.period, wanted.amount_usd, order, static)

    return admin.run(work, wanted.reason)


@delete("/budgets/{budget_id:str}", status_code=200, summary="Remove a budget")
async def delete_budget(budget_id: FromPath[str], admin: Admin, reason: FromQuery[str | None] = None) -> BudgetRemoved:
    """A new one counts what was spent in its period. Query: `reason`."""
    short = None if reason is None else reason[:1024]
    await admin.run(lambda database, order: remove_budget(database, budget_id, order), short)
    return BudgetRemoved()


ROWS = 50
_PATH = "/admin/keys"
_LISTS = ("scopes", "tiers", "models")
_TEXTS = (
    "consent",
    "local_only",
    "strict",
    "priority_ceiling",
    "requests_per_minute",
    "tokens_per_minute",
    "concurrency",
    "max_cost_usd_per_request",
    "quality",
    "min_tier",
)
_HOUR = 3600.0


@get("/keys")
async def show_keys(request: HttpRequest) -> Response[Any]:
    """A page of the keys, and the newest teams and budgets. Query: as for `/admin/api/keys`."""
    return await _keys_page(request)


async def _keys_page(request: HttpRequest, wrong: WrongField | None = None, status: int = 200) -> Response[Any]:
    operations = operations_of(request)
    database = operations.serving.database
    asked = {name: value for name, value in request.query_params.items() if value.strip()}
    listed = await query_page(database, KEYS, {"limit": str(ROWS)} | asked)
    groups = await query_page(database, TEAMS, {"limit": str(ROWS)})
    bounds = await query_page(database, BUDGETS, {"limit": str(ROWS)})
    now = operations.access.tenancy.clock.now()
    states = await reached(states_of(database, bounds.rows, now))
    limits = await reached(_budgets_of(database, listed.rows, now))
    use = await operations.live.key_use.look(tuple(row["key_id"] for row in listed.rows)) or {}
    return page(
        request,
        "keys.html",
        "Keys and budgets",
        status=status,
        wrong=wrong,
        listed=listed,
        use=use,
        limits={row["key_id"]: _least_left(row, limits, use.get(row["key_id"])) for row in listed.rows},
        asked=asked,
        teams=groups.rows,
        team_choices=await reached(_team_choices(database)),
        budgets=states,
        names=await names_of(
            database, [*(budget.subject for budget in states), *(row["team_id"] for row in listed.rows)]
        ),
        now=now,
        tiers=sorted(operations.serving.routing.served.tiers),
    )


@get("/keys/{key:str}")
async def show_one_key(request: HttpRequest, key: FromPath[str]) -> Response[Any]:
    """Show what a key may do and has spent."""
    return await _key_page(request, key)


async def _key_page(
    request: HttpRequest, key: str, wrong: WrongField | None = None, status: int = 200
) -> Response[Any]:
    operations = operations_of(request)
    row = await admin_context(request).run(lambda database, order: shown_key(database, key))
    now = operations.access.tenancy.clock.now()
    states = await reached(_budgets_of(operations.serving.database, [row], now))
    names = await names_of(operations.serving.database, [row["team_id"], *(budget.subject for budget in states)])
    tiers = sorted(operations.serving.routing.served.tiers)
    use = await operations.live.key_use.look((row["key_id"],)) or {}
    return page(
        request,
        "key.html",
        row["name"],
        status=status,
        wrong=wrong,
        key=row,
        now=now,
        limit=_least_left(row, states, use.get(row["key_id"])),
        budgets=states,
        names=names,
        tiers=tiers,
        verbs=[verb for verb in VERBS if verb.offered(row)],
    )


@post("/keys", status_code=200)
async def post_key(request: HttpRequest, admin: Admin) -> Response[Any]:
    """Make a key; the next page shows its secret once."""

    async def made(form: Form) -> Response[Any]:
        values = {"name": text_of(form, "name") or "", "terms": _terms(form)}
        wanted = parse_form(values | given_of(form, "team", "reason"), KeyOrder)
        return _issued(request, await admin.run(partial(_create_key, wanted), wanted.reason))

    return await filled_in(request, made, partial(_keys_page, request))


@post("/keys/{key:str}", status_code=200)
async def change_one_key(request: HttpRequest, key: FromPath[str], admin: Admin) -> Response[Any]:
    """Change the terms of a key that differ in the form."""

    async def changed(form: Form) -> Response[Any]:
        wanted = parse_form({"terms": _terms(form)} | given_of(form, "reason"), ChangeOrder)
        values = await admin.run(lambda database, order: change_key(database, key, wanted.terms, order), wanted.reason)
        said = "; ".join(f"{name}: {_shown(name, old)} → {_shown(name, new)}" for name, (old, new) in values.items())
        return back_to(f"{_PATH}/{key}", said or "Nothing was changed: every field is as it was.")

    return await filled_in(request, changed, partial(_key_page, request, key))


@post("/keys/{key:str}/rotate", status_code=200)
async def post_renewal(request: HttpRequest, key: FromPath[str], admin: Admin) -> Response[Any]:
    """Replace the secret; the next page shows it once. The old one stays valid for `hours`."""

    async def renewed(form: Form) -> Response[Any]:
        hours, most = text_of(form, "hours"), MOST_GRACE_SECONDS / _HOUR
        grace_fields = {} if hours is None else {"grace_seconds": number(hours, "hours", 0, most) * _HOUR}
        wanted = parse_form(grace_fields | given_of(form, "reason"), RotateOrder)
        grace = wanted.grace_seconds
        issued = await admin.run(lambda database, order: rotate_key(database, key, grace, order), wanted.reason)
        return _issued(request, issued)

    return await filled_in(request, renewed, partial(_key_page, request, key))


def _verb_form(verb: KeyVerb) -> HTTPRouteHandler:
    async def obey(request: HttpRequest, key: FromPath[str], admin: Admin) -> Response[Any]:
        reason = parse_form(given_of(await form_of(request), "reason"), VerbOrder).reason
        await admin.run(lambda database, order: verb.command(database, key, order), reason)
        said = f"The key is {verb.done}. Servers {verb.follows}: this process at once, others in a moment."
        return back_to(f"{_PATH}/{key}", said)

    obey.__name__ = f"post_{verb.name}"
    return post(f"/keys/{{key:str}}/{verb.name}", status_code=200)(obey)


@post("/teams", status_code=200)
async def post_team(request: HttpRequest, admin: Admin) -> Response[Any]:
    async def made(form: Form) -> Response[Any]:
        wanted = parse_form({"name": text_of(form, "name") or ""} | given_of(form, "reason"), TeamOrder)
        await admin.run(lambda database, order: create_team(database, wanted.name, order), wanted.reason)
        return back_to(_PATH, f"There is a team {wanted.name}.")

    return await filled_in(request, made, partial(_keys_page, request))


@post("/budgets", status_code=200)
async def post_budget(request: HttpRequest, admin: Admin) -> Response[Any]:
    async def put(form: Form) -> Response[Any]:
        empty = {"subject": "", "amount_usd": ""}
        wanted = parse_form(empty | given_of(form, "kind", "subject", "period", "amount_usd", "reason"), BudgetOrder)
        await _set_budget(admin, wanted)
        return back_to(_PATH, f"{wanted.subject} may spend ${wanted.amount_usd:,.2f} ({wanted.period}).")

    return await filled_in(request, put, partial(_keys_page, request))


@post("/budgets/{budget_id:str}/remove", status_code=200)
async def post_budget_removal(request: HttpRequest, budget_id: FromPath[str], admin: Admin) -> Response[Any]:
    reason = text_of(await form_of(request), "reason")
    await admin.run(lambda database, order: remove_budget(database, budget_id, order), reason)
    return back_to(_PATH, "The budget is removed.")


def _shown(name: str, value: Any) -> str:
    return "none" if value is None else utc_text(value) if name == "expires_at" else str(value)


def _issued(request: HttpRequest, issued: IssuedKey) -> Response[Any]:
    return page(request, "key_issued.html", f"Key {issued.name}", issued=issued)


def _terms(form: Form) -> dict[str, Any]:
    """Return the terms that the form changed; an emptied limit is removed."""
    terms: dict[str, Any] = {name: list_of(form, name) for name in _LISTS if is_changed(form, name)}
    terms |= {name: text_of(form, name) for name in _TEXTS if name in form and is_changed(form, name)}
    if is_changed(form, "aliases"):
        # One that lacks its model is refused with the name of the field.
        pairs = (pair.partition("=") for pair in list_of(form, "aliases") or ())
        terms["aliases"] = {name.strip(): model.strip() for name, _, model in pairs} or None
    if is_changed(form, "expires_at"):
        expires = text_of(form, "expires_at")
        terms["expires_at"] = None if expires is None else form_time("expires_at", expires)
    return terms


async def _budgets_of(database: AsyncEngine, keys: Iterable[Mapping[str, Any]], now: float) -> list[BudgetState]:
    """Return the budgets of keys and of their teams."""
    subjects = {subject for key in keys for subject in (key["key_id"], key["team_id"]) if subject is not None}
    async with database.connect() as connection:
        rows = await connection.execute(select(budgets).where(budgets.c.subject.in_(subjects)))
        mine = [dict(row) for row in rows.mappings()]
    return await states_of(database, mine, now)


class Limit(msgspec.Struct, frozen=True):
    """The budget that ends a key's spending first."""

    budget: BudgetState
    is_refused: bool
    """Whether it did not cover the newest request of the key."""
    next_at: float | None
    """When its next period begins (epoch seconds); None: it has one period."""

    @property
    def left_usd(self) -> float:
        return max(self.budget.amount_usd - self.budget.spent_usd, 0.0)

    @property
    def is_spent(self) -> bool:
        return self.budget.spent_usd >= self.budget.amount_usd

    @property
    def ends_spending(self) -> bool:
        return self.is_spent or self.is_refused


def _least_left(key: Mapping[str, Any], states: Sequence[BudgetState], use: KeyUse | None) -> Limit | None:
    """Return the budget of the key or its team that has the least left."""
    mine = [state for state in states if state.subject in (key["key_id"], key["team_id"])]
    if not mine:
        return None
    least = min(mine, key=lambda state: state.amount_usd - state.spent_usd)
    begin, end = period_bounds(least.period_key)
    refused_at = None if use is None else use.over_budget_at
    is_refused = use is not None and refused_at is not None and refused_at > max(begin, use.last_at or 0.0)
    return Limit(least, is_refused, end if math.isfinite(end) else None)


async def _team_choices(database: AsyncEngine) -> list[tuple[str, str]]:
    """Return all teams by name, as options of a form: value and text."""
    async with database.connect() as connection:
        names = await connection.scalars(select(teams.c.name).order_by(teams.c.name))
        return [(name, name) for name in names]


KEY_ENDPOINTS = (
    list_keys, make_key, show_key, limit_key, renew_key, *key_verbs, list_teams, make_team, list_budgets,
    put_budget, delete_budget,
)  # fmt: skip
KEYS_PAGE = Page(
    title="Keys",
    path="/keys",
    handlers=(
        show_keys,
        show_one_key,
        post_key,
        change_one_key,
        post_renewal,
        *(_verb_form(verb) for verb in VERBS),
        post_team,
        post_budget,
        post_budget_removal,
    ),
)
