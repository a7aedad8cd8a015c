"""Many stored keys: read page by page, and afterwards only what changed."""

from pathlib import Path
from typing import Any

import msgspec
import pytest
from sqlalchemy import event, insert, select, update
from sqlalchemy.ext.asyncio import AsyncEngine

from gateway.base.settings import Settings
from gateway.base.stores.database import DatabaseTime
from gateway.tenancy.budgets.budget_commands import remove_budget, set_budget
from gateway.tenancy.changes import Order
from gateway.tenancy.keys.directory import PAGE, Directory, UnknownKeyError
from gateway.tenancy.keys.key_commands import KeyTerms, change_key, create_key, create_team, revoke_key, rotate_key
from gateway.tenancy.keys.key_secrets import keys_of, make_key
from migrations.tables.tenancy import api_keys, tenancy_state
from tiers.catalog.catalog import Catalog, CatalogInUse
from tiers.catalog.load import load_catalog

KEYS = 20_000
ORDER = Order(actor="root", now=1.0)


@pytest.fixture
def engine(any_engine: AsyncEngine) -> AsyncEngine:
    return any_engine


@pytest.fixture
def catalog() -> Catalog:
    return load_catalog("laptop")


class Reads:
    """Rows returned by each query for keys."""

    def __init__(self, engine: AsyncEngine) -> None:
        self.limits: list[int] = []
        self.counts = True
        event.listen(engine.sync_engine, "before_cursor_execute", self._note)

    def _note(self, _: Any, cursor: Any, statement: str, parameters: Any, *rest: Any) -> None:
        if self.counts and statement.startswith("SELECT") and "FROM api_keys" in statement:
            assert "LIMIT" in statement
            assert PAGE in tuple(parameters)
            self.limits.append(PAGE)

    def taken(self) -> int:
        count = len(self.limits)
        self.limits.clear()
        return count


def directory_of(engine: AsyncEngine, catalog: Catalog, folder: Path) -> Directory:
    none = keys_of(Settings())
    return Directory(
        engine,
        CatalogInUse(catalog),
        none,
        DatabaseTime(),
        marker=folder / "marker",
        open_at_first=True,
        may_be_open=True,
    )


async def stored(engine: AsyncEngine, count: int) -> list[str]:
    """Store this many keys, as restoring a backup would; return their secrets."""
    secrets, rows = [], []
    for number in range(count):
        made = make_key()
        secrets.append(made.key)
        rows.append(
            {
                "key_id": f"key_{number:016x}", "name": f"user {number}", "prefix": made.prefix,
                "digest": made.digest.hex(), "scopes": ["inference"], "consent": True, "priority_ceiling": 0,
                "created_at": 1.0, "requests_per_minute": number + 1,
            }
        )  # fmt: skip
    async with engine.begin() as connection:
        await connection.execute(insert(api_keys), rows)
        await connection.execute(update(tenancy_state).values(revision=tenancy_state.c.revision + 1))
    return secrets


def bearer(key: str) -> str:
    return f"Bearer {key}"


async def test_20000_keys_are_read_in_pages_and_then_only_what_changed(
    engine: AsyncEngine, catalog: Catalog, tmp_path: Path
) -> None:
    secrets = await stored(engine, KEYS)
    directory, reads = directory_of(engine, catalog, tmp_path), Reads(engine)
    assert await directory.load()
    assert reads.taken() == KEYS // PAGE + 1
    for number in (0, 999, 1000, KEYS - 1):
        caller = directory.inference_caller(bearer(secrets[number]))
        assert (caller.name, caller.allowance.requests_per_minute) == (f"user {number}", number + 1)
    reads.counts = False
    await revoke_key(engine, "user 7", ORDER)
    await change_key(engine, "user 8", KeyTerms(requests_per_minute=5), ORDER)
    reads.counts = True
    assert await directory.load()
    assert reads.taken() == 1
    with pytest.raises(UnknownKeyError, match="revoked"):
        directory.inference_caller(bearer(secrets[7]))
    assert directory.inference_caller(bearer(secrets[8])).allowance.requests_per_minute == 5
    assert directory.inference_caller(bearer(secrets[9])).allowance.requests_per_minute == 10
    assert not await directory.load()
    assert reads.taken() == 0


