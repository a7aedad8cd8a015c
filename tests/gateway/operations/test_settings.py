"""Settings come from defaults, then the environment, then options; keys are kept as hashes."""

import hashlib
import sqlite3
from io import FileIO
from pathlib import Path

import pytest
from sqlalchemy.exc import OperationalError

from gateway.base.configuration import SERVED_CATALOG, catalog_reason, load_settings
from gateway.base.settings import Settings, SettingsError
from gateway.base.stores.data_folder import make_writable_folder
from gateway.cli.options import settings_from
from gateway.tenancy.keys.key_secrets import ApiKeys, new_key
from quality.store.database import away_reason

KEY = "test-ann-cf51f678d59fe375144ae295aaa5ecaa"


def test_an_option_wins_over_the_environment_and_that_over_the_default() -> None:
    environment = {"AIO_PORT": "9000", "AIO_HOST": "0.0.0.0", "OTHER": "x"}
    settings = load_settings(environment, port=9100, host=None)
    assert (settings.port, settings.host, settings.catalog) == (9100, "0.0.0.0", "laptop")


def test_values_of_the_environment_take_the_fields_types() -> None:
    environment = {"AIO_MONITOR": "false", "AIO_QUALITY_TARGET": "0.9", "AIO_BODY_LIMIT": "2048"}
    settings = load_settings(environment)
    assert (settings.monitor, settings.quality_target, settings.body_limit) == (False, 0.9, 2048)


@pytest.mark.parametrize(
    ("variable", "value"),
    [("AIO_PORT", "99999"), ("AIO_PORT", "http"), ("AIO_QUALITY_TARGET", "2"), ("AIO_LOG_LEVEL", "loud")],
)
def test_a_refused_value_is_named_with_its_variable(variable: str, value: str) -> None:
    with pytest.raises(SettingsError, match=f"{variable}.*{value}"):
        load_settings({variable: value})


def test_a_refused_word_is_answered_with_those_that_there_are() -> None:
    with pytest.raises(SettingsError, match=r"'all' refused: it is one of both, gen_ai, none, openinference$"):
        load_settings({"AIO_TRACE_CONTENT": "all"})


def test_state_is_in_the_xdg_folders_by_default(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_DATA_HOME", "/data")
    monkeypatch.setenv("XDG_CACHE_HOME", "/cache")
    assert Settings().data_path == Path("/data/aio")
    assert Settings().cache_path == Path("/cache/aio")
    assert Settings(data_dir="/here").database == "sqlite+aiosqlite:////here/aio.sqlite3"
    assert Settings(data_dir="/here").socket_path == Path("/here/core.sock")


def test_a_key_is_recognised_by_its_hash_alone() -> None:
    hashed = hashlib.sha256(KEY.encode()).hexdigest()
    keys = ApiKeys.parse(f"ann=sha256:{hashed}, bob=test-bob-1910d7b688c69af38d5326153c1c1eff")
    assert keys.owner(f"Bearer {KEY}") == "ann"
    assert keys.owner("bearer test-bob-1910d7b688c69af38d5326153c1c1eff") == "bob"
    assert keys.owner(f"Bearer {KEY}x") is None
    assert keys.owner(f"Bearer sha256:{hashed}") is None
    assert keys.owner(None) is None
    assert KEY not in repr(vars(keys))


def test_no_keys_means_that_none_is_asked_for() -> None:
    assert not ApiKeys.parse("")


@pytest.mark.parametrize("entry", ["justakey", "ann=short", "ann=sha256:abc", f"ann={KEY},ann={KEY}", f"={KEY}"])
def test_a_bad_key_entry_is_refused_without_showing_a_key(entry: str) -> None:
    with pytest.raises(SettingsError) as caught:
        ApiKeys.parse(entry)
    assert KEY not in str(caught.value)
    assert "short" not in str(caught.value).replace("too short", "")


def test_a_new_key_fits_its_hash() -> None:
    key, hashed = new_key()
    assert ApiKeys.parse(f"ann={hashed}").owner(f"Bearer {key}") == "ann"


def test_the_default_catalogue_is_this_folders_then_the_configured_one_then_the_demonstration(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    here, home = tmp_path / "here", tmp_path / "config"
    for folder in (here, home / "aio"):
        folder.mkdir(parents=True)
    monkeypatch.chdir(here)
    environment = {"XDG_CONFIG_HOME": str(home)}
    assert load_settings(environment).catalog == "laptop"
    configured = home / "aio" / "aio.toml"
    configured.touch()
    assert load_settings(environment).catalog == str(configured)
    (here / "aio.toml").touch()
    assert load_settings(environment).catalog == "aio.toml"
    assert load_settings({"AIO_CATALOG": ""} | environment).catalog == "aio.toml"
    assert load_settings({"AIO_CATALOG": "datacenter"} | environment).catalog == "datacenter"
    assert load_settings({"AIO_CATALOG": "datacenter"} | environment, catalog="other.toml").catalog == "other.toml"


def test_commands_elsewhere_take_the_catalogue_of_the_gateway_whose_records_they_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`aio report` in another folder named the tiers of the demonstration, and `aio retrain` found no outcomes."""
    here, data = tmp_path / "here", tmp_path / "data"
    here.mkdir()
    data.mkdir()
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.delenv("AIO_CATALOG", raising=False)
    monkeypatch.chdir(here)
    Path("aio.toml").touch()
    (data / SERVED_CATALOG).symlink_to(Path("aio.toml").absolute())
    monkeypatch.chdir(tmp_path)

    found = settings_from(data_dir=str(data))

    assert found.catalog == str(here / "aio.toml")
    assert str(data) in catalog_reason(found, data)
    assert settings_from(data_dir=str(data), catalog="laptop").catalog == "laptop"
    assert settings_from(data_dir=str(tmp_path / "other")).catalog == "laptop"
    (here / "aio.toml").unlink()
    assert settings_from(data_dir=str(data)).catalog == "laptop"


def test_a_full_disk_refuses_a_start_and_a_command_in_words(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.TemporaryFile", lambda **_: FileIO("/dev/full", "w"))
    with pytest.raises(SettingsError, match=r"cannot be written .No space left on device.; give another"):
        make_writable_folder(tmp_path, "data", "--data-dir")
    # What SQLite says where there is no room for its -wal and -shm files.
    said = OperationalError("SELECT 1", {}, sqlite3.OperationalError("disk I/O error"))
    assert away_reason(said) == "disk I/O error: the disk is full, or its folder cannot be written"


def test_the_reason_for_a_catalogue_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    assert "`aio init` writes one" in catalog_reason(Settings())
    Path("aio.toml").touch()
    assert catalog_reason(load_settings({})) == "found in this folder"
    assert "named by" in catalog_reason(Settings())
