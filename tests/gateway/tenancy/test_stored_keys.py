"""Stored keys over HTTP: shown once, hashed, valid for their scopes, and ended everywhere."""

from pathlib import Path
from typing import Any

import httpx
import pytest
import pytest_asyncio
from sqlalchemy import select

from gateway.base.settings import Settings
from gateway.base.stores.database import DatabaseTime
from gateway.tenancy.changes import Order
from gateway.tenancy.keys.key_commands import revoke_key
from migrations.tables.audit import audit_events
from migrations.tables.tenancy import api_keys
from quality.store.database import open_database
from tests.support.administrator import bearer
from tests.support.app import RunningGateway, StartApp, running_gateway
from tests.support.database import migrated

pytestmark = pytest.mark.asyncio(loop_scope="module")
ADMIN = "test-admin-07158b06243a3ef4b8e7746013aa659a"
HELLO = [{"role": "user", "content": "Say hello."}]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def running(tmp_path_factory: pytest.TempPathFactory, module_app: StartApp) -> RunningGateway:
    data = str(tmp_path_factory.mktemp("data"))
    return await module_app(data_dir=data, admin_keys=f"ann={ADMIN}", keys_poll_seconds=600)


@pytest.fixture
def aio(running: RunningGateway) -> RunningGateway:
    running.reset()
    return running


async def order(aio: RunningGateway, method: str, path: str, body: Any = None, key: str = ADMIN) -> httpx.Response:
    return await aio.http.request(method, f"/admin/api{path}", json=body, headers=bearer(key))


async def made(aio: RunningGateway, name: str, team: str | None = None, **terms: Any) -> dict[str, Any]:
    answer = await order(aio, "POST", "/keys", {"name": name, "team": team, "terms": terms})
    assert answer.status_code == 201, answer.text
    issued: dict[str, Any] = answer.json()
    return issued


async def asked(aio: RunningGateway, key: str, model: str = "tier-1", **changes: Any) -> httpx.Response:
    return await aio.ask(key=key, model=model, **changes)


async def refusal(aio: RunningGateway, key: str, **changes: Any) -> tuple[int, str]:
    answer = await asked(aio, key, **changes)
    return answer.status_code, answer.json()["error"]["code"]


async def recorded(aio: RunningGateway, answer: httpx.Response, key: str) -> httpx.Response:
    request_id = answer.headers["x-aio-decision-id"]
    await aio.serving.records.recorded(request_id)  # type: ignore[attr-defined]
    return await aio.http.get(f"/v1/requests/{request_id}", headers=bearer(key))


async def test_a_key_is_shown_once_and_only_its_hash_is_stored(aio: RunningGateway) -> None:
    issued = await made(aio, "shown once")
    secret = issued["key"]
    assert (await asked(aio, secret)).status_code == 200
    assert secret.startswith(issued["prefix"])
    listed = await order(aio, "GET", "/keys")
    shown = await order(aio, "GET", f"/keys/{issued['key_id']}")
    audit = await order(aio, "GET", "/transitions")
    for text in (listed.text, shown.text, audit.text):
        assert issued["prefix"] in text
        assert secret not in text
        assert "digest" not in text
    assert not _is_in_a_file(secret, Path(aio.serving.settings.data_dir))


def _is_in_a_file(text: str, folder: Path) -> bool:
    return any(text.encode() in file.read_bytes() for file in folder.rglob("*") if file.is_file())


async def test_a_record_goes_by_the_keys_id_and_no_other_key_sees_it(aio: RunningGateway) -> None:
    team = (await order(aio, "POST", "/teams", {"name": "research"})).json()["team_id"]
    one, other = await made(aio, "ada", team="research"), await made(aio, "bob")
    answer = await asked(aio, one["key"])
    shown = await recorded(aio, answer, one["key"])
    assert (shown.json()["key_id"], shown.json()["replica"]) == (one["key_id"], aio.access.tenancy.replica)
    assert (await recorded(aio, answer, other["key"])).status_code == 404
    # The tenant of a tier's prefix cache: a team shares it, others do not.
    await asked(aio, other["key"])
    assert [request.salt for request in aio.tier(1).requests] == [team, other["key_id"]]


