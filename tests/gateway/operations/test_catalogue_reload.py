"""A catalogue is replaced under load: no reply fails, none mixes two catalogues, and a bad one changes nothing."""

import asyncio
import signal
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from benchmarks.gateway.upstream import proxied_catalogue
from tests.http_server import Reply, answering
from tests.polling import eventually
from tests.support.administrator import ADMIN_HEADERS
from tests.support.served import ServedProcess, served
from tests.support.upstream import Call, LoopbackServer

pytestmark = pytest.mark.processes

PIECES = 6


async def speak(call: Call) -> None:
    """Repeats the model's name slowly enough that a reload happens in the middle."""
    model = call.body["model"]
    if not call.body["stream"]:
        await asyncio.sleep(0.05)
        await call.whole(f"{model} " * PIECES, {"prompt_tokens": 1, "completion_tokens": PIECES})
        return
    await call.begin()
    for _ in range(PIECES):
        await call.chunk(f"{model} ")
        await asyncio.sleep(0.02)
    await call.end()


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[ServedProcess, Path]]:
    folder = tmp_path_factory.mktemp("reload")
    file = folder / "catalogue.toml"
    # Any server that a process can start with; it has no models.
    with answering(lambda asked: Reply(status=404)) as first:
        file.write_text(proxied_catalogue(f"{first}/v1", "other"))
        with served(folder / "data", folder / "cache", "--role", "gateway", "--catalog", str(file)) as process:
            yield process, file


@asynccontextmanager
async def two_upstreams() -> AsyncIterator[tuple[LoopbackServer, LoopbackServer]]:
    async with LoopbackServer(speak) as old, LoopbackServer(speak) as new:
        yield old, new


async def put(http: httpx.AsyncClient, file: Path, text: str) -> httpx.Response:
    await asyncio.to_thread(file.write_text, text)
    return await http.post("/v1/admin/reload", json={"reason": "a new version"}, headers=ADMIN_HEADERS)


async def reply(http: httpx.AsyncClient, *, stream: bool) -> tuple[str, set[str]]:
    """Return the model named by the gateway, and the words of the answer."""
    body: dict[str, Any] = {"model": "auto", "messages": [{"role": "user", "content": "Say it."}], "stream": stream}
    answer = await http.post("/v1/chat/completions", json=body)
    assert answer.status_code == 200, answer.text
    assert '"error"' not in answer.text
    said = [word for word in ("old", "new", "other") if f"{word} " in answer.text]
    assert answer.text.count(f"{said[0]} ") >= PIECES
    return answer.headers["x-aio-model"], set(said)


async def test_a_reload_under_load_fails_no_reply_and_mixes_none(server: tuple[ServedProcess, Path]) -> None:
    process, file = server
    async with two_upstreams() as (old, new), httpx.AsyncClient(base_url=process.url, timeout=60) as http:
        texts = {"old": proxied_catalogue(old.base_url, "old"), "new": proxied_catalogue(new.base_url, "new")}
        assert (await put(http, file, texts["old"])).json()["tiers"] == [1, 2, 3, 4]
        replies: list[tuple[str, set[str]]] = []
        done, enough, seen = asyncio.Event(), asyncio.Event(), 0

        async def ask(place: int) -> None:
            while not done.is_set():
                replies.append(await reply(http, stream=place % 2 == 0))
                if len(replies) >= seen + 8:
                    enough.set()

        async with asyncio.TaskGroup() as load:
            for place in range(8):
                load.create_task(ask(place))
            for turn in range(6):
                enough.clear()
                seen = len(replies)
                await enough.wait()
                assert (await put(http, file, texts["new" if turn % 2 == 0 else "old"])).status_code == 200
            done.set()
        assert {model for model, _ in replies} == {"old", "new"}
        assert all(words == {model} for model, words in replies)


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (lambda text: text.replace('class = "EXPERT"', 'class = "GENIUS"'), "GENIUS"),
        (lambda text: text.replace("/v1", ":99/v1"), "tier"),
        (lambda text: "not TOML", "not valid TOML"),
        (lambda text: text.split("[[tiers]]\nnumber = 4")[0], "tier"),
    ],
)
async def test_a_catalogue_that_is_refused_changes_nothing_and_says_why(
    server: tuple[ServedProcess, Path], change: Any, why: str
) -> None:
    process, file = server
    async with two_upstreams() as (old, _), httpx.AsyncClient(base_url=process.url, timeout=60) as http:
        text = proxied_catalogue(old.base_url, "old")
        assert (await put(http, file, text)).status_code == 200
        refused = await put(http, file, change(text))
        assert (refused.status_code, refused.json()["error"]["code"]) == (409, "catalogue_refused")
        assert why in refused.json()["error"]["message"]
        assert await reply(http, stream=False) == ("old", {"old"})


async def test_a_hangup_reloads_too(server: tuple[ServedProcess, Path]) -> None:
    process, file = server
    async with two_upstreams() as (old, new), httpx.AsyncClient(base_url=process.url, timeout=60) as http:
        assert (await put(http, file, proxied_catalogue(old.base_url, "old"))).status_code == 200
        await asyncio.to_thread(file.write_text, proxied_catalogue(new.base_url, "new"))
        process.process.send_signal(signal.SIGHUP)

        async def reloaded() -> bool:
            return (await reply(http, stream=False))[0] == "new"

        await eventually(reloaded)
