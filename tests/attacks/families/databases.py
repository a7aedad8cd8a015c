"""Databases that are lost or damaged, under a running gateway and under a stopped one: what strangers, callers, probes
and commands then get. The gateways are of the classes' own, in front of the target's upstream."""

import asyncio
import os
import resource
import shutil
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from typing import Any

from tests.attacks.exchange import Answer, Client
from tests.attacks.families.framing import BODY, leaks, outcome_of
from tests.attacks.targets import CHAT, HELLO, SHORT_TIMES, Target, multipart
from tests.hostile.target import Outcome, attack_class
from tests.polling import until
from tests.support.administrator import ADMIN_KEY
from tests.support.served import ServedProcess, served
from tests.support.upstream import write_remote_catalog

FILE, PAGE = "aio.sqlite3", 4096
SETTINGS_KEY = "8d1f60b9e7a24c5f90be1a2f8c7d6e54"
NOTICED_SECONDS = 20.0
# The database of a gateway of the classes' own, at the target's PostgreSQL.
_OWN = "lost"


class Gateway:
    """A gateway of a class's own. `process`: its id."""

    def __init__(self, aio: ServedProcess) -> None:
        host, port = aio.url.removeprefix("http://").split(":")
        self.client, self.process = Client(host, int(port)), aio.process.pid

    def ask(self, request: "Request", key: str | None) -> Answer:
        method, path, body, more = request
        return self.client.ask(method, path, body, key=key, **more)

    def named(self) -> dict[str, str]:
        """What /health/ready says of the database and of keys."""
        problems = self.client.ask("GET", "/health/ready").json.get("problems", {})
        return {name: problems[name] for name in ("database", "keys") if name in problems}


@contextmanager
def _gateway(target: Target, data: Path, *options: str, **environment: str) -> Iterator[Gateway]:
    data.mkdir(parents=True, exist_ok=True)
    catalog = write_remote_catalog(data / "catalog.toml", target.upstream.base_url)
    given = SHORT_TIMES | {"NO_PROXY": "127.0.0.1", "AIO_LOG_LEVEL": "info"} | environment
    with served(data, data.parent / "cache", "--catalog", str(catalog), *options, environment=given) as aio:
        running = Gateway(aio)
        with running.client:
            yield running


def _made_with_a_key(target: Target, data: Path, **environment: str) -> str:
    """Serve `data` until it has a stored key that callers need; return the key."""
    with _gateway(target, data, **environment) as running:
        key = running.client.ask("POST", "/admin/api/keys", {"name": "ada"}, key=ADMIN_KEY).json["key"]
        until(lambda: running.client.ask("GET", "/v1/models", key=key).status == 200)
        assert running.client.ask("POST", CHAT, BODY, key=key).status == 200
        assert running.client.ask("POST", CHAT, BODY).status == 401
    return str(key)


Request = tuple[str, str, Any, dict[str, str]]
_UPLOAD = {"content_type": "multipart/form-data; boundary=b"}
_REQUESTS: tuple[Request, ...] = (
    ("POST", CHAT, BODY, {}),
    ("POST", "/v1/completions", {"model": "tier-1", "prompt": "Hi"}, {}),
    ("POST", "/v1/responses", {"model": "tier-1", "input": "Hi"}, {}),
    ("POST", "/v1/messages", {"model": "tier-1", "max_tokens": 2, "messages": HELLO}, {}),
    ("POST", "/v1/files", multipart({"purpose": "batch"}, b"{}\n", "late.jsonl"), _UPLOAD),
    ("GET", "/v1/files", None, {}),
    ("GET", "/v1/batches", None, {}),
    ("GET", "/v1/models", None, {}),
    ("GET", "/v1/requests/chatcmpl-0", None, {}),
    ("POST", "/tokenize", {"model": "tier-1", "prompt": "Hi"}, {}),
    ("GET", "/admin/api/keys", None, {}),
    ("GET", "/admin/api/requests", None, {}),
)

Change = Callable[[Path, Random], None]
"""Of the database's file."""


def _without_helpers(file: Path) -> None:
    for ending in ("-wal", "-shm"):
        file.with_name(file.name + ending).unlink(missing_ok=True)


