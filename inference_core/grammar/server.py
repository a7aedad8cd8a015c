"""`python -m inference_core.grammar.server FD`: holds the vocabularies and forks a process for each grammar.

The server runs no grammar itself, so it is always ready to fork the next process. A fork takes milliseconds and shares
the vocabularies, which take a second and tens of megabytes to load as tries over bytes. Forking is safe here, unlike
in the serving process, because this one has a single thread and loads only the grammar library. FD is the control
socket (see `wire`). When its other end is closed, this process and all that it started end.

The process of one grammar compiles it, and follows it for every sequence that uses it, within limits. The limits end
the process anywhere, even inside the library: CPU time by SIGPROF, memory by SIGABRT, the stack by SIGSEGV. A costly
or broken grammar therefore affects only its own requests.
"""

import gc
import os
import resource
import select
import signal
import socket
import sys
import traceback
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import NoReturn

from llguidance import LLTokenizer

from inference_core.errors import InvalidRequestError
from inference_core.grammar.compiler import ErrorOf, GrammarCompiler
from inference_core.grammar.limits import Limits, allow, at_low_priority, check_bounds, leave_group, set_limits
from inference_core.grammar.matcher import GrammarMatcher
from inference_core.grammar.wire import (
    VOCABULARY,
    Answer,
    Answers,
    Channel,
    Compiled,
    Encode,
    Encoded,
    Ended,
    Failed,
    Loaded,
    Question,
    Questions,
    Refused,
    Start,
    Vocabulary,
)
from inference_core.protocol import Grammar


class _Tokens:
    """The attributes that `LLTokenizer` reads."""

    is_tokenizer_wrapper = True

    def __init__(self, tokens: list[bytes], eos_token_id: int, encode: Callable[[str], list[int]]) -> None:
        self.tokens = tokens
        self.eos_token_id = eos_token_id
        self.bos_token_id = None
        self.special_token_ids: list[int] = []  # special tokens are marked in `tokens`
        self._encode = encode

    def __call__(self, text: bytes | str) -> list[int]:
        return self._encode(text if isinstance(text, str) else text.decode())


def trie_of(tokens: list[bytes], eos_token_ids: Sequence[int], encode: Callable[[str], list[int]]) -> LLTokenizer:
    """Build the trie; takes a large part of a second. `tokens`: see `marked_tokens`. `encode` tokenises text.

    `eos_token_ids`, at least one, are allowed only where a grammar accepts.
    """
    wrapper = _Tokens(tokens, eos_token_ids[0], encode)
    return LLTokenizer(wrapper, eos_token=list(eos_token_ids))  # type: ignore[arg-type]


# Characters of a forced text to tokenise at once, which the serving process does between steps; and how many tokens
# before such a cut may differ from those of the whole text.
_LONGEST_FORCED = 1024
_UNSURE = 8


# A grammar that forces no text, so it needs no tokeniser.
_ANY_JSON = Grammar(kind="json_schema", text="{}")


class RemoteEncoder:
    """Tokenises by the tokeniser at the other end of `channel`: a text, or as much of it as is needed soon."""

    channel: Channel

    def __call__(self, text: str) -> list[int]:
        self.channel.send(Encode(text[:_LONGEST_FORCED]))
        answer = self.channel.receive()
        assert isinstance(answer, Encoded)
        is_cut = len(text) > _LONGEST_FORCED and len(answer.token_ids) > 2 * _UNSURE
        return answer.token_ids[:-_UNSURE] if is_cut else answer.token_ids


def run(channel: Channel, vocabularies: Mapping[int, LLTokenizer]) -> NoReturn:
    """Serve the grammar received over `channel` until its other end is closed, then end the process."""
    _warm_up(vocabularies)
    with suppress(EOFError, OSError):
        start = channel.receive()
        assert isinstance(start, Start)
        set_limits(start.limits)
        worker = _Worker(channel, start)
        compiler = GrammarCompiler(vocabularies[start.vocabulary], partial(_checked, start.limits))
        # Other callers' steps go first. Masks have the usual priority: steps wait for them.
        if at_low_priority(partial(worker.compile, compiler), start.limits):
            worker.answer_questions()
    os._exit(0)


def _warm_up(vocabularies: Mapping[int, LLTokenizer]) -> None:
    """Compile a small grammar, to copy the shared pages that compiling writes to; that takes longest."""
    for tokenizer in vocabularies.values():
        GrammarCompiler(tokenizer).compile(_ANY_JSON)


