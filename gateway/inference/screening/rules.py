"""The rules by which a text is private: patterns with check digits where there are any, and the catalogue's own. A rule
tells its name and never what it found.

A text is read in plain characters and decoded. Plain: ASCII where NFKC (Unicode Standard Annex 15) has it for a
character, without characters that nothing shows, and with ASCII's digit, dash, space or stop for every other one.
Decoded: without escapes of JSON, entities of HTML and percent-encoding, also one in the other. All of it takes time
linear in the text.

A line break may have cut a form in two: content parts become lines of one text, and mail programs break long words.
Only what stands next to such a break is joined, so that lines of code and columns of numbers stay apart as far as
they can.
"""

import re
import unicodedata
from collections.abc import Iterator, Sequence
from html.entities import html5
from typing import Final

from gateway.inference.screening.private_forms import Form, private_forms
from tiers.catalog.catalog import PrivateSpec

# After a break, "@" begins decorators and names more often than the rest of an address.
_REST_OF_EMAIL = re.compile(
    r"@(?:[\w-]{1,63}\.){1,4}(?:com|org|net|edu|gov|info|biz|eu|de|fr|es|it|nl|be|at|ch|pl|pt|se|no|dk|fi|ie|cz|gr|"
    r"uk|us|ca|mx|br|ar|cl|in|cn|jp|kr|ru|ua|tr|au|nz|za)(?![\w-])"
)
# What words have that are no language's: parts of keys and of addresses.
_NO_LANGUAGE = re.compile(r"[-_@0-9]")
_SEPARATORS = ".-/"
_MOST = 64
"""Characters on each side of a break that are joined."""


def joined_lines(text: str) -> str:
    """Return what breaks may have cut, each on a line of its own; "" for nothing."""
    joined: list[str] = []
    before = number = ""
    for raw_line in text.splitlines():
        if not (line := raw_line.strip()):
            continue
        if before:
            if _is_cut_number(before, line):
                # A number may go on over several lines.
                number = (number or before[-_MOST:]) + line[:_MOST]
            if number and (not _is_cut_number(before, line) or len(line) > _MOST):
                joined.append(number)
                number = ""
            if (word := _cut_word(before, line)) is not None:
                joined.append(word)
        before = line
    return "\n\n".join([*joined, number] if number else joined)


def _is_cut_number(before: str, line: str) -> bool:
    """Whether one line ends and the next begins in a number, of which one part has more than a digit."""
    ends, begins = before[-1].isdecimal() or before[-1] in _SEPARATORS, line[0].isdecimal()
    return ends and begins and (before[-2:].isdecimal() or line[:2].isdecimal())


def _cut_word(before: str, line: str) -> str | None:
    """The last word of a line and the first of the next as one; None where they are words of a language."""
    last, first = before[-1], line[0]
    if first == "@":
        if _REST_OF_EMAIL.match(line) is None:
            return None
    elif not (first.isalnum() and (last.isalnum() or last in "@.-_")):
        return None
    word = before[-_MOST:].rsplit(None, 1)[-1]
    if first != "@" and _NO_LANGUAGE.search(word) is None:
        return None
    return word + line[:_MOST].split(None, 1)[0]


