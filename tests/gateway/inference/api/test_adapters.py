"""Operators load and unload adapters while the core serves, and requests name them behind their model's colon."""

import asyncio
from typing import Any

import openai
import pytest
import pytest_asyncio
from click.testing import CliRunner, Result

from gateway.cli import main
from tests.support.administrator import ADMIN_KEY
from tests.support.app import RunningGateway, StartApp
from tests.support.core import laptop_hash_core

pytestmark = pytest.mark.asyncio(loop_scope="module")
ADAPTERS = "/v1/admin/adapters"
INT4 = "smollm2-int4"


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def aio(module_app: StartApp) -> RunningGateway:
    """The laptop catalogue's tiers on a core of hash models, for which every path is an adapter."""
    running = await module_app(core=laptop_hash_core, scripted=False)
    await load(running, "sql")
    return running


async def load(aio: RunningGateway, name: str) -> None:
    answer = await aio.http.post(ADAPTERS, json={"model": INT4, "name": name, "path": f"/srv/{name}"})
    assert answer.status_code == 200, answer.text


async def said(aio: RunningGateway, model: str) -> str:
    answer = await aio.openai.chat.completions.create(
        model=model, messages=[{"role": "user", "content": "Which rows?"}], max_tokens=8, temperature=0
    )
    return str(answer.choices[0].message.content)


async def test_an_answer_with_an_adapter_is_another_one_and_the_same_each_time(aio: RunningGateway) -> None:
    await load(aio, "poems")

    plain, sql, poems = [await said(aio, name) for name in ("tier-1", "tier-1:sql", f"{INT4}:poems")]

    assert len({plain, sql, poems}) == 3
    assert sql == await said(aio, f"{INT4}:sql")


async def test_no_answer_with_an_adapter_is_kept_since_its_name_may_get_other_weights(aio: RunningGateway) -> None:
    async def uses(model: str) -> list[str]:
        body = {"model": model, "messages": [{"role": "user", "content": "Which keys?"}], "max_tokens": 4}
        answers = [await aio.http.post("/v1/chat/completions", json=body | {"temperature": 0}) for _ in range(2)]
        return [answer.headers["x-aio-cache"] for answer in answers]

    assert await uses("tier-1:sql") == ["miss", "miss"]
    assert await uses("tier-1") == ["miss", "hit"]


async def test_the_record_says_what_was_asked_for(aio: RunningGateway) -> None:
    answer = await aio.http.post(
        "/v1/chat/completions",
        json={"model": "tier-1:sql", "messages": [{"role": "user", "content": "Which rows?"}], "max_tokens": 3},
    )

    assert answer.headers["x-aio-tier"] == "1"
    assert (await aio.http.get(f"/v1/models/{INT4}")).json()["x_aio"][0]["tier"] == 1


@pytest.mark.parametrize("model", ["tier-1:missing", "auto:sql", "missing:sql", "tier-1:"])
async def test_what_is_not_there_is_refused_naming_the_model(aio: RunningGateway, model: str) -> None:
    with pytest.raises((openai.BadRequestError, openai.NotFoundError)) as refused:
        await said(aio, model)

    assert refused.value.param == "model"  # type: ignore[attr-defined]


async def test_loaded_adapters_are_models_that_clients_find(aio: RunningGateway) -> None:
    await load(aio, "found")

    listed = [model.id async for model in aio.openai.models.list()]

    assert f"{INT4}:found" in listed
    assert (await aio.openai.models.retrieve(f"{INT4}:found")).id == f"{INT4}:found"
    await aio.http.delete(f"{ADAPTERS}/{INT4}/found")
    assert f"{INT4}:found" not in [model.id async for model in aio.openai.models.list()]


async def test_loads_unloads_and_refusals_are_written_down(aio: RunningGateway) -> None:
    await load(aio, "traced")
    await aio.http.post(ADAPTERS, json={"model": INT4, "name": "traced", "path": "/srv/again"})
    await aio.http.delete(f"{ADAPTERS}/{INT4}/traced")

    changes = (await aio.http.get("/v1/admin/knobs/changes", params={"knob": "adapter", "limit": 3})).json()["changes"]

    assert [(c["model"], c["old_value"], c["new_value"]) for c in changes] == [
        (INT4, "traced", None),
        (INT4, None, "traced: /srv/again"),
        (INT4, None, "traced: /srv/traced"),
    ]
    assert [bool(c["refused"]) for c in changes] == [False, True, False]
    assert "is loaded; unload it first" in changes[1]["refused"]


async def test_adapters_are_shown_with_their_slots(aio: RunningGateway) -> None:
    await said(aio, "tier-1:sql")

    shown = (await aio.http.get(ADAPTERS)).json()["models"]

    assert set(shown) == {INT4, "smollm2-bf16"}
    assert shown[INT4]["slots"] == 2
    (sql,) = (info for info in shown[INT4]["adapters"] if info["name"] == "sql")
    assert sql["resident"]
    assert (sql["path"], sql["running"]) == ("/srv/sql", 0)


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"model": "missing", "name": "a", "path": "/srv/a"}, "model"),
        ({"model": INT4, "name": "a b", "path": "/srv/a"}, "name"),
        ({"model": INT4, "name": "sql", "path": "/srv/a"}, "name"),
    ],
)
async def test_a_refused_load_names_the_parameter(aio: RunningGateway, body: dict[str, Any], param: str) -> None:
    answer = await aio.http.post(ADAPTERS, json=body)

    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == param


async def test_an_unloaded_adapter_is_gone(aio: RunningGateway) -> None:
    await load(aio, "brief")
    await said(aio, "tier-1:brief")

    answer = await aio.http.delete(f"{ADAPTERS}/{INT4}/brief")

    assert answer.status_code == 200
    assert "brief" not in [info["name"] for info in answer.json()["adapters"]]
    with pytest.raises(openai.BadRequestError, match="'brief' is unknown"):
        await said(aio, "tier-1:brief")
    assert (await aio.http.delete(f"{ADAPTERS}/{INT4}/brief")).status_code == 404


async def command(aio: RunningGateway, *arguments: str) -> Result:
    return await asyncio.to_thread(
        CliRunner().invoke, main, ["adapters", *arguments, "--url", aio.url, "--key", ADMIN_KEY]
    )


async def test_the_command_loads_lists_and_unloads(aio: RunningGateway) -> None:
    loaded = await command(aio, "load", f"{INT4}:cli", "/srv/cli")
    listed = await command(aio, "list")
    unloaded = await command(aio, "unload", f"{INT4}:cli")
    again = await command(aio, "unload", f"{INT4}:cli")

    assert f"{INT4}:cli is loaded" in loaded.output
    assert f"{INT4}: 2 slots" in listed.output
    assert "/srv/cli" in listed.output
    assert f"{INT4}:cli is unloaded" in unloaded.output
    assert again.exit_code == 1
    assert "'cli' is unknown" in again.output
