"""A gateway process's answers to the others behind its port, and to its supervisor."""

import os
import signal

import msgspec

from gateway.operations.running import Operations
from gateway.runtime.peers.peer_records import PeerRecords
from gateway.runtime.peers.peers import YES, Answer
from tiers.remote.learned_refusals import REFUSALS

WITH_PRIVATE = "private"
"""The argument of the question `metrics` that asks for the names and costs too."""


def worker_answers(operations: Operations, records: PeerRecords) -> dict[str, Answer]:
    """Return the answers by question: whether it is `ready`, and whether it `asks for keys`; its own `metrics` and
    service `levels`, and a `record` that the database does not hold yet; the `refusals` of servers that it knows, and
    to `forget` them; `reload` makes it reload the catalogue, as SIGHUP does."""

    async def ready(_: str) -> bytes:
        # A remote tier that is down does not prevent a start; a local core will be up soon.
        missing = [*operations.not_ready, *(name for name in operations.away if name.startswith("core"))]
        return (", ".join(missing) or f"ready {os.getpid()}").encode()

    async def asks_for_keys(_: str) -> bytes:
        return YES if operations.access.tenancy.directory.asks_for_keys else b"no"

    async def metrics(which: str) -> bytes:
        await operations.refresh_metrics()
        return operations.metrics.own_exposition(
            list(operations.serving.routing.served.tiers.values()), private=which == WITH_PRIVATE
        )

    async def levels(_: str) -> bytes:
        return msgspec.msgpack.encode(operations.metrics.levels.figures())

    async def refusals(_: str) -> bytes:
        return msgspec.msgpack.encode(REFUSALS.listed())

    async def forget(tier: str) -> bytes:
        return str(REFUSALS.forget(tier or None)).encode()

    async def reload(_: str) -> bytes:
        os.kill(os.getpid(), signal.SIGHUP)
        return b""

    return {
        "ready": ready,
        "asks for keys": asks_for_keys,
        "metrics": metrics,
        "levels": levels,
        "record": records.answer,
        "refusals": refusals,
        "forget": forget,
        "reload": reload,
    }
