"""Calls that a model wrote into a text: the forms of all dialects, and the text before them.

A form is a row of `tiers/dialects/quirks/written.toml`: the marks around calls, and how their names and arguments are
written. Tokens that ended the answer, which some servers leave in it, are no part of the text either.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import product
from typing import Literal, NamedTuple

import msgspec

from tiers.conversation import Tool, ToolCallDelta, new_call_id
from tiers.dialects.lenient_json import arguments_text, objects_in, plain_json
from tiers.dialects.quirks import Row, read_rows
from tiers.dialects.written.call_dialects import (
    HERMES,
    LISTED,
    LLAMA3,
    MISTRAL,
    PYTHON_CALLS,
    AnyDialect,
    ArgumentMarks,
    CallDialect,
    NamedDialect,
)
from tiers.dialects.written.harmony import ChannelParser, Said
from tiers.dialects.written.probe_dialect import parser_of

THINK_END = "</think>"
# Not where it is spoken of.
QUOTES = ("`", "'", '"')
_QUOTED = re.compile(r"[\s(\[{:,=][`'\"]")


class Tags(Row, frozen=True, kw_only=True):
    """What stands around thoughts, or around an answer."""

    models: str
    """Who writes it."""
    opening: str
    closing: str


class CallForm(Row, frozen=True, kw_only=True):
    """One form of calls: a known one, `json`, `python`, or names with their arguments."""

    models: str
    """Who writes it."""
    known: Literal["", "hermes", "listed", "llama3", "mistral", "pythonic", "action"] = ""
    """The name of a form."""
    json: tuple[str, str] | None = None
    """What is around one call as a JSON object, or a list of them."""
    python: tuple[str, str, str] | None = None
    """What is around calls as Python writes them, and what separates them."""
    sections: tuple[tuple[str, str], ...] = (("", ""),)
    """What may be around all calls."""
    openers: tuple[str, ...] = ()
    """What may be before a name."""
    after_name: str = ""
    closer: str = ""
    separator: str = "\n"
    """What is between two calls."""
    marks: tuple[str, ...] = ()
    """What is before a key, before its value and after it; before and after a value that is no text, if that differs;
    and between two. Without any, the arguments are JSON."""

    def dialects(self) -> Iterator[AnyDialect]:
        """Yield the dialects that read it."""
        if self.known:
            yield _KNOWN[self.known]
        elif self.json is not None:
            yield CallDialect("json", *self.json, "\n", True, False, "", "arguments")
        elif self.python is not None:
            begin, end, separator = self.python
            yield msgspec.structs.replace(PYTHON_CALLS, section=(begin, end), separator=separator)
        for around, opener in product(self.sections, self.openers):
            yield NamedDialect(around, opener, self.closer, self.separator, self.after_name, self._arguments())

    def _arguments(self) -> ArgumentMarks | None:
        if not self.marks:
            return None
        key, mid, close, *others = self.marks
        other_mid, other_close, *separators = others or (mid, close)
        return ArgumentMarks(key, mid, close, other_mid, other_close, "".join(separators) or "\n", "raw")


class WrittenRows(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The file of rows."""

    ends: tuple[str, ...]
    """Tokens of templates that may be left at the end of an answer."""
    openers: tuple[str, ...]
    """What calls begin with."""
    left_over: tuple[str, ...]
    """What a model writes around its calls once too often."""
    thoughts: tuple[Tags, ...]
    wrappers: tuple[Tags, ...]
    calls: tuple[CallForm, ...]


