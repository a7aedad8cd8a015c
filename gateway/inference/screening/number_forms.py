"""How numbers of persons are written: payment cards and bank accounts, which count by their check digits, and phones.

Texts are read in plain characters before (`readings`): digits, dashes and spaces are ASCII.
"""

import re

from gateway.inference.screening.national_ids import plain

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
_NEAR = 44
_NO_DIGIT = re.compile(r"[^0-9]+")


def is_luhn(digits: str) -> bool:
    """Whether the last digit is right by Luhn's rule (ISO 7812-1)."""
    total = 0
    for place, digit in enumerate(reversed(digits)):
        value = int(digit) * (1 + place % 2)
        total += value - 9 * (value > 9)
    return total % 10 == 0


def is_card(found: re.Match[str]) -> bool:
    """Whether it is a number of a payment card: of an issuer of cards, and with a right check digit."""
    digits = _digits(found)
    issued = digits[0] in "3456" or "2200" <= digits[:4] <= "2204" or "2221" <= digits[:4] <= "2720"
    return 13 <= len(digits) <= 19 and issued and len(set(digits)) > 1 and is_luhn(digits)


def is_spaced_card(found: re.Match[str]) -> bool:
    """The same of digits that stand apart, where no other digits come before."""
    return is_card(found) and not found.string[: found.start()].rstrip()[-1:].isdecimal()


def is_iban(found: re.Match[str]) -> bool:
    """Whether it begins with an IBAN: of the length of its country, and with right check digits (modulo 97)."""
    number = plain(found[0])
    length = _IBAN_LENGTHS.get(number[:2])
    if length is None or len(number) < length:
        return False
    number = number[:length]
    digits = "".join(str(int(character, 36)) for character in number[4:] + number[:4])
    return int(digits) % 97 == 1


def is_international(found: re.Match[str]) -> bool:
    """Whether it has as many digits as a number of a phone may have (E.164)."""
    return 8 <= len(_digits(found)) <= 15


def is_national(found: re.Match[str]) -> bool:
    """Whether it is a number in the form of a country: 9 to 12 digits after which nothing goes on, and no date."""
    digits = _digits(found)
    return 9 <= len(digits) <= 12 and len(set(digits)) > 2 and not _DATE.match(found[0]) and digits not in _COUNTING


def is_named_phone(found: re.Match[str]) -> bool:
    """Whether a text calls it a phone, and it has the digits of one, and is no date or row of years."""
    if not _NAMES_A_PHONE.search(found.string[max(found.start() - _NEAR, 0) : found.start()]):
        return False
    groups = [group for group in _NO_DIGIT.split(found[0]) if group]
    digits = "".join(groups)
    years = sum(len(group) == 4 and group[:2] in ("19", "20") for group in groups) > 1
    return 7 <= len(digits) <= 15 and not years and len(set(digits)) > 2 and not _DATE.search(found[0])


def _digits(found: re.Match[str]) -> str:
    return _NO_DIGIT.sub("", found[0])


_DATE = re.compile(r"[0-3]?\d([./-])[0-3]?\d\1(?:\d{4}|\d\d)(?!\d|\1\d)|\d{4}([./-])\d\d?\2\d\d?(?!\d)")
_COUNTING = frozenset({"0123456789", "01234567890", "012345678", "0102030405", "010203040506"})
_BETWEEN = r"(?:[ .\-_/|:\t\u00b7\u2022]{1,3}|\+)?"
CARD = re.compile(
    rf"(?<!\w)(?<!\d[.,+\-])[2-6]\d{{3}}{_BETWEEN}(?:"
    # In fours, up to 19 digits; 4-6-5 and 4-6-4; 6-10.
    rf"\d{{4}}{_BETWEEN}\d{{4}}{_BETWEEN}\d{{1,4}}(?:{_BETWEEN}\d{{3}}(?!\d))?"
    rf"|\d{{6}}{_BETWEEN}\d{{4,5}}|\d\d[ \-]\d{{10}})(?!\w)(?![-.,]\d)"
)
# By one digit or two, and no row of a table.
SPACED_CARD = re.compile(r"(?<!\w)[3-6](?:(?:[ \-]\d){15}|\d(?:[ \-]\d\d){7})(?!\w)(?!\s+\d)")
IBAN = re.compile(r"(?:(?<!\w)|(?<=\bIBAN))[A-Z]{2}[ .\-]?\d\d(?:[ .\-]{0,2}[A-Z0-9]{1,4}){3,14}", re.IGNORECASE)
# With + or 00 and the country's code; American; with the 0 before an area's code, in groups or as one.
INTERNATIONAL = (
    re.compile(r"(?<![\w+])\+(?!\d{1,2}\.\d{5})[1-9](?:[ ().\-/\u00b7\u2022]{0,3}\d){7,14}(?!\d)"),
    re.compile(r"(?<![\w.,\-/+])(?<!\d )00[1-9](?:[ ().\-/]{0,3}\d){7,13}(?!\d)"),
)
AMERICAN = re.compile(r"(?<![\w.\-/+(])(?:1[-. ])?(?:\([2-9]\d\d\) ?|[2-9]\d\d[-. ])[2-9]\d\d[-. ]\d{4}(?![\w-])")
NATIONAL = re.compile(
    r"(?<![\w/+])(?<!\d[ .,:\-])(?:\(0[1-9]\d{0,4}\)|0[1-9]\d{0,4})(?:[ .\-/]{1,3}\d{2,8}){1,4}(?![\w/-])(?![ .,:]\d)"
)
# Mobile phones of China, and of Spain, Poland and others, whose numbers have nothing before them.
MOBILE = re.compile(
    r"(?<![\w.,/+$€£])(?<!\d[ .,:\-])(?:1[3-9]\d(?:[ -]?\d{4}){2}|[5-9]\d\d[ -]\d{3}[ -]\d{3})(?![\w/\-])(?![ .,:]\d)"
)
# In one, and in the groups of Russia and Brazil.
PLAIN_NATIONAL = re.compile(r"(?<![\w/+])(?<!\d[ .,:\-])0[1-9]\d{8,9}(?![\w/\-])(?![ .,:]\d)")
IN_BRACKETS = re.compile(r"(?<![\w.\-/+(])(?:8 ?\(\d{3}\) ?\d{3}-\d\d-\d\d|\([1-9]\d\) ?9?\d{4}-\d{4})(?![\w-])")
_CALLED = (
    "tel|telefon|telefono|telefone|teléfono|telefonnummer|telefoon|téléphone|telephone|phone|mobile|mobil|móvil|"
    "movil|portable|cell|cellphone|cellular|celular|cellulare|handy|handynummer|rufnummer|rückruf|fax|whatsapp|sms|"
    "call|dial|call me|call us|text me|ring me|reach me|reach us|contact number|телефон|тел|电话|手机|電話|携帯"
)
# Of any form, where the words before it call it a phone.
DIGITS = re.compile(r"(?<![\w.,])\(?\d(?:[ ().\-/]{0,2}\d){6,14}(?![\w-])(?![.,]\d)")
_NAMES_A_PHONE = re.compile(rf"(?<![^\W\d_])(?:{_CALLED})(?![^\W\d_])[^\d\n]{{0,24}}$", re.IGNORECASE)
