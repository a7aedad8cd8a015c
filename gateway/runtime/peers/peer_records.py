"""Past requests of all gateway processes behind one port, including those not yet in the database."""

from sqlalchemy.exc import SQLAlchemyError

from gateway.runtime.peers.peers import Peers
from quality.ledger.ledger import Ledger
from quality.records.record import Recorded, decoded, encoded


class PeerRecords:
    """A `RecordStore` over this process's ledger, the database, and the other workers' journals."""

    def __init__(self, ledger: Ledger, peers: Peers) -> None:
        self._ledger, self._peers = ledger, peers

    async def find(self, request_id: str) -> Recorded | None:
        """Return the record. Raises what the ledger raises while the database is down and no worker's journal has
        it."""
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
