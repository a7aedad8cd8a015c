"""How secrets are written: keys and tokens of known makers, credentials in headers and addresses, private keys.

The makers' own forms, as the rules of gitleaks 8 and detect-secrets 1.5 have them. Each expression takes time linear in
the text, and is searched only where one of its literals is found, which is much faster.
"""

import re
from collections.abc import Callable
from typing import NamedTuple


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
