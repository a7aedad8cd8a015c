"""What `aio serve` prints at its start: the version, what it works with, and whether callers need a key."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from gateway import __version__
from gateway.base.settings import Settings
from gateway.processes.announcement import ready_text, start_text
from tests.support.served import started
from tests.support.upstream import Upstream, write_remote_catalog

MOST_LINES = 8
"""Before the first request to try. What happens when something fails is said by `aio check`."""
_CALLERS = re.compile(r"^Callers need (an API key\.|no API key until you create one: aio keys create NAME)$")


def said_at_start(tmp_path: Path, catalog: Path, *options: str) -> list[str]:
    """The lines of a start up to the one about callers."""
    words = ("--port", "0", "--catalog", str(catalog), *options)
    lines: list[str] = []
    with started(tmp_path / "data", tmp_path / "cache", *words) as process:
        assert process.stdout is not None
        for line in process.stdout:
            lines.append(line.rstrip("\n"))
            if _CALLERS.match(lines[-1]):
                return lines
    raise AssertionError("\n".join(lines) + (tmp_path / "data" / "log").read_text())


@pytest.mark.processes
@pytest.mark.parametrize("workers", [1, 2])
def test_a_start_says_what_it_works_with_and_whether_callers_need_a_key(
    workers: int, upstream: Upstream, tmp_path: Path
) -> None:
    catalog = write_remote_catalog(tmp_path / "catalog.toml", upstream.base_url)
    said = said_at_start(tmp_path, catalog, "--gateway-workers", str(workers))

    assert said[:3] == [
        f"AIO {__version__}   role: all{'   workers: 2' if workers == 2 else ''}",
        f"catalogue: {catalog} (as named by --catalog or AIO_CATALOG)",
        f"data: {tmp_path / 'data'}",
    ]
    assert len([line for line in said if line]) <= MOST_LINES
    assert said[-1].startswith("Callers need no API key")
    command = [sys.executable, "-c", "from gateway.cli import main; main()", "keys", "create", "ada"]
    subprocess.run([*command, "--data-dir", str(tmp_path / "data")], check=True, capture_output=True)
    assert said_at_start(tmp_path, catalog, "--gateway-workers", str(workers))[-1] == "Callers need an API key."


STORES = Settings(
    database_url="postgresql://aio:s3cret@db:5432/aio?password=s3cret",
    redis_url="redis://:s3cret@cache:6379/0",
    trace_exporter="otlp",
    otlp_endpoint="http://ann:s3cret@collector:4318/",
)


def test_addresses_are_shown_without_passwords_and_parameters() -> None:
    (line,) = start_text(STORES, "why").splitlines()[3:]
    assert line == (
        "database: postgresql://aio:***@db:5432/aio   Redis: redis://:***@cache:6379/0   "
        "traces: http://ann:***@collector:4318/v1/traces"
    )


def test_with_every_store_and_many_problems_a_start_still_prints_few_lines() -> None:
    problems = {f"tier {number}": "is down" for number in range(1, 9)}
    ready = ready_text("127.0.0.1", 8080, asks_for_keys=True, problems=problems)
    said = f"{start_text(STORES, 'why')}\n{ready.partition('Try:')[0]}"
    # One line of cards that are not measured yet may come in addition.
    assert len([line for line in said.splitlines() if line]) < MOST_LINES
