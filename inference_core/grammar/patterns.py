"""Regular expressions of JSON schemas (ECMA-262) in the syntax of the grammar library, and matched in linear time.

The library quotes a pattern for JSON. A class that has all control characters, or all but the line feed, then also
admits the escapes of `"` and `\\`, even if it excludes them. Without U+0000 such a class is quoted exactly.
"""

import re
from collections.abc import Iterator
from functools import lru_cache

try:
    from llguidance import LLMatcher, LLTokenizer
except ImportError:  # a gateway without models of its own
    LLMatcher = LLTokenizer = None  # type: ignore[assignment, misc]

_PIECE = re.compile(r"\\.|\[\^?|\]|.", re.DOTALL)
# Operators on classes in the library's syntax; plain characters in ECMA-262.
_OPERATORS = ("&", "-", "~")
# ECMA-262's white space, and what `.` does not match; the library has Unicode's, and the line feed alone.
_SPACE = r"\t-\r \x{a0}\x{1680}\x{2000}-\x{200a}\x{2028}\x{2029}\x{202f}\x{205f}\x{3000}\x{feff}"
_ECMA = {".": r"[^\n\r\x{2028}\x{2029}]", "\\s": f"[{_SPACE}]", "\\S": f"[^{_SPACE}]"}
_NAMED_GROUP = re.compile(r"\(\?<(?![=!])")
_COUNTED = re.compile(r"\)\{(?:\d*,)?(\d{1,6})\}")
_NUL = re.compile(r"\\x00|\\u0000|\\0(?![0-9])|\x00")


def library_pattern(pattern: str) -> str:
    """`pattern` in the library's syntax. It matches the same texts, but none with U+0000 by a class."""
    return "".join(_converted(pattern))


def most_repeats(pattern: str) -> int:
    """How often a group of the pattern is repeated at most, if that is counted; 1 if none is."""
    return max((int(count) for count in _COUNTED.findall(pattern)), default=1)


def _converted(pattern: str) -> Iterator[str]:
    inside, before, first = False, "", False
    for match in _PIECE.finditer(pattern):
        piece = match[0]
        if not inside:
            inside = first = piece in ("[", "[^")
            is_class = piece == "[^" and pattern[match.end() : match.end() + 1] != "]"
            yield "[^\\x00" if is_class else _ECMA.get(piece, piece)
        elif piece == "]" and not first:
            inside = False
            yield piece
        else:
            is_operator = piece in _OPERATORS and piece == before
            yield _NUL.sub(r"\\x01", f"\\{piece}" if is_operator or piece == "[" else _inside(piece))
            first = False
        before = piece


def _inside(piece: str) -> str:
    """A piece of a class; classes may be nested in the library's syntax."""
    return "\\[\\^" if piece == "[^" else _ECMA[piece] if piece in ("\\s", "\\S") else piece


class LinearPatterns:
    """Searches texts for patterns in linear time, by the library's automata where they have the pattern's anchors."""

    def __init__(self) -> None:
        self._tokenizer = None if LLTokenizer is None else LLTokenizer("byte")

    @lru_cache(256)  # noqa: B019 - one object per process
    def _matcher(self, pattern: str) -> "LLMatcher | None":
        whole = _as_whole(pattern)
        if whole is None or self._tokenizer is None:
            return None
        matcher = LLMatcher(self._tokenizer, LLMatcher.grammar_from_regex(whole), log_level=0)
        return None if matcher.is_error() else matcher

    def search(self, pattern: str, text: str) -> bool:
        """Whether `pattern` matches somewhere in `text`. Raises `re.error` for a pattern that is none."""
        start = self._matcher(pattern)
        if start is None:
            return _python(pattern).search(text) is not None
        matcher, data = start.deep_copy(), list(text.encode("utf-8", "surrogatepass"))
        if not data:
            return matcher.is_accepting()
        return matcher.validate_tokens(data) == len(data) and matcher.consume_tokens(data) and matcher.is_accepting()


@lru_cache(256)
def _python(pattern: str) -> re.Pattern[str]:
    """For other patterns (lookarounds, anchors inside), which the process's limit of time bounds."""
    anchored = "".join("\\Z" if piece == "$" else piece for piece in _outside_classes(pattern))
    return re.compile(_NAMED_GROUP.sub("(?P<", anchored), re.ASCII)


def _outside_classes(pattern: str) -> Iterator[str]:
    """The pieces of a pattern; a class is one piece."""
    inside: list[str] = []
    for match in _PIECE.finditer(pattern):
        piece = match[0]
        if inside:
            inside.append(piece.replace("[", "\\[") if not piece.startswith("\\") else piece)
            if piece == "]":
                yield "".join(inside)
                inside = []
        elif piece in ("[", "[^"):
            inside = [piece]
        else:
            yield piece
    if inside:
        yield "".join(inside)


def _as_whole(pattern: str) -> str | None:
    """The pattern of the whole texts in which `pattern` is found; None if it has anchors elsewhere than at the ends of
    its alternatives."""
    wholes = [_alternative_as_whole(pieces) for pieces in _alternatives(list(_outside_classes(pattern)))]
    return None if None in wholes else "|".join(f"({whole})" for whole in wholes)


def _alternatives(pieces: list[str]) -> Iterator[list[str]]:
    """The alternatives of a pattern, without a group around one."""
    depth, start, closed = 0, 0, []
    for place, piece in enumerate(pieces):
        depth += (piece == "(") - (piece == ")")
        if piece == "|" and depth == 0:
            yield from _alternatives(pieces[start:place])
            start = place + 1
        if piece == ")" and depth == 0:
            closed.append(place)
    inner = pieces[start:]
    if start == 0 and inner[:1] == ["("] and closed[:1] == [len(pieces) - 1]:
        body = inner[3:-1] if inner[1:3] == ["?", ":"] else inner[1:-1]
        if body[:1] != ["?"]:
            yield from _alternatives(body)
            return
    if start:
        yield from _alternatives(inner)
    else:
        yield inner


def _alternative_as_whole(pieces: list[str]) -> str | None:
    start = bool(pieces) and pieces[0] == "^"
    end = bool(pieces) and pieces[-1] == "$"
    inner = pieces[start : len(pieces) - end]
    if any(piece in ("^", "$", "\\b", "\\B") for piece in inner):
        return None
    body = "".join("[\\s\\S]" if piece == "[^]" else piece for piece in inner)
    if "(?=" in body or "(?!" in body or "(?<=" in body or "(?<!" in body:
        return None
    anything = "(?s:.*)"
    converted = _ascii_classes("".join(_plain(body)))
    return f"{'' if start else anything}({converted}){'' if end else anything}"


def _plain(pattern: str) -> Iterator[str]:
    """As `library_pattern`, but with U+0000: no JSON is quoted here."""
    return (piece.replace("[^\\x00", "[^", 1) for piece in _converted(pattern))


def _ascii_classes(pattern: str) -> str:
    """ECMA-262's digits and letters, which are those of ASCII."""
    named = {"\\d": "0-9", "\\w": "0-9A-Za-z_"}
    converted, inside = [], False
    for match in _PIECE.finditer(pattern):
        piece = match[0]
        if piece in named:
            piece = named[piece] if inside else f"[{named[piece]}]"
        elif piece in ("\\D", "\\W") and not inside:
            piece = f"[^{named[piece.lower()]}]"
        elif piece in ("[", "[^") and not inside:
            inside = True
        elif piece == "]":
            inside = False
        converted.append(piece)
    return "".join(converted)
