"""The journal reports exactly what is durable, shares fsyncs, and never loses silently when the disk fails."""

import os
import threading
from collections.abc import Iterator
from pathlib import Path
from queue import Queue

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from quality.ledger.journal import (
    HEADER_BYTES,
    Committed,
    Journal,
    JournalFullError,
    frame,
    read_payload,
    recover,
)
from tests.examples import examples
from tests.polling import until


class Disk:
    """Stands in for fdatasync: can be held, or made to fail a number of times."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.syncs = 0
        self.failures_left = 0
        self.entered = threading.Semaphore(0)
        self._open = threading.Event()
        self._open.set()
        self._real = os.fdatasync
        monkeypatch.setattr("quality.ledger.journal.os.fdatasync", self._sync)

    def hold(self) -> None:
        self._open.clear()

    def release(self) -> None:
        self._open.set()

    def _sync(self, descriptor: int) -> None:
        self.entered.release()
        assert self._open.wait(30)
        self.syncs += 1
        if self.failures_left:
            self.failures_left -= 1
            raise OSError(5, "Input/output error")
        self._real(descriptor)


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> Iterator[Disk]:
    disk = Disk(monkeypatch)
    yield disk
    disk.release()


def keys(committed: Committed) -> list[str]:
    return [key for key, _ in committed.frames]


def started(folder: Path) -> tuple[Journal, Queue[Committed]]:
    """A journal that writes into `folder`, and what it reports."""
    commits: Queue[Committed] = Queue()
    journal = Journal(folder, commits.put)
    journal.start()
    return journal, commits


def payloads_in(folder: Path) -> list[bytes]:
    return [payload for path in sorted(folder.iterdir()) for _, payload in recover(path).frames]


def test_a_payload_is_reported_with_where_it_can_be_read(tmp_path: Path) -> None:
    journal, commits = started(tmp_path)

    journal.append("a", b"payload")

    [(key, location)] = commits.get(timeout=30).frames
    assert (key, read_payload(location)) == ("a", b"payload")
    journal.close()


def test_nothing_is_reported_before_its_fsync_has_returned(tmp_path: Path, disk: Disk) -> None:
    journal, commits = started(tmp_path)
    disk.hold()

    journal.append("a", b"payload")

    assert disk.entered.acquire(timeout=30)
    assert commits.empty()
    disk.release()
    assert keys(commits.get(timeout=30)) == ["a"]
    journal.close()


def test_appends_during_a_hanging_fsync_are_already_in_the_file(tmp_path: Path, disk: Disk) -> None:
    journal, _ = started(tmp_path)
    disk.hold()
    journal.append("a", b"first")
    assert disk.entered.acquire(timeout=30)

    journal.append("b", b"second")

    [segment] = tmp_path.iterdir()
    until(lambda: segment.read_bytes() == frame(b"first") + frame(b"second"))
    disk.release()
    journal.close()


def test_everything_that_arrives_during_an_fsync_shares_the_next(tmp_path: Path, disk: Disk) -> None:
    journal, commits = started(tmp_path)
    disk.hold()
    journal.append("first", b"")
    assert disk.entered.acquire(timeout=30)
    later = [str(n) for n in range(100)]
    for key in later:
        journal.append(key, key.encode())

    disk.release()

    assert keys(commits.get(timeout=30)) == ["first"]
    assert keys(commits.get(timeout=30)) == later
    assert disk.syncs == 2
    journal.close()


def test_close_commits_what_is_still_pending(tmp_path: Path) -> None:
    journal, _ = started(tmp_path)
    for n in range(1000):
        journal.append(str(n), str(n).encode())

    assert journal.close() == 0

    assert payloads_in(tmp_path) == [str(n).encode() for n in range(1000)]


@settings(max_examples=examples(25), deadline=None)
@given(st.lists(st.binary(max_size=200), max_size=30), st.integers(1, 400))
def test_segments_together_hold_everything_in_order_whatever_their_size(
    tmp_path_factory: pytest.TempPathFactory, written: list[bytes], segment_bytes: int
) -> None:
    folder = tmp_path_factory.mktemp("journal")
    commits: Queue[Committed] = Queue()
    journal = Journal(folder, commits.put, segment_bytes=segment_bytes, commit_interval=0)
    journal.start()

    for n, payload in enumerate(written):
        journal.append(str(n), payload)
    journal.close()

    assert payloads_in(folder) == written
    locations = [location for commit in list(commits.queue) for _, location in commit.frames]
    assert [read_payload(location) for location in locations] == written
    seen: set[Path] = set()
    complete: set[Path] = set()
    for commit in list(commits.queue):
        segments = {location.segment for _, location in commit.frames}
        assert not segments & complete, "a segment that had been called complete has grown"
        seen |= segments
        complete = seen - commit.growing


def test_a_full_segment_is_completed(tmp_path: Path) -> None:
    commits: Queue[Committed] = Queue()
    journal = Journal(tmp_path, commits.put, segment_bytes=HEADER_BYTES + 10)
    journal.start()

    journal.append("a", b"more than ten bytes")

    assert commits.get(timeout=30).growing == frozenset()
    journal.append("b", b"x")
    assert commits.get(timeout=30).growing == {tmp_path / "00000002.journal"}
    journal.close()


def test_a_segment_filled_during_an_fsync_counts_as_growing_until_it_is_reported(tmp_path: Path, disk: Disk) -> None:
    commits: Queue[Committed] = Queue()
    journal = Journal(tmp_path, commits.put, segment_bytes=20)
    journal.start()
    disk.hold()
    journal.append("a", bytes(20))
    assert disk.entered.acquire(timeout=30)
    for key in ("b", "c"):
        journal.append(key, bytes(10))
    second = tmp_path / "00000002.journal"
    until(lambda: second.exists() and second.stat().st_size == 2 * len(frame(bytes(10))))

    disk.release()

    assert commits.get(timeout=30).growing == {second}
    assert commits.get(timeout=30).growing == frozenset()
    journal.close()


def test_a_disk_that_takes_a_few_bytes_at_a_time_gets_them_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write = os.pwrite
    monkeypatch.setattr("quality.ledger.journal.os.pwrite", lambda fd, data, position: write(fd, data[:7], position))
    journal, _ = started(tmp_path)
    journal.append("a", b"a payload of several pieces")
    journal.append("b", b"and another one")
    journal.close()

    assert payloads_in(tmp_path) == [b"a payload of several pieces", b"and another one"]


def test_rotation_completes_the_segment_after_what_was_appended_before(tmp_path: Path) -> None:
    journal, commits = started(tmp_path)
    journal.append("a", b"x")

    asked = journal.rotate()

    seen: list[str] = []
    while (commit := commits.get(timeout=30)).rotations < asked:
        seen += keys(commit)
    assert seen + keys(commit) == ["a"]
    assert commit.growing == frozenset()
    journal.close()


def test_a_batch_that_the_disk_refuses_is_written_again_to_a_fresh_segment(tmp_path: Path, disk: Disk) -> None:
    journal, commits = started(tmp_path)
    journal.append("a", b"a")
    assert keys(commits.get(timeout=30)) == ["a"]

    disk.failures_left = 2
    journal.append("b", b"b")

    committed = commits.get(timeout=30)
    assert keys(committed) == ["b"]
    assert committed.growing == {tmp_path / "00000003.journal"}
    assert (journal.failures, journal.failure, journal.pending_bytes) == (2, None, 0)
    journal.close()
    assert payloads_in(tmp_path) == [b"a", b"b"]


def test_a_full_disk_costs_nothing_once_there_is_room_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    journal, commits = started(tmp_path)
    journal.append("a", b"a")
    assert keys(commits.get(timeout=30)) == ["a"]
    failures_left = 2
    write = os.pwrite

    def write_some_and_fail(descriptor: int, data: memoryview, position: int) -> int:
        nonlocal failures_left
        if len(data) > 3 and failures_left:
            return write(descriptor, data[:-3], position)
        if failures_left:
            failures_left -= 1
            raise OSError(28, "No space left on device")
        return write(descriptor, data, position)

    monkeypatch.setattr("quality.ledger.journal.os.pwrite", write_some_and_fail)
    journal.append("b", b"a longer payload")

    assert keys(commits.get(timeout=30)) == ["b"]
    assert journal.failures == 2
    journal.close()
    assert payloads_in(tmp_path) == [b"a", b"a longer payload"]


def test_closing_survives_a_disk_that_refuses_twice(tmp_path: Path, disk: Disk) -> None:
    journal, _ = started(tmp_path)
    disk.failures_left = 2
    journal.append("a", b"a")

    assert journal.close() == 0

    assert payloads_in(tmp_path) == [b"a"]


def test_a_refusing_disk_is_named_while_it_refuses(tmp_path: Path, disk: Disk) -> None:
    journal, commits = started(tmp_path)
    disk.failures_left = 10**6
    journal.append("a", b"a")
    for _ in range(2):
        assert disk.entered.acquire(timeout=30)

    assert journal.failure is not None
    assert "Input/output error" in journal.failure
    assert commits.empty()
    disk.failures_left = 0
    assert keys(commits.get(timeout=30)) == ["a"]
    journal.close()


def test_closing_on_a_refusing_disk_tells_how_much_is_lost(tmp_path: Path, disk: Disk) -> None:
    journal, _ = started(tmp_path)
    disk.failures_left = 10**6
    journal.append("a", b"a")
    journal.append("b", b"b")

    assert journal.close() == 2


def test_a_stalled_disk_bounds_memory_and_says_so_instead_of_dropping(tmp_path: Path, disk: Disk) -> None:
    journal = Journal(tmp_path, lambda _: None, max_pending_bytes=1000)
    journal.start()
    disk.hold()
    for n in range(10):
        journal.append(str(n), bytes(100))

    with pytest.raises(JournalFullError, match="1000 bytes already wait"):
        journal.append("one too many", b"x")

    assert journal.pending_bytes == 1000
    disk.release()
    assert journal.close() == 0
    assert payloads_in(tmp_path) == [bytes(100)] * 10


def test_the_journal_is_readable_by_its_owner_only(tmp_path: Path) -> None:
    journal, _ = started(tmp_path)
    journal.append("a", b"a text")
    journal.close()

    assert [path.stat().st_mode & 0o777 for path in tmp_path.iterdir()] == [0o600]
