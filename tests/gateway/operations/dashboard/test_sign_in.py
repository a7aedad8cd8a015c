"""Who can sign in to the dashboard, who cannot, and what a cookie alone cannot do."""

from hashlib import sha256
from pathlib import Path
from typing import Any

import httpx
import pytest
from sqlalchemy import insert, select, update

from gateway.base.settings import Settings
from gateway.operations.dashboard.sign_in.login import (
    DEVICE_SECONDS,
    device_cookie_name,
    known_device,
    new_device_cookie,
)
from gateway.operations.dashboard.sign_in.login_limit import (
    LIMITS,
    MOST_FAILURES,
    MOST_FAILURES_OF_A_NETWORK,
    MOST_RECORDED,
    WINDOW_SECONDS,
    OwnLoginLimits,
)
from gateway.tenancy.changes import Order
from gateway.tenancy.users.sessions import COOKIE
from gateway.tenancy.users.users import remove_user
from migrations.tables.audit import audit_events
from migrations.tables.tenancy import dashboard_sessions, dashboard_users
from tests.gateway.operations.dashboard.browsing import (
    PASSWORD,
    browser,
    forms_of,
    look_again,
    sign_in,
    submit,
    with_user,
)
from tests.support.app import RunningGateway, running_gateway

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.processes]
ADMIN = "test-admin-07158b06243a3ef4b8e7746013aa659a"
SETTINGS = {"admin_keys": f"ann={ADMIN}"}
PAGE = "/admin/requests"


@pytest.fixture(autouse=True)
def nothing_held_against_us(aio: RunningGateway) -> None:
    aio.app.state.pop(LIMITS, None)


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
        assert "Secure" not in (await client.get("/admin/login")).headers["set-cookie"]


async def test_over_tls_no_other_host_can_set_the_cookies(tmp_path: Path) -> None:
    settings = Settings(data_dir=str(tmp_path), monitor=False, admin_keys=f"ann={ADMIN}", trusted_proxies="127.0.0.1")
    tls = {"x-forwarded-proto": "https"}
    async with running_gateway(settings) as gateway, browser(gateway, headers=tls) as client:
        cookie = (await client.get("/admin/login")).headers["set-cookie"]
        assert cookie.startswith(f"__Host-{COOKIE}=")
        assert "Secure" in cookie
        assert "Path=/;" in f"{cookie};"
        # httpx sends cookies that are `Secure` over TLS only.
        kept = {"cookie": cookie.partition(";")[0]}
        form = forms_of(await client.get("/admin/login", headers=kept))["/admin/login"]["fields"]
        let_in = await client.post("/admin/login", data=form | {"secret": ADMIN}, headers=kept)
        assert let_in.status_code == 303
        session = let_in.headers["set-cookie"].partition(";")[0]
        assert (await client.get(PAGE, headers={"cookie": session})).status_code == 200
        # A cookie without the prefix may come from another host of the domain.
        planted = {"cookie": session.removeprefix("__Host-")}
        assert (await client.get(PAGE, headers=planted)).status_code == 303


async def test_signing_in_starts_a_session_that_cannot_be_planted(aio: RunningGateway) -> None:
    async with browser(aio) as client:
        await client.get("/admin/login")
        before = client.cookies[COOKIE]
        await sign_in(client, ADMIN)
        assert client.cookies[COOKIE] != before
        async with aio.serving.database.connect() as connection:
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


async def test_failures_of_an_account_are_limited_also_for_the_right_password(aio: RunningGateway) -> None:
    async with with_user(aio, "lena", "viewer"), browser(aio) as client:
        for _ in range(MOST_FAILURES):
            assert (await sign_in(client, "wrong", "lena")).status_code == 401
        refused = await sign_in(client, PASSWORD, "lena")
        assert refused.status_code == 429
        assert 0 < int(refused.headers["retry-after"]) <= WINDOW_SECONDS
        # Of the same address, but not of the same account.
        assert (await sign_in(client, PASSWORD, "ann")).status_code == 401


