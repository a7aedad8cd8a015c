"""Sockets by which the tokens of a decode step leave a core while the next step of the same call is computed."""

import os
import weakref
from array import array
from typing import Protocol

import msgspec

_encoder = msgspec.msgpack.Encoder()


class SharedCount:
    """An int64 that one thread writes and native code reads."""

    def __init__(self) -> None:
        self._word = array("q", [0])
        self.address: int = self._word.buffer_info()[0]

    @property
    def value(self) -> int:
        return self._word[0]

    @value.setter
    def value(self, value: int) -> None:
        self._word[0] = value


NONE_QUEUED = SharedCount()
"""For a socket that nothing else is written to."""


class TokenChannel:
    """A Unix socket to the reader of some requests' outputs, which takes lists of outputs in frames.

    Steps write to it only while `queued` equals `written`: how many lists of events the core has made, and how many of
    them are written as far as they go to this reader. Its descriptor is a copy of `descriptor`, closed with the last
    reference to the channel, so that a step under way never writes to a socket of somebody else.
    """

    def __init__(self, descriptor: int, queued: SharedCount = NONE_QUEUED, written: SharedCount = NONE_QUEUED) -> None:
        self.descriptor = os.dup(descriptor)
        self.queued, self.written = queued, written
        weakref.finalize(self, os.close, self.descriptor)


class TokenRoutes(Protocol):
    """Tells a core where outputs of its requests may leave in the middle of a call; from the core's thread."""

    def route(self, request_id: str) -> tuple[TokenChannel, str] | None:
        """Return the channel of a request's reader and the id that it knows the request by; None without one."""


def output_head(request_id: str, index: int, cached_tokens: int, *, logprobs: bool) -> bytes:
    """Return the MessagePack of a `SequenceOutput` up to its list of tokens; behind it `logprobs` if there are any."""
    fields = {"request_id": request_id, "index": index, "cached_tokens": cached_tokens, "token_ids": []}
    head = bytearray(_encoder.encode({"type": "output", **fields}))
    del head[-1]
    head[0] += logprobs
    return bytes(head)
