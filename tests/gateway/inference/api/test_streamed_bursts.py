"""What a server elsewhere sends at once is passed on at once, and nothing waits for more than that."""

from collections.abc import AsyncIterator
from types import SimpleNamespace
from typing import Any, cast

import pytest

from gateway.edge.response_cycle import DisconnectWatch
from gateway.inference.answer import Answer
from gateway.inference.api.answers import Chunks
from gateway.inference.api.sending import EventResponse, KeepAlive
from tiers.conversation import FieldNames
from tiers.tier import Delta


class GivenAnswer:
    """Deltas, and then the error if there is one."""

    def __init__(self, deltas: list[Delta], error: Exception | None = None) -> None:
        self._deltas, self._error = deltas, error
        self.request = SimpleNamespace(names=FieldNames())

    async def __aiter__(self) -> AsyncIterator[Delta]:
        for delta in self._deltas:
            yield delta
        if self._error is not None:
            raise self._error

    async def aclose(self) -> None:
        pass


class PlainChunks:
    """Events that are the texts alone."""

    def opening(self) -> bytes:
        return b"<"

    def piece(self, delta: Delta) -> bytes:
        return delta.text.encode()

    def closing(self, answer: Answer) -> bytes:
        return b">"

    def failed(self, error: Exception) -> bytes:
        return b"!"


async def never() -> Any:
    raise AssertionError("nothing is received")


async def sent(deltas: list[Delta], error: Exception | None = None) -> list[bytes]:
    """The bodies that reach the server; only the last one says that it is."""
    bodies: list[bytes] = []
    more: list[bool] = []

    async def send(message: Any) -> None:
        bodies.append(message["body"])
        more.append(message["more_body"])

    response = EventResponse(
        cast(Answer, GivenAnswer(deltas, error)),
        cast(Chunks, PlainChunks()),
        [],
        DisconnectWatch(cast(Any, {}), never),
        KeepAlive(send, [], b"", 60.0),
        started=True,
        stalled_seconds=10.0,
    )
    await response(cast(Any, {}), never, send)
    assert more == [True] * (len(bodies) - 1) + [False]
    return bodies


@pytest.mark.asyncio
async def test_pieces_that_came_at_once_are_one_write_and_others_are_their_own() -> None:
    deltas = [Delta(text="a", pieces=3), Delta(text="b"), Delta(text="c"), Delta(text="d", pieces=1), Delta(text="e")]
    assert await sent(deltas) == [b"<abc", b"d", b"e", b">"]


@pytest.mark.asyncio
async def test_tokens_of_an_own_tier_are_passed_on_one_by_one() -> None:
    assert await sent([Delta(text="a"), Delta(text="b")]) == [b"<a", b"b", b">"]


@pytest.mark.asyncio
async def test_what_came_before_a_failure_is_passed_on() -> None:
    deltas = [Delta(text="a", pieces=3), Delta(text="b")]
    assert await sent(deltas, ValueError("broken")) == [b"<ab!"]


@pytest.mark.asyncio
async def test_fewer_pieces_than_were_announced_do_not_hold_back_the_end() -> None:
    assert await sent([Delta(text="a", pieces=3), Delta(text="b")]) == [b"<ab>"]
