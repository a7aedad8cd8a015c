"""A start and `aio check` warn of the ten worst mistakes of a deployment, and of nothing that is right somewhere."""

import os
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from gateway.base.settings import Settings, SettingsError
from gateway.base.stores.data_folder import KEYS_REQUIRED
from gateway.cli import main
from gateway.operations.setup.exposures import exposures
from gateway.operations.setup.stored_keys import has_answer_keys
from gateway.processes.start_checks import refuse_open_access, warn_of_settings
from gateway.tenancy.changes import Order
from gateway.tenancy.keys.key_commands import KeyTerms, create_key
from gateway.tenancy.keys.key_secrets import new_key
from quality.store.database import migrate, open_database
from tests.support.upstream import write_remote_catalog

HASHED = new_key()[1]
SECRET = "dIeX4mpl7-q0Zw"


def of(tmp_path: Path, **settings: Any) -> Settings:
    return Settings(**{"data_dir": str(tmp_path / "data"), "catalog": "laptop"} | settings)


def test_a_closed_deployment_has_nothing_to_mend(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir(mode=0o700)
    closed = of(
        tmp_path,
        catalog=str(write_remote_catalog(tmp_path / "catalog.toml", "https://models.example/v1")),
        host="0.0.0.0",
        api_keys=f"app={HASHED}",
        database_url=f"postgresql://aio:{SECRET}@db.example/aio",
        redis_url=f"redis://:{SECRET}@redis.example:6379/0",
        trace_exporter="otlp",
        otlp_endpoint="https://traces.example:4318",
        oidc_issuer="https://id.example",
        cors_origins="https://app.example",
        alert_urls="jsons://pager.example",
    )
    assert exposures(closed) == []


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"host": "0.0.0.0", "insecure": True}, "AIO_INSECURE"),
        ({"host": "::", "insecure": True}, "AIO_INSECURE"),
        ({"insecure": True}, ""),
        ({"host": "0.0.0.0", "insecure": True, "api_keys": f"app={HASHED}"}, ""),
        ({"allowed_hosts": "a.example, *"}, "AIO_ALLOWED_HOSTS"),
        ({"allowed_hosts": "*", "api_keys": f"app={HASHED}"}, ""),
        ({"cors_origins": "*"}, "AIO_CORS_ORIGINS"),
        ({"cors_origins": "http://localhost:5173"}, ""),
        ({"oidc_issuer": "http://id.example"}, "AIO_OIDC_ISSUER"),
        ({"oidc_redirect_url": "http://aio.example/admin/oidc/callback"}, "AIO_OIDC_REDIRECT_URL"),
        ({"trace_exporter": "otlp", "otlp_endpoint": "http://traces.example:4318"}, "AIO_OTLP_ENDPOINT"),
        ({"otlp_endpoint": "http://traces.example:4318"}, ""),
        ({"alert_urls": "jsons://a.example json://pager.example"}, "AIO_ALERT_URLS"),
        ({"alert_urls": "json://127.0.0.1:9000"}, ""),
        ({"database_url": "postgresql://aio:aio@db.example/aio"}, "AIO_DATABASE_URL"),
        ({"database_url": "postgresql://correct-horse:Correct-Horse@db.example/aio"}, "AIO_DATABASE_URL"),
        ({"database_url": "postgresql://aio@db.example/aio"}, "AIO_DATABASE_URL"),
        ({"database_url": "postgresql://aio:aio@127.0.0.1/aio"}, ""),
        ({"redis_url": "redis://:redis@redis.example:6379/0"}, "AIO_REDIS_URL"),
        ({"redis_url": "redis://127.0.0.1:6379/0"}, ""),
        ({"text_days": None}, "AIO_TEXT_DAYS"),
        ({"text_days": None, "store_texts": False}, ""),
        ({"database_url": "postgresql://[/"}, ""),
    ],
)
def test_a_mistake_is_named_with_its_setting(tmp_path: Path, given: dict[str, Any], said: str) -> None:
    found = exposures(of(tmp_path, **given))
    assert len(found) == bool(said), found
    assert said in "".join(found)


