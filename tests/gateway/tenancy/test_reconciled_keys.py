"""The differences between a declaration and what is stored, one by one, and what carrying them out leaves."""

import secrets
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from sqlalchemy.ext.asyncio import AsyncEngine

from gateway.tenancy.budgets.budget_commands import set_budget
from gateway.tenancy.changes import Order
from gateway.tenancy.declared import Applied, DeclarationError, apply_declaration, differences, read_declaration
from gateway.tenancy.keys.key_commands import (
    BUDGETS,
    FIRST_KEY_NOTICE,
    KeyTerms,
    create_key,
    create_team,
    revoke_key,
    shown_key,
)
from tests.support.database import migrated

NOW = 1_900_000_000.0
ORDER = Order(actor="test", now=NOW)
ONE, TWO = secrets.token_hex(32), secrets.token_hex(32)
ENVIRON = {"ONE": ONE, "TWO": TWO}


class Stored:
    """A database, and the file that is applied to it."""

    def __init__(self, engine: AsyncEngine, file: Path) -> None:
        self.engine, self.file = engine, file

    def declared(self, text: str) -> Any:
        self.file.write_text(text)
        return read_declaration(self.file, frozenset({"static"}), ENVIRON)

    async def differs(self, text: str, **more: Any) -> list[tuple[str, str, str, dict[str, list[Any]]]]:
        """The differences, each as action, kind, name and what changes; then they are carried out."""
        declared = self.declared(text)
        planned = await differences(self.engine, declared, NOW, **more)
        done = await self.apply(text, **more)
        assert (done.changes, done.kept) == (planned.changes, planned.kept)
        assert (await differences(self.engine, declared, NOW, **more)).changes == []
        return [(one.action, one.kind, one.name, one.changed) for one in done.changes]

    async def apply(self, text: str, **more: Any) -> Applied:
        return await apply_declaration(
            self.engine, self.declared(text), ORDER, **{"grace_seconds": 60} | more  # type: ignore[arg-type]
        )  # fmt: skip

    async def refused(self, text: str) -> str:
        """The message, after the file's name."""
        with pytest.raises(DeclarationError) as error:
            await self.apply(text)
        message = str(error.value)
        assert message.startswith(str(self.file))
        return message.removeprefix(str(self.file))

    async def budgets(self) -> set[tuple[str, str, str, int]]:
        rows = (await BUDGETS.page(self.engine, {})).rows
        return {(row["subject_kind"], row["subject"], row["period"], row["amount_microusd"]) for row in rows}


@pytest_asyncio.fixture
async def stored(sqlite_url: str, tmp_path: Path) -> AsyncIterator[Stored]:
    async with migrated(sqlite_url) as engine:
        yield Stored(engine, tmp_path / "keys.toml")


def key(name: str = "ada", *lines: str) -> str:
    return "\n".join(["[[keys]]", f'name = "{name}"', *lines, ""])


async def test_a_new_key_differs_by_what_is_not_usual(stored: Stored) -> None:
    team = await create_team(stored.engine, "lab", ORDER)
    text = key("ada", 'team = "lab"', "tiers = [1]", "consent = true", "expires_at = 2099-12-31T10:00:00Z")
    assert await stored.differs(text) == [
        ("key.created", "key", "ada", {"team": [None, "lab"], "tiers": [None, [1]], "expires_at": [None, 4102394400.0]})
    ]
    row = await shown_key(stored.engine, "ada")
    assert (row["team_id"], row["tiers"], row["expires_at"], row["scopes"]) == (team, [1], 4102394400.0, ["inference"])
    assert await stored.differs(key("eve")) == [("key.created", "key", "eve", {})]


async def test_only_made_secrets_are_shown_and_the_first_key_is_said_to_be_it(stored: Stored) -> None:
    first = await stored.apply(key("boss", 'scopes = ["admin"]') + key("ada", 'secret_env = "ONE"') + key("eve"))
    assert [one.name for one in first.keys] == ["boss", "eve"]
    assert first.notice == FIRST_KEY_NOTICE
    assert (await stored.apply(key("bob"))).notice is None


