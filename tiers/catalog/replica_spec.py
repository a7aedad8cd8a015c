"""Replicas of a remote tier as typed data: their addresses and API keys, and the load balancing over them; and how the
key of a server is read."""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Annotated

import msgspec
from msgspec import Meta

from inference_core.io.files import SecretError, secret_of
from tiers.errors import CatalogError

PerMinute = Annotated[int, Meta(ge=1, le=1_000_000_000)]


class ApiKeySpec(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One of several API keys for the same server: `env` names the environment variable that holds it."""

    env: str
    requests_per_minute: PerMinute | None = None
    """Most requests that this gateway process sends with it in any 60 seconds; None for no limit."""
    tokens_per_minute: PerMinute | None = None
    """Most tokens of prompts and answers that this process sends with it in any 60 seconds; None for no limit."""


class ReplicaSpec(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One of a model's servers, or one of several keys for a server."""

    base_url: str
    weight: Annotated[float, Meta(gt=0, le=1000)] = 1.0
    """Its capacity relative to the others."""
    api_key_env: str | None = None
    """The environment variable with the key; it takes precedence over the tier's."""
    requests_per_minute: PerMinute | None = None
    """See `ApiKeySpec`."""
    tokens_per_minute: PerMinute | None = None
    """See `ApiKeySpec`."""

    @property
    def is_limited(self) -> bool:
        """Whether there is a limit per minute."""
        return self.requests_per_minute is not None or self.tokens_per_minute is not None


def server_key(environ: Mapping[str, str], variable: str | None) -> str:
    """Return the key of a server, in the environment variable or in the file that its `_FILE` form names; "" if it is
    not set. Raises `CatalogError` for one that no header can hold: of a key with a line break, the rest would be a
    header of its own."""
    if variable is None:
        return ""
    try:
        key = secret_of(environ, variable)
    except SecretError as error:
        raise CatalogError(str(error)) from None
    if not key.isprintable():
        raise CatalogError(
            f"the key in {variable} has a line break or another character that no key has inside: give one key, in one "
            "line"
        )
    return key


def replica_names(replicas: Sequence[ReplicaSpec]) -> list[str]:
    """Return what each replica is called in records and metrics: its address, and the variable of its key where several
    share the address."""
    urls = Counter(replica.base_url for replica in replicas)
    return [
        replica.base_url if urls[replica.base_url] == 1 else f"{replica.base_url} ({replica.api_key_env or 'no key'})"
        for replica in replicas
    ]


class BalancingSpec(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How requests are balanced over replicas, and when one is ejected; the bounds are enforced."""

    affinity_bytes: Annotated[
        int, Meta(ge=0, le=65_536, description="Bytes at a prompt's beginning that choose its replica. 0: no affinity.")
    ] = 2048
    affinity_load: Annotated[
        float,
        Meta(ge=1, le=100, description="A preferred replica gets at most this multiple of its fair share of requests."),
    ] = 1.25
    affinity_wait: Annotated[
        float,
        Meta(
            ge=1,
            le=1000,
            description="The longest wait for a preferred replica, as a multiple of the wait for another.",
        ),
    ] = 3.0
    ttft_decay_seconds: Annotated[
        float, Meta(gt=0, le=3600, description="After this many seconds, a measured time to first token counts 1/e.")
    ] = 10.0
    consecutive_failures: Annotated[
        int, Meta(ge=1, le=1000, description="This many failures in a row eject a replica.")
    ] = 3
    error_excess: Annotated[
        float, Meta(gt=0, le=1, description="A share of failures this much above the others' ejects a replica.")
    ] = 0.3
    error_requests: Annotated[
        int, Meta(ge=1, le=100_000, description="AIO needs this many recent requests to judge a share of failures.")
    ] = 20
    error_window_seconds: Annotated[
        float, Meta(gt=0, le=3600, description="After this many seconds, an outcome counts 1/e in that share.")
    ] = 30.0
    ejection_seconds: Annotated[
        float, Meta(gt=0, le=3600, description="Seconds of the first ejection. Each further one lasts twice as long.")
    ] = 5.0
    max_ejection_seconds: Annotated[float, Meta(gt=0, le=86_400, description="The longest ejection in seconds.")] = (
        300.0
    )
    max_attempts: Annotated[
        int, Meta(ge=1, le=16, description="The most replicas that AIO asks for one request. It asks each one once.")
    ] = 3
    retry_share: Annotated[
        float, Meta(ge=0, le=1, description="The most further attempts and hedges, as a share of all requests.")
    ] = 0.1
    retry_burst: Annotated[
        int, Meta(ge=0, le=10_000, description="How many further attempts may come at once, beyond that share.")
    ] = 10
    first_token_timeout_seconds: Annotated[
        float, Meta(gt=0, le=3600, description="A replica fails if it gives no first token within this many seconds.")
    ] = 60.0
    queue_poll_seconds: Annotated[
        float, Meta(ge=0, le=60, description="Seconds between two looks at a server's queue. 0: AIO never looks.")
    ] = 1.0
    hedging: Annotated[
        bool, Meta(description="Whether AIO asks a second replica if a first token takes longer than 95 of 100 did.")
    ] = False