@pytest.mark.parametrize(
    "header", ["", "Bearer", "Bearer  x", "Basic abc", "Bearer sk-aio-", "Bearer \xff\xfe", "x" * 9000]
)
async def test_malformed_keys_are_refused(aio: RunningGateway, header: str) -> None:
    await made(aio, f"guard {abs(hash(header))}")
    answer = await aio.http.get("/v1/models", headers=[(b"authorization", header.encode("latin-1"))])
    assert (answer.status_code, answer.json()["error"]["code"]) == (401, "invalid_api_key")
    assert answer.headers["www-authenticate"] == "Bearer"


async def test_a_wrong_secret_with_a_known_prefix_is_refused(aio: RunningGateway) -> None:
    issued = await made(aio, "prefixed")
    assert await refusal(aio, issued["prefix"] + "A" * 35) == (401, "invalid_api_key")


async def test_a_revoked_key_is_refused_at_once_and_for_good(aio: RunningGateway) -> None:
    issued = await made(aio, "leaver")
    assert (await order(aio, "POST", "/keys/leaver/revoke", {"reason": "left"})).json() == {"key_id": issued["key_id"]}
    assert await refusal(aio, issued["key"]) == (401, "invalid_api_key")
    for again in (("PATCH", "/keys/leaver", {"terms": {}}), ("POST", "/keys/leaver/rotate", {})):
        assert (await order(aio, *again)).status_code == 409
    taken = await order(aio, "POST", "/keys", {"name": "leaver"})
    assert (taken.status_code, taken.json()["error"]["param"]) == (409, "name")


async def test_a_key_expires_by_the_database_clock(aio: RunningGateway) -> None:
    now = aio.access.tenancy.clock.now()
    issued = await made(aio, "guest", expires_at=now + 3600)
    assert (await asked(aio, issued["key"])).status_code == 200
    past = await order(aio, "PATCH", "/keys/guest", {"terms": {"expires_at": now - 1}})
    assert (past.status_code, past.json()["error"]["param"]) == (400, "terms.expires_at")
    clock = aio.access.tenancy.clock
    clock._ahead += 3601
    assert await refusal(aio, issued["key"]) == (401, "invalid_api_key")
    clock._ahead -= 3601


async def test_both_secrets_are_good_during_the_grace_of_a_rotation_and_the_old_one_is_not_after_it(
    aio: RunningGateway,
) -> None:
    first = await made(aio, "rotated")
    second = (await order(aio, "POST", "/keys/rotated/rotate", {"grace_seconds": 60})).json()
    assert second["key"] != first["key"]
    assert [(await asked(aio, issued["key"])).status_code for issued in (first, second)] == [200, 200]
    clock = aio.access.tenancy.clock
    clock._ahead += 61
    assert await refusal(aio, first["key"]) == (401, "invalid_api_key")
    assert (await asked(aio, second["key"])).status_code == 200
    clock._ahead -= 61


async def test_scopes_bound_what_a_key_is_good_for(aio: RunningGateway) -> None:
    admin = await made(aio, "operator", scopes=["admin"])
    viewer = await made(aio, "onlooker", scopes=["viewer"])
    user = await made(aio, "user")
    assert await refusal(aio, viewer["key"]) == (403, "insufficient_scope")
    for key, reads, writes in ((admin, 200, 201), (viewer, 200, 403), (user, 403, 403)):
        assert (await order(aio, "GET", "/keys", key=key["key"])).status_code == reads
        written = await order(aio, "POST", "/teams", {"name": f"of {key['name']}"}, key=key["key"])
        assert written.status_code == writes
    event = (await order(aio, "GET", "/transitions?action=team.created")).json()["rows"][0]
    assert (event["actor"], event["details"]) == (admin["key_id"], {"name": "of operator"})


