"""API keys of callers: known only by the SHA-256 of each, compared in constant time, never logged."""

import hashlib
import hmac
import secrets

import msgspec

from gateway.requests.caller import Caller
from gateway.settings import SettingsError

MIN_KEY_LENGTH = 20
KEY_START = "sk-aio-"
PREFIX_LENGTH = len(KEY_START) + 8


class ApiKeys:
    """The callers that may ask. Keys are high-entropy, so that a plain SHA-256 cannot be searched backwards."""

    def __init__(self, digests: dict[str, bytes], private: frozenset[str] = frozenset()) -> None:
        self._digests = digests
        self._private = private

    @classmethod
    def parse(cls, text: str, variable: str = "AIO_API_KEYS", private: str = "") -> "ApiKeys":
        """Read comma-separated `NAME=KEY` or `NAME=sha256:HEX` entries; the keys themselves are dropped at once.

        `private`: comma-separated names of keys whose owners do not consent to their texts being stored.
        Raises `SettingsError` naming the entry, never showing the key.
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
            # A misspelt name must not give away the texts of the owner that was meant.
            raise SettingsError(f"AIO_PRIVATE_KEYS: {', '.join(unknown)} is no name in {variable}")
        return cls(digests, names)

    @property
    def names(self) -> frozenset[str]:
        """Of all keys."""
        return frozenset(self._digests)

    def __bool__(self) -> bool:
        return bool(self._digests)

    def caller(self, owner: str, scopes: frozenset[str]) -> Caller:
        """Who asks with the key of `owner`: without limits, but for consent where it was withdrawn."""
        return Caller(key_id=owner, name=owner, scopes=scopes, consent=owner not in self._private)

    def owner(self, authorization: str | None) -> str | None:
        """The name of the key in an `Authorization: Bearer …` header, or None if it is missing or wrong.

        Every known digest is compared, so that the time taken says nothing about which one was near.
        """
        secret = bearer_of(authorization)
        return None if secret is None else self.owner_of(digest_of(secret))

    def owner_of(self, digest: bytes) -> str | None:
        """The name of the key with this SHA-256, or None."""
        found = None
        for name, known in self._digests.items():
            if hmac.compare_digest(digest, known):
                found = name
        return found


class MadeKey(msgspec.Struct, frozen=True):
    """A fresh key; its SHA-256, which is all that is kept of it, and the first characters, which find it again."""

    key: str
    digest: bytes
    prefix: str


def make_key() -> MadeKey:
    """256 bits of chance, of which the prefix shows 48."""
    key = f"{KEY_START}{secrets.token_urlsafe(32)}"
    return MadeKey(key, digest_of(key), key[:PREFIX_LENGTH])


def new_key() -> tuple[str, str]:
    """A fresh key and its `sha256:HEX` form for the settings."""
    made = make_key()
    return made.key, f"sha256:{made.digest.hex()}"


def bearer_of(authorization: str | None) -> str | None:
    """The key in an `Authorization: Bearer …` header; None without one."""
    scheme, _, secret = (authorization or "").partition(" ")
    return secret.strip() if scheme.lower() == "bearer" else None


def digest_of(key: str) -> bytes:
    """The SHA-256 of a key."""
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
    if len(secret) < MIN_KEY_LENGTH:
        raise SettingsError(
            f"{variable}: the key of {name!r} has {len(secret)} characters; at least {MIN_KEY_LENGTH} are needed "
            "(`aio new-key` makes one)"
        )
    return digest_of(secret)
