"""`python -m inference_core.grammar.child FD`: the child of a serving process, which forks a process for each grammar.

The child holds the vocabularies and runs no grammar itself, so it is always ready to fork. A fork takes milliseconds
and shares the vocabularies, which take a second and tens of megabytes to load as tries over bytes. Forking is safe
here, unlike in the serving process, because this one has a single thread and loads only the grammar library. FD is the
control socket (see `wire`). When its other end is closed, this process and all that it started end.

The process of one grammar compiles it, and follows it for every sequence that uses it, within limits. Another kind of
process validates finished answers, once. The limits end a process anywhere, even inside the library: CPU time by
SIGPROF, memory by SIGABRT, the stack by SIGSEGV. A costly or broken grammar therefore affects only its own requests.
"""

import gc
import os
import resource
import signal
import socket
import sys
import traceback
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, NoReturn

from inference_core.errors import InvalidRequestError
from inference_core.grammar.limits import Limits, allow, at_low_priority, check_bounds, leave_group, set_limits
from inference_core.grammar.validation import AnswerValidator, UncheckedError
from inference_core.grammar.wire import (
    CHECK,
    VOCABULARY,
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
    Question,
    Questions,
    Refused,
    Start,
    Vocabulary,
)
from inference_core.protocol import Grammar

if TYPE_CHECKING:
    from llguidance import LLTokenizer

    from inference_core.grammar.compiler import ErrorOf, GrammarCompiler
    from inference_core.grammar.matcher import GrammarMatcher

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


def follow(channel: Channel, vocabularies: "Mapping[int, LLTokenizer]") -> None:
    """Serve the grammar received over `channel` until its other end is closed."""
    from inference_core.grammar.compiler import GrammarCompiler

    for tokenizer in vocabularies.values():
        # This copies the shared pages that compiling writes to, which takes longest, before a grammar is there.
        GrammarCompiler(tokenizer).compile(_ANY_JSON)
    start = channel.receive()
    assert isinstance(start, Start)
    set_limits(start.limits)
    worker = _Worker(channel, start)
    compiler = GrammarCompiler(vocabularies[start.vocabulary], partial(_limited, start.limits))
    # Other callers' steps go first. Masks have the usual priority: steps wait for them.
    if at_low_priority(partial(worker.compile, compiler), start.limits):
        worker.answer_questions()


class _Worker:
    def __init__(self, channel: Channel, start: Start) -> None:
        self._channel, self._grammar, self._limits = channel, start.grammar, start.limits
        self._shared_bytes = _most_resident_bytes()
        self._make: Callable[[], GrammarMatcher] | None = None
        self._matchers: dict[int, GrammarMatcher] = {}

    def compile(self, compiler: "GrammarCompiler") -> bool:
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


def _limited(limits: Limits, error_of: "ErrorOf") -> "ErrorOf":
    """Validate one answer's texts within a time of its own; the process ends where that is not enough."""
    left = limits.check_seconds

    def limited(text: str) -> str | None:
        nonlocal left
        others = allow(max(1e-6, left))
        error = error_of(text)
        left = allow(others)
        return error

    return limited


def _most_resident_bytes() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10


def check(channel: Channel) -> None:
    """Validate the finished answers received over `channel`."""
    message = channel.receive()
    assert isinstance(message, Check)
    set_limits(message.limits)
    allow(message.limits.check_seconds)
    for index, (schema, text) in enumerate(message.pairs):
        try:
            error = AnswerValidator(schema).error(text)
        except UncheckedError as failure:
            error = str(failure)
        if error is not None:
            channel.send(Checked(error, index))
            return
    channel.send(Checked(None))


class Child:
    """Serves one control socket."""

    def __init__(self, control: socket.socket) -> None:
        self._control = control
        self._vocabularies: dict[int, LLTokenizer] = {}
        self._encode = RemoteEncoder()
        self._channels: dict[int, Channel] = {}
        """The processes that run, by their ids."""
        signal.signal(signal.SIGCHLD, self._reap)

    def serve(self) -> None:
        """Return when the other end of the control socket is closed."""
        with suppress(ConnectionError):
            while (received := socket.recv_fds(self._control, 1, 1))[0]:
                kind, files = received[:2]
                for file in files:
                    channel = Channel(socket.socket(fileno=file))
                    if kind == VOCABULARY:
                        self._load(channel)
                    else:
                        self._fork(kind, channel)

    def _load(self, channel: Channel) -> None:
        with suppress(EOFError, OSError):
            message = channel.receive()
            assert isinstance(message, Vocabulary)
            try:
                # Without models of its own, a serving process has no grammar library.
                from inference_core.grammar.compiler import trie_of

                self._vocabularies[message.number] = trie_of(message.tokens, message.eos_token_ids, self._encode)
            except Exception as error:
                channel.send(Failed(repr(error)))
            else:
                channel.send(Loaded())
        channel.close()
        # Freeze the vocabularies: garbage collection in forked processes would copy their pages.
        gc.collect()
        gc.freeze()

    def _fork(self, kind: bytes, channel: Channel) -> None:
        # The end of a process is not handled before the process is known.
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGCHLD})
        try:
            process = os.fork()
        except OSError:
            channel.send_at_once(Ended(0))
        else:
            if not process:
                self._become(kind, channel)
            self._channels[process] = channel
        finally:
            signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGCHLD})

    def _become(self, kind: bytes, channel: Channel) -> NoReturn:
        try:
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            self._control.close()
            for other in self._channels.values():
                other.close()
            # The library prints its panics, which any caller can cause.
            os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
            self._encode.channel = channel
            with suppress(EOFError, OSError):
                if kind == CHECK:
                    check(channel)
                else:
                    follow(channel, self._vocabularies)
            os._exit(0)
        except Exception as error:
            channel.send_at_once(Failed(type(error).__name__))
        finally:
            os._exit(1)

    def _reap(self, number: int, frame: object) -> None:
        """Tell the serving process how processes ended."""
        for process, channel in list(self._channels.items()):
            with suppress(ChildProcessError, KeyError):  # this handler may interrupt itself
                ended, status = os.waitpid(process, os.WNOHANG)
                if ended:
                    del self._channels[process]
                    channel.send_at_once(Ended(os.WTERMSIG(status) if os.WIFSIGNALED(status) else 0))
                    channel.close()


def main() -> NoReturn:
    leave_group()
    try:
        Child(socket.socket(fileno=int(sys.argv[1]))).serve()
    except BaseException:
        traceback.print_exc()
    while True:
        os.killpg(0, signal.SIGKILL)


if __name__ == "__main__":
    main()
