"""While a body of megabytes is checked and decoded, other requests are answered."""

import asyncio
import threading
from types import ModuleType
from typing import Any

import pytest

from gateway.inference.api import build_request, completions, json_bounds, parsing
from gateway.inference.api.messages import messages
from gateway.inference.api.responses import exchange
from tests.polling import eventually
from tests.support.app import RunningGateway

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


@pytest.mark.parametrize(
    ("path", "module", "converter"),
    [
        ("/v1/messages", messages, "read_messages"),
        ("/v1/messages", build_request, "request_of"),
        ("/v1/messages/count_tokens", messages, "read_messages"),
        ("/v1/chat/completions", completions, "chat_request"),
        ("/v1/responses", exchange, "read_responses"),
    ],
)
async def test_a_conversation_of_thousands_of_turns_is_converted_while_others_are_answered(
    gateway: RunningGateway, monkeypatch: pytest.MonkeyPatch, path: str, module: ModuleType, converter: str
) -> None:
    threads: list[threading.Thread] = []
    convert = getattr(module, converter)

    def noted(*given: Any, **named: Any) -> Any:
        threads.append(threading.current_thread())
        return convert(*given, **named)

    monkeypatch.setattr(module, converter, noted)
    for number in (1, 9000):
        turns = [{"role": "user", "content": "word"}] * number
        asked = {"model": "tier-1", "input" if path == "/v1/responses" else "messages": turns}
        if path == "/v1/messages":
            asked["max_tokens"] = 4
        await gateway.http.post(path, json=asked)

    assert [thread is threading.current_thread() for thread in threads] == [True, False]
