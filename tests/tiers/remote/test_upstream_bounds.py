"""Heads, bodies and streams of a hostile server end at their bounds and in their time, over real sockets."""

import asyncio
import gzip
import zlib
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import httpx
import pytest

from tests.attacks.hostile_wires import WIRES, HostileWire
from tests.tiers.remote.test_http_transport import request_of, soon, upstream
from tests.tiers.tier_world import chat, collect, remote_spec
from tiers.dialects.usage_counter import MOST_CALLS, bounds_of
from tiers.errors import TierAnswerError, TierAnswerTooLongError, TierError, TierUnavailableError
from tiers.remote.http_connection import HEAD_BYTES, HIGH_WATER, MAX_HEADERS, READ_BYTES, OversizedHeadError
from tiers.remote.http_exchange import RefusedBodyError, bounded_answer, pieces_of, up_to
from tiers.remote.http_transport import HttpTransport
from tiers.remote.remote_tier import RemoteTier
from tiers.tier import Delta, GenerationRequest

pytestmark = pytest.mark.processes

Write = Callable[[bytes], Awaitable[None]]
Body = Callable[[Write], Awaitable[None]]
REQUEST = b"POST /v1/x HTTP/1.1\r\ncontent-length: 2\r\n\r\n{}"
MOST = 64 * 2**20
"""What a server here sends at most: an unbounded reader takes all of it."""


def sending(*pieces: bytes, again: bytes = b"", pause: float = 0.0) -> Body:
    """Send `pieces`, and then `again` until `MOST` bytes are sent or the client has gone."""

    async def body(write: Write) -> None:
        for piece in pieces:
            await write(piece)
        left = MOST if again else 0
        while left > 0:
            await write(again)
            left -= len(again)
            await asyncio.sleep(pause)

    return body


class Sent:
    """The bytes that a server could send before its client left."""

    def __init__(self) -> None:
        self.bytes = 0


@asynccontextmanager
async def transport_before(body: Body) -> AsyncIterator[tuple[HttpTransport, str, Sent]]:
    sent = Sent()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.transport.set_write_buffer_limits(READ_BYTES)
        while True:
            await request_of(reader)

            async def write(data: bytes) -> None:
                writer.write(data)
                await writer.drain()
                sent.bytes += len(data)

            await body(write)

    async with upstream(serve) as server:
        yield server.transport, server.url, sent


async def head_and_body(transport: HttpTransport, deadline: float, most: int = MOST) -> bytes:
    """The body as a tier reads it."""
    reply = await transport.send(REQUEST, 5.0, 20.0, deadline)
    try:
        return await up_to(most, pieces_of(reply, lenient=True), lenient=True)
    finally:
        await reply.aclose()


HEAD = b"HTTP/1.1 200 OK\r\n"
CHUNKED = HEAD + b"transfer-encoding: chunked\r\n\r\n"
FLOODS = {
    "many headers": sending(HEAD, again=b"x-a: b\r\n" * 1000),
    "a long value": sending(HEAD + b"x-a: ", again=b"v" * 60_000),
    "a long value in pieces": sending(HEAD + b"x-a: ", again=b"v" * 700),
    "a long reason": sending(b"HTTP/1.1 200 ", again=b"O" * 60_000),
    "interim answers": sending(again=b"HTTP/1.1 100 Continue\r\n\r\n" * 1000),
    "interim headers": sending(again=b"HTTP/1.1 103 Early\r\nlink: " + b"x" * 30_000 + b"\r\n\r\n"),
    "many trailers": sending(CHUNKED + b"2\r\nhi\r\n0\r\n", again=b"x-a: b\r\n" * 1000),
    "a long trailer": sending(CHUNKED + b"2\r\nhi\r\n0\r\nx-a: ", again=b"v" * 60_000),
    "a long extension": sending(CHUNKED + b"2;", again=b"x" * 60_000),
    "many extensions": sending(CHUNKED, again=b"1;" + b"x" * 300 + b"\r\nh\r\n"),
}


@pytest.mark.parametrize("body", FLOODS.values(), ids=FLOODS)
async def test_what_is_no_body_ends_the_exchange_at_its_limit(body: Body) -> None:
    async with transport_before(body) as (transport, _, sent):
        with pytest.raises(OversizedHeadError):
            await head_and_body(transport, soon())

    # Beyond the limit there is only what both kernels and one read of the loop hold.
    assert sent.bytes < MOST // 4


