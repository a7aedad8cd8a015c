"""The pieces and tokens of a server's stream, and the time that it waited there."""

from typing import Any

import pytest

from gateway.inference.answer import Stamps
from tests.support.upstream import Call, LoopbackServer
from tests.tiers.tier_world import chat, remote_spec
from tiers.remote.remote_tier import RemoteTier
from tiers.tier import Delta

DONE = b"data: [DONE]\n\n"


async def streamed(*events: Any, **request: Any) -> list[Delta]:
    """All deltas of a server's answer of these events, each of which is a chunk's text, or its fields, or its usage."""

    async def say(call: Call) -> None:
        await call.begin()
        for event in events:
            if isinstance(event, str):
                await call.chunk(event)
            elif "completion_tokens" in event:
                await call.event({"choices": [], "usage": event})
            else:
                await call.chunk(**event)
        for index in range(request.get("n", 1)):
            await call.chunk(finish="stop", index=index)
        await call.send(DONE)

    async with LoopbackServer(say) as server:
        tier = RemoteTier(remote_spec(server.base_url))
        deltas = [delta async for delta in tier.generate(chat(**{"max_tokens": 200} | request))]
        await tier.close()
    return deltas


def used(completion_tokens: int, reasoning_tokens: int = 0) -> dict[str, Any]:
    details = {"reasoning_tokens": reasoning_tokens}
    return {"prompt_tokens": 9, "completion_tokens": completion_tokens, "completion_tokens_details": details}


async def test_every_piece_of_output_is_counted_and_a_servers_count_of_tokens_is_passed_on() -> None:
    call = {"tool_calls": [{"index": 0, "id": "c", "function": {"name": "f", "arguments": '{"a": 1}'}}]}
    deltas = await streamed("One", " two", {"reasoning_content": "hm"}, call, used(9))
    assert sum(delta.pieces for delta in deltas) == 4
    assert deltas[-1].end.streamed_tokens == 9


@pytest.mark.parametrize(
    ("events", "tokens"),
    [
        (["One", " two"], None),
        (["One", used(0)], None),
        ([used(1), "One"], None),
        (["One", used(100, 80)], 20),
        ([{"reasoning_content": "hm"}, "One", used(100, 80)], 100),
    ],
    ids=["not counted", "nothing counted", "counted before the end", "hidden thoughts", "shown thoughts"],
)
async def test_tokens_are_those_that_the_server_streamed_and_only_where_it_counted_all(
    events: list[Any], tokens: int | None
) -> None:
    assert (await streamed(*events))[-1].end.streamed_tokens == tokens


async def test_a_request_that_waited_longer_than_usual_says_how_long_it_was_in_the_queue() -> None:
    now = 0.0
    takes = iter([0.5, 8.0])

    async def say(call: Call) -> None:
        nonlocal now
        now += next(takes)
        await call.begin()
        await call.chunk("Hello")
        await call.chunk(finish="stop")
        await call.send(DONE)

    async with LoopbackServer(say) as server:
        tier = RemoteTier(remote_spec(server.base_url), clock=lambda: now)
        waited = [[delta async for delta in tier.generate(chat())][-1].end.times.queue_seconds for _ in range(2)]
        await tier.close()
    assert waited[0] == 0
    assert waited[1] == 7.5


def stamps_of(*pieces: tuple[float, int]) -> Stamps:
    stamps = Stamps(arrival=0.0, routed=0.0, began=0.0)
    for at, count in pieces:
        stamps.take_pieces(at, count)
    return stamps


def test_eleven_pieces_one_second_after_the_first_are_ten_tokens_a_second() -> None:
    stamps = stamps_of(*((4.0 + 0.1 * number, 1) for number in range(11)))
    assert stamps.tokens_per_second == pytest.approx(10)
    stamps.scale_to(11)
    assert stamps.tokens_per_second == pytest.approx(10)


def test_the_servers_count_says_how_many_tokens_its_pieces_are() -> None:
    """Four tokens in each piece, and two pieces that came at once."""
    stamps = stamps_of((1.0, 1), (1.5, 2), (2.0, 1))
    stamps.scale_to(16)
    assert stamps.gaps == [(0.5, 8.0), (0.5, 4.0)]
    assert stamps.tokens_per_second == pytest.approx(12)


def test_one_piece_has_no_speed() -> None:
    stamps = stamps_of((1.0, 1))
    stamps.scale_to(50)
    assert stamps.tokens_per_second is None
