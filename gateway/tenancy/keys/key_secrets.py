"""API keys of callers: stored only as SHA-256, compared in constant time, never logged.

The entropy of a key that a person chose is estimated from the key alone: independent characters times bits of each.
No estimate can tell a random key from one that was published; this one finds short keys, small alphabets,
repetition, sequences and words. Keys of usual generators pass: 32 random hexadecimal digits, 22 of base64 or letters
and digits.
"""

import hashlib
import hmac
import math
import re
import secrets
from typing import NamedTuple

import msgspec

from gateway.base.inference_request import Caller
from gateway.base.settings import Settings, SettingsError
from tiers.catalog.consent import ALL, Consent

NEEDED_BITS = 128

_UUID = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}", re.IGNORECASE)
_UUID_BITS = 122
# Words in front that say what a key is for: `sk-aio-…`, `prod_api_key_…`.
_LABELS = re.compile(
    r"(?:(?:sk|pk|key|api|aio|admin|token|secret|live|prod|dev|test|user|app|my|proj)[-_.])+", re.IGNORECASE
)
_HEX = re.compile(r"[0-9a-f]+|[0-9A-F]+")
_KEYBOARD = "qwertyuiopasdfghjklzxcvbnm 1qaz2wsx3edc4rfv5tgb6yhn7ujm qazwsxedcrfvtgbyhnujm 1234567890 0987654321"
# So many characters continue a pattern by chance.
_BY_CHANCE = 4
# The most frequent pairs of letters in English words: 62% of their pairs, and 11% of random ones.
_PAIRS = (
    "er_re_in_es_ed_te_ti_or_en_on_at_st_de_le_ro_ng_nt_se_co_ra_an_ar_li_al_io_me_ce_la_ne_et_it_ve_ns_ec_lo_ri_ta_tr_"
    "ea_is_ge_pe_ch_ic_un_as_ca_el_he_ac_to_pr_nd_ma_ts_ad_ct_rs_si_ou_di_th_po_om_ol_ll_em_ss_ha_sh"
)
_RANDOM_SHARE, _DEVIATIONS, _FEWEST_PAIRS = 0.12, 4.5, 10
_SEPARATE_WORD, _FEWEST_WORDS = re.compile(r"(?<![A-Za-z0-9])(?:[A-Z]?[a-z]{2,}|[A-Z]{3,})(?![A-Za-z0-9])"), 3
_BITS_OF_A_LETTER_IN_WORDS = 2.0


def entropy_bits(key: str) -> float:
    """Return about how many bits of entropy a key has.

    A character counts with the logarithm of the alphabet that the key is written in, or with two bits as a letter of a
    text with words, and with none where it repeats earlier ones or continues a sequence. A UUID has 122 bits.
    """
    text, uuids = _UUID.subn("", key)
    if label := _LABELS.match(text):
        text = text[label.end() :]
    if not text:
        return uuids * _UUID_BITS
    if _has_words(text):
        others = re.sub("[A-Za-z]", "", text)
        total = (len(text) - len(others)) * _BITS_OF_A_LETTER_IN_WORDS + len(others) * _bits_of_a_character(others)
    else:
        total = len(text) * _bits_of_a_character(text)
    independent = len(text) - max(0, _continued(text) - _BY_CHANCE)
    return uuids * _UUID_BITS + total * independent / len(text)


def _bits_of_a_character(text: str) -> float:
    """The logarithm of the alphabet; of a part of it, if far fewer characters occur than would by chance."""
    distinct = len(set(text))
    if distinct < 2:
        return 0.0
    if _HEX.fullmatch(text):
        size = 16 if re.search("[a-fA-F]", text) else 10
    else:
        others = len(set(re.sub("[0-9a-zA-Z]", "", text)))
        size = others if others < 4 else max(others, 32)
        size += sum(of for of, members in ((26, "a-z"), (26, "A-Z")) if re.search(f"[{members}]", text))
        # Of letters in both cases the digits may be missing by chance.
        size += 10 if size >= 52 or re.search("[0-9]", text) else 0
    expected = size * (1 - (1 - 1 / size) ** len(text))
    return math.log2(size if distinct > expected / 2 else distinct)


