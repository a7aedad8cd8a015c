"""From nothing to a routed answer in three commands, with real processes: init, serve, a request; and the README's
lines that observe what routing would save.
"""

import os
import re
import shlex
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.gateway.operations.setup.model_servers import model_server, ollama_pages, openai_pages, vllm_pages
from tests.support.served import READY, started

pytestmark = pytest.mark.processes

README = Path(__file__).parents[4] / "README.md"
AIO = [sys.executable, "-c", "from gateway.cli import main; main()"]


def test_init_serve_and_one_request(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The catalogue is named nowhere: serve finds the file that init has written."""
    import httpx

    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(sys.path))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    with ExitStack() as stack:
        pages = [ollama_pages("llama3.2:latest"), vllm_pages("Qwen/Qwen3-8B"), openai_pages("auto", owner="aio")]
        small, large, aio = (stack.enter_context(model_server(each)) for each in pages)
        ports = f"{small.port},{large.port},{aio.port}"
        keyless = {name: value for name, value in os.environ.items() if not name.endswith("_API_KEY")}
        made = subprocess.run(
            [*AIO, "init", "--yes", "--ports", ports], capture_output=True, text=True, env=keyless, check=False
        )
        assert made.returncode == 0, made.stderr
        assert "wrote aio.toml: 2 tiers" in made.stdout
        process = stack.enter_context(started(tmp_path / "data", tmp_path / "cache", "--port", "0"))
        assert process.stdout is not None
        said = ""
        for line in process.stdout:
            said += line
            if ready := READY.search(line):
                break
        assert "catalogue: aio.toml (found in this folder)" in said
        question = {"model": "auto", "messages": [{"role": "user", "content": "What is the capital of Japan?"}]}
        answer = httpx.post(f"{ready[1]}/v1/chat/completions", json=question, timeout=60)  # type: ignore[index]
        assert answer.status_code == 200
        assert answer.headers["x-aio-model"] == "llama3.2:latest"
        assert answer.json()["choices"][0]["message"]["content"].startswith("Tokyo")
        pinned = question | {"model": "Qwen3-8B"}
        assert httpx.post(f"{ready[1]}/v1/chat/completions", json=pinned, timeout=60).status_code == 200  # type: ignore[index]
        assert large.bodies
        assert large.bodies[-1]["model"] == "Qwen/Qwen3-8B"


def test_the_lines_of_the_readme_that_observe_work_as_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The admin key is the one that the server printed; AIO_URL stands for `--url`, because the port is a free one."""
    import httpx

    (lines,) = (block for block in re.findall(r"```sh\n(.*?)```", README.read_text(), re.S) if "mode=observe" in block)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(sys.path))
    for name in ("XDG_CONFIG_HOME", "XDG_CACHE_HOME", "XDG_DATA_HOME"):
        monkeypatch.setenv(name, str(tmp_path))
    (command := tmp_path / "bin" / "aio").parent.mkdir()
    command.write_text(f'#!/bin/sh\nexec {shlex.join(AIO)} "$@"\n')
    command.chmod(0o700)
    with ExitStack() as stack:
        servers = [stack.enter_context(model_server(openai_pages("m"))) for _ in range(2)]
        tiers = (f'[[tiers]]\nname = "{name}"\nurl = "{one.url}"\n' for name, one in zip("ab", servers, strict=True))
        (tmp_path / "aio.toml").write_text("".join(tiers))
        own_key = {"AIO_ADMIN_KEYS": ""}
        process = stack.enter_context(started(tmp_path / "aio", tmp_path / "cache", "--port", "0", environment=own_key))
        assert process.stdout is not None
        said = ""
        for line in process.stdout:
            said += line
            if "Sign in with it" in line:
                break
        url, key = READY.search(said)[1], re.search("Admin key, shown once: +(\\S+)", said)[1]  # type: ignore[index]
        mode, report = observed(lines.replace("sk-aio-…", key), command.parent, url)
        assert mode == 'mode "route" -> "observe"'
        assert report.startswith("What it costs\n\nNothing was spent in this period.")
        question = {"model": "auto", "messages": [{"role": "user", "content": "What is the capital of Japan?"}]}
        answer = httpx.post(f"{url}/v1/chat/completions", json=question, timeout=60)
        assert (answer.status_code, answer.headers["x-aio-tier"]) == (200, "2")


def observed(lines: str, commands: Path, url: str) -> tuple[str, str]:
    """Run `lines` in a shell that finds `aio` in the folder `commands`; return the first line, and what follows."""
    environment = {**os.environ, "PATH": f"{commands}:{os.environ['PATH']}", "AIO_URL": url}
    environment.pop("AIO_ADMIN_KEY", None)
    ran = subprocess.run(["sh", "-e", "-c", lines], capture_output=True, text=True, env=environment, check=False)
    assert ran.returncode == 0, ran.stderr
    mode, _, report = ran.stdout.partition("\n")
    return mode, report
