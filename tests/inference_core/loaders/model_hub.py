"""A loopback server with the part of the Hugging Face hub's API that downloads use, over files in memory."""

import hashlib
import json
import re
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.http_server import QuietHandler, serving


class ModelHub:
    """`repositories`: by id, the files of each commit, oldest first; the last one is `main`. `requests`: what was
    asked, as (method, path, Range). `cut_after`: bytes of a file after which the connection breaks, once for
    each entry. `gated`: ids that answer 403. `stall_after`: bytes of a file
    after which nothing more comes; `stalled` is then set. `answers_ranges`: whether parts of files can be asked for."""

    def __init__(self) -> None:
        self.url = ""
        self.repositories: dict[str, dict[str, dict[str, bytes]]] = {}
        self.requests: list[tuple[str, str, str]] = []
        self.cut_after: list[int] = []
        self.failures: list[int] = []
        self.gated: set[str] = set()
        self.stall_after: int | None = None
        self.stalled = threading.Event()
        self.answers_ranges = True

    def add(self, repo: str, files: dict[str, bytes]) -> str:
        """Add a commit; return its id."""
        commits = self.repositories.setdefault(repo, {})
        commit = hashlib.sha1(f"{repo}{len(commits)}".encode()).hexdigest()
        commits[commit] = files
        return commit

    def fetched(self, name: str) -> list[str]:
        """The Range headers of the downloads of one file, "" for a whole one."""
        return [span for method, path, span in self.requests if method == "GET" and path.endswith(f"/{name}")]

    def read(self, name: str) -> int:
        """How far into one file its downloads have come, in bytes; the largest number for one of a whole file."""
        ends = [span.rpartition("-")[2] for span in self.fetched(name)]
        return max((int(end) + 1 if end else sys.maxsize for end in ends), default=0)

    def add_folder(self, repo: str, folder: Path) -> str:
        """Add a commit of the files of a folder; return its id."""
        return self.add(repo, {file.name: file.read_bytes() for file in folder.iterdir() if file.is_file()})

    def commit(self, repo: str, revision: str) -> str | None:
        commits = self.repositories.get(repo, {})
        return list(commits)[-1] if revision == "main" and commits else revision if revision in commits else None


class _Handler(QuietHandler):
    protocol_version = "HTTP/1.1"
    hub: ModelHub

    def do_HEAD(self) -> None:
        self._answer()

    def do_GET(self) -> None:
        self._answer()

    def _answer(self) -> None:
        path = self.path.partition("?")[0]
        self.hub.requests.append((self.command, path, self.headers.get("range", "")))
        if self.hub.failures:
            return self._error(self.hub.failures.pop(0), "")
        if found := re.fullmatch(r"/api/models/([^/]+/[^/]+)(?:/revision/([^/]+))?", path):
            return self._info(found[1], found[2] or "main")
        if found := re.fullmatch(r"/([^/]+/[^/]+)/resolve/([^/]+)/(.+)", path):
            return self._file(found[1], found[2], found[3])
        return self._error(404, "EntryNotFound")

    def _info(self, repo: str, revision: str) -> None:
        if repo in self.hub.gated:
            return self._error(403, "GatedRepo")
        if repo not in self.hub.repositories:
            return self._error(404, "RepoNotFound")
        commit = self.hub.commit(repo, revision)
        if commit is None:
            return self._error(404, "RevisionNotFound")
        files = self.hub.repositories[repo][commit]
        siblings = [{"rfilename": name, "size": len(data)} for name, data in files.items()]
        body = json.dumps({"id": repo, "modelId": repo, "sha": commit, "siblings": siblings}).encode()
        return self._send(200, body, {"content-type": "application/json"})

    def _file(self, repo: str, revision: str, name: str) -> None:
        commit = self.hub.commit(repo, revision)
        data = self.hub.repositories.get(repo, {}).get(commit or "", {}).get(name)
        if data is None:
            return self._error(404, "EntryNotFound")
        headers = {
            "x-repo-commit": str(commit),
            "etag": f'"{hashlib.sha256(data).hexdigest()}"',
            "accept-ranges": "bytes",
        }
        start, status = 0, 200
        stop = len(data)
        asked = re.fullmatch(r"bytes=(\d+)-(\d*)", self.headers.get("range", ""))
        if asked is not None and self.hub.answers_ranges:
            start, status = int(asked[1]), 206
            stop = min(stop, int(asked[2]) + 1) if asked[2] else stop
            headers["content-range"] = f"bytes {start}-{stop - 1}/{len(data)}"
        return self._send(status, data[start:stop], headers)

    def _error(self, status: int, code: str) -> None:
        self._send(status, b"{}", {"x-error-code": code, "x-error-message": code, "content-type": "application/json"})

    def _send(self, status: int, body: bytes, headers: dict[str, str]) -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        if self.command == "HEAD":
            return
        is_file = "etag" in headers
        if is_file and self.hub.cut_after:
            self.wfile.write(body[: self.hub.cut_after.pop(0)])
            self.wfile.flush()
            self.connection.close()
            self.close_connection = True
            return
        if is_file and self.hub.stall_after is not None:
            self.wfile.write(body[: self.hub.stall_after])
            self.wfile.flush()
            self.hub.stalled.set()
            self.rfile.read(1)  # until the client is gone
            self.close_connection = True
            return
        self.wfile.write(body)


@contextmanager
def running_hub() -> Iterator[ModelHub]:
    """Serve on a free port until the block ends."""
    hub = ModelHub()
    with serving(type("Handler", (_Handler,), {"hub": hub})) as hub.url:
        yield hub