ROUNDS: Final = 3
"""Encodings in each other that are read, as a string of JSON in a string of JSON is."""
_READ_AROUND = 160
"""Characters before and after what is read in another way that are read with it."""
_CONTROLS = bytes([*range(9), 11, 12, *range(14, 32), 127])
# Controls, and what Unicode calls Default_Ignorable_Code_Point. Those beyond the first plane are apart, because a class
# with them is searched slowly.
_UNSEEN = (
    "\\x00-\\x08\\x0b\\x0c\\x0e-\\x1f\\x7f-\\x9f\\u00ad\\u034f\\u061c\\u115f\\u1160\\u17b4\\u17b5\\u180b-\\u180f"
    "\\u200b-\\u200f\\u202a-\\u202e\\u2060-\\u206f\\u3164\\ufe00-\\ufe0f\\ufeff\\uffa0\\ufff0-\\ufffb"
)
# Tags are ASCII that nothing shows, and that models read.
_TAG, _UNSEEN_BEYOND = re.compile("[\\U000e0020-\\U000e007e]"), re.compile("[\\U000e0000-\\U000e0fff]+")
_ALL_UNSEEN = re.compile(f"[{_UNSEEN}]+")
# What NFKC turns into ASCII, and some of what stands between.
_COMPATIBLE = (
    "\\u00a0-\\u00be\\u0132-\\u0149\\u017f\\u01c4-\\u01f3\\u02b0-\\u02e3\\u037e\\u1d2c-\\u1da0\\u1ffd-\\u200a\\u2017"
    "\\u2024-\\u2026\\u202f\\u203c-\\u203e\\u2047-\\u2049\\u205f\\u2070-\\u209c\\u20a8\\u2100-\\u217f\\u2460-\\u24ea"
    "\\u2a74-\\u2a76\\u3000\\u3200-\\u33ff\\ufb00-\\ufb06\\ufe10-\\ufe7e\\uff01-\\uff5e"
)
_BEYOND = re.compile("[\\U00010000-\\U0010ffff]")
_COMPATIBLE_BEYOND = re.compile("[\\U0001d400-\\U0001d7ff\\U0001f100-\\U0001f1ff\\U0001fbf0-\\U0001fbf9]+")
# Without these, which end words or are words of their own, a number may stand at a word.
_UNUSUAL_RUN = re.compile(f"[{_UNSEEN}\\u2100-\\u214f]+")
_DASHES = "\u058a\u05be\u1806\u2010\u2011\u2012\u2013\u2014\u2015\u2043\u2212\u2e3a\u2e3b\u30fc\ufe58\ufe63\uff0d"
_SPACES, _DOTS = "\u1680\u2028\u2029\u2800", "\u3002\uff61\u0589\u06d4"
_STANDS = dict.fromkeys(_DASHES, "-") | dict.fromkeys(_SPACES, " ") | dict.fromkeys(_DOTS, ".")
_STANDS |= {digit: str(unicodedata.decimal(digit)) for digit in map(chr, range(0x660, 0x10000)) if digit.isdecimal()}
_TABLE = str.maketrans(_STANDS)
_UNUSUAL = re.compile(f"[{_UNSEEN}{_COMPATIBLE}{''.join(_STANDS)}]+")

# A backslash and what it escapes in JSON, JavaScript and regular expressions, a reference of HTML, bytes in
# percent-encoding (RFC 3986) and quoted-printable (RFC 2045), and a line that the latter breaks.
_ENCODED = re.compile(
    r"\\(?:u(?:\{([0-9a-fA-F]{1,6})\}|([0-9a-fA-F]{4}))|x([0-9a-fA-F]{2})|([nrtbf\"'/\\.@+: -]))"
    r"|&(?:#([0-9]{1,7})|#[xX]([0-9a-fA-F]{1,6})|([A-Za-z][A-Za-z0-9]{1,24}));?"
    r"|((?:%[0-9a-fA-F]{2})+|(?:=[0-9A-F]{2})+|=\r?\n)"
)
_MAY_ENCODE = re.compile(r"[\\&%=]")
_WHITE = {"n": "\n", "r": "\r", "t": "\t", "b": "", "f": ""}


def readings(text: str) -> list[str]:
    """Return a text in plain characters, and what of it can be read in another way too, with what is around it: as it
    is written, and decoded. Most texts have one reading."""
    all_readings = [in_plain_characters(text)]
    if not text.isascii() and (parts := _parts(text, _UNUSUAL_RUN)):
        all_readings.append(parts)
    if _MAY_ENCODE.search(text) and (parts := _parts(text, _ENCODED)):
        all_readings.append(in_plain_characters(decoded(parts)))
    return all_readings


def in_plain_characters(text: str) -> str:
    """Return a text in plain characters."""
    if text.isascii():
        return text.encode().translate(None, _CONTROLS).decode()
    if _BEYOND.search(text):
        text = _TAG.sub(lambda match: chr(ord(match[0]) - 0xE0000), text)
        text = _UNSEEN_BEYOND.sub("", _COMPATIBLE_BEYOND.sub(_as_plain, text))
    return _UNUSUAL.sub(_as_plain, text)


def decoded(text: str) -> str:
    """Return a text without its encodings; where they stand in each other, `ROUNDS` of them."""
    for _ in range(ROUNDS):
        if not _MAY_ENCODE.search(text):
            break
        before, text = text, _ENCODED.sub(_as_decoded, text)
        if text == before:
            break
        if any(0xD800 <= ord(character) <= 0xDFFF for character in set(text)):
            # Two escapes of JSON are one character beyond the first plane.
            text = text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return text


def _parts(text: str, pattern: re.Pattern[str]) -> str:
    """The parts of `text` around what a pattern finds, a line each; "" for none."""
    spans: list[list[int]] = []
    for match in pattern.finditer(text):
        start, end = max(match.start() - _READ_AROUND, 0), match.end() + _READ_AROUND
        if spans and start <= spans[-1][1]:
            spans[-1][1] = end
        else:
            spans.append([start, end])
    return "\n\n".join(text[start:end] for start, end in spans)


