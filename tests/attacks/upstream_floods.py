"""What a hostile upstream answers to exhaust a gateway: encodings, heads, bodies without a bound, and drips."""

import gzip
import zlib
from functools import lru_cache

from tests.attacks.hostile_upstream import Asked, upstream_answer

ENCODINGS = ("gzip", "gzip, gzip", "deflate", "gzip, identity, gzip", "x-gzip", "br", "zstd", "identity, gzip", "\x7f")
HEADS = ("many_headers", "huge_value", "huge_value_in_pieces", "endless_interim", "big_interim", "long_status_line")
FRAMES = ("trailers", "chunk_extensions", "one_huge_extension")
FLOODS = ("texts", "thoughts", "tool_calls", "one_call", "logprobs", "choices", "one_event", "empty_containers")
WHOLES = ("endless_whole", "whole_of_containers", "whole_of_calls", "error_body", "wrong_type")
DRIPS = ("dripped_head", "dripped_interim", "dripped_extensions", "dripped_error", "dripped_body", "dripped_comments")
PAGES = ("bomb", "endless_page", "error_body", "many_headers", "endless_interim", "whole_of_containers")
_PIECE = 64 * 1024


def _zeros(mebibytes: int, window: int) -> bytes:
    """A bomb, made without ever being its own size: a child engine counts as memory of the gateway."""
    packer = zlib.compressobj(wbits=window)
    return b"".join([packer.compress(bytes(2**20)) for _ in range(mebibytes)]) + packer.flush()


@lru_cache(maxsize=1)
def _zeros_twice() -> bytes:
    """64 MiB in a few hundred bytes."""
    return gzip.compress(_zeros(64, 31), mtime=0)


@lru_cache(maxsize=1)
def _deflated_zeros() -> bytes:
    return _zeros(64, 15)


@upstream_answer
async def bomb(asked: Asked) -> None:
    """A small body that is large once it is decoded, by the name of some encoding."""
    encoding = asked.draw.choice(ENCODINGS)
    await asked.head(b"content-encoding: " + encoding.encode(), status=asked.draw.choice([200, 200, 400]))
    await asked.send(_deflated_zeros() if encoding == "deflate" else _zeros_twice())


@upstream_answer
async def many_headers(asked: Asked) -> None:
    """A head without an end."""
    await asked.send(b"HTTP/1.1 200 X\r\n")
    number = 0
    while True:
        await asked.send(b"".join(b"x-%d: %d\r\n" % (number + i, i) for i in range(4000)))
        number += 4000


@upstream_answer
async def huge_value(asked: Asked) -> None:
    """A header whose value has no end."""
    await asked.send(b"HTTP/1.1 200 X\r\nx-a: ")
    while True:
        await asked.send(b"v" * _PIECE)


@upstream_answer
async def huge_value_in_pieces(asked: Asked) -> None:
    """The same, in pieces that are parsed one by one."""
    await asked.send(b"HTTP/1.1 200 X\r\nx-a: ")
    while True:
        await asked.send(b"v" * asked.draw.randint(1, 600))
        await asked.pause(0)


@upstream_answer
async def endless_interim(asked: Asked) -> None:
    """1xx heads without an end."""
    while True:
        await asked.send(b"HTTP/1.1 100 Continue\r\n\r\n" * 1000)


@upstream_answer
async def big_interim(asked: Asked) -> None:
    """1xx heads with headers."""
    while True:
        await asked.send(b"HTTP/1.1 103 Early Hints\r\nlink: " + b"x" * 30_000 + b"\r\n\r\n")


@upstream_answer
async def long_status_line(asked: Asked) -> None:
    """A reason phrase without an end."""
    await asked.send(b"HTTP/1.1 200 ")
    while True:
        await asked.send(b"O" * _PIECE)


@upstream_answer
async def trailers(asked: Asked) -> None:
    """A whole answer, and trailers without an end."""
    await asked.head(b"transfer-encoding: chunked")
    body = asked.wire.begin() + asked.wire.text("Hi") + asked.wire.end() if asked.streamed else asked.wire.whole("Hi")
    await asked.send(b"%x\r\n%b\r\n0\r\n" % (len(body), body))
    while True:
        await asked.send(b"".join(b"x-%d: y\r\n" % i for i in range(4000)))


@upstream_answer
async def chunk_extensions(asked: Asked) -> None:
    """Chunks of a byte with long extensions."""
    await asked.head(b"transfer-encoding: chunked")
    chunk = b"1;" + b"x" * asked.draw.randint(100, 4000) + b"\r\n \r\n"
    while True:
        await asked.send(chunk * 20)


@upstream_answer
async def one_huge_extension(asked: Asked) -> None:
    """A chunk whose extension has no end."""
    await asked.head(b"transfer-encoding: chunked")
    await asked.send(b"1;")
    while True:
        await asked.send(b"x" * _PIECE)


