"""Privacy over HTTP: keys without consent, redaction of what is stored, and erasing a user."""

from pathlib import Path
from typing import Any

import msgspec
import pytest
import pytest_asyncio
from sqlalchemy import select

from gateway.base.settings import Settings, SettingsError
from gateway.tenancy.keys.key_secrets import ApiKeys
from migrations.tables.audit import audit_events
from migrations.tables.requests import requests
from quality.records.record import Record
from tests.polling import eventually
from tests.support.administrator import bearer
from tests.support.app import RunningGateway, StartApp, running_gateway

pytestmark = pytest.mark.asyncio(loop_scope="module")
ADMIN = "test-admin-07158b06243a3ef4b8e7746013aa659a"
KEYS = {"ada": "test-ada-f35eedd987dfd329c654d535ce9eb689", "bob": "test-bob-8d8aece77e484397d1dbc0b9da4ebce2"}
MESSAGES = [{"role": "user", "content": "My number is 4711."}]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def aio(tmp_path_factory: pytest.TempPathFactory, module_app: StartApp) -> RunningGateway:
    data = tmp_path_factory.mktemp("data")
    patterns = Path(data) / "patterns"
    patterns.write_text("4711\n", "utf-8")
    return await module_app(
        Settings(
            data_dir=str(data),
            drain_seconds=5,
            api_keys=",".join(f"{name}={key}" for name, key in KEYS.items()),
            private_keys="bob",
            admin_keys=f"ann={ADMIN}",
            redaction=str(patterns),
        )
    )


async def ask(aio: RunningGateway, name: str, path: str = "chat/completions", **changes: Any) -> Record:
    """Return the record of a request by the owner of a key."""
    body: dict[str, Any] = {"model": "tier-1"} | (
        {"prompt": "Once"} if path == "completions" else {"messages": MESSAGES}
    )
    answer = await aio.http.post(f"/v1/{path}", json=body | changes, headers=bearer(KEYS[name]))
    assert answer.status_code == 200, answer.text
    request_id = answer.json()["id"]
    # Redacted in a process of its own, and so a moment after the answer.
    record: Record = await eventually(lambda: aio.serving.records.find(request_id))
    return record


@pytest.mark.parametrize("path", ["chat/completions", "completions"])
async def test_texts_of_a_private_key_are_neither_stored_nor_offered(
    aio: RunningGateway, monkeypatch: pytest.MonkeyPatch, path: str
) -> None:
    offered: list[tuple[Record, object]] = []
    loop = aio.operations.quality_loop
    monkeypatch.setattr(
        await eventually(lambda: loop and loop.monitor),
        "offer",
        lambda record, compared, turn: offered.append((record, turn)),
    )
    # A caller's wish is not the tenant's consent.
    wishes = {"store": True} if path == "chat/completions" else {}

    record = await ask(aio, "bob", path, **wishes)

    assert (record.messages, record.answer) == (None, None)
    assert [(record.messages, turn) for record, turn in offered] == [(None, None)]
    assert record.completion_tokens > 0
    assert (await ask(aio, "ada", path)).messages is not None


async def test_stored_texts_are_redacted(aio: RunningGateway) -> None:
    record = await ask(aio, "ada")

    assert record.messages == [{"role": "user", "content": "My number is [redacted]."}]


async def test_a_long_text_is_redacted_too(aio: RunningGateway) -> None:
    long = [{"role": "user", "content": f"{'word ' * 40} 4711 {' ' * 4000}"}]
    answer = await aio.http.post(
        "/v1/chat/completions", json={"model": "tier-1", "messages": long}, headers=bearer(KEYS["ada"])
    )
    record = await eventually(lambda: aio.serving.records.find(answer.json()["id"]))
    assert record.messages == [{"role": "user", "content": long[0]["content"].replace("4711", "[redacted]")}]


async def test_a_shutdown_keeps_the_record_of_a_text_that_is_being_redacted_without_it(tmp_path: Path) -> None:
    patterns = tmp_path / "patterns"
    patterns.write_text(r"[\w.+-]+@[\w-]+\.[\w.]+", "utf-8")
    kept: list[Record] = []
    async with running_gateway(Settings(data_dir=str(tmp_path), drain_seconds=0, redaction=str(patterns))) as gateway:
        gateway.tier(1).max_context = 1_000_000
        gateway.serving.service._sinks.append(lambda answer, record: kept.append(record))
        choking = [{"role": "user", "content": "x" * 1_000_000}]
        answer = await gateway.http.post("/v1/chat/completions", json={"model": "tier-1", "messages": choking})
        assert (answer.status_code, kept) == (200, [])
    assert [(record.request_id, record.messages, record.answer) for record in kept] == [
        (answer.json()["id"], None, None)
    ]


async def test_an_erased_user_is_gone_and_who_erased_her_is_written_down(aio: RunningGateway) -> None:
    record = await ask(aio, "ada")
    other = await ask(aio, "bob")

    answer = await aio.http.delete("/admin/api/users/ada", params={"reason": "she asked"}, headers=bearer(ADMIN))

    assert answer.status_code == 200, answer.text
    erased = answer.json()
    assert erased["key_id"] == "ada"
    assert erased["rows"]["requests"] >= 1
    assert await aio.serving.records.find(record.request_id) is None
    assert await aio.serving.records.find(other.request_id) is not None
    async with aio.serving.database.connect() as connection:
        owners = set((await connection.execute(select(requests.c.key_id))).scalars())
        event = (await connection.execute(select(audit_events).where(audit_events.c.action == "user.erased"))).one()
    assert "ada" not in owners
    assert (event.actor, event.subject, event.reason) == ("ann", "ada", "she asked")


async def test_a_user_of_a_stored_key_is_erased_by_its_name_too_and_an_unknown_one_is_said_to_be(
    aio: RunningGateway,
) -> None:
    made = (await aio.http.post("/admin/api/keys", json={"name": "eve"}, headers=bearer(ADMIN))).json()
    asked = {"model": "tier-1", "messages": [{"role": "user", "content": "Hello"}], "max_tokens": 2}
    said = await aio.http.post("/v1/chat/completions", json=asked, headers=bearer(made["key"]))
    assert said.status_code == 200, said.text
    await aio.operations.readiness.ledger.flush()

    answer = await aio.http.delete("/admin/api/users/eve", headers=bearer(ADMIN))
    unknown = await aio.http.delete("/admin/api/users/evee", headers=bearer(ADMIN))

    assert (answer.json()["key_id"], answer.json()["rows"]["requests"]) == (made["key_id"], 1)
    assert unknown.status_code == 404
    assert "There is no key 'evee'" in unknown.json()["error"]["message"]
    assert (await aio.http.delete("/admin/api/users/eve", headers=bearer(ADMIN))).status_code == 200


async def test_users_cannot_erase_users(aio: RunningGateway) -> None:
    assert (await aio.http.delete("/admin/api/users/bob", headers=bearer(KEYS["bob"]))).status_code == 401


async def test_a_private_key_that_is_not_there_stops_the_start(settings: Settings) -> None:
    with pytest.raises(SettingsError, match="AIO_PRIVATE_KEYS: bbo"):
        ApiKeys.parse(f"bob={KEYS['bob']}", private="bbo")


async def test_limits_are_settings(settings: Settings) -> None:
    changed = msgspec.structs.replace(settings, text_days=0.0, retain_rows=10)
    async with running_gateway(changed) as gateway:
        limits = gateway.operations.privacy.retention.limits
    assert (limits.text_days, limits.days, limits.rows) == (0.0, 400.0, 10)