async def test_a_stored_key_differs_by_its_terms_and_its_secret(stored: Stored) -> None:
    await stored.apply(key("ada", 'secret_env = "ONE"', "strict = true", "tiers = [1]"))
    before = await shown_key(stored.engine, "ada")
    changes = await stored.differs(key("ada", 'secret_env = "TWO"', "tiers = [2]", "expires_at = 2099-12-31"))
    after = await shown_key(stored.engine, "ada")
    assert changes == [
        ("key.changed", "key", "ada",
         {"tiers": [[1], [2]], "strict": [True, False], "expires_at": [None, 4102358400.0]}),
        ("key.rotated", "key", "ada", {"prefix": [before["prefix"], after["prefix"]]}),
    ]  # fmt: skip
    assert (after["tiers"], after["strict"], after["old_prefix"]) == ([2], False, before["prefix"])
    assert after["old_until"] == NOW + 60
    # Back to its own old secret; without one in the file, it keeps what it has.
    assert [one[0] for one in await stored.differs(key("ada", 'secret_env = "ONE"'))] == ["key.changed", "key.rotated"]
    assert await stored.differs(key("ada")) == []


async def test_a_secret_that_another_key_has_or_had_is_refused(stored: Stored) -> None:
    await stored.apply(key("ada", 'secret_env = "ONE"'))
    await stored.apply(key("ada", 'secret_env = "TWO"') + key("eve"))
    for name in ("eve", "new"):
        for variable in ("ONE", "TWO"):
            said = await stored.refused(key(name, f'secret_env = "{variable}"'))
            assert said == f", [[keys]] {name}, secret_env: is, or was, the secret of the key ada"


async def test_a_key_keeps_its_team(stored: Stored) -> None:
    for name in ("lab", "shop"):
        await create_team(stored.engine, name, ORDER)
    await stored.apply(key("ada", 'team = "lab"') + key("eve"))
    cases = {
        key("ada"): "ada, team: the key is of the team lab",
        key("ada", 'team = "shop"'): "ada, team: the key is of the team lab",
        key("eve", 'team = "lab"'): "eve, team: the key is without a team",
        key("eve", 'team = "none"'): "eve, team: the key is without a team",
    }
    for text, said in cases.items():
        assert await stored.refused(text) == f", [[keys]] {said}, which cannot be changed"


async def test_a_time_that_has_passed_may_stay_and_not_be_new(stored: Stored) -> None:
    declared = stored.declared(key("ada", "expires_at = 2030-04-01"))
    later = Order(actor="test", now=NOW + 1e7)
    await apply_declaration(stored.engine, declared, ORDER, grace_seconds=0)
    assert (await apply_declaration(stored.engine, declared, later, grace_seconds=0)).changes == []
    said = await stored.refused(key("ada", "expires_at = 2029-01-01"))
    assert said.startswith(", [[keys]] ada, expires_at: expires_at 2029-01-01 00:00:00 UTC has passed")


TEAM = '[[teams]]\nname = "lab"\nbudgets = {{ {} }}\n'


async def test_budgets_of_teams_keys_and_keys_of_the_settings(stored: Stored) -> None:
    text = TEAM.format("day = 10, total = 30") + key("ada", "budgets = { month = 2.5 }")
    text += '[[settings_keys]]\nname = "static"\nbudgets = { day = 1e-6 }\n'
    assert await stored.differs(text) == [
        ("team.created", "team", "lab", {}),
        ("budget.set", "team", "lab", {"day": [None, 10.0]}),
        ("budget.set", "team", "lab", {"total": [None, 30.0]}),
        ("key.created", "key", "ada", {}),
        ("budget.set", "key", "ada", {"month": [None, 2.5]}),
        ("budget.set", "key", "static", {"day": [None, 1e-6]}),
    ]
    changed = TEAM.format("day = 12, total = 30") + key("ada", "budgets = { day = 2.5 }")
    assert await stored.differs(changed) == [
        ("budget.set", "team", "lab", {"day": [10.0, 12.0]}),
        ("budget.set", "key", "ada", {"day": [None, 2.5]}),
        ("budget.removed", "key", "ada", {"month": [2.5, None]}),
    ]
    ada = (await shown_key(stored.engine, "ada"))["key_id"]
    kinds = {(kind, period, amount) for kind, _, period, amount in await stored.budgets()}
    assert kinds == {
        ("team", "day", 12_000_000), ("team", "total", 30_000_000), ("key", "day", 2_500_000), ("key", "day", 1)
    }  # fmt: skip
    assert {subject for kind, subject, *_ in await stored.budgets() if kind == "key"} == {ada, "static"}