@pytest.mark.parametrize("cut", [1, 700, 10**6])
async def test_a_head_at_its_limits_is_read_however_it_is_cut(cut: int) -> None:
    filler = b"".join(b"x-%d: a\r\n" % number for number in range(MAX_HEADERS - 2))
    start = HEAD + filler + b"content-length: 5\r\nx: "
    raw = start + b"v" * (HEAD_BYTES - len(start) - 4) + b"\r\n\r\nhello"
    pieces = [raw[offset : offset + cut] for offset in range(0, len(raw), cut)]
    async with transport_before(sending(*pieces)) as (transport, _, _):
        assert await head_and_body(transport, soon()) == b"hello"


async def test_some_trailers_extensions_and_interim_answers_are_no_matter() -> None:
    raw = b"HTTP/1.1 103 Early Hints\r\nlink: </x>\r\n\r\n" * 3 + CHUNKED
    raw += b"1;a=b\r\nh\r\n" * 20_000 + b"0\r\nx-a: b\r\n\r\n"
    async with transport_before(sending(raw)) as (transport, _, _):
        for _ in range(2):
            assert await head_and_body(transport, soon()) == b"h" * 20_000


DRIPS = {
    "a head": sending(HEAD + b"x-a: ", again=b"v", pause=0.02),
    "interim answers": sending(again=b"HTTP/1.1 100 Continue\r\n\r\n", pause=0.02),
    "an extension": sending(CHUNKED + b"1;", again=b"x", pause=0.02),
    "a body": sending(CHUNKED, again=b"1\r\nx\r\n", pause=0.02),
    "a body without a length": sending(HEAD + b"\r\n", again=b"x", pause=0.02),
}


@pytest.mark.parametrize("body", DRIPS.values(), ids=DRIPS)
async def test_one_deadline_ends_the_whole_exchange_whatever_drips(body: Body) -> None:
    async with transport_before(body) as (transport, _, _):
        deadline = asyncio.get_running_loop().time() + 0.3
        async with asyncio.timeout(60):
            with pytest.raises(httpx.ReadTimeout):
                await head_and_body(transport, deadline)


async def test_a_deadline_ends_an_answer_that_its_reader_does_not_read() -> None:
    gone = asyncio.Event()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await request_of(reader)
        writer.write(CHUNKED + b"5\r\nhello\r\n")
        try:
            await reader.read()
        finally:
            gone.set()

    async with upstream(serve) as server:
        deadline = asyncio.get_running_loop().time() + 0.3
        reply = await server.transport.send(REQUEST, 5.0, 20.0, deadline)
        await asyncio.wait_for(gone.wait(), 60)
        with pytest.raises(httpx.ReadTimeout):
            await up_to(MOST, pieces_of(reply))
        await reply.aclose()


async def test_a_reader_holds_little_of_an_answer_in_tiny_chunks() -> None:
    async with transport_before(sending(CHUNKED, again=b"2\r\nhi\r\n" * 1000)) as (transport, _, sent):
        reply = await transport.send(REQUEST, 5.0, 20.0, soon())
        pieces = pieces_of(reply)
        for _ in range(50):
            assert len(await anext(pieces)) <= READ_BYTES
            await asyncio.sleep(0.001)
        await reply.aclose()

    # Each of these chunks counts as far more than its two bytes.
    assert sent.bytes < MOST // 4 + HIGH_WATER


def zipped(layers: int, mebibytes: int = 32) -> bytes:
    body = bytes(mebibytes * 2**20)
    for _ in range(layers):
        body = gzip.compress(body, 1, mtime=0)
    return body


def encoded(encoding: bytes, body: bytes) -> Body:
    return sending(HEAD + b"content-encoding: %b\r\ncontent-length: %d\r\n\r\n" % (encoding, len(body)) + body)


@pytest.mark.parametrize("encoding", [b"gzip, gzip", b"br", b"zstd", b"gzip, identity", b"x" * 2000])
async def test_an_encoding_that_was_not_asked_for_is_refused_undecoded(encoding: bytes) -> None:
    async with transport_before(encoded(encoding, zipped(2))) as (transport, _, _):
        with pytest.raises(RefusedBodyError, match="was not asked for"):
            await head_and_body(transport, soon())


