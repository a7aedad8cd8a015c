"""Decides whether a failed line is retried, and when."""

import random

import msgspec

from gateway.base.errors import ApiError

LONGEST_BACKOFF_SECONDS = 300.0
# Transient failures or our own: a retry may succeed.
_TRANSIENT = frozenset((408, 500, 502, 503, 504))


class Again(msgspec.Struct, frozen=True):
    """Retry after `seconds`. `counted`: it counts as an attempt. `batch`: all lines of the batch would fail until
    then."""

    seconds: float
    counted: bool = True
    batch: bool = False


def again(failure: ApiError, attempts: int, most: int, backoff_seconds: float) -> Again | None:
    """Return what to do after `attempts` of `most`; None if the failure is the line's answer.

    A caller over its key's limits was rejected before any attempt; all lines of the batch wait. A caller without
    budget, or a request larger than the limit, would be rejected again.
    """
    if failure.body.code == "shutting_down":
        return Again(0.0, counted=False)
    if failure.status == 429:
        retry_after = failure.headers.get("retry-after")
        if retry_after is None or failure.body.code == "insufficient_quota":
            return None
        return Again(float(retry_after) * random.uniform(1.0, 1.25), counted=False, batch=True)
    if failure.status not in _TRANSIENT or attempts >= most:
        return None
    backoff = min(backoff_seconds * 2.0 ** (attempts - 1), LONGEST_BACKOFF_SECONDS)
    return Again(backoff * random.uniform(0.5, 1.0))
