"""Users: `DELETE /admin/api/users/{key_id}` erases one; the page of those who may sign in by name, for admins: add,
change role, sign out, remove.
"""

from typing import Any

import msgspec
from litestar import delete, get, post
from litestar.params import FromPath, FromQuery
from litestar.response import Response
from sqlalchemy import func, select

from classifier.errors import ArtefactError
from gateway.admin.resource import Admin, list_endpoint, query_page
from gateway.base.errors import ApiError
from gateway.base.stores.database import reached
from gateway.edge.asgi import HttpRequest
from gateway.operations.dashboard.html.forms import form_of, given_of, parse_form, text_of
from gateway.operations.dashboard.html.rendering import Page, back_to, page
from gateway.operations.privacy import UserErased
from gateway.operations.running import Operations
from gateway.tenancy.admin_guard import ADMIN
from gateway.tenancy.changes import UnknownSubjectError
from gateway.tenancy.keys.key_commands import shown_key
from gateway.tenancy.keys.key_secrets import keys_of
from gateway.tenancy.users import users
from migrations.tables.tenancy import dashboard_sessions

_LONGEST = 128


@delete("/users/{key_id:str}", status_code=200, summary="Erase a user's data")
async def erase_user(key_id: FromPath[str], admin: Admin, reason: FromQuery[str] = "erased on request") -> UserErased:
    """Erase all requests, verifications and training rows of the key of this id or name. Query: `reason`, which is
    recorded. Repeating is harmless; 503 while the database is down."""
    if len(key_id) > _LONGEST:
        raise ApiError(404, f"Key names have at most {_LONGEST} characters.", param="key_id")
    is_known = True
    try:
        # Rows have the id of a stored key, and the name of another.
        key_id = (await reached(shown_key(admin.database, key_id)))["key_id"]
    except UnknownSubjectError:
        is_known = key_id in keys_of(admin.serving.settings).answers.names
    try:
        erased = await reached(admin.operations.privacy.erase(key_id, actor=admin.actor, reason=reason[:1024]))
    except ArtefactError as error:
        raise ApiError(500, f"The rows are deleted, but a classifier version keeps them: {error}") from error
    if not is_known and not any(msgspec.structs.astuple(erased.rows)):
        raise ApiError(404, f"There is no key {key_id!r}, and nothing was stored of one.", param="key_id")
    return erased


ROWS = 50
PATH = "/admin/users"


@get("/users", opt=ADMIN)
async def show_users(request: HttpRequest, admin: Admin) -> Response[Any]:
    """Show users, newest first, each with its number of sessions. Query: as for `/admin/api/dashboard-users`."""
    asked = {"limit": str(ROWS)} | dict(request.query_params)
    listed = await query_page(admin.database, users.USERS, asked)
    sessions = await reached(_sessions(admin.operations, [row["name"] for row in listed.rows]))
    return page(request, "users.html", "Users", listed=listed, sessions=sessions, roles=users.ROLES)


list_users = list_endpoint(
    "/dashboard-users", users.USERS, "List users of the dashboard",
    "Newest first, with their roles. Query: as for verifications.", name="list_users", opt=ADMIN,
)  # fmt: skip


@post("/users", status_code=200)
async def add(request: HttpRequest, admin: Admin) -> Response[Any]:
    form = await form_of(request)
    # Kept as typed: leading and trailing white space belongs to a password.
    password = (await request.form()).get("password", "")
    user = parse_form(given_of(form, "name", "role") | {"password": password}, users.UserOrder)
    await admin.run(lambda database, order: users.add_user(database, user, order), text_of(form, "reason"))
    return back_to(PATH, f"{user.name} may sign in as {user.role}.")


@post("/users/{name:str}", status_code=200)
async def change(request: HttpRequest, name: FromPath[str], admin: Admin) -> Response[Any]:
    role = parse_form(given_of(await form_of(request), "role"), users.RoleOrder).role
    before = await admin.run(lambda database, order: users.change_role(database, name, role, order))
    return back_to(PATH, f"{name}: {before} → {role}, within seconds where {name} is signed in.")


@post("/users/{name:str}/sessions/end", status_code=200)
async def sign_out_user(name: FromPath[str], admin: Admin) -> Response[Any]:
    ended = await admin.run(lambda database, order: users.end_sessions(database, name, order))
    return back_to(PATH, f"{name} is signed out everywhere ({ended}), within seconds.")


@post("/users/{name:str}/remove", status_code=200)
async def remove(name: FromPath[str], admin: Admin) -> Response[Any]:
    await admin.run(lambda database, order: users.remove_user(database, name, order))
    return back_to(PATH, f"{name} is removed, and signed out within seconds.")


async def _sessions(operations: Operations, names: list[str]) -> dict[str, int]:
    kept = dashboard_sessions.c
    query = (
        select(kept.user_name, func.count())
        .where(kept.user_name.in_(names), kept.expires_at > operations.access.tenancy.clock.now())
        .group_by(kept.user_name)
    )
    async with operations.serving.database.connect() as connection:
        return {row[0]: row[1] for row in await connection.execute(query)}


USERS_PAGE = Page(title="Users", path="/users", handlers=(show_users, add, change, sign_out_user, remove), role="admin")
