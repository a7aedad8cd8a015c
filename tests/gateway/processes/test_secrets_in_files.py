"""A real server reads secrets from files, names variables that are no setting, and refuses a key that is two lines."""

import os
import subprocess
import sys
from pathlib import Path

import httpx
import pytest

from gateway.tenancy.keys.key_secrets import new_key
from tests.http_server import Asked, Reply, answering
from tests.support.served import served
from tests.support.upstream import write_remote_catalog

pytestmark = pytest.mark.processes
CHAT = {"model": "tier-1", "messages": [{"role": "user", "content": "hello"}]}
ANSWER = b"""{"id": "x", "object": "chat.completion", "created": 1, "model": "m", "choices": [{"index": 0,
    "message": {"role": "assistant", "content": "hi"}, "finish_reason": "stop"}],
    "usage": {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2}}"""


def catalog_at(folder: Path, url: str) -> str:
    path = write_remote_catalog(folder / "catalog.toml", url)
    path.write_text(path.read_text().replace("[tiers.remote]", "[tiers.remote]\napi_key_env = 'UPSTREAM_KEY'"))
    return str(path)


def test_keys_of_callers_and_of_servers_come_from_files(tmp_path: Path) -> None:
    asked: list[Asked] = []

    def reply(request: Asked) -> Reply:
        asked.append(request)
        return Reply(ANSWER, headers={"content-type": "application/json"})

    (first, hashed), (second, other) = new_key(), new_key()
    (keys := tmp_path / "keys").write_text(f"ada={hashed}\nbob={other}\n")
    (upstream := tmp_path / "upstream").write_text("sk-of-the-server\n")
    environment = {"AIO_API_KEYS_FILE": str(keys), "AIO_API_KEYS": "", "UPSTREAM_KEY_FILE": str(upstream)}
    environment |= {"AIO_LOGLEVEL": "heron", "AIO_LOG_LEVEL": " INFO", "AIO_MONITOR": "no", "AIO_TEXT_DAYS": ""}
    with (
        answering(reply) as url,
        served(
            tmp_path / "data", tmp_path / "cache", "--catalog", catalog_at(tmp_path, f"{url}/v1"),
            environment=environment,
        ) as process,
    ):  # fmt: skip
        for key in (first, second):
            headers = {"authorization": f"Bearer {key}", "x-aio-cache": "off"}
            answer = httpx.post(f"{process.url}/v1/chat/completions", json=CHAT, headers=headers, timeout=60)
            assert answer.status_code == 200
        assert httpx.post(f"{process.url}/v1/chat/completions", json=CHAT, timeout=60).status_code == 401
    sent = [one.headers["authorization"] for one in asked if one.path.endswith("/chat/completions")]
    assert sent == ["Bearer sk-of-the-server"] * 2
    said = (tmp_path / "data" / "log").read_text()
    assert "'AIO_LOGLEVEL' is no setting and changes nothing; is AIO_LOG_LEVEL meant?" in said
    assert "heron" not in said


def test_a_key_of_two_lines_starts_nothing(tmp_path: Path) -> None:
    code = "from gateway.cli import main; main()"
    options = ["--port", "0", "--data-dir", str(tmp_path), "--catalog", catalog_at(tmp_path, "http://127.0.0.1:9/v1")]
    done = subprocess.run(
        [sys.executable, "-c", code, "serve", *options],
        env=os.environ | {"UPSTREAM_KEY": "sk-heron\r\nx-admin: 1"},
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert done.returncode == 1
    assert "Error: the key in UPSTREAM_KEY has a line break" in done.stderr
    assert "heron" not in done.stdout + done.stderr
