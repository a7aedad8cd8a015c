"""Who can sign in to the dashboard, who cannot, and what a cookie alone cannot do."""

from hashlib import sha256
from pathlib import Path
from typing import Any

import httpx
import pytest
from sqlalchemy import insert, select, update

from gateway.dashboard.sign_in.login_limit import MOST_FAILURES, WINDOW_SECONDS, LoginLimit
from gateway.settings import Settings
from gateway.tenancy.dashboard_users.sessions import COOKIE
from gateway.tenancy.dashboard_users.users import remove_user
from gateway.tenancy.orders import Order
from migrations.tables import audit_events, dashboard_sessions, dashboard_users
from tests.gateway.dashboard.browsing import PASSWORD, browser, forms_of, look_again, sign_in, submit, with_user
from tests.gateway.running_gateway import RunningGateway, running_gateway

pytestmark = pytest.mark.asyncio(loop_scope="module")
ADMIN = "test-admin-07158b06243a3ef4b8e7746013aa659a"
SETTINGS = {"admin_keys": f"ann={ADMIN}"}
PAGE = "/admin/requests"


@pytest.fixture(autouse=True)
def nothing_held_against_us(aio: RunningGateway) -> None:
    aio.app.state.pop("login_limit", None)


async def test_a_page_asks_to_sign_in_first_and_then_is_shown(aio: RunningGateway) -> None:
    async with browser(aio) as client:
        sent = await client.get(PAGE, params={"tier": 1})
        assert (sent.status_code, sent.headers["location"]) == (303, "/admin/login?next=%2Fadmin%2Frequests%3Ftier%3D1")
        let_in = await sign_in(client, ADMIN, path="/admin/requests?tier=1")
        assert (let_in.status_code, let_in.headers["location"]) == (303, "/admin/requests?tier=1")
        shown = await client.get(PAGE)
        assert shown.status_code == 200
        assert "ann" in shown.text


async def test_the_cookie_is_out_of_reach_of_scripts_and_other_sites(aio: RunningGateway) -> None:
    async with browser(aio) as client:
        cookie = (await sign_in(client, ADMIN)).headers["set-cookie"]
        assert cookie.startswith(f"{COOKIE}=")
        assert "HttpOnly" in cookie
        assert "SameSite=strict" in cookie
        assert "Secure" not in cookie
    async with browser(aio, headers={"x-forwarded-proto": "https"}) as client:
        assert "Secure" in (await client.get("/admin/login")).headers["set-cookie"]


async def test_signing_in_starts_a_session_that_cannot_be_planted(aio: RunningGateway) -> None:
    async with browser(aio) as client:
        await client.get("/admin/login")
        before = client.cookies[COOKIE]
        await sign_in(client, ADMIN)
        assert client.cookies[COOKIE] != before
        async with aio.parts.database.connect() as connection:
            kept = (await connection.scalars(select(dashboard_sessions.c.session_id))).all()
        assert client.cookies[COOKIE] not in kept


@pytest.mark.parametrize(("name", "secret"), [("", "wrong"), ("", ""), ("nobody", PASSWORD), ("ann", ADMIN)])
async def test_an_unknown_user_cannot_sign_in(aio: RunningGateway, name: str, secret: str) -> None:
    async with browser(aio) as client:
        refused = await sign_in(client, secret, name)
        assert refused.status_code == 401
        assert "That is no name with its password" in refused.text
        assert (await client.get(PAGE)).status_code == 303


async def test_a_login_form_of_another_site_is_refused(aio: RunningGateway) -> None:
    async with browser(aio) as client:
        await client.get("/admin/login")
        for token in ({}, {"csrf_token": "0" * 64}):
            refused = await client.post("/admin/login", data={"secret": ADMIN, **token})
            assert refused.status_code == 403
        assert (await client.get(PAGE)).status_code == 303


async def test_only_pages_of_ours_follow_a_sign_in(aio: RunningGateway) -> None:
    for path in ("https://evil.example/", "//evil.example", "/admin/../v1", "/admin\\..", "/admin/login", "/v1/models"):
        async with browser(aio) as client:
            let_in = await sign_in(client, ADMIN, path=path)
            landed = httpx.URL(aio.url).join(let_in.headers["location"])
            assert landed.host == "127.0.0.1"
            assert let_in.headers["location"].startswith("/admin")


async def test_failures_are_limited_also_for_the_right_password(aio: RunningGateway) -> None:
    async with browser(aio) as client:
        for _ in range(MOST_FAILURES):
            assert (await sign_in(client, "wrong")).status_code == 401
        refused = await sign_in(client, ADMIN)
        assert refused.status_code == 429
        assert 0 < int(refused.headers["retry-after"]) <= WINDOW_SECONDS


