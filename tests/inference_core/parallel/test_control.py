"""Commands and reports between a leader and its ranks: in order, authenticated, and no lost rank goes unnoticed."""

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from inference_core.errors import RankLostError
from inference_core.parallel.control import Followers, LeaderLink
from inference_core.parallel.leader import no_check
from inference_core.parallel.messages import (
    CopyBlocks,
    Failed,
    Joined,
    Ready,
    SequenceShare,
    StepCommand,
    Stop,
    UseThreads,
)
from inference_core.transport.framing import FrameError, FrameWriter

HOST = "127.0.0.1"
# A few more than a leader lets wait.
STRANGERS = 66


@contextmanager
def joined(*ranks: int) -> Iterator[tuple[Followers, list[LeaderLink]]]:
    followers = Followers(ranks, HOST)
    links: list[LeaderLink] = []
    joining = threading.Thread(target=lambda: links.extend(LeaderLink(followers.address, rank, 10) for rank in ranks))
    joining.start()
    followers.accept(10, no_check)
    joining.join()
    try:
        yield followers, links
    finally:
        followers.close()
        for link in links:
            link.close()


def test_every_rank_gets_every_command_unchanged() -> None:
    command = StepCommand("m", [SequenceShare("a", [5, 6], 3, 1, [9, 8])], [1])
    with joined(1, 2) as (followers, links):
        followers.send(command)
        followers.send(CopyBlocks("m", [(1, 2)]))
        followers.send(UseThreads(3))
        followers.send(Stop())
        for link in links:
            assert link.next_command() == command
            assert [link.next_command() for _ in range(3)] == [CopyBlocks("m", [(1, 2)]), UseThreads(3), Stop()]


def test_a_command_of_many_frames_arrives_whole() -> None:
    long = SequenceShare("a", list(range(100_000)), 0, 0, list(range(7000)))
    with joined(1) as (followers, (link,)):
        received: list[object] = []
        reading = threading.Thread(target=lambda: received.append(link.next_command()))
        reading.start()
        followers.send(StepCommand("m", [long], []))
        reading.join()
        assert isinstance(received[0], StepCommand)
        assert received[0].sequences[0].token_ids == long.token_ids


def test_a_command_that_is_too_large_is_not_sent_and_has_no_effect() -> None:
    huge = SequenceShare("a", [2**40] * 2_000_000, 0, 0, [])
    with joined(1) as (followers, (link,)):
        with pytest.raises(FrameError, match="over the limit"):
            followers.send(StepCommand("m", [huge], []))
        followers.send(Stop())
        assert link.next_command() == Stop()


def test_strangers_and_ranks_of_another_mesh_are_turned_away() -> None:
    followers = Followers([1], HOST)
    host, port, token = followers.address.split()
    others: list[socket.socket] = []

    def knock() -> None:
        for first in (Joined(1, "wrong"), Joined(7, token), Ready(1)):
            others.append(socket.create_connection((host, int(port))))
            others[-1].sendall(FrameWriter().frame(first))
        others.append(socket.create_connection((host, int(port))))
        others[-1].sendall(b"\xff\xff\xff\xffGET / HTTP/1.1")
        others.append(LeaderLink(followers.address, 1, 10)._connection)

    knocking = threading.Thread(target=knock)
    knocking.start()
    followers.accept(10, no_check)
    knocking.join()
    followers.send(Stop())
    assert [each.recv(1) for each in others[:4]] == [b""] * 4
    assert others[4].recv(1) != b""
    for each in others:
        each.close()
    followers.close()


def test_a_rank_joins_while_strangers_say_nothing_and_may_take_its_time_to_say_who_it_is() -> None:
    followers = Followers([1, 2], HOST)
    host, port, token = followers.address.split()

    def join() -> None:
        silent.extend(socket.create_connection((host, int(port))) for _ in range(STRANGERS))
        late = socket.create_connection((host, int(port)))
        # Joined while the other one has not said anything yet, and strangers never do.
        links.append(LeaderLink(followers.address, 2, 10))
        assert admitted.wait(60)
        late.sendall(FrameWriter().frame(Joined(1, token)))
        silent.append(late)

    def check_ranks() -> None:
        if 2 in followers._connections:
            admitted.set()

    silent, links, admitted = list[socket.socket](), list[LeaderLink](), threading.Event()
    joining = threading.Thread(target=join)
    joining.start()
    followers.accept(60, check_ranks)
    joining.join()
    followers.send(Stop())
    assert links[0].next_command() == Stop()
    assert silent[-1].recv(1) != b""
    assert [each.recv(1) for each in silent[:-1]] == [b""] * STRANGERS
    for each in silent:
        each.close()
    links[0].close()
    followers.close()


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ({1: None, 2: Failed(2, "a sum broke off", True)}, r"rank\(s\) 1 died without a report"),
        ({1: Failed(1, "a sum broke off", True), 2: Failed(2, "MemoryError: x")}, "rank 2 failed: MemoryError: x"),
        ({1: Failed(1, "a sum broke off", True)}, "rank 1 failed: a sum broke off"),
    ],
)
def test_the_cause_is_reported_and_not_a_rank_that_only_lost_it(words: dict[int, Failed | None], said: str) -> None:
    with joined(1, 2) as (followers, links):
        for link, rank in zip(links, (1, 2), strict=True):
            last = words.get(rank)
            if last is not None:
                link.report(last)
            if rank in words:
                link.close()
        with pytest.raises(RankLostError, match=said):
            followers.check(patience=10)


def test_waiting_for_ranks_to_load_ends_when_all_are_ready_or_one_is_not() -> None:
    with joined(1, 2) as (followers, links):
        for rank, link in zip((1, 2), links, strict=True):
            link.report(Ready(rank))
        followers.wait(Ready, 10)
    with joined(1, 2) as (followers, links):
        links[0].report(Ready(1))
        with pytest.raises(RankLostError, match=r"rank\(s\) 2 did not load"):
            followers.wait(Ready, 0.2)


def test_ranks_that_do_not_come_are_named_and_a_dead_process_is_not_waited_for() -> None:
    with pytest.raises(RankLostError, match=r"rank\(s\) 1, 2 did not join within 0 seconds"):
        Followers([1, 2], HOST).accept(0.05, no_check)

    def check_ranks() -> None:
        raise RankLostError("rank 2 (status 1) ended; see its log")

    with pytest.raises(RankLostError, match=r"rank 2 .* ended"):
        Followers([1, 2], HOST).accept(1000, check_ranks)


def test_a_rank_learns_that_its_leader_is_gone() -> None:
    with joined(1) as (followers, (link,)):
        followers.close()
        link.wait_until_gone()
        with pytest.raises(RankLostError, match="the leader is gone"):
            link.next_command()
