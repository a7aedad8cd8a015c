"""Regular expressions of JSON schemas (ECMA-262) in the syntax of the grammar library, and matched in linear time.

The library quotes a pattern for JSON. A class that has all control characters, or all but the line feed, then also
admits the escapes of `"` and `\\`, even if it excludes them. Without U+0000 such a class is quoted exactly.

The string formats that answers must have are patterns of whole texts (RFC 3339, 1123, 5321, 3986, 6570, 6901). The
library's own patterns admit 29 February of any year, second 60 at any time, and hosts that are too long. Formats that
are not listed are annotations, as JSON Schema says. Patterns of internationalised formats are their ASCII part.
"""

import re
from collections.abc import Iterator
from functools import cache, lru_cache

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
_NUL = re.compile(r"\\x00|\\u0000|\\0(?![0-9])|\x00")


def library_pattern(pattern: str) -> str:
    """`pattern` in the library's syntax. It matches the same texts, but none with U+0000 by a class."""
    return "".join(_converted(pattern))


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


@cache
def linear_patterns() -> LinearPatterns:
    """Those of this process."""
    return LinearPatterns()


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
    for index, piece in enumerate(pieces):
        depth += (piece == "(") - (piece == ")")
        if piece == "|" and depth == 0:
            yield from _alternatives(pieces[start:index])
            start = index + 1
        if piece == ")" and depth == 0:
            closed.append(index)
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


_CLOCK = r"(?:[01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](?:\.[0-9]+)?(?:[zZ]|[+-](?:[01][0-9]|2[0-3]):[0-5][0-9])"
_FOURTH = r"(?:0[48]|[2468][048]|[13579][26])"
# Without year 0, which most libraries do not have.
_YEAR = r"(?:[0-9]{3}[1-9]|[0-9]{2}[1-9]0|[0-9][1-9]00|[1-9]000)"
_DATE = (
    rf"(?:{_YEAR}-(?:(?:0[13578]|1[02])-(?:0[1-9]|[12][0-9]|3[01])|(?:0[469]|11)-(?:0[1-9]|[12][0-9]|30)"
    rf"|02-(?:0[1-9]|1[0-9]|2[0-8]))|(?:[0-9]{{2}}{_FOURTH}|{_FOURTH}00)-02-29)"
)
_ALNUM, _INNER = "[a-zA-Z0-9]", "[a-zA-Z0-9-]"


def _label(most: int) -> str:
    """Up to `most` characters, no hyphen at the ends, nor in third and fourth place, which are reserved ("xn--")."""
    short = rf"{_ALNUM}|{_INNER}{_ALNUM}|{_INNER}{_INNER}{_ALNUM}"
    return rf"{_ALNUM}(?:{short}|{_INNER}(?:{_ALNUM}{_INNER}|-{_ALNUM}){_INNER}{{0,{most - 5}}}{_ALNUM})?"


