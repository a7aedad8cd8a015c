"""Find out how a chat template writes tool calls: it renders calls of known functions, and the dialect is read off.

A dialect counts only if its own parser reads the rendered calls back.
"""

import itertools
import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any, NamedTuple

from inference_core.errors import InvalidRequestError
from tiers.conversation import Tool
from tiers.dialects.written.call_dialects import LLAMA3, AnyDialect, ArgumentMarks, CallDialect, NamedDialect
from tiers.dialects.written.call_parser import CallParser, NamedCallParser

AnyParser = CallParser | NamedCallParser
# Renders turns with tools, without the beginning of an answer.
Render = Callable[[Sequence[Mapping[str, Any]], Sequence[Mapping[str, Any]]], str]

_TEXT = "☃"
_PARAMETERS = {
    "type": "object",
    "properties": {
        "alpha": {"type": "string", "description": "A text."},
        "beta": {"type": "integer", "description": "A number."},
        "gamma": {"type": "string", "description": "A text."},
    },
    "required": ["alpha", "beta", "gamma"],
}
_TOOLS = {name: Tool(name=name, description="A probe.", parameters=_PARAMETERS) for name in ("probe_one", "probe_two")}
_ONE, _TWO = _TOOLS
_ARGUMENTS: dict[str, Any] = {"alpha": 'one "two"', "beta": 7, "gamma": "three"}
_IDS = ("prb000001", "prb000002")
# Templates write them empty before a call; models do not.
_THOUGHTS = re.compile(r"^.*?(</think>|<\|END_THINKING\|>)", re.DOTALL)
_DECODER = json.JSONDecoder()


class Probed(NamedTuple):
    """What probes of a chat template showed."""

    dialect: AnyDialect | None
    """How calls are written; None if the template's calls could not be read."""
    text_arguments: bool = False
    """Whether the template wants arguments as JSON text."""
    no_content: bool = False
    """Whether it wants turns with calls without any text."""
    in_parts: bool = False
    """Whether it wants texts as lists of parts."""


UNKNOWN = Probed(None)


def parser_of(dialect: AnyDialect, tools: Mapping[str, Tool], most: int | None = None) -> AnyParser:
    if isinstance(dialect, CallDialect):
        return CallParser(dialect, tools, most)
    return NamedCallParser(dialect, tools, most)


def probed(render: Render, ends: Sequence[str]) -> Probed:
    """Return the dialect of a template. `ends`: the texts of tokens that end an answer."""
    for no_content in (False, True):
        for text_arguments in (False, True):
            said = Probed(None, text_arguments, no_content)
            one_call = _answer(render, said, [(_ONE, _ARGUMENTS)], ends)
            two_calls = _answer(render, said, [(_ONE, _ARGUMENTS), (_TWO, _ARGUMENTS)], ends)
            if one_call is None or _ONE not in one_call:
                continue
            for pair in (two_calls, None) if two_calls is not None and _TWO in two_calls else (None,):
                for dialect in _candidates(one_call, pair):
                    if _reads_back(dialect, render, said, ends):
                        return said._replace(dialect=dialect)
    return UNKNOWN


def _candidates(one_call: str, two_calls: str | None) -> Iterator[AnyDialect]:
    """Dialects that may be that of an answer with one call, and one with two; None: it has one at most."""
    if (call := _json_call(one_call)) is not None and (dialect := _json_dialect(one_call, two_calls, call)) is not None:
        yield dialect
    before, _, rest = one_call.partition(_ONE)
    for read in (_json_arguments(rest), _marked_arguments(rest)):
        if read is not None:
            yield _named_dialect(before, rest, two_calls, *read)


