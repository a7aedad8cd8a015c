"""The rules by which a text is private: patterns with check digits where there are any, and the catalogue's own.

A rule tells its name and never what it found.
"""

import re
from collections.abc import Iterator

from gateway.inference.screening.national_ids import NATIONAL_IDS, Check, plain
from tiers.catalog.screening_spec import PrivateSpec, RuleName

Compiled = tuple[tuple[re.Pattern[str], Check | None], ...]

WINDOW, OVERLAP = 1 << 15, 512
"""Characters that are searched at a time, so that other threads have their turns between, and those of them that the
next window searches again: a longer match may be missed where it crosses a border."""

_SEPARATOR = re.compile(r"[ -]")
# Lengths by the registry of the standard (ISO 13616).
_IBAN_LENGTHS = {
    "AD": 24, "AE": 23, "AL": 28, "AT": 20, "AZ": 28, "BA": 20, "BE": 16, "BG": 22, "BH": 22, "BR": 29, "BY": 28,
    "CH": 21, "CR": 22, "CY": 28, "CZ": 24, "DE": 22, "DK": 18, "DO": 28, "EE": 20, "EG": 29, "ES": 24, "FI": 18,
    "FO": 18, "FR": 27, "GB": 22, "GE": 22, "GI": 23, "GL": 18, "GR": 27, "GT": 28, "HR": 21, "HU": 28, "IE": 22,
    "IL": 23, "IQ": 23, "IS": 26, "IT": 27, "JO": 30, "KW": 30, "KZ": 20, "LB": 28, "LC": 32, "LI": 21, "LT": 20,
    "LU": 20, "LV": 21, "LY": 25, "MC": 27, "MD": 24, "ME": 22, "MK": 19, "MR": 27, "MT": 31, "MU": 30, "NL": 18,
    "NO": 15, "PK": 24, "PL": 28, "PS": 29, "PT": 25, "QA": 29, "RO": 24, "RS": 22, "SA": 24, "SC": 31, "SE": 24,
    "SI": 19, "SK": 24, "SM": 27, "ST": 25, "SV": 28, "TL": 23, "TN": 24, "TR": 26, "UA": 29, "VA": 22, "VG": 24,
    "XK": 20,
}  # fmt: skip


def is_luhn(digits: str) -> bool:
    """Whether the last digit is right by Luhn's rule (ISO 7812-1)."""
    total = 0
    for place, digit in enumerate(reversed(digits)):
        value = int(digit) * (1 + place % 2)
        total += value - 9 * (value > 9)
    return total % 10 == 0


def is_card(found: str) -> bool:
    """Whether it begins with a number of a payment card: of an issuer of cards, and with a right check digit. What
    follows after a separator may be its date."""
    ends = [one.start() for one in _SEPARATOR.finditer(found)]
    return any(_is_card_number(plain(found[:end])) for end in (*ends, len(found)))


def _is_card_number(digits: str) -> bool:
    issued = digits[0] in "3456" or "2221" <= digits[:4] <= "2720"
    return len(digits) >= 13 and issued and len(set(digits)) > 1 and is_luhn(digits)


def is_iban(found: str) -> bool:
    """Whether it begins with an IBAN: of the length of its country, and with right check digits (modulo 97)."""
    number = plain(found)
    length = _IBAN_LENGTHS.get(number[:2])
    if length is None or len(number) < length:
        return False
    number = number[:length]
    digits = "".join(str(int(character, 36)) for character in number[4:] + number[:4])
    return int(digits) % 97 == 1


def is_phone(found: str) -> bool:
    """Whether it has as many digits as a number of a phone may have (E.164)."""
    return 8 <= sum(character.isdecimal() for character in found) <= 15


def _of_plain(check: Check) -> Check:
    return lambda found: check(plain(found))


