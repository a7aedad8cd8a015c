"""Heads within the limits are parsed as without limits, and heads beyond them are refused, however they are split."""

import gc
import json
import weakref
from collections.abc import Callable, Iterator
from functools import partial
from itertools import pairwise
from types import SimpleNamespace
from typing import Any, cast

import pytest
import uvicorn
from hypothesis import given, settings
from hypothesis import strategies as st
from uvicorn.server import ServerState

from gateway.edge.head_bounds import MAX_HEADERS
from gateway.edge.http_protocol import IDLE_SECONDS, MAX_PIPELINED, BoundedHttpProtocol
from tests.examples import examples

LIMIT = 8192
LINE, HEADER = LIMIT // 8, LIMIT // 4
END = b"\r\n"


class Transport:
    """Records what a connection was sent, and whether it was closed."""

    def __init__(self) -> None:
        self.sent, self.closed, self.reads = b"", False, True

    def get_extra_info(self, name: str, default: object = None) -> None:
        return None

    def write(self, data: bytes) -> None:
        assert not self.closed
        self.sent += data

    def close(self) -> None:
        self.closed = True

    def is_closing(self) -> bool:
        return self.closed

    def pause_reading(self) -> None:
        self.reads = False

    def resume_reading(self) -> None:
        self.reads = True


async def application(scope: Any, receive: Any, send: Any) -> None:
    """Never called."""


class Connection(BoundedHttpProtocol):
    """The protocol without a network, a loop or an application: requests are only recorded."""

    def __init__(self, state: ServerState | None = None) -> None:
        config = uvicorn.Config(cast(Any, application), ws="none", lifespan="off", log_config=None, access_log=False)
        config.load()
        self.timers: dict[object, Callable[[], None]] = {}
        self.seconds: list[float] = []
        clock = SimpleNamespace(call_later=self.call_later, call_soon=lambda *_: None)
        limits: dict[str, Any] = {"patience": 30.0, "most": 9, "head_limit": LIMIT}
        super().__init__(config, state or ServerState(), {}, cast(Any, clock), **limits)
        self.started: list[Any] = []
        self.scopes: dict[int, Any] = {}
        self.wire = Transport()
        self.connection_made(cast(Any, self.wire))

    def call_later(self, seconds: float, due: Callable[[], None]) -> Any:
        timer = object()
        self.timers[timer] = due
        self.seconds.append(seconds)
        return SimpleNamespace(cancel=lambda: self.timers.pop(timer, None))

    def wait(self) -> None:
        """Let all timers run out."""
        for timer in list(self.timers):
            self.timers.pop(timer)()

    def _start_asgi_task(self, cycle: Any, app: Any) -> None:
        self.started.append(cycle)
        self.scopes[id(cycle)] = cycle.scope

    def receive(self, data: bytes, cuts: list[int]) -> "Connection":
        """Receive `data` in packets that end at `cuts`, as long as the connection is open."""
        for start, end in pairwise(sorted({0, len(data), *(cut for cut in cuts if cut < len(data))})):
            if not self.wire.closed:
                self.data_received(data[start:end])
        return self

    def reply(self) -> None:
        """Answer the oldest unanswered request."""
        for event in ({"type": "http.response.start", "status": 204}, {"type": "http.response.body"}):
            self.answer_part(event)

    def answer_part(self, event: dict[str, object]) -> None:
        """Send one event of the answer to the oldest unanswered request."""
        cycle = next(one for one in self.started if not one.response_complete)
        with pytest.raises(StopIteration):
            cycle.send(event).send(None)

    def requests(self) -> list[Any]:
        """The requests that the application would see."""
        parsed = [*self.started, *(cycle for cycle, _ in reversed(self.pipeline))]
        seen = [(self.scopes.get(id(one), one.scope), one) for one in parsed]
        return [
            (scope["method"], scope["raw_path"], scope["headers"], bytes(one.body), one.more_body)
            for scope, one in seen
        ]

    @property
    def answers(self) -> list[int]:
        """The statuses of all answers so far."""
        return [int(one[:4]) for one in self.wire.sent.split(b"HTTP/1.1")[1:]]

    @property
    def error(self) -> Any:
        return json.loads(self.wire.sent.rpartition(b"\r\n\r\n")[2])["error"]


def line(start: bytes, size: int, end: bytes = END) -> bytes:
    """`size` bytes, line end included."""
    return start + b"x" * (size - len(start) - len(end)) + end


def request_line(size: int) -> bytes:
    return line(b"POST /", size, b" HTTP/1.1\r\n")


def head_of(size: int) -> bytes:
    """A head of `size` bytes whose lines are all within their limits."""
    head = request_line(100)
    while size - len(head) - 2 > HEADER:
        head += line(b"a: ", HEADER - 100)
    return head + line(b"z: ", size - len(head) - 2) + END


