"""Redaction in a separate process: an expression can take hours, even on a short text, and it blocks the interpreter
meanwhile."""

import asyncio
import logging
import signal
import struct
import sys
from asyncio import subprocess
from contextlib import suppress

import msgspec

from quality.records.record import Record, decoded, encoded
from quality.records.redaction import Redact, load_redaction, redacted, without_texts

log = logging.getLogger(__name__)

# Time limit for the redaction of one record or text.
SECONDS = 5.0
# The most records that may wait.
MOST_WAITING_CHARS = 64 << 20

_LENGTH = struct.Struct("<Q")
_RECORD, _TEXT = b"R", b"T"


class RedactionFailedError(Exception):
    """A redaction that was not made, or not in time; the message continues "the redaction of …"."""


def num_chars(record: Record) -> int:
    """Return the number of characters that a redaction reads, errors aside."""
    texts = [message["content"] for message in record.messages or ()]
    form = b"" if record.response_format is None else msgspec.json.encode(record.response_format)
    return sum(map(len, (*texts, record.answer or "", record.reasoning or "", form)))


class RedactionProcess:
    """Redacts records and texts in turn, in a process that the first starts. `named` as for `load_redaction`.

    A record loses its texts if their redaction fails, takes longer than `seconds`, or would wait behind too many
    others. Belongs to one event loop; `close` it.
    """

    def __init__(self, named: str, seconds: float = SECONDS) -> None:
        self._named, self._seconds = named, seconds
        self._turn = asyncio.Lock()
        self._waiting_chars = 0
        self._process: subprocess.Process | None = None

    async def redacted(self, record: Record) -> Record:
        """Like `quality.records.redaction.redacted`."""
        try:
            redacted_record = decoded(await self._asked(_RECORD + encoded(record), num_chars(record)))
        except RedactionFailedError as error:
            log.error("the redaction of request %s %s; its texts are dropped", record.request_id, error)
            return without_texts(record)
        assert isinstance(redacted_record, Record)
        if record.messages is not None and redacted_record.messages is None:
            log.error("the redaction of request %s failed; its texts are dropped", record.request_id)
        return redacted_record

    async def text(self, text: str) -> str | None:
        """Return `text` as it may be stored; None if that fails (a `RedactText`)."""
        try:
            answer = await self._asked(_TEXT + msgspec.json.encode(text), len(text))
        except RedactionFailedError as error:
            log.error("the redaction of a text %s; it is dropped", error)
            return None
        redacted_text = msgspec.json.decode(answer, type=str | None)
        if redacted_text is None:
            log.error("the redaction of a text failed; it is dropped")
        return redacted_text

    async def close(self) -> None:
        """End the process. Idempotent."""
        process, self._process = self._process, None
        if process is not None:
            with suppress(ProcessLookupError):
                process.kill()
            await process.wait()

    async def _asked(self, payload: bytes, chars: int) -> bytes:
        """Return the process's answer. Raises `RedactionFailedError`."""
        if self._waiting_chars + chars > MOST_WAITING_CHARS:
            raise RedactionFailedError("is not made, because too many wait for theirs")
        self._waiting_chars += chars
        try:
            async with self._turn:
                # The process ends itself after `seconds`; it is killed after twice as long.
                async with asyncio.timeout(2 * self._seconds + 10):
                    return await self._exchange(payload)
        except (OSError, EOFError, TimeoutError) as error:
            await self.close()
            raise RedactionFailedError(
                f"took longer than {self._seconds:g} s, or its process failed ({error!r})"
            ) from error
        except asyncio.CancelledError:
            # An unread answer would be taken for that of the next record.
            await self.close()
            raise
        finally:
            self._waiting_chars -= chars

    async def _exchange(self, payload: bytes) -> bytes:
        if self._process is None:
            command = (sys.executable, "-m", __name__, self._named, str(self._seconds))
            self._process = await subprocess.create_subprocess_exec(
                *command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                start_new_session=True,
            )
        sending, receiving = self._process.stdin, self._process.stdout
        assert sending is not None
        assert receiving is not None
        sending.write(_LENGTH.pack(len(payload)))
        sending.write(payload)
        await sending.drain()
        (length,) = _LENGTH.unpack(await receiving.readexactly(_LENGTH.size))
        return await receiving.readexactly(length)


def _serve(named: str, seconds: float) -> None:
    """Redact what arrives on standard input until it ends. The alarm signal ends the process even in an expression."""
    redact = load_redaction(named)
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    receiving, sending = sys.stdin.buffer, sys.stdout.buffer
    while length := receiving.read(_LENGTH.size):
        payload = receiving.read(_LENGTH.unpack(length)[0])
        signal.setitimer(signal.ITIMER_REAL, seconds)
        answer = _answer(payload[:1], payload[1:], redact)
        signal.setitimer(signal.ITIMER_REAL, 0)
        sending.write(_LENGTH.pack(len(answer)) + answer)
        sending.flush()


def _answer(kind: bytes, payload: bytes, redact: Redact) -> bytes:
    if kind == _TEXT:
        try:
            return msgspec.json.encode(redact(msgspec.json.decode(payload, type=str)))
        except Exception:
            # The error may contain the text; the asking process logs that there was one.
            return b"null"
    record = decoded(payload)
    assert isinstance(record, Record)
    return encoded(redacted(record, redact))


if __name__ == "__main__":
    _serve(sys.argv[1], float(sys.argv[2]))
