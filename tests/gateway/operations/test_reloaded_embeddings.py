"""Embeddings of servers elsewhere follow the catalogue's file while a gateway serves."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
from click.testing import CliRunner

from gateway.base.settings import Settings
from gateway.cli import main
from tests.polling import eventually
from tests.support.administrator import ADMIN_HEADERS, ADMIN_KEY
from tests.support.app import RunningGateway, running_gateway
from tests.support.upstream import Call, Handler, LoopbackServer, write_remote_catalog

ENTRY = """
[[embeddings]]
name = "{name}"
url = "{url}"
model = "{model}"
input_usd_per_million = {usd}
"""


async def answering(call: Call) -> None:
    """Vectors that say which model was asked."""
    data = [{"index": 0, "embedding": [float(len(call.body["model"])), 0.5]}]
    await call.reply(200, {"data": data, "usage": {"prompt_tokens": 4}})


def entry(server: LoopbackServer, name: str, model: str, usd: float = 1.0, path: str = "") -> str:
    return ENTRY.format(name=name, url=server.base_url + path, model=model, usd=usd)


@asynccontextmanager
async def gateway_and_server(
    folder: Path, handler: Handler = answering, drain_seconds: float = 30.0
) -> AsyncIterator[tuple[RunningGateway, LoopbackServer]]:
    """A gateway that begins without embeddings."""
    async with LoopbackServer(handler) as server:
        catalog = write_remote_catalog(folder / "catalog.toml", server.base_url)
        settings = Settings(
            data_dir=str(folder / "data"), monitor=False, catalog=str(catalog), drain_seconds=drain_seconds
        )
        async with running_gateway(settings) as gateway:
            yield gateway, server


def write(server: LoopbackServer, folder: Path, *entries: str) -> None:
    catalog = write_remote_catalog(folder / "catalog.toml", server.base_url)
    catalog.write_text(catalog.read_text() + "".join(entries))


async def reload(gateway: RunningGateway, server: LoopbackServer, folder: Path, *entries: str) -> httpx.Response:
    write(server, folder, *entries)
    return await gateway.http.post("/v1/admin/reload", json={"reason": "embeddings"}, headers=ADMIN_HEADERS)


async def ask(gateway: RunningGateway, name: str) -> httpx.Response:
    return await gateway.http.post("/v1/embeddings", json={"model": name, "input": "abc"})


def vector(answer: httpx.Response) -> Any:
    return answer.json()["data"][0]["embedding"][0]


async def listed(gateway: RunningGateway) -> list[str]:
    names = [one["id"] for one in (await gateway.http.get("/v1/models")).json()["data"]]
    return [name for name in names if name in ("one", "two")]


async def test_a_reload_adds_changes_and_removes_embeddings_of_servers_elsewhere(tmp_path: Path) -> None:
    async with gateway_and_server(tmp_path) as (gateway, server):
        assert (await ask(gateway, "one")).status_code == 404

        done = await reload(gateway, server, tmp_path, entry(server, "one", "a"), entry(server, "two", "bb"))
        assert (done.status_code, done.json()["tiers"], done.json()["embeddings"]) == (200, [], ["one", "two"])
        assert (vector(await ask(gateway, "one")), vector(await ask(gateway, "two"))) == (1.0, 2.0)
        assert await listed(gateway) == ["one", "two"]

        changed = [entry(server, "two", "bb"), entry(server, "one", "cccc", path="/elsewhere")]
        assert (await reload(gateway, server, tmp_path, *changed)).json()["embeddings"] == ["one"]
        assert (vector(await ask(gateway, "one")), vector(await ask(gateway, "two"))) == (4.0, 2.0)
        assert [call.path for call in server.calls[-2:]] == ["/v1/elsewhere/embeddings", "/v1/embeddings"]
        assert await listed(gateway) == ["two", "one"]

        write(server, tmp_path, changed[0])
        command = ["reload", "--url", gateway.url, "--key", ADMIN_KEY]
        shown = (await asyncio.to_thread(CliRunner().invoke, main, command)).output
        assert "everything else in it holds now\nchanged embeddings: one\n" in shown
        assert (await ask(gateway, "one")).status_code == 404
        assert vector(await ask(gateway, "two")) == 2.0
        assert await listed(gateway) == ["two"]


async def test_another_price_keeps_the_client_and_is_billed_at_once(tmp_path: Path) -> None:
    async with gateway_and_server(tmp_path) as (gateway, server):
        await reload(gateway, server, tmp_path, entry(server, "one", "a"))
        client = gateway.serving.embedders["one"]
        assert float((await ask(gateway, "one")).headers["x-aio-cost-usd"]) == 4e-6

        done = await reload(gateway, server, tmp_path, entry(server, "one", "a", usd=3.0))

        assert done.json()["embeddings"] == []
        assert gateway.serving.embedders["one"] is client
        assert float((await ask(gateway, "one")).headers["x-aio-cost-usd"]) == 12e-6


async def test_a_request_that_began_before_the_reload_is_answered(tmp_path: Path) -> None:
    go = asyncio.Event()

    async def slow(call: Call) -> None:
        await go.wait()
        await answering(call)

    async with gateway_and_server(tmp_path, slow) as (gateway, server):
        await reload(gateway, server, tmp_path, entry(server, "one", "a"))
        asking = asyncio.create_task(ask(gateway, "one"))
        await eventually(lambda: server.calls)
        assert (await reload(gateway, server, tmp_path)).status_code == 200
        assert (await ask(gateway, "one")).status_code == 404
        go.set()
        assert vector(await asking) == 1.0


async def test_the_connections_of_an_entry_that_is_gone_are_closed(tmp_path: Path) -> None:
    async with gateway_and_server(tmp_path, drain_seconds=0.0) as (gateway, server):
        await reload(gateway, server, tmp_path, entry(server, "one", "a"))
        client: Any = gateway.serving.embedders["one"]
        await reload(gateway, server, tmp_path)
        await eventually(lambda: client._client.is_closed)


async def test_embeddings_that_are_computed_here_need_a_new_process(tmp_path: Path) -> None:
    async with gateway_and_server(tmp_path) as (gateway, server):
        await reload(gateway, server, tmp_path, entry(server, "one", "a"))
        here = '[[embeddings]]\nname = "here"\npath = "/models/encoder"\ninput_usd_per_million = 0\n'
        refused = await reload(gateway, server, tmp_path, entry(server, "one", "bb"), here)
        assert refused.status_code == 409
        assert "embeddings that are computed here differ" in refused.json()["error"]["message"]
        assert vector(await ask(gateway, "one")) == 1.0
