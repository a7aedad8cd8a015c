"""Request heads and bodies as packets, through the server's HTTP protocol: however they are cut, the same requests."""

from tests.fuzz.pieces import pieces_of
from tests.gateway.edge.test_request_heads import LIMIT, Connection
from tests.hostile.target import fuzz_target

_SEEDS = [
    b"GET / HTTP/1.1\r\nHost: a\r\n\r\n",
    b"POST /v1/batches HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\n\r\nHelloGET /b HTTP/1.1\r\nHost: a\r\n\r\n",
    b"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n5;x=y\r\nHello\r\n0\r\nTrailer: v\r\n\r\n",
    b"GET / HTTP/1.1\r\nHost: a\r\nConnection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\n\r\n",
    b"\r\n\r\nGET /a?b=c#d HTTP/1.0\r\nConnection: keep-alive\r\nX:\r\n\r\n",
    b"GET / HTTP/1.1\r\n" + b"a: b\r\n" * 101 + b"\r\n",
    b"OPTIONS * HTTP/1.1\r\nHost: a\r\nExpect: 100-continue\r\n\r\n",
]
_WORDS = [
    *(
        b"Content-Length: ",
        b"Transfer-Encoding: chunked\r\n",
        b"Host: a\r\n",
        b"HTTP/1.1\r\n",
        b"HTTP/1.0",
        b"\r\n\r\n",
    ),
    *(
        b"\r\n",
        b"\n",
        b"\r",
        b"0\r\n\r\n",
        b"5\r\nHello\r\n",
        b"Connection: close\r\n",
        b"Upgrade: h2c\r\n",
        b"GET ",
        b"POST ",
    ),
    *(
        b"ffffffffffffffff\r\n",
        b"Content-Length: 0, 0\r\n",
        b"Transfer-Encoding: gzip, chunked\r\n",
        b" : ",
        b"\x00",
        b"PRI * HTTP/2.0",
    ),
]


@fuzz_target(_SEEDS, _WORDS)
def packets(data: bytes) -> str:
    """Requests, or one refusal of a known status after which nothing is read."""
    whole = Connection().receive(data, [])
    cut = Connection()
    for piece in pieces_of(data):
        if not cut.wire.closed:
            cut.data_received(piece)
    for one in (whole, cut):
        assert len(one.pipeline) <= 16
        assert all(len(raw_path) <= LIMIT for _, raw_path, _, _, _ in one.requests())
        assert all(status in (400, 408, 414, 429, 431, 503) for status in one.answers), one.answers
        assert len(one.answers) <= 1
    if not (whole.answers or cut.answers):
        assert whole.requests() == cut.requests()
    return f"{min(len(whole.requests()), 3)} requests, {whole.answers}"