def _answer(render: Render, said: Probed, calls: Sequence[tuple[str, Any]], ends: Sequence[str]) -> str | None:
    """What the template writes of an answer with `calls`; None if it refuses it."""
    user = {"role": "user", "content": "Hello"}
    made = [
        {
            "id": call_id,
            "type": "function",
            "function": {"name": name, "arguments": json.dumps(arguments) if said.text_arguments else arguments},
        }
        for call_id, (name, arguments) in zip(_IDS, calls, strict=False)
    ]
    tools = [tool.definition() for tool in _TOOLS.values()]
    called = {"role": "assistant", "content": None if said.no_content else "", "tool_calls": made}
    try:
        plain = render([user, {"role": "assistant", "content": _TEXT}], tools)
        written = render([user, called], tools)
    except InvalidRequestError:
        return None
    head, _, tail = plain.rpartition(_TEXT)
    answer = written.removeprefix(_common_start(head, written))
    answer = answer.removesuffix(_common_end(tail, answer))
    for end in filter(None, ends):
        answer = answer.partition(end)[0]
    return _THOUGHTS.sub("", answer).strip()


class _JsonCall(NamedTuple):
    start: int
    end: int
    name_key: str
    arguments_key: str


def _json_call(text: str) -> _JsonCall | None:
    """The object of the first call, if it is one with a name and arguments."""
    for brace in re.finditer(r"\{", text):
        with suppress(ValueError, RecursionError):
            value, end = _DECODER.raw_decode(text, brace.start())
            names = [key for key, said in value.items() if said == _ONE]
            arguments = [key for key, said in value.items() if said == _ARGUMENTS]
            if names and arguments:
                return _JsonCall(brace.start(), end, names[0], arguments[0])
    return None


def _json_dialect(one_call: str, two_calls: str | None, call: _JsonCall) -> CallDialect | None:
    opener, closer = one_call[: call.start], one_call[call.end :]
    if _IDS[0] in opener + closer:
        return None
    if not opener.strip() and call.arguments_key == LLAMA3.arguments_key:
        return LLAMA3
    wraps_each, separator = bool(opener.strip()), "\n"
    if two_calls is not None and two_calls.startswith(one_call[: call.end]):
        between = two_calls[call.end : _start_of(two_calls, call.end)]
        own = len(_common_start(closer, between))
        again = len(_common_end(opener, between[own:]))
        wraps_each = bool(opener.strip()) and again == len(opener) and own == len(closer)
        separator = between[own : len(between) - again] if wraps_each else between
    return CallDialect(
        "derived",
        opener,
        closer,
        separator,
        wraps_each,
        at_start=not opener.strip(),
        also_opens="",
        arguments_key=call.arguments_key,
        name_key=call.name_key,
        parallel=two_calls is not None,
    )


def _start_of(two: str, after: int) -> int:
    """Where the object of the second call starts."""
    name = two.find(_TWO, after)
    return two.rfind("{", after, name)


class _Read(NamedTuple):
    """A call as a template writes it."""

    after_name: str
    """Text up to the arguments."""
    arguments: ArgumentMarks | None
    end: int
    """Where the arguments end, in the text behind the name."""


def _json_arguments(rest: str) -> tuple[_Read] | None:
    for brace in re.finditer(r"\{", rest):
        with suppress(ValueError, RecursionError):
            value, end = _DECODER.raw_decode(rest, brace.start())
            if value == _ARGUMENTS:
                return (_Read(rest[: brace.start()], None, end),)
    return None


