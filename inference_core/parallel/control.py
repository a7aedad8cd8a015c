"""The TCP control channel between a leader and the other ranks: commands out, reports back.

It is separate from the collectives because an idle rank may wait for its next command for days, and because a broken
connection names the lost rank at once, with any tensor backend.
"""

import contextlib
import secrets
import select
import socket
import time
from collections import defaultdict
from collections.abc import Callable, Iterable
from typing import Any, TypeVar

from inference_core.errors import RankLostError
from inference_core.parallel.messages import AdapterRead, ArenaCapacity, Command, Divided, Failed, Joined, Ready, Report
from inference_core.transport.framing import FrameError, FrameReader, FrameWriter

_CHUNK = 1 << 16
_POLL_SECONDS = 0.25
_MOST_UNKNOWN = 64
_FAILURE_REPORT_SECONDS = 0.5
# A machine that stops answering is detected after 5 + 3 x 5 seconds, even when idle.
_KEEPALIVE = {"TCP_KEEPIDLE": 5, "TCP_KEEPINTVL": 5, "TCP_KEEPCNT": 3}
# Reports that a leader waits for, and what a rank has done when it sends them.
_AWAITED: dict[type[Report], str] = {
    Divided: "divide its models",
    Ready: "load",
    ArenaCapacity: "finish the largest step",
    AdapterRead: "read an adapter",
}
Awaited = TypeVar("Awaited", Divided, Ready, ArenaCapacity, AdapterRead)


def _prepared(connection: socket.socket) -> socket.socket:
    """Set socket options: no delay for small messages, and keep-alive to detect dead peers."""
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in _KEEPALIVE.items():
        if hasattr(socket, name):
            connection.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
    return connection