async def test_who_came_in_and_who_did_not_is_in_the_audit_trail_without_what_was_typed(aio: RunningGateway) -> None:
    async with with_user(aio, "tess", "viewer") as client:
        await submit(client, await client.get(PAGE), "/admin/logout")
        assert (await sign_in(client, ADMIN)).status_code == 303
        assert (await sign_in(client, "a wrong secret", "tess")).status_code == 401
        assert (await sign_in(client, "", "a secret in the wrong field")).status_code == 401
        while (await sign_in(client, "a wrong secret")).status_code == 401:
            pass
        for _ in range(3):
            assert (await sign_in(client, "a wrong secret")).status_code == 429
    assert [(event["action"], event["actor"], event["subject"]) for event in await sessions_in_trail(aio, 8)] == [
        ("session.limited", "nobody", "key"),
        *[("session.refused", "nobody", "key")] * (MOST_FAILURES - 2),
        ("session.refused", "nobody", "unknown"),
        ("session.refused", "nobody", "tess"),
        ("session.begun", "ann", "ann"),
        ("session.ended", "user:tess", "user:tess"),
    ]
    kept = str(await sessions_in_trail(aio, 1000))
    assert "'from': '127.0.0.1'" in kept
    assert not [secret for secret in (ADMIN, PASSWORD, "a wrong secret", "a secret in") if secret in kept]


async def sessions_in_trail(aio: RunningGateway, limit: int) -> list[dict[str, Any]]:
    """Return the newest session events."""
    admin = {"authorization": f"Bearer {ADMIN}"}
    rows = (await aio.http.get("/admin/api/transitions", params={"limit": 1000}, headers=admin)).json()["rows"]
    return [row for row in rows if row["action"].startswith("session.")][:limit]


async def test_failures_are_counted_by_subject_and_forgotten_with_time() -> None:
    now = 0.0
    limit = LoginLimit(lambda: now)
    for _ in range(MOST_FAILURES):
        limit.failed("from a", "name x")
    assert limit.wait("from a") == limit.wait("from b", "name x") == WINDOW_SECONDS
    assert limit.wait("from b", "name y") == 0
    now = WINDOW_SECONDS - 0.5
    assert limit.wait("from a") == 1
    now = WINDOW_SECONDS
    assert limit.wait("from a") == 0


async def test_signing_out_ends_the_session_even_for_a_kept_cookie(aio: RunningGateway) -> None:
    async with browser(aio) as client:
        await sign_in(client, ADMIN)
        kept = client.cookies[COOKIE]
        page = await client.get(PAGE)
        out = await submit(client, page, "/admin/logout")
        assert (out.status_code, out.headers["location"]) == (303, "/admin/login")
    async with browser(aio, cookies={COOKIE: kept}) as thief:
        assert (await thief.get(PAGE)).status_code == 303


async def test_a_change_without_the_forms_token_is_refused(aio: RunningGateway) -> None:
    async with browser(aio) as client:
        await sign_in(client, ADMIN)
        async with browser(aio) as other:
            foreign = forms_of(await other.get("/admin/login"))["/admin/login"]["fields"]["csrf_token"]
        for data in ({}, {"csrf_token": ""}, {"csrf_token": foreign}):
            assert (await client.post("/admin/logout", data=data)).status_code == 403
        knobs = await client.patch("/v1/admin/routing", json={"stage_3": True})
        assert (knobs.status_code, knobs.json()["error"]["code"]) == (403, "csrf_token_invalid")
        assert (await client.get(PAGE)).status_code == 200


async def test_json_endpoints_open_with_the_cookie_and_changes_with_its_token(aio: RunningGateway) -> None:
    async with browser(aio) as client:
        assert (await client.get("/admin/api/requests")).status_code == 401
        await sign_in(client, ADMIN)
        assert (await client.get("/admin/api/requests")).status_code == 200
        token = forms_of(await client.get(PAGE))["/admin/logout"]["fields"]["csrf_token"]
        changed = await client.patch("/v1/admin/routing", json={"stage_3": True}, headers={"x-csrf-token": token})
        assert changed.status_code == 200, changed.text


async def test_a_role_bounds_what_may_be_changed(aio: RunningGateway) -> None:
    wanted = {
        "viewer": {"/v1/admin/routing": 403, "/admin/api/teams": 403},
        "operator": {"/v1/admin/routing": 200, "/admin/api/teams": 403},
        "admin": {"/v1/admin/routing": 200, "/admin/api/teams": 201},
    }
    for role, statuses in wanted.items():
        async with with_user(aio, f"a-{role}", role) as client:  # type: ignore[arg-type]
            page = await client.get(PAGE)
            assert page.status_code == 200
            token = {"x-csrf-token": forms_of(page)["/admin/logout"]["fields"]["csrf_token"]}
            routed = await client.patch("/v1/admin/routing", json={"stage_3": True}, headers=token)
            made = await client.post("/admin/api/teams", json={"name": f"of {role}"}, headers=token)
            assert {"/v1/admin/routing": routed.status_code, "/admin/api/teams": made.status_code} == statuses, role


