"""What became of one replica that was asked, as records and statistics tell it."""

from typing import Literal

import msgspec

TryOutcome = Literal["answered", "failed", "overtaken"]
ReplicaCondition = Literal["serving", "paused", "ejected", "probing"]


class ReplicaTry(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One replica asked for one request; `seconds` until its first delta, its failure, or until another was faster."""

    replica: str
    outcome: TryOutcome
    seconds: float
    error: str | None = None


class ReplicaStatus(msgspec.Struct, frozen=True, kw_only=True):
    """One replica as its balancer sees it; the mean `weight` of a tier's replicas is 1.

    `condition`: `serving`; `paused`, as it asked to be left alone; `ejected`; `probing`, ejected until one request has
    shown it well. `available_in_seconds`: when the next request may go there. `elsewhere`: requests that it has of
    others, where it tells. `ttft_seconds`: peak-sensitive moving average of the time to the first token, None before
    the first. `requests` and `failures` count since start.
    """

    replica: str
    weight: float
    condition: ReplicaCondition
    available_in_seconds: float
    outstanding: int
    elsewhere: int = 0
    ttft_seconds: float | None
    consecutive_failures: int
    requests: int
    failures: int