_KNOWN: dict[str, AnyDialect] = {
    "hermes": HERMES,
    "listed": LISTED,
    "llama3": LLAMA3,
    "mistral": MISTRAL,
    "pythonic": PYTHON_CALLS,
    "action": CallDialect(
        "action", "<|START_ACTION|>[", "]<|END_ACTION|>", ",", False, False, "", "parameters", "tool_name"
    ),
}
WRITTEN = read_rows("written", WrittenRows)
WRAPPERS = {row.opening: row.closing for row in WRITTEN.wrappers}
_DIALECTS = [dialect for form in WRITTEN.calls for dialect in form.dialects()]
# Python without any mark, which must be all of the answer.
_BARE_PYTHON = ("[", "]")
# Gemma 3's, which a block of code may be as well.
_TOOL_CODE = "```tool_code"
_FENCE = "```"
_OPENER = re.compile("|".join((*map(re.escape, WRITTEN.openers), rf"(?<=\s){_FENCE}")))
# GLM's, around what it means as the result.
_BOX = re.compile(r"(?<![`'\"])<\|(?:begin|end)_of_box\|>")
_BOXES = ("<|begin_of_box|>", "<|end_of_box|>")
_CLOSINGS = ("</answer>", "</response>", THINK_END)
_END = re.compile("|".join(map(re.escape, (*WRITTEN.ends, *_CLOSINGS))))
_ENDING = re.compile(rf"(?:(?:{_END.pattern})\s*)+\Z")
_WORDS = (*WRITTEN.openers, _FENCE, *WRITTEN.ends, *_CLOSINGS, *_BOXES)
_CUT = frozenset(word[:size] for word in _WORDS for size in range(1, len(word)))
_FIRST = frozenset(word[0] for word in _WORDS)
_LONGEST_CUT = max(map(len, _CUT))
# White space that waits for a call, or tokens for the end.
MOST_WAITING = 256
# An answer that is a call in JSON, and what may become one.
_BARE_CALL = re.compile(r'(?:```(?:json)?\s*)?\[?\s*\{\s*(?:"type"\s*:\s*"function"\s*,\s*)?"name"\s*:|' + _TOOL_CODE)
# Short beginnings of these letters alone may become one.
_BARE_LETTERS = frozenset('`json[{ \n"type:function,aml_d')
_LONGEST_BARE = 48
# A parser copies what follows a call.
_PIECE = 2048


class WholeCall(NamedTuple):
    name: str
    text: str


def _bare_call(data: bytes) -> WholeCall:
    """Return the name and the arguments of a call in JSON."""
    said = plain_json(data)
    arguments = arguments_text(said.get("arguments", said.get("parameters")))
    return WholeCall(str(said.get("name")), arguments or "{}")


def numbered(calls: Iterable[WholeCall], most: int | None) -> list[ToolCallDelta]:
    return [
        ToolCallDelta(index=index, id=new_call_id(), name=call.name, arguments=call.text)
        for index, call in enumerate([*calls][:most])
    ]


