"""The client side of grammars' processes, in the serving process: starts the child, compiles there, asks for masks.

The grammar library does not run in the serving process. Some of its calls hold the interpreter lock throughout, and a
grammar of fifty characters can make one take 13 s and a gigabyte of memory in the middle of an answer
(`start: ("x" | "y") A{1000}`, `A: "ab"{5000}`), which compiling does not detect. Matchers cannot be moved between
processes. A question with its answer takes some 30 microseconds, in parallel with the model's step.
"""

import atexit
import logging
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from functools import cache
from hashlib import blake2b
from itertools import count
from weakref import ReferenceType, WeakSet, ref

from inference_core.errors import CoreError, GrammarServerError, InvalidEndError, InvalidRequestError
from inference_core.grammar.limits import LIMITS, Limits
from inference_core.grammar.vocabulary import Vocabulary as Tokeniser
from inference_core.grammar.vocabulary import marked_tokens
from inference_core.grammar.wire import (
    CHECK,
    VOCABULARY,
    WORKER,
    Answer,
    Answers,
    Channel,
    Check,
    Checked,
    Compiled,
    Encode,
    Encoded,
    Ended,
    Failed,
    Loaded,
    Message,
    Question,
    Questions,
    Refused,
    Start,
    Vocabulary,
    handed_over,
    launched,
    packed,
    remaining_forced,
)
from inference_core.protocol import Grammar

logger = logging.getLogger(__name__)

PROGRAM = (sys.executable, "-m", "inference_core.grammar.child")
# Time to start Python, load the library, and build the largest tries on a busy machine.
_START_SECONDS = 60.0
_TOO_COSTLY = "it cannot be checked within the limits of time and memory"


class KnownTokens:
    """A model's tokens as sent to the child, and their tokeniser."""

    def __init__(self, tokeniser: Tokeniser, vocab_size: int, eos_token_ids: tuple[int, ...]) -> None:
        self.tokeniser = tokeniser
        tokens = marked_tokens(tokeniser, vocab_size)
        self.digest = blake2b(packed(Vocabulary(0, tokens, list(eos_token_ids))), digest_size=16).digest()
        self._tokens, self._eos_token_ids = tokens, list(eos_token_ids)

    def message(self, number: int) -> bytes:
        return packed(Vocabulary(number, self._tokens, self._eos_token_ids))


class GrammarChild:
    """The child that forks grammars' processes, started when first needed and replaced after its end. Thread-safe.

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

    def start(self) -> None:
        """Start the child if it was never started, without waiting until it is ready."""
        if self._process is None:
            with self._lock, suppress(OSError, subprocess.SubprocessError):
                self._require()

    def start_worker(self, tokens: KnownTokens, grammar: Grammar, limits: Limits) -> Channel:
        """A channel to a new process for `grammar`. Raises `GrammarServerError`."""
        try:
            with self._lock:
                number = self._loaded(tokens)
                channel, self._spare = self._spare, None
                if channel is None or not channel.is_silent:
                    channel = handed_over(self._require(), WORKER)
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
                self._spare = handed_over(self._control, WORKER)

    def invalid(self, pairs: Sequence[tuple[str, str]], limits: Limits = LIMITS) -> tuple[int, str] | None:
        """Validate finished texts against JSON schemas, given as pairs of schema and text, in a new process; blocks.

        Returns the place of a text that is not valid, or that could not be checked, and why; None if all are valid.
        """
        try:
            with self._lock:
                channel = handed_over(self._require(), CHECK)
            channel.send(Check(list(pairs), limits))
            answer = channel.receive(time.monotonic() + _START_SECONDS + 10 * limits.check_seconds)
        except TimeoutError:
            return 0, "it cannot be checked: the machine is too busy"
        except (OSError, subprocess.SubprocessError) as error:
            return 0, f"it cannot be checked: no process for it starts ({error})"
        except EOFError:
            return 0, _TOO_COSTLY
        if not isinstance(answer, Checked):
            return 0, _TOO_COSTLY
        return None if answer.error is None else (answer.place, answer.error)

    def close(self) -> None:
        """End the child and all that it started."""
        process = self._process
        if process is not None:  # before the lock, whose holder may be waiting for the process
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        with self._lock:
            self._forget()

    def _require(self) -> socket.socket:
        """The control socket of a running child."""
        if self._control is None or self._process is None or self._process.poll() is not None:
            self._forget()  # processes of an earlier child end with their grammars
            self._control, self._process = launched(PROGRAM)
        return self._control

    def _loaded(self, tokens: KnownTokens) -> int:
        """Load a vocabulary in the child if needed. Returns its number."""
        control = self._require()
        number = self._numbers.get(tokens.digest)
        if number is None:
            number = len(self._numbers)
            channel = handed_over(control, VOCABULARY)
            channel.send(tokens.message(number))
            answer = channel.receive(time.monotonic() + _START_SECONDS)
            channel.close()
            if not isinstance(answer, Loaded):
                raise OSError(f"the vocabulary cannot be loaded: {answer}")
            self._numbers[tokens.digest] = number
            self._spare = None  # it was forked before this vocabulary was loaded
        return number

    def _forget(self) -> None:
        self._numbers.clear()
        self._process = self._spare = None
        if self._control is not None:
            self._control.close()
            self._control = None


@cache
def _child_of(process_id: int) -> GrammarChild:
    child = GrammarChild()
    atexit.register(child.close)
    return child


def own_child() -> GrammarChild:
    """This process's child, shared by its cores and by the checks of finished answers."""
    return _child_of(os.getpid())


