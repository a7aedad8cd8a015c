"""Another version of a model is loaded into a busy gateway: no reply fails or mixes two, and the old one is freed."""

import asyncio
import gc
import weakref
from collections.abc import AsyncIterator, Iterator
from contextlib import aclosing
from typing import Any

import httpx
import pytest
import pytest_asyncio
from click.testing import CliRunner
from sqlalchemy import select

from benchmarks.core.random_adapter import write_random_adapter
from gateway.cli import main
from inference_core.engine.core import Core
from inference_core.loading import load_core
from inference_core.protocol import SamplingParams
from migrations.tables.audit import audit_events
from tests.gateway.tiny_versions import ASKED, TOKENS, Versions
from tests.inference_core.quantization.tiny_model import tiny_config
from tests.polling import eventually
from tests.support.administrator import ADMIN_KEY
from tests.support.app import RunningGateway, StartApp
from tests.support.served import UNCACHED
from tests.support.upstream import Call, LoopbackServer
from tiers.tier import GenerationRequest

pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest.fixture(scope="module", autouse=True)
def noted_cores() -> Iterator[None]:
    init = Core.__init__

    def noting(self: Core, *arguments: Any, **named: Any) -> None:
        _MADE.add(self)
        init(self, *arguments, **named)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Core, "__init__", noting)
        yield


@pytest.fixture(scope="module")
def versions(tmp_path_factory: pytest.TempPathFactory) -> Versions:
    return Versions(tmp_path_factory.mktemp("versions"))


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def serving(versions: Versions, tmp_path_factory: pytest.TempPathFactory, module_app: StartApp) -> RunningGateway:
    versions.write("old")
    folder = tmp_path_factory.mktemp("data")
    return await module_app(scripted=False, data_dir=str(folder), cache_dir=str(folder), catalog=str(versions.file))


@pytest_asyncio.fixture(loop_scope="module")
async def aio(serving: RunningGateway, versions: Versions) -> AsyncIterator[RunningGateway]:
    """The gateway with the old version, and nothing of another one in memory."""
    versions.write("old")
    assert (await reload(serving)).status_code == 200
    await eventually(only_one_core)
    yield serving


@pytest.fixture
def no_collection() -> Iterator[None]:
    """Without a garbage collection: in a server it does not look at what was there at the start."""
    gc.collect()
    gc.disable()
    yield
    gc.enable()


# Those made since the first test; other files of the same process may have left some.
_MADE: weakref.WeakSet[Core] = weakref.WeakSet()


def cores() -> list[Core]:
    return list(_MADE)


def only_one_core() -> bool:
    """Collects what an earlier test left: in a process with many objects a full collection may be minutes away."""
    if len(cores()) > 1:
        gc.collect()
    return len(cores()) == 1


async def complete(call: Call) -> None:
    """A server whose every answer is the same word."""
    choice = {"index": 0, "text": "word", "finish_reason": "stop"}
    await call.reply(200, {"choices": [choice], "usage": {"prompt_tokens": 1, "completion_tokens": 1}})


async def reload(aio: RunningGateway) -> httpx.Response:
    return await aio.http.post("/v1/admin/reload", json={"reason": "a new version"})


async def reply(aio: RunningGateway) -> tuple[str, str]:
    """Return the text of a whole answer, and the version that the gateway names."""
    answer = await aio.http.post("/v1/completions", json=ASKED, headers=UNCACHED)
    assert answer.status_code == 200, answer.text
    body = answer.json()
    return body["choices"][0]["text"], body["x_aio"]["version"]


async def streamed(aio: RunningGateway) -> tuple[str, str]:
    """Like `reply`, for a stream."""
    asked = ASKED | {"stream": True, "stream_options": {"include_usage": True}}
    stream = await aio.openai.completions.create(**asked)
    text, version = "", ""
    async for chunk in stream:
        text += "".join(choice.text for choice in chunk.choices)
        version = (chunk.model_extra or {}).get("x_aio", {}).get("version", version)
    return text, version


