"""Request ids: sortable by time, unguessable, shared by record, decision and answer."""

import os
import re
import time

RANDOM_BYTES = 10

_CALLERS_OWN = re.compile(r"[A-Za-z0-9._:-]{1,128}\Z")


def new_request_id(prefix: str, separator: str = "-") -> str:
    """Return `prefix`-, the time in milliseconds (12 hex digits), then 80 random bits: 36 + characters at most 64."""
    return f"{prefix}{separator}{time.time_ns() // 1_000_000:012x}{_random_bits().hex()}"


def _random_bits() -> bytes:
    """Return ten bytes of the system's generator, which is read a page at a time."""
    if len(_pool) < RANDOM_BYTES:
        _pool.extend(os.urandom(RANDOM_BYTES * 256))
    bits = bytes(_pool[-RANDOM_BYTES:])
    del _pool[-RANDOM_BYTES:]
    return bits


_pool = bytearray()
# Two processes must not continue on the same page.
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_pool.clear)


def caller_request_id(header: str | None) -> str | None:
    """Return the caller's `x-request-id` if it is short and printable enough for headers and logs."""
    return header if header and _CALLERS_OWN.match(header) else None
