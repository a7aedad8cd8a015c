"""A server's own words in a refusal: its message without what it repeats of the request.

Servers quote what they were sent: whole, cut or escaped. A text of the request says nothing about the server, so what
the words of a refusal mean is concluded from `own_words` alone.

A piece of the request in quotes, or a long one, is an echo. A short one without quotes may be the server's own words,
which callers use too. It is an echo if it means something by itself, and if the words around it make nothing more of
it.
"""

import re
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import Any, NamedTuple

import msgspec

from inference_core.io.files import JSON_ERRORS
from tiers.dialects.refusals import EXTRAS, LEFT_OUT, RENAMED, meanings_in
from tiers.dialects.rules import EFFORTS

Span = tuple[int, int]
MOST_READ = 4096
"""Characters of a message that are read."""
_CUT = "…"
# Characters that may be an echo: in quotes, at the beginning or the end of a text of the request, and of the middle of
# a line behind a colon and the like.
_LEAST_QUOTED, _LEAST_ANCHORED, _LEAST_INSIDE = 4, 16, 32
# Characters that are an echo whatever they mean: at the beginning or the end of a text, and anywhere.
_SURE_ANCHORED, _LEAST_ANYWHERE = 48, 64
# Every run of `_LEAST_ANYWHERE` characters holds a whole window.
_WINDOW = _LEAST_ANYWHERE // 2
_MOST_DATA = 65_536
"""Characters of a text without a blank, such as an image, in which no words are."""

_MOST_NESTED = 262_144
"""Characters of texts of the request that are read as JSON."""
_PIECE = 131_072
"""Characters that are read at a time, while other threads wait."""

# The words of the APIs themselves, which servers use of their own accord, though callers give them too.
_OF_APIS = LEFT_OUT | EXTRAS | RENAMED.keys() | {*EFFORTS} | frozenset(
    """
    model messages message role roles content contents parts part text texts type name names input inputs output prompt
    user system developer assistant tool tools function functions tool_choice tool_calls tool_call_id tool_use
    tool_result tool_use_id call_id arguments parameters description required properties items object array string
    number integer boolean null true false enum const default title format pattern anyof oneof allof $schema $ref $defs
    additionalproperties definitions minimum maximum exclusiveminimum exclusivemaximum minlength maxlength minitems
    maxitems uniqueitems multipleof nullable auto specified stop stop_sequences stopsequences response_format
    json_object json_schema schema enabled disabled adaptive reasoning_content effort stream max_output_tokens
    maxoutputtokens max_new_tokens image_url input_image input_audio input_text output_text image audio file limit
    function_call function_call_output ephemeral length context tokens value values index encoding_format dimensions
    """.split()  # noqa: SIM905 - a list of a hundred words is not easier to read
)  # fmt: skip
# Objects whose fields a caller names; the names of others are the APIs', if they look like it.
_NAMED_BY_CALLERS = ("properties", "patternProperties", "$defs", "definitions", "metadata", "logit_bias", "input",
                     "args", "arguments", "chat_template_kwargs")  # fmt: skip
_NAME = re.compile(r"[A-Za-z$_][\w$-]{0,63}", re.ASCII)
_QUOTES, _END_QUOTES = frozenset("\"'`‘“«<>…"), frozenset("\"'`’”»<>…")
# What may stand around a piece without quotes.
_BEFORE, _AFTER = _QUOTES | {*"([{=:：|\n"}, _END_QUOTES | {*")]}|\n"}
# Each begins with a character of its own, which the search looks for.
_ESCAPES = re.compile(
    r"\\\\*(?:u(d[89ab][0-9a-f]{2})\\+u(d[c-f][0-9a-f]{2})|(?-i:U)(00(?:10|0[0-9a-f])[0-9a-f]{4})|u([0-9a-f]{4})"
    r"|(x[89a-f][0-9a-f](?:\\+x[89a-f][0-9a-f])+)|x([0-9a-f]{2})|([nr])|[tfvb])"
    r"|%(?:([89a-f][0-9a-f](?:%[89a-f][0-9a-f])+)|(0[9ad]|[2-7][0-9a-f]))"
    r"|&(?:#x([0-9a-f]{1,4})|#(\d{1,4})|(lt|gt|amp|quot|apos));|\.(\.\.)",
    re.IGNORECASE,
)
# Each server has its own quotes, and forms have "+" for a blank.
_LEFT_OUT = dict.fromkeys(map(ord, "\\'\"`")) | dict.fromkeys(map(ord, "\t\f\v\b\xa0+"), " ") | {ord("\r"): "\n"}
_HEX_MARKS = re.compile(r"[\\x%]+", re.IGNORECASE)
# Of a line, where a text has the escape for it.
_WRITTEN_END = "\x1e"
_LINE_ENDS = dict.fromkeys(map(ord, ("\n", _WRITTEN_END)), " ")
# Servers that do not expect other characters than these drop them, or write others in their place.
_MANGLED = re.compile(r"[^\x00-\x7f]|\?")
_ENTITIES = {"lt": "<", "gt": ">", "amp": "&"}
_BLANKS = re.compile(" {2,}")
_TOKEN = re.compile(r"[\w.$\[\]/:-]+", re.ASCII)
# Numbers, and lists of numbers, by their names within an object, and lists without a name.
_FIELD = re.compile(
    r"(?<=[{,( ])['\"]?(\w{1,64})['\"]?\s*[:=]\s*(-?\d[\d.e+-]*|true|false|null|none|\[[\d\s,.e+-]*\])(?=\s*[,)}\]])",
    re.IGNORECASE,
)
_NUMBERS = re.compile(r"()(\[[\d\s,.e+-]+\])", re.IGNORECASE)


