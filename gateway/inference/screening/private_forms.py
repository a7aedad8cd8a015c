"""How what is private is written. Texts are read in plain characters before (`rules`): digits, dashes and spaces are
ASCII.

Numbers of persons: national identity numbers with their check digits, payment cards and bank accounts, which count by
their check digits, and phones.

Secrets: keys and tokens of known makers, credentials in headers and addresses, private keys. The makers' own forms,
as the rules of gitleaks 8 and detect-secrets 1.5 have them. Each expression takes time linear in the text, and is
searched only where one of its literals is found, which is much faster.
"""

import re
from collections import Counter
from collections.abc import Callable
from datetime import date
from typing import NamedTuple

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
_NEAR_A_PHONE = 44
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
    if not _NAMES_A_PHONE.search(found.string[max(found.start() - _NEAR_A_PHONE, 0) : found.start()]):
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


class Form(NamedTuple):
    """What a rule searches: a `pattern`; `literals`, of which a text with the pattern has at least one, () for none;
    and a `check` of what was found, None where the pattern alone counts."""

    pattern: re.Pattern[str]
    literals: tuple[str, ...] = ()
    check: Callable[[re.Match[str]], bool] | None = None

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


_WORD = r"[A-Za-z0-9_-]"
# What begins a key of a known maker, and how it goes on.
_KEYS = (
    ("sk-", rf"{_WORD}{{20,}}"),  # OpenAI, Anthropic, OpenRouter
    ("sk-aio-", rf"{_WORD}{{12,}}"),
    ("AKIA", r"[A-Z0-9]{16}"),  # AWS
    ("ASIA", r"[A-Z0-9]{16}"),
    ("ABIA", r"[A-Z0-9]{16}"),
    ("ACCA", r"[A-Z0-9]{16}"),
    ("gh", r"[pousr]_[A-Za-z0-9]{30,}"),  # GitHub
    ("github_pat_", r"[A-Za-z0-9_]{30,}"),
    ("gl", rf"(?:pat|dt|ft|rt|ptt|cbt|imt|soat|agent)-{_WORD}{{20,}}"),  # GitLab
    ("xox", r"[a-z](?:\.xox[a-z])?-[A-Za-z0-9-]{10,}"),  # Slack
    ("xapp-", r"\d-[A-Za-z0-9-]{10,}"),
    ("hooks.slack.com/", r"(?:services|workflows|triggers)/[A-Za-z0-9/_-]{12,}"),
    ("AIza", rf"{_WORD}{{30,}}"),  # Google
    ("GOCSPX-", rf"{_WORD}{{20,}}"),
    ("ya29.", rf"{_WORD}{{20,}}"),
    ("1//0", rf"{_WORD}{{30,}}"),
    ("sk_", r"(?:live|test|prod)_[A-Za-z0-9]{10,}"),  # Stripe
    ("pk_", r"live_[A-Za-z0-9]{10,}"),
    ("rk_", r"(?:live|test|prod)_[A-Za-z0-9]{10,}"),
    ("whsec_", r"[A-Za-z0-9+/]{20,}"),
    ("hf_", r"[A-Za-z0-9]{30,}"),  # Hugging Face
    ("gsk_", r"[A-Za-z0-9]{40,}"),  # Groq
    ("xai-", r"[A-Za-z0-9]{40,}"),
    ("pplx-", r"[A-Za-z0-9]{40,}"),
    ("r8_", r"[A-Za-z0-9]{30,}"),  # Replicate
    ("npm_", r"[A-Za-z0-9]{30,}"),
    ("pypi-", rf"{_WORD}{{50,}}"),
    ("SG.", rf"{_WORD}{{16,}}\.{_WORD}{{16,}}"),  # SendGrid
    ("SK", r"[a-f0-9]{32}(?![A-Za-z0-9])"),  # Twilio
    ("dop_v1_", r"[a-f0-9]{40,}"),  # DigitalOcean
    ("shp", r"(?:at|ca|pa|ss)_[A-Fa-f0-9]{32}"),  # Shopify
    ("sq0", rf"(?:atp|csp)-{_WORD}{{20,}}"),  # Square
    ("dapi", r"[a-f0-9]{32}"),  # Databricks
    ("hvs.", rf"{_WORD}{{20,}}"),  # Vault
    ("glsa_", r"[A-Za-z0-9_]{30,}"),  # Grafana
    ("lin_api_", r"[A-Za-z0-9]{30,}"),  # Linear
    ("ATATT3", r"[A-Za-z0-9_=-]{50,}"),  # Atlassian
    ("tskey-", r"[a-z]+-[A-Za-z0-9-]{16,}"),  # Tailscale
    ("AccountKey=", r"[A-Za-z0-9+/]{40,}"),  # Azure
    ("AGE-SECRET-KEY-1", r"[A-Z0-9]{20,}"),
    ("eyJ", rf"{_WORD}{{10,}}\.eyJ{_WORD}{{10,}}\.{_WORD}{{10,}}"),  # JSON web tokens
)
# 16 characters and more that are no word: there is a digit.
_VALUE = r"(?=[A-Za-z._~+/=-]{0,63}[0-9])[A-Za-z0-9._~+/-]{16,}"
_NAMES_A_SECRET = re.compile("aws|secret", re.IGNORECASE)
_NAMES_A_FIELD = re.compile(
    r"(?:api|access|auth|client|secret|session|refresh)[_. -]?(?:access[_. -]?)?$", re.IGNORECASE
)
_NEAR = 64


