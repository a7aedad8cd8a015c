"""Shared by all tests: the same random numbers in every run, and what is costly made once per process.

Six fixtures act on every test unasked:

- `_root_log_level_and_umask`: each test starts with the log level and umask of a new process, because commands that run
  inside a test set them for the whole process.
- `_made_once`: a new database is a copy of one that ran all revisions, and an SQL statement is compiled once, not for
  every database.
- `_patient_clients`: a request of a test may take as long as a busy machine needs; clients of httpx and openai share
  one context of TLS, which nothing here needs.
- `_patient_sqlite`: so may its statements and commits, for which other tests keep the disk busy.
- `_patient_redis`: and an answer of Redis.
- `_models_read_once`: of a GGUF file the tokens and what its weights are packed as are read once, not for every gateway
  that has the model.

Fixtures of database servers are in `tests.support.database`.
"""

import gc
import importlib
import logging
import os
import random
import ssl
import sys
import zlib
from collections.abc import Callable, Generator, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from hypothesis import Phase, settings

from tests.support.clock import clock  # noqa: F401 - a fixture
from tests.support.database import (  # noqa: F401 - fixtures
    any_engine,
    database_url,
    engine,
    postgres_binaries,
    postgres_server,
    postgres_url,
    redis_process,
    redis_server,
    redis_store,
    redis_url,
    sqlite_engine,
    sqlite_url,
)

pytest_plugins = ["tests.forked_workers", "tests.removed_folders"]

# Pytest's processes keep all cores busy. Threads of BLAS and OpenMP, which spin while they wait, would only take
# turns with them: some fits take eight times the CPU time. To be set before numpy is imported.
for _variable in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
    os.environ.setdefault(_variable, "1")
# So would threads of tokenizers; and a process that forks should have none.
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
# Nor should a gateway of a test measure the tiny models that tests quantise: each would start a process for it.
os.environ.setdefault("AIO_MEASURE_MODELS", "false")

# How long a test waits for an answer, unless it says otherwise.
_ANSWER_SECONDS = 120.0
# Smaller files of weights are made by tests, which also damage them.
_LARGE_BYTES = 10_000_000

# All servers of the tests are on this machine, whatever proxy its user has.
os.environ["NO_PROXY"] = os.environ["no_proxy"] = "127.0.0.1,localhost"

# Of processes that tests start, those that train keep the usual priority.
os.environ["PYTHONPATH"] = os.pathsep.join(
    [str(Path(__file__).with_name("usual_priority")), *filter(None, [os.environ.get("PYTHONPATH")])]
)

# Property tests draw the same examples in every run; the other profiles draw new ones each time, and more of them.
# There is no deadline: an example's time depends on the machine.
settings.register_profile("reproducible", deadline=None, derandomize=True, database=None)
settings.register_profile("quick", deadline=None, derandomize=True, database=None, max_examples=25)
settings.register_profile(
    # For tests/mutants and tests/requirements: the first example that fails is enough.
    "mutants", deadline=None, derandomize=True, database=None, max_examples=25, phases=(Phase.explicit, Phase.generate),
    report_multiple_bugs=False,
)  # fmt: skip
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
    """Exempt imported modules and collected tests from garbage collection: nearly all objects, looked at each time.

    Of those that are made later most stay too, such as a module's gateway: whole collections are rarer than Python's
    usual ones, which took a tenth of the processor time.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(5000, 10, 50)


@pytest.fixture(scope="module")
def earlier_objects_frozen() -> None:
    """For modules whose tests collect garbage: they look at the objects of their own module alone."""
    gc.collect()
    gc.freeze()


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Seed the global generators by the test's name, before its fixtures are made, whatever ran before it.

    And give torch one thread again: commands that quantise or train take one per processor, for the whole process. Two
    wait for each other where four processes share two processors: tests took up to fifteen times the processor time.
    """
    seed = zlib.crc32(item.nodeid.encode())
    random.seed(seed)
    if (numpy := sys.modules.get("numpy")) is not None:
        numpy.random.seed(seed)
    if (torch := sys.modules.get("torch")) is not None:
        # `torch.manual_seed` also keeps the stack of its caller, for each kind of device that is not in use yet.
        torch.default_generator.manual_seed(seed)
        if torch.get_num_threads() != 1:
            torch.set_num_threads(1)