def own_words(message: str, request: bytes | None) -> str:
    """Return the words of a refusal without what they repeat of the body of the `request` that was refused; "…" stands
    for each echo. Names and constants of the APIs stay."""
    message = message[:MOST_READ]
    if request is None or not message:
        return message
    texts, fields = _texts_of(request)
    for pattern in (_FIELD, _NUMBERS):
        message = pattern.sub(lambda match: _CUT if _plain(*match.groups()) in fields else match[0], message)
    message = _Message(message).without(_Texts.of(texts))
    mangled = {_MANGLED.sub("", text) for text in texts if len(text) <= _MOST_DATA and not text.isascii()}
    if mangled:
        message = _Message(message, is_mangled=True).without(_Texts.of(mangled))
    return message


def _texts_of(request: bytes) -> tuple[set[str], set[str]]:
    """Return the texts of a request, as they are compared, and its numbers by their names; lists of numbers also
    without."""
    try:
        body = msgspec.json.decode(request)
    except JSON_ERRORS:
        # A form: each of its lines.
        lines = request[:_MOST_DATA].decode(errors="replace").splitlines()
        return {_compared(line) for line in lines}, set()
    if isinstance(body, dict):
        # The catalogue's.
        body.pop("model", None)
    texts, fields = set[str](), set[str]()
    waiting: list[tuple[str, Any]] = [("", body)]
    left = _MOST_NESTED
    while waiting:
        name, node = waiting.pop()
        if isinstance(node, str):
            if len(node) <= _MOST_DATA or " " in node[:_MOST_DATA]:
                texts.add(node)
            if node[:1] in ("{", "[") and len(node) <= left:
                # Arguments of a call and results of tools are JSON in a text.
                left -= len(node)
                with suppress(*JSON_ERRORS):
                    waiting.append((name, msgspec.json.decode(node)))
        elif isinstance(node, list):
            waiting += [("", element) for element in node]
            if _is_plain(node):
                fields.add(_plain("", node))
        elif isinstance(node, dict):
            waiting += node.items()
            texts.update(key for key in node if name in _NAMED_BY_CALLERS or _NAME.fullmatch(key) is None)
            fields |= {_plain(key, value) for key, value in node.items() if _is_plain(value)}
    return {_compared(text) for text in texts}, fields


def _is_plain(value: Any) -> bool:
    if isinstance(value, list):
        return 0 < len(value) < MOST_READ and all(isinstance(number, int | float) for number in value)
    return value is None or isinstance(value, int | float)


def _plain(name: str, value: Any) -> str:
    return f"{name}={value}".lower().replace(" ", "").replace("=null", "=none")


def _compared(text: str) -> str:
    """Return a text without escapes, quotes and case, and with single blanks and its lines."""
    pieces = [text[start : start + _PIECE] for start in range(0, len(text), _PIECE)]
    plain = [_ESCAPES.sub(_meant, piece).translate(_LEFT_OUT) for piece in pieces]
    return "".join(_BLANKS.sub(" ", piece) for piece in plain).strip().casefold()


