"""A server's own words in a refusal: its message without what it repeats of the request.

Servers quote what they were sent: whole, cut or escaped. A text of the request says nothing about the server, so what
the words of a refusal mean is concluded from `own_words` alone.
"""

import re
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from typing import Any

import msgspec

from inference_core.io.files import JSON_ERRORS
from tiers.dialects.refusals import EXTRAS, LEFT_OUT, RENAMED
from tiers.dialects.rules import EFFORTS

Span = tuple[int, int]
MOST_READ = 4096
"""Characters of a message that are read."""
_CUT = "…"
# Characters that are an echo: in quotes, of more than one word without quotes, at the beginning or the end of a text of
# the request, and anywhere.
_LEAST_QUOTED, _LEAST_WHOLE, _LEAST_ANCHORED, _LEAST_ANYWHERE = 4, 8, 16, 64
# Every run of `_LEAST_ANYWHERE` characters holds a whole window.
_WINDOW = _LEAST_ANYWHERE // 2
_MOST_DATA = 65_536
"""Characters of a text without a blank, such as an image, in which no words are."""

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
_OPENING, _CLOSING = frozenset("\"'`‘“«([{<>=:|\n…"), frozenset("\"'`’”»)]}<>|\n…")
# What may stand around a whole text, besides.
_BEFORE, _AFTER = _OPENING | {*"./,;"}, _CLOSING | {*":.,;"}
_ESCAPES = re.compile(
    r"\\+u(d[89ab][0-9a-f]{2})\\+u(d[c-f][0-9a-f]{2})|(?-i:\\+U)(00(?:10|0[0-9a-f])[0-9a-f]{4})|\\+u([0-9a-f]{4})|"
    r"\\+x([0-9a-f]{2})|%([2-7][0-9a-f])|&#x([0-9a-f]{1,4});|&#(\d{1,4});|&(lt|gt|amp|quot|apos);|(\.\.\.)|"
    r"\\+[nrtfvb]",
    re.IGNORECASE,
)
# Each server has its own quotes.
_LEFT_OUT = dict.fromkeys(map(ord, "\\'\"`")) | dict.fromkeys(map(ord, "\n\r\t\f\v\b\xa0"), " ")
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
    return _Message(message).without(texts)


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
    while waiting:
        name, node = waiting.pop()
        if isinstance(node, str):
            if len(node) <= _MOST_DATA or " " in node[:_MOST_DATA]:
                texts.add(node)
        elif isinstance(node, list):
            waiting += [("", one) for one in node]
            if _is_plain(node):
                fields.add(_plain("", node))
        elif isinstance(node, dict):
            waiting += node.items()
            texts.update(key for key in node if name in _NAMED_BY_CALLERS or _NAME.fullmatch(key) is None)
            fields |= {_plain(key, value) for key, value in node.items() if _is_plain(value)}
    return {_compared(text) for text in texts}, fields


def _is_plain(value: Any) -> bool:
    if isinstance(value, list):
        return 0 < len(value) < MOST_READ and all(isinstance(one, int | float) for one in value)
    return value is None or isinstance(value, int | float)


def _plain(name: str, value: Any) -> str:
    return f"{name}={value}".lower().replace(" ", "").replace("=null", "=none")


def _compared(text: str) -> str:
    """Return a text without escapes, quotes and case, and with single blanks."""
    pieces = [text[place : place + _PIECE] for place in range(0, len(text), _PIECE)]
    plain = [_ESCAPES.sub(_meant, piece).translate(_LEFT_OUT) for piece in pieces]
    return "".join(_BLANKS.sub(" ", piece) for piece in plain).strip().casefold()


def _meant(match: re.Match[str]) -> str:
    high, low, widest, wide, narrow, percent, hexadecimal, decimal, entity, ellipsis = match.groups()
    if high:
        return (bytes.fromhex(high) + bytes.fromhex(low)).decode("utf-16-be", errors="replace")
    if digits := widest or wide or narrow or percent or hexadecimal:
        return chr(int(digits, 16))
    if decimal:
        return chr(int(decimal))
    return _ENTITIES.get(entity.lower(), "") if entity else _CUT if ellipsis else " "


