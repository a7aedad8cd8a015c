"""The process of one grammar: compiles it, and follows it for every sequence that uses it, within limits.

The limits end the process anywhere, even inside the library: CPU time by SIGPROF, memory by SIGABRT, the stack by
SIGSEGV. A costly or broken grammar therefore affects only its own requests.
"""

import os
import resource
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial
from typing import NoReturn

from llguidance import LLTokenizer

from inference_core.errors import InvalidRequestError
from inference_core.grammar.bounds import check_bounds
from inference_core.grammar.compiler import ErrorOf, GrammarCompiler
from inference_core.grammar.limits import Limits
from inference_core.grammar.matcher import GrammarMatcher
from inference_core.grammar.process_limits import allow, at_low_priority, set_limits
from inference_core.grammar.wire import (
    Answer,
    Answers,
    Channel,
    Compiled,
    Encode,
    Encoded,
    Failed,
    Question,
    Questions,
    Refused,
    Start,
)
from inference_core.protocol import Grammar

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
