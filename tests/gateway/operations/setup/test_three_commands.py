"""From nothing to a routed answer in three commands, with real processes: init, serve, a request."""

import os
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.gateway.operations.setup.model_servers import model_server, ollama_pages, openai_pages, vllm_pages
from tests.gateway.served_process import READY, started

pytestmark = pytest.mark.processes

AIO = [sys.executable, "-c", "from gateway.operations.cli import main; main()"]


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
