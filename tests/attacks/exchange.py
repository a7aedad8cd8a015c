"""Requests as bytes: a client that sends what no library would, and reads whatever comes back."""

import http.client
import io
import json
import socket
from contextlib import suppress
from typing import Any, NamedTuple

JSON = {"content-type": "application/json"}
# Seconds: a gateway that is alive answers any input sooner.
PATIENCE = 60.0
# Seconds without data after which an input that is no whole request has had its answer.
SILENCE = 0.25


class Answer(NamedTuple):
    """`status` 0: the connection was closed without an answer; -1: nothing came in time. Names of headers are lower
    case; cookies that are set have a line each, of other equal names the last one counts."""

    status: int
    headers: dict[str, str] = {}  # noqa: RUF012 - never changed
    body: bytes = b""

    @property
    def text(self) -> str:
        return self.body.decode("utf-8", "replace")

    @property
    def json(self) -> Any:
        """The body; None where it is no JSON."""
        with suppress(ValueError):
            return json.loads(self.body)
        return None

    @property
    def code(self) -> str:
        """Of the error envelope, else empty."""
        body = self.json
        error = body.get("error") if isinstance(body, dict) else None
        found = error.get("code") or error.get("type") if isinstance(error, dict) else ""
        return str(found)

    @property
    def label(self) -> str:
        """Status and error code: bounded labels of what was exercised."""
        return f"{self.status} {self.code}"


def encoded(body: Any) -> bytes:
    """Bytes as they are, else JSON."""
    if isinstance(body, bytes):
        return body
    return json.dumps(body, ensure_ascii=True).encode()


def request_bytes(method: str, path: str | bytes, headers: list[tuple[bytes, bytes]], body: bytes | None) -> bytes:
    """A request with exactly these headers, besides the length of its body."""
    target = path.encode("utf-8", "surrogateescape") if isinstance(path, str) else path
    lines = [method.encode("latin-1", "replace") + b" " + target + b" HTTP/1.1"]
    lines += [name + b": " + value for name, value in headers]
    if body is not None:
        lines.append(b"content-length: %d" % len(body))
    return b"\r\n".join(lines) + b"\r\n\r\n" + (body or b"")


class Client:
    """Keeps one connection, and replaces it when the server closes it."""

    def __init__(self, host: str, port: int) -> None:
        self.host, self.port = host, port
        self._socket: socket.socket | None = None

    def __enter__(self) -> "Client":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        if self._socket is not None:
            self._socket.close()
            self._socket = None

    def connect(self, receive_bytes: int | None = None) -> socket.socket:
        """A new connection of its own, to be closed by the caller; with a small receive buffer on demand."""
        made = socket.socket()
        if receive_bytes is not None:
            made.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_bytes)
        made.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        made.settimeout(PATIENCE)
        made.connect((self.host, self.port))
        return made

    def ask(
        self,
        method: str,
        path: str | bytes,
        body: Any = None,
        key: str | None = None,
        headers: dict[str, str] | None = None,
        content_type: str | None = "application/json",
    ) -> Answer:
        """Send one request on the kept connection, and return the answer."""
        lines = [(b"host", f"{self.host}:{self.port}".encode())]
        given = None if body is None else encoded(body)
        if given is not None and content_type is not None:
            lines.append((b"content-type", content_type.encode("latin-1", "replace")))
        if key is not None:
            lines.append((b"authorization", b"Bearer " + key.encode("utf-8", "surrogateescape")))
        for name, value in (headers or {}).items():
            lines = [line for line in lines if line[0] != name.encode()]
            lines.append((name.encode("latin-1", "replace"), value.encode("utf-8", "surrogateescape")))
        return self.send(request_bytes(method, path, lines, given), head_only=method == "HEAD")

    def send(self, request: bytes, *, head_only: bool = False) -> Answer:
        """Send one whole request on the kept connection."""
        for attempt in (0, 1):
            fresh = self._socket is None
            if self._socket is None:
                self._socket = self.connect()
                self._reader = _Reader(self._socket)
            with suppress(ConnectionError):
                self._socket.sendall(request)
            answer, closes = _read(self._reader, "HEAD" if head_only else "GET")
            if closes:
                self.close()
            if answer.status != 0 or fresh or attempt:
                return answer
        raise AssertionError("unreachable")

    def raw(self, *pieces: bytes, most: int = 8, silence: float = SILENCE) -> list[Answer]:
        """Send bytes on a new connection, and return the answers until the server closes or is silent for so many
        seconds; at least one, which has the status 0 if there was none. Requests that are whole and must be answered
        are given `PATIENCE`: a caller who closes its side before the answer has left."""
        answers: list[Answer] = []
        with self.connect() as connection:
            try:
                for piece in pieces:
                    connection.sendall(piece)
            except ConnectionError:
                pass
            connection.settimeout(silence)
            reader = _Reader(connection)
            while len(answers) < most:
                answer, closes = _read(reader, "GET")
                if answer.status == -1:
                    # What is missing will not come.
                    with suppress(OSError):
                        connection.shutdown(socket.SHUT_WR)
                    connection.settimeout(PATIENCE)
                    # A reader reads no more after a time-out.
                    answer, _ = _read(_Reader(connection), "GET")
                    closes = True
                if answer.status != 0:
                    answers.append(answer)
                if closes:
                    break
        return answers or [Answer(0)]


class _Reader(io.BufferedReader):
    """Reads the answers of a connection: `http.client` makes a file of its socket for each, and closes it."""

    def __init__(self, connection: socket.socket) -> None:
        super().__init__(socket.SocketIO(connection, "r"))

    def makefile(self, mode: str) -> "_Reader":
        return self

    def close(self) -> None: ...


def _read(reader: _Reader, method: str) -> tuple[Answer, bool]:
    """The next answer, and whether the connection is over."""
    response = http.client.HTTPResponse(reader, method=method)  # type: ignore[arg-type]
    try:
        response.begin()
        body = response.read()
    except TimeoutError:
        return Answer(-1), True
    except (OSError, http.client.HTTPException, ValueError):
        return Answer(0), True
    headers: dict[str, str] = {}
    for name, value in response.getheaders():
        name = name.lower()
        headers[name] = f"{headers[name]}\n{value}" if name == "set-cookie" and name in headers else value
    return Answer(response.status, headers, body), response.will_close