async def test_a_key_gets_only_the_tiers_it_may_use(aio: RunningGateway) -> None:
    issued = await made(aio, "cheap", tiers=[1, 2], models=["smollm2-int4", "tier-2", "tier-3"])
    aio.classifier.p_ok = [0.0, 0.0, 0.0, 1.0]
    for quality in ("0.5", "1"):
        answer = await aio.http.post(
            "/v1/chat/completions",
            json={"model": "auto", "messages": HELLO},
            headers=bearer(issued["key"]) | {"x-aio-quality": quality},
        )
        assert int(answer.headers["x-aio-tier"]) <= 2
    for model in ("tier-3", "tier-4"):
        assert await refusal(aio, issued["key"], model=model) == (403, "model_not_found")
    above = await aio.http.post(
        "/v1/chat/completions",
        json={"model": "auto", "messages": HELLO},
        headers=bearer(issued["key"]) | {"x-aio-min-tier": "3"},
    )
    assert (above.status_code, above.json()["error"]["param"]) == (403, "model")


async def test_models_that_a_key_may_not_use_are_not_listed(aio: RunningGateway) -> None:
    issued = await made(aio, "shown few", tiers=[1, 3])
    listed = (await aio.http.get("/v1/models", headers=bearer(issued["key"]))).json()["data"]
    # smollm2-bf16 is tier 2's name first, which this key may not use.
    assert [card["id"] for card in listed] == ["auto", "tier-1", "tier-3", "smollm2-int4", "smollm2-embed"]
    assert [tier["tier"] for tier in listed[0]["x_aio"]] == [1, 3]
    hidden = await aio.http.get("/v1/models/tier-4", headers=bearer(issued["key"]))
    assert (hidden.status_code, hidden.json()["error"]["code"]) == (404, "model_not_found")
    assert (await aio.http.get("/v1/models/tier-3", headers=bearer(issued["key"]))).status_code == 200


async def test_a_tier_that_fails_is_not_replaced_by_one_that_the_key_may_not_use(aio: RunningGateway) -> None:
    issued = await made(aio, "first only", tiers=[1])
    aio.tier(1).fail_at = 0
    assert (await asked(aio, issued["key"], model="auto")).status_code >= 500
    assert not any(aio.tier(number).requests for number in (2, 3, 4))


async def test_a_key_without_consent_leaves_no_texts(aio: RunningGateway) -> None:
    issued = await made(aio, "private", consent=False)
    shown = await recorded(aio, await asked(aio, issued["key"]), issued["key"])
    assert (shown.json()["messages"], shown.json()["answer"]) == (None, None)


async def test_the_most_urgent_class_of_a_key_bounds_its_requests(aio: RunningGateway) -> None:
    issued = await made(aio, "patient", priority_ceiling=2)
    assert (await asked(aio, issued["key"], priority=0)).status_code == 200
    assert aio.tier(1).requests[0].priority == 2


async def test_a_key_bounds_what_its_requests_may_be_predicted_to_cost(aio: RunningGateway) -> None:
    issued = await made(aio, "thrifty", max_cost_usd_per_request=1e-9)
    answer = await asked(aio, issued["key"], model="tier-4")
    assert (answer.status_code, answer.json()["error"]["code"]) == (400, "no_tier_allowed")
    headers = bearer(issued["key"]) | {"x-aio-max-cost": "1"}
    body = {"model": "tier-4", "messages": HELLO}
    answer = await aio.http.post("/v1/chat/completions", json=body, headers=headers)
    assert (answer.status_code, answer.json()["error"]["code"]) == (400, "no_tier_allowed")

    terms = {"max_cost_usd_per_request": 1.0}
    await order(aio, "PATCH", "/keys/thrifty", {"terms": terms, "reason": "grew"})
    assert (await asked(aio, issued["key"], model="tier-4")).status_code == 200
    headers |= {"x-aio-max-cost": "0.000000001"}
    answer = await aio.http.post("/v1/chat/completions", json=body, headers=headers)
    assert (answer.status_code, answer.json()["error"]["code"]) == (400, "no_tier_allowed")


async def test_a_change_applies_at_once_and_is_recorded(aio: RunningGateway) -> None:
    issued = await made(aio, "changed", tiers=[1])
    changed = await order(aio, "PATCH", "/keys/changed", {"terms": {"tiers": None, "consent": True}, "reason": "grew"})
    assert changed.json() == {"changed": {"tiers": [[1], None]}}
    assert (await asked(aio, issued["key"], model="tier-4")).status_code == 200
    event = (await order(aio, "GET", "/transitions?action=key.changed")).json()["rows"][0]
    assert (event["subject"], event["actor"], event["reason"]) == (issued["key_id"], "ann", "grew")