def _marked_arguments(rest: str) -> tuple[_Read] | None:
    keys = [rest.find(key) for key in ("alpha", "beta", "gamma")]
    if min(keys) < 0 or keys != sorted(keys):
        return None
    texts = [(form, json.dumps(said) if form == "json" else said) for form in ("json", "raw") for said in ['one "two"']]
    first_text = next(((form, said, rest.find(said, keys[0])) for form, said in texts if said in rest), None)
    if first_text is None:
        return None
    form, said, first = first_text
    second = rest.find("7", keys[1])
    last_text = '"three"' if form == "json" else "three"
    third = rest.find(last_text, keys[2])
    if not keys[0] < first < keys[1] < second < keys[2] < third:
        return None
    string_mid, other_mid = rest[keys[0] + 5 : first], rest[keys[1] + 4 : second]
    behind_text, behind_number = rest[first + len(said) : keys[1]], rest[second + 1 : keys[2]]
    tail = rest[third + len(last_text) :]
    key_open = _common_end(rest[: keys[0]], behind_text, behind_number)
    cut = len(key_open)
    behind_text, behind_number = behind_text[: len(behind_text) - cut], behind_number[: len(behind_number) - cut]
    string_close = _common_start(behind_text, tail)
    separator = behind_text[len(string_close) :]
    other_close = behind_number.removesuffix(separator)
    marks = ArgumentMarks(key_open, string_mid, string_close, other_mid, other_close, separator, form)  # type: ignore[arg-type]
    return (_Read(rest[: keys[0] - cut], marks, third + len(last_text) + len(string_close)),)


def _named_dialect(before: str, rest: str, two_calls: str | None, read: _Read) -> NamedDialect:
    head, foot = before, rest[read.end :]
    section, separator, opener, closer = ("", ""), "\n", head, foot
    if two_calls is not None and two_calls.startswith(head + _ONE) and (second := two_calls.find(_TWO)) > 0:
        between = two_calls[len(head + _ONE) + read.end : second].replace(_IDS[1], _IDS[0])
        opener = _common_end(head, between)
        closer = _common_start(foot, between[: len(between) - len(opener)])
        separator = between[len(closer) : len(between) - len(opener)]
        section = (head[: len(head) - len(opener)], foot[len(closer) :])
    after_name = re.sub(r"(?<=:)0(?=\D)", "{index}", read.after_name)
    return NamedDialect(
        section=section,
        opener=opener.replace(_IDS[0], "{id}"),
        closer=closer,
        separator=separator,
        after_name=after_name.replace(_IDS[0], "{id}"),
        arguments=read.arguments,
        parallel=two_calls is not None,
    )


def _common_start(*texts: str) -> str:
    """What all texts begin with, up to a whole mark: `<|a` of `<|ab|>` is none."""
    common = _common_prefix(*texts)
    cut = common.rfind("<")
    return common[:cut] if cut > common.rfind(">") else common


def _common_end(*texts: str) -> str:
    """What all texts end with, from a whole mark on."""
    common = _common_prefix(*(text[::-1] for text in texts))[::-1]
    cut, begin = common.find(">"), common.find("<")
    return common[cut + 1 :] if cut >= 0 and (begin < 0 or cut < begin) else common


def _common_prefix(*texts: str) -> str:
    shortest, longest = min(texts), max(texts)
    same = itertools.takewhile(lambda pair: pair[0] == pair[1], zip(shortest, longest, strict=False))
    return shortest[: sum(1 for _ in same)]


def _reads_back(dialect: AnyDialect, render: Render, said: Probed, ends: Sequence[str]) -> bool:
    """Whether the dialect's parser reads the template's own calls: one and two of them, and odd values."""
    odd = {"alpha": "two\nlines <b>&</b> 'x'", "beta": -12, "gamma": "7"}
    two = [[(_TWO, _ARGUMENTS), (_ONE, odd)]] if dialect.parallel else []
    for calls in ([(_ONE, _ARGUMENTS)], [(_ONE, odd)], *two):
        answer = _answer(render, said, calls, ends)
        if answer is None and len(calls) > 1:
            continue  # The template has one call at most; its models may have learnt more.
        if answer is None or _calls_in(dialect, answer) != calls:
            return False
    return True


def _calls_in(dialect: AnyDialect, answer: str) -> list[tuple[str, Any]]:
    parser = parser_of(dialect, _TOOLS)
    read = [parser.feed(answer), parser.finish()]
    calls: list[list[str]] = []
    for delta in (delta for said in read for delta in said.calls):
        if delta.id:
            calls.append([delta.name, ""])
        calls[-1][1] += delta.arguments
    try:
        return [(name, json.loads(arguments)) for name, arguments in calls]
    except ValueError:
        return []
