"""What is gone is named by the start and by `aio check`; `tests/stored_data` has a folder that uses all of it."""

from pathlib import Path

import pytest

from gateway.base.configuration import load_settings, unknown_variables
from gateway.base.gone import GONE_VARIABLES, gone_lines
from gateway.base.settings import Settings


@pytest.mark.parametrize("variable", GONE_VARIABLES)
def test_a_variable_that_is_gone_changes_nothing_and_is_named_once_without_its_value(
    variable: str, tmp_path: Path
) -> None:
    environment = {variable: "https://s3cret@example.org"}
    settings = Settings(data_dir=str(tmp_path), catalog="laptop")
    assert load_settings(environment, data_dir=str(tmp_path), catalog="laptop") == settings
    [line] = gone_lines(environment, settings)
    assert line.startswith(f"{variable} is no longer a setting and changes nothing: {GONE_VARIABLES[variable]}")
    assert "s3cret" not in line
    assert unknown_variables(environment, settings) == []


def test_an_empty_variable_and_a_folder_of_today_have_nothing_that_is_gone(tmp_path: Path) -> None:
    (tmp_path / "cache_knobs.json").write_text('{"ttl_seconds": 77}')
    assert list(gone_lines({"AIO_ALERT_SMTP": " "}, Settings(data_dir=str(tmp_path)))) == []


@pytest.mark.parametrize("content", [b"", b"[]", b"\xff"])
def test_knobs_that_cannot_be_read_name_nothing(content: bytes, tmp_path: Path) -> None:
    (tmp_path / "cache_knobs.json").write_bytes(content)
    assert list(gone_lines({}, Settings(data_dir=str(tmp_path)))) == []
