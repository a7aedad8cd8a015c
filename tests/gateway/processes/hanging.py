"""Dependencies that hang: a disk and a name server by a preloaded library, and requests that are timed meanwhile."""

import shutil
import subprocess
import threading
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.support.administrator import ADMIN_HEADERS
from tests.support.served import ServedProcess

ANSWERED_SECONDS = 60.0
"""Far above the documented limits, for a busy machine, and below what callers here would wait without them."""
BODY = {"model": "tier-1", "messages": [{"role": "user", "content": "Hello there"}]}


class HangingCalls:
    """`environment` of a process whose disk and names hang in the blocks below."""

    def __init__(self, folder: Path) -> None:
        compiler = shutil.which("cc") or shutil.which("gcc")
        if compiler is None:
            pytest.skip("there is no C compiler: calls that hang were not tested")
        library = folder / "hanging_calls.so"
        source = Path(__file__).with_name("hanging_calls.c")
        subprocess.run([compiler, "-shared", "-fPIC", "-o", library, source, "-ldl"], check=True)
        self._disk, self._names = folder / "hanging_disk", folder / "hanging_names"
        self.environment = {
            "LD_PRELOAD": str(library),
            "HANGING_DISK": str(self._disk),
            "HANGING_NAMES": str(self._names),
        }

    @contextmanager
    def disk(self, seconds: float | None = None) -> Iterator[None]:
        """The disk hangs during the block, or for `seconds` by the clock, whatever the block does until then."""
        with _existing(self._disk, seconds):
            yield

    @contextmanager
    def names(self) -> Iterator[None]:
        with _existing(self._names):
            yield


@contextmanager
def _existing(path: Path, seconds: float | None = None) -> Iterator[None]:
    path.touch()
    if seconds is None:
        end = None
    else:
        end = threading.Timer(seconds, path.unlink)
        end.start()
    try:
        yield
    finally:
        path.unlink() if end is None else end.join()


class Asked:
    """What a request was answered, and after how long."""

    def __init__(self, answer: httpx.Response, seconds: float) -> None:
        self.answer, self.seconds = answer, seconds

    @property
    def failure(self) -> tuple[int, str]:
        """Status and code of a refusal, which says when to ask again."""
        assert self.answer.headers["retry-after"].isdigit(), self.answer.text
        return self.answer.status_code, self.answer.json()["error"]["code"]


class Callers:
    """Clients of one gateway, each with connections of its own."""

    def __init__(self, aio: ServedProcess) -> None:
        self._client = httpx.Client(base_url=aio.url, timeout=120)
        self.admin = ADMIN_HEADERS

    def key(self, name: str, **terms: Any) -> dict[str, str]:
        """Headers with a new key."""
        made = self._client.post("/admin/api/keys", json={"name": name, **terms}, headers=self.admin)
        assert made.status_code == 201, made.text
        return {"authorization": f"Bearer {made.json()['key']}"}

    def ask(self, method: str, path: str, headers: Mapping[str, str], **more: Any) -> Asked:
        began = time.monotonic()
        answer = self._client.request(method, path, headers=dict(headers), **more)
        return Asked(answer, time.monotonic() - began)

    def chat(self, headers: Mapping[str, str], model: str = "tier-1") -> Asked:
        return self.ask("POST", "/v1/chat/completions", headers, json=BODY | {"model": model})

    def all_at_once(self, requests: Mapping[str, tuple[Any, ...]]) -> dict[str, Asked]:
        """Ask everything at the same time: method, path, headers and the rest of each request, by name."""

        def one(request: tuple[Any, ...]) -> Asked:
            method, path, headers, *rest = request
            return self.ask(method, path, headers, **(rest[0] if rest else {}))

        with ThreadPoolExecutor(len(requests)) as pool:
            return dict(zip(requests, pool.map(one, requests.values()), strict=True))

    def metric(self, name: str) -> float:
        lines = self._client.get("/metrics", headers=self.admin).text.splitlines()
        return sum(float(line.rsplit(" ", 1)[1]) for line in lines if line.split("{")[0].split(" ")[0] == name)


def database_requests(key: Mapping[str, str], admin: Mapping[str, str]) -> dict[str, tuple[Any, ...]]:
    """Requests that need the database, of every kind."""
    upload = {"files": {"file": ("a.jsonl", b"{}\n")}, "data": {"purpose": "batch"}}
    return {
        "files": ("GET", "/v1/files", key),
        "upload": ("POST", "/v1/files", key, upload),
        "batches": ("GET", "/v1/batches", key),
        "response": ("GET", "/v1/responses/resp_0", key),
        "record": ("GET", "/v1/requests/chatcmpl-0", key),
        "keys": ("GET", "/admin/api/keys", admin),
        "new key": ("POST", "/admin/api/keys", admin, {"json": {"name": "late"}}),
        "budgets": ("GET", "/admin/api/budgets", admin),
        "report": ("GET", "/admin/api/report", admin),
        "requests": ("GET", "/admin/api/requests", admin),
    }


def probes() -> dict[str, tuple[Any, ...]]:
    """What orchestrators and Prometheus ask."""
    return {
        "live": ("GET", "/health/live", {}),
        "ready": ("GET", "/health/ready", {}),
        "metrics": ("GET", "/metrics", {}),
    }