def _meant(match: re.Match[str]) -> str:
    high, low, widest, wide, bytes_, narrow, end, percents, percent, hexadecimal, decimal, entity, ellipsis = (
        match.groups()
    )
    if high:
        return (bytes.fromhex(high) + bytes.fromhex(low)).decode("utf-16-be", errors="replace")
    if several := bytes_ or percents:
        characters = bytes.fromhex(_HEX_MARKS.sub("", several))
        with suppress(UnicodeDecodeError):
            return characters.decode()
        return characters.decode("latin-1")
    if digits := widest or wide or narrow or percent or hexadecimal:
        return chr(int(digits, 16))
    if decimal:
        return chr(int(decimal))
    if entity:
        return _ENTITIES.get(entity.lower(), "")
    return _CUT if ellipsis else _WRITTEN_END if end else " "


class _Texts(NamedTuple):
    """Texts of a request, as they are compared."""

    whole: frozenset[str]
    """On one line each, but for the words of the APIs."""
    pieces: frozenset[str]
    """Short ones, and short lines of others."""
    joined: str
    """All of `whole`."""
    lines: str
    """All lines, each between two `\\0`."""

    @classmethod
    def of(cls, texts: set[str]) -> "_Texts":
        ends = [
            text.replace(_WRITTEN_END, end)
            for text in texts
            for end in (" ", "\n")
            if end == " " or _WRITTEN_END in text
        ]
        lines = {stripped for text in ends for line in _BLANKS.sub(" ", text).split("\n") if (stripped := line.strip())}
        whole = frozenset(_BLANKS.sub(" ", text.translate(_LINE_ENDS)).strip() for text in texts) - _OF_APIS
        short = (text for text in (*lines, *whole) if len(text) <= _LEAST_ANYWHERE and _is_long(text))
        return cls(whole, frozenset(short) - _OF_APIS, "\0".join(whole), "\0".join(["", *lines, ""]))


def _is_long(piece: str) -> bool:
    return len(piece) >= (_LEAST_QUOTED if piece.isascii() else 2)


