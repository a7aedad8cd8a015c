"""Limits of one grammar. Sizes are checked before compilation; time and memory are enforced.

Grammars that are larger than any real one are refused, naming the limit. The counts are cheap and not recursive. The
serving process checks only the length; the grammar's process counts the rest. Limits of a process that works on what
callers wrote end it anywhere, even inside a library.
"""

import json
import os
import re
import resource
import signal
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from inference_core.errors import InvalidRequestError
from inference_core.protocol import Grammar

# Length of the text. JSON schemas and Lark rules for tools of real applications have up to some 100,000.
MAX_CHARACTERS = 1 << 19
# Nested objects and arrays in a schema (the library's JSON parser stops at 128), nested groups in a grammar.
MAX_DEPTH = 100
# Rules of a Lark or GBNF grammar, definitions of a schema.
MAX_RULES = 5_000
# The sum of values of `enum`, members of `anyOf`, `oneOf` and `allOf`, texts of a choice, and `|` in a grammar.
MAX_ALTERNATIVES = 10_000

# Grammars of one tenant that may wait to be compiled.
MAX_WAITING_PER_TENANT = 128
# Processes, one per grammar, usually of 2 MB; processes in use for one tenant; memory of all.
MAX_WORKERS = 128
MAX_WORKERS_PER_TENANT = 96
MAX_MEMORY_BYTES = 1 << 30


class Limits(msgspec.Struct, frozen=True, kw_only=True):
    """Limits of a grammar's process."""

    compile_seconds: float = 2.0
    """CPU time for compiling."""
    locate_seconds: float = 0.5
    """CPU time for finding the place in a schema that cannot be compiled."""
    check_seconds: float = 0.5
    """CPU time for validating an answer."""
    burst_seconds: float = 0.25
    """CPU time that all masks together may take beyond `seconds_per_mask` each."""
    seconds_per_mask: float = 0.01
    """CPU time that a mask may take on average."""
    answer_seconds: float = 10.0
    """How long a step waits for masks, however busy the machine."""
    compile_wait_seconds: float = 20.0
    """How long a request waits for compiling, however busy the machine."""
    memory_bytes: int = 128 << 20
    """Growth of the address space."""
    stack_bytes: int = 8 << 20
    """Size of the stack."""


LIMITS = Limits()


_ALTERNATIVES = ("enum", "anyOf", "oneOf", "allOf")
_DEFINITIONS = ("$defs", "definitions")
# Skips literals; counts brackets and separators outside of them, and names that start rules. Reads every character
# once: the quantifiers are possessive, and a literal may lack its end.
_GRAMMAR = re.compile(
    r'"(?:\\.|[^"\\\n])*+"?'
    r"|/(?:\\.|[^/\\\n])++/?"
    r"|(?P<rule>^[ \t]*+[?!]?[A-Za-z_][^\n\"/|():]*+:)"
    r"|(?P<mark>[()\[\]{}|])",
    re.MULTILINE,
)
_REGEX = re.compile(r"\\.|\[\^?\]?(?:\\.|[^\]\\])*+\]?|(?P<rule>(?!))|(?P<mark>[()|])", re.DOTALL)


class Size(NamedTuple):
    """The size of a grammar."""

    depth: int = 0
    """Levels of nesting."""
    rules: int = 0
    """Rules or definitions."""
    alternatives: int = 0


def check_length(grammar: Grammar) -> None:
    """Raises `InvalidRequestError` for a text that is too long."""
    for param, text in (*grammar.schemas, (grammar.param, grammar.text)):
        _check(param, len(text), MAX_CHARACTERS, "characters")


def check_bounds(grammar: Grammar) -> None:
    """Raises `InvalidRequestError` for a grammar with too many levels, rules or alternatives."""
    sizes = [(param, _size_of_json(param, text)) for param, text in grammar.schemas]
    for param, size in (*sizes, (grammar.param, _size(grammar))):
        _check(param, size.depth, MAX_DEPTH, "levels of nesting")
        _check(param, size.rules, MAX_RULES, "rules or definitions")
        _check(param, size.alternatives, MAX_ALTERNATIVES, "alternatives")


