"""The ways in which a text is read before rules search it: in plain characters, and decoded.

Plain: ASCII where NFKC (Unicode Standard Annex 15) has it for a character, without characters that nothing shows, and
with ASCII's digit, dash, space or stop for every other one. Decoded: without escapes of JSON, entities of HTML and
percent-encoding, also one in the other. All of it takes time linear in the text.
"""

import re
import unicodedata
from html.entities import html5
from typing import Final

ROUNDS: Final = 3
"""Encodings in each other that are read, as a string of JSON in a string of JSON is."""
_AROUND = 160
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
_APART = re.compile(f"[{_UNSEEN}\\u2100-\\u214f]+")
_DASHES = "\u058a\u05be\u1806\u2010\u2011\u2012\u2013\u2014\u2015\u2043\u2212\u2e3a\u2e3b\u30fc\ufe58\ufe63\uff0d"
_SPACES, _DOTS = "\u1680\u2028\u2029\u2800", "\u3002\uff61\u0589\u06d4"
_STANDS = dict.fromkeys(_DASHES, "-") | dict.fromkeys(_SPACES, " ") | dict.fromkeys(_DOTS, ".")
_STANDS |= {one: str(unicodedata.decimal(one)) for one in map(chr, range(0x660, 0x10000)) if one.isdecimal()}
_TABLE = str.maketrans(_STANDS)
_UNUSUAL = re.compile(f"[{_UNSEEN}{_COMPATIBLE}{''.join(_STANDS)}]+")

# A backslash and what it escapes in JSON and JavaScript, a reference of HTML, or bytes in percent-encoding (RFC 3986).
_ENCODED = re.compile(
    r"\\(?:u(?:\{([0-9a-fA-F]{1,6})\}|([0-9a-fA-F]{4}))|x([0-9a-fA-F]{2})|([nrtbf\"'/\\]))"
    r"|&(?:#([0-9]{1,7})|#[xX]([0-9a-fA-F]{1,6})|([A-Za-z][A-Za-z0-9]{1,24}));?"
    r"|((?:%[0-9a-fA-F]{2})+)"
)
_WHITE = {"n": "\n", "r": "\r", "t": "\t", "b": "", "f": ""}


def readings(text: str) -> list[str]:
    """Return a text in plain characters, and what of it can be read in another way too, with what is around it: as it
    is written, and decoded. Most texts have one reading."""
    found = [plain(text)]
    if not text.isascii() and (parts := _parts(text, _APART)):
        found.append(parts)
    if ("\\" in text or "&" in text or "%" in text) and (parts := _parts(text, _ENCODED)):
        found.append(plain(decoded(parts)))
    return found


def plain(text: str) -> str:
    """Return a text in plain characters."""
    if text.isascii():
        return text.encode().translate(None, _CONTROLS).decode()
    if _BEYOND.search(text):
        text = _TAG.sub(lambda found: chr(ord(found[0]) - 0xE0000), text)
        text = _UNSEEN_BEYOND.sub("", _COMPATIBLE_BEYOND.sub(_as_plain, text))
    return _UNUSUAL.sub(_as_plain, text)


def decoded(text: str) -> str:
    """Return a text without its encodings; where they stand in each other, `ROUNDS` of them."""
    for _ in range(ROUNDS):
        if "\\" not in text and "&" not in text and "%" not in text:
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
    for found in pattern.finditer(text):
        start, end = max(found.start() - _AROUND, 0), found.end() + _AROUND
        if spans and start <= spans[-1][1]:
            spans[-1][1] = end
        else:
            spans.append([start, end])
    return "\n\n".join(text[start:end] for start, end in spans)


def _as_plain(found: re.Match[str]) -> str:
    return _ALL_UNSEEN.sub("", unicodedata.normalize("NFKC", found[0])).translate(_TABLE)


def _as_decoded(found: re.Match[str]) -> str:
    in_braces, of_four, of_two, escaped, decimal, hexadecimal, name, octets = found.groups()
    if octets is not None:
        return bytes.fromhex(octets.replace("%", "")).decode("utf-8", "replace")
    if escaped is not None:
        return _WHITE.get(escaped, escaped)
    if name is not None:
        return html5.get(f"{name};", found[0])
    code = int(decimal) if decimal is not None else int(in_braces or of_four or of_two or hexadecimal, 16)
    return chr(code) if code <= 0x10FFFF else found[0]
