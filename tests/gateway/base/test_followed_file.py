"""A followed file: changes are seen once, what is refused changes nothing and is said, and no half file is read."""

import asyncio
import threading
from pathlib import Path

import msgspec
import pytest

from gateway.base.stores.followed_file import FollowedFile
from inference_core.io.files import atomic_file


class Follower:
    """A process's view of the file: what it took, with None for a removal."""

    def __init__(self, path: Path | None) -> None:
        self.taken: list[dict[str, int] | None] = []
        self.threads: set[int] = set()
        self.file = FollowedFile(path, self._take, "figures", lambda: self.taken.append(None))

    def _take(self, content: bytes) -> None:
        self.threads.add(threading.get_ident())
        self.taken.append(msgspec.json.decode(content, type=dict[str, int]))


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "folder" / "figures.json"


def put(path: Path, content: bytes) -> None:
    with atomic_file(path) as file:
        file.write(content)


def test_every_replacement_by_another_is_taken_once_and_one_of_its_own_never(path: Path) -> None:
    ours, other = Follower(path), Follower(path)
    ours.file.replace({"a": 1})
    for number in (2, 3):
        other.file.refresh()
        other.file.refresh()
        put(path, b'{"a": %d}' % number)
    ours.file.refresh()
    other.file.refresh()
    assert ours.taken == [{"a": 3}]
    assert other.taken == [{"a": 1}, {"a": 2}, {"a": 3}]


@pytest.mark.parametrize("content", [b"", b"{", b'{"a": "x"}', b"\xff"])
def test_what_is_refused_changes_nothing_and_is_said_once(
    path: Path, content: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    follower = Follower(path)
    put(path, b'{"a": 1}')
    follower.file.refresh()
    put(path, content)
    follower.file.refresh()
    follower.file.refresh()
    assert follower.taken == [{"a": 1}]
    (line,) = caplog.messages
    assert line.startswith(f"figures stay as they are: {path}: ")
    put(path, b'{"a": 2}')
    follower.file.refresh()
    assert follower.taken == [{"a": 1}, {"a": 2}]


def test_a_file_that_cannot_be_read_is_said_once_and_tried_again(path: Path, caplog: pytest.LogCaptureFixture) -> None:
    follower = Follower(path)
    path.mkdir(parents=True)
    follower.file.refresh()
    follower.file.refresh()
    assert follower.taken == []
    assert len(caplog.messages) == 1
    path.rmdir()
    put(path, b'{"a": 1}')
    follower.file.refresh()
    assert follower.taken == [{"a": 1}]


def test_no_file_is_said_at_the_first_look_and_when_it_is_removed(path: Path) -> None:
    follower = Follower(path)
    follower.file.refresh()
    follower.file.refresh()
    assert follower.taken == [None]
    put(path, b'{"a": 1}')
    follower.file.refresh()
    path.unlink()
    follower.file.refresh()
    follower.file.refresh()
    assert follower.taken == [None, {"a": 1}, None]


def test_without_a_path_nothing_is_written_or_read() -> None:
    follower = Follower(None)
    follower.file.replace({"a": 1})
    follower.file.refresh()
    assert follower.taken == [None]


def test_a_replacement_that_fails_leaves_the_file_and_what_is_followed(path: Path) -> None:
    follower, other = Follower(path), Follower(path)
    put(path, b'{"a": 1}')
    follower.file.refresh()
    with pytest.raises(TypeError):
        follower.file.replace(object())
    other.file.refresh()
    follower.file.refresh()
    assert follower.taken == other.taken == [{"a": 1}]
    assert [entry.name for entry in path.parent.iterdir()] == [path.name]


def test_readers_of_a_file_that_is_replaced_all_the_time_see_whole_files_alone(
    path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    follower, writer = Follower(path), FollowedFile(path, lambda content: None, "figures")
    numbers = range(100)

    def write() -> None:
        for number in numbers:
            writer.replace({str(i): number for i in range(50)})

    thread = threading.Thread(target=write)
    thread.start()
    while thread.is_alive():
        follower.file.refresh()
    thread.join()
    follower.file.refresh()
    seen = [set(taken.values()) for taken in follower.taken if taken is not None]
    assert seen == sorted(seen, key=min)
    assert all(len(numbers_of_a_file) == 1 for numbers_of_a_file in seen)
    assert seen[-1] == {99}
    assert caplog.messages == []


@pytest.mark.parametrize("in_thread", [False, True])
async def test_following_takes_a_change_where_it_says(path: Path, in_thread: bool) -> None:
    follower = Follower(path)
    work = follower.file.follow_in_thread(0.0) if in_thread else follower.file.follow(0.0)
    following = asyncio.create_task(work)
    put(path, b'{"a": 1}')
    while {"a": 1} not in follower.taken:  # noqa: ASYNC110 - what is taken in a thread sets no event
        await asyncio.sleep(0)
    following.cancel()
    assert (threading.get_ident() in follower.threads) is not in_thread
