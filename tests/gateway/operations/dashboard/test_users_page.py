"""The page of users: added, given another role, signed out and removed by admins only, with an audit trail."""

from typing import Any

import httpx
import pytest

from tests.gateway.operations.dashboard.browsing import (
    PASSWORD,
    browser,
    forms_of,
    look_again,
    sign_in,
    submit,
    with_user,
)
from tests.support.app import RunningGateway

pytestmark = pytest.mark.asyncio(loop_scope="module")
ADMIN = "test-admin-07158b06243a3ef4b8e7746013aa659a"
SETTINGS = {"admin_keys": f"ann={ADMIN}"}
PAGE = "/admin/users"
API = "/admin/api/dashboard-users"


async def newest_event(admin: httpx.AsyncClient) -> dict[str, Any]:
    rows = (await admin.get("/admin/api/transitions", params={"limit": 20})).json()["rows"]
    return next(row for row in rows if row["action"].startswith("user."))


async def test_an_empty_installation_says_how_to_add_somebody(admin: httpx.AsyncClient) -> None:
    assert "No users yet." in (await admin.get(PAGE)).text


async def test_a_user_is_added_and_comes_in_with_the_password_as_typed(
    aio: RunningGateway, admin: httpx.AsyncClient
) -> None:
    typed = f"  {PASSWORD} "
    added = await submit(admin, await admin.get(PAGE), PAGE, name="ada", password=typed, role="operator", reason="new")
    assert (added.status_code, added.headers["location"]) == (303, PAGE)
    event = await newest_event(admin)
    assert (event["action"], event["actor"], event["reason"]) == ("user.added", "ann", "new")
    assert event["details"] == {"role": [None, "operator"]}
    async with browser(aio) as client:
        assert (await sign_in(client, PASSWORD, "ada")).status_code == 401
        assert (await sign_in(client, typed, "ada")).status_code == 303
    for path in (PAGE, API, f"{API}?format=csv"):
        shown = (await admin.get(path)).text
        assert "ada" in shown
        assert "argon2" not in shown
        assert PASSWORD not in shown


async def test_a_changed_role_holds_where_the_user_is_signed_in(aio: RunningGateway, admin: httpx.AsyncClient) -> None:
    async with with_user(aio, "bob", "operator") as bob:
        changed = await submit(admin, await admin.get(PAGE), f"{PAGE}/bob", role="viewer")
        assert changed.status_code == 303
        assert (await newest_event(admin))["details"] == {"role": ["operator", "viewer"]}
        look_again(aio)
        assert "<small>viewer</small>" in (await bob.get("/admin/requests")).text


async def test_sessions_are_counted_and_ended_and_the_user_may_come_back(
    aio: RunningGateway, admin: httpx.AsyncClient
) -> None:
    async with with_user(aio, "cleo", "viewer") as cleo:
        await sign_in(cleo, PASSWORD, "cleo")
        ended = await submit(admin, await admin.get(PAGE), f"{PAGE}/cleo/sessions/end")
        assert ended.status_code == 303
        event = await newest_event(admin)
        assert (event["action"], event["details"]) == ("user.signed_out", {"sessions": [2, 0]})
        look_again(aio)
        assert (await cleo.get("/admin/requests")).status_code == 303
        assert (await sign_in(cleo, PASSWORD, "cleo")).status_code == 303


async def test_a_removed_user_is_out_and_stays_out(aio: RunningGateway, admin: httpx.AsyncClient) -> None:
    async with with_user(aio, "dan", "viewer") as dan:
        assert (await submit(admin, await admin.get(PAGE), f"{PAGE}/dan/remove")).status_code == 303
        assert (await newest_event(admin))["details"] == {"role": ["viewer", None]}
        look_again(aio)
        assert (await dan.get("/admin/requests")).status_code == 303
        assert (await sign_in(dan, PASSWORD, "dan")).status_code == 401
    assert f"{PAGE}/dan/remove" not in forms_of(await admin.get(PAGE))


@pytest.mark.parametrize(
    ("fields", "status"),
    [
        ({"name": "<script>"}, 400),
        ({"name": "eve", "password": "short"}, 400),
        ({"name": "eve", "role": "god"}, 400),
        ({"name": "", "password": PASSWORD}, 400),
        ({"name": "ada"}, 409),
    ],
)
async def test_what_cannot_be_is_refused_and_no_password_is_shown(
    admin: httpx.AsyncClient, fields: dict[str, str], status: int
) -> None:
    given = {"password": PASSWORD, "role": "viewer"} | fields
    refused = await submit(admin, await admin.get(PAGE), PAGE, **given)
    assert refused.status_code == status, refused.text
    assert given["password"] not in refused.text


async def test_an_admin_neither_demotes_nor_removes_herself(aio: RunningGateway) -> None:
    async with with_user(aio, "olga", "admin") as olga:
        page = await olga.get(PAGE)
        assert (await submit(olga, page, f"{PAGE}/olga", role="viewer")).status_code == 409
        assert (await submit(olga, page, f"{PAGE}/olga/remove")).status_code == 409
        token = {"csrf_token": forms_of(page)["/admin/logout"]["fields"]["csrf_token"]}
        assert (await olga.post(f"{PAGE}/missing/remove", data=token)).status_code == 404
        look_again(aio)
        assert (await olga.get(PAGE)).status_code == 200


async def test_only_an_admin_sees_or_changes_users(aio: RunningGateway, admin: httpx.AsyncClient) -> None:
    for role in ("viewer", "operator"):
        async with with_user(aio, f"users-{role}", role) as client:  # type: ignore[arg-type]
            seen = await client.get("/admin/requests")
            assert f'href="{PAGE}"' not in seen.text
            token = {"csrf_token": forms_of(seen)["/admin/logout"]["fields"]["csrf_token"]}
            for path in (PAGE, API):
                assert (await client.get(path)).status_code == 403, (role, path)
            for path in ("", "/ada", "/ada/sessions/end", "/ada/remove"):
                data = {"name": "x", "password": PASSWORD, "role": "admin"} | token
                assert (await client.post(f"{PAGE}{path}", data=data)).status_code == 403, (role, path)
    for path in ("", "/ada", "/ada/remove"):
        assert (await admin.post(f"{PAGE}{path}", data={"role": "admin"})).status_code == 403, "no token"
    users = {row["name"]: row["role"] for row in (await admin.get(API)).json()["rows"]}
    assert users["ada"] == "operator"
    assert "x" not in users