async def test_changes_are_written_down_with_who_made_them(aio: RunningGateway) -> None:
    async with with_user(aio, "olga", "admin") as client:
        token = forms_of(await client.get(PAGE))["/admin/logout"]["fields"]["csrf_token"]
        await client.post("/admin/api/teams", json={"name": "of olga"}, headers={"x-csrf-token": token})
    async with aio.parts.database.connect() as connection:
        rows = await connection.execute(select(audit_events).order_by(audit_events.c.audit_event_id))
    events = {(row["action"], row["subject"]): row for row in rows.mappings()}
    assert events["user.added", "olga"]["details"] == {"role": [None, "admin"]}
    assert "user:olga" in {row["actor"] for key, row in events.items() if key[0] == "team.created"}
    assert PASSWORD not in str(events)


async def test_a_removed_user_is_out_and_a_changed_role_holds(aio: RunningGateway) -> None:
    database = aio.parts.database
    async with with_user(aio, "carl", "admin") as client:
        async with database.begin() as connection:
            await connection.execute(update(dashboard_users).values(role="viewer").filter_by(name="carl"))
        look_again(aio)
        assert "viewer" in (await client.get(PAGE)).text
        await remove_user(database, "carl", Order(actor="test", now=1.0))
        look_again(aio)
        assert (await client.get(PAGE)).status_code == 303


async def test_a_session_ends_with_the_key_that_began_it(aio: RunningGateway) -> None:
    admin = {"authorization": f"Bearer {ADMIN}"}
    order = {"name": "a clerk", "terms": {"scopes": ["viewer"]}}
    made = (await aio.http.post("/admin/api/keys", json=order, headers=admin)).json()
    async with browser(aio) as client:
        assert (await sign_in(client, made["key"])).status_code == 303
        assert (await client.get(PAGE)).status_code == 200
        await aio.http.post(f"/admin/api/keys/{made['key_id']}/revoke", json={}, headers=admin)
        assert (await client.get(PAGE)).status_code == 303


async def test_a_key_that_only_asks_for_answers_does_not_sign_in(aio: RunningGateway) -> None:
    admin = {"authorization": f"Bearer {ADMIN}"}
    made = (await aio.http.post("/admin/api/keys", json={"name": "an app"}, headers=admin)).json()
    async with browser(aio) as client:
        assert (await sign_in(client, made["key"])).status_code == 401


async def test_a_session_is_over_in_time(aio: RunningGateway) -> None:
    async with with_user(aio, "dora", "viewer") as client:
        async with aio.parts.database.begin() as connection:
            await connection.execute(update(dashboard_sessions).values(expires_at=1.0).filter_by(user_name="dora"))
        look_again(aio)
        assert (await client.get(PAGE)).status_code == 303


async def test_pages_let_a_browser_run_nothing_but_our_files(aio: RunningGateway) -> None:
    async with browser(aio) as client:
        for answer in (await client.get("/admin/login"), await sign_in(client, ADMIN), await client.get(PAGE)):
            policy = answer.headers["content-security-policy"]
            assert "default-src 'none'" in policy
            assert "unsafe" not in policy
            assert answer.headers["x-content-type-options"] == "nosniff"
            assert answer.headers["cache-control"] == "no-store"
            assert "<style" not in answer.text
            assert " style=" not in answer.text
            assert "onclick" not in answer.text


async def test_static_files_are_kept_by_browsers_and_small(aio: RunningGateway) -> None:
    page = (await aio.http.get("/admin/login")).text
    for ending in ("dashboard.css", "dashboard.js", "icon.svg"):
        path = next(part for part in page.split('"') if part.endswith(ending))
        answer = await aio.http.get(path)
        assert "immutable" in answer.headers["cache-control"]
        assert len(answer.content) < 30_000
    assert (await aio.http.get("/admin/static/x/nothing.js")).status_code == 404


async def test_a_session_that_no_key_and_no_user_began_opens_nothing(aio: RunningGateway) -> None:
    async with browser(aio, cookies={COOKIE: "from before there were keys"}) as client:
        async with aio.parts.database.begin() as connection:
            row = {"session_id": sha256(client.cookies[COOKIE].encode()).hexdigest(), "created_at": 1.0}
            await connection.execute(insert(dashboard_sessions).values(row | {"expires_at": 9e9}))
        assert (await client.get(PAGE)).status_code == 303
        assert (await client.get("/admin/api/requests")).status_code == 401


async def test_keys_keep_working_while_the_database_is_down(tmp_path: Path) -> None:
    away = Settings(
        data_dir=str(tmp_path), database_url="postgresql://missing@127.0.0.1:1/none", monitor=False,
        admin_keys=f"ann={ADMIN}",
    )  # fmt: skip
    async with running_gateway(away) as gateway, browser(gateway) as client:
        assert (await sign_in(client, ADMIN)).status_code == 303
        page = await client.get(PAGE)
        assert page.status_code == 503
        assert "The database is down" in page.text
        refused = await sign_in(client, PASSWORD, "olga")
        assert refused.status_code == 503
    async with running_gateway(away) as gateway, browser(gateway, cookies={COOKIE: "unknown"}) as client:
        assert (await client.get(PAGE)).status_code == 503
