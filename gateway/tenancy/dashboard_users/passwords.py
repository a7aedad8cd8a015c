"""Hashes of passwords: Argon2id for new ones; scrypt hashes of earlier versions still verify."""

import base64
import hashlib
import hmac
import secrets
from functools import cache

from argon2 import PasswordHasher
from argon2.exceptions import InvalidHashError, VerificationError

# RFC 9106's second recommendation: 64 MiB, three passes; about 50 ms of one CPU with a single lane.
_ARGON2 = PasswordHasher(time_cost=3, memory_cost=64 * 1024, parallelism=1)


def hashed(password: str) -> str:
    """The hash to store, with its salt and parameters, in the PHC string format. Takes about 50 ms."""
    return _ARGON2.hash(password)


def matches(password: str, kept: str | None) -> bool:
    """Whether `kept` is a hash of `password`; None, for an unknown user, takes as long and is never right, and so does
    what a user of an OpenID provider has instead of one."""
    if kept is None or kept.startswith("oidc:"):
        _verified(password, _hash_of_nothing())
        return False
    return _scrypt_matches(password, kept) if kept.startswith("scrypt:") else _verified(password, kept)


def is_outdated(kept: str) -> bool:
    """Whether `kept` was made by scrypt or with other parameters than today's."""
    return kept.startswith("scrypt:") or _ARGON2.check_needs_rehash(kept)


def _verified(password: str, kept: str) -> bool:
    try:
        return _ARGON2.verify(kept, password)
    except (VerificationError, InvalidHashError):
        return False


def _scrypt_matches(password: str, kept: str) -> bool:
    _, cost, block_size, parallelism, salt, digest = kept.split(":")
    n, r, p = int(cost), int(block_size), int(parallelism)
    wanted = base64.b64decode(digest)
    given = hashlib.scrypt(
        password.encode(), salt=base64.b64decode(salt), n=n, r=r, p=p, maxmem=256 * n * r, dklen=len(wanted)
    )
    return hmac.compare_digest(given, wanted)


@cache
def _hash_of_nothing() -> str:
    return _ARGON2.hash(secrets.token_hex())