def _as_plain(match: re.Match[str]) -> str:
    return _ALL_UNSEEN.sub("", unicodedata.normalize("NFKC", match[0])).translate(_TABLE)


def _as_decoded(match: re.Match[str]) -> str:
    in_braces, of_four, of_two, escaped, decimal, hexadecimal, name, octets = match.groups()
    if octets is not None:
        return bytes.fromhex(octets.replace("%", "").replace("=", "")).decode("utf-8", "replace")
    if escaped is not None:
        return _WHITE.get(escaped, escaped)
    if name is not None:
        return html5.get(f"{name};", match[0])
    code = int(decimal) if decimal is not None else int(in_braces or of_four or of_two or hexadecimal, 16)
    return chr(code) if code <= 0x10FFFF else match[0]


Named = Sequence[tuple[str, tuple[Form, ...]]]

LONG_WORD = 15
"""The least characters without a space between them that a secret has."""

WINDOW, OVERLAP = 1 << 15, 512
"""Characters that are searched at a time, so that other threads have their turns between, and those of them that the
next window searches again: a longer match may be missed where it crosses a border."""

# Six digits, two of them without anything between, with at most twelve other characters between two: every rule of
# numbers finds something there, or nowhere. Texts have few of them, so that these rules, which are slow, read little.
_NUMBERS = re.compile(r"[0-9]{2}(?:[^0-9]{0,12}[0-9]){4,}")
_AROUND = 48
# Between texts that stand apart: nothing that a rule finds goes on over it, and a name is near its value.
_APART = " ;; "
# Before a long word: so many words say what it is.
_WORDS_BEFORE = 6


class PrivateRules:
    """The rules of a catalogue, compiled."""

    def __init__(self, spec: PrivateSpec) -> None:
        self._own: Named = [(name, (Form(re.compile(pattern)),)) for name, pattern in spec.patterns.items()]
        texts, numbers = private_forms("text"), private_forms("numbers")
        long, named = private_forms("long words"), private_forms("named words")
        self._of_texts, self._of_numbers, self._of_long, self._of_named = (
            [(name, forms[name]) for name in spec.rules if name in forms] for forms in (texts, numbers, long, named)
        )

    def first(self, text: str) -> str | None:
        """The name of the first rule that finds something in a reading of `text`; None if none does. Takes about as
        long as 5 to 20 characters a microsecond."""
        return self.first_of([text])

    def first_of(self, texts: Sequence[str]) -> str | None:
        """The same of several texts that stand apart, which is faster than one after another."""
        if self._own:
            # The catalogue's patterns may say that a text begins or ends there, and how it is written.
            for text in texts:
                for window in _windows(text):
                    if name := next(
                        filter(None, (_first(self._own, reading) for reading in (window, *readings(window)))), None
                    ):
                        return name
        for window in _windows(_APART.join(texts)):
            written, *others = readings(window)
            for reading in (written, joined_lines(written), *others):
                if reading and (name := self._found(reading)):
                    return name
        return None

    def _found(self, text: str) -> str | None:
        name = _first(self._of_texts, text)
        if name is None and self._of_long and len(max(words := text.split(), key=len, default="")) >= LONG_WORD:
            name = _first(self._of_long, text)
            if name is None and any(form.may_be_in(text) for _, forms in self._of_named for form in forms):
                name = _first(self._of_named, _long_words(words))
        if name is None and self._of_numbers and (numbers := _numbers(text)):
            name = _first(self._of_numbers, numbers)
        return name


def _windows(text: str) -> Iterator[str]:
    for start in range(0, max(len(text) - OVERLAP, 1), WINDOW - OVERLAP):
        yield text[start : start + WINDOW]


def _numbers(text: str) -> str:
    """The parts of `text` with numbers, a line each; a line between two parts joins them no more than the text did."""
    spans = (match.span() for match in _NUMBERS.finditer(text))
    return "\n\n".join(text[max(start - _AROUND, 0) : end + _AROUND] for start, end in spans)


def _long_words(words: list[str]) -> str:
    """The words that are as long as secrets, a line each, after the words before them."""
    lines: list[str] = []
    read = 0
    for index, word in enumerate(words):
        if len(word) >= LONG_WORD:
            begin = index - _WORDS_BEFORE
            # Words are read once: after those of the line before, they are of the same line.
            lines += [" " if begin <= read else "\n", " ".join(words[max(begin, read) : index + 1])]
            read = index + 1
    return "".join(lines)


def _first(rules: Named, text: str) -> str | None:
    for name, forms in rules:
        if any(form.is_in(text) for form in forms):
            return name
    return None
