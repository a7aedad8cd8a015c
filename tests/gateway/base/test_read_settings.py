"""How the environment is read: empty variables, words, secrets in files, and variables that are no setting."""

import os
from pathlib import Path

import msgspec
import pytest

from gateway.base.configuration import (
    IN_FILES,
    SECRETS,
    SETTINGS,
    environment_of,
    load_settings,
    unknown_variables,
    variable_of,
)
from gateway.base.settings import Settings, SettingsError
from gateway.tenancy.keys.key_secrets import ApiKeys, new_key
from tests.support.upstream import write_remote_catalog
from tiers.catalog.replica_spec import server_key
from tiers.errors import CatalogError


@pytest.mark.parametrize("blank", ["", " ", "\t\n"])
@pytest.mark.parametrize("field", [field for field in SETTINGS if field != "retrain_cron"])
def test_an_empty_variable_counts_as_unset(field: str, blank: str) -> None:
    assert getattr(load_settings({variable_of(field): blank}), field) == getattr(load_settings({}), field)


def test_never_to_retrain_is_a_word_or_nothing() -> None:
    for given in ("", "never", " Never "):
        assert load_settings({"AIO_RETRAIN_CRON": given}).retrain_cron == ""
    assert load_settings({}).retrain_cron == Settings().retrain_cron != ""


@pytest.mark.parametrize(
    ("variable", "given", "read"),
    [
        ("AIO_LOG_LEVEL", "INFO", "info"),
        ("AIO_LOG_LEVEL", "Warn", "warning"),
        ("AIO_LOG_FORMAT", "JSON ", "json"),
        ("AIO_LIMITS_WITHOUT_REDIS", "Closed", "closed"),
        ("AIO_MONITOR", "no", False),
        ("AIO_MONITOR", "OFF", False),
        ("AIO_INSECURE", "yes", True),
        ("AIO_INSECURE", "On", True),
        ("AIO_INSECURE", "TRUE", True),
        ("AIO_INSECURE", "1", True),
        ("AIO_PORT", "9000 \n", 9000),
        ("AIO_HOST", " 0.0.0.0\r\n", "0.0.0.0"),
        ("AIO_TEXT_DAYS", "NULL", None),
    ],
)
def test_words_are_read_as_people_write_them(variable: str, given: str, read: object) -> None:
    assert getattr(load_settings({variable: given}), variable.removeprefix("AIO_").lower()) == read


def test_secrets_are_read_from_the_files_that_are_named(tmp_path: Path) -> None:
    for field in IN_FILES:
        (path := tmp_path / field).write_text("﻿of a file \n", encoding="utf-8")
        settings = load_settings({f"{variable_of(field)}_FILE": str(path), variable_of(field): ""})
        assert getattr(settings, field) == "of a file"
    assert {*SECRETS, "database_url", "redis_url"} == set(IN_FILES)


def test_a_file_that_cannot_be_a_secret_is_refused_without_its_content(tmp_path: Path) -> None:
    (empty := tmp_path / "empty").write_text("\n")
    (large := tmp_path / "large").write_text("heron" * 300_000)
    (binary := tmp_path / "binary").write_bytes(b"heron\xff")
    refused = {
        str(empty): "is empty",
        str(large): "is too large for a secret",
        str(binary): "cannot be read: it is not UTF-8",
        str(tmp_path): "cannot be read: Is a directory",
        "/nowhere/key": "cannot be read: No such file or directory",
    }
    for path, why in refused.items():
        with pytest.raises(SettingsError) as caught:
            load_settings({"AIO_API_KEYS_FILE": path})
        assert str(caught.value) == f"AIO_API_KEYS_FILE: {path} {why}"
    with pytest.raises(SettingsError, match="AIO_REDIS_URL and AIO_REDIS_URL_FILE are both set") as both:
        load_settings({"AIO_REDIS_URL": "redis://:heron@x", "AIO_REDIS_URL_FILE": str(empty)})
    assert "heron" not in str(both.value)


def test_processes_that_are_started_read_no_file_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (path := tmp_path / "url").write_text("redis://:heron@127.0.0.1/0")
    monkeypatch.setenv("AIO_REDIS_URL_FILE", str(path))
    first = load_settings()
    path.unlink()
    second = load_settings({**os.environ, **environment_of(first)})
    assert second.redis_url == first.redis_url == "redis://:heron@127.0.0.1/0"


def test_settings_that_are_passed_on_are_read_as_they_were() -> None:
    given = Settings(retrain_cron="", text_days=None, monitor=False, catalog="datacenter", core_tls="off")
    assert load_settings(environment_of(given)) == msgspec.structs.replace(given, role="all")


def test_keys_are_separated_by_commas_or_lines() -> None:
    first, second, third = new_key(), new_key(), new_key()
    keys = ApiKeys.parse(f"ada={first[1]},\nbob={second[1]}\r\n\ncy={third[1]}\n")
    assert keys.names == {"ada", "bob", "cy"}
    assert keys.owner(f"Bearer {second[0]}") == "bob"


def test_the_key_of_a_server_is_one_line(tmp_path: Path) -> None:
    (path := tmp_path / "key").write_text("sk-heron\n")
    assert server_key({"LARGE_API_KEY_FILE": str(path)}, "LARGE_API_KEY") == "sk-heron"
    assert server_key({"LARGE_API_KEY": " sk-heron\n"}, "LARGE_API_KEY") == "sk-heron"
    assert server_key({}, "LARGE_API_KEY") == server_key({}, None) == ""
    for bad in ("sk-heron\r\nx-admin: 1", "sk-heron\nsk-other", "sk-heron\x00", "sk-\u2028heron"):
        with pytest.raises(CatalogError, match="the key in LARGE_API_KEY has a line break or another") as refused:
            server_key({"LARGE_API_KEY": bad}, "LARGE_API_KEY")
        assert "heron" not in str(refused.value)
    with pytest.raises(CatalogError, match="LARGE_API_KEY_FILE: /nowhere cannot be read"):
        server_key({"LARGE_API_KEY_FILE": "/nowhere"}, "LARGE_API_KEY")


def test_a_variable_that_is_no_setting_is_named_and_its_value_is_not(tmp_path: Path) -> None:
    catalog = write_remote_catalog(tmp_path / "catalog.toml", "http://127.0.0.1:9/v1")
    with_key = "[tiers.remote]\napi_key_env = 'AIO_POOL_KEY'"
    catalog.write_text(catalog.read_text().replace("[tiers.remote]", with_key))
    environment = {
        "AIO_CATALOGUE": "heron",
        "AIO_LOGLEVEL": "heron",
        "AIO_PORT_FILE": "heron",
        "AIO_\x1b[2J": "heron",
        "AIO_POOL_KEY": "heron",
        "AIO_POOL_KEY_FILE": "heron",
        "AIO_GROUP": "cpu",
        "AIO_API_KEYS_FILE": "heron",
        "AIO_PORT": "9",
    }
    lines = unknown_variables(environment, Settings(catalog=str(catalog)))
    assert lines == [
        "'AIO_\\x1b[2J' is no setting and changes nothing; `aio settings` lists those that there are",
        "'AIO_CATALOGUE' is no setting and changes nothing; is AIO_CATALOG meant?",
        "'AIO_LOGLEVEL' is no setting and changes nothing; is AIO_LOG_LEVEL meant?",
        "'AIO_PORT_FILE' is no setting and changes nothing; `aio settings` lists those that there are",
    ]
    assert unknown_variables({"AIO_POOL_KEY": "x"}, Settings()) != []
