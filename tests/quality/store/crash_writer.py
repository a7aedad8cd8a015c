"""A process that records requests as fast as it can and prints each id once it is durable, until it is killed."""

import asyncio
import itertools
import os
import sys
from pathlib import Path

from quality.ledger.ledger import Ledger
from quality.store.database import open_database
from tests.quality.store.records import make_record


async def write(journal_dir: Path, database_url: str) -> None:
    # Small segments, so that the kill may fall into a rotation or a deletion.
    ledger = Ledger(journal_dir, open_database(database_url), commit_interval=0.001, segment_bytes=20_000)
    await ledger.start()
    for n in itertools.count():
        burst = [f"{os.getpid()}-{n}-{i}" for i in range(8)]
        for request_id in burst:
            ledger.append(make_record(request_id))
        for request_id in burst:
            await ledger.recorded(request_id)
            print(request_id, flush=True)


asyncio.run(write(Path(sys.argv[1]), sys.argv[2]))