# Three labels and a shorter one: at most 253 characters with their dots.
_HOST = rf"(?:{_label(63)}\.){{0,3}}{_label(61)}"
_OCTET = r"(?:25[0-5]|2[0-4][0-9]|1[0-9]{2}|[1-9]?[0-9])"
_IPV4 = rf"{_OCTET}(?:\.{_OCTET}){{3}}"
_H16 = r"[0-9a-fA-F]{1,4}"
_IPV6 = "|".join(
    (
        rf"(?:{_H16}:){{7}}{_H16}",
        rf"(?:{_H16}:){{6}}{_IPV4}",
        *(
            rf"(?:{_H16}(?::{_H16}){{0,{before - 1}}})?::(?:(?:{_H16}:){{0,{6 - before}}}{_H16})?"
            for before in range(1, 7)
        ),
        rf"(?:{_H16}:){{7}}:",
        rf"::(?:{_H16}:){{0,5}}{_IPV4}",
    )
)
_LETTER = r"[a-zA-Z0-9!#$%&'*+/=?^_`{|}~-]"
_ATOM = f"{_LETTER}+"
_HEX2 = "%[0-9a-fA-F]{2}"
_SEGMENT = rf"(?:[a-zA-Z0-9._~!$&'()*+,;=:@-]|{_HEX2})"
_NO_COLON = rf"(?:[a-zA-Z0-9._~!$&'()*+,;=@-]|{_HEX2})"
_NAME = rf"(?:[a-zA-Z0-9._~!$&'()*+,;=-]|{_HEX2})*"
_AUTHORITY = rf"(?:(?:[a-zA-Z0-9._~!$&'()*+,;=:-]|{_HEX2})*@)?(?:{_NAME}|\[(?:{_IPV6})\])(?::[0-9]*)?"
_TAIL = rf"(?:\?(?:{_SEGMENT}|[/?])*)?(?:#(?:{_SEGMENT}|[/?])*)?"
_HIERARCHY = rf"//{_AUTHORITY}(?:/{_SEGMENT}*)*|/(?:{_SEGMENT}+(?:/{_SEGMENT}*)*)?"
_URI = rf"[a-zA-Z][a-zA-Z0-9+.-]*:(?:{_HIERARCHY}|{_SEGMENT}+(?:/{_SEGMENT}*)*)?{_TAIL}"
_REFERENCE = rf"(?:{_URI}|(?:{_HIERARCHY}|{_NO_COLON}+(?:/{_SEGMENT}*)*)?{_TAIL})"
_POINTER = r"(?:/(?:[^~/\x00-\x1f\x7f]|~[01])*)*"
_DOMAIN = rf"(?:{_HOST}|\[{_IPV4}\])"
_EMAIL = rf"(?=[^@]{{1,64}}@){_ATOM}(?:\.{_ATOM})*@{_DOMAIN}"
_HMS = r"T(?:[0-9]+H(?:[0-9]+M(?:[0-9]+S)?)?|[0-9]+M(?:[0-9]+S)?|[0-9]+S)"
_YMD = r"(?:[0-9]+Y(?:[0-9]+M(?:[0-9]+D)?)?|[0-9]+M(?:[0-9]+D)?|[0-9]+D)"

_VARIABLE = rf"(?:[a-zA-Z0-9_]|{_HEX2})(?:\.?(?:[a-zA-Z0-9_]|{_HEX2}))*(?::[1-9][0-9]{{0,3}}|\*)?"
_TEMPLATE = rf"(?:[^\x00- \"'%<>\\^`{{|}}\x7f-\xa0]|{_HEX2}|\{{[+#./;?&=,!@|]?{_VARIABLE}(?:,{_VARIABLE})*\}})*"

# Names of formats and the patterns of their whole texts.
FORMATS = {
    "date": _DATE,
    "time": _CLOCK,
    "date-time": rf"{_DATE}[tT]{_CLOCK}",
    "duration": rf"P(?:{_YMD}(?:{_HMS})?|{_HMS}|[0-9]+W)",
    "email": _EMAIL,
    "hostname": _HOST,
    "ipv4": _IPV4,
    "ipv6": _IPV6,
    "uuid": r"[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}",
    "uri": _URI,
    "uri-reference": _REFERENCE,
    "uri-template": _TEMPLATE,
    "json-pointer": _POINTER,
    "relative-json-pointer": rf"(?:0|[1-9][0-9]*)(?:#|{_POINTER})",
}
# Without a lookahead, which grammars have not: local parts of at most 64 characters, but few dots in long ones.
_WRITTEN_EMAIL = rf"(?:{_LETTER}{{1,64}}|{_LETTER}{{1,21}}(?:\.{_LETTER}{{1,20}}){{1,2}})@{_DOMAIN}"
# What is written for formats that have more than that: a part of what they allow, so answers are not checked for it.
PARTS = {
    "email": _WRITTEN_EMAIL,
    "idn-email": _WRITTEN_EMAIL,
    "idn-hostname": _HOST,
    "iri": _URI,
    "iri-reference": _REFERENCE,
}
