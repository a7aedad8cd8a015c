"""A gateway that other machines reach and whose callers need no key does not start, unless its operator says so."""

import re
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import httpx
import pytest

from gateway.base.settings import Settings
from gateway.edge.proxies import is_reachable_from_elsewhere
from gateway.operations.setup.stored_keys import has_answer_keys
from gateway.tenancy.changes import Order
from gateway.tenancy.keys.key_commands import KeyTerms, create_key
from gateway.tenancy.keys.key_secrets import new_key
from tests.ports import held_port
from tests.support.app import StartApp
from tests.support.database import migrated
from tests.support.served import Serve, served, started
from tests.support.upstream import Upstream, write_remote_catalog

HELLO = {"model": "tier-1", "messages": [{"role": "user", "content": "Hello there"}]}
CHAT = "/v1/chat/completions"
KEY, HASHED = new_key()


@pytest.fixture
def options(upstream: Upstream, tmp_path: Path) -> list[str]:
    return ["--catalog", str(write_remote_catalog(tmp_path / "catalog.toml", upstream.base_url))]


async def has_keys(settings: Settings) -> bool:
    return bool(await has_answer_keys(settings))


def ended(folder: Path, *options: str, environment: Mapping[str, str]) -> tuple[int, str, str]:
    """Run `aio serve` until it ends; return its status, its output and its log."""
    with started(folder, folder / "cache", "--port", "0", *options, environment=environment) as process:
        said = process.communicate(timeout=120)[0]
        return process.returncode, said, (folder / "log").read_text()


@pytest.mark.processes
@pytest.mark.parametrize(
    ("host", "more"),
    [("0.0.0.0", []), ("::", []), ("0.0.0.0", ["--gateway-workers", "2"])],
)
def test_without_a_key_it_does_not_start_where_other_machines_reach_it(
    options: list[str], tmp_path: Path, host: str, more: list[str]
) -> None:
    # An admin key is there, as always in these tests; it guards no answers.
    status, said, log = ended(tmp_path / "data", *options, *more, environment={"AIO_HOST": host})
    assert status == 1
    assert said == "", "it ended before it did anything"
    (line,) = [line for line in log.splitlines() if "AIO_HOST" in line]
    for way_out in ("aio keys create", "aio new-key", "--insecure", "AIO_INSECURE=true"):
        assert way_out in line
    assert not (tmp_path / "data" / "aio.sqlite3").exists()


@pytest.mark.processes
def test_a_key_of_the_settings_or_of_the_database_lets_it_start_and_strangers_are_refused(
    options: list[str], tmp_path: Path
) -> None:
    data, cache = tmp_path / "data", tmp_path / "cache"
    with served(data, cache, *options, "--host", "0.0.0.0", environment={"AIO_API_KEYS": f"app={HASHED}"}) as aio:
        assert httpx.post(f"{aio.url}{CHAT}", json=HELLO).status_code == 401
        assert httpx.get(f"{aio.url}/v1/models", headers={"authorization": f"Bearer {KEY}"}).status_code == 200
    command = [sys.executable, "-c", "from gateway.cli import main; main()", "keys", "create", "app"]
    made = subprocess.run([*command, "--data-dir", str(data)], capture_output=True, text=True, check=True).stdout
    found = re.search(r"sk-aio-[\w-]{40,}", made)
    assert found is not None
    with served(data, cache, *options, "--host", "0.0.0.0") as aio:
        assert httpx.post(f"{aio.url}{CHAT}", json=HELLO).status_code == 401
        assert httpx.get(f"{aio.url}/v1/models", headers={"authorization": f"Bearer {found[0]}"}).status_code == 200


@pytest.mark.processes
def test_allowed_to_be_open_it_is(options: list[str], served: Serve) -> None:
    aio = served(*options, "--host", "0.0.0.0", "--insecure")
    assert httpx.get(f"{aio.url}/v1/models").status_code == 200


