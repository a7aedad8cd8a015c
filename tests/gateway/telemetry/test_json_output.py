"""With `AIO_LOG_FORMAT=json` whatever a serving process writes is JSON, one object per line."""

import json
import logging
import os
import subprocess
import sys
import threading
import warnings
from pathlib import Path
from typing import Any

import pytest

from gateway.base.logs import all_as_json
from tests.support.served import started
from tests.support.upstream import running_upstream, write_remote_catalog

JSON = {"AIO_LOG_FORMAT": " JSON"}


@pytest.fixture(autouse=True)
def own_logging() -> Any:
    """What a block configures does not outlive the test."""
    root = logging.getLogger()
    before, level = root.handlers[:], root.level
    yield
    root.handlers[:] = before
    root.setLevel(level)


def objects(text: str) -> list[dict[str, Any]]:
    found = [json.loads(line) for line in text.splitlines()]
    assert all({"time", "level", "logger", "message"} <= one.keys() for one in found)
    return found


def test_what_libraries_write_is_json(capsys: pytest.CaptureFixture[str]) -> None:
    library = logging.getLogger("library_with_a_handler")
    passed_on = '{"time":"2026-01-01T00:00:00.000Z","level":"info","logger":"x","message":"of a child"}'
    with all_as_json():
        print("two\nlines", "of", 1, "print")
        print("Error: a \x1b[31m reason \udce9\u2028", file=sys.stderr)
        print(passed_on)
        print('{"no": "log line"}')
        library.addHandler(handler := logging.StreamHandler())
        library.propagate = False
        library.warning("a line %d", 2)
        warnings.warn("old", DeprecationWarning, stacklevel=1)
        thread = threading.Thread(target=lambda: 1 // 0, name="t")
        thread.start()
        thread.join()
        sys.stdout.write("without an end")
    library.removeHandler(handler)
    said = capsys.readouterr()
    out = objects(said.out)
    assert [one["message"] for one in out] == [
        "two\nlines of 1 print", "of a child", '{"no": "log line"}', "without an end",
    ]  # fmt: skip
    assert said.out.splitlines()[1] == passed_on
    error, line, *others = objects(said.err)
    assert (error["level"], error["message"].startswith("a \x1b[31m reason ")) == ("error", True)
    assert "\x1b" not in said.err
    assert (line["level"], line["message"]) == ("warning", "a line 2")
    assert [one.get("error") for one in others if "error" in one] == ["ZeroDivisionError"]


def test_an_exception_that_nothing_catches_is_one_object(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended, all_as_json():
        raise RuntimeError("unforeseen")
    assert ended.value.code == 1
    (found,) = objects(capsys.readouterr().err)
    assert (found["level"], found["error"]) == ("critical", "RuntimeError")
    assert found["stack"][0] == "RuntimeError: unforeseen"
    assert sys.stderr is not None
    assert not hasattr(sys.stderr, "below")


@pytest.mark.processes
@pytest.mark.parametrize("what", ["serve", "worker"])
def test_a_start_and_an_end_are_json(tmp_path: Path, what: str) -> None:
    with running_upstream() as upstream:
        catalog = str(write_remote_catalog(tmp_path / "catalog.toml", upstream.base_url))
        options = ("--port", "0", "--catalog", catalog)
        with started(tmp_path, tmp_path / "cache", *options, environment=JSON, what=what) as process:
            assert process.stdout is not None
            said = ""
            for line in process.stdout:
                said += line
                if " ready on " in line or "Probes and metrics are on" in line:
                    break
        said += process.stdout.read()
    assert any("AIO 0" in one["message"] for one in objects(said))
    assert len(objects((tmp_path / "log").read_text())) > 3


@pytest.mark.processes
@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--catalog", "/nowhere.toml"], "/nowhere.toml"),
        (["--no-such-option"], "No such option"),
        (["--port", "99999"], "AIO_PORT"),
    ],
)
def test_a_start_that_fails_says_why_as_json(tmp_path: Path, options: list[str], said: str) -> None:
    code = "from gateway.cli import main; main()"
    done = subprocess.run(
        [sys.executable, "-c", code, "serve", "--data-dir", str(tmp_path), *options],
        env=os.environ | JSON, capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert done.returncode != 0
    assert objects(done.stdout) == []
    last = objects(done.stderr)[-1]
    assert last["level"] == "error"
    assert said in last["message"]