async def test_a_device_that_signed_in_before_is_kept_out_by_its_own_failures_alone(aio: RunningGateway) -> None:
    async with with_user(aio, "mona", "viewer") as known, browser(aio) as stranger:
        for number in range(MOST_FAILURES_OF_A_NETWORK):
            name = "mona" if number < MOST_FAILURES else f"guess {number}"
            assert (await sign_in(stranger, "wrong", name)).status_code == 401
        assert (await sign_in(stranger, PASSWORD, "mona")).status_code == 429
        assert (await sign_in(stranger, PASSWORD, "somebody else")).status_code == 429
        assert (await sign_in(known, PASSWORD, "mona")).status_code == 303
        for _ in range(MOST_FAILURES):
            assert (await sign_in(known, "wrong", "mona")).status_code == 401
        assert (await sign_in(known, PASSWORD, "mona")).status_code == 429


async def test_a_device_is_known_to_one_account_alone(aio: RunningGateway) -> None:
    async with with_user(aio, "nora", "viewer") as known, with_user(aio, "otto", "viewer") as other:
        cookie = known.cookies.get(device_cookie_name("nora"))
        assert cookie is not None
        async with browser(aio) as forger:
            forger.cookies.set(device_cookie_name("otto"), cookie, path="/admin/login")
            for _ in range(MOST_FAILURES):
                assert (await sign_in(forger, "wrong", "otto")).status_code == 401
            assert (await sign_in(forger, PASSWORD, "otto")).status_code == 429
        assert (await sign_in(other, PASSWORD, "otto")).status_code == 303


async def test_a_device_is_known_until_it_expires_or_the_password_changes() -> None:
    kept = "$argon2id$v=19$of-a-password"
    made = new_device_cookie("nora", kept, now=1000.0)
    assert known_device(made, "nora", kept, 1000.0) is not None
    for account, password, now in (
        ("otto", kept, 1000.0),
        ("nora", f"{kept}-that-was-changed", 1000.0),
        ("nora", None, 1000.0),
        ("nora", kept, 1000.0 + DEVICE_SECONDS),
    ):
        assert known_device(made, account, password, now) is None
    # What is stored for a user of a provider can be computed from its name there.
    assert known_device(new_device_cookie("nora", "oidc:abc", 1000.0), "nora", "oidc:abc", 1000.0) is None


async def test_the_right_key_signs_in_after_any_number_of_wrong_ones(aio: RunningGateway) -> None:
    async with browser(aio) as client:
        for _ in range(MOST_FAILURES_OF_A_NETWORK):
            assert (await sign_in(client, "wrong")).status_code == 401
        assert (await sign_in(client, "wrong")).status_code == 429
        assert (await sign_in(client, ADMIN)).status_code == 303