async def test_a_swap_under_load_fails_no_reply_and_mixes_none(
    aio: RunningGateway, versions: Versions, no_collection: None
) -> None:
    old = await reply(aio)
    replies: list[tuple[str, str]] = []
    done = asyncio.Event()

    async def ask(place: int) -> None:
        while not done.is_set():
            replies.append(await (streamed(aio) if place % 2 else reply(aio)))

    async with asyncio.TaskGroup() as load:
        for place in range(4):
            load.create_task(ask(place))
        await eventually(lambda: len(replies) >= 4)
        versions.write("new")
        swapped = await reload(aio)
        assert swapped.status_code == 200, swapped.text
        assert (swapped.json()["tiers"], swapped.json()["loaded"]) == ([1, 2, 3, 4], ["tiny"])
        before = len(replies)
        await eventually(lambda: len(replies) >= before + 8)
        done.set()
    new = await reply(aio)
    assert old != new
    assert old[1] != new[1]
    assert set(replies) == {old, new}
    await eventually(lambda: len(cores()) == 1)
    assert f'version="{new[1]}"' in (await aio.http.get("/metrics")).text


async def test_a_request_keeps_the_version_that_it_was_routed_to(aio: RunningGateway, versions: Versions) -> None:
    text, _ = await reply(aio)
    tier, waiting = aio.serving.routing.served.tier(1), aio.serving.routing.served.tier(1)
    request = GenerationRequest(
        request_id="held", prompt=ASKED["prompt"], max_tokens=TOKENS, sampling=SamplingParams(temperature=0.0)
    )
    async with aclosing(tier.generate(request)) as deltas:  # type: ignore[type-var]
        held = (await anext(deltas)).text
        versions.write("new")
        assert (await reload(aio)).status_code == 200
        assert (await reply(aio))[0] != text
        assert len(cores()) == 2
        async for delta in deltas:
            held += delta.text
    late = [delta.text async for delta in waiting.generate(request)]
    assert (held, "".join(late)) == (text, text)
    del tier, waiting, deltas
    await eventually(lambda: len(cores()) == 1)


async def test_settings_of_the_core_may_change_as_well(aio: RunningGateway, versions: Versions) -> None:
    versions.write("old", "max_context = 192\n")
    swapped = await reload(aio)
    assert swapped.status_code == 200, swapped.text
    assert (swapped.json()["tiers"], swapped.json()["loaded"]) == ([], ["tiny"])
    card = (await aio.http.get("/v1/models/tier-1")).json()
    assert card["x_aio"][0]["max_context"] == 192


async def test_adapters_loaded_meanwhile_pass_to_the_new_version(aio: RunningGateway, versions: Versions) -> None:
    write_random_adapter(versions.model("sql"), tiny_config(versions.model("old")), rank=2, strength=1.0)
    adapter = {"model": "tiny", "name": "sql", "path": str(versions.model("sql"))}
    assert (await aio.http.post("/v1/admin/adapters", json=adapter)).status_code == 200
    versions.write("new")
    assert (await reload(aio)).status_code == 200
    answer = await aio.http.post("/v1/completions", json=ASKED | {"model": "tier-1:sql"}, headers=UNCACHED)
    assert answer.status_code == 200, answer.text
    assert answer.json()["choices"][0]["text"] != (await reply(aio))[0]


def pinned(name: str, content: str) -> str:
    """A table of the catalogue that pins a system prompt."""
    return f"""
[[core.prefixes]]
name = "{name}"
public = true
messages = [{{ role = "system", content = "{content}" }}]
"""


async def cached_tokens(aio: RunningGateway, system: str) -> int:
    messages = [{"role": "system", "content": system}, {"role": "user", "content": "Where?"}]
    asked = {"model": "tier-1", "messages": messages, "max_tokens": 2, "temperature": 0}
    answer = await aio.http.post("/v1/chat/completions", json=asked, headers=UNCACHED)
    assert answer.status_code == 200, answer.text
    return int(answer.json()["usage"]["prompt_tokens_details"]["cached_tokens"])