@pytest.fixture(autouse=True)
def _root_log_level_and_umask() -> Iterator[None]:
    """Restore what commands that run inside a test set for the whole process."""
    root = logging.getLogger()
    level = root.level
    umask = os.umask(0o022)
    yield
    if root.level != level:  # to set it forgets what every logger knows of its level
        root.setLevel(level)
    os.umask(umask)


@pytest.fixture(scope="session", autouse=True)
def _made_once(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Make once per process what follows from the code alone, where a collected module has the part that makes it."""
    with ExitStack() as stack:
        if "quality.store.database" in sys.modules:
            from tests.compiled_statements import statements_compiled_once
            from tests.schema_copies import schema_copied

            binaries = postgres_binaries()
            pg_dump = None if binaries is None or not (binaries / "pg_dump").exists() else binaries / "pg_dump"
            stack.enter_context(schema_copied(tmp_path_factory.mktemp("schema"), pg_dump))
            stack.enter_context(statements_compiled_once())
        yield


@pytest.fixture(scope="session", autouse=True)
def _patient_clients() -> Iterator[None]:
    """Let the clients of httpx, and of httpx2, which openai's take, share one context of TLS: each would read all
    authorities' certificates, for up to 50 ms of processor time, to speak plain HTTP with servers of the tests. Where
    no other limit is given, httpx gives up after five seconds, which a busy machine may take."""
    with pytest.MonkeyPatch.context() as patch:
        if (httpx := sys.modules.get("httpx")) is not None:
            for limit in ("connect", "read", "write", "pool"):
                patch.setattr(httpx._config.DEFAULT_TIMEOUT_CONFIG, limit, _ANSWER_SECONDS)
        for package in {"httpx", "httpx2"} & sys.modules.keys():
            transports = importlib.import_module(f"{package}._transports.default")
            patch.setattr(transports, "create_ssl_context", _remembered(transports.create_ssl_context))
        yield


@pytest.fixture(scope="session", autouse=True)
def _patient_sqlite() -> Iterator[None]:
    """Let SQLite wait for a lock or for the disk as long as a test waits for an answer, not six or seven seconds."""
    with pytest.MonkeyPatch.context() as patch:
        if (database := sys.modules.get("quality.store.database")) is not None:
            patch.setattr(database, "BUSY_MS", round(_ANSWER_SECONDS * 1000))
            for limit in ("STATEMENT_SECONDS", "COMMIT_SECONDS"):
                patch.setattr(sys.modules["quality.store.drivers"], limit, _ANSWER_SECONDS)
        yield


@pytest.fixture(scope="session", autouse=True)
def _patient_redis() -> Iterator[None]:
    """Let Redis take as long as a test waits for an answer, not half a second; one that is killed is away at once."""
    with pytest.MonkeyPatch.context() as patch:
        if (store := sys.modules.get("gateway.base.stores.redis_store")) is not None:
            patch.setattr(store, "TIMEOUT_SECONDS", _ANSWER_SECONDS)
            patch.setitem(store.redis_client.__kwdefaults__, "timeout_seconds", _ANSWER_SECONDS)
        yield


@pytest.fixture(scope="session", autouse=True)
def _models_read_once() -> Iterator[None]:
    """Read each large GGUF file once per process, where a gateway's start reads it: a tokeniser changes nothing of the
    tokens after its start, and the check of the catalogue's models only looks at kinds of tensors."""
    with pytest.MonkeyPatch.context() as patch:
        for name, function in (
            ("inference_core.tokenization.gguf_vocabulary", "read_gguf_vocabulary"),
            ("tiers.catalog.quality_gate", "open_checkpoint"),
        ):
            if (module := sys.modules.get(name)) is not None:
                patch.setattr(module, function, _read_once(getattr(module, function)))
        yield


def _read_once(read: Callable[..., object]) -> Callable[..., object]:
    """`read`, called once for each content of a large file."""
    known = dict[tuple[Path, int, int], object]()

    def read_once(path: Path, *more: object) -> object:
        if not path.is_file() or (status := path.stat()).st_size < _LARGE_BYTES:
            return read(path, *more)
        key = (path, status.st_mtime_ns, status.st_size)
        if key not in known:
            known[key] = read(path, *more)
        return known[key]

    return read_once


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