class _Message:
    """A message as `_compared` reads it, and where each of its characters stands in what was written."""

    def __init__(self, written: str) -> None:
        self._written = written
        self._places: list[Span] = []
        text: list[str] = []
        place = 0
        for found in [*_ESCAPES.finditer(written), None]:
            start, end = (len(written),) * 2 if found is None else found.span()
            pieces = [(written[at], at, at + 1) for at in range(place, start)]
            pieces += [] if found is None else [(char, start, end) for char in _meant(found)]
            for piece, first, last in pieces:
                for char in piece.translate(_LEFT_OUT).casefold():
                    if char != " " or (text and text[-1] != " "):
                        text.append(char)
                        self._places.append((first, last))
            place = end
        self._text = "".join(text)

    def without(self, texts: set[str]) -> str:
        """Return what was written without what it repeats of `texts`."""
        haystack = "\0".join(texts)
        spans = sorted([*self._quoted(haystack, texts), *self._anchored(texts), *self._anywhere(haystack)])
        kept: list[str] = []
        place = 0
        for first, last in spans:
            start, end = self._places[first][0], self._places[last - 1][1]
            if end > place:
                kept += [self._written[place:start], _CUT]
                place = end
        return "".join(kept) + self._written[place:]

    def _quoted(self, haystack: str, texts: set[str]) -> Iterator[Span]:
        """Yield pieces of texts in quotes, in brackets, and before or after an ellipsis."""
        ends = [end for end in range(1, len(self._text) + 1) if self._ends(end, _CLOSING)]
        done = 0
        for start in range(len(self._text)):
            if start < done or self._text[start] == " " or not self._begins(start, _OPENING):
                continue
            later = ends[bisect_left(ends, start + 2) :]
            held = self._held(start, later, haystack)
            if held and self._is_echo(self._text[start : later[held - 1]].strip(), texts):
                done = later[held - 1]
                yield start, done

    def _held(self, start: int, ends: Sequence[int], haystack: str) -> int:
        """Return how many of the pieces from `start` to one of `ends`, ascending, are pieces of what was sent."""
        # What holds a piece holds its beginnings; most hold none.
        most = 1
        while most <= len(ends) and self._text[start : ends[most - 1]].strip() in haystack:
            most *= 2
        most = min(most - 1, len(ends))
        return bisect_left(ends[:most], x=True, key=lambda end: self._text[start:end].strip() not in haystack)

    def _is_echo(self, piece: str, texts: set[str]) -> bool:
        is_long = len(piece) >= (_LEAST_QUOTED if piece.isascii() else 2)
        return is_long and piece not in _OF_APIS and (piece in texts or _TOKEN.fullmatch(piece) is None)

    def _anchored(self, texts: set[str]) -> Iterator[Span]:
        """Yield whole texts, and the beginnings and ends of texts."""
        for text in texts:
            if text in _OF_APIS or len(text) < (_LEAST_QUOTED if text.isascii() else 2):
                continue
            if len(text) > _LEAST_ANCHORED:
                head, tail = text[:_LEAST_ANCHORED], text[-_LEAST_ANCHORED:]
                for start in self._places_of(head):
                    end = start + _common(self._text[start:], text)
                    if self._is_apart(start, start):
                        yield start, end
                for place in self._places_of(tail):
                    end = place + _LEAST_ANCHORED
                    if self._is_apart(end, end):
                        yield end - _common(self._text[:end][::-1], text[::-1]), end
            else:
                is_clear = len(text) >= _LEAST_WHOLE and _TOKEN.fullmatch(text) is None
                for start in self._places_of(text):
                    end = start + len(text)
                    is_marked = self._begins(start, _BEFORE, at_all=True) and self._ends(end, _AFTER)
                    if is_marked or (is_clear and self._is_apart(start, end)):
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

    def _places_of(self, text: str) -> Iterator[int]:
        place = self._text.find(text)
        while place >= 0:
            yield place
            place = self._text.find(text, place + 1)

    def _is_apart(self, start: int, end: int) -> bool:
        """Whether no word goes on before `start` or after `end`; with the same place, of one of them."""
        before, after = self._text[start - 1 : start], self._text[end : end + 1]
        if start == end:
            return not (before.isalnum() and after.isalnum())
        return not (before.isalnum() or after.isalnum())

    def _begins(self, start: int, marks: frozenset[str], *, at_all: bool = False) -> bool:
        """Whether one of `marks` stands before a place; `at_all`: or nothing."""
        before = self._written[: self._places[start][0]].rstrip(" ")
        return before[-1:] in marks or before.endswith("...") if before else at_all

    def _ends(self, end: int, marks: frozenset[str]) -> bool:
        """Whether one of `marks`, or nothing, stands after what ends at a place."""
        after = self._written[self._places[end - 1][1] :].lstrip(" ")
        return not after or after[0] in marks or after.startswith("...") or after[0] == "\\"


def _common(left: str, right: str) -> int:
    """Return of how many characters the beginnings of both are the same."""
    size = min(len(left), len(right))
    return next((place for place in range(size) if left[place] != right[place]), size)