BODIES = {
    b"none": b"\r\n",
    b"sized": b"Content-Length: 12\r\n\r\nHello\r\n\r\nyou",
    b"chunked": b"Transfer-Encoding: chunked\r\n\r\n5;a=b\r\nHello\r\n6\r\n\r\n\r\nyo\r\n0\r\nX-Trailer: v\r\n\r\n",
}
sizes = st.sampled_from([20, 50, LINE - 1, LINE, LINE + 1, HEADER - 1, HEADER, HEADER + 1, 3 * HEADER])
heads = st.one_of(
    st.tuples(st.lists(st.sampled_from([b"\r\n"]), max_size=3), sizes, st.lists(sizes, max_size=6)),
    st.tuples(st.just([]), st.just(30), st.integers(MAX_HEADERS - 3, MAX_HEADERS + 3).map(lambda count: [20] * count)),
)
cuts = st.one_of(
    st.just([]),
    st.just(list(range(40_000))),
    st.lists(st.integers(0, 40_000), max_size=40),
    st.integers(1, 3000).map(lambda step: list(range(0, 40_000, step))),
)


@settings(max_examples=examples(150), deadline=None)
@given(heads, st.sampled_from(sorted(BODIES)), cuts)
def test_a_head_passes_or_is_refused_by_its_size_alone(
    head: tuple[list[bytes], int, list[int]], body: bytes, packets: list[int]
) -> None:
    blank, first, others = head
    last = BODIES[body]
    start = b"".join(blank) + request_line(first) + b"".join(line(b"a: ", size) for size in others)
    size = len(start) + last.index(b"\r\n\r\n") + 4 if body != b"none" else len(start) + 2
    count = len(others) + (body != b"none")
    connection = Connection().receive(start + last, packets)
    if first > LINE:
        assert connection.answers == [414]
    elif max(others, default=0) > HEADER or count > MAX_HEADERS or size > LIMIT:
        assert connection.answers == [431]
    else:
        assert (connection.answers, connection.wire.closed) == ([], False)
        assert connection.requests() == Connection().receive(start + last, []).requests()
        assert len(connection.requests()) == 1
        return
    assert connection.wire.closed
    assert connection.requests() == []


@settings(max_examples=examples(150), deadline=None)
@given(st.lists(st.sampled_from(sorted(BODIES)), min_size=1, max_size=4), cuts)
def test_requests_are_the_same_in_any_packets(bodies: list[bytes], packets: list[int]) -> None:
    data = b"".join(request_line(40 + at) + line(b"B: ", 90) + BODIES[body] for at, body in enumerate(bodies))
    requests = Connection().receive(data, packets).requests()
    text = {b"none": b"", b"sized": b"Hello\r\n\r\nyou", b"chunked": b"Hello\r\n\r\nyo"}
    assert [(body, more) for *_, body, more in requests] == [(text[body], False) for body in bodies]
    assert [len(path) for _, path, *_ in requests] == [40 + at - len("POST  HTTP/1.1\r\n") for at in range(len(bodies))]
    assert not any(name == b"x-trailer" for _, _, headers, *_ in requests for name, _ in headers)


@pytest.mark.parametrize("step", [1, 500, LIMIT * 2])
def test_the_limits_themselves_are_allowed_and_one_byte_more_is_not(step: int) -> None:
    packets = list(range(0, LIMIT * 2, step))
    for data in (
        head_of(LIMIT),
        request_line(LINE) + END,
        request_line(50) + line(b"a: ", HEADER) + END,
        request_line(50) + line(b"a: ", 10) * MAX_HEADERS + END,
    ):
        connection = Connection().receive(data, packets)
        assert (connection.answers, len(connection.started)) == ([], 1)
    for data, status, param in (
        (head_of(LIMIT + 1), 431, None),
        (request_line(LINE + 1) + END, 414, None),
        (request_line(50) + line(b"Cookie: ", HEADER + 1) + END, 431, "cookie"),
        (request_line(50) + line(b"a: ", 10) * (MAX_HEADERS + 1) + END, 431, None),
    ):
        connection = Connection().receive(data, packets)
        assert (connection.answers, connection.started, connection.wire.closed) == ([status], [], True)
        assert (connection.error["type"], connection.error["param"]) == ("invalid_request_error", param)


