"""The pages of keys, teams and budgets: make, change, rotate, revoke; and spending against budgets."""

from functools import partial
from typing import Any

from litestar import get, post
from litestar.params import FromPath
from litestar.response import Response
from sqlalchemy import select

from gateway.base.numbers import number, utc_text
from gateway.base.stores.database import reached
from gateway.edge.asgi import HttpRequest
from gateway.inference.service import Serving, serving_of
from gateway.operations.dashboard.html.forms import (
    Form,
    WrongField,
    filled_in,
    form_of,
    given_of,
    is_changed,
    list_of,
    taken,
    text_of,
)
from gateway.operations.dashboard.html.page import Page
from gateway.operations.dashboard.html.rendering import back_to, page
from gateway.operations.dashboard.pages.requests import epoch_of
from gateway.operations.running import operations_of
from gateway.operations.usecases.budgets import BudgetOrder
from gateway.operations.usecases.keys import (
    MOST_GRACE_SECONDS,
    ChangeOrder,
    KeyOrder,
    RevokeOrder,
    RotateOrder,
    TeamOrder,
    names_of,
    obeyed,
)
from gateway.operations.usecases.pages import page_asked_for
from gateway.tenancy.access.admin_guard import order_of
from gateway.tenancy.access.guard import access_of
from gateway.tenancy.budgets.budget_commands import BudgetState, remove_budget, set_budget, states_of
from gateway.tenancy.keys.key_commands import (
    BUDGETS,
    KEYS,
    TEAMS,
    IssuedKey,
    change_key,
    create_key,
    create_team,
    revoke_key,
    rotate_key,
    shown_key,
)
from migrations.tables.tenancy import budgets

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
    asked = {name: value for name, value in request.query_params.items() if value.strip()}
    found = await page_asked_for(request, KEYS, {"limit": str(ROWS)} | asked)
    groups = await page_asked_for(request, TEAMS, {"limit": str(ROWS)})
    bounds = await page_asked_for(request, BUDGETS, {"limit": str(ROWS)})
    now = operations.access.tenancy.clock.now()
    states = await reached(states_of(operations.serving.database, bounds.rows, now))
    return page(
        request,
        "keys.html",
        "Keys and budgets",
        status=status,
        wrong=wrong,
        found=found,
        asked=asked,
        teams=groups.rows,
        budgets=states,
        names=await names_of(
            operations.serving.database, [*(one.subject for one in states), *(row["team_id"] for row in found.rows)]
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
    row = await obeyed(access_of(request), shown_key(operations.serving.database, key))
    now = operations.access.tenancy.clock.now()
    states = await reached(_budgets_of(operations.serving, row, now))
    names = await names_of(operations.serving.database, [row["team_id"], *(one.subject for one in states)])
    tiers = sorted(operations.serving.routing.served.tiers)
    shown = {"key": row, "now": now, "budgets": states, "names": names, "tiers": tiers}
    return page(request, "key.html", row["name"], status=status, wrong=wrong, **shown)


@post("/keys", status_code=200)
async def make_key(request: HttpRequest) -> Response[Any]:
    """Make a key; the next page shows its secret once."""

    async def made(form: Form) -> Response[Any]:
        values = {"name": text_of(form, "name") or "", "terms": _terms(form)}
        order = taken(values | given_of(form, "team", "reason"), KeyOrder)
        done = order_of(request, order.reason)
        work = create_key(serving_of(request).database, order.name, order.team, order.terms, done)
        return _issued(request, await obeyed(access_of(request), work))

    return await filled_in(request, made, partial(_keys_page, request))


@post("/keys/{key:str}", status_code=200)
async def change_one_key(request: HttpRequest, key: FromPath[str]) -> Response[Any]:
    """Change the terms of a key that differ in the form."""

    async def changed(form: Form) -> Response[Any]:
        order = taken({"terms": _terms(form)} | given_of(form, "reason"), ChangeOrder)
        work = change_key(serving_of(request).database, key, order.terms, order_of(request, order.reason))
        values = (await obeyed(access_of(request), work)).items()
        said = "; ".join(f"{name}: {_shown(name, old)} → {_shown(name, new)}" for name, (old, new) in values)
        return back_to(f"{_PATH}/{key}", said or "Nothing was changed: every field is as it was.")

    return await filled_in(request, changed, partial(_key_page, request, key))


@post("/keys/{key:str}/rotate", status_code=200)
async def renew_key(request: HttpRequest, key: FromPath[str]) -> Response[Any]:
    """Replace the secret; the next page shows it once. The old one stays valid for `hours`."""

    async def renewed(form: Form) -> Response[Any]:
        hours, most = text_of(form, "hours"), MOST_GRACE_SECONDS / _HOUR
        given = {} if hours is None else {"grace_seconds": number(hours, "hours", 0, most) * _HOUR}
        order = taken(given | given_of(form, "reason"), RotateOrder)
        work = rotate_key(serving_of(request).database, key, order.grace_seconds, order_of(request, order.reason))
        return _issued(request, await obeyed(access_of(request), work))

    return await filled_in(request, renewed, partial(_key_page, request, key))


@post("/keys/{key:str}/revoke", status_code=200)
async def end_key(request: HttpRequest, key: FromPath[str]) -> Response[Any]:
    """Revoke a key permanently."""
    order = taken(given_of(await form_of(request), "reason"), RevokeOrder)
    await obeyed(access_of(request), revoke_key(serving_of(request).database, key, order_of(request, order.reason)))
    return back_to(f"{_PATH}/{key}", "The key is revoked: refused here at once, and by other processes in a moment.")


@post("/teams", status_code=200)
async def make_team(request: HttpRequest) -> Response[Any]:
    """A new team."""

    async def made(form: Form) -> Response[Any]:
        order = taken({"name": text_of(form, "name") or ""} | given_of(form, "reason"), TeamOrder)
        work = create_team(serving_of(request).database, order.name, order_of(request, order.reason))
        await obeyed(access_of(request), work)
        return back_to(_PATH, f"There is a team {order.name}.")

    return await filled_in(request, made, partial(_keys_page, request))


@post("/budgets", status_code=200)
async def put_budget(request: HttpRequest) -> Response[Any]:
    """Set what a key or team may spend."""
    operations = operations_of(request)

    async def put(form: Form) -> Response[Any]:
        empty = {"subject": "", "amount_usd": ""}
        order = taken(empty | given_of(form, "kind", "subject", "period", "amount_usd", "reason"), BudgetOrder)
        static = order.kind == "key" and operations.access.tenancy.directory.is_static(order.subject)
        done = order_of(request, order.reason)
        work = set_budget(
            operations.serving.database, order.kind, order.subject, order.period, order.amount_usd, done, static
        )
        await obeyed(access_of(request), work)
        return back_to(_PATH, f"{order.subject} may spend ${order.amount_usd:,.2f} ({order.period}).")

    return await filled_in(request, put, partial(_keys_page, request))


@post("/budgets/{budget_id:str}/remove", status_code=200)
async def delete_budget(request: HttpRequest, budget_id: FromPath[str]) -> Response[Any]:
    """Remove a budget."""
    reason = text_of(await form_of(request), "reason")
    await obeyed(access_of(request), remove_budget(serving_of(request).database, budget_id, order_of(request, reason)))
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
        terms["expires_at"] = None if expires is None else epoch_of("expires_at", expires)
    return terms


async def _budgets_of(serving: Serving, key: dict[str, Any], now: float) -> list[BudgetState]:
    subjects = [subject for subject in (key["key_id"], key["team_id"]) if subject is not None]
    async with serving.database.connect() as connection:
        rows = await connection.execute(select(budgets).where(budgets.c.subject.in_(subjects)))
        found = [dict(row) for row in rows.mappings()]
    return await states_of(serving.database, found, now)


KEYS_PAGE = Page(
    title="Keys",
    path="/keys",
    handlers=(
        show_keys, show_one_key, make_key, change_one_key, renew_key, end_key, make_team, put_budget, delete_budget,
    ),
)  # fmt: skip
