"""The result of asking one replica, as records and statistics report it."""

from typing import Literal

import msgspec

TryOutcome = Literal["answered", "failed", "overtaken"]
ReplicaCondition = Literal["serving", "paused", "ejected", "probing"]


class ReplicaTry(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One replica asked for one request; `seconds` until its first delta, its failure, or a faster replica's first
    delta."""

    replica: str
    outcome: TryOutcome
    seconds: float
    error: str | None = None


class ReplicaStatus(msgspec.Struct, frozen=True, kw_only=True):
    """One replica as its balancer sees it; the mean `weight` of a tier's replicas is 1.

    `condition`: `serving`; `paused` at the server's request; `ejected`; `probing`, ejected until one trial request has
    succeeded. `available_in_seconds`: time until the next request may go there. `elsewhere`: its requests from other
    clients, if it reports them. `ttft_seconds`: peak-sensitive moving average of the time to the first token, None
    before the first. `requests` and `failures` count since start.
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