@upstream_answer
async def texts(asked: Asked) -> None:
    """Text without an end, in events of any size."""
    await asked.begin()
    event = asked.wire.text("a" * asked.draw.choice([1, 1, 30, 5000, 200_000]))
    while True:
        await asked.send(event * max(1, _PIECE // len(event)))


@upstream_answer
async def thoughts(asked: Asked) -> None:
    """The same of thoughts."""
    await asked.begin()
    event = asked.wire.reasoning("a" * asked.draw.choice([1, 30, 5000]))
    while True:
        await asked.send(event * max(1, _PIECE // len(event)))


@upstream_answer
async def tool_calls(asked: Asked) -> None:
    """Calls without an end; some have numbers far beyond their count."""
    await asked.begin()
    number = asked.draw.choice([0, 0, 10**6, 2**62])
    while True:
        await asked.send(b"".join(asked.wire.call(number + i) for i in range(100)))
        number += 100


@upstream_answer
async def one_call(asked: Asked) -> None:
    """One call whose arguments have no end."""
    await asked.begin()
    while True:
        await asked.send(asked.wire.call(0, "x" * 30_000))


@upstream_answer
async def logprobs(asked: Asked) -> None:
    """Log-probabilities of many tokens for each piece of text."""
    await asked.begin()
    event = asked.wire.logprobs(asked.draw.choice([1, 50, 1000]))
    while True:
        await asked.send(event)


@upstream_answer
async def choices(asked: Asked) -> None:
    """Choices beyond the number that was asked for."""
    await asked.begin()
    event = asked.wire.choices(asked.draw.choice([2, 100, 10_000]))
    while True:
        await asked.send(event)


@upstream_answer
async def one_event(asked: Asked) -> None:
    """An event without an end; of an event stream, one of 2 GiB."""
    await asked.begin()
    await asked.send(b"\x7f\xff\xff\xff\0\0\0\0" if asked.wire.name == "bedrock" else b"data: ")
    while True:
        await asked.send(b"x" * _PIECE)


@upstream_answer
async def empty_containers(asked: Asked) -> None:
    """An event of a million empty objects where a few are usual."""
    await asked.head()
    await asked.send(b'data: {"choices": [' + b"{}," * 10**6 + b'{}], "candidates": [' + b"{}," * 10**6 + b"{}]}\n\n")


@upstream_answer
async def endless_whole(asked: Asked) -> None:
    """A whole answer without an end, with a length or without."""
    await asked.head(*asked.draw.choice([(), (b"content-length: 9999999999",)]), kind="application/json")
    before, _ = asked.wire.whole_around()
    await asked.send(before)
    while True:
        await asked.send(b"a" * _PIECE)


@upstream_answer
async def whole_of_containers(asked: Asked) -> None:
    """A whole answer of a million empty objects."""
    key = asked.draw.choice([b"choices", b"content", b"candidates", b"outputs", b"data", b"inputs"])
    await asked.head(kind="application/json")
    await asked.send(b'{"' + key + b'": [' + b"{}," * 10**6 + b"{}]}")


@upstream_answer
async def whole_of_calls(asked: Asked) -> None:
    """A whole answer of very many calls."""
    call = b'{"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}},'
    await asked.head(kind="application/json")
    await asked.send(b'{"choices": [{"index": 0, "message": {"tool_calls": [' + call * 100_000)
    await asked.send(call[:-1] + b']}, "finish_reason": "tool_calls"}]}')


@upstream_answer
async def error_body(asked: Asked) -> None:
    """An error that does not end."""
    await asked.head(status=asked.draw.choice([400, 404, 422, 429]), kind="application/json")
    await asked.send(b'{"error": {"message": "')
    while True:
        await asked.send(b"a" * _PIECE)


@upstream_answer
async def wrong_type(asked: Asked) -> None:
    """A page of a proxy in place of an answer."""
    await asked.head(kind="text/html")
    while True:
        await asked.send(b"<p>" * 20_000)


@upstream_answer
async def dripped_head(asked: Asked) -> None:
    """A head whose bytes come one by one."""
    await asked.send(b"HTTP/1.1 200 X\r\nx-a: ")
    while True:
        await asked.send(b"v")
        await asked.pause(0.2)


@upstream_answer
async def dripped_interim(asked: Asked) -> None:
    """One 1xx head after another."""
    while True:
        await asked.send(b"HTTP/1.1 100 Continue\r\n\r\n")
        await asked.pause(0.2)


@upstream_answer
async def dripped_extensions(asked: Asked) -> None:
    """An extension of a chunk whose bytes come one by one."""
    await asked.head(b"transfer-encoding: chunked")
    await asked.send(b"1;")
    while True:
        await asked.send(b"x")
        await asked.pause(0.2)


@upstream_answer
async def dripped_error(asked: Asked) -> None:
    """The body of an error whose bytes come one by one."""
    await asked.head(status=400, kind="application/json")
    while True:
        await asked.send(b" ")
        await asked.pause(0.2)


@upstream_answer
async def dripped_body(asked: Asked) -> None:
    """An answer whose text comes letter by letter and does not end."""
    await (asked.begin() if asked.streamed else asked.head())
    while True:
        await asked.send(asked.wire.text("a") if asked.streamed else b" ")
        await asked.pause(0.2)


@upstream_answer
async def dripped_comments(asked: Asked) -> None:
    """A stream that only says that it lives."""
    await asked.begin()
    while True:
        await asked.send(b"" if asked.wire.name == "bedrock" else b": still here\n\n")
        await asked.pause(0.2)


@upstream_answer
async def endless_page(asked: Asked) -> None:
    """A page of metrics, or a list of models, that does not end."""
    await asked.head(kind="text/plain")
    while True:
        await asked.send(b'vllm:num_requests_running{a="b"} 1\n' * 2000)


@upstream_answer
async def slow_stream(asked: Asked) -> None:
    """A stream that is as fast as it is read, within a generous limit: for readers who do not read."""
    await asked.begin()
    event = asked.wire.text(" word")
    for _ in range(40_000):
        await asked.send(event * 10)
    await asked.send(asked.wire.end())
