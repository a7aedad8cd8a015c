"""Hanging up on a real gateway process in front of a real server elsewhere: record, budget and rate are charged."""

import json
import socket
from typing import Any

import httpx
import pytest

from tests.polling import until
from tests.support.served import UNCACHED, Serve, ServedProcess
from tests.support.upstream import Upstream

pytestmark = pytest.mark.processes

CHAT = "/v1/chat/completions"
ADMIN = {"authorization": "Bearer test-admin-07158b06243a3ef4b8e7746013aa659a"}
WORDS = 200


@pytest.fixture(scope="module")
def aio(upstream: Upstream, module_served: Serve) -> ServedProcess:
    environment = {"AIO_ADMIN_KEYS": "root=test-admin-07158b06243a3ef4b8e7746013aa659a", "AIO_KEYS_POLL_SECONDS": "0.2"}
    return module_served(upstream=upstream, environment=environment)


def order(aio: ServedProcess, method: str, path: str, body: Any = None) -> Any:
    answer = httpx.request(method, f"{aio.url}/admin/api{path}", json=body, headers=ADMIN)
    assert answer.is_success, answer.text
    return answer.json()


def new_key(aio: ServedProcess, name: str, **terms: Any) -> tuple[str, dict[str, str]]:
    """The id of a key, and the headers of its requests."""
    made = order(aio, "POST", "/keys", {"name": name, "terms": terms})
    return made["key_id"], {"authorization": f"Bearer {made['key']}"} | UNCACHED


def spent(aio: ServedProcess) -> float:
    rows = order(aio, "GET", "/budgets")["rows"]
    return float(rows[0]["spent_usd"])


def recorded(aio: ServedProcess, request_id: str, key: dict[str, str]) -> Any:
    answer = httpx.get(f"{aio.url}/v1/requests/{request_id}", headers=key)
    return answer.json() if answer.status_code == 200 else None


def test_a_stream_from_a_server_elsewhere_that_is_left_before_its_usage_is_charged_to_budget_and_rate(
    aio: ServedProcess,
) -> None:
    _, key = new_key(aio, "ada", tokens_per_minute=5000)
    order(aio, "PUT", "/budgets", {"kind": "key", "subject": "ada", "period": "total", "amount_usd": 0.27})
    prompt = "linger" + " word" * WORDS
    body = {"model": "tier-4", "messages": [{"role": "user", "content": prompt}], "stream": True, "max_tokens": 400}
    read = ""
    with httpx.stream("POST", aio.url + CHAT, json=body, headers=key, timeout=120) as answer:
        assert answer.status_code == 200
        request_id = answer.headers["x-aio-decision-id"]
        for line in answer.iter_lines():
            read += line
            if read.count(" word") == WORDS:
                break
    until(lambda: recorded(aio, request_id, key))
    record = recorded(aio, request_id, key)
    # Four bytes are a token: of the text, and of the prompt with its message's frame.
    tokens = (len(prompt) + 3) // 4
    assert (record["status"], record["completion_tokens"], record["prompt_tokens"]) == ("aborted", tokens, tokens + 4)
    assert record["cost_usd"] == pytest.approx((100 * (tokens + 4) + 300 * tokens) / 1e6)
    until(lambda: spent(aio) == pytest.approx(record["cost_usd"]))
    tiny = {"model": "tier-1", "messages": [{"role": "user", "content": "Hi"}], "max_tokens": 1}
    after = httpx.post(aio.url + CHAT, json=tiny, headers=key)
    assert int(after.headers["x-ratelimit-remaining-tokens"]) == 5000 - (2 * tokens + 4) - 2
    # What is left bears the prompt alone once more: an answer of 256 tokens is the least that a limit is lowered to.
    refused = httpx.post(aio.url + CHAT, json=body, headers=key)
    assert (refused.status_code, refused.json()["error"]["code"]) == (429, "insufficient_quota")


def test_of_a_whole_answer_of_a_server_elsewhere_that_is_left_the_prompt_is_charged(
    aio: ServedProcess, upstream: Upstream
) -> None:
    key_id, key = new_key(aio, "bob")
    while upstream.held.acquire(blocking=False):  # of answers before
        pass
    payload = json.dumps({"model": "tier-4", "messages": [{"role": "user", "content": "hold on"}]})
    lines = [
        f"POST {CHAT} HTTP/1.1",
        "Host: 127.0.0.1",
        "Content-Type: application/json",
        f"Content-Length: {len(payload)}",
    ]
    lines += [f"{name}: {value}" for name, value in key.items()]
    host, port = aio.url.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port)), timeout=120) as connection:
        connection.sendall(("\r\n".join(lines) + "\r\n\r\n" + payload).encode())
        assert upstream.held.acquire(timeout=120)
    mine = f"/requests?key_id={key_id}"
    until(lambda: order(aio, "GET", mine)["rows"])
    (row,) = order(aio, "GET", mine)["rows"]
    assert (row["status"], row["prompt_tokens"], row["completion_tokens"]) == ("aborted", 6, 0)
    assert row["cost_usd"] == pytest.approx(600e-6)