@pytest.mark.processes
def test_while_the_database_is_away_it_starts_and_serves_no_stranger(options: list[str], tmp_path: Path) -> None:
    with held_port() as nothing_listens:
        url = f"postgresql://aio:aio@127.0.0.1:{nothing_listens.getsockname()[1]}/aio"
        more = ["--host", "0.0.0.0", "--database-url", url]
        with served(tmp_path / "data", tmp_path / "cache", *options, *more) as aio:
            assert httpx.post(f"{aio.url}{CHAT}", json=HELLO).status_code == 401
            assert httpx.get(f"{aio.url}/v1/models").status_code == 401
            ready = httpx.get(f"{aio.url}/health/ready")
            assert (ready.status_code, ready.json()["status"]) == (503, "not ready")
            assert "stored keys cannot be read" in ready.json()["problems"]["keys"]
            key = {"AIO_API_KEYS": f"app={HASHED}"}
        with served(tmp_path / "data", tmp_path / "cache", *options, *more, environment=key) as aio:
            assert httpx.get(f"{aio.url}/v1/models", headers={"authorization": f"Bearer {KEY}"}).status_code == 200
            ready = httpx.get(f"{aio.url}/health/ready")
            assert (ready.status_code, ready.json()["status"]) == (200, "degraded")


async def test_a_gateway_that_finds_no_keys_later_is_not_open_either(tmp_path: Path, app: StartApp) -> None:
    gateway = await app(Settings(host="0.0.0.0", data_dir=str(tmp_path)))
    assert gateway.access.tenancy.directory.is_read
    assert (await gateway.http.get("/v1/models")).status_code == 401
    assert (await gateway.http.post(CHAT, json=HELLO)).status_code == 401


async def test_allowed_to_be_open_a_gateway_asks_for_no_key(tmp_path: Path, app: StartApp) -> None:
    gateway = await app(Settings(host="0.0.0.0", insecure=True, data_dir=str(tmp_path)))
    assert (await gateway.http.get("/v1/models")).status_code == 200


async def test_admin_keys_are_no_keys_for_answers_and_ended_keys_are(tmp_path: Path) -> None:
    settings = Settings(data_dir=str(tmp_path))
    assert await has_keys(settings) is False
    assert not (tmp_path / "aio.sqlite3").exists(), "asking makes no database"
    (tmp_path / "aio.sqlite3").touch()
    assert await has_keys(settings) is False, "a database without tables has no keys"
    async with migrated(settings.database) as engine:
        order = Order(actor="test", now=100.0)
        await create_key(engine, "boss", None, KeyTerms(scopes=["admin", "viewer"]), order)
        assert await has_keys(settings) is False
        await create_key(engine, "app", None, KeyTerms(scopes=["viewer", "inference"], expires_at=101.0), order)
        assert await has_keys(settings) is True


async def test_keys_of_a_shared_database_count(database_url: str) -> None:
    settings = Settings(database_url=database_url)
    assert await has_keys(settings) is False
    async with migrated(database_url) as engine:
        await create_key(engine, "app", None, KeyTerms(scopes=["inference"]), Order(actor="test", now=1.0))
        assert await has_keys(settings) is True


@pytest.mark.parametrize(
    ("bound", "is_reachable"),
    [
        ("127.0.0.1", False),
        ("127.8.8.8", False),
        ("::1", False),
        ("::ffff:127.0.0.1", False),
        ("localhost", False),
        # As listeners read it: 127.0.0.1.
        ("127.1", False),
        ("0.0.0.0", True),
        ("::", True),
        ("", True),
        ("0", True),
        ("::ffff:0.0.0.0", True),
        ("192.168.1.5", True),
        ("no-such-name.invalid", True),
    ],
)
def test_only_loopback_addresses_are_this_machine_alone(bound: str, is_reachable: bool) -> None:
    assert is_reachable_from_elsewhere(bound) == is_reachable