class WrittenText:
    """A text that may have calls in it: from the first mark of one on, it waits for its end. What a block of code or a
    quotation has is spoken of. Tokens that ended the answer are none of its text."""

    def __init__(self, tools: Mapping[str, Tool], most: int | None, is_callers: Callable[[str], bool]) -> None:
        self.tools = tools
        # The mark of a wrapping whose opening one was taken away.
        self.closing = ""
        self._most, self.is_callers = most, is_callers
        # What has been passed ends so.
        self._before = "\n\n"
        self._held = ""
        self._waiting: list[str] = []
        self._is_bare = self._is_fenced = self._has_struck = False

    def push(self, text: str) -> str:
        """Return the text before anything that may be a call or the end, which waits."""
        if self._waiting:
            self._waiting.append(text)
            return ""
        seen = self._before + self._held + text
        begin = 2
        for opener in _OPENER.finditer(seen, 2) if self.tools else ():
            begin = opener.end()
            if opener[0] == _FENCE:
                self._is_fenced = not self._is_fenced
            elif self._is_fenced or _QUOTED.search(seen, opener.start() - 2, opener.start()):
                continue
            elif self.is_callers(opener[0]):
                self.tools = {}
                break
            else:
                cut = max(2, len(seen[: opener.start()].rstrip()))
                self._waiting.append(seen[cut:])
                return self._pass_on(seen[2:cut], "")
        if not self.tools and "<" not in seen:
            return self._pass_on(seen[2:], "")
        last = range(max(begin, len(seen) - _LONGEST_CUT), len(seen))
        cut = next((start for start in last if seen[start] in _FIRST and seen[start:] in _CUT), len(seen))
        if (ending := _ENDING.search(seen, max(begin, len(seen) - MOST_WAITING), cut)) is not None:
            cut = ending.start()
        if self.tools:
            # White space before a call is no text.
            cut = max(2, len(seen[:cut].rstrip()), cut - MOST_WAITING)
        return self._pass_on(seen[2:cut], seen[cut:])

    def is_plain(self, text: str) -> bool:
        """Whether the next piece is nothing but text; then it has been passed."""
        if self.tools or self._held or self._waiting or "<" in text:
            return False
        self._before = (self._before + text)[-2:]
        return True

    def channels(self) -> ChannelParser:
        """Return what reads the same calls in gpt-oss's channels."""
        return ChannelParser(self.tools, self._most)

    def bare(self, start: str, *, whole: bool) -> bool | None:
        """Whether an answer that begins so may be nothing but calls; None if it is too early to say."""
        if not self.tools:
            return False
        if start[:1] == "[":
            rest = start[1:].lstrip()
            if any(rest.startswith(f"{name}(") for name in self.tools):
                return True
            if not whole and any(f"{name}(".startswith(rest) for name in self.tools):
                return None
        if _BARE_CALL.match(start):
            return True
        is_short = not whole and len(start) < _LONGEST_BARE and _BARE_LETTERS.issuperset(start)
        return None if is_short else False

    def wait(self, text: str) -> None:
        """Let an answer wait that may be nothing but calls."""
        self._waiting, self._is_bare = [text], True

    def release(self) -> str:
        """Return all that waits, as it is."""
        text, self._held, self._waiting = "".join((self._held, *self._waiting)), "", []
        return text

    def finish(self, *, alone: bool = False) -> Said:
        """Return what still waits. `alone`: calls with anything around them are text."""
        is_written, alone = bool(self._waiting), alone or self._is_bare
        held = self.release()
        text = self._without_end(held)
        said = self._calls_in(text) if is_written and self.tools else Said(text, "", [])
        return Said(held, "", []) if alone and said.text.strip() and is_written else said

    def _pass_on(self, text: str, held: str) -> str:
        self._held = held
        seen = self._before + text
        self._has_struck, self._before = self._has_struck or "<s>" in seen, seen[-2:]
        return _BOX.sub("", seen)[2:] if "_of_box|>" in text and not self.is_callers(_BOXES[0]) else text

    def _without_end(self, text: str) -> str:
        """Return the last of an answer without the tokens that ended it."""
        ending, cut = _ENDING.search(text, max(0, len(text) - MOST_WAITING)), len(text)
        for match in reversed([] if ending is None else [*_END.finditer(text, ending.start())]):
            end = match[0]
            is_others = end in _CLOSINGS and end != self.closing
            if is_others or (end == "</s>" and (self._has_struck or "<s>" in text)) or self.is_callers(end):
                break
            cut = match.start()
        # Behind a blank, it is a word of the sentence; alone, it is all of the answer.
        is_word = (self._before + text[:cut])[-1] in (" ", *QUOTES) or (self._before == "\n\n" and not cut)
        return text if cut == len(text) or (is_word and not self.closing) else text[:cut].rstrip()

    def _calls_in(self, text: str) -> Said:
        """Return the calls in a text that has an opener of some dialect, or is JSON; or the text itself."""
        if _BARE_CALL.match(text) and not text.startswith(_TOOL_CODE):
            objects, rest = objects_in(text.strip().removeprefix("```json").strip("`").encode())
            read = [] if rest else [call for call in map(_bare_call, objects) if call.name in self.tools]
            return (
                Said("", "", numbered(read, self._most)) if read and len(read) == len(objects) else Said(text, "", [])
            )
        for dialect in _DIALECTS:
            if isinstance(dialect, NamedDialect):
                opener, is_bare = dialect.anchor, dialect.section == _BARE_PYTHON
            else:
                opener, is_bare = dialect.opener.strip().removesuffix("["), False
            if opener.split("\n")[0] not in text or (is_bare and not self._is_bare):
                continue
            parser = parser_of(dialect, self.tools, self._most)
            pieces = (text[at : at + _PIECE] for at in range(0, len(text), _PIECE))
            parts = (*map(parser.feed, pieces), parser.finish())
            calls = [call for part in parts for call in part.calls]
            # One that is cut off is no call.
            if calls and (calls[-1].arguments or "}").rstrip().endswith("}"):
                left = "".join(part.text for part in parts).strip()
                return Said("" if left in WRITTEN.left_over else left, "", calls)
        return Said(text, "", [])
