"""A key that is paused while a server with two workers runs: refused by both, and admitted by both once resumed."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.polling import until
from tests.support.served import served
from tests.support.upstream import Upstream, write_remote_catalog

pytestmark = pytest.mark.processes


def test_both_workers_follow_a_pause_by_the_api_and_its_end_by_the_command(tmp_path: Path, upstream: Upstream) -> None:
    catalog = write_remote_catalog(tmp_path / "catalog.toml", upstream.base_url)
    data = tmp_path / "data"
    options = ["--gateway-workers", "2", "--catalog", str(catalog)]
    with served(data, tmp_path / "cache", *options, environment={"AIO_KEYS_POLL_SECONDS": "0.05"}) as aio:
        key = aio.admin.post("/admin/api/keys", json={"name": "ada"}).raise_for_status().json()["key"]

        def all_say(status: int) -> bool:
            # Twenty connections reach both workers, but for one run in 500,000.
            return {aio.ask(key=key).status_code for _ in range(20)} == {status}

        until(lambda: all_say(200))
        aio.admin.post("/admin/api/keys/ada/pause", json={"reason": "a loop"}).raise_for_status()
        until(lambda: all_say(401))
        assert all_say(401)
        error = aio.ask(key=key).json()["error"]
        assert error["code"] == "invalid_api_key"
        assert error["message"].startswith("This API key is paused until an administrator resumes it.")

        order = ["keys", "resume", "ada", "--data-dir", str(data)]
        command = [sys.executable, "-c", "from gateway.cli import main; main()", *order]
        said = subprocess.run(command, capture_output=True, text=True, check=True).stdout
        assert "is resumed; running servers admit it within seconds" in said
        until(lambda: all_say(200))
        rows = aio.admin.get("/admin/api/transitions?limit=2").raise_for_status().json()["rows"]
        assert [row["action"] for row in rows] == ["key.resumed", "key.paused"]
