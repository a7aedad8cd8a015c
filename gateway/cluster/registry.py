"""Where replicas say that they serve and gateways look for them: a named actor of the cluster, with a short memory."""

import time
from collections.abc import Callable

from gateway.cluster.announced import Announced

NAME, NAMESPACE = "aio-registry", "aio"
ANNOUNCE_SECONDS = 1.0
FORGET_SECONDS = 10.0


class Registry:
    """Who has not announced itself for `FORGET_SECONDS` is not there any more. Begins empty wherever it is started."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._heard: dict[str, dict[str, tuple[float, Announced]]] = {}

    def announce(self, service: str, replica: Announced) -> None:
        """A replica of `service` says that it is there."""
        self._heard.setdefault(service, {})[replica.name] = (self._clock(), replica)

    def replicas(self, service: str) -> list[Announced]:
        """Those of `service` that are there."""
        known, now = self._heard.get(service, {}), self._clock()
        for name, (at, _) in list(known.items()):
            if now - at > FORGET_SECONDS:
                del known[name]
        return [replica for _, replica in known.values()]