class _Worker:
    def __init__(self, channel: Channel, start: Start) -> None:
        self._channel, self._grammar, self._limits = channel, start.grammar, start.limits
        self._shared_bytes = _most_resident_bytes()
        self._make: Callable[[], GrammarMatcher] | None = None
        self._matchers: dict[int, GrammarMatcher] = {}

    def compile(self, compiler: GrammarCompiler) -> bool:
        """Compile and send the result. Returns whether the grammar can be followed."""
        try:
            allow(self._limits.compile_seconds)
            check_bounds(self._grammar)
            self._make = compiler.compile(self._grammar, self._refusing)
            num_words = self._make().num_words
            allow(0)
        except InvalidRequestError as error:
            self._channel.send(Refused(str(error), error.param, final=True))
        except MemoryError:
            os.abort()
        except BaseException as error:  # The library's panics are not subclasses of Exception.
            self._channel.send(Failed(type(error).__name__))
        else:
            self._channel.send(Compiled(num_words, self._memory_bytes))
            return True
        return False

    def _refusing(self, error: InvalidRequestError) -> None:
        self._channel.send(Refused(str(error), error.param, final=False))
        allow(self._limits.locate_seconds)

    def answer_questions(self) -> NoReturn:
        seconds = self._limits.burst_seconds
        while True:
            questions = self._channel.receive()
            assert isinstance(questions, Questions)
            for number in questions.dropped:
                self._matchers.pop(number, None)
            seconds += sum(1 + len(q.drafts or ()) for q in questions.asked) * self._limits.seconds_per_mask
            allow(max(1e-6, seconds))
            answers = [self._answer(question) for question in questions.asked]
            seconds = min(self._limits.burst_seconds, allow(0))
            self._channel.send(Answers(answers, self._memory_bytes))

    def _answer(self, question: Question) -> Answer:
        matcher = self._matchers.get(question.matcher)
        if matcher is None:
            assert self._make is not None
            matcher = self._matchers[question.matcher] = self._make()
        for token_id in question.accepted:
            matcher.accept(token_id)
        forced, masks = matcher.forced_tokens(), []
        if question.drafts is not None:
            matcher.ask_masks(question.drafts)
            masks = matcher.masks()
        return Answer(forced, masks, matcher.reason, matcher.has_invalid_end)

    @property
    def _memory_bytes(self) -> int:
        return _most_resident_bytes() - self._shared_bytes


def _checked(limits: Limits, error_of: ErrorOf) -> ErrorOf:
    """Validate one answer's texts within a time of its own; the process ends where that is not enough."""
    left = limits.check_seconds

    def checked(text: str) -> str | None:
        nonlocal left
        others = allow(max(1e-6, left))
        error = error_of(text)
        left = allow(others)
        return error

    return checked


def _most_resident_bytes() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10


class Server:
    """Serves one control socket."""

    def __init__(self, control: socket.socket) -> None:
        self._control = control
        self._vocabularies: dict[int, LLTokenizer] = {}
        self._encode = RemoteEncoder()
        self._workers: dict[int, Channel] = {}  # by process id
        self._by_file: dict[int, int] = {}  # process ids by file descriptor
        self._poll = select.poll()
        # Without a handler the signal would not wake `poll`.
        signal.signal(signal.SIGCHLD, lambda number, frame: None)
        self._woken, waker = socket.socketpair()
        for end in (self._woken, waker):
            end.setblocking(False)
        self._waker = waker
        signal.set_wakeup_fd(waker.fileno(), warn_on_full_buffer=False)

    def serve(self) -> None:
        """Return when the other end of the control socket is closed."""
        self._poll.register(self._control, select.POLLIN)
        self._poll.register(self._woken, select.POLLIN)
        while True:
            for file, _ in self._poll.poll():
                if file == self._woken.fileno():
                    self._woken.recv(4096)
                    self._reap()
                elif file != self._control.fileno():
                    self._end(file)
                elif not self._execute():
                    return

    def _execute(self) -> bool:
        """Execute one command of the control socket. Returns whether it is still open."""
        with suppress(ConnectionError):
            kind, files, _, _ = socket.recv_fds(self._control, 1, 1)
            if not kind:
                return False
            if files:
                channel = Channel(socket.socket(fileno=files[0]))
                if kind == VOCABULARY:
                    self._load(channel)
                else:
                    self._start(channel)
            return True
        return False

    def _load(self, channel: Channel) -> None:
        with suppress(EOFError, OSError):
            given = channel.receive()
            assert isinstance(given, Vocabulary)
            try:
                self._vocabularies[given.number] = trie_of(given.tokens, given.eos_token_ids, self._encode)
            except Exception as error:
                channel.send(Failed(repr(error)))
            else:
                channel.send(Loaded())
        channel.close()
        # Freeze the vocabularies: garbage collection in forked processes would copy their pages.
        gc.collect()
        gc.freeze()

    def _start(self, channel: Channel) -> None:
        try:
            process = os.fork()
        except OSError:
            channel.send_at_once(Ended(0))
            channel.close()
            return
        if not process:
            self._become_worker(channel)
        self._workers[process] = channel
        self._by_file[channel.fileno()] = process
        self._poll.register(channel.fileno(), 0)  # POLLHUP: the serving process has closed it

    def _become_worker(self, channel: Channel) -> NoReturn:
        try:
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            for own in (self._control, self._woken, self._waker):
                own.close()
            for other in self._workers.values():
                other.close()
            # The library prints its panics, which any caller can cause.
            nowhere = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nowhere, 2)
            self._encode.channel = channel
            run(channel, self._vocabularies)
        except Exception as error:
            channel.send_at_once(Failed(type(error).__name__))
        finally:
            os._exit(1)

    def _end(self, file: int) -> None:
        process = self._by_file.get(file)
        if process is not None:  # None: it has ended meanwhile
            self._poll.unregister(file)
            os.kill(process, signal.SIGKILL)

    def _reap(self) -> None:
        while self._workers:
            process, status = os.waitpid(-1, os.WNOHANG)
            if not process:
                return
            channel = self._workers.pop(process)
            file = channel.fileno()
            del self._by_file[file]
            with suppress(KeyError):  # removed when it was ended
                self._poll.unregister(file)
            channel.send_at_once(Ended(os.WTERMSIG(status) if os.WIFSIGNALED(status) else 0))
            channel.close()


def main() -> NoReturn:
    leave_group()
    try:
        Server(socket.socket(fileno=int(sys.argv[1]))).serve()
    except BaseException:
        traceback.print_exc()
    while True:
        os.killpg(0, signal.SIGKILL)


if __name__ == "__main__":
    main()