@pytest.mark.parametrize(("encoding", "body"), [(b"gzip", zipped(1)), (b"deflate", zlib.compress(bytes(2**25), 1))])
async def test_one_layer_is_decoded_in_pieces_up_to_what_is_read(encoding: bytes, body: bytes) -> None:
    async with transport_before(encoded(encoding, body)) as (transport, _, _):
        assert len(await head_and_body(transport, soon(), 100_000)) <= 100_000 + READ_BYTES


PLAIN = b'{"text": "' + "größe".encode() * 9 + b'"}'


@pytest.mark.parametrize(
    ("encoding", "body"),
    [
        (b"gzip", gzip.compress(PLAIN[:9]) + gzip.compress(PLAIN[9:]) + bytes(8)),
        (b"deflate", zlib.compress(PLAIN)),
        (b"deflate", zlib.compress(PLAIN)[2:-4]),
        (b"UTF-8", PLAIN),
    ],
    ids=["members", "zlib", "no header", "a charset"],
)
async def test_a_coding_is_read_as_servers_write_it(encoding: bytes, body: bytes) -> None:
    async with transport_before(encoded(encoding, body)) as (transport, _, _):
        assert await head_and_body(transport, soon()) == PLAIN


@pytest.mark.parametrize("encoding", [b"gzip", b"deflate"])
async def test_a_body_that_a_proxy_has_decoded_is_read_as_it_is(encoding: bytes) -> None:
    for body in (b'{"text": "hello"}', b"data: {}\n\n"):
        async with transport_before(encoded(encoding, body)) as (transport, _, _):
            assert await head_and_body(transport, soon()) == body


@pytest.mark.parametrize(
    ("body", "problem"),
    [
        (encoded(b"gzip, gzip", zipped(2)), RefusedBodyError),
        (encoded(b"gzip", zipped(1)), RefusedBodyError),
        (encoded(b"gzip", b'{"text": "hello"}'), RefusedBodyError),
        (encoded(b"utf-8", b'{"text": "hello"}'), RefusedBodyError),
        (sending(HEAD + b"\r\n", again=b"x" * 10_000), RefusedBodyError),
        (sending(HEAD + b"content-length: 999\r\n\r\n", again=b"x", pause=0.02), httpx.ReadTimeout),
        (sending(again=b"HTTP/1.1 100 Continue\r\n\r\n", pause=0.02), httpx.ReadTimeout),
        (sending(HEAD, again=b"x-a: b\r\n" * 1000), httpx.RemoteProtocolError),
    ],
    ids=[
        "two layers",
        "a bomb",
        "no coding",
        "a charset",
        "no end",
        "a dripped body",
        "dripped interim answers",
        "a head",
    ],
)
async def test_an_answer_to_a_client_of_httpx_has_the_same_bounds(body: Body, problem: type[Exception]) -> None:
    async with transport_before(body) as (_, url, _), httpx.AsyncClient(trust_env=False) as client:
        with pytest.raises(problem):
            await bounded_answer(client, client.build_request("POST", url, content=b"{}"), 100_000, 2.0)


# Tiers: every wire, as streams and whole.


def tier_on(wire: str, url: str, **fields: object) -> RemoteTier:
    kind = {"triton": "triton-vllm"}.get(wire, wire)
    spec = remote_spec(url, kind=kind, api_key_env="THE_KEY", **fields)
    return RemoteTier(spec, environ={"THE_KEY": "k"})


def asked(wire: str, **fields: object) -> GenerationRequest:
    request = chat(**fields)
    if wire != "triton":
        return request
    return GenerationRequest(request_id="r1", sampling=request.sampling, prompt="hi", max_tokens=16, **fields)


@asynccontextmanager
async def tier_before(wire: str, body: Body, **fields: object) -> AsyncIterator[tuple[RemoteTier, Sent]]:
    async with transport_before(body) as (_, url, sent):
        tier = tier_on(wire, url.removesuffix("/x"), **fields)
        try:
            yield tier, sent
        finally:
            await tier.close()


