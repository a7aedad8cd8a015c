"""`aio check --security` verifies the checklist of docs/security.md on the configuration that `aio serve` would use."""

import json
import re
from pathlib import Path
from typing import Any

import msgspec
import pytest
from click.testing import CliRunner, Result

from gateway.base.configuration import SETTINGS
from gateway.base.settings import Settings, SettingsError
from gateway.operations.cli import main
from gateway.operations.security.checks import ITEMS, Facts
from gateway.operations.security.stored_keys import AdminKey, StoredKeys
from gateway.processes.start_checks import refuse_open_access
from gateway.tenancy.changes import Order
from gateway.tenancy.keys.key_commands import KeyTerms, create_key, revoke_key
from gateway.tenancy.keys.key_secrets import new_key
from quality.store.database import migrate, open_database
from tests.gateway.remote_catalog import write_remote_catalog
from tiers.catalog.load import load_catalog

PAGE = Path(__file__).parents[4] / "docs" / "reference" / "security.md"
NOW = 1_000_000_000.0
DAY = 86400.0
HASHED = new_key()[1]
NO_KEYS = StoredKeys(False, ())
A_KEY = StoredKeys(True, (AdminKey("boss", NOW, None),))


def facts(tmp_path: Path, stored: StoredKeys | None = A_KEY, user: int = 10001, **settings: Any) -> Facts:
    catalog = settings.pop("catalog", "laptop")
    made = Settings(data_dir=str(tmp_path / "data"), catalog=str(catalog), **settings)
    return Facts(made, load_catalog(made.catalog), stored, NOW, user)


def test_the_page_and_the_command_have_the_same_items_in_the_same_order() -> None:
    section = PAGE.read_text(encoding="utf-8").split("## Deployment checklist")[1].split("\n## ")[0]
    assert re.findall(r"^\| `([\w-]+)` \|", section, flags=re.MULTILINE) == list(ITEMS)
    known = {setting.variable for setting in SETTINGS.values()}
    assert set(re.findall(r"`(AIO_[A-Z_]+)`", section)) <= known


def test_a_closed_deployment_has_nothing_to_mend(tmp_path: Path) -> None:
    catalog = write_remote_catalog(tmp_path / "catalog.toml", "https://models.example/v1")
    (tmp_path / "rules").write_text("x")
    closed = facts(
        tmp_path,
        catalog=catalog,
        api_keys=f"app={HASHED}",
        admin_keys=f"boss={HASHED}",
        database_url="postgresql://aio:dIeX4mpl7-q0Zw@db.example/aio?ssl=require",
        redis_url="rediss://:dIeX4mpl7-q0Zw@redis.example:6379/0",
        redaction=str(tmp_path / "rules"),
        limits_without_redis="closed",
        trace_exporter="otlp",
        otlp_endpoint="https://traces.example:4318",
        oidc_issuer="https://id.example",
        cors_origins="https://app.example",
    )
    found = {name: check(closed) for name, check in ITEMS.items()}
    assert {name: finding for name, finding in found.items() if finding.status != "ok"} == {}


