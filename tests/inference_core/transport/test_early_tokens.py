"""Tokens of a real core that leave in the middle of a call reach the client of every transport once, in order."""

import asyncio
import socket
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from inference_core.engine.core import Core
from inference_core.loading.load_core import load_core
from inference_core.model_spec import CoreSpec, ModelSpec
from inference_core.native import cpu
from inference_core.protocol import AddRequest, Hello, SamplingParams, SequenceOutput
from inference_core.protocol.token_channel import SharedCount
from inference_core.transport.client import CoreClient
from inference_core.transport.server import CoreConnection
from tests.inference_core.tiny_gguf import decoder_weights, write_gguf

pytestmark = [
    pytest.mark.skipif(not cpu.AVAILABLE, reason="the native kernels were not built (no C++ compiler)"),
    pytest.mark.skipif(sys.platform != "linux", reason="tokens leave early on Linux alone"),
]

TOKENS = 56


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_gguf(tmp_path_factory.mktemp("tiny") / "tiny.gguf", decoder_weights(seed=2))


async def decoding(connect: Callable[..., Any], model: Path) -> CoreClient:
    """The client of a core that takes up to eight decode steps in one call."""

    def make() -> Core:
        spec = ModelSpec(name="m", path=str(model), compute="int4-int8", max_context=64)
        return load_core(CoreSpec(models=[spec], arena_bytes=4 << 20, slab_bytes=1 << 18, threads=1), model.parent)

    client: CoreClient = await connect(make)
    await client.set_knobs({"decode_steps": 8, "itl_objective_ms": 60_000.0, "prefix_caching": False})
    return client


async def answer(client: CoreClient, steps: int, *, n: int = 1) -> list[SequenceOutput]:
    await client.set_knobs({"decode_steps": steps})
    sampling = SamplingParams(temperature=0.9, max_tokens=TOKENS, ignore_eos=True, seed=3, logprobs=2)
    request = AddRequest(request_id="r", model="m", prompt_token_ids=[1, 2], sampling=sampling, n=n)
    return [output async for output in client.generate(request)]


def choice(outputs: list[SequenceOutput], index: int) -> tuple[list[int], list[Any]]:
    of_it = [output for output in outputs if output.index == index]
    return [t for o in of_it for t in o.token_ids], [t for o in of_it for t in o.logprobs or []]


async def test_answers_are_those_of_single_steps(connect: Callable[..., Any], model: Path) -> None:
    client = await decoding(connect, model)

    single, several = [await answer(client, steps, n=2) for steps in (1, 8)]

    assert [choice(several, index) for index in (0, 1)] == [choice(single, index) for index in (0, 1)]
    assert {output.request_id for output in several} == {"r"}


async def test_tokens_leave_before_the_end_of_the_call(connect: Callable[..., Any], model: Path) -> None:
    client = await decoding(connect, model)
    # A client that is slow may get those of some calls together.
    while True:
        outputs = await answer(client, 8)
        if len(outputs) > 1 + TOKENS // 8 * 2:
            break

    assert sum(len(output.token_ids) for output in outputs) == TOKENS
    assert outputs[-1].completion_tokens == TOKENS


async def test_a_request_that_is_closed_in_the_middle_of_a_call_frees_its_blocks(
    connect: Callable[..., Any], model: Path
) -> None:
    client = await decoding(connect, model)
    await answer(client, 8)
    sampling = SamplingParams(temperature=0, max_tokens=TOKENS, ignore_eos=True)
    outputs = client.generate(AddRequest(request_id="r", model="m", prompt_token_ids=[1, 2], sampling=sampling))
    await anext(outputs)
    await anext(outputs)

    await outputs.aclose()

    stats = (await client.stats()).models[0]
    assert (stats.running, stats.blocks_in_use) == (0, 0)
    assert choice(await answer(client, 8), 0) == choice(await answer(client, 1), 0)


class FullTransport(asyncio.WriteTransport):
    """Keeps `unread` bytes of what is written."""

    unread = 0

    def write(self, data: object) -> None:
        self.unread = 1

    def get_write_buffer_size(self) -> int:
        return self.unread


def test_no_token_follows_half_a_frame() -> None:
    ours, theirs = socket.socketpair()
    transport = FullTransport({"socket": ours})
    bounds = {"max_unread_bytes": 9, "max_frame_bytes": 1 << 10}
    connection = CoreConnection(
        opened=lambda _: None, command=lambda *_: None, closed=lambda _: None, number=1, queued=SharedCount(), **bounds
    )
    connection.connection_made(transport)
    channel = connection.channel
    assert channel is not None
    assert channel.queued.value == channel.written.value

    connection.send([Hello(models=[])])
    assert channel.queued.value != channel.written.value
    connection.note_written(0)
    assert channel.queued.value != channel.written.value

    transport.unread = 0
    connection.note_written(0)
    assert channel.queued.value == channel.written.value
    ours.close()
    theirs.close()
