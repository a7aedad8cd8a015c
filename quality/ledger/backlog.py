"""The backlog: durable records that are not in the database yet, and the journal segments that they need."""

from collections import deque
from collections.abc import Collection, Iterable
from itertools import islice
from pathlib import Path
from typing import NamedTuple

from quality.ledger.journal_segment import Location


class Entry(NamedTuple):
    """A durable record on its way to the database; `since` is monotonic seconds."""

    request_id: str
    location: Location
    since: float


class Backlog:
    """Durable records in the order of storing; about 300 bytes each, because the records themselves stay on disk."""

    def __init__(self) -> None:
        self._queue: deque[Entry] = deque()
        self._index: dict[str, Location] = {}
        self._needed: dict[Path, int] = {}

    def __len__(self) -> int:
        """The number of records yet to be stored, without rejected ones."""
        return len(self._queue)

    def add(self, entries: Iterable[Entry]) -> None:
        """Append records that have become durable."""
        for entry in entries:
            self._queue.append(entry)
            self._index[entry.request_id] = entry.location
            self.watch(entry.location.segment, 1)

    def watch(self, segment: Path, needed: int) -> None:
        """Note that `needed` more frames of `segment` must be kept; with 0 the segment only becomes deletable."""
        self._needed[segment] = self._needed.get(segment, 0) + needed

    def find(self, request_id: str) -> Location | None:
        """Return the location of a durable record that is not stored yet."""
        return self._index.get(request_id)

    def head(self, count: int) -> list[Entry]:
        """Return the `count` records to be stored next, or fewer."""
        return list(islice(self._queue, count))

    def stored(self, count: int) -> None:
        """Remove the first `count` records, which are now in the database."""
        for _ in range(count):
            entry = self._queue.popleft()
            if self._index.get(entry.request_id) == entry.location:
                del self._index[entry.request_id]
            self._needed[entry.location.segment] -= 1

    def reject_first(self) -> None:
        """Mark the first record as rejected by the database: it can still be found, and its segment stays."""
        self._queue.popleft()

    def deletable(self, growing: Collection[Path]) -> list[Path]:
        """Return the segments that are no longer needed, without those that are still `growing`."""
        return [segment for segment, needed in self._needed.items() if needed == 0 and segment not in growing]

    def forget(self, segments: Iterable[Path]) -> None:
        """Forget deleted segments."""
        for segment in segments:
            del self._needed[segment]

    def needs_folder(self, folder: Path) -> bool:
        """Return whether a segment in `folder` has not been deleted."""
        return any(segment.parent == folder for segment in self._needed)