# What begins a key of a known maker, and how it goes on: a literal beginning is searched fastest.
_KEYS = (
    ("sk-", r"[A-Za-z0-9_-]{20,}"),  # OpenAI, Anthropic, and keys of AIO
    ("AKIA", r"[A-Z0-9]{16}"),
    ("ASIA", r"[A-Z0-9]{16}"),
    ("gh", r"[pousr]_[A-Za-z0-9]{36,}"),
    ("github_pat_", r"[A-Za-z0-9_]{30,}"),
    ("glpat-", r"[A-Za-z0-9_-]{20,}"),
    ("xox", r"[abeprs]-[A-Za-z0-9-]{10,}"),
    ("AIza", r"[A-Za-z0-9_-]{35}"),
    ("sk_", r"(?:live|test)_[A-Za-z0-9]{16,}"),
    ("rk_", r"(?:live|test)_[A-Za-z0-9]{16,}"),
    ("hf_", r"[A-Za-z0-9]{30,}"),
    ("npm_", r"[A-Za-z0-9]{36}"),
    ("pypi-", r"[A-Za-z0-9_-]{50,}"),
    ("SG.", r"[A-Za-z0-9_-]{16,}\.[A-Za-z0-9_-]{16,}"),
    ("eyJ", r"[A-Za-z0-9_-]{10,}\.eyJ[A-Za-z0-9_-]{10,}\.[A-Za-z0-9_-]{10,}"),  # JSON web tokens
)
_OF_TEXTS: dict[RuleName, Compiled] = {
    "email": ((re.compile(r"@(?<=[\w.%+\-]@)(?:[\w-]{1,63}\.){1,8}[^\W\d_]{2,24}(?![\w-])"), None),),
    "api-key": tuple(
        (re.compile(f"{re.escape(start)}(?<![A-Za-z0-9]{re.escape(start)}){rest}"), None) for start, rest in _KEYS
    ),
    "private-key": ((re.compile(r"-----BEGIN (?:[A-Z0-9]+ ){0,3}PRIVATE KEY(?: BLOCK)?-----"), None),),
}
_OF_NUMBERS: dict[RuleName, Compiled] = {
    "phone": (
        (re.compile(r"(?<![\w+])\+[1-9](?:[ ().\-/]{0,2}\d){7,14}(?!\d)"), is_phone),
        (re.compile(r"(?<![\w.,\-/+])(?<!\d )00[1-9](?:[ ().\-/]{0,2}\d){7,13}(?!\d)"), is_phone),
        (re.compile(r"(?<![\w.\-/+(])(?:\([2-9]\d\d\) ?|[2-9]\d\d[-. ])[2-9]\d\d[-. ]\d{4}(?![\w-])"), None),
    ),
    "card": ((re.compile(r"(?<![\w.+-])[2-6](?:[ -]?\d){12,18}(?![\w-])"), is_card),),
    "iban": ((re.compile(r"(?<!\w)[A-Z]{2}\d\d(?:[ -]?[A-Z0-9]{1,4}){3,14}", re.IGNORECASE), is_iban),),
    "national-id": tuple((pattern, _of_plain(check)) for pattern, check in NATIONAL_IDS),
}
# Six digits with at most twelve other characters between two of them: every rule of numbers finds something there, or
# nowhere. Texts have few of them, so that these rules, which are slow, read little.
_NUMBERS = re.compile(r"[0-9](?:[^0-9]{0,12}[0-9]){5,}")
_AROUND = 24


class PrivateRules:
    """The rules of a catalogue, compiled."""

    def __init__(self, spec: PrivateSpec) -> None:
        own: list[tuple[str, Compiled]] = [(n, ((re.compile(p), None),)) for n, p in spec.patterns.items()]
        self._of_texts: list[tuple[str, Compiled]] = [
            (name, _OF_TEXTS[name]) for name in spec.rules if name in _OF_TEXTS
        ]
        self._of_texts += own
        self._of_numbers: list[tuple[str, Compiled]] = [
            (name, _OF_NUMBERS[name]) for name in spec.rules if name in _OF_NUMBERS
        ]

    def first(self, text: str) -> str | None:
        """The name of the first rule that finds something in `text`; None if none does. Takes about as long as 10
        characters a microsecond."""
        for window in _windows(text):
            found = _first(self._of_texts, window)
            if found is None and self._of_numbers and (numbers := _numbers(window)):
                found = _first(self._of_numbers, numbers)
            if found is not None:
                return found
        return None


def _windows(text: str) -> Iterator[str]:
    for start in range(0, max(len(text) - OVERLAP, 1), WINDOW - OVERLAP):
        yield text[start : start + WINDOW]


def _numbers(text: str) -> str:
    """The parts of `text` with numbers, a line each; a line between two parts joins them no more than the text did."""
    spans = (found.span() for found in _NUMBERS.finditer(text))
    return "\n\n".join(text[max(start - _AROUND, 0) : end + _AROUND] for start, end in spans)


def _first(rules: list[tuple[str, Compiled]], text: str) -> str | None:
    for name, patterns in rules:
        for pattern, check in patterns:
            if pattern.search(text) if check is None else any(check(one.group()) for one in pattern.finditer(text)):
                return name
    return None
