"""Request ids: sortable by time, unguessable, and the id of record, decision and answer alike."""

import re
import secrets
import time

_CALLERS_OWN = re.compile(r"[A-Za-z0-9._:-]{1,128}\Z")


def new_request_id(prefix: str) -> str:
    """`prefix`-, the time in milliseconds (12 hex digits), then 80 random bits: 36 + characters at most 64."""
    return f"{prefix}-{time.time_ns() // 1_000_000:012x}{secrets.token_hex(10)}"


def caller_request_id(header: str | None) -> str | None:
    """The caller's `x-request-id` if it is short and printable enough to be repeated in headers and logs."""
    return header if header and _CALLERS_OWN.match(header) else None
