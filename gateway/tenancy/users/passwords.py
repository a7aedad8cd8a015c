"""Hashes of passwords: Argon2id for new ones; scrypt hashes of earlier versions still verify."""

import asyncio
import base64
import hashlib
import hmac
import secrets
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from argon2 import PasswordHasher
from argon2.exceptions import InvalidHashError, VerificationError

T = TypeVar("T")

# RFC 9106's second recommendation: 64 MiB, three passes; about 50 ms of one CPU with a single lane.
_ARGON2 = PasswordHasher(time_cost=3, memory_cost=64 * 1024, parallelism=1)
# Of the same parameters as any other, with a digest that no known password has.
_HASH_OF_NOTHING = (
    f"$argon2id$v=19$m={_ARGON2.memory_cost},t={_ARGON2.time_cost},p={_ARGON2.parallelism}"
    f"${base64.b64encode(secrets.token_bytes(16)).decode().rstrip('=')}"
    f"${base64.b64encode(secrets.token_bytes(32)).decode().rstrip('=')}"
)
# One at a time takes 64 MiB and one CPU at most, however many come together. Known devices do not wait behind others.
_THREAD, _URGENT_THREAD = ThreadPoolExecutor(1, "passwords"), ThreadPoolExecutor(1, "urgent-passwords")
MOST_WAITING = 8
"""How many passwords of unknown devices may wait: half a second on an idle machine, and seconds on a busy one."""
_waiting = 0


class TooManyPasswordsError(Exception):
    """So many passwords wait to be checked that another one would wait for seconds."""


async def in_turn(work: Callable[..., T], *arguments: object, is_urgent: bool = False) -> T:
    """Run `hashed` or `matches` in a thread, in the order of the calls.

    Raises `TooManyPasswordsError` if too many wait already, unless it `is_urgent`, which has a thread of its own.
    """
    global _waiting
    loop = asyncio.get_running_loop()
    if is_urgent:
        return await loop.run_in_executor(_URGENT_THREAD, work, *arguments)
    if _waiting >= MOST_WAITING:
        raise TooManyPasswordsError
    _waiting += 1
    try:
        return await loop.run_in_executor(_THREAD, work, *arguments)
    finally:
        _waiting -= 1


def hashed(password: str) -> str:
    """The hash to store, with its salt and parameters, in the PHC string format. Takes about 50 ms."""
    return _ARGON2.hash(password)


def matches(password: str, kept: str | None) -> bool:
    """Whether `kept` is a hash of `password`; None, for an unknown user, takes as long and is never right, and so does
    what a user of an OpenID provider has instead of one."""
    if kept is None or kept.startswith("oidc:"):
        _verified(password, _HASH_OF_NOTHING)
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
