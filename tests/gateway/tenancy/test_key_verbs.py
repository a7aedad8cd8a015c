"""A key is paused and resumed by the endpoint and the command; while it is paused, it is refused for every use."""

import json
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from click.testing import CliRunner
from sqlalchemy import select
from sqlalchemy.ext.asyncio import AsyncEngine

from gateway.cli import main
from gateway.tenancy.changes import Order, TenancyError, UnknownSubjectError
from gateway.tenancy.keys.key_commands import VERBS, KeyTerms, create_key, pause_key, resume_key, shown_key
from migrations.tables.audit import audit_events
from tests.support.administrator import ADMIN_NAME
from tests.support.app import RunningGateway, StartApp

ORDER = Order(actor="root", now=1_900_000_000.0, reason="why")
LATER = Order(actor="root", now=1_900_000_009.0)


@pytest_asyncio.fixture
async def aio(app: StartApp) -> RunningGateway:
    return await app(keys_poll_seconds=600)


async def actions(engine: AsyncEngine) -> list[tuple[str, str, str | None]]:
    columns = audit_events.c.action, audit_events.c.actor, audit_events.c.reason
    async with engine.connect() as connection:
        rows = (await connection.execute(select(*columns).order_by(audit_events.c.audit_event_id))).all()
    return [(row.action, row.actor, row.reason) for row in rows][1:]


async def test_each_verb_is_written_down_once_and_changes_nothing_where_the_key_is_so_already(
    engine: AsyncEngine,
) -> None:
    made = await create_key(engine, "ada", None, KeyTerms(), ORDER)
    before = await shown_key(engine, "ada")
    assert await resume_key(engine, "ada", ORDER) == made.key_id
    assert await pause_key(engine, "ada", ORDER) == made.key_id
    assert await pause_key(engine, made.key_id, LATER) == made.key_id
    assert await shown_key(engine, "ada") == before | {"paused_at": ORDER.now}, "since the first of the two"
    assert await resume_key(engine, "ada", LATER) == made.key_id
    assert await shown_key(engine, "ada") == before
    assert await actions(engine) == [("key.paused", "root", "why"), ("key.resumed", "root", None)]


@pytest.mark.parametrize("verb", VERBS, ids=lambda verb: str(verb.name))
async def test_no_verb_is_carried_out_for_a_revoked_key_or_an_unknown_one(engine: AsyncEngine, verb: Any) -> None:
    await create_key(engine, "ada", None, KeyTerms(), ORDER)
    (revoke,) = [one for one in VERBS if one.name == "revoke"]
    await revoke.command(engine, "ada", ORDER)
    with pytest.raises(TenancyError, match="was revoked, which is permanent"):
        await verb.command(engine, "ada", ORDER)
    with pytest.raises(UnknownSubjectError, match="there is no key 'eve'"):
        await verb.command(engine, "eve", ORDER)


async def test_a_paused_key_is_refused_at_once_with_its_reason_and_admitted_again(aio: RunningGateway) -> None:
    issued = await aio.order("POST", "/keys", {"name": "ada", "terms": {"scopes": ["inference", "viewer"]}})
    second = await aio.order("POST", "/keys/ada/rotate", {"grace_seconds": 60})
    chat = {"model": "tier-1", "messages": [{"role": "user", "content": "Hello"}]}

    async def answers(key: str) -> list[tuple[int, str]]:
        headers = {"authorization": f"Bearer {key}"}
        asked = await aio.http.post("/v1/chat/completions", json=chat, headers=headers)
        viewed = await aio.http.get("/admin/api/keys", headers=headers)
        errors = [answer.json().get("error", {}) for answer in (asked, viewed)]
        assert {error.get("code") for error in errors} in ({None}, {"invalid_api_key"})
        return [
            (answer.status_code, error.get("message", ""))
            for answer, error in zip((asked, viewed), errors, strict=True)
        ]

    assert await aio.order("POST", "/keys/ada/pause", {"reason": "a loop"}) == {"key_id": issued["key_id"]}
    for key in (issued["key"], second["key"]):
        for status, message in await answers(key):
            assert status == 401
            assert message.startswith("This API key is paused until an administrator resumes it.")
    await aio.order("POST", f"/keys/{issued['key_id']}/resume", {})
    for key in (issued["key"], second["key"]):
        assert [status for status, _ in await answers(key)] == [200, 200]
    events = (await aio.order("GET", "/transitions?limit=2"))["rows"]
    assert [(event["action"], event["actor"], event["reason"]) for event in events] == [
        ("key.resumed", ADMIN_NAME, None), ("key.paused", ADMIN_NAME, "a loop")
    ]  # fmt: skip


def test_the_command_pauses_and_resumes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AIO_DATA_DIR", str(tmp_path))

    def ran(*arguments: str) -> str:
        result = CliRunner().invoke(main, ["keys", *arguments])
        assert result.exit_code == 0, result.output
        return result.output

    key_id = json.loads(ran("create", "ada", "--json"))["key_id"]
    assert ran("pause", "ada", "--reason", "a loop") == (
        f"{key_id} is paused; running servers refuse it within seconds\n"
    )
    assert "paused" in ran("list")
    assert ran("resume", "ada") == f"{key_id} is resumed; running servers admit it within seconds\n"
    assert "paused" not in ran("list")
    assert json.loads(ran("pause", "ada", "--json")) == {"key_id": key_id}
