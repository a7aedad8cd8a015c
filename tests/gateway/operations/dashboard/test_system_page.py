"""The system page: every dependency in its current state."""

from typing import Any

import pytest
import pytest_asyncio
from sqlalchemy import text

from quality.store.database import head_revision
from tests.gateway.operations.dashboard.browsing import browser, sign_in
from tests.support.app import RunningGateway, StartApp
from tests.support.core import laptop_hash_core

pytestmark = pytest.mark.asyncio(loop_scope="module")
API = "/admin/api/system"


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def aio(tmp_path_factory: pytest.TempPathFactory, module_app: StartApp) -> RunningGateway:
    # The discard port has no listener.
    data = str(tmp_path_factory.mktemp("data"))
    return await module_app(
        core=laptop_hash_core, scripted=False, data_dir=data, redis_url="redis://:a-secret@127.0.0.1:9/0"
    )


def by_name(state: dict[str, Any]) -> dict[str, dict[str, Any]]:
    return {one["name"].split(" ")[0]: one for one in state["dependencies"]}


async def test_each_dependency_is_asked_and_one_that_is_away_says_so_without_its_address(aio: RunningGateway) -> None:
    answer = await aio.http.get(API)
    state = answer.json()
    found = by_name(state)
    assert {name: one["state"] for name, one in found.items()} == {
        "database": "ok", "Redis": "away", "core": "ok", "tier": "ok"
    }  # fmt: skip
    assert found["tier"]["detail"] == "takes requests; runs on the core cpu, on the CPU"
    assert "a-secret" not in answer.text
    assert found["Redis"]["policy"] == "Every process counts limits by itself."
    assert state["schema"] == {"current": head_revision(), "newest": head_revision()}
    assert 0 < state["disk"]["free"] <= state["disk"]["total"]


async def test_the_page_shows_the_same(aio: RunningGateway) -> None:
    async with browser(aio) as client:
        await sign_in(client)
        page = await client.get("/admin/system")
        assert page.status_code == 200
        for shown in ("database (SQLite)", "Redis", "core cpu", head_revision(), "Without it"):
            assert shown in page.text
        sheet = (await client.get(f"{API}?format=csv")).text
        assert sheet.startswith("part,name,state,detail,policy")
        for line in ("dependency,database", f"fact,schema,,{head_revision()}", "fact,catalogue,,laptop"):
            assert f"\n{line}" in sheet, line


async def test_an_older_schema_is_said(aio: RunningGateway) -> None:
    async with aio.serving.database.begin() as connection:
        await connection.execute(text("UPDATE alembic_version SET version_num = '0040'"))
    try:
        assert (await aio.http.get(API)).json()["schema"]["current"] == "0040"
        async with browser(aio) as client:
            await sign_in(client)
            assert "aio migrate" in (await client.get("/admin/system")).text
    finally:
        async with aio.serving.database.begin() as connection:
            await connection.execute(text("UPDATE alembic_version SET version_num = :v"), {"v": head_revision()})


async def test_a_stopped_core_is_away(aio: RunningGateway) -> None:
    for core in aio.operations.core_knobs.cores.values():
        await core.close()
    state = by_name((await aio.http.get(API)).json())
    assert (state["core"]["state"], state["tier"]["state"]) == ("away", "away")
    assert state["tier"]["detail"].startswith("takes no requests now; runs on the core cpu")