class _Message:
    """A message as `_compared` reads it, on one line, and where each of its characters stands in what was written."""

    def __init__(self, written: str, *, is_mangled: bool = False) -> None:
        """`is_mangled`: without the characters that a server may have dropped or replaced."""
        self._written = written
        self._spans: list[Span] = []
        text: list[str] = []
        offset = 0
        for escape in [*_ESCAPES.finditer(written), None]:
            start, end = (len(written),) * 2 if escape is None else escape.span()
            pieces = [(written[at], at, at + 1) for at in range(offset, start)]
            pieces += [] if escape is None else [(char, start, end) for char in _meant(escape)]
            for piece, first, last in pieces:
                plain = piece.translate(_LEFT_OUT).translate(_LINE_ENDS).casefold()
                for char in _MANGLED.sub("", plain) if is_mangled else plain:
                    if char != " " or (text and text[-1] != " "):
                        text.append(char)
                        self._spans.append((first, last))
            offset = end
        self._text = "".join(text)

    def without(self, texts: _Texts) -> str:
        """Return what was written without what it repeats of `texts`."""
        spans, doubtful = self._in_marks(texts)
        for start, end in self._anchored(texts):
            (spans if end - start >= _SURE_ANCHORED else doubtful).append((start, end))
        spans += self._anywhere(texts.joined)
        doubtful += self._short(texts)
        if doubtful:
            meanings = list(meanings_in(self._written))
            spans += [span for span in doubtful if self._adds_meaning(self._written_span(span), meanings)]
        kept: list[str] = []
        offset = 0
        for start, end in sorted(map(self._written_span, spans)):
            if end > offset:
                kept += [self._written[offset:start], _CUT]
                offset = end
        return "".join(kept) + self._written[offset:]

    def _written_span(self, span: Span) -> Span:
        return self._spans[span[0]][0], self._spans[span[1] - 1][1]

    def _adds_meaning(self, echo: Span, meanings: Sequence[tuple[str, Span]]) -> bool:
        """Whether a possible echo, where it is written, means something that the words around it do not say."""
        start, end = echo
        inside = {what for what, (first, last) in meanings if start <= first and last <= end}
        across = {
            what for what, (first, last) in meanings if first < end and start < last and (first < start or end < last)
        }
        words = self._written[start:end]
        has_count = any(map(str.isdigit, words)) and any(map(str.isalpha, words))
        return bool(inside - across or (has_count and across))

    def _in_marks(self, texts: _Texts) -> tuple[list[Span], list[Span]]:
        """Return the pieces of texts in quotes or before or after an ellipsis, and those between other marks."""
        quoted, marked = list[Span](), list[Span]()
        ends = [end for end in range(1, len(self._text) + 1) if self._ends(end, _AFTER)]
        done = 0
        for start in range(len(self._text)):
            if start < done or self._text[start] == " " or not self._begins(start, _BEFORE):
                continue
            later = ends[bisect_left(ends, start + 2) :]
            held = self._held(start, later, texts.joined)
            if not held or not self._is_echo(piece := self._text[start : later[held - 1]].strip(), texts):
                continue
            end = later[held - 1]
            if self._begins(start, _QUOTES) and self._ends(end, _END_QUOTES):
                quoted.append((start, end))
                done = end
            elif len(piece) >= _LEAST_INSIDE or f"\0{piece}" in texts.lines or f"{piece}\0" in texts.lines:
                marked.append((start, end))
        return quoted, marked

    def _held(self, start: int, ends: Sequence[int], haystack: str) -> int:
        """Return how many of the pieces from `start` to one of `ends`, ascending, are pieces of what was sent."""
        # What holds a piece holds its beginnings; most hold none.
        most = 1
        while most <= len(ends) and self._text[start : ends[most - 1]].strip() in haystack:
            most *= 2
        most = min(most - 1, len(ends))
        return bisect_left(ends[:most], x=True, key=lambda end: self._text[start:end].strip() not in haystack)

    def _is_echo(self, piece: str, texts: _Texts) -> bool:
        is_whole = piece in texts.whole or piece in texts.pieces
        return _is_long(piece) and piece not in _OF_APIS and (is_whole or _TOKEN.fullmatch(piece) is None)

    def _anchored(self, texts: _Texts) -> Iterator[Span]:
        """Yield the beginnings and ends of long texts."""
        for text in texts.whole:
            if len(text) <= _LEAST_ANCHORED:
                continue
            head, tail = text[:_LEAST_ANCHORED], text[-_LEAST_ANCHORED:]
            for start in self._positions_of(head):
                end = start + _common(self._text[start:], text)
                if self._is_apart(start, start):
                    yield start, end
            for position in self._positions_of(tail):
                end = position + _LEAST_ANCHORED
                if self._is_apart(end, end):
                    yield end - _common(self._text[:end][::-1], text[::-1]), end

    def _short(self, texts: _Texts) -> Iterator[Span]:
        """Yield short texts and lines that stand apart."""
        text = self._text
        ends = [end for end in range(1, len(text) + 1) if not text[end : end + 1].isalnum()]
        for start in range(len(text)):
            if text[start] == " " or (start and text[start - 1].isalnum()):
                continue
            for end in ends[bisect_left(ends, start + 1) : bisect_right(ends, start + _LEAST_ANYWHERE)]:
                if text[start:end] in texts.pieces:
                    yield start, end

    def _anywhere(self, haystack: str) -> Iterator[Span]:
        """Yield long pieces of texts."""
        text, done = self._text, 0
        for start in range(0, len(text) - _WINDOW + 1, _WINDOW):
            if start < done or text[start : start + _WINDOW] not in haystack:
                continue
            first = start
            while first > done and text[first - 1 : start + _WINDOW] in haystack:
                first -= 1
            ends = range(start + _WINDOW, len(text) + 1)
            done = ends[self._held(first, ends, haystack) - 1]
            if done - first >= _LEAST_ANYWHERE:
                yield first, done

    def _positions_of(self, text: str) -> Iterator[int]:
        position = self._text.find(text)
        while position >= 0:
            yield position
            position = self._text.find(text, position + 1)

    def _is_apart(self, start: int, end: int) -> bool:
        """Whether no word goes on before `start` or after `end`; with the same place, of one of them."""
        before, after = self._text[start - 1 : start], self._text[end : end + 1]
        if start == end:
            return not (before.isalnum() and after.isalnum())
        return not (before.isalnum() or after.isalnum())

    def _begins(self, start: int, marks: frozenset[str]) -> bool:
        """Whether one of `marks` stands before a place."""
        first = start - (self._text[start - 1 : start] == " ")
        before = self._written[: self._spans[first][0]].rstrip(" ")
        return before[-1:] in marks or before.endswith("...") if before else False

    def _ends(self, end: int, marks: frozenset[str]) -> bool:
        """Whether one of `marks`, or nothing, stands after what ends at a place."""
        last = end + (self._text[end : end + 1] == " ")
        after = self._written[self._spans[last - 1][1] :].lstrip(" ")
        return not after or after[0] in marks or after.startswith("...") or after[0] == "\\"


def _common(left: str, right: str) -> int:
    """Return of how many characters the beginnings of both are the same."""
    size = min(len(left), len(right))
    return next((index for index in range(size) if left[index] != right[index]), size)