class Followers:
    """The leader's end: a connection to each of `ranks`. Every method may raise RankLostError, naming the rank.

    The caller passes `address` (host, port and token) to the ranks, for example through the store.
    """

    def __init__(self, ranks: Iterable[int], host: str) -> None:
        self._expected = set(ranks)
        self._token = secrets.token_hex(16)
        self._listener = socket.create_server((host, 0), backlog=_MOST_UNKNOWN + len(self._expected))
        self.address = f"{host} {self._listener.getsockname()[1]} {self._token}"
        self._connections: dict[int, socket.socket] = {}
        self._readers: dict[int, FrameReader] = {}
        self._writer = FrameWriter()
        # By class and rank, until they are waited for.
        self._reports: defaultdict[type[Report], dict[int, Any]] = defaultdict(dict)
        self._lost: dict[int, Failed | None] = {}

    def accept(self, seconds: float, check_ranks: Callable[[], None]) -> None:
        """Wait until all ranks have joined; refuse connections without the token.

        A rank may take all `seconds` to say who it is, if busy; a silent stranger delays no rank. `check_ranks` is
        called about every 0.25 s and raises if a rank is known to have ended. Raises RankLostError after `seconds`.
        """
        deadline = time.monotonic() + seconds
        unknown: dict[int, socket.socket] = {}
        poller = select.poll()
        poller.register(self._listener, select.POLLIN)
        try:
            while missing := self._expected - self._connections.keys():
                check_ranks()
                if time.monotonic() > deadline:
                    raise RankLostError(f"rank(s) {_listed(missing)} did not join within {seconds:.0f} seconds")
                for descriptor, _ in poller.poll(_POLL_SECONDS * 1e3):
                    if descriptor in unknown:
                        poller.unregister(descriptor)
                        self._admit(unknown.pop(descriptor))
                    elif descriptor == self._listener.fileno():
                        connection = _prepared(self._listener.accept()[0])
                        unknown[connection.fileno()] = connection
                        poller.register(connection, select.POLLIN)
                        if len(unknown) > _MOST_UNKNOWN:
                            poller.unregister(earliest := next(iter(unknown)))
                            unknown.pop(earliest).close()
        finally:
            for connection in unknown.values():
                connection.close()
        self._listener.close()

    def _admit(self, connection: socket.socket) -> None:
        """Keep a connection that has sent something, if that is a rank's first report; else close it."""
        reader = FrameReader(Report, max_bytes=_CHUNK)
        try:
            reports = list(reader.feed(connection.recv(_CHUNK)))
        except (OSError, FrameError):
            reports = []
        first = reports[0] if reports else None
        if isinstance(first, Joined) and first.rank in self._expected and secrets.compare_digest(
            first.token, self._token
        ):  # fmt: skip
            self._connections[first.rank] = connection
            self._readers[first.rank] = reader
            # More reports may have arrived with the first one.
            for report in reports[1:]:
                self._note(first.rank, report)
        else:
            connection.close()

    def send(self, command: Command, seconds: float = 60.0) -> None:
        """Send `command` to all ranks. Raises FrameError, before sending anything, if it is too large."""
        frame = self._writer.frame(command)
        self.check()
        for rank, connection in self._connections.items():
            connection.settimeout(seconds)
            try:
                connection.sendall(frame)
            except OSError as error:
                self.check(patience=1.0)
                raise RankLostError(f"rank {rank} can no longer be reached: {error}") from error

    def wait(self, kind: type[Awaited], seconds: float) -> list[Awaited]:
        """Wait until every rank has sent a report of this class, one of `_AWAITED`. Returns and forgets them."""
        deadline = time.monotonic() + seconds
        while missing := self._expected - self._reports[kind].keys():
            left = deadline - time.monotonic()
            if left <= 0:
                raise RankLostError(f"rank(s) {_listed(missing)} did not {_AWAITED[kind]} within {seconds:.0f} seconds")
            self.check(patience=left)
        return list(self._reports.pop(kind).values())

    def check(self, patience: float = 0.0) -> None:
        """Receive reports of the ranks; wait up to `patience` seconds for one.

        Raises RankLostError with the failed rank and, if it sent one, its error message.
        """
        self._receive(patience)
        if not self._lost:
            return
        # The first failure to arrive may only be a consequence of the rank that is really lost.
        while self._receive(_FAILURE_REPORT_SECONDS):
            pass
        raise RankLostError(self._failure_message())

    def _receive(self, patience: float) -> bool:
        """Read reports that arrive within `patience` seconds. Returns whether there were any."""
        ranks = {c.fileno(): rank for rank, c in self._connections.items() if rank not in self._lost}
        if not ranks:
            return False
        poller = select.poll()
        for descriptor in ranks:
            poller.register(descriptor, select.POLLIN)
        readable = [ranks[descriptor] for descriptor, _ in poller.poll(patience * 1e3)]
        for rank in readable:
            self._read(rank)
        return bool(readable)

    def _read(self, rank: int) -> None:
        connection = self._connections[rank]
        connection.settimeout(1.0)
        try:
            data = connection.recv(_CHUNK)
            reports = list(self._readers[rank].feed(data))
        except (OSError, FrameError):
            data, reports = b"", []
        for report in reports:
            self._note(rank, report)
        if not data:
            self._lost.setdefault(rank, None)

    def _note(self, rank: int, report: Report) -> None:
        if isinstance(report, Failed):
            self._lost[rank] = report
        else:
            self._reports[type(report)][rank] = report

    def _failure_message(self) -> str:
        silent = [rank for rank, report in self._lost.items() if report is None]
        reports = [report for report in self._lost.values() if report is not None]
        causes = [report for report in reports if not report.consequence]
        if causes:
            return f"rank {causes[0].rank} failed: {causes[0].error}"
        if silent:
            return f"rank(s) {_listed(silent)} died without a report; see their logs"
        return f"rank {reports[0].rank} failed: {reports[0].error}"

    def close(self) -> None:
        self._listener.close()
        for connection in self._connections.values():
            connection.close()
        self._connections.clear()


class LeaderLink:
    """The follower's end: its connection to the leader."""

    def __init__(self, address: str, rank: int, seconds: float) -> None:
        """Connect to `address` (see `Followers`). Raises RankLostError if the leader does not answer in `seconds`."""
        host, port, token = address.split()
        try:
            self._connection = _prepared(socket.create_connection((host, int(port)), timeout=seconds))
        except OSError as error:
            raise RankLostError(f"the leader does not answer at {host}:{port}: {error}") from error
        self._connection.settimeout(None)
        self._writer = FrameWriter()
        self._reader = FrameReader(Command)
        self._commands: list[Command] = []
        self.report(Joined(rank, token))

    def report(self, report: Report) -> None:
        try:
            self._connection.sendall(self._writer.frame(report))
        except OSError as error:
            raise RankLostError(f"the leader is gone: {error}") from error

    def next_command(self) -> Command:
        """Wait for the next command, without a timeout. Raises RankLostError when the leader is gone."""
        while not self._commands:
            try:
                data = self._connection.recv(_CHUNK)
                self._commands += self._reader.feed(data)
            except (OSError, FrameError) as error:
                raise RankLostError(f"the leader is gone: {error}") from error
            if not data:
                raise RankLostError("the leader is gone: it closed the connection")
        return self._commands.pop(0)

    def wait_until_gone(self) -> None:
        """Return when the leader has closed its end. Reads nothing, so another thread may read meanwhile."""
        poller = select.poll()
        poller.register(self._connection, select.POLLRDHUP)
        poller.poll()

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self._connection.close()


def _listed(ranks: Iterable[int]) -> str:
    return ", ".join(str(rank) for rank in sorted(ranks))
