"""The backlog: which durable records the database does not have yet, and which journal segments they still need."""

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
    """Durable records in the order they are to be stored; about 300 bytes each, the records stay on disk."""

    def __init__(self) -> None:
        self._queue: deque[Entry] = deque()
        self._index: dict[str, Location] = {}
        self._needed: dict[Path, int] = {}

    def __len__(self) -> int:
        """Records yet to be stored, without the rejected ones."""
        return len(self._queue)

    def add(self, entries: Iterable[Entry]) -> None:
        """Append records that have become durable."""
        for entry in entries:
            self._queue.append(entry)
            self._index[entry.request_id] = entry.location
            self.watch(entry.location.segment, 1)

    def watch(self, segment: Path, needed: int) -> None:
        """Count `needed` more frames of `segment` that must not be deleted; with 0 it only becomes deletable."""
        self._needed[segment] = self._needed.get(segment, 0) + needed

    def find(self, request_id: str) -> Location | None:
        """Where the record lies, if it is durable and not stored."""
        return self._index.get(request_id)

    def head(self, count: int) -> list[Entry]:
        """The `count` records to be stored next, fewer if there are fewer."""
        return list(islice(self._queue, count))

    def stored(self, count: int) -> None:
        """The first `count` records are in the database."""
        for _ in range(count):
            entry = self._queue.popleft()
            if self._index.get(entry.request_id) == entry.location:
                del self._index[entry.request_id]
            self._needed[entry.location.segment] -= 1

    def reject_first(self) -> None:
        """The database will not take the first record: it can still be found, and its segment stays."""
        self._queue.popleft()

    def deletable(self, growing: Collection[Path]) -> list[Path]:
        """Segments of which nothing is needed any more, without those that are still `growing`."""
        return [segment for segment, needed in self._needed.items() if needed == 0 and segment not in growing]

    def forget(self, segments: Iterable[Path]) -> None:
        """These segments have been deleted."""
        for segment in segments:
            del self._needed[segment]

    def needs_folder(self, folder: Path) -> bool:
        """Whether a segment in `folder` has not been deleted."""
        return any(segment.parent == folder for segment in self._needed)
