"""National identity numbers: how each is written, and its check digits."""

import re
from collections import Counter
from collections.abc import Callable
from datetime import date

Check = Callable[[str], bool]
_SEPARATORS = re.compile(r"[ .\-/]")
_DNI_LETTERS = "TRWAGMYFPDXBNJZSQVHLCKE"
# Italian codice fiscale: values of the characters at odd places; at even places a letter is its place, a digit itself.
_ODD = dict(
    zip(
        "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZ",
        (1, 0, 5, 7, 9, 13, 15, 17, 19, 21, 1, 0, 5, 7, 9, 13, 15, 17, 19, 21, 2, 4, 18, 20, 11, 3, 6, 8, 12, 14, 16,
         10, 22, 25, 24, 23),
        strict=True,
    )
)  # fmt: skip


def plain(found: str) -> str:
    """A number without its separators, in capitals."""
    return _SEPARATORS.sub("", found).upper()


def _is_brazilian(number: str) -> bool:
    """CPF: two check digits, each by a weighted sum modulo 11."""
    digits = [int(digit) for digit in number]
    for length in (9, 10):
        total = sum(digit * (length + 1 - place) for place, digit in enumerate(digits[:length]))
        if total * 10 % 11 % 10 != digits[length]:
            return False
    return len(set(digits)) > 1


def _is_french(number: str) -> bool:
    """NIR: its last two digits are 97 minus the rest modulo 97; Corsica's departments count as 19 and 18."""
    body = number[:13].replace("2A", "19").replace("2B", "18")
    return body.isdecimal() and 97 - int(body) % 97 == int(number[13:])


def _is_german(number: str) -> bool:
    """Tax number (IdNr): ISO 7064 MOD 11,10, and among the first ten digits one occurs two or three times."""
    product = 10
    for digit in number[:10]:
        product = (int(digit) + product) % 10 or 10
        product = product * 2 % 11
    repeated = [count for count in Counter(number[:10]).values() if count > 1]
    return (11 - product) % 10 == int(number[10]) and repeated in ([2], [3])


def _is_italian(number: str) -> bool:
    """Codice fiscale: the last letter is a weighted sum modulo 26."""
    values = [
        _ODD[character] if place % 2 == 0 else (int(character) if character.isdecimal() else ord(character) - ord("A"))
        for place, character in enumerate(number[:15])
    ]
    return chr(ord("A") + sum(values) % 26) == number[15]


def _is_polish(number: str) -> bool:
    """PESEL: a date of birth, and a check digit by a weighted sum modulo 10."""
    digits = [int(digit) for digit in number]
    total = sum(digit * weight for digit, weight in zip(digits, (1, 3, 7, 9, 1, 3, 7, 9, 1, 3), strict=False))
    century, month = divmod(int(number[2:4]), 20)
    year = (1900, 2000, 2100, 2200, 1800)[century] + int(number[:2])
    return (10 - total % 10) % 10 == digits[10] and _is_date(year, month, int(number[4:6]))


def _is_spanish(number: str) -> bool:
    """DNI and NIE: the letter is the number modulo 23; a NIE's first letter counts as a digit."""
    digits = number[:-1].translate(str.maketrans("XYZ", "012"))
    return _DNI_LETTERS[int(digits) % 23] == number[-1]


def _is_swiss(number: str) -> bool:
    """AHV: an EAN-13 of country 756."""
    digits = [int(digit) for digit in number]
    return sum(digit * (1, 3)[place % 2] for place, digit in enumerate(digits)) % 10 == 0


def _is_american(number: str) -> bool:
    """SSN: it has no check digit, but numbers that are never given."""
    return number[:3] not in ("000", "666") and number[0] != "9" and number[3:5] != "00" and number[5:] != "0000"


def _is_date(year: int, month: int, day: int) -> bool:
    try:
        date(year, month, day)
    except ValueError:
        return False
    return True


# How each is written, and whether what looks like one is one.
_WRITTEN: tuple[tuple[str, Check], ...] = (
    (r"(?<![\w.-])\d{3}\.\d{3}\.\d{3}-\d\d(?![\w-])", _is_brazilian),
    (r"(?<!\w)[12] ?\d\d ?(?:0[1-9]|1[0-2]) ?(?:\d\d|2[AB]) ?\d{3} ?\d{3} ?\d\d(?!\w)", _is_french),
    (r"(?<!\w)[1-9]\d ?\d{3} ?\d{3} ?\d{3}(?!\w)", _is_german),
    (r"(?<!\w)[A-Z]{6}\d\d[ABCDEHLMPRST]\d\d[A-Z]\d{3}[A-Z](?!\w)", _is_italian),
    (r"(?<!\w)\d{11}(?!\w)", _is_polish),
    (r"(?<!\w)(?:\d{8}|[XYZ]-?\d{7})-?[A-Z](?!\w)", _is_spanish),
    (r"(?<!\w)756\.?\d{4}\.?\d{4}\.?\d\d(?!\w)", _is_swiss),
    (r"(?<![\w.-])(?<!\d )\d{3}(?:-\d\d-|\.\d\d\.| \d\d )\d{4}(?![\w-])(?![ .]\d)", _is_american),
)
NATIONAL_IDS: tuple[tuple[re.Pattern[str], Check], ...] = tuple(
    (re.compile(pattern, re.ASCII | re.IGNORECASE), check) for pattern, check in _WRITTEN
)
"""The pattern of each, and its check, which takes the number without separators."""
