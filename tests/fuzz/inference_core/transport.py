"""What gateways and cores send each other: frames of MessagePack, and the handshake before them."""

import asyncio
from types import SimpleNamespace
from typing import Any, cast

import msgspec

from inference_core.protocol import (
    AbortRequest,
    AddRequest,
    Command,
    Event,
    Goodbye,
    ImportBlocks,
    LoadAdapter,
    QueryStats,
    SamplingParams,
    SequenceOutput,
    SetKnobs,
)
from inference_core.protocol.kv_blocks import BlockChain
from inference_core.transport.framing import FrameError, FrameReader, FrameWriter
from inference_core.transport.handshake import ClientHandshake, ServerHandshake
from tests.fuzz.pieces import pieces_of
from tests.hostile.target import fuzz_target

_MOST = 1 << 16
_writer = FrameWriter()
_COMMANDS: list[list[Command]] = [
    [AddRequest(request_id="a", model="m", prompt_token_ids=[1, 2], sampling=SamplingParams(logit_bias={1: 0.5}))],
    [AbortRequest("a", 0), QueryStats("q"), SetKnobs("q", {"max_running": 3}, "m", True)],
    [LoadAdapter("q", "m", "n", "/p"), ImportBlocks("q", BlockChain(model="m", token_ids=[1]), None)],
]
_EVENTS: list[list[Event]] = [[SequenceOutput(request_id="a", index=0, token_ids=[1, 2])], [Goodbye(reason="r")]]


def _read(kind: Any, pieces: list[bytes]) -> tuple[list[Any], bool]:
    """Return the values, and whether the stream was refused."""
    reader, values = FrameReader(kind, _MOST), list[Any]()
    try:
        for piece in pieces:
            values += reader.feed(piece)
    except FrameError as error:
        str(error).encode()
        return values, True
    return values, False


def _frames(data: bytes, kind: Any) -> str:
    whole, cut = _read(kind, [data]), _read(kind, list(pieces_of(data)))
    # What came before the refusal may have been taken with it, in one piece.
    assert cut[1] == whole[1]
    if not whole[1]:
        assert repr(cut[0]) == repr(whole[0])
        for value in whole[0]:
            again = next(FrameReader(kind).feed(_writer.frame(value)))
            assert repr(again) == repr(value)
    return f"{min(len(whole[0]), 3)} frames, {whole[1]}"


@fuzz_target(
    [*map(_writer.frame, _COMMANDS), b"\x00\x00\x00\x00", b"\xff\xff\xff\xff"],
    [b"\x00\x00\x00\x01", b"\xdd\xff\xff\xff\xff", b"\xa3add"],
)
def commands(data: bytes) -> str:
    """Commands to a core: whole frames come back as they are, others are refused by `FrameError` alone."""
    return _frames(data, list[Command])


@fuzz_target([*map(_writer.frame, _EVENTS)], [b"\xa3out", b"\x00\x00\x00\x01", b"\xc0", b"\xcb\x7f\xf0" + bytes(6)])
def events(data: bytes) -> str:
    """Events of a core, likewise."""
    return _frames(data, list[Event])


@fuzz_target([msgspec.msgpack.encode(one) for one in _COMMANDS], [b"\xa4type", b"\xc1", b"\xa1\xff", b"\x91" * 20])
def command_bodies(data: bytes) -> str:
    """Commands in frames of the right length, several a stream."""
    frames = b"".join(len(part).to_bytes(4, "big") + part for part in data.split(b"\xff\xfe\xff"))
    return _frames(frames, list[Command])


_loop = asyncio.new_event_loop()


class _Peer(SimpleNamespace):
    """A transport that keeps what was sent, and the protocol that the connection was passed to."""

    def __init__(self) -> None:
        super().__init__(sent=b"", aborted=False, protocol=None)

    def write(self, data: bytes) -> None:
        self.sent += data

    def abort(self) -> None:
        self.aborted = True

    def get_extra_info(self, name: str) -> str:
        return "peer"

    def set_protocol(self, protocol: Any) -> None:
        self.protocol = protocol


class _Accepted(asyncio.Protocol):
    """What a connection becomes behind the handshake."""


async def _shaken(client: bool, pieces: list[bytes]) -> _Peer:
    peer = _Peer()
    if client:
        handshake: Any = ClientHandshake(b"secret", _Accepted())
    else:
        handshake = ServerHandshake(b"secret", _Accepted, lambda reason: None)
    handshake.connection_made(cast(Any, peer))
    for piece in pieces:
        if not peer.aborted and peer.protocol is None:
            handshake.data_received(piece)
    if peer.protocol is None:
        handshake.connection_lost(None)
    return peer


@fuzz_target([bytes(64), bytes(96), b"\x01" * 31, b""], [bytes(32)])
def handshakes(data: bytes) -> str:
    """Nothing that is sent without the secret opens a connection, at either end."""
    pieces = list(pieces_of(data))
    ends = [_loop.run_until_complete(_shaken(client, pieces)) for client in (False, True)]
    assert all(end.protocol is None for end in ends)
    assert all(len(end.sent) <= 64 for end in ends)
    return f"{[end.aborted for end in ends]}"
