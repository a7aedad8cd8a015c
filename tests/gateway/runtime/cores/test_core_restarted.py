"""A core of the gateway's own process dies: its streams end, `/health/ready` says why, and it is started again."""

import asyncio
import threading
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import openai
import pytest

import gateway.runtime.cores.engine
from gateway.base.stores.retries import FIRST_PAUSE_SECONDS, LAST_PAUSE_SECONDS, STEADY_SECONDS, RestartPauses
from inference_core.engine.core import Core
from inference_core.errors import ModelFileError
from inference_core.protocol import CoreStats, SequenceOutput
from inference_core.transport.core_thread import ThreadCoreClient
from tests.inference_core.hash_model import hash_core
from tests.polling import eventually
from tests.support.app import RunningGateway, StartApp
from tests.support.clock import Clock

INT4 = "smollm2-int4"


class HeldClient(ThreadCoreClient):
    """A client whose looks at the core wait while `open` is not set."""

    def __init__(self, load: Callable[[], Any]) -> None:
        super().__init__(load)
        self.open = asyncio.Event()
        self.open.set()

    async def stats(self) -> CoreStats:
        await self.open.wait()
        return await super().stats()


class MortalCore:
    """The laptop's models as hash models: a core that dies after `steps_left` steps, and loads only while `loadable`.

    `looks`: how often it was asked for its statistics; `starts`: how often it was loaded.
    """

    def __init__(self) -> None:
        self.client = HeldClient(self._load)
        self.loadable = threading.Event()
        self.loadable.set()
        self.steps_left: int | None = None
        self.looks = self.starts = 0

    def _load(self) -> Any:
        if not self.loadable.is_set():
            raise ModelFileError("the disk is away")
        self.steps_left = None
        self.starts += 1
        core = hash_core(INT4, "smollm2-bf16", slabs=256, max_context=8192, vocab_size=49152, adapter_slots=2)
        return _Mortal(core, self)


class _Mortal:
    def __init__(self, core: Core, owner: MortalCore) -> None:
        self._core, self._owner = core, owner

    def __getattr__(self, name: str) -> Any:
        return getattr(self._core, name)

    def stats(self, query_id: str) -> CoreStats:
        self._owner.looks += 1
        return self._core.stats(query_id)

    def step(self) -> list[SequenceOutput]:
        if self._owner.steps_left is not None:
            self._owner.steps_left -= 1
            if self._owner.steps_left < 0:
                raise ZeroDivisionError("of logits")
        return self._core.step()


@pytest.fixture(autouse=True)
def watched_closely(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gateway.runtime.cores.engine, "WATCH_SECONDS", 0.01)


async def said(aio: RunningGateway, model: str) -> str:
    answer = await aio.openai.completions.create(model=model, prompt="Which rows?", max_tokens=8, temperature=0)
    return answer.choices[0].text


async def streamed(aio: RunningGateway) -> None:
    stream = await aio.openai.completions.create(
        model="tier-1", prompt="Which rows?", max_tokens=100, stream=True, extra_body={"ignore_eos": True}
    )
    async for _ in stream:
        pass


async def ready(aio: RunningGateway) -> dict[str, Any]:
    answer = await aio.http.get("/health/ready")
    shown: dict[str, Any] = answer.json()
    return {"status_code": answer.status_code} | shown


async def test_a_core_that_dies_ends_its_streams_and_is_started_again_with_its_adapters(app: StartApp) -> None:
    core = MortalCore()
    aio = await app(core=core.client, scripted=False)
    adapter = {"model": INT4, "name": "sql", "path": "/srv/sql"}
    assert (await aio.http.post("/v1/admin/adapters", json=adapter)).status_code == 200
    plain, sql = [await said(aio, name) for name in ("tier-1", "tier-1:sql")]
    looks = core.looks
    await eventually(lambda: core.looks > looks + 5)

    core.loadable.clear()
    core.steps_left = 4
    with pytest.raises(openai.APIError):
        await streamed(aio)
    shown = await ready(aio)
    assert (shown["status_code"], shown["status"]) == (503, "not ready")
    await eventually(lambda: "the disk is away" in aio.operations.readiness.problems.get("core", ""))
    refused = await aio.http.post("/v1/completions", json={"model": "tier-1", "prompt": "Which rows?"})
    assert (refused.status_code, "retry-after" in refused.headers) == (503, True)

    core.loadable.set()
    await eventually(lambda: not aio.operations.readiness.problems)
    await eventually(lambda: aio.serving.routing.served.tier(1).load().healthy)
    assert (await ready(aio))["status"] == "ok"
    assert [await said(aio, name) for name in ("tier-1", "tier-1:sql")] == [plain, sql]


@pytest.mark.parametrize("unloaded", [False, True])
async def test_what_was_loaded_or_unloaded_since_the_last_look_is_known_to_the_core_after_it(
    unloaded: bool, app: StartApp
) -> None:
    core = MortalCore()
    aio = await app(core=core.client, scripted=False)
    await eventually(lambda: core.looks > 5)
    adapter = {"model": INT4, "name": "sql", "path": "/srv/sql"}
    if unloaded:
        assert (await aio.http.post("/v1/admin/adapters", json=adapter)).status_code == 200
        looks = core.looks
        await eventually(lambda: core.looks > looks + 5)
    core.client.open.clear()
    if unloaded:
        assert (await aio.http.delete(f"/v1/admin/adapters/{INT4}/sql")).status_code == 200
    else:
        assert (await aio.http.post("/v1/admin/adapters", json=adapter)).status_code == 200
    core.steps_left = 4
    with pytest.raises(openai.APIError):
        await streamed(aio)
    core.client.open.set()
    await eventually(lambda: core.starts == 2 and not aio.operations.readiness.problems)

    (model, *_) = (await core.client.stats()).models
    assert [each.name for each in model.adapters] == ([] if unloaded else ["sql"])


async def test_a_core_that_was_closed_is_not_started_again(app: StartApp) -> None:
    core = MortalCore()
    aio = await app(core=core.client)
    await core.client.close()
    await eventually(lambda: "core" in aio.operations.readiness.problems)
    assert core.client.gone == "the core client is closed"
    assert not core.client.died


def test_pauses_double_up_to_a_limit_and_begin_again_after_a_steady_run(clock: Clock) -> None:
    pauses = RestartPauses(clock)
    first = [pauses.after_end() for _ in range(12)]
    assert first[0] == FIRST_PAUSE_SECONDS
    assert all(later == min(2 * earlier, LAST_PAUSE_SECONDS) for earlier, later in pairwise(first))
    assert first[-1] == LAST_PAUSE_SECONDS
    pauses.note_start()
    clock.advance(STEADY_SECONDS)
    assert pauses.after_end() == LAST_PAUSE_SECONDS
    pauses.note_start()
    clock.advance(STEADY_SECONDS + 1)
    assert pauses.after_end() == FIRST_PAUSE_SECONDS
