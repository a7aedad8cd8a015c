"""Errors that repeat what a server was sent: the key of its tier, and its own address, in any field."""

import base64
import json
from typing import Any
from urllib.parse import quote

from tests.attacks.hostile_upstream import Asked, upstream_answer
from tests.tiers.remote.provider_shapes import event_stream_message

KEY = "sk-upstream-4f9c7be12d08a6532290"
"""Of every tier in front of a hostile upstream."""
FIELDS = ("message", "type", "param", "code", "detail", "status", "reason", "metadata", "loc", "request_id")
_STATUSES = (400, 400, 400, 400, 401, 403, 404, 413, 422, 429, 503)
# After another one a tier is passed over for a second.
_PAUSING, _PAUSES = (302, 409, 500), 0.02


def _said(asked: Asked) -> str:
    """What is repeated, in one of its forms."""
    url = f"http://{asked.address}"
    return asked.draw.choice([
        KEY, KEY, f"Bearer {KEY}", f"Incorrect API key provided: {KEY}.", quote(f"key={KEY}&x=1", safe=""),
        base64.b64encode(KEY.encode()).decode(), f"{'x' * 390}{KEY}", f"{'x' * 480}{KEY}", f"{'y' * 990}{KEY}",
        url, f"{url}{asked.path}", f"POST {url}{asked.path}?key={KEY} failed",
        f"HTTPConnectionPool(host='127.0.0.1', port={asked.address.rpartition(':')[2]}): {asked.path} timed out",
        f"{asked.address} refused x-api-key: {KEY}",
    ])  # fmt: skip


def _error(asked: Asked) -> dict[str, Any]:
    """An error whose fields repeat it: some of them, as many servers shape it."""
    draw = asked.draw
    named: dict[str, Any] = dict.fromkeys(("message", "type", "code"), "invalid") | {"retry_after": 0}
    for name in draw.sample(FIELDS, draw.randint(1, 4)):
        said = _said(asked)
        named[name] = {"raw": said} if name == "metadata" else ["body", said] if name == "loc" else said
    shapes = [{"error": named}, {"error": named}, named, {"detail": [named]}, {"errors": [named]}, {"message": named}]
    return draw.choice([*shapes, {"error": _said(asked)}, {"error": {"message": json.dumps({"error": named})}}])


@upstream_answer
async def echoes(asked: Asked) -> None:
    """An error before the answer, as its first event, or after a text; JSON, a page, or a text; by any status."""
    draw, error = asked.draw, _error(asked)
    body = json.dumps(error).encode()
    if asked.streamed and draw.random() < 0.4:
        begun = asked.wire.begin() + (asked.wire.text("Hello") if draw.random() < 0.5 else b"")
        if asked.wire.name == "bedrock":
            event = event_stream_message("modelStreamErrorException", error)
        else:
            event = b"event: error\ndata: %b\n\n" % body
        await asked.head()
        await asked.send(begun + event)
        return
    status, kind = draw.choice(_PAUSING if draw.random() < _PAUSES else _STATUSES), "application/json"
    if draw.random() < 0.2:
        status, kind = 200, draw.choice(["application/json", "text/html", f"application/json; by={KEY}"])
    elif draw.random() < 0.2:
        kind, body = draw.choice([
            ("text/html", f"<html><title>{_said(asked)}</title></html>".encode()),
            ("text/plain", _said(asked).encode()),
        ])  # fmt: skip
    lines = [b"retry-after: 0", f"location: http://{asked.address}/{KEY}".encode(), f"x-key: {KEY}".encode()]
    if draw.random() < 0.1:
        lines.append(f"content-encoding: {KEY}".encode())
    await asked.head(*lines, b"content-length: %d" % len(body), status=status, kind=kind)
    await asked.send(body)