@pytest.mark.parametrize("first", sorted(BODIES))
@pytest.mark.parametrize(
    ("second", "status"),
    [
        (request_line(LINE + 100) + END, 414),
        (request_line(50) + line(b"a: ", HEADER + 100) + END, 431),
        (head_of(LIMIT + 300), 431),
    ],
    ids=["line", "header", "head"],
)
@pytest.mark.parametrize("step", [7, 300, LIMIT * 3])
def test_a_head_behind_another_request_is_refused_once_that_is_answered(
    first: bytes, second: bytes, status: int, step: int
) -> None:
    data = request_line(50) + BODIES[first] + second
    connection = Connection().receive(data, list(range(0, len(data), step)))
    assert (len(connection.requests()), connection.wire.sent, connection.wire.reads) == (1, b"", False)
    connection.reply()
    assert connection.answers == [204, status]
    assert connection.wire.closed


def test_so_many_requests_wait_on_a_connection_and_no_more() -> None:
    connection = Connection().receive((request_line(50) + END) * 1000, [])
    assert len(connection.requests()) == 1 + MAX_PIPELINED
    assert (connection.wire.sent, connection.wire.reads) == (b"", False)
    for _ in range(1 + MAX_PIPELINED):
        connection.reply()
    assert connection.answers == [204] * (1 + MAX_PIPELINED) + [429]
    assert connection.wire.closed


def test_a_body_that_cannot_be_parsed_is_refused_after_the_answers_before_it() -> None:
    chunked = request_line(60) + b"Transfer-Encoding: chunked\r\n\r\n5\r\nHello, and more\r\n"
    connection = Connection().receive((request_line(50) + END) * 2 + chunked, [])
    assert len(connection.requests()) == 2
    connection.reply()
    connection.reply()
    assert connection.answers == [204, 204, 400]
    assert connection.wire.closed


def test_what_is_no_longer_answered_is_not_refused_either() -> None:
    connection = Connection().receive(request_line(60) + b"Transfer-Encoding: chunked\r\n\r\n5\r\nHel", [])
    connection.reply()
    connection.data_received(b"lo, and more")
    assert (connection.answers, connection.wire.closed) == ([204], True)


def test_empty_lines_between_requests_keep_no_connection() -> None:
    connection = Connection().receive(request_line(50) + END, [])
    connection.reply()
    connection.data_received(END)
    assert connection.timeout_keep_alive_task is not None
    connection.data_received(request_line(50))
    assert connection.timeout_keep_alive_task is None
    connection.data_received(END)
    assert len(connection.started) == 2


def test_a_request_that_begins_during_an_answer_is_not_cut_off_after_it() -> None:
    connection = Connection().receive(request_line(50) + END + request_line(50), [])
    connection.reply()
    assert connection.timeout_keep_alive_task is None
    connection.data_received(END)
    assert len(connection.started) == 2


def test_large_and_many_chunks_are_no_matter_and_their_extensions_are() -> None:
    head = request_line(60) + b"Transfer-Encoding: chunked\r\n\r\n"
    signed = b"3e8;chunk-signature=" + b"f" * 64 + b"\r\n" + b"x" * 1000 + b"\r\n"
    for body in (b"1\r\nx\r\n" * 20_000, signed * 200, b"1e8480\r\n" + b"y" * 2_000_000):
        connection = Connection().receive(head + body, list(range(0, len(body), 9_999)))
        assert (connection.answers, len(connection.started)) == ([], 1)
    for body in (
        (b"1;" + b"x" * 500 + b"\r\ny\r\n") * 100,
        b"0\r\n" + line(b"a: ", 500) * 60,
        b"0\r\n" + b"a:b\r\n" * 9999,
    ):
        connection = Connection().receive(head + body, [])
        assert (connection.answers, connection.wire.closed) == ([431], True)
        assert connection.started[0].disconnected


def test_a_lost_connection_is_reported_to_its_watchers_and_at_once_to_later_ones() -> None:
    connection = Connection().receive(head_of(300), [])
    heard: list[str] = []
    watchers = [partial(heard.append, name) for name in ("first", "second", "third")]
    connection.watch(watchers[0])
    connection.watch(watchers[1])
    connection.unwatch(watchers[1])
    assert heard == []

    connection.connection_lost(None)
    connection.watch(watchers[2])

    assert heard == ["first", "third"]


def test_a_watched_connection_is_read_on() -> None:
    connection = Connection().receive(head_of(300), [])
    connection.wire.reads = False
    connection.flow.read_paused = True

    connection.watch(lambda: None)

    assert connection.wire.reads


def test_at_a_stop_a_connection_whose_first_request_is_on_the_way_is_answered() -> None:
    connection = Connection()
    connection.shutdown()
    assert not connection.wire.closed
    connection.receive(request_line(50), [])
    connection.wait()
    assert connection.answers == [408]

    connection = Connection()
    connection.shutdown()
    connection.receive(request_line(50), [])
    connection.data_received(END)
    assert connection.timers == {}
    connection.reply()
    assert (connection.answers, connection.wire.closed) == ([204], True)
    assert b"connection: close" in connection.wire.sent


