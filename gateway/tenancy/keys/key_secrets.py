"""API keys of callers: stored only as SHA-256, compared in constant time, never logged."""

import hashlib
import hmac
import secrets
from typing import NamedTuple

import msgspec

from gateway.base.requests.caller import Caller
from gateway.base.settings import Settings, SettingsError
from gateway.tenancy.keys.key_entropy import NEEDED_BITS, entropy_bits
from tiers.consent import Consent

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
        """Read comma-separated `NAME=KEY` or `NAME=sha256:HEX` entries; the keys themselves are dropped at once.

        `private`: comma-separated names of keys whose texts must not be stored. Raises `SettingsError` naming the
        entry, never showing the key; also for a key with too little entropy.
        """
        digests: dict[str, bytes] = {}
        for entry in filter(None, (part.strip() for part in text.split(","))):
            name, separator, secret = entry.partition("=")
            if not separator or not name:
                raise SettingsError(f"{variable}: every entry is NAME=KEY or NAME=sha256:HEX, separated by commas")
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
        """The names of all keys."""
        return frozenset(self._digests)

    def __bool__(self) -> bool:
        return bool(self._digests)

    def caller(self, owner: str, scopes: frozenset[str]) -> Caller:
        """Return the caller with the key of `owner`: without limits, and with consent unless withdrawn."""
        return Caller(key_id=owner, name=owner, scopes=scopes, consent=Consent(reuse=owner not in self._private))

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
        found = None
        for name, known in self._digests.items():
            if hmac.compare_digest(digest, known):
                found = name
        return found


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
    """Return the SHA-256 of a key."""
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
            f"{variable}: the key of {name!r} has about {bits:.0f} bits of entropy, by its length and alphabet without "
            f"repetition, sequences and words; {NEEDED_BITS} are needed: `aio new-key {name}` makes a key"
        )
    return digest_of(secret)
