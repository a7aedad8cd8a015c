"""A gateway process's answers to the others behind its port and to its supervisor, and past requests of all of these
processes, including those not yet in the database.
"""

import os
import signal

import msgspec
from sqlalchemy.exc import SQLAlchemyError

from gateway.operations.running import Operations
from gateway.runtime.peers import YES, Answer, Peers
from quality.ledger.ledger import Ledger
from quality.records.record import Recorded, decoded, encoded
from tiers.remote.refusals import REFUSALS


class PeerRecords:
    """A `RecordStore` over this process's ledger, the database, and the other workers' journals."""

    def __init__(self, ledger: Ledger, peers: Peers) -> None:
        self._ledger, self._peers = ledger, peers

    async def find(self, request_id: str) -> Recorded | None:
        """Return the record. Raises what the ledger raises while the database is down and no journal has it."""
        away: Exception | None = None
        try:
            if (record := await self._ledger.find(request_id)) is not None:
                return record
        except (SQLAlchemyError, OSError) as error:
            away = error
        replies = await self._peers.ask("record", request_id)
        for reply in filter(None, replies.values()):
            return decoded(reply)
        if away is not None:
            raise away
        # Its worker may have stored it, and so forgotten it, between the two questions.
        return await self._ledger.find(request_id)

    def append(self, record: Recorded) -> None:
        """See `RecordStore`: this process stores its own records only."""
        self._ledger.append(record)

    async def answer(self, request_id: str) -> bytes:
        """Answer another worker: a record of this process's journal, or nothing."""
        record = self._ledger.find_waiting(request_id)
        return b"" if record is None else encoded(record)


WITH_PRIVATE = "private"
"""The argument of the question `metrics` that asks for the names and costs too."""


def worker_answers(operations: Operations, records: PeerRecords) -> dict[str, Answer]:
    """Return the answers by question: whether it is `ready`, and whether it `asks for keys`; its own `metrics` and
    service `levels`, and a `record` that the database does not hold yet; the `refusals` of servers that it knows, and
    to `forget` them; `reload` makes it reload the catalogue, as SIGHUP does."""

    async def ready(_: str) -> bytes:
        # A remote tier that is down does not prevent a start; a local core will be up soon.
        readiness = operations.readiness
        missing = [*readiness.not_ready, *(name for name in readiness.away if name.startswith("core"))]
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