async def test_a_secret_that_a_later_rotation_ends_is_not_found_any_more(
    engine: AsyncEngine, catalog: Catalog, tmp_path: Path
) -> None:
    directory = directory_of(engine, catalog, tmp_path)
    first = await create_key(engine, "ada", None, KeyTerms(), ORDER)
    await directory.load()
    secrets = [first.key]
    for grace in (3600, 3600, 0):
        secrets.append((await rotate_key(engine, "ada", grace, Order(actor="root", now=4e9))).key)
        await directory.load()
    for ended in secrets[:2]:
        with pytest.raises(UnknownKeyError, match="Wrong"):
            directory.inference_caller(bearer(ended))
    assert directory.inference_caller(bearer(secrets[-1])).name == "ada"


async def test_a_changed_budget_reaches_the_keys_that_it_bounds(
    engine: AsyncEngine, catalog: Catalog, tmp_path: Path
) -> None:
    directory = directory_of(engine, catalog, tmp_path)
    await create_team(engine, "lab", ORDER)
    member = await create_key(engine, "ada", "lab", KeyTerms(), ORDER)
    alone = await create_key(engine, "bob", None, KeyTerms(), ORDER)
    await directory.load()

    async def bounds(secret: str) -> list[float]:
        await directory.load()
        return [budget.amount_usd for budget in directory.inference_caller(bearer(secret)).allowance.budgets]

    of_team = await set_budget(engine, "team", "lab", "day", 3.0, ORDER)
    assert (await bounds(member.key), await bounds(alone.key)) == ([3.0], [])
    of_key = await set_budget(engine, "key", "bob", "month", 2.0, ORDER)
    await set_budget(engine, "team", "lab", "day", 4.0, ORDER)
    assert (await bounds(member.key), await bounds(alone.key)) == ([4.0], [2.0])
    for budget in (of_team, of_key):
        await remove_budget(engine, budget, ORDER)
    assert (await bounds(member.key), await bounds(alone.key)) == ([], [])


async def test_a_database_that_was_put_back_is_read_afresh(
    engine: AsyncEngine, catalog: Catalog, tmp_path: Path
) -> None:
    directory = directory_of(engine, catalog, tmp_path)
    kept = await create_key(engine, "kept", None, KeyTerms(), ORDER)
    lost = await create_key(engine, "lost", None, KeyTerms(), ORDER)
    await directory.load()
    async with engine.begin() as connection:
        await connection.execute(api_keys.delete().where(api_keys.c.name == "lost"))
        await connection.execute(update(tenancy_state).values(revision=1))
        assert await connection.scalar(select(tenancy_state.c.revision)) == 1
    assert await directory.load()
    assert directory.inference_caller(bearer(kept.key)).name == "kept"
    with pytest.raises(UnknownKeyError):
        directory.inference_caller(bearer(lost.key))


async def test_another_catalogue_is_another_set_of_tiers_for_a_key(
    engine: AsyncEngine, catalog: Catalog, tmp_path: Path
) -> None:
    directory = directory_of(engine, catalog, tmp_path)
    made = await create_key(engine, "ada", None, KeyTerms(models=["smollm2-int4"]), ORDER)
    await directory.load()
    assert directory.inference_caller(bearer(made.key)).consent.tiers == {1}
    tiers = [tier for tier in catalog.tiers if tier.number != 1]
    directory._catalog.current = msgspec.structs.replace(catalog, tiers=tiers)
    await directory.renew()
    assert directory.inference_caller(bearer(made.key)).consent.tiers == frozenset()
