"""Record again what clients send: `python -m tests.clients.record FOLDER` runs those that `make test-clients` installs.

Each runs as its test does, through a proxy that keeps every request before the gateway gets it. What is worth keeping
of FOLDER is moved by hand to the folder of `tests/clients/recorded_request.py`, with a name and the version.
"""

import http.client
import json
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import urlsplit

from tests.clients import test_tool_loops as loops
from tests.clients.recorded_request import kept_form
from tests.clients.recording_upstream import recording_upstream
from tests.http_server import QuietHandler, serving
from tests.support.served import served

Kept = tuple[str, dict[str, str], bytes]


@contextmanager
def recording_proxy(target: str) -> Iterator[tuple[str, list[Kept]]]:
    """A proxy for `target` and the POST requests that it saw: path, headers, body."""
    kept: list[Kept] = []
    host = urlsplit(target).netloc

    class Handler(QuietHandler):
        def do_GET(self) -> None:
            self._forward(b"")

        def do_POST(self) -> None:
            raw = self.rfile.read(int(self.headers.get("content-length", 0)))
            kept.append((self.path, {name.lower(): value for name, value in self.headers.items()}, raw))
            self._forward(raw)

        def _forward(self, raw: bytes) -> None:
            upstream = http.client.HTTPConnection(host, timeout=120)
            headers = {name: value for name, value in self.headers.items() if name.lower() != "host"}
            upstream.request(self.command, self.path, raw or None, headers)
            answer = upstream.getresponse()
            self.send_response(answer.status)
            for name, value in answer.getheaders():
                if name.lower() not in ("transfer-encoding", "connection"):
                    self.send_header(name, value)
            self.send_header("connection", "close")
            self.end_headers()
            while piece := answer.read1(65536):
                self.wfile.write(piece)
                self.wfile.flush()
            self.close_connection = True

    with serving(Handler) as url:
        yield url, kept


def python_client(number: int) -> Callable[[loops.Setup], None]:
    """The test of one of the Python clients."""
    values = loops.PYTHON_CLIENTS[number].values
    return lambda setup: loops.test_a_python_client_loops_over_its_tools(setup, *values)  # type: ignore[arg-type]


CLIENTS: dict[str, Callable[[loops.Setup], None]] = {
    **{str(client.id): python_client(number) for number, client in enumerate(loops.PYTHON_CLIENTS)},
    "ai-sdk": loops.test_the_ai_sdk_loops_over_its_tools,
    "codex": loops.test_codex_loops_over_its_tools,
    "opencode": loops.test_opencode_loops_over_its_tools,
    "aider": loops.test_aider_goes_on_until_its_tests_pass,
}


def main(folder: Path) -> None:
    """Record every client into `folder`, a file each."""
    folder.mkdir(parents=True, exist_ok=True)
    with recording_upstream() as upstream, tempfile.TemporaryDirectory() as scratch:
        catalog = Path(scratch) / "catalog.toml"
        catalog.write_text(loops.CATALOG.format(base_url=upstream.base_url))
        environment = {"AIO_CATALOG": str(catalog), "AIO_MONITOR": "false"}
        with (
            served(Path(scratch) / "data", Path(scratch) / "cache", environment=environment) as process,
            recording_proxy(process.url) as (url, kept),
        ):
            for name, run in CLIENTS.items():
                kept.clear()
                workspace = Path(scratch) / name
                workspace.mkdir()
                try:
                    run(loops.Setup(upstream, url, workspace))
                except Exception as error:
                    print(f"{name}: {error}")
                rows = [kept_form(name, "", "", path, headers, raw) for path, headers, raw in kept]
                (folder / f"{name}.json").write_text(json.dumps(rows, indent=1, ensure_ascii=False) + "\n")
                print(f"{name}: {len(rows)} requests")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