async def said_until(tier: RemoteTier, request: GenerationRequest) -> tuple[list[Delta], TierError]:
    """Return the deltas before the failure, and the failure."""
    said: list[Delta] = []
    try:
        async for delta in tier.generate(request):
            said.append(delta)  # noqa: PERF401 - those before a failure
    except TierError as error:
        return said, error
    raise AssertionError("the tier did not fail")


def stream(wire: str, event: bytes) -> Body:
    kind = HostileWire(wire).content_type.encode()
    begin = HostileWire(wire).begin()
    return sending(HEAD + b"content-type: %b\r\n\r\n" % kind + begin, again=event * max(1, 30_000 // len(event)))


@pytest.mark.parametrize("wire", WIRES)
@pytest.mark.parametrize("size", [1, 3000])
async def test_text_beyond_all_measure_ends_the_attempt_and_is_billed_by_our_count(wire: str, size: int) -> None:
    async with tier_before(wire, stream(wire, HostileWire(wire).text("a" * size))) as (tier, sent):
        request = asked(wire)
        said, error = await said_until(tier, request)

    assert isinstance(error, TierAnswerTooLongError)
    text = sum(len(delta.text) for delta in said)
    bounds = bounds_of(1, request.max_tokens or 0, None)
    assert 0 < text <= bounds.said + READ_BYTES
    assert sent.bytes < MOST // 4
    assert request.meter.usage().completion_tokens == min(request.max_tokens or 0, -(-text // 4))


@pytest.mark.parametrize("wire", WIRES)
async def test_thoughts_and_arguments_of_a_call_count_as_text(wire: str) -> None:
    flood = HostileWire(wire)
    for event in (flood.reasoning("a" * 3000), flood.call(0, "x" * 3000), flood.logprobs(50), flood.choices(100)):
        async with tier_before(wire, stream(wire, event)) as (tier, sent):
            _, error = await said_until(tier, asked(wire))
        assert isinstance(error, TierAnswerError), event[:100]
        assert sent.bytes < MOST // 4


@pytest.mark.parametrize("wire", ["openai", "anthropic", "gemini", "bedrock"])
async def test_calls_have_a_highest_number(wire: str) -> None:
    flood = HostileWire(wire)
    calls = b"".join(flood.call(number, "") for number in range(MOST_CALLS + 1))
    async with tier_before(wire, stream(wire, calls), max_context=100_000) as (tier, _):
        said, error = await said_until(tier, chat(max_tokens=5000))

    assert isinstance(error, TierAnswerTooLongError)
    assert all(call.index < MOST_CALLS for delta in said for call in delta.tool_calls)


@pytest.mark.parametrize("number", [10**9, -1])
async def test_a_call_with_a_number_that_cannot_be_is_refused(number: int) -> None:
    async with tier_before("openai", stream("openai", HostileWire("openai").call(number))) as (tier, _):
        _, error = await said_until(tier, chat())

    assert isinstance(error, TierAnswerTooLongError)


def whole(body: bytes, again: bytes) -> Body:
    return sending(HEAD + b"content-type: application/json\r\n\r\n" + body, again=again)


@pytest.mark.parametrize("wire", WIRES)
@pytest.mark.parametrize("again", [b"a" * 30_000, b'"},{"a": "' * 3000], ids=["text", "objects"])
async def test_a_whole_answer_ends_at_its_bound(wire: str, again: bytes) -> None:
    before, _ = HostileWire(wire).whole_around()
    async with tier_before(wire, whole(before, again)) as (tier, sent):
        _, error = await said_until(tier, asked(wire, whole=True))

    assert isinstance(error, TierAnswerTooLongError)
    assert sent.bytes < MOST // 4


async def test_an_answer_of_objects_alone_is_refused_before_it_is_read() -> None:
    objects = b'data: {"choices": [' + b"{}," * 300_000 + b"{}]}\n\n"
    async with tier_before("openai", stream("openai", objects), max_context=100_000) as (tier, _):
        _, error = await said_until(tier, chat(max_tokens=1000))

    assert isinstance(error, TierAnswerTooLongError)
    assert "values in one event" in str(error)


@pytest.mark.parametrize("wire", WIRES)
async def test_one_deadline_ends_a_stream_an_error_and_a_whole_answer_that_drip(wire: str) -> None:
    flood = HostileWire(wire)
    kind = flood.content_type.encode()
    begin = HEAD + b"content-type: %b\r\n\r\n" % kind + flood.begin()
    bodies = {
        "stream": (sending(begin, again=flood.text("a"), pause=0.02), False),
        "error": (sending(b"HTTP/1.1 400 X\r\ncontent-type: text/plain\r\n\r\n", again=b"a", pause=0.02), False),
        "whole": (sending(HEAD + b"content-type: application/json\r\n\r\n", again=b" ", pause=0.02), True),
    }
    for name, (body, is_whole) in bodies.items():
        limits = {"total_timeout_seconds": 0.4, "read_timeout_seconds": 0.3}
        async with tier_before(wire, body, **limits) as (tier, _), asyncio.timeout(60):
            _, error = await said_until(tier, asked(wire, whole=is_whole))
        assert isinstance(error, TierUnavailableError), name


@pytest.mark.parametrize("is_whole", [False, True])
@pytest.mark.parametrize(
    "name", ["many headers", "a long value", "interim answers", "many trailers", "a long extension"]
)
async def test_through_a_proxys_transport_floods_end_too(name: str, is_whole: bool) -> None:
    """httpx's own transport, which an HTTP proxy of the environment needs."""
    async with transport_before(FLOODS[name]) as (_, url, sent), asyncio.timeout(60):
        tier = proxied(url, total_timeout_seconds=3.0, read_timeout_seconds=3.0)
        _, error = await said_until(tier, chat(whole=is_whole))
        await tier.close()

    assert isinstance(error, TierUnavailableError | TierAnswerError)
    assert sent.bytes < MOST


@pytest.mark.parametrize("name", DRIPS)
async def test_through_a_proxys_transport_one_deadline_ends_drips_too(name: str) -> None:
    async with transport_before(DRIPS[name]) as (_, url, _), asyncio.timeout(60):
        tier = proxied(url, total_timeout_seconds=0.4, read_timeout_seconds=0.3)
        _, error = await said_until(tier, chat())
        await tier.close()

    assert isinstance(error, TierUnavailableError | TierAnswerError)


async def test_through_a_proxys_transport_bodies_have_the_same_bounds() -> None:
    text = HostileWire("openai").text("a" * 3000)
    for body in (stream("openai", text), encoded(b"gzip, gzip", zipped(2)), whole(b'{"a": "', b"a" * 30_000)):
        async with transport_before(body) as (_, url, sent):
            tier = proxied(url)
            _, error = await said_until(tier, chat())
            await tier.close()
        assert isinstance(error, TierAnswerError)
        assert sent.bytes < MOST // 2


def proxied(url: str, **fields: object) -> RemoteTier:
    spec = remote_spec(url.removesuffix("/x"), **fields)
    return RemoteTier(spec, connect=lambda _: httpx.AsyncHTTPTransport())


async def test_a_long_message_of_a_server_is_cut() -> None:
    message = b'{"error": {"message": "%b"}}' % (b"m" * 60_000)
    raw = b"HTTP/1.1 400 X\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n%b" % (len(message), message)
    async with tier_before("openai", sending(raw)) as (tier, _):
        _, error = await said_until(tier, chat())

    assert len(str(error)) < 3000


@pytest.mark.parametrize("limit", [1, 16, 2048])
async def test_an_honest_answer_of_wide_tokens_is_within_all_bounds(limit: int) -> None:
    """The longest tokens of known vocabularies, each in an event with the usual envelope."""
    flood = HostileWire("openai")
    event = flood.text(" " * 128).replace(b"{", b'{"id": "%b",' % (b"x" * 600), 1)
    head = HEAD + b"content-type: text/event-stream\r\n\r\n"
    async with tier_before("openai", sending(head + event * limit + flood.end()), max_context=100_000) as (tier, _):
        answers, _ = await collect(tier, chat(max_tokens=limit))

    assert len(answers[0].text) == 128 * limit


def test_bounds_grow_with_what_was_asked_for() -> None:
    plain = bounds_of(1, 100, None)
    many = bounds_of(4, 100, None)
    huge = bounds_of(128, 10**6, None)

    assert plain.said < many.said < huge.said
    assert plain.wire < many.wire < huge.wire
    assert huge.wire <= 2**28