async def test_failures_of_all_addresses_fill_neither_log_nor_database(aio: RunningGateway) -> None:
    before = len(await sessions_in_trail(aio, 1000))
    limits = aio.app.state.setdefault(LIMITS, OwnLoginLimits())
    for _ in range(MOST_RECORDED - 1):
        limits.count(("record", "all"))
    async with browser(aio) as client:
        for _ in range(3):
            assert (await sign_in(client, "wrong")).status_code == 401
    assert len(await sessions_in_trail(aio, 1000)) == before + 1


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
    assert [(event["action"], event["actor"], event["subject"]) for event in await sessions_in_trail(aio, 25)] == [
        ("session.limited", "nobody", "key"),
        *[("session.refused", "nobody", "key")] * MOST_FAILURES_OF_A_NETWORK,
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
    limits = OwnLoginLimits(lambda: now)
    for _ in range(MOST_FAILURES):
        assert (await limits.begin(("account", "x"), ("network", "a"))).wait_seconds == 0
    refused = [await limits.begin(("account", "x"), ("network", network)) for network in "ab"]
    assert [attempt.wait_seconds for attempt in refused] == [WINDOW_SECONDS] * 2
    assert [attempt.is_news for attempt in refused] == [True, False]
    assert (await limits.begin(("account", "y"), ("network", "a"))).wait_seconds == 0
    # A success takes back itself, and nothing that others did.
    limits.take_back(await limits.begin(("account", "z"), ("network", "a")))
    assert (await limits.begin(("account", "x"))).wait_seconds == WINDOW_SECONDS
    left = MOST_FAILURES_OF_A_NETWORK - MOST_FAILURES - 1
    assert [(await limits.begin(("network", "a"))).wait_seconds > 0 for _ in range(left + 1)] == [False] * left + [True]
    now = WINDOW_SECONDS - 0.5
    assert (await limits.begin(("account", "x"))).wait_seconds == 1
    now = WINDOW_SECONDS
    assert (await limits.begin(("account", "x"))).wait_seconds == 0


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
        knobs = await client.patch("/v1/admin/knobs/routing", json={"judge_answers": True})
        assert (knobs.status_code, knobs.json()["error"]["code"]) == (403, "csrf_token_invalid")
        assert (await client.get(PAGE)).status_code == 200


async def test_json_endpoints_open_with_the_cookie_and_changes_with_its_token(aio: RunningGateway) -> None:
    async with browser(aio) as client:
        assert (await client.get("/admin/api/requests")).status_code == 401
        await sign_in(client, ADMIN)
        assert (await client.get("/admin/api/requests")).status_code == 200
        token = forms_of(await client.get(PAGE))["/admin/logout"]["fields"]["csrf_token"]
        changed = await client.patch(
            "/v1/admin/knobs/routing", json={"judge_answers": True}, headers={"x-csrf-token": token}
        )
        assert changed.status_code == 200, changed.text


async def test_a_role_bounds_what_may_be_changed(aio: RunningGateway) -> None:
    wanted = {
        "viewer": {"/v1/admin/knobs/routing": 403, "/admin/api/teams": 403},
        "operator": {"/v1/admin/knobs/routing": 200, "/admin/api/teams": 403},
        "admin": {"/v1/admin/knobs/routing": 200, "/admin/api/teams": 201},
    }
    for role, statuses in wanted.items():
        async with with_user(aio, f"a-{role}", role) as client:  # type: ignore[arg-type]
            page = await client.get(PAGE)
            assert page.status_code == 200
            token = {"x-csrf-token": forms_of(page)["/admin/logout"]["fields"]["csrf_token"]}
            routed = await client.patch("/v1/admin/knobs/routing", json={"judge_answers": True}, headers=token)
            made = await client.post("/admin/api/teams", json={"name": f"of {role}"}, headers=token)
            assert {"/v1/admin/knobs/routing": routed.status_code, "/admin/api/teams": made.status_code} == statuses, (
                role
            )


async def test_an_operator_changes_the_knobs_of_every_part_and_a_viewer_of_none(aio: RunningGateway) -> None:
    parts = ("core", "routing", "batches", "cache", "replicas")
    refused = {}
    for role in ("viewer", "operator"):
        async with with_user(aio, f"knobs-{role}", role) as client:
            token = {"x-csrf-token": forms_of(await client.get(PAGE))["/admin/logout"]["fields"]["csrf_token"]}
            answers = {part: await client.patch(f"/v1/admin/knobs/{part}", json={}, headers=token) for part in parts}
            refused[role] = {part for part, answer in answers.items() if answer.status_code == 403}
    assert refused == {"viewer": set(parts), "operator": set()}


async def test_changes_are_written_down_with_who_made_them(aio: RunningGateway) -> None:
    async with with_user(aio, "olga", "admin") as client:
        token = forms_of(await client.get(PAGE))["/admin/logout"]["fields"]["csrf_token"]
        await client.post("/admin/api/teams", json={"name": "of olga"}, headers={"x-csrf-token": token})
    async with aio.serving.database.connect() as connection:
        rows = await connection.execute(select(audit_events).order_by(audit_events.c.audit_event_id))
    events = {(row["action"], row["subject"]): row for row in rows.mappings()}
    assert events["user.added", "olga"]["details"] == {"role": [None, "admin"]}
    assert "user:olga" in {row["actor"] for key, row in events.items() if key[0] == "team.created"}
    assert PASSWORD not in str(events)


async def test_a_removed_user_is_out_and_a_changed_role_holds(aio: RunningGateway) -> None:
    database = aio.serving.database
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
        async with aio.serving.database.begin() as connection:
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
        async with aio.serving.database.begin() as connection:
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