async def test_pruning_ends_what_the_file_does_not_name_but_administrators(stored: Stored) -> None:
    engine = stored.engine
    await create_team(engine, "lab", ORDER)
    for name in ("lab boss", "gone", "other", "last"):
        terms = KeyTerms(scopes=["admin"]) if name == "lab boss" else KeyTerms()
        await create_key(engine, name, None, terms, ORDER)
        await set_budget(engine, "key", name, "day", 1.0, ORDER)
    await revoke_key(engine, "gone", ORDER)
    await set_budget(engine, "team", "lab", "month", 2.0, ORDER)
    await set_budget(engine, "key", "static", "total", 3.0, ORDER, static=True)
    kept = key("last", "budgets = { day = 1 }") + key("ada", "budgets = { day = 4 }")
    assert [one[:3] for one in await stored.differs(kept)] == [
        ("key.created", "key", "ada"), ("budget.set", "key", "ada")
    ]  # fmt: skip
    changes = await stored.differs(kept, prune=True)
    assert changes[0] == ("key.revoked", "key", "other", {})
    assert sorted(changes[1:]) == [
        ("budget.removed", "key", "gone", {"day": [1.0, None]}),
        ("budget.removed", "key", "other", {"day": [1.0, None]}),
        ("budget.removed", "key", "static", {"total": [3.0, None]}),
        ("budget.removed", "team", "lab", {"month": [2.0, None]}),
    ]
    assert (await stored.apply(kept, prune=True)).kept == ["lab boss"]
    assert {amount for *_, amount in await stored.budgets()} == {1_000_000, 4_000_000}
    assert len(await stored.budgets()) == 3
    assert (await shown_key(engine, "other"))["revoked_at"] == NOW
    assert (await shown_key(engine, "lab boss"))["revoked_at"] is None


async def test_a_start_makes_only_keys_whose_secret_is_given(stored: Stored) -> None:
    await create_team(stored.engine, "lab", ORDER)
    text = TEAM.format("day = 1") + key("ada", 'secret_env = "ONE"')
    assert [one.action for one in (await stored.apply(text, may_show=False)).changes] == ["budget.set", "key.created"]
    with pytest.raises(DeclarationError, match="eve, secret_env: is missing, and so is secret_hash"):
        await stored.apply(text + key("eve"), may_show=False)


@pytest.mark.parametrize(
    ("text", "said", "param"),
    [
        ("[[teams", ": is no TOML: ", None),
        ("teams = 3", ", [[teams]]: Expected `array`", None),
        ("keys = [3]", ", [[keys]] number 1: Expected `object`", None),
        ("keys = 3", ", [[keys]]: Expected `array`", None),
        ("team = 3", ": Object contains unknown field `team`", None),
        (key("ada") + key("a/b"), ", [[keys]] a/b, name: Expected `str` of 1 to 128 Latin letters", "name"),
        (key("ada", "strict = 1"), ", [[keys]] ada, strict: Expected `bool`", "strict"),
        (key("ada") + key("ada"), ", [[keys]] ada, name: occurs twice", "name"),
        ('[[settings_keys]]\nname = "s"\n', ", [[settings_keys]] s, name: is not a name in AIO_API_KEYS", "name"),
        (key("ada", 'secret_env = "NONE"'), ", [[keys]] ada, secret_env: the variable NONE is not set", "secret_env"),
        (key("ada", 'secret_hash = "sha256:0"'), ", [[keys]] ada, secret_hash: Expected `str` of sha", "secret_hash"),
        (key("ada", 'secret_env = "ONE"') + key("eve", 'secret_env = "ONE"'),
         ", [[keys]] eve, secret_env: is the secret of ada too", "secret_env"),
        (key("ada", 'team = "lab"'), ", [[keys]] ada, team: there is no team lab, neither stored nor declared", "team"),
    ],
)  # fmt: skip
async def test_an_error_names_the_table_the_entry_and_the_field(
    stored: Stored, text: str, said: str, param: str | None
) -> None:
    assert (await stored.refused(text)).startswith(said)
    with pytest.raises(DeclarationError) as error:
        await stored.apply(text)
    assert error.value.param == param


async def test_a_file_that_cannot_be_read_is_said(stored: Stored) -> None:
    with pytest.raises(DeclarationError) as error:
        read_declaration(stored.file, frozenset(), {})
    assert str(error.value) == f"{stored.file}: cannot be read (No such file or directory)"
