"""The pages of keys and budgets: made, changed, rotated and revoked by admins only, and a secret is shown once."""

import re
import time
from typing import Any

import httpx
import pytest

from gateway.tenancy.budgets.lease_book import QUOTA_EXCEEDED
from quality.store.queries import RefusalCount, RefusalKind, add_refused
from tests.gateway.operations.dashboard.browsing import forms_of, submit, with_user
from tests.gateway.operations.dashboard.rows import insert_requests
from tests.support.app import RunningGateway

pytestmark = pytest.mark.asyncio(loop_scope="module")
ADMIN = "test-admin-07158b06243a3ef4b8e7746013aa659a"
SETTINGS = {"admin_keys": f"ann={ADMIN}"}
PAGE = "/admin/keys"
CHAT = {"model": "tier-1", "messages": [{"role": "user", "content": "Hello"}]}


def secret_in(page: httpx.Response) -> str:
    assert page.status_code == 200, page.text
    return page.text.split('aria-label="The key">')[1].split("<")[0]


async def made(admin: httpx.AsyncClient, name: str, **fields: str) -> tuple[str, str]:
    """Return the secret and the id of a new key."""
    issued = await submit(admin, await admin.get(PAGE), PAGE, name=name, scopes="inference", **fields)
    return secret_in(issued), issued.text.split('href="/admin/keys/')[1].split('"')[0]


async def status_with(aio: RunningGateway, secret: str) -> int:
    answer = await aio.http.post("/v1/chat/completions", json=CHAT, headers={"authorization": f"Bearer {secret}"})
    return answer.status_code


async def stored(aio: RunningGateway, key_id: str) -> dict[str, Any]:
    answer = await aio.http.get(f"/admin/api/keys/{key_id}", headers={"authorization": f"Bearer {ADMIN}"})
    row: dict[str, Any] = answer.json()["key"]
    return row


async def test_an_empty_installation_says_how_to_make_a_key(admin: httpx.AsyncClient) -> None:
    page = await admin.get(PAGE)
    assert page.status_code == 200
    assert "No key has been made yet." in page.text
    assert "No budget limits spending." in page.text


async def test_a_key_is_made_with_its_bounds_shown_once_and_works(
    aio: RunningGateway, admin: httpx.AsyncClient
) -> None:
    await submit(admin, await admin.get(PAGE), "/admin/teams", name="research")
    secret, key_id = await made(
        admin, "ada", team="research", tiers="1, 2", requests_per_minute="90", consent="false", priority_ceiling="1"
    )
    assert await status_with(aio, secret) == 200
    row = await stored(aio, key_id)
    assert (row["tiers"], row["requests_per_minute"], row["consent"], row["tokens_per_minute"]) == (
        [1, 2],
        90,
        False,
        None,
    )
    for path in (PAGE, f"{PAGE}/{key_id}", "/admin/api/keys?format=csv"):
        shown = await admin.get(path)
        assert "ada" in shown.text
        assert secret not in shown.text
    assert "research" in (await admin.get(f"{PAGE}/{key_id}")).text


async def test_only_what_the_form_changed_is_changed(aio: RunningGateway, admin: httpx.AsyncClient) -> None:
    _, key_id = await made(admin, "bob", concurrency="4", tiers="1", expires_at="2099-01-02T03:04")
    page, path = await admin.get(f"{PAGE}/{key_id}"), f"{PAGE}/{key_id}"
    before = await stored(aio, key_id)
    shown = forms_of(page)[path]["fields"] | {"scopes": "inference", "consent": "true", "priority_ceiling": "0"}
    sent = await admin.post(path, data=shown | {"concurrency": "", "tokens_per_minute": "1000", "reason": "more"})
    assert sent.status_code == 303, sent.text
    after = await stored(aio, key_id)
    changed = {name for name in after if after[name] != before[name]} - {"revision"}
    assert changed == {"concurrency", "tokens_per_minute"}
    assert (after["concurrency"], after["tokens_per_minute"]) == (None, 1000)
    again = await admin.post(path, data=shown | {"concurrency": "", "was.concurrency": "", "reason": ""})
    assert again.status_code == 303
    assert (await stored(aio, key_id))["tokens_per_minute"] == 1000