@pytest.mark.parametrize(
    ("method", "path", "body", "status", "param"),
    [
        ("POST", "/keys", {"name": "a\nb"}, 400, "name"),
        ("POST", "/keys", {"name": "key_1"}, 400, "name"),
        ("POST", "/keys", {"name": "x", "terms": {"tiers": [9]}}, 400, "terms.tiers[0]"),
        ("POST", "/keys", {"name": "x", "terms": {"requests_per_minute": 0}}, 400, "terms.requests_per_minute"),
        ("POST", "/keys", {"name": "x", "terms": {"colour": 1}}, 400, "terms.colour"),
        ("POST", "/keys", {"name": "x", "team": "missing"}, 404, "team"),
        ("PATCH", "/keys/missing", {"terms": {}}, 404, "key"),
        ("GET", "/keys/missing", None, 404, "key"),
        ("PUT", "/budgets", {"kind": "key", "subject": "missing", "period": "day", "amount_usd": 1}, 404, "subject"),
        ("PUT", "/budgets", {"kind": "key", "subject": "x", "period": "week", "amount_usd": 1}, 400, "period"),
        ("DELETE", "/budgets/none", None, 404, "budget_id"),
    ],
)
async def test_orders_that_cannot_be_are_refused_by_name(
    aio: RunningGateway, method: str, path: str, body: Any, status: int, param: str
) -> None:
    answer = await order(aio, method, path, body)
    assert (answer.status_code, answer.json()["error"]["param"]) == (status, param), answer.text


async def test_what_another_process_changed_is_seen_with_the_next_poll(aio: RunningGateway) -> None:
    issued = await made(aio, "polled")
    engine = open_database(aio.serving.settings.database)
    await revoke_key(engine, issued["key_id"], Order(actor="elsewhere", now=1.0))
    await engine.dispose()
    assert (await asked(aio, issued["key"])).status_code == 200
    assert await aio.access.tenancy.directory.load()
    assert await refusal(aio, issued["key"]) == (401, "invalid_api_key")
    assert not await aio.access.tenancy.directory.load()


async def test_the_last_key_revoked_opens_nothing_and_neither_does_a_database_that_is_away(settings: Settings) -> None:
    async with running_gateway(settings) as open_gateway:
        assert (await open_gateway.http.get("/v1/models")).status_code == 200
        issued = (await open_gateway.http.post("/admin/api/keys", json={"name": "one"})).json()
        assert (await open_gateway.http.get("/v1/models")).status_code == 401
        assert (await open_gateway.http.get("/v1/models", headers=bearer(issued["key"]))).status_code == 200
    away = Settings(data_dir=settings.data_dir, database_url="postgresql://missing@127.0.0.1:1/none", monitor=False)
    async with running_gateway(away) as closed:
        answer = await closed.http.get("/v1/models", headers=bearer(issued["key"]))
        assert (answer.status_code, answer.json()["error"]["code"]) == (503, "keys_unavailable")


async def test_keys_go_on_to_hold_while_the_database_is_away(
    aio: RunningGateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    issued = await made(aio, "steady")
    away = open_database("postgresql://missing@127.0.0.1:1/none")
    monkeypatch.setattr(aio.access.tenancy.directory, "_engine", away)
    with pytest.raises(OSError):
        await aio.access.tenancy.directory.load()
    assert (await asked(aio, issued["key"])).status_code == 200
    await away.dispose()


async def test_a_step_of_this_machines_clock_ends_no_key(postgres_url: str) -> None:
    async with migrated(postgres_url) as engine:
        stepped, ticks = [1e9], [5.0]
        clock = DatabaseTime(lambda: stepped[0], lambda: ticks[0])
        async with engine.connect() as connection:
            read = await clock.look(connection)
        stepped[0], ticks[0] = 5e9, 6.0
        assert clock.now() == pytest.approx(read + 1)


async def test_hashes_and_audit_rows_are_written_together(aio: RunningGateway) -> None:
    engine = aio.serving.database
    async with engine.connect() as connection:
        keys = set((await connection.execute(select(api_keys.c.key_id))).scalars())
        query = select(audit_events.c.subject).where(audit_events.c.action == "key.created")
        assert set((await connection.execute(query)).scalars()) == keys
