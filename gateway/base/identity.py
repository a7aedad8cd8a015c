"""What a request is known by: its id, and its place in a distributed trace.

Ids are sortable by time, unguessable, and shared by record, decision and answer. Traces:
https://www.w3.org/TR/trace-context/ (levels 1 and 2).
"""

import os
import random
import re
import time
from collections.abc import Mapping

import msgspec

from tiers.tier import TraceHeaders

RANDOM_BYTES = 10
_CALLERS_OWN = re.compile(r"[A-Za-z0-9._:-]{1,128}\Z")
_TRACEPARENT = re.compile(r"(?!ff)[0-9a-f]{2}-(?!0{32})([0-9a-f]{32})-(?!0{16})([0-9a-f]{16})-([0-9a-f]{2})(?:-.*)?\Z")
_TRACESTATE = re.compile(r"[\x20-\x7e]{1,512}\Z")
_SAMPLED = 1
_LOW_64_BITS = (1 << 64) - 1


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


class TraceContext(msgspec.Struct, frozen=True):
    """Where a request stands in a distributed trace."""

    trace_id: int
    span_id: int
    """The id of our own span."""
    parent_id: int | None
    """The id of the caller's span; None where the trace begins here."""
    sampled: bool
    state: str = ""
    """The header `tracestate`."""

    @property
    def headers(self) -> TraceHeaders:
        """The headers for a remote server: our span is the parent of its span."""
        flags = _SAMPLED if self.sampled else 0
        return TraceHeaders(f"00-{self.trace_id:032x}-{self.span_id:016x}-{flags:02x}", self.state)


def trace_context(headers: Mapping[str, str], ratio: float | None, *, parent_based: bool = True) -> TraceContext | None:
    """The trace context of a request with `headers`; None if it is not traced.

    `ratio`: share of the traces that begin here and are recorded. `parent_based`: a caller's own decision is honoured;
    otherwise the share decides about its traces, too. None: nothing is
    traced here, and a caller's trace goes on to tiers elsewhere as if we were not there. What is no `traceparent` is
    no trace (a version of the future is read as far as it is known).
    """
    traceparent = headers.get("traceparent")
    matched = None if traceparent is None else _TRACEPARENT.match(traceparent)
    if matched is None:
        return None if ratio is None else _begun(ratio)
    trace_id, parent_id, sampled = int(matched[1], 16), int(matched[2], 16), bool(int(matched[3], 16) & _SAMPLED)
    state = headers.get("tracestate", "")
    state = state if _TRACESTATE.match(state) else ""
    if ratio is None:
        return TraceContext(trace_id, parent_id, None, sampled, state)
    if not parent_based:
        sampled = _is_sampled(trace_id, ratio)
    return TraceContext(trace_id, new_span_id(), parent_id, sampled, state)


def new_span_id() -> int:
    """64 random bits, not all zero."""
    return random.getrandbits(64) or 1


def _begun(ratio: float) -> TraceContext:
    trace_id = random.getrandbits(128) or 1
    return TraceContext(trace_id, new_span_id(), None, _is_sampled(trace_id, ratio))


def _is_sampled(trace_id: int, ratio: float) -> bool:
    """As OpenTelemetry's TraceIdRatioBased draws, so that all services with one ratio record the same traces."""
    return trace_id & _LOW_64_BITS < ratio * (1 << 64)
