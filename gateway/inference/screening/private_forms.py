"""The forms of what is private, read from `private_forms.toml`, and the checks of what their patterns find.

Numbers of persons count by their check digits (python-stdnum), and phones by the numbering plan of their country
(libphonenumber). The checks here decide what only the text around a match tells.
"""

import re
import tomllib
from collections.abc import Callable
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Literal, NamedTuple

import msgspec
import phonenumbers
from stdnum import iban, luhn, numdb
from stdnum.us import ssn

from tiers.catalog.catalog import RuleName

Match = re.Match[str]
Scan = Literal["text", "long words", "named words", "numbers"]
_ROWS = Path(__file__).with_name("private_forms.toml")
_NEAR = 64
_NEAR_A_PHONE = 44
_NO_DIGIT = re.compile(r"[^0-9]+")
_DATE = re.compile(r"[0-3]?\d([./-])[0-3]?\d\1(?:\d{4}|\d\d)(?!\d|\1\d)|\d{4}([./-])\d\d?\2\d\d?(?!\d)")
_COUNTING = frozenset({"0123456789", "01234567890", "012345678", "0102030405", "010203040506"})
_NAMES_A_PHONE = re.compile(
    r"(?i)(?<![^\W\d_])(?:tel|telefon|telefono|telefone|teléfono|telefonnummer|telefoon|téléphone|telephone|phone|"
    r"mobile|mobil|móvil|movil|portable|cell|cellphone|cellular|celular|cellulare|handy|handynummer|rufnummer|rückruf|"
    r"fax|whatsapp|sms|call|dial|call me|call us|text me|ring me|reach me|reach us|contact number|телефон|тел|"
    r"电话|手机|電話|携帯)(?![^\W\d_])[^\d\n]{0,24}$"
)
_NAMES_A_SECRET = re.compile(r"(?i)aws|secret")
_NAMES_A_FIELD = re.compile(r"(?i)(?:api|access|auth|client|secret|session|refresh)[_. -]?(?:access[_. -]?)?$")
# Stars, "your_password1", and a name in a program.
_NO_PASSWORD = re.compile(
    r"(?i)[*x.•_-]+$|(?:your|my|the|new|old|user|db|test)?[_-]?(?:pass(?:word)?|pwd)[_-]?\d{0,2}$|"
    r"[a-z_]\w*(?:\.[a-z_]\w*)+$"
)
_VALUE = re.compile(r"[^\s:='\"是为は]+$")


class Form(NamedTuple):
    """What a rule searches."""

    pattern: re.Pattern[str]
    literals: tuple[str, ...] = ()
    """A text with the pattern has at least one of these; () for none."""
    check: Callable[[Match], bool] | None = None
    """A check of each match; None where the pattern alone counts."""

    def may_be_in(self, text: str) -> bool:
        """Whether `text` has one of the literals."""
        return not self.literals or any(literal in text for literal in self.literals)

    def is_in(self, text: str) -> bool:
        """Whether `text` has it."""
        if not self.may_be_in(text):
            return False
        if self.check is None:
            return self.pattern.search(text) is not None
        return any(map(self.check, self.pattern.finditer(text)))


class _Row(msgspec.Struct, rename={"scan": "in"}, forbid_unknown_fields=True):
    rule: RuleName
    pattern: str
    literals: tuple[str, ...] = ()
    check: str | None = None
    scan: Scan = "text"


class _File(msgspec.Struct, forbid_unknown_fields=True):
    form: list[_Row]
    makers: dict[str, str]


@cache
def private_forms(scan: Scan) -> dict[RuleName, tuple[Form, ...]]:
    """Return the forms that are searched in such parts of a text, by rule."""
    file = msgspec.convert(tomllib.loads(_ROWS.read_text()), _File)
    forms: dict[RuleName, tuple[Form, ...]] = {}
    for row in file.form:
        if row.scan == scan:
            form = Form(re.compile(row.pattern), row.literals, None if row.check is None else _check(row.check))
            forms[row.rule] = (*forms.get(row.rule, ()), form)
    if scan == "long words":
        makers = (
            # A key begins where no word goes on.
            Form(re.compile(f"{re.escape(start)}(?<![A-Za-z0-9]{re.escape(start)}){rest}", re.ASCII), (start,))
            for start, rest in file.makers.items()
        )
        forms["api-key"] = (*forms.get("api-key", ()), *makers)
    return forms


