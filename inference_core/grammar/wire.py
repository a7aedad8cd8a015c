"""Messages between a serving process, its child and the processes that the child forks, over Unix sockets.

The child's control socket carries single bytes, each with a socket. Over the socket of a `VOCABULARY` the child itself
receives a `Vocabulary`; those of a `WORKER` and a `CHECK` belong to a new process, which receives a `Start` or a
`Check`.
"""

import os
import select
import socket
import struct
import subprocess
import time
from collections.abc import Sequence
from contextlib import suppress

import msgspec

from inference_core.grammar.limits import Limits
from inference_core.protocol import Grammar

VOCABULARY, WORKER, CHECK = b"v", b"w", b"c"
_HEAD = struct.Struct("<I")
_PIECE_BYTES = 1 << 16


class Vocabulary(msgspec.Struct, frozen=True, tag=True):
    """A model's tokens (see `marked_tokens`); grammars refer to it by `number`."""

    number: int
    tokens: list[bytes]
    eos_token_ids: list[int]


class Loaded(msgspec.Struct, frozen=True, tag=True):
    """The vocabulary is known."""


class Failed(msgspec.Struct, frozen=True, tag=True):
    """A failure that is not the grammar's fault."""

    reason: str
    """Why it failed; it contains nothing of the grammar."""


class Start(msgspec.Struct, frozen=True, tag=True):
    """The grammar that a new process compiles."""

    vocabulary: int
    grammar: Grammar
    limits: Limits


class Compiled(msgspec.Struct, frozen=True, tag=True):
    """The grammar is compiled."""

    num_words: int
    """32-bit words of a mask."""
    memory_bytes: int
    """Peak resident memory so far beyond what processes share."""


class Refused(msgspec.Struct, frozen=True, tag=True):
    """The grammar cannot be compiled."""

    message: str
    param: str | None
    final: bool
    """False if another `Refused` that names the failing part may follow."""


class Encode(msgspec.Struct, frozen=True, tag=True):
    """Ask for the tokenisation of `text`; answered by `Encoded`."""

    text: str


class Encoded(msgspec.Struct, frozen=True, tag=True):
    token_ids: list[int]


class Question(msgspec.Struct, frozen=True, array_like=True):
    """Ask for a matcher's forced tokens, after it `accepted` these, and for its masks unless `drafts` is None."""

    matcher: int
    accepted: list[int]
    drafts: list[int] | None


class Answer(msgspec.Struct, frozen=True, array_like=True):
    """The answer to a `Question`."""

    forced: list[int]
    masks: list[bytes]
    """See `GrammarMatcher.masks`."""
    failure: str | None = None
    """Why the grammar can no longer be followed."""
    invalid_end: bool = False
    """Whether it failed because the answer could only end invalid."""


class Questions(msgspec.Struct, frozen=True, tag=True):
    """The questions of one step. Matchers `dropped` no longer exist."""

    asked: list[Question]
    dropped: list[int]


class Answers(msgspec.Struct, frozen=True, tag=True):
    """The answers in the order of the questions."""

    answers: list[Answer]
    memory_bytes: int


class Ended(msgspec.Struct, frozen=True, tag=True):
    """Sent by the server: the process ended by this signal (0: it exited, or could not be started)."""

    signal: int


class Check(msgspec.Struct, frozen=True, tag=True):
    """Validate texts against JSON schemas; answered by `Checked`."""

    pairs: list[tuple[str, str]]
    """Schema and text of each."""
    limits: Limits


class Checked(msgspec.Struct, frozen=True, tag=True):
    """The result of a `Check`."""

    error: str | None
    """Why the text number `place` is not valid; None if all are."""
    place: int = 0


Message = (
    Check
    | Checked
    | Vocabulary
    | Loaded
    | Failed
    | Start
    | Compiled
    | Refused
    | Encode
    | Encoded
    | Questions
    | Answers
    | Ended
)
_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(Message)


def packed(message: Message) -> bytes:
    """Encode a message as it is sent."""
    body = _encoder.encode(message)
    return _HEAD.pack(len(body)) + body


class Channel:
    """Messages over a connected stream socket, which it owns. Not thread-safe, except for `shut_down`."""

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
        """Send a message, or one that is `packed` already. Raises `OSError` if the other side is gone."""
        self._connection.sendall(message if isinstance(message, bytes) else packed(message))

    def send_at_once(self, message: Message) -> None:
        """Send a message if there is room and a reader, else drop it."""
        with suppress(OSError):
            self._connection.send(packed(message), socket.MSG_DONTWAIT)

    def receive(self, deadline: float | None = None) -> Message:
        """Wait for a message. Raises `TimeoutError` after `deadline` (by `time.monotonic`), `EOFError` or `OSError` if
        the other side is gone."""
        (length,) = _HEAD.unpack(self._taken(_HEAD.size, deadline))
        message: Message = _decoder.decode(self._taken(length, deadline))
        return message

    @property
    def is_silent(self) -> bool:
        """Whether there is nothing to receive, not even the end of the stream."""
        return not self._received and not self._poll.poll(0)

    def _taken(self, length: int, deadline: float | None) -> bytearray:
        """Wait for and return the next `length` bytes."""
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
        """Signal the end of the stream to both sides, from any thread; the socket is closed with this object."""
        with suppress(OSError):
            self._connection.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        self._connection.close()


def remaining_forced(forced: list[int], token_id: int) -> list[int] | None:
    """Return the forced tokens after `token_id`; None if the grammar has to be asked again."""
    return forced[1:] if len(forced) > 1 and forced[0] == token_id else None


def launched(program: Sequence[str]) -> tuple[socket.socket, subprocess.Popen[bytes]]:
    """Start `program` with the file of its control socket as last argument. Returns our end, and the process.

    Raises OSError, `subprocess.SubprocessError`. The process has a group of its own: Ctrl-C interrupts only the serving
    process, and all that the server started can be ended at once. It shares the session of the serving process: Linux
    compares priorities within a session only (sched(7), "The autogroup feature").
    """
    control, theirs = socket.socketpair()
    with theirs:
        file = theirs.fileno()
        process = subprocess.Popen(  # noqa: S603 - our own program
            [*program, str(file)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            pass_fds=(file,),
            process_group=0,
            # An arena of malloc for each thread would take most of a grammar's address space.
            env=os.environ | {"MALLOC_ARENA_MAX": "1"},
        )
    return control, process


def handed_over(control: socket.socket, kind: bytes) -> Channel:
    """Create a channel and send its other end to the server, with what it is for. Raises OSError."""
    ours, theirs = socket.socketpair()
    with theirs:
        socket.send_fds(control, [kind], [theirs.fileno()])
    return Channel(ours)
