"""What a core holds besides memory is let go when it ends, and its transports call it by its title."""

import asyncio

import pytest

from inference_core.errors import CoreGoneError
from inference_core.protocol import AddRequest, SamplingParams
from inference_core.transport.core_thread import ThreadCoreClient
from tests.inference_core.hash_model import hash_core
from tests.inference_core.transport.scripted_core import ScriptedCore


async def test_a_core_is_closed_when_its_client_leaves() -> None:
    let_go: list[str] = []

    def load():
        core = hash_core("m")
        core.call_at_close(lambda: let_go.append("first"))
        core.call_at_close(lambda: let_go.append("second"))
        return core

    client = ThreadCoreClient(load)
    await client.start()
    assert not let_go
    await client.close()
    assert let_go == ["second", "first"]


async def test_a_core_that_dies_is_closed_and_named() -> None:
    core = ScriptedCore()
    client = ThreadCoreClient(lambda: core, title="the core gpu-8b")
    await client.start()
    request = AddRequest(
        request_id="r", model="m", prompt_token_ids=[1], sampling=SamplingParams(max_tokens=3), salt="explode"
    )
    with pytest.raises(CoreGoneError, match="the core gpu-8b died"):
        async for _ in client.generate(request):
            pass
    await client.close()
    assert core.closed


async def test_a_core_that_cannot_be_loaded_has_nothing_to_close() -> None:
    def load():
        raise RuntimeError("no such card")

    with pytest.raises(CoreGoneError, match="the core card died: RuntimeError: no such card"):
        await asyncio.wait_for(ThreadCoreClient(load, title="the core card").start(), 120)