async def test_a_new_core_pins_the_prefixes_of_its_catalogue_and_one_that_is_refused_changes_nothing(
    aio: RunningGateway, versions: Versions
) -> None:
    template = versions.model("new") / "chat_template.jinja"
    template.write_text("{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}")
    system = "Be brief. " * 6
    versions.write("new", pinned("brief", system))
    assert (await reload(aio)).json()["loaded"] == ["tiny"]
    await eventually(lambda: any(p.ready for core in cores() for m in core.stats().models for p in m.prefixes))
    # Every character is a token here.
    assert await cached_tokens(aio, system) == len("system: " + system) // 16 * 16
    versions.write("new", pinned("long", "Be brief. " * 40))
    refused = await reload(aio)
    assert refused.status_code >= 400
    assert "prefix 'long' has" in refused.text
    assert await cached_tokens(aio, system) > 0
    template.unlink()


async def test_aio_reload_says_what_it_loaded(aio: RunningGateway, versions: Versions) -> None:
    versions.write("new")
    said = await asyncio.to_thread(
        CliRunner().invoke, main, ["reload", "--reason", "version 2", "--url", aio.url, "--key", ADMIN_KEY]
    )
    assert said.exit_code == 0, said.output
    assert said.output.endswith("changed tiers: 1, 2, 3, 4\nanother version of the core serves: tiny\n")
    async with aio.serving.database.connect() as connection:
        found = await connection.execute(select(audit_events).order_by(audit_events.c.created_at.desc()).limit(1))
        event = found.mappings().one()
    assert (event["action"], event["reason"]) == ("catalogue.reloaded", "version 2")


async def test_a_tier_may_move_to_a_server_and_back(aio: RunningGateway, versions: Versions) -> None:
    async with LoopbackServer(complete) as server:
        first, last = versions.text("old").rsplit('model = "tiny"', 1)
        remote = f'remote = {{ base_url = "{server.base_url}", model = "elsewhere", max_context = 256 }}'
        versions.file.write_text(first + remote + last)
        moved = await reload(aio)
        assert moved.status_code == 200, moved.text
        assert (moved.json()["tiers"], moved.json()["loaded"]) == ([4], [])
        asked = ASKED | {"model": "tier-4"}
        answer = await aio.http.post("/v1/completions", json=asked, headers=UNCACHED)
        assert answer.json()["model"] == "elsewhere"
        versions.write("old")
        assert (await reload(aio)).json()["tiers"] == [4]
        answer = await aio.http.post("/v1/completions", json=asked, headers=UNCACHED)
        assert answer.json()["model"] == "tiny"


async def test_a_change_of_a_tier_alone_loads_no_core(aio: RunningGateway, versions: Versions) -> None:
    (core,) = cores()
    versions.file.write_text(versions.text("old").replace("max_tokens = 128", "max_tokens = 8"))
    swapped = (await reload(aio)).json()
    assert (swapped["tiers"], swapped["loaded"]) == ([1, 2, 3, 4], [])
    answer = await aio.http.post("/v1/completions", json=ASKED, headers=UNCACHED)
    assert answer.json()["usage"]["completion_tokens"] == 8
    assert cores() == [core]


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (lambda text: text.replace("/old", "/missing"), "cannot be loaded"),
        (lambda text: text.replace('name = "tiny"\npath', 'name = "other"\npath'), "other"),
        (lambda text: text.split("[[tiers]]\nnumber = 4")[0], "tier"),
    ],
)
async def test_a_version_that_is_refused_changes_nothing_and_says_why(
    aio: RunningGateway, versions: Versions, change: Any, why: str
) -> None:
    before = await reply(aio)
    versions.file.write_text(change(versions.text("old")))
    refused = await reload(aio)
    assert (refused.status_code, refused.json()["error"]["code"]) == (409, "catalogue_refused")
    assert why in refused.json()["error"]["message"]
    assert await reply(aio) == before
    await eventually(lambda: len(cores()) == 1)


async def test_without_memory_for_both_the_old_version_serves_on(
    aio: RunningGateway, versions: Versions, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = await reply(aio)
    versions.write("new")
    monkeypatch.setattr(load_core, "available_memory", lambda: 1 << 20)
    refused = await reload(aio)
    assert (refused.status_code, refused.json()["error"]["code"]) == (409, "insufficient_memory")
    assert "KV arena: 16.00 MiB" in refused.json()["error"]["message"]
    assert await reply(aio) == before