def _continued(text: str) -> int:
    """Return how many characters end a repeated three, or continue a sequence such as `abc`, `321`, `1a2b3c`, `qwe`."""
    folded = text.lower()
    codes = [ord(character) for character in folded]
    return sum(
        text[at - 2 : at + 1] in text[:at]
        or folded[at - 2 : at + 1] in _KEYBOARD
        or any(
            abs(codes[at] - codes[at - stride]) <= 1
            and codes[at] - codes[at - stride] == codes[at - stride] - codes[at - 2 * stride]
            for stride in (1, 2)
            if at >= 2 * stride
        )
        for at in range(2, len(text))
    )


def _has_words(text: str) -> bool:
    """Whether half of it is words between separators, or more of its letters than by chance are in pairs of English."""
    if _HEX.fullmatch(text):
        return False
    separate = _SEPARATE_WORD.findall(text)
    if len(separate) >= _FEWEST_WORDS and 2 * sum(map(len, separate)) >= len(text):
        return True
    words = re.findall("[A-Z]?[a-z]{2,}|[A-Z]{3,}", text)
    pairs = [word[at : at + 2].lower() for word in words for at in range(len(word) - 1)]
    deviation = math.sqrt(len(pairs) * _RANDOM_SHARE * (1 - _RANDOM_SHARE))
    english = sum(pair in _PAIRS for pair in pairs)
    return len(pairs) >= _FEWEST_PAIRS and english > len(pairs) * _RANDOM_SHARE + _DEVIATIONS * deviation


KEY_START = "sk-aio-"
PREFIX_LENGTH = len(KEY_START) + 8


class ApiKeys:
    """The keys of the settings, in memory as SHA-256 and stored nowhere.

    They have at least 128 bits of entropy by `entropy_bits`, so that no search finds a key from its SHA-256 and a slow
    hash is not needed. Of `sha256:HEX` entries it is not known.
    """

    def __init__(self, digests: dict[str, bytes], private: frozenset[str] = frozenset()) -> None:
        self._digests = digests
        self._private = private

    @classmethod
    def parse(cls, text: str, variable: str = "AIO_API_KEYS", private: str = "") -> "ApiKeys":
        """Read `NAME=KEY` or `NAME=sha256:HEX` entries, separated by commas or lines; the keys themselves are
        dropped at once.

        `private`: comma-separated names of keys whose texts must not be stored. Raises `SettingsError` naming the
        entry, never showing the key; also for a key with too little entropy.
        """
        digests: dict[str, bytes] = {}
        for entry in filter(None, (part.strip() for part in re.split(r"[,\r\n]", text))):
            name, separator, secret = entry.partition("=")
            if not separator or not name:
                raise SettingsError(
                    f"{variable}: every entry is NAME=KEY or NAME=sha256:HEX, separated by commas or lines"
                )
            if name in digests:
                raise SettingsError(f"{variable}: the name {name!r} occurs twice; names must differ")
            digests[name] = _digest(name, secret, variable)
        names = frozenset(filter(None, (name.strip() for name in private.split(","))))
        if unknown := sorted(names - digests.keys()):
            # A misspelt name must not expose the texts of the intended owner.
            raise SettingsError(f"AIO_PRIVATE_KEYS: {', '.join(unknown)} is not a name in {variable}")
        return cls(digests, names)

    @property
    def names(self) -> frozenset[str]:
        return frozenset(self._digests)

    def __bool__(self) -> bool:
        return bool(self._digests)

    def caller(self, owner: str, scopes: frozenset[str]) -> Caller:
        """Return the caller with the key of `owner`: without limits, and with consent unless withdrawn."""
        consent = Consent(reuse=False) if owner in self._private else ALL
        return Caller(key_id=owner, name=owner, scopes=scopes, consent=consent)

    def owner(self, authorization: str | None) -> str | None:
        """Return the name of the key in an `Authorization: Bearer …` header, or None if it is missing or wrong.

        Every known digest is compared, so that timing reveals nothing about near matches.
        """
        secret = bearer_of(authorization)
        return None if secret is None else self.owner_of(digest_of(secret))

    def digest_of_owner(self, name: str) -> bytes | None:
        """Return the SHA-256 of the key of this name, or None."""
        return self._digests.get(name)

    def owner_of(self, digest: bytes) -> str | None:
        """Return the name of the key with this SHA-256, or None."""
        owner = None
        for name, key_digest in self._digests.items():
            if hmac.compare_digest(digest, key_digest):
                owner = name
        return owner