def test_a_gateway_that_has_keys_in_its_database_is_not_open(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir(mode=0o700)
    (tmp_path / "data" / KEYS_REQUIRED).touch()
    assert exposures(of(tmp_path, host="0.0.0.0", insecure=True)) == []


@pytest.mark.parametrize(("mode", "count"), [(0o700, 0), (0o750, 1), (0o755, 1), (0o701, 1)])
def test_a_data_folder_that_others_may_read_is_found(tmp_path: Path, mode: int, count: int) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "data").chmod(mode)
    found = exposures(of(tmp_path))
    assert (len(found), "AIO_DATA_DIR" in "".join(found)) == (count, bool(count))


def test_files_that_others_may_change_are_found(tmp_path: Path) -> None:
    tmp_path.chmod(0o755)
    catalog = write_remote_catalog(tmp_path / "catalog.toml", "http://127.0.0.1:8000/v1")
    (adapters := tmp_path / "adapters").mkdir()
    (sockets := tmp_path / "run").mkdir()
    given = of(tmp_path, catalog=str(catalog), adapter_dir=str(adapters), core_socket=str(sockets / "core.sock"))
    for path, variable in ((catalog, "AIO_CATALOG"), (adapters, "AIO_ADAPTER_DIR"), (sockets, "AIO_CORE_SOCKET")):
        path.chmod(0o755)
        assert exposures(given) == []
        path.chmod(0o777)
        (found,) = exposures(given)
        assert f"{path} ({variable})" in found
        path.chmod(0o755)
    sockets.chmod(0o1777)
    assert exposures(given) == []
    tmp_path.chmod(0o777)
    assert len(exposures(given)) == 1, "the catalogue can be replaced"


@pytest.mark.parametrize("secret", ["pa55-of-the-database", "pa55"])
def test_no_password_and_no_key_is_shown(tmp_path: Path, secret: str) -> None:
    given = of(
        tmp_path,
        admin_keys=f"boss=sk-{secret}-0123456789",
        database_url=f"postgresql://aio:{secret}@db.example/aio",
        redis_url=f"redis://:{secret}@redis.example:6379/0",
        alert_urls=f"json://pager.example/{secret}",
    )
    assert secret not in str(exposures(given))
    assert exposures(given)


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "0.0.0.0", "::"])
@pytest.mark.parametrize("insecure", [False, True])
def test_an_open_gateway_does_not_start_or_is_warned_of(tmp_path: Path, host: str, insecure: bool) -> None:
    given = of(tmp_path, host=host, insecure=insecure)
    is_reachable = host in ("0.0.0.0", "::")
    if is_reachable and not insecure:
        with pytest.raises(SettingsError, match="no API key exists"):
            refuse_open_access(given)
    else:
        refuse_open_access(given)
        assert len(exposures(given)) == (is_reachable and insecure)


def test_a_start_logs_them(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    warn_of_settings(of(tmp_path, text_days=None))
    assert "prompts and answers are kept for ever" in caplog.text


def test_the_command_warns_and_says_where_the_checklist_went(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    catalog = write_remote_catalog(tmp_path / "catalog.toml", "http://127.0.0.1:1/v1")
    folder = ["check", "--data-dir", str(tmp_path / "data"), "--catalog", str(catalog)]
    shown = CliRunner().invoke(main, folder, env={"AIO_CORS_ORIGINS": "*"})
    assert "warning: AIO_CORS_ORIGINS=*" in shown.output
    moved = CliRunner().invoke(main, [*folder, "--security"])
    assert moved.exit_code == 2
    assert "`aio check` and every start name the ten worst mistakes" in moved.output


async def test_it_reads_the_keys_of_the_database(tmp_path: Path) -> None:
    settings = Settings(data_dir=str(tmp_path), catalog="laptop")
    assert await has_answer_keys(settings) is False
    assert os.listdir(tmp_path) == [], "it makes nothing"
    await migrate(settings.database)
    engine = open_database(settings.database)
    await create_key(engine, "boss", None, KeyTerms(scopes=["admin"]), Order(actor="test", now=1.0))
    assert await has_answer_keys(settings) is False
    await create_key(engine, "app", None, KeyTerms(scopes=["inference"]), Order(actor="test", now=1.0))
    assert await has_answer_keys(settings) is True
    await engine.dispose()
