"""The benchmark's HTTP client: what it sends, when text counts as come, what it makes of bad answers."""

import asyncio
import json
import time

import pytest

from gateway.planning.load_test.http_target import HttpTarget
from gateway.planning.load_test.run import AskError, Timing
from gateway.planning.load_test.workload import Job

HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"


def event(**fields):
    return b"data: " + json.dumps(fields).encode() + b"\n\n"


def chunk(data):
    return b"%x\r\n%s\r\n" % (len(data), data)


TEXT = event(choices=[{"index": 0, "text": "word"}])
USAGE = event(choices=[], usage={"prompt_tokens": 9, "completion_tokens": 3, "total_tokens": 12})
DONE = b"data: [DONE]\n\n"


class Server:
    """Answers each request with the next of `answers`, byte for byte, None with the connection's end, and keeps what
    it was sent."""

    def __init__(self, *answers):
        self.answers = list(answers)
        self.bodies, self.heads = [], []
        self.connections = 0

    async def __aenter__(self):
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        port = self._server.sockets[0].getsockname()[1]
        self.url = f"http://127.0.0.1:{port}"
        self.target = HttpTarget(self.url, "tier-1")
        return self

    async def __aexit__(self, *_):
        await self.target.close()
        self._server.close()
        await self._server.wait_closed()

    async def _serve(self, reader, writer):
        self.connections += 1
        try:
            while self.answers:
                head = (await reader.readuntil(b"\r\n\r\n")).decode().lower()
                length = int(head.split("content-length:")[1].split()[0])
                self.heads.append(head)
                self.bodies.append(json.loads(await reader.readexactly(length)))
                if (answer := self.answers.pop(0)) is None:
                    break
                writer.write(answer)
                await writer.drain()
        except asyncio.IncompleteReadError:
            pass
        finally:
            writer.close()

    async def ask(self):
        timing = Timing(asked=3)
        await self.target.ask(Job("some words", 3), time.perf_counter(), timing)
        return timing


WHOLE = HEAD + chunk(TEXT) + chunk(TEXT) + chunk(TEXT) + chunk(USAGE + DONE) + b"0\r\n\r\n"


async def test_a_streamed_answer_is_timed_piece_by_piece_and_counted_by_its_usage():
    async with Server(WHOLE) as server:
        timing = await server.ask()

    assert timing.ttft > 0
    assert len(timing.gaps) == 2
    assert (timing.prompt_tokens, timing.output_tokens, timing.has_usage) == (9, 3, True)
    assert server.bodies == [
        {
            "model": "tier-1",
            "prompt": "some words",
            "max_tokens": 3,
            "temperature": 0,
            "ignore_eos": True,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
    ]


async def test_a_key_goes_to_the_server_and_no_cached_answer_is_measured():
    async with Server(WHOLE, WHOLE) as server:
        await server.ask()
        target = HttpTarget(server.url, "tier-1", "sk-1")
        await target.ask(Job("some words", 3), time.perf_counter(), Timing(asked=3))
        await target.close()

    assert "authorization" not in server.heads[0]
    assert "authorization: bearer sk-1\r\n" in server.heads[1]
    assert all("x-aio-cache: off\r\n" in head for head in server.heads)


async def test_events_may_be_cut_anywhere_and_those_without_text_are_no_pieces():
    stream = event(choices=[{"index": 0, "text": ""}]) + TEXT + USAGE + DONE
    parts = [stream[i : i + 7] for i in range(0, len(stream), 7)]
    async with Server(HEAD + b"".join(map(chunk, parts)) + b"0\r\n\r\n") as server:
        timing = await server.ask()

    assert (timing.gaps, timing.output_tokens) == ([], 3)
    assert timing.ttft is not None


async def test_a_connection_is_used_again_after_a_whole_answer():
    async with Server(WHOLE, WHOLE) as server:
        await server.ask()
        await server.ask()

        assert server.connections == 1


async def test_a_kept_connection_that_the_server_has_closed_costs_no_request():
    async with Server(WHOLE, None, WHOLE) as server:
        await server.ask()
        timing = await server.ask()

        assert (server.connections, timing.output_tokens) == (2, 3)


REFUSAL = b"HTTP/1.1 429 Too Many\r\nContent-Length: 12\r\n\r\nslow down ok"


@pytest.mark.parametrize(
    ("answer", "kind", "message"),
    [
        (REFUSAL, "http 429", "slow down ok"),
        (HEAD + chunk(TEXT), "connection", ""),
        (HEAD + chunk(event(error={"message": "lost"})) + b"0\r\n\r\n", "bad or error event", "lost"),
        (HEAD + chunk(b"data: {broken\n\n") + b"0\r\n\r\n", "bad or error event", ""),
        (b"no HTTP", "connection", "not HTTP"),
    ],
)
async def test_an_answer_that_fails_says_how(answer, kind, message):
    async with Server(answer) as server:
        with pytest.raises(AskError) as raised:
            await server.ask()

    assert raised.value.kind == kind
    assert message in str(raised.value)


async def test_a_server_that_is_not_there_is_a_connection_error():
    async with Server() as server:
        target = server.target
    with pytest.raises(AskError) as raised:
        await target.ask(Job("words", 3), time.perf_counter(), Timing(asked=3))

    assert raised.value.kind == "connection"