# In the message of a limit that all matchers of a grammar spend together: its process can follow no further answer.
_SPENT = "lexer error"


class GrammarWorker:
    """A grammar's process. Call `compile` on one thread, then the rest on one; `give_up` and `close` on any."""

    def __init__(self, channel: Channel, tokeniser: Tokeniser, grammar: Grammar, limits: Limits) -> None:
        self.grammar = grammar
        self.num_words = 0
        self.memory_bytes = 0
        """Peak memory beyond what all processes share."""
        self.failure: CoreError | None = None
        self.handles: WeakSet[GrammarHandle] = WeakSet()
        """The handles that use the process."""
        self.dropped: list[int] = []
        """The numbers of deleted matchers, not yet reported to the process."""
        self.numbers = count()
        self._channel, self._tokeniser, self._limits = channel, tokeniser, limits
        self._asked: list[tuple[RemoteMatcher, Question]] = []
        # Weak, so that a matcher whose sequence has ended is not kept for its answer.
        self._sent: list[tuple[ReferenceType[RemoteMatcher], Question]] = []

    def compile(self) -> None:
        """Wait until the grammar is compiled. Raises `InvalidRequestError` if it cannot be compiled within its limits,
        `GrammarServerError` for faults of the machine, `CoreError` for faults of the library."""
        refusal: InvalidRequestError | None = None
        deadline = time.monotonic() + self._limits.compile_wait_seconds
        while True:
            message = self._receive(deadline, "compile")
            if message is None:
                assert self.failure is not None
                raise refusal or self.failure
            if isinstance(message, Compiled):
                self.num_words, self.memory_bytes = message.num_words, message.memory_bytes
                return
            if isinstance(message, Refused):
                refusal = InvalidRequestError(message.message, message.param)
                if message.final:
                    raise refusal
            elif isinstance(message, Failed):
                logger.error("a grammar of kind %s broke the compiler: %s", self.grammar.kind, message.reason)
                raise CoreError(f"{self.grammar.param} could not be compiled: the compiler failed, which is logged")

    def is_usable(self) -> bool:
        """Whether matchers can be made: the process has not ended as far as is known."""
        while not self.handles and self.failure is None and not self._channel.is_silent:
            self.receive()  # answers that were not fetched, or the end
        return self.failure is None

    def ask(self, matcher: "RemoteMatcher", question: Question) -> None:
        """Queue a question for the next `send`."""
        self._asked.append((matcher, question))

    def send(self) -> None:
        if self._asked and self._sent:
            self.receive()  # one batch at a time, since the process may be waiting for `Encoded` tokens
        asked, self._asked = self._asked, []
        if not asked or self.failure is not None:
            return
        dropped, self.dropped = self.dropped, []
        with suppress(OSError):  # the next `receive` gives the reason
            self._channel.send(Questions([question for _, question in asked], dropped))
        self._sent = [(ref(matcher), question) for matcher, question in asked]

    def receive(self) -> None:
        """Wait for the answers to the sent questions, and pass them to their matchers."""
        message = self._receive(time.monotonic() + self._limits.answer_seconds, "follow")
        if isinstance(message, Answers):
            self.memory_bytes = message.memory_bytes
            sent, self._sent = self._sent, []
            for (reference, question), answer in zip(sent, message.answers, strict=True):
                matcher = reference()
                if matcher is not None:
                    matcher.take(question, answer)
            spent = next((a.failure for a in message.answers if a.failure and _SPENT in a.failure), None)
            if spent is not None:
                param = self.grammar.param
                self.give_up(InvalidRequestError(f"{param} cannot be followed: {spent}", param))
        elif isinstance(message, Failed):
            logger.error("a grammar of kind %s broke its process: %s", self.grammar.kind, message.reason)
            self.give_up(CoreError(f"{self.grammar.param}: the process of its grammar failed, which is logged"))

    def give_up(self, error: CoreError) -> None:
        """End the process; the matchers of its grammar fail with `error`."""
        self.failure = self.failure or error
        self._channel.shut_down()

    def close(self) -> None:
        self._channel.shut_down()

    def _receive(self, deadline: float, doing: str) -> Message | None:
        """The next message; None if there will be no more, with the reason in `failure`."""
        try:
            while self.failure is None:
                message = self._channel.receive(deadline)
                if isinstance(message, Ended):
                    self.give_up(self._cause(message.signal, doing))
                elif isinstance(message, Encode):
                    self._encode(message.text)
                else:
                    return message
        except TimeoutError:
            self.give_up(GrammarServerError(f"{self.grammar.param}: the machine is too busy to {doing} its grammar"))
        except (EOFError, OSError):
            self.give_up(GrammarServerError(f"{self.grammar.param}: the process of its grammar is gone"))
        return None

    def _encode(self, text: str) -> None:
        try:
            token_ids = self._tokeniser.encode_continued(text)
        except Exception:
            logger.exception("a text that a grammar of kind %s forces cannot be tokenised", self.grammar.kind)
            self.give_up(CoreError(f"{self.grammar.param}: a text that it forces cannot be tokenised, which is logged"))
        else:
            self._channel.send(Encoded(token_ids))

    def _cause(self, number: int, doing: str) -> CoreError:
        limits, param = self._limits, self.grammar.param
        if number in (signal.SIGSEGV, signal.SIGBUS):
            return InvalidRequestError(f"{param} is too deeply nested to {doing}", param)
        if number in (signal.SIGABRT, signal.SIGKILL):
            needed = f"more than {limits.memory_bytes >> 20} MiB of memory"
            return InvalidRequestError(f"{param} needs {needed} to {doing}", param)
        if number == signal.SIGPROF:
            most = f"{limits.compile_seconds:g} s" if doing == "compile" else f"{limits.seconds_per_mask * 1e3:g} ms"
            each = "" if doing == "compile" else " for a token on average"
            return InvalidRequestError(f"{param} takes longer than {most} to {doing}{each}", param)
        return GrammarServerError(f"{param}: the process of its grammar ended (signal {number})")


