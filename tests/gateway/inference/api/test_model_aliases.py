"""A client keeps its model name: the catalogue's aliases and those of its key say what it stands for."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import anyio
import openai
import pytest
import pytest_asyncio

from tests.gateway.capable_tiers import CATALOG, Noting, capable_tiers
from tests.gateway.operations.dashboard.browsing import browser, sign_in, submit
from tests.support.app import RunningGateway
from tiers.catalog.load import load_catalog
from tiers.errors import CatalogError

pytestmark = pytest.mark.asyncio(loop_scope="module")
ALIASES = """
aliases = { "gpt-4o" = "auto", "gpt-4o-mini" = "tier-2", "claude" = "large", "/llms/a" = "tier-2", "llms//b/" = "auto" }
"""
HELLO: list[Any] = [{"role": "user", "content": "Say hello."}]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def capable(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[tuple[RunningGateway, Noting]]:
    async with capable_tiers(tmp_path_factory.mktemp("aliases"), ALIASES) as running:
        running[0].openai.api_key = await running[0].key("plain")
        yield running


@pytest.fixture
def gateway(capable: tuple[RunningGateway, Noting]) -> RunningGateway:
    return capable[0]


@pytest.fixture
def noting(capable: tuple[RunningGateway, Noting]) -> Noting:
    capable[1].bodies.clear()
    return capable[1]


async def client_with(gateway: RunningGateway, name: str, **terms: Any) -> openai.AsyncOpenAI:
    return gateway.openai.with_options(api_key=await gateway.key(name, **terms))


async def tier_of(client: openai.AsyncOpenAI, model: str) -> str:
    raw = await client.chat.completions.with_raw_response.create(model=model, messages=HELLO)
    return raw.headers["x-aio-tier"]


async def test_an_alias_of_the_catalogue_leads_to_routing_to_a_tier_or_to_a_model(
    gateway: RunningGateway, noting: Noting
) -> None:
    answer = await gateway.openai.chat.completions.create(model="gpt-4o", messages=HELLO)
    record = await gateway.http.get(f"/admin/api/requests/{answer.id}")

    assert record.json()["request"]["requested_model"] == "auto"
    assert answer.model in ("small-model", "own-model", "large-model")
    assert await tier_of(gateway.openai, "gpt-4o-mini") == "2"
    assert await tier_of(gateway.openai, "claude") == "3"
    assert [body["model"] for body in noting.bodies[1:]] == ["own-model", "large-model"]


async def test_every_model_of_the_list_is_found_by_its_id(gateway: RunningGateway) -> None:
    listed = [model.id async for model in gateway.openai.models.list()]
    assert {"/llms/a", "llms//b/"} < set(listed)
    found = [(await gateway.openai.models.retrieve(name)).id for name in listed]
    # Without the slashes that a proxy takes out.
    assert (found, (await gateway.openai.models.retrieve("llms/a")).id) == (listed, "/llms/a")


async def test_an_unknown_model_is_not_found_and_the_answer_suggests_an_alias(gateway: RunningGateway) -> None:
    with pytest.raises(openai.NotFoundError) as missing:
        await gateway.openai.chat.completions.create(model="gpt-9", messages=HELLO)

    assert missing.value.code == "model_not_found"
    assert "An alias in the catalogue or of the key gives it a meaning, such as 'gpt-9' = 'auto'." in str(missing.value)


async def test_an_alias_of_the_key_comes_before_the_catalogues_and_may_lead_to_it(gateway: RunningGateway) -> None:
    own = await client_with(gateway, "own", aliases={"gpt-4o": "tier-1", "gpt-5": "claude"})

    assert await tier_of(own, "gpt-4o") == "1"
    assert await tier_of(own, "gpt-5") == "3"
    assert await tier_of(own, "gpt-4o-mini") == "2"


async def test_a_star_stands_for_every_name_that_is_not_known(gateway: RunningGateway) -> None:
    own = await client_with(gateway, "any", aliases={"*": "tier-2"})

    assert await tier_of(own, "whatever-comes") == "2"
    assert await tier_of(own, "large-model") == "3"
    assert await tier_of(own, "claude") == "3"
    assert await tier_of(own, "tier-1") == "1"


async def test_an_alias_gives_a_key_no_tier_that_it_may_not_use(gateway: RunningGateway) -> None:
    own = await client_with(gateway, "bound", aliases={"best": "tier-3"}, tiers=[1])

    with pytest.raises(openai.PermissionDeniedError):
        await tier_of(own, "best")


async def test_the_models_of_a_key_list_its_aliases_and_the_catalogues(gateway: RunningGateway) -> None:
    own = await client_with(gateway, "listing", aliases={"mine": "auto", "lost": "gone-model"})
    any_name = await client_with(gateway, "listing all", aliases={"*": "auto"})

    listed = [model.id async for model in await own.models.list()]
    shown = await own.models.retrieve("mine")

    assert {"auto", "tier-1", "gpt-4o", "gpt-4o-mini", "claude", "mine"} <= set(listed)
    assert "lost" not in listed
    assert "*" not in [model.id async for model in await any_name.models.list()]
    assert (shown.id, len(shown.model_extra["x_aio"])) == ("mine", 3)  # type: ignore[index]


@pytest.mark.parametrize("name", ["auto", "tier-1", ""])
async def test_auto_and_the_tiers_keep_their_names(gateway: RunningGateway, name: str) -> None:
    made = await gateway.http.post(
        "/admin/api/keys", json={"name": f"bad {name}", "terms": {"aliases": {name: "auto"}}}
    )

    assert (made.status_code, made.json()["error"]["param"]) == (400, "terms.aliases")


async def test_a_reload_of_the_catalogue_takes_its_aliases(gateway: RunningGateway) -> None:
    path = anyio.Path(gateway.serving.settings.catalog)
    before = await path.read_text()
    try:
        await path.write_text(before.replace('"claude" = "large"', '"o5" = "tier-1"'))
        done = await gateway.http.post("/v1/admin/reload", json={"reason": "other names"})
        assert done.status_code == 200, done.text
        assert await tier_of(gateway.openai, "o5") == "1"
        with pytest.raises(openai.NotFoundError):
            await tier_of(gateway.openai, "claude")
    finally:
        await path.write_text(before)
        await gateway.http.post("/v1/admin/reload", json={"reason": "back"})


async def test_the_dashboard_shows_and_changes_them(gateway: RunningGateway) -> None:
    await client_with(gateway, "in the browser", aliases={"gpt-4o": "tier-1"})
    rows = (await gateway.http.get("/admin/api/keys")).json()["rows"]
    key_id = next(row["key_id"] for row in rows if row["name"] == "in the browser")

    async def stored() -> dict[str, Any]:
        row: dict[str, Any] = (await gateway.http.get(f"/admin/api/keys/{key_id}")).json()["key"]
        return row

    async with browser(gateway) as admin:
        await sign_in(admin)
        page = await admin.get(f"/admin/keys/{key_id}")
        assert "gpt-4o → tier-1" in page.text
        await submit(
            admin, page, f"/admin/keys/{key_id}", scopes="inference", aliases="gpt-4o=auto, *=tier-2", strict="true"
        )
    row = await stored()
    assert (row["aliases"], row["strict"]) == ({"gpt-4o": "auto", "*": "tier-2"}, True)


@pytest.mark.parametrize(
    ("aliases", "problem"),
    [
        (
            'aliases = { "gpt-4o" = "tier-9" }',
            "aliases.'gpt-4o' = 'tier-9': unknown; an alias may stand for auto, tier-1",
        ),
        ('aliases = { "auto" = "tier-1" }', "aliases: 'auto' cannot be an alias"),
        ('aliases = { "tier-1" = "auto" }', "aliases: 'tier-1' cannot be an alias"),
        ('aliases = { "a" = 1 }', "aliases"),
    ],
)
async def test_a_wrong_alias_of_the_catalogue_is_reported(tmp_path: Path, aliases: str, problem: str) -> None:
    (tmp_path / "wrong.toml").write_text(f"{aliases}\n{CATALOG.format(url='http://localhost:1/v1')}")

    with pytest.raises(CatalogError) as refused:
        load_catalog(str(tmp_path / "wrong.toml"))

    assert problem in str(refused.value)