def _check(param: str, number: int, most: int, what: str) -> None:
    if number > most:
        raise InvalidRequestError(f"{param}: at most {most} {what} are allowed; it has {number}", param)


def _size(grammar: Grammar) -> Size:
    if grammar.kind == "json_schema":
        return _size_of_json(grammar.param, grammar.text)
    if grammar.kind == "choice":
        choices = _parsed(grammar.param, grammar.text)
        return Size(alternatives=len(choices) if isinstance(choices, list) else 0)
    return _size_of_marks(grammar.text, _REGEX if grammar.kind == "regex" else _GRAMMAR)


def _size_of_marks(text: str, pattern: re.Pattern[str]) -> Size:
    depth = deepest = rules = alternatives = 0
    for match in pattern.finditer(text):
        mark = match["mark"]
        if match["rule"]:
            rules += 1
        elif mark == "|":
            alternatives += 1
        elif mark is not None and mark in "([{":
            depth += 1
            deepest = max(deepest, depth)
        elif mark is not None:
            depth -= 1
    return Size(deepest, rules, alternatives)


def _size_of_json(param: str, text: str) -> Size:
    deepest = rules = alternatives = 0
    left: list[tuple[Any, int]] = [(_parsed(param, text), 1)]
    while left:
        part, depth = left.pop()
        if isinstance(part, dict):
            alternatives += sum(len(part[key]) for key in _ALTERNATIVES if isinstance(part.get(key), list))
            rules += sum(len(part[key]) for key in _DEFINITIONS if isinstance(part.get(key), dict))
            inner = part.values()
        elif isinstance(part, list):
            inner = part  # type: ignore[assignment]
        else:
            continue
        deepest = max(deepest, depth)
        left += [(each, depth + 1) for each in inner if isinstance(each, dict | list)]
    return Size(deepest, rules, alternatives)


def _parsed(param: str, text: str) -> Any:
    """Parsed JSON; None if it is not JSON, for which the compiler gives the reason."""
    try:
        return json.loads(text)
    except RecursionError as error:
        raise InvalidRequestError(f"{param}: at most {MAX_DEPTH} levels of nesting are allowed", param) from error
    except ValueError:
        return None


NICENESS = 10
"""Of work that no step waits for."""


def set_limits(limits: Limits) -> None:
    """Limit stack and memory of this process, and leave no core file."""
    signal.signal(signal.SIGPROF, signal.SIG_DFL)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    _, most = resource.getrlimit(resource.RLIMIT_STACK)
    with suppress(ValueError):  # the system's own limit is lower
        resource.setrlimit(resource.RLIMIT_STACK, (limits.stack_bytes, most))
    with suppress(OSError):  # no such file system: the platform does not enforce the limit either
        Path("/proc/self/oom_score_adj").write_text("500")  # have the kernel kill this process before the serving one
        pages = int(Path("/proc/self/statm").read_text().split()[0])
        size = pages * resource.getpagesize() + limits.memory_bytes
        resource.setrlimit(resource.RLIMIT_AS, (size, size))


def allow(seconds: float) -> float:
    """End the process after `seconds` more CPU time; 0: no limit. Returns what is left of the previous limit."""
    return signal.setitimer(signal.ITIMER_PROF, seconds)[0]


def at_low_priority(work: Callable[[], bool], limits: Limits) -> bool:
    """Return what `work` returns, False if it raises. It runs after the threads of the serving process where these need
    the processors.

    It runs on a thread, because a priority that was lowered cannot be raised again, and Linux has one for each thread.
    Elsewhere the priority is unchanged.
    """
    results: list[bool] = []

    def lowered() -> None:
        if sys.platform == "linux":
            os.nice(NICENESS)
        results.append(work())

    threading.stack_size(limits.stack_bytes)
    thread = threading.Thread(target=lowered)
    thread.start()
    thread.join()
    return bool(results) and results[0]


def leave_group() -> None:
    """Give this process a group of its own: it ends with the serving process, which may still finish answers after a
    signal to the process group."""
    if os.getpgrp() != os.getpid():
        os.setpgrp()
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
