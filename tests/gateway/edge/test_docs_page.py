"""The documentation: any caller may ask for it, so that deriving it must not hold up the others."""

import base64
import hashlib
import re
import threading
from pathlib import Path
from typing import Any

import pytest

from gateway.base.settings import Settings
from gateway.edge import openapi as operations
from gateway.http import http_app
from tests.support.app import RunningGateway, running_gateway

pytestmark = pytest.mark.asyncio(loop_scope="module")


async def test_the_schema_is_derived_outside_the_event_loop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    threads: set[int] = set()
    derive = operations._inlined

    def watched(struct: Any) -> dict[str, Any]:
        threads.add(threading.get_ident())
        return derive(struct)

    monkeypatch.setattr(operations, "_inlined", watched)
    async with running_gateway(Settings(data_dir=str(tmp_path), monitor=False), http=http_app) as gateway:
        document = await gateway.http.get("/docs/openapi.json")
        page = await gateway.http.get("/docs")
    assert (document.status_code, page.status_code) == (200, 200)
    assert "/v1/chat/completions" in page.text
    assert threads
    assert threading.get_ident() not in threads


async def test_no_other_site_shows_the_page_and_nothing_but_its_own_style_is_used(gateway: RunningGateway) -> None:
    page = await gateway.http.get("/docs")
    (style,) = re.findall("<style>(.*?)</style>", page.text, re.S)
    allowed = base64.b64encode(hashlib.sha256(style.encode()).digest()).decode()
    policy = dict(part.strip().split(" ", 1) for part in page.headers["content-security-policy"].split(";"))
    assert (policy["default-src"], policy["frame-ancestors"]) == ("'none'", "'none'")
    assert policy["style-src"] == f"'sha256-{allowed}'"
    assert "<script" not in page.text
    assert " style=" not in page.text
    for path in ("/docs", "/docs/openapi.json"):
        answer = await gateway.http.get(path)
        assert (answer.headers["x-content-type-options"], answer.headers["x-frame-options"]) == ("nosniff", "DENY")


async def test_the_end_of_no_trial_is_no_failure(gateway: RunningGateway) -> None:
    ended = await gateway.http.delete("/admin/api/trial")
    assert (ended.status_code, ended.json()["trial"]) == (200, None)
    assert ended.json()["current"]


async def test_an_integer_that_no_record_can_hold_is_refused(gateway: RunningGateway) -> None:
    parameters = {"type": "object", "properties": {"a": {"maximum": 2**64}}}
    tool = {"type": "function", "function": {"name": "f", "parameters": parameters}}
    body = {"model": "tier-1", "messages": [{"role": "user", "content": "Hello"}], "tools": [tool]}
    refused = await gateway.http.post("/v1/chat/completions", json=body)
    assert (refused.status_code, refused.json()["error"]["param"]) == (400, "tools[0].function.parameters")