async def test_a_rotated_secret_goes_on_for_its_hours_and_a_revoked_key_ends(
    aio: RunningGateway, admin: httpx.AsyncClient
) -> None:
    old, key_id = await made(admin, "eve")
    path = f"{PAGE}/{key_id}"
    new = secret_in(await submit(admin, await admin.get(path), f"{path}/rotate", hours="1"))
    assert [await status_with(aio, secret) for secret in (old, new)] == [200, 200]
    newest = secret_in(await submit(admin, await admin.get(path), f"{path}/rotate", hours="0"))
    assert [await status_with(aio, secret) for secret in (new, newest)] == [401, 200]
    revoked = await submit(admin, await admin.get(path), f"{path}/revoke", reason="left")
    assert revoked.status_code == 303
    assert await status_with(aio, newest) == 401
    page = await admin.get(path)
    assert "revoked" in page.text
    assert f"{path}/revoke" not in forms_of(page)
    events = (await admin.get("/admin/api/transitions?limit=3")).json()["rows"]
    assert (events[0]["actor"], events[0]["reason"]) == ("ann", "left")


async def test_the_page_of_a_key_pauses_it_and_then_offers_to_resume_it(
    aio: RunningGateway, admin: httpx.AsyncClient
) -> None:
    secret, key_id = await made(admin, "kim")
    path = f"{PAGE}/{key_id}"
    for verb, other, state, status in (("pause", "resume", "paused", 401), ("resume", "pause", "active", 200)):
        page = await admin.get(path)
        assert {name for name in (f"{path}/{verb}", f"{path}/{other}") if name in forms_of(page)} == {f"{path}/{verb}"}
        sent = await submit(admin, page, f"{path}/{verb}", reason="a loop")
        assert sent.status_code == 303, sent.text
        assert await status_with(aio, secret) == status
        for shown in (path, PAGE):
            assert f">{state}</" in (await admin.get(shown)).text
    events = (await admin.get("/admin/api/transitions?limit=2")).json()["rows"]
    assert [(event["action"], event["reason"]) for event in events] == [
        ("key.resumed", "a loop"), ("key.paused", "a loop")
    ]  # fmt: skip


async def test_a_budget_is_set_shown_with_what_is_spent_and_removed(
    aio: RunningGateway, admin: httpx.AsyncClient
) -> None:
    _, key_id = await made(admin, "fay")
    await submit(
        admin, await admin.get(PAGE), "/admin/budgets", kind="key", subject="fay", period="day", amount_usd="12.5"
    )
    for path in (PAGE, f"{PAGE}/{key_id}"):
        assert "$12.50" in (await admin.get(path)).text
    assert ",12.5," in (await admin.get("/admin/api/budgets?format=csv")).text
    remove = next(action for action in forms_of(await admin.get(PAGE)) if action.endswith("/remove"))
    assert (await submit(admin, await admin.get(PAGE), remove)).status_code == 303
    assert "$12.50" not in (await admin.get(PAGE)).text


async def test_each_key_shows_what_it_spends_and_when_it_was_used(
    aio: RunningGateway, admin: httpx.AsyncClient
) -> None:
    await submit(admin, await admin.get(PAGE), "/admin/teams", name="lab")
    _, busy = await made(admin, "busy", team="lab")
    _, idle = await made(admin, "idle")
    now = time.time()
    await insert_requests(
        aio.serving.database,
        {"request_id": "new", "created_at": now - 60, "key_id": busy, "cost_usd": 3.25},
        {"request_id": "old", "created_at": now - 40 * 86_400, "key_id": busy, "cost_usd": 100.0},
    )
    refused = RefusalKind(busy, 429, "budget_exceeded", "", "/v1/chat/completions")
    minutes = [(now - 7200, refused, RefusalCount(count=11)), (now - 2 * 86_400, refused, RefusalCount(count=500))]
    await add_refused(aio.serving.database, minutes)
    for kind, subject, amount in (("key", "busy", "50"), ("team", "lab", "20")):
        page = await admin.get(PAGE)
        budget = {"kind": kind, "subject": subject, "period": "total", "amount_usd": amount}
        await submit(admin, page, "/admin/budgets", **budget)
    aio.operations.live.key_use._fresh_until.clear()
    page = (await admin.get(PAGE)).text
    cells = cells_of(page, busy)
    assert cells["Spent, 30 days"] == "$3.25"
    # The budget of the team is spent first: $103.25 of $20.
    assert cells["Budget left"] == "$0.00of $20.00 in total of its team"
    assert cells["Last use (UTC)"] == time.strftime("%Y-%m-%d %H:%M:%S", time.gmtime(now - 60))
    assert cells["Refused, 24 h"] == "11"
    assert f"status=refused&amp;key_id={busy}" in page
    unused = {"Spent, 30 days": "$0.00", "Budget left": "no limit", "Last use (UTC)": "–", "Refused, 24 h": "0"}
    assert cells_of(page, idle).items() >= unused.items()


