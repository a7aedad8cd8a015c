"""Whether a line that failed is asked again, and when."""

import random

import msgspec

from gateway.errors import ApiError

LONGEST_BACKOFF_SECONDS = 300.0
# Ours or the moment's fault: the same request may well be answered later.
_TRANSIENT = frozenset((408, 500, 502, 503, 504))


class Again(msgspec.Struct, frozen=True):
    """Ask again in so many `seconds`. `counted`: it was an attempt. `batch`: no other line would fare better before."""

    seconds: float
    counted: bool = True
    batch: bool = False


def again(failure: ApiError, attempts: int, most: int, backoff_seconds: float) -> Again | None:
    """What to do after so many `attempts` of `most`; None if the failure is the line's answer.

    A caller who is over the limits of a key was refused at admission, which is no attempt; all lines of the batch wait.
    One whose budget is used up, or whose request is larger than the limit, would be refused again.
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
