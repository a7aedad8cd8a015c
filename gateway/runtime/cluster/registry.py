"""The registry of replicas: a named actor of the cluster where replicas announce themselves and gateways find them."""

import time
from typing import Literal

import msgspec

from inference_core.transport.tcp import CoreAddress

NAME, NAMESPACE = "aio-registry", "aio"
ANNOUNCE_SECONDS = 1.0
FORGET_SECONDS = 10.0


Role = Literal["both", "prefill", "decode"]
"""Roles of a replica: whole requests; prompts that others answer; answers whose long prompts others compute."""


class ReplicaAnnouncement(msgspec.Struct, frozen=True, kw_only=True):
    """A replica's announcement."""

    name: str
    """A name that is unique, also over time."""
    node: str
    """Where it runs, as process `pid`."""
    pid: int
    address: CoreAddress
    leaving: bool = False
    """Whether it takes no new requests."""
    role: Role = "both"
    own_knobs: frozenset[str] = frozenset()
    """Names of the knobs set by its pool, left alone by changes for all."""


class Registry:
    """Forgets a replica that has not announced itself for `FORGET_SECONDS`. Starts empty."""

    def __init__(self) -> None:
        self._heard: dict[str, dict[str, tuple[float, ReplicaAnnouncement]]] = {}

    def announce(self, service: str, replica: ReplicaAnnouncement) -> None:
        """Record that a replica of `service` is alive."""
        self._heard.setdefault(service, {})[replica.name] = (time.monotonic(), replica)

    def replicas(self, service: str) -> list[ReplicaAnnouncement]:
        heard, now = self._heard.get(service, {}), time.monotonic()
        for name, (at, _) in list(heard.items()):
            if now - at > FORGET_SECONDS:
                del heard[name]
        return [replica for _, replica in heard.values()]
