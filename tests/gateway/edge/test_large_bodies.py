"""While a body of megabytes is checked and decoded, other requests are answered."""

import asyncio
import threading
from typing import Any

import pytest

from gateway.inference.api import json_bounds, parsing
from gateway.inference.api.messages import messages
from tests.gateway.running_gateway import RunningGateway
from tests.polling import eventually

pytestmark = pytest.mark.asyncio(loop_scope="module")


def chat(content: str) -> dict[str, Any]:
    return {"model": "tier-1", "messages": [{"role": "user", "content": content}], "max_tokens": 4}


@pytest.mark.parametrize(
    ("path", "fields", "param"),
    [
        # Decoded, and more than the context of a tier.
        ("/v1/chat/completions", {}, "messages"),
        ("/v1/chat/completions", {"max_tokens": "many"}, "max_tokens"),
        ("/v1/route", {"max_tokens": "many"}, "max_tokens"),
    ],
)
async def test_a_large_body_is_decoded_while_others_are_answered(
    gateway: RunningGateway, monkeypatch: pytest.MonkeyPatch, path: str, fields: dict[str, Any], param: str
) -> None:
    held, may_go_on, check = threading.Event(), threading.Event(), json_bounds.json_excess

    def held_check(text: bytes) -> json_bounds.Excess | None:
        if len(text) > 100_000:
            held.set()
            assert may_go_on.wait(60), "the event loop waits for this check"
        return check(text)

    monkeypatch.setattr(parsing, "json_excess", held_check)
    large = asyncio.create_task(gateway.http.post(path, json=chat("word " * 100_000) | fields))
    await eventually(held.is_set)

    small = await gateway.http.post("/v1/chat/completions", json=chat("hello"))

    assert small.status_code == 200
    assert not large.done()
    may_go_on.set()
    answer = await large
    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == param


@pytest.mark.parametrize("path", ["/v1/messages", "/v1/messages/count_tokens"])
async def test_a_conversation_of_many_blocks_is_read_while_others_are_answered(
    gateway: RunningGateway, monkeypatch: pytest.MonkeyPatch, path: str
) -> None:
    threads: list[threading.Thread] = []
    read = messages.chat_of

    def noted(*given: Any) -> Any:
        threads.append(threading.current_thread())
        return read(*given)

    monkeypatch.setattr(messages, "chat_of", noted)
    blocks = [{"type": "text", "text": "word"}] * 6000
    for content in ("hello", blocks):
        asked = {"model": "tier-1", "messages": [{"role": "user", "content": content}], "max_tokens": 4}
        if path.endswith("count_tokens"):
            del asked["max_tokens"]
        await gateway.http.post(path, json=asked)

    assert [thread is threading.current_thread() for thread in threads] == [True, False]
