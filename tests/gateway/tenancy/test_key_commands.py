"""Commands on keys and teams: what each changes, what it writes down, and what none can do."""

import asyncio

import pytest
from sqlalchemy import select
from sqlalchemy.ext.asyncio import AsyncEngine

from gateway.tenancy.changes import Order, TenancyError, UnknownSubjectError
from gateway.tenancy.keys.key_commands import (
    FIRST_KEY_NOTICE,
    GRACE_SECONDS,
    KeyTerms,
    change_key,
    create_first_admin_key,
    create_key,
    create_team,
    name_of_team,
    revoke_key,
    rotate_key,
    shown_key,
    team_named,
)
from migrations.tables.audit import audit_events

NOW = 1_900_000_000.0
ORDER = Order(actor="root", now=NOW, reason="why")


async def test_the_first_key_with_a_scope_is_the_first_one_ever(engine: AsyncEngine) -> None:
    first = await create_first_admin_key(engine, ORDER)
    assert first is not None
    assert first.name.startswith("first-admin-")
    assert (await shown_key(engine, first.name))["scopes"] == ["admin"]
    await revoke_key(engine, first.name, ORDER)
    assert await create_first_admin_key(engine, ORDER) is None
    notices = [
        (await create_key(engine, f"key of {number}", None, KeyTerms(scopes=scopes), ORDER)).notice
        for number, scopes in enumerate((["viewer"], ["viewer", "inference"], ["inference"], ["admin"]))  # type: ignore[arg-type]
    ]
    assert notices == [None, FIRST_KEY_NOTICE, None, None]


async def test_of_several_that_make_the_first_key_at_once_one_gets_it(engine: AsyncEngine) -> None:
    made = await asyncio.gather(*(create_first_admin_key(engine, ORDER) for _ in range(3)))
    assert sum(one is not None for one in made) == 1


async def test_each_command_changes_its_key_alone_and_is_written_down(engine: AsyncEngine) -> None:
    assert GRACE_SECONDS == 86_400
    team = await create_team(engine, "lab", ORDER)
    ada = await create_key(engine, "ada", "lab", KeyTerms(tiers=[1]), ORDER)
    eve = await create_key(engine, "eve", None, KeyTerms(), ORDER)
    before = await shown_key(engine, "eve")
    assert await change_key(engine, "ada", KeyTerms(tiers=None, strict=False), ORDER) == {"tiers": [[1], None]}
    assert await change_key(engine, ada.key_id, KeyTerms(strict=False), ORDER) == {}
    rotated = await rotate_key(engine, "ada", 60, ORDER)
    assert await revoke_key(engine, ada.key_id, ORDER) == ada.key_id
    shown = await shown_key(engine, ada.key_id)
    assert (shown["old_prefix"], shown["prefix"], shown["old_until"], shown["rotated_at"], shown["revoked_at"]) == (
        ada.prefix, rotated.prefix, NOW + 60, NOW, NOW
    )  # fmt: skip
    assert (shown["team_id"], shown["created_at"]) == (team, NOW)
    assert not {"digest", "old_digest", "revision"} & shown.keys()
    assert await shown_key(engine, eve.key_id) == before
    assert (await team_named(engine, "lab"), await team_named(engine, team)) == (team, team)
    assert (await name_of_team(engine, team), await name_of_team(engine, None)) == ("lab", None)
    columns = (audit_events.c.action, audit_events.c.subject, audit_events.c.actor, audit_events.c.reason)
    async with engine.connect() as connection:
        rows = (await connection.execute(select(audit_events).order_by(audit_events.c.audit_event_id))).mappings().all()
    assert [tuple(row[column.name] for column in columns) for row in rows] == [
        (action, subject, "root", "why")
        for action, subject in (
            ("team.created", team), ("key.created", ada.key_id), ("key.created", eve.key_id),
            ("key.changed", ada.key_id), ("key.rotated", ada.key_id), ("key.revoked", ada.key_id),
        )
    ]  # fmt: skip
    details = [row["details"] for row in rows]
    assert details[0] == {"name": "lab"}
    assert {name: details[1][name] for name in ("name", "team_id", "prefix", "tiers", "scopes")} == {
        "name": "ada", "team_id": team, "prefix": ada.prefix, "tiers": [1], "scopes": ["inference"],
    }  # fmt: skip
    assert details[3:] == [
        {"tiers": [[1], None]},
        {"prefix": rotated.prefix, "old_prefix": ada.prefix, "old_until": NOW + 60},
        {"name": "ada"},
    ]


async def test_what_no_command_can_do_is_refused(engine: AsyncEngine) -> None:
    await create_team(engine, "lab", ORDER)
    await create_key(engine, "ada", None, KeyTerms(), ORDER)
    with pytest.raises(TenancyError, match="there is a team 'lab' already"):
        await create_team(engine, "lab", ORDER)
    with pytest.raises(TenancyError, match="there is, or was, a key 'ada' already"):
        await create_key(engine, "ada", None, KeyTerms(), ORDER)
    with pytest.raises(UnknownSubjectError, match="there is no team 'none'"):
        await create_key(engine, "eve", "none", KeyTerms(), ORDER)
    for wrong, said in ((NOW, "has passed"), (5e9, "is after 2100-01-01 00:00:00 UTC")):
        with pytest.raises(TenancyError, match=said):
            await change_key(engine, "ada", KeyTerms(expires_at=wrong), ORDER)
        with pytest.raises(TenancyError, match=said):
            await create_key(engine, "eve", None, KeyTerms(expires_at=wrong), ORDER)
    await change_key(engine, "ada", KeyTerms(expires_at=4_102_444_800.0), ORDER)
    await revoke_key(engine, "ada", ORDER)
    for command in (change_key(engine, "ada", KeyTerms(), ORDER), rotate_key(engine, "ada", 1, ORDER)):
        with pytest.raises(TenancyError, match="was revoked, which is permanent"):
            await command