PLAIN = "http://models.example/v1"
CASES: list[tuple[str, str, dict[str, Any]]] = [
    ("callers-need-keys", "ok", {"stored": NO_KEYS}),
    ("callers-need-keys", "ok", {"host": "0.0.0.0"}),
    ("callers-need-keys", "ok", {"host": "0.0.0.0", "stored": NO_KEYS, "api_keys": f"app={HASHED}"}),
    ("callers-need-keys", "failed", {"host": "0.0.0.0", "stored": NO_KEYS}),
    ("callers-need-keys", "failed", {"host": "::", "stored": NO_KEYS, "insecure": True}),
    ("callers-need-keys", "warning", {"host": "0.0.0.0", "stored": None}),
    ("host-names", "failed", {"allowed_hosts": "a.example, *", "stored": NO_KEYS}),
    ("host-names", "ok", {"allowed_hosts": "*"}),
    ("web-pages", "failed", {"cors_origins": "*", "stored": NO_KEYS}),
    ("web-pages", "warning", {"cors_origins": "*"}),
    ("web-pages", "warning", {"cors_origins": "http://app.example"}),
    ("web-pages", "ok", {"cors_origins": "http://localhost:5173"}),
    ("connections-encrypted", "ok", {}),
    ("connections-encrypted", "warning", {"host": "192.168.1.5"}),
    ("trusted-proxies", "ok", {}),
    ("trusted-proxies", "ok", {"host": "0.0.0.0", "trusted_proxies": "10.0.0.2"}),
    ("trusted-proxies", "warning", {"host": "0.0.0.0"}),
    ("trusted-proxies", "failed", {"trusted_proxies": "10.0.0.2, 0.0.0.0/0"}),
    ("trusted-proxies", "failed", {"trusted_proxies": "::/0"}),
    ("sign-in-encrypted", "failed", {"oidc_issuer": "http://id.example"}),
    ("sign-in-encrypted", "failed", {"oidc_redirect_url": "http://aio.example/admin/oidc/callback"}),
    ("reports-encrypted", "failed", {"trace_exporter": "otlp", "otlp_endpoint": "http://traces.example:4318"}),
    ("reports-encrypted", "ok", {"otlp_endpoint": "http://traces.example:4318"}),
    ("reports-encrypted", "failed", {"alert_webhook": "http://pager.example"}),
    ("reports-reachable", "failed", {"alert_webhook": "file:///etc/passwd"}),
    ("reports-reachable", "failed", {"otlp_endpoint": "gopher://traces.example"}),
    ("reports-reachable", "failed", {"otlp_traces_endpoint": "http://169.254.169.254/"}),
    ("reports-reachable", "failed", {"alert_webhook": "https://"}),
    ("reports-reachable", "ok", {"alert_webhook": "https://pager.example"}),
    ("reports-encrypted", "failed", {"error_report_dsn": "http://key@errors.example/1"}),
    ("stores-encrypted", "warning", {"database_url": "postgresql://aio:x@db.example/aio"}),
    ("stores-encrypted", "ok", {"database_url": "postgresql://aio:x@127.0.0.1/aio"}),
    ("stores-encrypted", "warning", {"database_url": "postgresql://aio:x@db.example/aio?sslmode=prefer"}),
    ("stores-encrypted", "ok", {"database_url": "postgresql://aio:x@db.example/aio?sslmode=verify-full"}),
    ("stores-encrypted", "warning", {"redis_url": "redis://:x@redis.example:6379/0"}),
    ("cores-private", "warning", {"cluster": "auto"}),
    ("cores-encrypted", "warning", {"cluster": "auto", "core_tls": "off"}),
    ("admin-keys", "warning", {"stored": NO_KEYS}),
    ("admin-keys", "warning", {"stored": StoredKeys(True, (AdminKey("boss", NOW - 400 * DAY, None),))}),
    ("admin-keys", "ok", {"stored": StoredKeys(True, (AdminKey("boss", NOW - 400 * DAY, NOW + DAY),))}),
    ("admin-keys", "warning", {"stored": StoredKeys(True, (AdminKey("boss", NOW - DAY, NOW - 1),))}),
    ("admin-keys", "warning", {"stored": StoredKeys(True, tuple(AdminKey(str(n), NOW, None) for n in range(11)))}),
    ("admin-keys", "failed", {"stored": None}),
    ("keys-hashed", "warning", {"api_keys": "app=sk-aio-0123456789abcdef"}),
    ("keys-hashed", "warning", {"admin_keys": f"a={HASHED},b=sk-aio-0123456789abcdef"}),
    ("database-password", "failed", {"database_url": "postgresql://aio:aio@db.example/aio"}),
    ("database-password", "failed", {"database_url": "postgresql://u:Postgres@db.example/aio"}),
    ("database-password", "failed", {"database_url": "postgresql://u:short@db.example/aio"}),
    ("database-password", "warning", {"database_url": "postgresql://aio:aio@127.0.0.1/aio"}),
    ("database-password", "warning", {"database_url": "postgresql://aio@db.example/aio"}),
    ("redis-password", "warning", {"redis_url": "redis://redis.example:6379/0"}),
    ("redis-password", "failed", {"redis_url": "redis://:redis@redis.example:6379/0"}),
    ("redis-password", "ok", {"redis_url": "redis://127.0.0.1:6379/0"}),
    ("adapter-folder", "warning", {}),
    ("texts-deleted", "failed", {"text_days": None}),
    ("texts-deleted", "ok", {"text_days": None, "store_texts": False}),
    ("texts-deleted", "warning", {"retain_days": None}),
    ("texts-redacted", "warning", {}),
    ("texts-redacted", "ok", {"store_texts": False}),
    ("limits-hold", "warning", {"budgets_without_database": "open"}),
    ("limits-hold", "warning", {"redis_url": "redis://127.0.0.1:6379/0"}),
    ("log-level", "warning", {"log_level": "debug"}),
    ("user", "warning", {"user": 0}),
]


