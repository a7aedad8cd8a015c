"""What a serving process, its grammar server and the grammars' processes say to each other, over Unix sockets.

The server's control socket carries single bytes, each with a socket: `VOCABULARY` for one over which a `Vocabulary`
follows, `WORKER` for one that a new process is to be started for, and over which that process receives a `Start`.
"""

import select
import socket
import struct
import time
from contextlib import suppress

import msgspec

from inference_core.grammar.limits import Limits
from inference_core.protocol import Grammar

VOCABULARY, WORKER = b"v", b"w"
_HEAD = struct.Struct("<I")
_PIECE_BYTES = 1 << 16


class Vocabulary(msgspec.Struct, frozen=True, tag=True):
    """A model's tokens, as `marked_tokens` gives them; grammars refer to it by `number`."""

    number: int
    tokens: list[bytes]
    eos_token_ids: list[int]


class Loaded(msgspec.Struct, frozen=True, tag=True):
    """The vocabulary is known."""


class Failed(msgspec.Struct, frozen=True, tag=True):
    """It could not be done, and that is not the grammar's fault. Nothing of the grammar is in `reason`."""

    reason: str


class Start(msgspec.Struct, frozen=True, tag=True):
    """The grammar of a process."""

    vocabulary: int
    grammar: Grammar
    limits: Limits


class Compiled(msgspec.Struct, frozen=True, tag=True):
    """The grammar is compiled. `num_words`: 32-bit words of a mask. `memory_bytes`: the most that was resident so far
    beyond what processes share."""

    num_words: int
    memory_bytes: int


class Refused(msgspec.Struct, frozen=True, tag=True):
    """The grammar cannot be compiled. If it is not `final`, another that names the place better may follow."""

    message: str
    param: str | None
    final: bool


class Encode(msgspec.Struct, frozen=True, tag=True):
    """The text's own tokenisation is needed, to be answered by `Encoded`."""

    text: str


class Encoded(msgspec.Struct, frozen=True, tag=True):
    token_ids: list[int]


class Question(msgspec.Struct, frozen=True, array_like=True):
    """Of one matcher, after it `accepted` these tokens: what is forced, and, unless `drafts` is None, its masks."""

    matcher: int
    accepted: list[int]
    drafts: list[int] | None


class Answer(msgspec.Struct, frozen=True, array_like=True):
    """`masks`: see `GrammarMatcher.masks`. `failure`: why the grammar cannot be followed any further."""

    forced: list[int]
    masks: list[bytes]
    failure: str | None = None


class Questions(msgspec.Struct, frozen=True, tag=True):
    """Of one step. Matchers `dropped` are to be forgotten."""

    asked: list[Question]
    dropped: list[int]


class Answers(msgspec.Struct, frozen=True, tag=True):
    """In the order of the questions."""

    answers: list[Answer]
    memory_bytes: int


class Ended(msgspec.Struct, frozen=True, tag=True):
    """Said by the server: the process ended, by this signal (0: by itself, or it could not be started)."""

    signal: int


Message = Vocabulary | Loaded | Failed | Start | Compiled | Refused | Encode | Encoded | Questions | Answers | Ended
_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(Message)


def packed(message: Message) -> bytes:
    """A message as it is sent."""
    body = _encoder.encode(message)
    return _HEAD.pack(len(body)) + body


class Channel:
    """Messages over a connected stream socket, which it owns. Not thread-safe, but for `shut_down`."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._received = bytearray()
        self._poll = select.poll()
        self._poll.register(connection, select.POLLIN)

    def __del__(self) -> None:
        self.close()

    def fileno(self) -> int:
        return self._connection.fileno()

    def send(self, message: Message | bytes) -> None:
        """Or what is `packed` already. Raises `OSError`: the other side is gone."""
        self._connection.sendall(message if isinstance(message, bytes) else packed(message))

    def send_at_once(self, message: Message) -> None:
        """The same if there is room and a reader, else nothing."""
        with suppress(OSError):
            self._connection.send(packed(message), socket.MSG_DONTWAIT)

    def receive(self, deadline: float | None = None) -> Message:
        """Raises `TimeoutError` after `deadline` (by `time.monotonic`), `EOFError` or `OSError` if the other side is
        gone."""
        (length,) = _HEAD.unpack(self._taken(_HEAD.size, deadline))
        message: Message = _decoder.decode(self._taken(length, deadline))
        return message

    @property
    def is_silent(self) -> bool:
        """Whether nothing waits to be received, not even the end."""
        return not self._received and not self._poll.poll(0)

    def _taken(self, length: int, deadline: float | None) -> bytearray:
        """The next bytes, once so many have come."""
        while len(self._received) < length:
            if deadline is not None and not self._poll.poll(max(0.0, deadline - time.monotonic()) * 1e3):
                raise TimeoutError("the other side does not answer")
            piece = self._connection.recv(max(_PIECE_BYTES, length - len(self._received)))
            if not piece:
                raise EOFError("the other side is gone")
            self._received += piece
        taken, self._received = self._received[:length], self._received[length:]
        return taken

    def shut_down(self) -> None:
        """Let both sides see the end, from any thread; the socket is closed with this object."""
        with suppress(OSError):
            self._connection.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        self._connection.close()


def remaining_forced(forced: list[int], token_id: int) -> list[int] | None:
    """Return the forced tokens after `token_id`; None if the grammar has to be asked again."""
    return forced[1:] if len(forced) > 1 and forced[0] == token_id else None
