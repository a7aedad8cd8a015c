"""Past requests of all gateway processes behind one port: those of others are known before the database has them."""

from sqlalchemy.exc import SQLAlchemyError

from gateway.peers.peers import Peers
from quality.ledger.ledger import Ledger
from quality.records.any_record import Recorded, decoded, encoded


class PeerRecords:
    """A `RecordStore` over this process's ledger, the database, and what other workers have yet to store."""

    def __init__(self, ledger: Ledger, peers: Peers) -> None:
        self._ledger, self._peers = ledger, peers

    async def find(self, request_id: str) -> Recorded | None:
        """The record. Raises what the ledger raises while the database is away and no worker's journal has it."""
        away: Exception | None = None
        record = None
        try:
            record = await self._ledger.find(request_id)
        except (SQLAlchemyError, OSError) as error:
            away = error
        if record is None:
            replies = await self._peers.ask("record", request_id)
            record = next((decoded(reply) for reply in replies.values() if reply), None)
        if record is None and away is not None:
            raise away
        return record

    def append(self, record: Recorded) -> None:
        """See `RecordStore`: this process keeps its own."""
        self._ledger.append(record)

    async def answer(self, request_id: str) -> bytes:
        """What another worker is told: a record of this process's journal, or nothing."""
        record = self._ledger.find_waiting(request_id)
        return b"" if record is None else encoded(record)