class SettingsKeys(NamedTuple):
    """The keys of AIO_API_KEYS, AIO_ADMIN_KEYS and AIO_VIEWER_KEYS."""

    answers: ApiKeys
    admins: ApiKeys
    viewers: ApiKeys


def keys_of(settings: Settings) -> SettingsKeys:
    """Return the keys of the settings. Raises `SettingsError`."""
    return SettingsKeys(
        ApiKeys.parse(settings.api_keys, private=settings.private_keys),
        ApiKeys.parse(settings.admin_keys, "AIO_ADMIN_KEYS"),
        ApiKeys.parse(settings.viewer_keys, "AIO_VIEWER_KEYS"),
    )


class MadeKey(msgspec.Struct, frozen=True):
    """A fresh key ("" where its owner has it), its SHA-256, the only stored form, and its first characters, by which
    owners recognise it."""

    key: str
    digest: bytes
    prefix: str


def make_key() -> MadeKey:
    """Return a key of 256 random bits, of which the prefix shows 48."""
    key = f"{KEY_START}{secrets.token_urlsafe(32)}"
    return MadeKey(key, digest_of(key), key[:PREFIX_LENGTH])


def given_secret(name: str, secret: str, source: str) -> MadeKey:
    """Return the key `name` with a secret, or `sha256:` and its SHA-256, that somebody chose. What owners recognise it
    by is of the hash: the beginning of a chosen secret would tell too much of it. Raises `SettingsError`, which names
    `source` and never shows the secret, also for one with too little entropy."""
    digest = _digest(name, secret, source)
    return MadeKey("", digest, f"sha256:{digest.hex()[:8]}")


def new_key() -> tuple[str, str]:
    """Return a fresh key and its `sha256:HEX` form for the settings."""
    made = make_key()
    # One of thousands looks like words: as plain text the settings would refuse it.
    while entropy_bits(made.key) < NEEDED_BITS:
        made = make_key()
    return made.key, f"sha256:{made.digest.hex()}"


def bearer_of(authorization: str | None) -> str | None:
    """Return the key in an `Authorization: Bearer …` header; None without one."""
    scheme, _, secret = (authorization or "").partition(" ")
    return secret.strip() if scheme.lower() == "bearer" else None


def digest_of(key: str) -> bytes:
    return hashlib.sha256(key.encode()).digest()


def _digest(name: str, secret: str, variable: str) -> bytes:
    if secret.startswith("sha256:"):
        try:
            digest = bytes.fromhex(secret.removeprefix("sha256:"))
        except ValueError:
            digest = b""
        if len(digest) != hashlib.sha256().digest_size:
            raise SettingsError(f"{variable}: the entry {name!r} is not sha256: and 64 hexadecimal digits")
        return digest
    if (bits := entropy_bits(secret)) < NEEDED_BITS:
        raise SettingsError(
            f"{variable}: the key of {name!r} is too weak: it has about {bits:.0f} bits of entropy, without "
            f"repetition, sequences and words, and {NEEDED_BITS} are needed. `aio new-key {name}` makes a strong key"
        )
    return digest_of(secret)