async def test_a_budget_too_low_for_a_request_is_not_called_spent(
    aio: RunningGateway, admin: httpx.AsyncClient
) -> None:
    _, key_id = await made(admin, "tiny")
    await submit(
        admin,
        await admin.get(PAGE),
        "/admin/budgets",
        kind="key",
        subject="tiny",
        period="total",
        amount_usd="0.000021",
    )
    refused = RefusalKind(key_id, 429, QUOTA_EXCEEDED, "", "/v1/chat/completions")
    await add_refused(aio.serving.database, [(time.time(), refused, RefusalCount(count=1, last_at=time.time()))])
    aio.operations.live.key_use._fresh_until.clear()
    page = (await admin.get(PAGE)).text
    cells = cells_of(page, key_id)
    assert cells["Budget left"] == "$0.000021of $0.000021 in total"
    assert cells["State"].startswith("budget too low$0.000021 left: less than its last request could cost; ")
    assert budget_of(page, "tiny")["Used"] == "0.0%"


async def test_what_is_used_of_a_budget_is_shown_with_digits_that_tell(
    aio: RunningGateway, admin: httpx.AsyncClient
) -> None:
    _, key_id = await made(admin, "careful")
    spent = {"request_id": "cheap", "created_at": time.time(), "key_id": key_id, "cost_usd": 0.006999}
    await insert_requests(aio.serving.database, spent)
    for period, amount, used in (
        ("total", "25", "0.028%"),
        ("month", "0.0112", "62.5%"),
        ("day", "0.006999", "100.0%"),
    ):
        budget = {"kind": "key", "subject": "careful", "period": period, "amount_usd": amount}
        await submit(admin, await admin.get(PAGE), "/admin/budgets", **budget)
        page = (await admin.get(PAGE)).text
        row = budget_of(page, "careful")
        assert (row["Spent"], row["Used"]) == ("$0.006999", used)
        # A name of a period that says no more than the period is left out.
        assert row["Period"].split()[0] == period
        assert (row["Period"] == period) == (period == "total")
    assert cells_of(page, key_id)["State"].startswith("budget spentstarts again on")


def budget_of(page: str, name: str) -> dict[str, str]:
    """Return the texts of the row of a key's newest budget by their columns."""
    row = page.partition(f"<tr><td>key {name}</td>")[2].partition("</tr>")[0]
    cells = re.findall(r'<td[^>]* data-head="([^"]*)">(.*?)</td>', row)
    return {head: re.sub(r"<[^>]*>", "", text) for head, text in cells}


def cells_of(page: str, key_id: str) -> dict[str, str]:
    """Return the texts of a key's row by their columns."""
    row = page.partition(f'<td><a href="{PAGE}/{key_id}">')[2].partition("</tr>")[0]
    cells = re.findall(r'<td[^>]* data-head="([^"]*)">(.*?)</td>', row)
    return {head: re.sub(r"<[^>]*>", "", text) for head, text in cells}


async def test_the_team_of_a_new_key_is_chosen_from_all_teams(admin: httpx.AsyncClient) -> None:
    for name in ("zoology", "botany"):
        await submit(admin, await admin.get(PAGE), "/admin/teams", name=name)
    form = (await admin.get(PAGE)).text.split('<form method="post" action="/admin/keys">')[1].split("</form>")[0]
    offered = re.findall(r'<option value="([^"]*)"', form.partition('name="team"')[2].partition("</select>")[0])
    assert offered[0] == ""
    assert offered[1:] == sorted(offered[1:])
    assert {"botany", "zoology"} <= set(offered)