def _is_key_of_aws(found: re.Match[str]) -> bool:
    """Whether 40 characters are the secret of a key of AWS: random ones, with that name near before them."""
    value, start = found[0], found.start()
    random = not value.isdecimal() and value != value.lower() and value != value.upper()
    return random and _NAMES_A_SECRET.search(found.string, max(start - _NEAR, 0), start) is not None


def _is_secret_field(found: re.Match[str]) -> bool:
    """Whether a key, secret or token is named as a credential."""
    return _NAMES_A_FIELD.search(found.string, max(found.start() - _NEAR, 0), found.start()) is not None


# Credentials of any maker: in a header (RFC 9110, RFC 6750).
_IN_HEADERS = (
    r"(?i:(?<![a-z0-9])bearer[ \t:='\"]{1,4}"
    r"|authorization['\"]?[ \t]?[:=][ \t'\"]{0,3}(?:basic|token|apikey)[ \t]+)"
)
# The first bytes of keys without the lines around them: OpenSSH's, PKCS 8 (RSA, EC, Ed25519), SEC 1.
_BODIES = (
    "b3BlbnNzaC1rZXktdjE",
    "ANBgkqhkiG9w0BAQEFAASC",
    "AgEAMBMGByqGSM49AgEG",
    "MC4CAQAwBQYDK2VwBCIEI",
    "MHcCAQEEI",
)

LONG_WORD = 15
"""The least characters without a space between them that a secret has."""
KEYS_OF_MAKERS = (
    *(
        Form(re.compile(f"{re.escape(start)}(?<![A-Za-z0-9]{re.escape(start)}){rest}"), (start,))
        for start, rest in _KEYS
    ),
    Form(re.compile(rf":AA(?<=\d{{8}}:AA){_WORD}{{30,}}"), (":AA",)),  # Telegram
)
# Values by the words before them. These expressions are slow: they are searched in long words and what is before those.
NAMED_SECRETS = (
    Form(
        re.compile(r"(?<![A-Za-z0-9+/=])[A-Za-z0-9+/]{40}(?![A-Za-z0-9+/=])"),
        ("ecret", "ECRET", "aws", "AWS"),
        _is_key_of_aws,
    ),
    Form(re.compile(rf"{_IN_HEADERS}(?:{_VALUE}|[A-Za-z]{{20,}})"), ("earer", "EARER", "uthorization", "UTHORIZATION")),
    Form(
        re.compile(rf"(?:[Kk]ey|KEY|[Ss]ecret|SECRET|[Tt]oken|TOKEN)['\"]?[ \t]?[:=][ \t'\"]{{0,3}}{_VALUE}"),
        ("key", "Key", "KEY", "ecret", "ECRET", "oken", "OKEN"),
        _is_secret_field,
    ),
)
# A password in an address.
PASSWORDS = (Form(re.compile(r"://[^\s/:@?#<>{}\[\]$]{1,64}:[^\s/:@?#<>{}\[\]$]{3,128}@[A-Za-z0-9]"), ("://",)),)
PRIVATE_KEYS = (
    # Also without the dashes, or half of them.
    Form(
        re.compile(r"(?:BEGIN|END) ?(?:[A-Z0-9]+ ?){0,3}PRIVATE ?KEY|(?i:private key(?: block)?-----)"),
        ("PRIVATE KEY", "PRIVATEKEY", "rivate key-----", "rivate Key-----"),
    ),
)
PRIVATE_KEY_BODIES = (
    *(Form(re.compile(body), (body,)) for body in _BODIES),
    Form(re.compile(r"MII[A-K][A-Za-z0-9]{1,2}IBAAKC"), ("IBAAKC",)),
    Form(re.compile(r"PuTTY-User-Key-File-\d"), ("PuTTY-User-Key-File-",)),
)
