"""The first start of a gateway makes one admin key and prints it once; later starts use what is stored."""

import asyncio
import re
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import httpx
import openai
import pytest
from sqlalchemy import select

from gateway.tenancy.changes import Order
from gateway.tenancy.keys.key_commands import KeyTerms, create_first_admin_key, create_key, revoke_key
from migrations.tables.audit import audit_events
from migrations.tables.tenancy import api_keys
from quality.store.database import migrate, open_database
from tests.polling import until
from tests.support.administrator import ADMIN_HEADERS, bearer
from tests.support.database import PostgresServer, migrated
from tests.support.served import ENDED_SECONDS, READY, started
from tests.support.upstream import Upstream, write_remote_catalog

pytestmark = pytest.mark.processes

KEY = re.compile(r"sk-aio-[\w-]{40,}")
NO_ADMIN = {"AIO_ADMIN_KEYS": "", "AIO_KEYS_POLL_SECONDS": "0.1"}
ORDER = Order(actor="test", now=1.0)


@pytest.fixture(scope="module")
def catalog(upstream: Upstream, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_remote_catalog(tmp_path_factory.mktemp("catalog") / "catalog.toml", upstream.base_url)


@pytest.fixture
def options(catalog: Path) -> list[str]:
    return ["--port", "0", "--catalog", str(catalog)]


class Console:
    """What `aio serve` prints on its standard output."""

    def __init__(self, process: "subprocess.Popen[str]") -> None:
        self._process, self.text = process, ""

    def until(self, pattern: re.Pattern[str]) -> re.Match[str]:
        """Read until a line with `pattern`."""
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self.text += line
            if found := pattern.search(line):
                return found
        raise AssertionError(f"it ended with {self._process.wait()}:\n{self.text}")

    def rest(self) -> str:
        """Stop the process; return all that it printed."""
        self._process.terminate()
        self.text += self._process.communicate()[0]
        return self.text


def signed_in(url: str, key: str) -> bool:
    with httpx.Client(base_url=url) as browser:
        token = browser.get("/admin/login").text.split('name="csrf_token" value="')[1].split('"')[0]
        answer = browser.post("/admin/login", data={"csrf_token": token, "name": "", "secret": key})
        return answer.status_code == 303 and browser.get("/admin").status_code == 200


def test_the_key_is_printed_once_opens_administration_and_is_kept_as_its_hash(
    options: list[str], tmp_path: Path
) -> None:
    data = tmp_path / "data"
    with started(data, tmp_path / "cache", *options, environment=NO_ADMIN) as process:
        console = Console(process)
        url = console.until(READY)[1]
        key = console.until(KEY)[0]
        console.until(re.compile(re.escape(f"{url}/admin")))

        for stranger in ({}, bearer("unused"), {"host": "localhost"}):
            refused = httpx.get(f"{url}/v1/admin/knobs/routing", headers=stranger)
            assert refused.status_code == 401
            assert "aio keys create NAME --scope admin" in refused.json()["error"]["message"]
        assert httpx.get(f"{url}/v1/admin/knobs/routing", headers=bearer(key)).status_code == 200
        assert not signed_in(url, "")
        assert signed_in(url, key)
        with closing(openai.OpenAI(base_url=f"{url}/v1", api_key="whatever", max_retries=0)) as client:
            messages = [{"role": "user", "content": "Hello there"}]
            answer = client.chat.completions.create(model="tier-1", messages=messages)  # type: ignore[arg-type]
            assert answer.choices[0].message.content == "Hello there"
        (row,) = httpx.get(f"{url}/admin/api/keys", headers=bearer(key)).json()["rows"]
        assert (row["prefix"], row["scopes"]) == (key[:15], ["admin"])
        assert KEY.findall(console.rest()) == [key]
    with started(data, tmp_path / "cache", *options, environment=NO_ADMIN) as process:
        console = Console(process)
        url = console.until(READY)[1]
        assert httpx.get(f"{url}/v1/admin/knobs/routing", headers=bearer(key)).status_code == 200
        revoked = httpx.post(f"{url}/admin/api/keys/{row['key_id']}/revoke", json={}, headers=bearer(key))
        assert revoked.status_code == 200
        off = httpx.get(f"{url}/v1/admin/knobs/routing", headers=bearer(key))
        assert (off.status_code, off.json()["error"]["code"]) == (403, "admin_disabled")
        assert "aio keys create NAME --scope admin" in off.json()["error"]["message"]
        assert httpx.get(f"{url}/v1/models").status_code == 200
        # After losing the key, one makes another on the machine.
        order = ["keys", "create", "boss", "--scope", "admin", "--data-dir", str(data)]
        command = [sys.executable, "-c", "from gateway.cli import main; main()", *order]
        made = KEY.search(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
        assert made is not None
        until(lambda: httpx.get(f"{url}/v1/admin/knobs/routing", headers=bearer(made[0])).status_code == 200)
        assert not KEY.search(console.rest())
    kept = [path for path in data.rglob("*") if path.is_file()]
    assert data / "log" in kept
    assert not [path for path in kept if key.encode() in path.read_bytes()]


def test_an_operator_who_configured_keys_is_given_none(options: list[str], tmp_path: Path) -> None:
    with started(tmp_path / "data", tmp_path / "cache", *options) as process:
        console = Console(process)
        url = console.until(READY)[1]
        assert httpx.get(f"{url}/admin/api/keys", headers=ADMIN_HEADERS).json()["rows"] == []
        assert not KEY.search(console.rest())


def test_a_worker_of_batches_makes_no_key(catalog: Path, tmp_path: Path) -> None:
    data = tmp_path / "data"
    with started(data, tmp_path / "cache", "--catalog", str(catalog), environment=NO_ADMIN, what="worker") as process:
        console = Console(process)
        console.until(re.compile("AIO answers batches"))
        assert not KEY.search(console.rest())
    assert stored_keys(f"sqlite:///{data / 'aio.sqlite3'}") == []


def test_a_start_that_fails_after_the_key_was_made_still_prints_it(options: list[str], tmp_path: Path) -> None:
    settings = NO_ADMIN | {"AIO_RETRAIN_CRON": "61 * * * *"}
    with started(tmp_path / "data", tmp_path / "cache", *options, environment=settings) as process:
        said = process.communicate()[0]
        assert process.returncode == 1
    assert len(KEY.findall(said)) == 1
    assert "/admin" in said


def test_of_two_replicas_with_two_workers_each_one_process_prints_the_key_of_all(
    options: list[str], tmp_path: Path, postgres_url: str
) -> None:
    options = [*options, "--database-url", postgres_url, "--gateway-workers", "2", "--role", "gateway"]
    with (
        started(tmp_path / "a", tmp_path / "cache", *options, environment=NO_ADMIN) as first,
        started(tmp_path / "b", tmp_path / "cache", *options, environment=NO_ADMIN) as second,
    ):
        consoles = [Console(first), Console(second)]
        urls = [console.until(READY)[1] for console in consoles]
        keys = [row["name"] for row in stored_keys(postgres_url)]
        assert len(keys) == 1
        printed = [KEY.findall(console.rest()) for console in consoles]
    assert sorted(map(len, printed)) == [0, 1]
    assert len(set(urls)) == 2


def test_administration_is_off_until_the_database_is_there_and_the_key_is_made_then(
    options: list[str], tmp_path: Path, postgres_server: PostgresServer, postgres_url: str
) -> None:
    postgres_server.stop()
    is_away = True
    try:
        options = [*options, "--database-url", postgres_url]
        with started(tmp_path / "data", tmp_path / "cache", *options, environment=NO_ADMIN) as process:
            console = Console(process)
            url = console.until(READY)[1]
            off = httpx.get(f"{url}/v1/admin/knobs/routing", headers=bearer("unused"))
            assert (off.status_code, off.json()["error"]["code"]) == (503, "keys_unavailable")
            assert "Administration is off" in off.json()["error"]["message"]
            assert httpx.get(f"{url}/v1/models").status_code == 200
            assert not KEY.search(console.text)
            postgres_server.start()
            is_away = False
            key = console.until(KEY)[0]
            until(lambda: httpx.get(f"{url}/v1/admin/knobs/routing", headers=bearer(key)).status_code == 200)
            assert KEY.findall(console.rest()) == [key]
    finally:
        if is_away:
            postgres_server.start()


async def test_of_processes_that_begin_at_the_same_time_one_makes_the_key(database_url: str) -> None:
    await migrate(database_url)
    engines = [open_database(database_url) for _ in range(6)]
    made = await asyncio.gather(*(create_first_admin_key(engine, ORDER) for engine in engines for _ in range(2)))
    assert len([key for key in made if key is not None]) == 1
    async with engines[0].connect() as connection:
        assert len((await connection.execute(select(api_keys.c.key_id))).all()) == 1
        query = select(audit_events.c.actor, audit_events.c.action)
        assert (await connection.execute(query)).all() == [("test", "key.created")]
    for engine in engines:
        await engine.dispose()


async def test_a_key_is_made_where_there_are_others_unless_one_ever_administered(sqlite_url: str) -> None:
    async with migrated(sqlite_url) as engine:
        for name, scopes in (("app", ["inference"]), ("wall", ["viewer"])):
            await create_key(engine, name, None, KeyTerms(scopes=scopes), ORDER)  # type: ignore[arg-type]
        first = await create_first_admin_key(engine, ORDER)
        assert first is not None
        await revoke_key(engine, first.key_id, ORDER)
        assert await create_first_admin_key(engine, ORDER) is None


def stored_keys(database_url: str) -> list[dict[str, str]]:
    async def read() -> list[dict[str, str]]:
        engine = open_database(database_url)
        async with engine.connect() as connection:
            rows = [dict(row) for row in (await connection.execute(select(api_keys))).mappings()]
        await engine.dispose()
        return rows

    return asyncio.run(read())


@pytest.mark.parametrize(("variable", "workers"), [("AIO_API_KEYS", "1"), ("AIO_ADMIN_KEYS", "2")])
def test_a_weak_chosen_key_stops_the_start_without_being_shown(
    tmp_path: Path, options: list[str], variable: str, workers: str
) -> None:
    weak = "our-production-gateway-secret"
    environment = {variable: f"ops={weak}", "AIO_GATEWAY_WORKERS": workers}
    with started(tmp_path / "data", tmp_path / "cache", *options, environment=environment) as process:
        assert process.wait(ENDED_SECONDS) != 0
    said = (tmp_path / "data" / "log").read_text()
    assert f"{variable}: the key of 'ops' is too weak: it has about" in said
    assert "`aio new-key ops` makes a strong key" in said
    assert weak not in said
    assert "Traceback" not in said
