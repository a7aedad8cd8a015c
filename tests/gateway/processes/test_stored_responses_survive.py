"""Stored responses across gateway processes: found at once by another process, and after all were killed."""

import os
import signal
from pathlib import Path

import httpx
import pytest

from tests.gateway.processes.test_workers import workers
from tests.support.served import served
from tests.support.upstream import running_upstream, write_remote_catalog

pytestmark = pytest.mark.processes


def test_a_conversation_goes_on_in_any_process_and_after_a_kill(tmp_path: Path) -> None:
    with running_upstream() as upstream:
        catalog = write_remote_catalog(tmp_path / "catalog.toml", upstream.base_url)
        options = ("--catalog", str(catalog), "--gateway-workers", "2")
        with served(tmp_path / "data", tmp_path / "cache", *options) as aio:
            last, said = None, 0
            for turn in range(12):
                # A new connection each time: the kernel chooses the process.
                with httpx.Client(base_url=aio.url, timeout=60) as client:
                    body = {"model": "tier-1", "input": f"turn {turn}", "previous_response_id": last, "stream": True}
                    answer = client.post("/v1/responses", json=body)
                assert answer.status_code == 200, answer.text
                last = answer.text.split('"id":"', 1)[1].split('"', 1)[0]
                said += 1
            children = workers(aio)
            assert len(children) == 2
            for pid in children:
                os.kill(pid, signal.SIGKILL)
            aio.kill()
        with served(tmp_path / "data", tmp_path / "cache", "--catalog", str(catalog)) as aio:
            items = aio.client.responses.input_items.list(last or "", order="asc", limit=100)
            assert len(items.data) == 2 * said - 1
            answer = aio.client.responses.create(model="tier-1", input="And now?", previous_response_id=last)
            assert answer.output_text == "And now?"