async def test_making_a_key_asks_for_four_things_and_hides_the_rest(admin: httpx.AsyncClient) -> None:
    form = (await admin.get(PAGE)).text.split('<form method="post" action="/admin/keys">')[1].split("</form>")[0]
    shown, _, more = form.partition("<details>")
    assert re.findall(r'name="(\w+)"', shown) == ["csrf_token", "name", "team", "tiers", "expires_at"]
    advanced = set(re.findall(r'name="(\w+)"', more))
    assert {"scopes", "models", "requests_per_minute", "consent", "reason"} <= advanced


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({"name": ""}, "name"),
        ({"name": "<script>alert(1)</script>"}, "name"),
        ({"name": "gus", "tiers": "9"}, "tiers"),
        ({"name": "gus", "requests_per_minute": "few"}, "requests_per_minute"),
        ({"name": "gus", "expires_at": "2001-01-01T00:00"}, "expires_at"),
        ({"name": "gus", "team": "missing"}, "missing"),
        ({"name": "ada"}, "ada"),
    ],
)
async def test_what_cannot_be_is_refused_with_the_field(
    admin: httpx.AsyncClient, fields: dict[str, str], named: str
) -> None:
    refused = await submit(admin, await admin.get(PAGE), PAGE, scopes="inference", **fields)
    assert refused.status_code in (400, 404, 409), refused.text
    assert named in refused.text
    assert "<script>alert" not in refused.text


@pytest.mark.parametrize(
    ("action", "fields", "field"),
    [
        (PAGE, {"name": "hal", "team": "missing", "tiers": "1", "scopes": "viewer"}, "team"),
        (PAGE, {"name": "hal", "tiers": "9", "scopes": "viewer"}, "tiers"),
        ("/admin/budgets", {"subject": "nobody", "kind": "team", "period": "day", "amount_usd": "3"}, "subject"),
        ("/admin/budgets", {"subject": "ada", "kind": "key", "period": "day", "amount_usd": "lots"}, "amount_usd"),
        ("/admin/budgets", {"subject": "", "kind": "key", "period": "day", "amount_usd": "3"}, "subject"),
        ("/admin/teams", {"name": "<b>"}, "name"),
    ],
)
async def test_a_wrong_field_has_its_message_there_and_the_form_keeps_what_was_written(
    admin: httpx.AsyncClient, action: str, fields: dict[str, str], field: str
) -> None:
    refused = await submit(admin, await admin.get(PAGE), action, **fields)
    assert refused.status_code in (400, 404, 409)
    form = refused.text.split(f'<form method="post" action="{action}">')[1].split("</form>")[0]
    assert form.count("aria-invalid") == form.count('role="alert"') == 1
    place = form.split(f'name="{field}"')[1].split("</p>")[0]
    assert 'aria-invalid="true"' in place
    assert re.search(r'<small class="wrong" id="e-[\w-]+" role="alert">[^<]+</small>', place)
    assert refused.text.count("aria-invalid") == 1
    kept = forms_of(refused)[action]["fields"]
    assert {name: kept[name] for name in fields if name in kept} == {
        name: fields[name] for name in fields if name in kept
    }
    for name, value in (("kind", "team"), ("scopes", "viewer")):
        if fields.get(name) == value:
            assert re.search(rf'value="{value}" (selected|checked)', form)


async def test_a_wrong_term_of_a_key_has_its_message_there(admin: httpx.AsyncClient) -> None:
    _, key_id = await made(admin, "ivy")
    path = f"{PAGE}/{key_id}"
    refused = await submit(admin, await admin.get(path), f"{path}/rotate", hours="-3")
    assert refused.status_code == 400
    assert 'aria-invalid="true"' in refused.text.split('name="hours"')[1].split("</p>")[0]
    sent = {"scopes": "inference", "expires_at": "2001-01-01T00:00", "models": "m-1"}
    refused = await submit(admin, await admin.get(path), path, **sent)
    assert refused.status_code == 400
    assert 'aria-invalid="true"' in refused.text.split('name="expires_at"')[1].split("</p>")[0]
    assert forms_of(refused)[path]["fields"]["models"] == "m-1"
    assert forms_of(refused)[path]["fields"]["was.models"] == ""


async def test_only_an_admin_changes_anything(aio: RunningGateway) -> None:
    for role in ("viewer", "operator"):
        async with with_user(aio, f"keys-{role}", role) as client:  # type: ignore[arg-type]
            page = await client.get(PAGE)
            assert page.status_code == 200
            assert PAGE not in forms_of(page)
            token = forms_of(page)["/admin/logout"]["fields"]["csrf_token"]
            for path in (PAGE, "/admin/teams", "/admin/budgets", "/admin/budgets/b/remove", f"{PAGE}/k/revoke"):
                answer = await client.post(path, data={"csrf_token": token, "name": "x", "scopes": "inference"})
                assert answer.status_code == 403, path


async def test_a_form_without_its_token_changes_nothing(admin: httpx.AsyncClient) -> None:
    answer = await admin.post(PAGE, data={"name": "mallory", "scopes": "admin"})
    assert answer.status_code == 403
    assert "mallory" not in (await admin.get(PAGE)).text
