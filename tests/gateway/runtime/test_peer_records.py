"""The records of other workers of one port: found wherever they are, also while they move into the database."""

from typing import cast

import pytest

from gateway.operations.worker_answers import PeerRecords
from gateway.runtime.peers import Peers
from quality.ledger.ledger import Ledger
from quality.records.record import Recorded, encoded
from tests.quality.store.records import make_record


class Database:
    """The ledger of a worker that has no record of its own; `stored`: what is in the database."""

    def __init__(self) -> None:
        self.stored: dict[str, Recorded] = {}
        self.is_away = False

    async def find(self, request_id: str) -> Recorded | None:
        if self.is_away:
            raise OSError("the database is down")
        return self.stored.get(request_id)


class OtherWorker:
    """The only other worker: it stores the record that it has, and forgets it, just before it is asked."""

    def __init__(self, database: Database, record: Recorded, *, stores: bool) -> None:
        self._database, self._record, self._stores = database, record, stores

    async def ask(self, question: str, argument: str) -> dict[int, bytes]:
        assert question == "record"
        if not self._stores:
            return {1: encoded(self._record) if argument == self._record.request_id else b""}
        self._database.stored[self._record.request_id] = self._record
        return {1: b""}


def records_of(database: Database, worker: OtherWorker) -> PeerRecords:
    return PeerRecords(cast(Ledger, database), cast(Peers, worker))


@pytest.mark.parametrize("stores", [True, False], ids=["stored meanwhile", "still waiting there"])
async def test_a_record_of_another_worker_is_found(stores: bool) -> None:
    database, record = Database(), make_record("mine")
    found = await records_of(database, OtherWorker(database, record, stores=stores)).find("mine")
    assert found is not None
    assert found.request_id == "mine"


async def test_a_record_of_no_worker_is_none_and_not_known_while_the_database_is_down() -> None:
    database = Database()
    records = records_of(database, OtherWorker(database, make_record("mine"), stores=False))
    assert await records.find("other") is None
    database.is_away = True
    assert await records.find("mine") is not None
    with pytest.raises(OSError, match="down"):
        await records.find("other")
