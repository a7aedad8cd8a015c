"""A proxy on loopback that connects to nothing: it notes what it is asked for, and answers by itself."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


class RecordingProxy(ThreadingHTTPServer):
    """`asked`: the first line of each request and its `Proxy-Authorization`. `status`: of its answers."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.asked: list[tuple[str, str]] = []
        self.status = 200

    @property
    def place(self) -> str:
        """Its host and port."""
        return f"127.0.0.1:{self.server_port}"


class _Handler(BaseHTTPRequestHandler):
    server: RecordingProxy

    def _answer(self) -> None:
        self.server.asked.append((self.requestline, self.headers.get("proxy-authorization", "")))
        body = b"{}"
        # A tunnel is refused: what would be in it is encrypted.
        self.send_response(403 if self.command == "CONNECT" and self.server.status == 200 else self.server.status)
        self.send_header("content-length", str(len(body)))
        self.send_header("connection", "close")
        self.end_headers()
        self.wfile.write(body)

    do_GET = do_POST = do_PATCH = do_CONNECT = _answer

    def log_message(self, format: str, *args: object) -> None:
        """Say nothing."""


@contextmanager
def recording_proxy() -> Iterator[RecordingProxy]:
    """Serve on a free port until the block ends."""
    with RecordingProxy() as proxy:
        thread = threading.Thread(target=proxy.serve_forever)
        thread.start()
        try:
            yield proxy
        finally:
            proxy.shutdown()
            thread.join()
