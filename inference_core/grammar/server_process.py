"""Starts this process's grammar server, and grammar processes through it."""

import atexit
import logging
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from contextlib import suppress
from functools import cache
from hashlib import blake2b

from inference_core.errors import GrammarServerError
from inference_core.grammar.control_socket import handed_over, launched
from inference_core.grammar.limits import Limits
from inference_core.grammar.vocabulary import Vocabulary as Tokeniser
from inference_core.grammar.vocabulary import marked_tokens
from inference_core.grammar.wire import VOCABULARY, WORKER, Channel, Loaded, Start, Vocabulary, packed
from inference_core.protocol import Grammar

logger = logging.getLogger(__name__)

PROGRAM = (sys.executable, "-m", "inference_core.grammar.server")
# Time to start Python, load the library, and build the largest tries on a busy machine.
_START_SECONDS = 60.0


class KnownTokens:
    """A model's tokens as sent to a server, and their tokeniser."""

    def __init__(self, tokeniser: Tokeniser, vocab_size: int, eos_token_ids: tuple[int, ...]) -> None:
        self.tokeniser = tokeniser
        tokens = marked_tokens(tokeniser, vocab_size)
        self.digest = blake2b(packed(Vocabulary(0, tokens, list(eos_token_ids))), digest_size=16).digest()
        self._tokens, self._eos_token_ids = tokens, list(eos_token_ids)

    def message(self, number: int) -> bytes:
        return packed(Vocabulary(number, self._tokens, self._eos_token_ids))


class GrammarServer:
    """The grammar server, started when first needed and restarted after its end. Thread-safe.

    It ends with this process, even after a crash, since it detects the end of its control socket.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._control: socket.socket | None = None
        self._numbers: dict[bytes, int] = {}
        self._spare: Channel | None = None
        self._is_known_to_fail = False

    @property
    def process_id(self) -> int | None:
        return None if self._process is None else self._process.pid

    def start_worker(self, tokens: KnownTokens, grammar: Grammar, limits: Limits) -> Channel:
        """A channel to a new process for `grammar`. Raises `GrammarServerError`."""
        try:
            with self._lock:
                number = self._loaded(tokens)
                channel, self._spare = self._spare, None
                if channel is None or not channel.is_silent:
                    channel = self._handed_over(WORKER)
            channel.send(Start(number, grammar, limits))
        except (EOFError, OSError, subprocess.SubprocessError) as error:
            reason = f"grammars cannot be compiled at the moment: their process does not start: {error}"
            if not self._is_known_to_fail:
                logger.error("%s", reason)
            self._is_known_to_fail = True
            raise GrammarServerError(reason) from error
        self._is_known_to_fail = False
        return channel

    def keep_spare(self) -> None:
        """Start a process for the next grammar, so that it compiles sooner."""
        with self._lock, suppress(OSError):
            if self._spare is None and self._control is not None:
                self._spare = self._handed_over(WORKER)

    def close(self) -> None:
        """End the server and all that it started."""
        process = self._process
        if process is not None:  # before the lock, whose holder may be waiting for the process
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        with self._lock:
            self._forget()

    def _loaded(self, tokens: KnownTokens) -> int:
        """Load a vocabulary in the server if needed. Returns its number."""
        if self._process is None or self._process.poll() is not None:
            self._forget()  # processes of an earlier server end with their grammars
            self._control, self._process = launched(PROGRAM)
        number = self._numbers.get(tokens.digest)
        if number is None:
            number = len(self._numbers)
            channel = self._handed_over(VOCABULARY)
            channel.send(tokens.message(number))
            answer = channel.receive(time.monotonic() + _START_SECONDS)
            channel.close()
            if not isinstance(answer, Loaded):
                raise OSError(f"the vocabulary cannot be loaded: {answer}")
            self._numbers[tokens.digest] = number
            self._spare = None  # it was forked before this vocabulary was loaded
        return number

    def _handed_over(self, kind: bytes) -> Channel:
        assert self._control is not None
        return handed_over(self._control, kind)

    def _forget(self) -> None:
        self._numbers.clear()
        self._process = self._spare = None
        if self._control is not None:
            self._control.close()
            self._control = None


@cache
def _server_of(process_id: int) -> GrammarServer:
    server = GrammarServer()
    atexit.register(server.close)
    return server


def own_server() -> GrammarServer:
    """This process's grammar server, shared by its cores."""
    return _server_of(os.getpid())
