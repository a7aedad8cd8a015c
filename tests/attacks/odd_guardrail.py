"""A server of guardrails that answers as a text of the request says: rightly, or as no guardrail should."""

import asyncio
import gzip
import json
import re
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

from tests.loop_thread import on_a_thread
from tests.support.upstream import Call, LoopbackServer

TIMEOUT_SECONDS = 1.0
MASKED = "only this is left"
_ASKED = re.compile(r"guard:(request|answer):([a-z_0-9]+)")
_HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\nconnection: close\r\n"
_PASS = b'{"action": "pass"}'


def _json(value: Any) -> bytes:
    return _HEAD + b"\r\n" + (value if isinstance(value, bytes) else json.dumps(value).encode())


def _status(status: int, body: bytes = _PASS, more: bytes = b"") -> bytes:
    return b"HTTP/1.1 %d X\r\ncontent-type: application/json\r\nconnection: close\r\n%b\r\n%b" % (status, more, body)


RIGHT = {
    "pass": _json(_PASS),
    "pass_in_spaces": _json(b" \n" + _PASS + b"\n "),
    "pass_of_another_type": _status(200).replace(b"application/json", b"text/plain"),
    "pass_with_more": _json({"action": "pass", "score": 0.1, "more": [1, {"a": None}], "reason": "fine"}),
}
"""Verdicts that let the texts pass."""
WRONG = {
    "nested": _json(b'{"more":' + b"[" * 60_000),
    "nested_objects": _json(b'{"action":"pass","more":' + b'{"a":' * 60_000 + b"1" + b"}" * 60_001),
    "not_utf8": _json(b'{"action": "pass", "reason": "\xff"}'),
    "utf16": _json(_PASS.decode().encode("utf-16")),
    "byte_order_mark": _json(b"\xef\xbb\xbf" + _PASS),
    "empty": _json(b""),
    "cut_off": _json(_PASS[:-2]),
    "more_behind": _json(_PASS + _PASS),
    "single_quotes": _json(b"{'action': 'pass'}"),
    "a_list": _json([{"action": "pass"}]),
    "a_word": _json("pass"),
    "true": _json(True),
    "null": _json(None),
    "a_number": _json(b"1e999"),
    "nothing": _json({}),
    "an_error": _json({"error": {"message": "overloaded"}}),
    "action_null": _json({"action": None}),
    "action_true": _json({"action": True}),
    "action_in_capitals": _json({"action": "PASS"}),
    "action_unknown": _json({"action": "allow"}),
    "action_in_a_list": _json({"action": ["pass"]}),
    "action_with_nul": _json({"action": "pass\0"}),
    "reason_of_another_type": _json({"action": "pass", "reason": 7}),
    "texts_of_another_type": _json({"action": "pass", "texts": "x"}),
    "no_texts": _json({"action": "replace"}),
    "too_many_texts": _json({"action": "replace", "texts": ["x"] * 50}),
    "texts_of_null": _json({"action": "replace", "texts": [None]}),
    "a_lone_surrogate": _json(b'{"action": "replace", "texts": ["\\ud800"]}'),
    "large": _json({"action": "pass", "reason": "x" * 4_000_000}),
    "many_keys": _json({f"k{number}": number for number in range(200_000)} | {"action": "pass"}),
    "status_204": _status(204, b""),
    "status_201": _status(201),
    "status_301": _status(301, more=b"location: http://127.0.0.1:9/\r\n"),
    "status_401": _status(401),
    "status_429": _status(429, more=b"retry-after: 999999\r\n"),
    "status_500": _status(500),
    "status_999": _status(999),
    "no_http": b"pass\r\n\r\n" + _PASS,
    "no_end_of_head": _HEAD,
    "endless_head": _HEAD + b"x: " + b"y" * 1_000_000,
    "many_heads": _HEAD + b"x: y\r\n" * 50_000 + b"\r\n" + _PASS,
    "too_short": _HEAD + b"content-length: 999\r\n\r\n" + _PASS,
    "negative_length": _HEAD + b"content-length: -1\r\n\r\n" + _PASS,
    "a_size_that_is_none": _HEAD + b"transfer-encoding: chunked\r\n\r\nzz\r\n" + _PASS,
    "no_gzip": _HEAD + b"content-encoding: gzip\r\n\r\n" + _PASS,
    "gzip_bomb": _HEAD
    + b"content-encoding: gzip\r\n\r\n"
    + gzip.compress(b'{"action":"pass","reason":"' + b"x" * 50_000_000 + b'"}'),
    "closed": b"",
}
"""Answers that are no verdict."""
SLOW = ("silent", "dripped", "dripped_head")
"""Verdicts that come too late."""


class _OddGuardrail:
    def __init__(self) -> None:
        self.server = LoopbackServer(self._judge)

    async def _judge(self, call: Call) -> None:
        self.server.calls.clear()
        texts = [one["text"] for one in call.body["texts"]]
        asked = _ASKED.search(" ".join(texts))
        name = asked[2] if asked is not None and asked[1] == call.body["stage"] else "pass"
        with suppress(OSError):
            if name == "block":
                await call.send(_json({"action": "block", "reason": "it is not allowed"}))
            elif name == "replace":
                await call.send(_json({"action": "replace", "texts": [MASKED] * len(texts)}))
            elif name in SLOW:
                await self._delay(call, name)
            else:
                await call.send((RIGHT | WRONG)[name])

    async def _delay(self, call: Call, name: str) -> None:
        sent = b"" if name == "silent" else RIGHT["pass"]
        if name == "dripped":
            await call.send(_HEAD + b"\r\n")
            sent = _PASS
        for byte in sent:
            await call.send(bytes((byte,)))
            await asyncio.sleep(3 * TIMEOUT_SECONDS / len(sent))
        if not sent:
            await asyncio.sleep(3 * TIMEOUT_SECONDS)


@contextmanager
def odd_guardrail() -> Iterator[str]:
    """Serve on a free loopback port until the block ends; the URL."""
    with on_a_thread(_OddGuardrail().server) as (server, _):
        yield f"{server.base_url}/check"
