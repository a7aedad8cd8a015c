"""A core process is killed under gateway workers: streams end with an error, it is restarted, and service resumes."""

import os
import signal
from pathlib import Path

import httpx
import openai
import pytest

from tests.gateway.processes.test_workers import until, workers
from tests.support.served import Serve, ServedProcess

pytestmark = pytest.mark.processes

FRANCE = [{"role": "user", "content": "What is the capital of France?"}]


def core_of(aio: ServedProcess) -> int | None:
    pids = [pid for pid in workers(aio) if b"core" in Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")]
    return pids[0] if pids else None


def test_a_killed_core_ends_its_streams_with_an_error_and_comes_back(weight_cache: Path, served: Serve) -> None:
    aio = served("--gateway-workers", "2", cache=weight_cache)
    before = core_of(aio)
    assert before is not None
    stream = aio.client.chat.completions.create(
        model="tier-1", messages=FRANCE, max_tokens=2000, stream=True, extra_body={"ignore_eos": True}
    )
    for _ in range(3):
        next(stream)
    os.kill(before, signal.SIGKILL)
    with pytest.raises(openai.APIError):
        list(stream)
    body = {"model": "tier-1", "messages": FRANCE, "max_tokens": 4}
    refused = httpx.post(f"{aio.url}/v1/chat/completions", json=body, timeout=60)
    if refused.status_code != 200:
        assert (refused.status_code, "retry-after" in refused.headers) == (503, True)
    until(lambda: httpx.post(f"{aio.url}/v1/chat/completions", json=body, timeout=60).status_code == 200)
    assert core_of(aio) not in (None, before)