def test_at_a_stop_a_connection_that_stays_without_a_request_is_closed_after_a_moment() -> None:
    connection = Connection()
    connection.shutdown()
    assert list(connection.timers.values()) == [connection.wire.close]
    connection.wait()
    assert (connection.answers, connection.wire.closed) == ([], True)


def test_at_a_stop_a_connection_becomes_no_websocket() -> None:
    connection = Connection()
    connection.shutdown()
    connection.handle_websocket_upgrade()
    assert (connection.answers, connection.wire.closed) == ([503], True)
    assert connection.error["code"] == "shutting_down"


def test_at_a_stop_an_idle_connection_gets_its_next_answer_and_is_closed() -> None:
    connection = Connection().receive(request_line(50) + END, [])
    connection.reply()
    connection.shutdown()
    assert not connection.wire.closed
    connection.data_received(request_line(50) + END)
    assert connection.timers == {}
    assert b"connection: close" not in connection.wire.sent
    connection.reply()
    assert (connection.answers, connection.wire.closed) == ([204, 204], True)
    assert connection.wire.sent.count(b"connection: close") == 1


def test_at_a_stop_an_idle_connection_without_a_next_request_is_closed_in_time() -> None:
    connection = Connection().receive(request_line(50) + END, [])
    connection.reply()
    connection.shutdown()
    connection.wait()
    assert connection.wire.closed
    assert connection.timers == {}


def test_at_a_stop_a_connection_in_use_is_closed_after_its_last_answer() -> None:
    connection = Connection().receive(request_line(50) + END, [])
    connection.reply()
    connection.data_received(request_line(50))
    connection.shutdown()
    connection.data_received(END)
    connection.reply()
    assert (connection.answers, connection.wire.closed) == ([204, 204], True)

    connection = Connection().receive(request_line(50) + END, [])
    connection.shutdown()
    connection.reply()
    assert (connection.answers, connection.wire.closed) == ([204], True)


def test_at_a_stop_an_answer_under_way_leaves_its_connection_open_for_one_more() -> None:
    connection = Connection().receive(request_line(50) + END, [])
    connection.answer_part({"type": "http.response.start", "status": 204})
    connection.shutdown()
    connection.answer_part({"type": "http.response.body"})
    assert not connection.wire.closed
    connection.data_received(request_line(50) + END)
    connection.reply()
    assert (connection.answers, connection.wire.closed) == ([204, 204], True)
    assert connection.wire.sent.count(b"connection: close") == 1


def test_a_connection_answered_before_its_body_came_is_idle_from_then_on() -> None:
    connection = Connection().receive(b"POST /v1/x HTTP/1.1\r\nhost: a\r\ncontent-length: 5\r\n\r\n", [])
    connection.reply()
    connection.data_received(b"12345")
    connection.wait()
    assert connection.wire.closed


def test_a_new_connection_takes_the_place_of_an_idle_one_and_never_of_another() -> None:
    state = ServerState()
    most = Connection(state)._most
    busy = [Connection(state).receive(request_line(50) + END, []) for _ in range(most - 2)]
    idle = Connection(state).receive(request_line(50) + END, [])
    idle.reply()
    late = Connection(state)
    assert (idle.wire.closed, late.answers, late.wire.closed) == (True, [], False)
    idle.connection_lost(None)
    refused = Connection(state)
    assert (refused.answers, refused.wire.closed) == ([503], True)
    assert refused.error["code"] == "too_many_connections"
    assert not any(connection.wire.closed for connection in [*busy, late])


def test_an_idle_connection_outlives_the_idle_time_of_any_load_balancer_until_the_server_stops() -> None:
    connection = Connection().receive(request_line(50) + END, [])
    connection.reply()
    assert connection.seconds == [30.0, IDLE_SECONDS]
    connection.shutdown()
    assert connection.seconds[2:] == [connection.config.timeout_keep_alive]


@pytest.fixture
def uncollected() -> Iterator[None]:
    """Garbage of cycles stays, as it does for minutes where most objects live long."""
    gc.disable()
    yield
    gc.enable()


class Body:
    """What a framework keeps in the state of a request."""


@pytest.mark.parametrize(
    "end", [Connection.reply, lambda connection: connection.connection_lost(None)], ids=["answered", "lost"]
)
def test_a_request_is_let_go_with_its_answer_or_its_connection(
    end: Callable[[Connection], None], uncollected: None
) -> None:
    connection = Connection().receive(b"POST / HTTP/1.1\r\nhost: a\r\ncontent-length: 2\r\n\r\nhi", [])
    body = Body()
    there = weakref.ref(body)
    connection.scope["state"]["body"] = body
    del body
    end(connection)
    # What the application has, which has ended.
    connection.started.clear()
    connection.scopes.clear()
    assert there() is None