@pytest.mark.parametrize(("item", "status", "given"), CASES)
def test_an_item_finds_what_breaks_it(tmp_path: Path, item: str, status: str, given: dict[str, Any]) -> None:
    found = ITEMS[item](facts(tmp_path, **given))
    assert found.status == status, found
    assert bool(found.mend) == (status != "ok")


def test_plain_http_to_a_tier_of_another_machine_is_named(tmp_path: Path) -> None:
    catalog = write_remote_catalog(tmp_path / "catalog.toml", PLAIN)
    found = ITEMS["tiers-encrypted"](facts(tmp_path, catalog=catalog))
    assert found.status == "warning"
    assert "tier-1 (models.example)" in found.says
    catalog = write_remote_catalog(tmp_path / "catalog.toml", "http://127.0.0.1:8000/v1")
    assert ITEMS["tiers-encrypted"](facts(tmp_path, catalog=catalog)).status == "ok"


@pytest.mark.parametrize(("mode", "status"), [(0o700, "ok"), (0o750, "failed"), (0o755, "failed"), (0o701, "failed")])
def test_a_data_folder_that_others_may_read_is_found(tmp_path: Path, mode: int, status: str) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "data").chmod(mode)
    here = facts(tmp_path, user=tmp_path.stat().st_uid)
    assert ITEMS["data-folder"](here).status == status
    # A volume of the platform: nothing that chmod could mend.
    assert ITEMS["data-folder"](here._replace(user=424242)).status == ("ok" if status == "ok" else "warning")


def test_files_that_others_may_change_are_found(tmp_path: Path) -> None:
    tmp_path.chmod(0o755)
    catalog = write_remote_catalog(tmp_path / "catalog.toml", "http://127.0.0.1:8000/v1")
    catalog.chmod(0o644)
    assert ITEMS["catalogue-file"](facts(tmp_path, catalog=catalog)).status == "ok"
    catalog.chmod(0o664)
    assert ITEMS["catalogue-file"](facts(tmp_path, catalog=catalog)).status == "failed"
    catalog.chmod(0o644)
    tmp_path.chmod(0o777)
    assert ITEMS["catalogue-file"](facts(tmp_path, catalog=catalog)).status == "failed"
    tmp_path.chmod(0o755)
    (tmp_path / "adapters").mkdir()
    for mode, status in ((0o755, "ok"), (0o775, "failed")):
        (tmp_path / "adapters").chmod(mode)
        assert ITEMS["adapter-folder"](facts(tmp_path, adapter_dir=str(tmp_path / "adapters"))).status == status
    (tmp_path / "run").mkdir()
    for mode, status in ((0o755, "ok"), (0o777, "failed"), (0o1777, "ok")):
        (tmp_path / "run").chmod(mode)
        here = facts(tmp_path, core_socket=str(tmp_path / "run" / "core.sock"), user=tmp_path.stat().st_uid)
        assert ITEMS["cores-private"](here).status == status


