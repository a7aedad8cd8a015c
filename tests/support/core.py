"""Inference cores with small models, on a thread of the test's process.

`hash_core` (`tests.inference_core.hash_model`) makes a core whose models are hashes of what they read; `running_core`
starts a client of any core, and the fixture `core` is one with the hash model "m". `laptop_hash_core` stands for the
core of the laptop's catalogue.
"""

import threading
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest

from gateway.base.settings import Settings
from inference_core.engine.core import Core
from inference_core.engine.live_knobs import KnobsFile, LiveKnobs
from inference_core.protocol import Knobs, SequenceOutput
from inference_core.transport.core_thread import ThreadCoreClient
from tests.inference_core.hash_model import hash_core


@asynccontextmanager
async def running_core(load: Callable[[], Any]) -> AsyncIterator[ThreadCoreClient]:
    """The client of the core that `load` makes, until the block ends."""
    client = ThreadCoreClient(load)
    await client.start()
    try:
        yield client
    finally:
        await client.close()


@pytest.fixture
async def core() -> AsyncIterator[ThreadCoreClient]:
    """A core with the hash model "m"."""
    async with running_core(lambda: hash_core("m")) as client:
        yield client


class PausedCore:
    """A core that accepts commands but makes no step while `paused` is set."""

    def __init__(self, core: Core, paused: threading.Event) -> None:
        self._core, self._paused = core, paused

    def __getattr__(self, name: str) -> Any:
        return getattr(self._core, name)

    def step(self) -> list[SequenceOutput]:
        return [] if self._paused.is_set() else self._core.step()


def laptop_hash_core(
    settings: Settings, paused: threading.Event | None = None, max_context: int = 8192
) -> ThreadCoreClient:
    """The laptop catalogue's models by name, each a hash model of their vocabulary; no step while `paused` is set."""
    names = ("smollm2-int4", "smollm2-bf16")

    def load() -> Any:
        live = LiveKnobs(dict.fromkeys(names, Knobs()), KnobsFile(settings.knobs_path))
        core = hash_core(*names, slabs=256, max_context=max_context, vocab_size=49152, knobs=live, adapter_slots=2)
        return PausedCore(core, paused or threading.Event())

    return ThreadCoreClient(load)
