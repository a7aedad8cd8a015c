"""The real model over a WebSocket, in a real process."""

import json
from typing import Any

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families
from websockets.sync.client import ClientConnection, connect

from tests.polling import until
from tests.support.served import ServedProcess

pytestmark = pytest.mark.processes

CHAT = {"model": "tier-1", "messages": [{"role": "user", "content": "Count from one to five."}], "temperature": 0}


def opened(aio: ServedProcess) -> ClientConnection:
    return connect(aio.url.replace("http://", "ws://") + "/v1/chat/completions/ws")


def running(aio: ServedProcess) -> float | None:
    """Requests that the core computes; None where it gave no number in time."""
    families = text_string_to_metric_families(httpx.get(f"{aio.url}/metrics").text)
    name = "vllm:num_requests_running"
    values = [sample.value for family in families if family.name == name for sample in family.samples]
    return sum(values) if values else None


def test_a_socket_says_what_server_sent_events_say(aio: ServedProcess) -> None:
    fields = CHAT | {"max_tokens": 12}
    chunks = aio.client.chat.completions.create(**fields, stream=True)  # type: ignore[call-overload]
    by_events = "".join(chunk.choices[0].delta.content or "" for chunk in chunks)
    with opened(aio) as socket:
        for _ in range(2):
            socket.send(json.dumps(fields))
            said, frame = "", json.loads(socket.recv(60))
            while "choices" in frame:
                said += frame["choices"][0]["delta"].get("content") or ""
                frame = json.loads(socket.recv(60))
            assert said == by_events != ""
            assert (frame["status"], frame["usage"]["completion_tokens"]) == ("completed", 12)


def test_cancelling_and_leaving_free_the_sequences_of_the_core(aio: ServedProcess) -> None:
    endless: dict[str, Any] = CHAT | {"max_tokens": 2000, "ignore_eos": True}
    with opened(aio) as socket:
        for name in "ab":
            socket.send(json.dumps(endless | {"request": name}))
        started = {json.loads(socket.recv(60))["request"] for _ in range(12)}
        assert started == {"a", "b"}
        socket.send(json.dumps({"type": "cancel", "request": "a"}))
        frame = json.loads(socket.recv(60))
        while frame.get("status") != "cancelled":
            frame = json.loads(socket.recv(60))
        assert frame["request"] == "a"
        until(lambda: running(aio) == 1)
    until(lambda: running(aio) == 0)