@pytest.mark.parametrize("secret", ["pa55-of-the-database", "pa55"])
def test_no_password_and_no_key_is_shown(tmp_path: Path, secret: str) -> None:
    given = facts(
        tmp_path,
        stored=NO_KEYS,
        api_keys=f"app=sk-{secret}-0123456789",
        admin_keys=f"boss=sk-{secret}-0123456789",
        database_url=f"postgresql://aio:{secret}@db.example/aio",
        redis_url=f"redis://:{secret}@redis.example:6379/0",
        error_report_dsn=f"http://{secret}@errors.example/1",
        alert_webhook=f"http://pager.example/{secret}",
    )
    assert [name for name, check in ITEMS.items() if secret in str(check(given))] == []


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "0.0.0.0", "::"])
@pytest.mark.parametrize("insecure", [False, True])
def test_what_fails_the_check_is_what_does_not_start_or_was_allowed(tmp_path: Path, host: str, insecure: bool) -> None:
    given = facts(tmp_path, stored=NO_KEYS, host=host, insecure=insecure)
    try:
        refuse_open_access(given.settings)
        starts = True
    except SettingsError:
        starts = False
    is_failed = ITEMS["callers-need-keys"](given).status == "failed"
    assert is_failed == (not starts or (insecure and given.is_reachable))


def aio(*arguments: str, **environment: str) -> Result:
    return CliRunner().invoke(main, ["check", "--security", *arguments], env=environment)


def test_the_command_exits_with_1_where_an_item_failed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    folder = ("--data-dir", str(tmp_path / "data"), "--catalog", "laptop")
    well = aio(*folder, "--json")
    assert well.exit_code == 0, well.output
    assert [each["id"] for each in json.loads(well.output)] == list(ITEMS)
    assert not (tmp_path / "data").exists(), "it makes nothing"
    broken = aio(*folder, "--host", "0.0.0.0", "--json")
    assert broken.exit_code == 1
    (item,) = [each for each in json.loads(broken.output) if each["status"] == "failed"]
    assert item["id"] == "callers-need-keys"
    assert "aio keys create" in item["mend"]
    shown = aio(*folder, AIO_HOST="0.0.0.0")
    assert shown.exit_code == 1
    assert "failed: callers-need-keys: make a key" in shown.output


async def test_it_reads_the_keys_of_the_database(tmp_path: Path) -> None:
    from gateway.operations.security.checks import check_security

    settings = Settings(data_dir=str(tmp_path), catalog="laptop", host="0.0.0.0", admin_keys=f"ops={HASHED}")
    await migrate(settings.database)
    engine = open_database(settings.database)
    order = Order(actor="test", now=1.0)
    await create_key(engine, "app", None, KeyTerms(scopes=["inference"]), order)
    made = await create_key(engine, "old", None, KeyTerms(scopes=["admin"]), order)
    await create_key(engine, "gone", None, KeyTerms(scopes=["admin"]), order)
    gone = await create_key(engine, "gone too", None, KeyTerms(scopes=["admin"]), order)
    await revoke_key(engine, gone.key_id, order)
    await engine.dispose()
    assert made.key
    found = {each.id: each for each in await check_security(settings)}
    assert found["callers-need-keys"].status == "ok"
    assert found["admin-keys"].status == "warning"
    assert "gone, old" in found["admin-keys"].says
    assert found["data-folder"].status == "ok"
    assert {each.status for each in await check_security(msgspec.structs.replace(settings, host="127.0.0.1"))} <= {
        "ok",
        "warning",
    }