def _check(name: str) -> Callable[[Match], bool]:
    if name.startswith("phone:"):
        return _phone_check(name.removeprefix("phone:").split(","))
    if "." in name:
        is_valid: Callable[[str], bool] = import_module(f"stdnum.{name}").is_valid
        return lambda match: is_valid(match[0])
    return _CHECKS[name]


def _phone_check(regions: list[str]) -> Callable[[Match], bool]:
    def is_phone(match: Match) -> bool:
        numbers = (phonenumbers.parse(match[0], region) for region in regions)
        return _is_no_row(_digits(match)) and any(map(phonenumbers.is_valid_number, numbers))

    return is_phone


def is_card(match: Match) -> bool:
    """Whether it is a number of a payment card: of an issuer of cards, and with a right check digit (ISO 7812-1)."""
    digits = _digits(match)
    issued = digits[0] in "3456" or "2200" <= digits[:4] <= "2204" or "2221" <= digits[:4] <= "2720"
    return 13 <= len(digits) <= 19 and issued and len(set(digits)) > 1 and luhn.is_valid(digits)


def is_spaced_card(match: Match) -> bool:
    """The same of digits that stand apart, where no other digits come before."""
    return is_card(match) and not match.string[: match.start()].rstrip()[-1:].isdecimal()


def is_iban(match: Match) -> bool:
    """Whether it begins with an IBAN: of the length of its country, and with right check digits (ISO 13616)."""
    number = iban.compact(match[0].replace(".", ""))
    length = _iban_length(number[:2])
    return len(number) >= length > 0 and iban.is_valid(number[:length], check_country=False)


@cache
def _iban_length(country: str) -> int:
    """Return the length of a country's account numbers; 0 for no country."""
    structure = numdb.get("iban").info(f"{country}00")[0][1].get("bban", "")
    return 4 + sum(map(int, re.findall(r"(\d+)!", structure))) if structure else 0


def is_american(match: Match) -> bool:
    """Whether its last nine digits are a social security number that may have been given."""
    return ssn.is_valid(_digits(match)[-9:])


def is_international(match: Match) -> bool:
    """Whether it has as many digits as a phone of its country may have (E.164)."""
    digits = _digits(match)
    if not 8 <= len(digits) - 2 * digits.startswith("00") <= 15:
        return False
    try:
        number = phonenumbers.parse(f"+{digits.removeprefix('00')}")
    except phonenumbers.NumberParseException:
        return False
    return phonenumbers.is_possible_number(number)


def is_national(match: Match) -> bool:
    """Whether it is a number in the form of a country: 9 to 12 digits after which nothing goes on, and no date."""
    digits = _digits(match)
    return 9 <= len(digits) <= 12 and _is_no_row(digits) and not _DATE.match(match[0])


def is_named_phone(match: Match) -> bool:
    """Whether a text calls it a phone, and it has the digits of one, and is no date or row of years."""
    if not _NAMES_A_PHONE.search(match.string[max(match.start() - _NEAR_A_PHONE, 0) : match.start()]):
        return False
    groups = [group for group in _NO_DIGIT.split(match[0]) if group]
    digits = "".join(groups)
    years = sum(len(group) == 4 and group[:2] in ("19", "20") for group in groups) > 1
    return 7 <= len(digits) <= 15 and not years and len(set(digits)) > 2 and not _DATE.search(match[0])


def is_password(match: Match) -> bool:
    """Whether what is called a password may be one."""
    value = _VALUE.search(match[0])
    return value is not None and _NO_PASSWORD.match(value[0]) is None


def is_key_of_aws(match: Match) -> bool:
    """Whether 40 characters are the secret of a key of AWS: random ones, with that name near before them."""
    value, start = match[0], match.start()
    random = not value.isdecimal() and value != value.lower() and value != value.upper()
    return random and _NAMES_A_SECRET.search(match.string, max(start - _NEAR, 0), start) is not None


def is_secret_field(match: Match) -> bool:
    """Whether a key, secret or token is named as a credential."""
    return _NAMES_A_FIELD.search(match.string, max(match.start() - _NEAR, 0), match.start()) is not None


def _is_no_row(digits: str) -> bool:
    return len(set(digits)) > 2 and digits not in _COUNTING


def _digits(match: Match) -> str:
    return _NO_DIGIT.sub("", match[0])


_CHECKS = {
    check.__name__: check
    for check in (
        is_card, is_spaced_card, is_iban, is_american, is_international, is_national, is_named_phone, is_password,
        is_key_of_aws, is_secret_field,
    )
}  # fmt: skip
