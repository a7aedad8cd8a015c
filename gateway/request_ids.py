"""Request ids: sortable by time, unguessable, and the id of record, decision and answer alike."""

import os
import re
import time

RANDOM_BYTES = 10

_CALLERS_OWN = re.compile(r"[A-Za-z0-9._:-]{1,128}\Z")


def new_request_id(prefix: str) -> str:
    """`prefix`-, the time in milliseconds (12 hex digits), then 80 random bits: 36 + characters at most 64."""
    return f"{prefix}-{time.time_ns() // 1_000_000:012x}{_random_bits().hex()}"


def _random_bits() -> bytes:
    """Ten bytes of the system's generator, which is asked for a page of them at a time."""
    if len(_pool) < RANDOM_BYTES:
        _pool.extend(os.urandom(RANDOM_BYTES * 256))
    bits = bytes(_pool[-RANDOM_BYTES:])
    del _pool[-RANDOM_BYTES:]
    return bits


_pool = bytearray()
# Two processes must not go on from one page.
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_pool.clear)


def caller_request_id(header: str | None) -> str | None:
    """The caller's `x-request-id` if it is short and printable enough to be repeated in headers and logs."""
    return header if header and _CALLERS_OWN.match(header) else None