def deleted(file: Path, _: Random) -> None:
    file.unlink()
    _without_helpers(file)


def emptied(file: Path, _: Random) -> None:
    file.write_bytes(b"")
    _without_helpers(file)


def without_keys(file: Path, draw: Random) -> None:
    """At a later, an equal or an earlier revision."""
    with closing(sqlite3.connect(file)) as connection:
        connection.execute("PRAGMA foreign_keys=OFF")
        connection.execute("DELETE FROM api_keys")
        connection.execute("UPDATE tenancy_state SET revision = revision + ?", (draw.choice((1, 0, -1)),))
        connection.commit()


def alone_with_the_marker(file: Path, _: Random) -> None:
    for entry in file.parent.iterdir():
        if entry.name not in ("keys_required", "catalog.toml", "log"):
            shutil.rmtree(entry) if entry.is_dir() else entry.unlink()


def garbage_from_the_second_page(file: Path, draw: Random) -> None:
    size = file.stat().st_size
    with file.open("r+b") as pages:
        pages.seek(PAGE)
        pages.write(draw.randbytes(size - PAGE))
    _without_helpers(file)


def garbage_in_some_pages(file: Path, draw: Random) -> None:
    with file.open("r+b") as pages:
        for page in draw.sample(range(1, file.stat().st_size // PAGE), 20):
            pages.seek(page * PAGE)
            pages.write(draw.randbytes(PAGE))
    _without_helpers(file)


def without_a_head(file: Path, _: Random) -> None:
    with file.open("r+b") as pages:
        pages.write(bytes(100))


def truncated(file: Path, draw: Random) -> None:
    os.truncate(file, draw.randrange(50, file.stat().st_size - PAGE))
    _without_helpers(file)


def a_text(file: Path, _: Random) -> None:
    file.write_text("no database at all\n" * 9999)
    _without_helpers(file)


def without_a_table(file: Path, draw: Random) -> None:
    with closing(sqlite3.connect(file)) as connection:
        connection.execute("PRAGMA foreign_keys=OFF")
        connection.execute(f"DROP TABLE {draw.choice(('api_keys', 'tenancy_state', 'budgets', 'requests'))}")
        connection.commit()


def a_folder(file: Path, _: Random) -> None:
    _without_helpers(file)
    file.unlink()
    file.mkdir()


def replaced(file: Path, _: Random) -> None:
    other = file.with_name("another")
    with closing(sqlite3.connect(other)) as connection:
        connection.execute("CREATE TABLE other (a)")
    _without_helpers(file)
    other.replace(file)


LOSSES: tuple[Change, ...] = (deleted, emptied, without_keys, alone_with_the_marker, replaced)
DAMAGES: tuple[Change, ...] = (
    garbage_from_the_second_page, garbage_in_some_pages, without_a_head, truncated, a_text, without_a_table, a_folder,
    replaced, deleted, emptied,
)  # fmt: skip


def _of_strangers(running: Gateway, draw: Random, count: int, label: str) -> Iterator[Outcome]:
    for _ in range(count):
        request, key = draw.choice(_REQUESTS), draw.choice((None, None, f"sk-aio-{'x' * 43}"))
        answer = running.ask(request, key)
        served_ = "a stranger is served" if answer.status < 400 else ""
        # What a gateway without its database cannot know it says.
        yield Outcome(f"{request[1]}, {label}", answer.status, answer.code, served_, expected=answer.status == 503)


@attack_class("lost databases", 240, "open", "shared")
def lost_databases(target: Target, draw: Random, count: int) -> Iterator[Outcome]:
    """The database of a gateway that needed keys is deleted, emptied, rewound or another one, while it runs and while
    it is stopped, with one or two workers: strangers ask, before and after a restart."""
    ways = _some((_schema_dropped,) if target.services else LOSSES, draw, count // 40)
    each = max(count // (3 * len(ways)), 1)
    with TemporaryDirectory() as folder:
        for number, way in enumerate(ways):
            for when in ("running", "stopped"):
                data, workers = Path(folder) / f"{number}{when}" / "data", draw.choice("12")
                options, environment = ("--gateway-workers", workers), _own_database(target)
                label = f"{way.__name__.strip('_')} while {when}, workers: {workers}"
                _made_with_a_key(target, data, **environment)
                if when == "running":
                    with _gateway(target, data, *options, **environment) as running:
                        way(_of(target, data), draw)
                        yield from _of_strangers(running, draw, each, label)
                else:
                    way(_of(target, data), draw)
                with _gateway(target, data, *options, **environment) as running:
                    yield from _of_strangers(running, draw, each, f"{label}, then started")


def _some(changes: tuple[Change, ...], draw: Random, count: int) -> list[Change]:
    """All in a whole run, of which each takes some seconds."""
    return draw.sample(changes, min(max(count, 1), len(changes)))


def _of(target: Target, data: Path) -> Path:
    """SQLite's file; with PostgreSQL its port, as a path."""
    return Path(str(target.services["PostgreSQL"].port)) if target.services else data / FILE


def _own_database(target: Target) -> dict[str, str]:
    """A database of the class's own where the target has PostgreSQL."""
    if not target.services:
        return {}
    port = target.services["PostgreSQL"].port
    asyncio.run(_order(port, "postgres", f"DROP DATABASE IF EXISTS {_OWN} WITH (FORCE)", f"CREATE DATABASE {_OWN}"))
    return {"AIO_DATABASE_URL": f"postgresql://aio@127.0.0.1:{port}/{_OWN}"}


def _schema_dropped(port: Path, _: Random) -> None:
    asyncio.run(_order(int(str(port)), _OWN, "DROP SCHEMA public CASCADE", "CREATE SCHEMA public"))


async def _order(port: int, database: str, *statements: str) -> None:
    import asyncpg

    connection = await asyncpg.connect(host="127.0.0.1", port=port, user="aio", database=database)
    try:
        for statement in statements:
            await connection.execute(statement)
    finally:
        await connection.close()


@attack_class("damaged databases", 400, "open")
def damaged_databases(target: Target, draw: Random, count: int) -> Iterator[Outcome]:
    """A database is overwritten, cut off, replaced, incomplete or on a full disk, while the gateway runs and while it
    is stopped: callers with keys of the settings are served, probes name it, commands say it in a line."""
    damages = _some(DAMAGES, draw, count // 30)
    each = max(count // (3 * len(damages) + 1), 2)
    with TemporaryDirectory() as folder:
        whole = Path(folder) / "whole" / "data"
        stored = _made_with_a_key(target, whole)
        yield from _on_a_full_disk(target, Path(folder) / "full" / "data", each)
        for damage in damages:
            data = Path(folder) / f"{damage.__name__} running" / "data"
            shutil.copytree(whole, data)
            label = f"{damage.__name__} while running"
            with _gateway(target, data, AIO_API_KEYS=f"app={SETTINGS_KEY}") as running:
                damage(data / FILE, draw)
                yield from _of_callers(running, draw, each, stored, label)
                yield _named(running, label)
            yield _logged(data, label)
            data = Path(folder) / f"{damage.__name__} stopped" / "data"
            shutil.copytree(whole, data)
            damage(data / FILE, draw)
            label = f"{damage.__name__} while stopped"
            yield from _of_commands(data, draw, each, label)
            # Of the others a start makes a new database.
            if damage not in (emptied, deleted, replaced):
                with _gateway(target, data, AIO_API_KEYS=f"app={SETTINGS_KEY}") as running:
                    yield from _of_callers(running, draw, each, stored, label)
                    yield _named(running, label)
                yield _logged(data, label)


def _on_a_full_disk(target: Target, data: Path, count: int) -> Iterator[Outcome]:
    """No file of the process may grow. Callers with a budget may be refused, and probes say why; then there is room."""
    with _gateway(target, data, AIO_API_KEYS=f"app={SETTINGS_KEY}") as running:
        key = running.client.ask("POST", "/admin/api/keys", {"name": "ada"}, key=ADMIN_KEY).json["key"]
        budget = {"kind": "key", "subject": "ada", "period": "total", "amount_usd": 1000.0}
        running.client.ask("PUT", "/admin/api/budgets", budget, key=ADMIN_KEY)
        until(lambda: running.client.ask("GET", "/v1/models", key=key).status == 200)
        _, hard = resource.prlimit(running.process, resource.RLIMIT_FSIZE, (0, resource.RLIM_INFINITY))
        for _ in range(count):
            for asking, allowed in ((SETTINGS_KEY, (200,)), (key, (200, 503))):
                answer = running.client.ask("POST", CHAT, BODY, key=asking)
                fell = "" if answer.status in allowed else f"it got {answer.status}"
                yield outcome_of(answer, "a chat on a full disk", fell)
        yield _named(running, "on a full disk")
        resource.prlimit(running.process, resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, hard))
        ends = time.monotonic() + NOTICED_SECONDS
        until(lambda: not running.named() or time.monotonic() > ends, every=0.1)
        answer = running.client.ask("POST", CHAT, BODY, key=key)
        fell = "" if answer.status == 200 and not running.named() else f"{answer.status}, {running.named()}"
        yield outcome_of(answer, "a chat with a budget after a full disk", fell)
    yield _logged(data, "on a full disk")


def _of_callers(running: Gateway, draw: Random, count: int, stored: str, label: str) -> Iterator[Outcome]:
    """Of a key of the settings, which gets its answers, and of a stored one, which gets them if it was read."""
    for _ in range(count):
        request = draw.choice(_REQUESTS[:-2])
        key, name = draw.choice(((SETTINGS_KEY, "a key of the settings"), (stored, "a stored key")))
        answer = running.ask(request, key)
        needs_none = request[1] in (CHAT, "/v1/completions", "/v1/messages", "/v1/models")
        fell = f"{name} got {answer.status}" if key == SETTINGS_KEY and needs_none and answer.status != 200 else ""
        yield Outcome(
            f"{request[1]} of {name}, {label}", answer.status, answer.code, fell or leaks(answer),
            expected=(answer.status == 503 and not needs_none) or _is_unread(answer),
        )  # fmt: skip


def _is_unread(answer: Answer) -> bool:
    """Whether the key could not be read yet; Anthropic's form has another status for that."""
    return answer.code in ("keys_unavailable", "overloaded_error")


def _named(running: Gateway, label: str) -> Outcome:
    """Probes name the database."""
    ends = time.monotonic() + NOTICED_SECONDS
    until(lambda: running.named() or time.monotonic() > ends, every=0.1)
    answer = running.client.ask("GET", "/health/ready")
    return outcome_of(answer, f"/health/ready, {label}", "" if running.named() else f"it says {answer.text[:200]}")


def _logged(data: Path, label: str) -> Outcome:
    log = (data / "log").read_text()
    at = log.find("Traceback")
    return Outcome(f"the log, {label}", 200, bypass="" if at < 0 else f"a traceback: {log[at - 300 : at + 1500]}")


COMMANDS = (
    "keys list", "keys create eve", "keys show ada", "keys limit ada --rpm 5", "keys rotate ada", "keys pause ada",
    "keys revoke ada", "teams list", "teams create research", "admin list", "migrate", "report",
    "retrain", "classifier rollback", "quality experiments list",
)  # fmt: skip


def _of_commands(data: Path, draw: Random, count: int, label: str) -> Iterator[Outcome]:
    for words in draw.sample(COMMANDS, min(count, len(COMMANDS))):
        program = [sys.executable, "-c", "from gateway.cli import main; main()", *words.split()]
        environment = {name: value for name, value in os.environ.items() if not name.startswith("AIO_")}
        done = subprocess.run(
            program, capture_output=True, text=True, env=environment | {"AIO_DATA_DIR": str(data)}, timeout=120
        )
        fell = f"{done.stderr[-900:]}" if "Traceback" in done.stderr or done.returncode not in (0, 1) else ""
        # Some say before what they are about to do.
        last = (done.stderr.splitlines() or [""])[-1]
        if not fell and done.returncode == 1 and not last.startswith("Error: "):
            fell = f"it says {done.stderr}"
        yield Outcome(f"aio {words}, {label}", 200, bypass=fell)