class GrammarHandle:
    """A request's reference to its grammar, which makes matchers in their initial state."""

    __slots__ = ("__weakref__", "grammar", "worker")

    def __init__(self, worker: GrammarWorker, grammar: Grammar) -> None:
        self.worker, self.grammar = worker, grammar
        worker.handles.add(self)

    def __call__(self) -> "RemoteMatcher":
        return RemoteMatcher(self)


class RemoteMatcher:
    """See `Matcher`. It keeps the accepted tokens and asks the process for masks and forced tokens."""

    def __init__(self, handle: GrammarHandle) -> None:
        self._handle, self._worker = handle, handle.worker
        self._number = next(self._worker.numbers)
        self.num_words = self._worker.num_words
        self._reason: str | None = None
        self._has_invalid_end = False
        self._accepted: list[int] = []  # since the last question
        self._forced: list[int] | None = None
        self._question: Question | None = None
        self._answer: Answer | None = None

    def __del__(self) -> None:
        self._worker.dropped.append(self._number)

    @property
    def failure(self) -> CoreError | None:
        if self._reason is not None:
            param = self._handle.grammar.param
            kind = InvalidEndError if self._has_invalid_end else InvalidRequestError
            return kind(f"{param} cannot be followed: {self._reason}", param)
        return self._worker.failure

    def accept(self, token_id: int) -> None:
        self._accepted.append(token_id)
        self._forced = None if self._forced is None else remaining_forced(self._forced, token_id)
        self._question = None

    def ask_forced(self) -> None:
        if self._forced is None and self._question is None:
            self._ask(None)

    def ask_masks(self, drafts: Sequence[int]) -> None:
        self._ask(list(drafts))

    def send(self) -> None:
        self._worker.send()

    def forced_tokens(self) -> list[int]:
        self.ask_forced()
        while self._forced is None and self.failure is None:
            self._fetch()
        return self._forced or []

    def masks(self) -> list[bytes]:
        assert self._question is not None
        assert self._question.drafts is not None
        while self._answer is None and self.failure is None:
            self._fetch()
        rows = 1 + len(self._question.drafts)
        return [bytes(4 * self.num_words)] * rows if self._answer is None else self._answer.masks

    def take(self, question: Question, answer: Answer) -> None:
        """Store an answer, unless another question was asked meanwhile."""
        if answer.failure is not None:
            self._reason, self._has_invalid_end = answer.failure, answer.invalid_end
        if question is self._question:
            self._answer, self._forced = answer, answer.forced

    def _ask(self, drafts: list[int] | None) -> None:
        self._answer = None
        self._question = Question(self._number, self._accepted, drafts)
        self._accepted = []
        self._worker.ask(self, self._question)

    def _fetch(self) -> None:
        self._worker.send()
        self._worker.receive()
