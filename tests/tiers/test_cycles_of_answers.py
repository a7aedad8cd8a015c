"""What an answer was made of goes with its end, however it ends: cycles would hold its texts until a collection of
garbage, which is rare where most objects last, and make it look through more."""

from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import aclosing, asynccontextmanager, suppress
from typing import Any

import pytest

from tests.left_by_cycles import left_by_cycles
from tests.support.upstream import Call, LoopbackServer
from tests.tiers.remote.test_remote import hello
from tests.tiers.replicas.test_replica_set import babble, break_off, broken, busy, end_at_once, reset, wrong_request
from tests.tiers.tier_world import chat, remote_spec
from tiers.errors import TierError
from tiers.remote.remote_tier import RemoteTier
from tiers.replicas.replica_set import ReplicaSet
from tiers.tier import Tier

Handler = Callable[[Call], Coroutine[Any, Any, None]]
ANSWERS = 5
OURS = ("tiers", "httptools")


async def cut_within_an_event(call: Call) -> None:
    await call.begin()
    await call.chunk("Hel")
    await call.send(b'data: {"choices": [{"index": 0, "delta": {"content": "l')


async def cut_within_a_chunk(call: Call) -> None:
    await call.begin_chunked()
    await call.send(b"ffff\r\ndata: ")


async def no_http(call: Call) -> None:
    await call.send(b"this is not HTTP\r\n\r\n")


@asynccontextmanager
async def tier_of(handler: Handler, servers: int) -> AsyncIterator[Tier]:
    async with LoopbackServer(handler) as first, LoopbackServer(handler) as second:
        urls = [server.base_url for server in (first, second)][:servers]
        tier: Tier = ReplicaSet(remote_spec(base_urls=urls)) if servers > 1 else RemoteTier(remote_spec(urls[0]))
        yield tier
        await tier.close()


@pytest.mark.parametrize("servers", [1, 2])
@pytest.mark.parametrize(
    "handler",
    [
        hello, babble, break_off, broken, busy("1"), end_at_once, reset, wrong_request, cut_within_an_event,
        cut_within_a_chunk, no_http,
    ],
)  # fmt: skip
async def test_no_end_of_an_answer_leaves_a_cycle(handler: Handler, servers: int, earlier_objects_frozen: None) -> None:
    async with tier_of(handler, servers) as tier:
        with left_by_cycles(*OURS, least=ANSWERS) as left:
            for _ in range(ANSWERS):
                await ask(tier)
            assert left() == {}


@pytest.mark.parametrize("servers", [1, 2])
async def test_a_caller_who_leaves_leaves_no_cycle(servers: int, earlier_objects_frozen: None) -> None:
    async with tier_of(hello, servers) as tier:
        with left_by_cycles(*OURS, least=ANSWERS) as left:
            for _ in range(ANSWERS):
                await ask(tier, most=1)
            assert left() == {}


async def ask(tier: Tier, most: int | None = None) -> None:
    """Read an answer, or its first deltas, whatever becomes of it."""
    with suppress(TierError):
        async with aclosing(tier.generate(chat())) as deltas:
            async for _ in deltas:
                if most is not None and not (most := most - 1):
                    break
