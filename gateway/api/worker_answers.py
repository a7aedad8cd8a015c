"""What a gateway process tells the others behind its port, and its supervisor."""

import os
import signal

import msgspec

from gateway.parts import Parts
from gateway.peers.peer_records import PeerRecords
from gateway.peers.peers import Answer


def worker_answers(parts: Parts, records: PeerRecords) -> dict[str, Answer]:
    """By question: whether it is `ready`, its own `metrics` and service `levels`, and a `record` that the database does
    not hold yet; `reload` makes it read the catalogue again, as SIGHUP does."""

    async def ready(_: str) -> bytes:
        # A remote tier that is down keeps nobody from starting; a core of our own is about to be there.
        missing = [*parts.not_ready, *(name for name in parts.away if name.startswith("core"))]
        return (", ".join(missing) or f"ready {os.getpid()}").encode()

    async def metrics(_: str) -> bytes:
        await parts.refresh_metrics()
        return parts.metrics.own_exposition(list(parts.routing.tiers.values()))

    async def levels(_: str) -> bytes:
        return msgspec.msgpack.encode(parts.metrics.levels.figures())

    async def reload(_: str) -> bytes:
        os.kill(os.getpid(), signal.SIGHUP)
        return b""

    return {"ready": ready, "metrics": metrics, "levels": levels, "record": records.answer, "reload": reload}
