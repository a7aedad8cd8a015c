"""All attacks at once against one gateway process: `python -m tests.gateway.attacks.attacks_together` prints the cost.

Hostile grammars, prompts of megabytes, endless request heads, foreign pages and abandoned streams, each on its own
thread, while `/health/live` is asked continuously.
"""

import json
import statistics
import tempfile
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import httpx

from tests.gateway.api.test_cross_origin import PAGES
from tests.gateway.attacks.test_hostile_clients import ENDLESS, connect, resident_bytes, said
from tests.gateway.attacks.test_hostile_grammars import ATTACKS as GRAMMARS
from tests.gateway.attacks.test_long_prompts import LONG, SHORT, attacks, text_of, turns
from tests.gateway.served_process import ServedProcess, served

JSON = {"content-type": "application/json"}
# Free pages of the heap are returned a second after the last long text.
SETTLING_SECONDS = 4.0
LEFT = {"model": "tier-1", "stream": True, "max_tokens": 200, "messages": [{"role": "user", "content": "Count."}]}


class Damage(NamedTuple):
    """`statuses` of all answers. `median_ms` and `worst_ms`: time of `/health/live` during the attacks, `idle_ms` its
    median before. `grown_bytes`: growth of the process's resident memory."""

    statuses: list[int]
    answers: int
    idle_ms: float
    median_ms: float
    worst_ms: float
    grown_bytes: int


def damage(aio: ServedProcess) -> Damage:
    """Attack twice and report the second time, since what a first attack makes the process load is no leak."""
    _all_attacks(aio)
    idle = _pulse(aio, lambda: time.sleep(SETTLING_SECONDS))[1]
    before = resident_bytes(aio)
    statuses, taken = _pulse(aio, lambda: _all_attacks(aio))
    time.sleep(SETTLING_SECONDS)
    return Damage(
        statuses=statuses or [],
        answers=len(taken),
        idle_ms=statistics.median(idle) * 1e3,
        median_ms=statistics.median(taken) * 1e3,
        worst_ms=max(taken) * 1e3,
        grown_bytes=resident_bytes(aio) - before,
    )


def _pulse(aio: ServedProcess, work: Callable[[], Any]) -> tuple[Any, list[float]]:
    """Return the result of `work`, and the seconds that each liveness request took meanwhile."""
    taken: list[float] = []
    over = threading.Event()

    def ask() -> None:
        with httpx.Client(base_url=aio.url, timeout=60) as client:
            while not over.wait(0.005):
                began = time.perf_counter()
                client.get("/health/live").raise_for_status()
                taken.append(time.perf_counter() - began)

    with ThreadPoolExecutor(1) as pool:
        asking = pool.submit(ask)
        try:
            found = work()
        finally:
            over.set()
        asking.result()
    return found, taken


def _all_attacks(aio: ServedProcess) -> list[int]:
    kinds = (_grammars, _prompts, _heads, _pages, _leavers)
    with ThreadPoolExecutor(len(kinds)) as pool:
        running = [pool.submit(kind, aio) for kind in kinds]
        return [status for one in running for status in one.result()]


def _post(aio: ServedProcess, path: str, body: Any, **headers: str) -> int:
    content = body if isinstance(body, bytes) else json.dumps(body, ensure_ascii=False).encode()
    return httpx.post(f"{aio.url}{path}", content=content, headers=JSON | headers, timeout=120).status_code


def _grammars(aio: ServedProcess) -> list[int]:
    asked = {"model": "tier-1", "messages": [{"role": "user", "content": "Say something."}], "max_tokens": 8}
    return [_post(aio, "/v1/chat/completions", asked | fields) for fields, _, _ in GRAMMARS.values()]


def _prompts(aio: ServedProcess) -> list[int]:
    of_sizes = [one for size in (SHORT, LONG) for made_of in ("words", "unicode", "control") for one in
                attacks(text_of(made_of, size))]  # fmt: skip
    return [_post(aio, attack.path, attack.body) for attack in [*of_sizes, *turns(20_000)]]


def _heads(aio: ServedProcess) -> list[int]:
    found = []
    for start, piece, *_ in ENDLESS.values():
        with connect(aio) as connection:
            with suppress(ConnectionError):
                connection.sendall(start)
                for _ in range(64):
                    connection.sendall(piece)
            answer = said(connection)
        found.append(int(answer.split(b" ", 2)[1]) if answer.startswith(b"HTTP/") else 0)
    return found


def _pages(aio: ServedProcess) -> list[int]:
    body = {"name": "mallory", "scopes": ["admin"]}
    return [_post(aio, "/admin/api/keys", body, **page) for page in PAGES.values() for _ in range(10)]


def _leavers(aio: ServedProcess) -> list[int]:
    found = []
    for _ in range(10):
        with httpx.stream("POST", f"{aio.url}/v1/chat/completions", json=LEFT, timeout=120) as answer:
            found.append(answer.status_code)
            next(answer.iter_lines(), None)
    return found


def main() -> None:
    """Attack a gateway of the laptop catalogue and print the damage."""
    with tempfile.TemporaryDirectory() as folder:
        data = Path(folder)
        with served(data, data / "cache", environment={"AIO_MONITOR": "false"}) as aio:
            found = damage(aio)
            lives = aio.process.poll() is None
    worst = max(found.statuses)
    print(f"{len(found.statuses)} attacks; the process {'lives' if lives else 'died'}; highest status {worst}")
    print(
        f"/health/live, {found.answers} answers: median {found.median_ms:.1f} ms (idle {found.idle_ms:.1f}), "
        f"worst {found.worst_ms:.1f} ms"
    )
    print(f"memory: {found.grown_bytes / 2**20:+.1f} MiB")


if __name__ == "__main__":
    main()
