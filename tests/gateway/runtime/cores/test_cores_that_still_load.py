"""Requests are answered once the first tier's core serves; what keeps another core from loading ends the server."""

import asyncio
import threading
from collections.abc import Mapping
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any

import pytest

from gateway.base.settings import Settings
from gateway.processes.announcement import problems_text
from gateway.runtime.cores.engine import Engine
from inference_core.engine.core import Core
from inference_core.errors import CoreGoneError, MemoryPlanError
from inference_core.execution.runner import ModelRunner
from inference_core.transport.client import CoreClient
from inference_core.transport.core_thread import ThreadCoreClient
from tests.gateway.device_catalog import CARD_MODEL, CPU_MODEL, write_catalog
from tests.inference_core.hash_model import hash_core
from tests.polling import eventually
from tests.support.app import RunningGateway, running_gateway
from tests.support.scripted_tier import ScriptedTier


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    return Settings(data_dir=str(tmp_path), catalog=str(write_catalog(tmp_path / "catalog.toml")), monitor=False)


def loading(model: str, go: threading.Event | None = None, error: Exception | None = None) -> ThreadCoreClient:
    """A core of a hash model that loads once `go` is set, or fails then."""

    def load() -> Core:
        assert go is None or go.wait(60)
        if error is not None:
            raise error
        return hash_core(model, slabs=256, max_context=2048, vocab_size=49152)

    return ThreadCoreClient(load)


def serving(
    settings: Settings, cores: Mapping[str, CoreClient], failures: list[tuple[str, Exception]]
) -> AbstractAsyncContextManager[RunningGateway]:
    """A gateway that notes which cores cannot be loaded, and why, in `failures`."""

    def failed(core: str, error: Exception) -> None:
        failures.append((core, error))

    return running_gateway(settings, scripted=False, cores=cores, load_failed=failed)


async def status_of(aio: RunningGateway, tier: str) -> int:
    asked = {"model": tier, "messages": [{"role": "user", "content": "Who?"}], "max_tokens": 4}
    return (await aio.http.post("/v1/chat/completions", json=asked)).status_code


async def health(aio: RunningGateway) -> dict[str, Any]:
    shown: dict[str, Any] = (await aio.http.get("/health/ready")).json()
    return shown


async def test_tiers_of_the_first_core_answer_while_another_core_loads(settings: Settings) -> None:
    go = threading.Event()
    failures: list[tuple[str, Exception]] = []
    cores = {"cpu": loading(CPU_MODEL), "card": loading(CARD_MODEL, go)}
    async with serving(settings, cores, failures) as aio:
        for tier, status in (("tier-1", 200), ("tier-2", 503), ("auto", 200)):
            assert await status_of(aio, tier) == status
        shown = await health(aio)
        assert (shown["status"], shown["problems"]["core card"]) == ("degraded", "loads its models")
        assert "core" not in shown["problems"]

        go.set()
        await eventually(lambda: aio.operations.readiness.problems == {})
        assert (await health(aio)) == {"status": "ok"}
        assert await status_of(aio, "tier-2") == 200
    assert failures == []


async def test_a_core_that_cannot_be_loaded_after_the_start_is_reported_once(settings: Settings) -> None:
    go = threading.Event()
    failures: list[tuple[str, Exception]] = []
    cores = {"cpu": loading(CPU_MODEL), "card": loading(CARD_MODEL, go, MemoryPlanError("too large"))}
    async with serving(settings, cores, failures) as aio:
        assert await status_of(aio, "tier-1") == 200
        go.set()
        await eventually(lambda: failures)
        assert await status_of(aio, "tier-1") == 200
        assert "too large" in (await health(aio))["problems"]["core card"]
    assert [(core, str(error.__cause__)) for core, error in failures] == [("core card", "too large")]


@pytest.mark.parametrize("broken", ["cpu", "card"])
async def test_a_core_that_cannot_be_loaded_before_the_first_one_serves_stops_the_start(broken: str) -> None:
    models, go = {"cpu": CPU_MODEL, "card": CARD_MODEL}, threading.Event()
    cores = {
        name: loading(model, *((None, MemoryPlanError("too large")) if name == broken else (go, None)))
        for name, model in models.items()
    }
    tier = ScriptedTier(1)
    tier.core_name = "cpu"
    engine = Engine([tier], cores)
    async with engine.loading(lambda core, error: None):
        with pytest.raises(CoreGoneError, match="too large"):
            await engine.first_tier_serves()
        go.set()
    await engine.close()


class LaterModel:
    """A core whose only model is loaded once `go` is set."""

    def __init__(self, core: Core, runner: ModelRunner, go: threading.Event) -> None:
        self._core, self._runner, self._go = core, runner, go
        runner.is_loaded = False

    def __getattr__(self, name: str) -> Any:
        self._runner.is_loaded = self._go.is_set()
        return getattr(self._core, name)


async def test_a_model_that_is_still_packed_is_named_and_its_requests_wait(settings: Settings) -> None:
    go = threading.Event()

    def load() -> Any:
        core = hash_core(CARD_MODEL, slabs=256, max_context=2048, vocab_size=49152)
        return LaterModel(core, core._models[CARD_MODEL].runner, go)

    cores = {"cpu": loading(CPU_MODEL), "card": ThreadCoreClient(load)}
    async with serving(settings, cores, []) as aio:
        shown = await eventually(lambda: aio.operations.readiness.problems.get(f"model {CARD_MODEL}"))
        assert shown == "its weights are packed, once; its requests wait"
        waiting = asyncio.create_task(status_of(aio, "tier-2"))
        assert await status_of(aio, "tier-1") == 200
        assert not waiting.done()
        go.set()
        assert await waiting == 200
        await eventually(lambda: aio.operations.readiness.problems == {})


async def test_without_somebody_to_tell_a_start_waits_for_all_models(settings: Settings) -> None:
    asked: list[bool] = []
    go = threading.Event()

    def load() -> Any:
        core = hash_core(CARD_MODEL, slabs=256, max_context=2048, vocab_size=49152)
        later, stats = LaterModel(core, core._models[CARD_MODEL].runner, go), core.stats

        def asked_for(query_id: str) -> Any:
            asked.append(go.is_set())
            answer = stats(query_id)
            go.set()
            return answer

        core.stats = asked_for  # type: ignore[method-assign]
        return later

    engine = Engine([ScriptedTier(1)], {"card": ThreadCoreClient(load)})
    await engine.start()
    assert asked[:2] == [False, True]
    await engine.close()


def test_what_is_missing_is_announced_and_nothing_else() -> None:
    assert problems_text({}) == ""
    assert "Not ready yet: core card: loads its models (" in problems_text({"core card": "loads its models"})


def test_many_missing_things_are_counted() -> None:
    said = problems_text({f"tier {number}": "is down" for number in range(1, 9)})
    assert said.startswith("Not ready yet: tier 1: is down; tier 2: is down; tier 3: is down; 5 more (")
