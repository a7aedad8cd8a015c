"""Refused requests of a served process: counted in metrics and by minute in the database, shown, and bounded."""

import re
import time
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.gateway.operations.dashboard.browsing import sign_in
from tests.polling import eventually, until
from tests.support.administrator import ADMIN_HEADERS
from tests.support.served import Serve, ServedProcess
from tests.support.upstream import Upstream

pytestmark = pytest.mark.processes


@pytest.fixture
def aio(upstream: Upstream, served: Serve) -> ServedProcess:
    return served(upstream=upstream, environment={"AIO_KEYS_POLL_SECONDS": "0.1"})


def test_each_refusal_is_found_by_key_code_and_limit(aio: ServedProcess, tmp_path: Path) -> None:
    slow = made_key(aio, "slow", requests_per_minute=1)
    poor = made_key(aio, "poor")
    budget = {"kind": "key", "subject": poor["key_id"], "period": "day", "amount_usd": 0.000001}
    assert aio.admin.put("/admin/api/budgets", json=budget).status_code == 200
    assert [aio.ask(key=slow["key"], model="auto").status_code for _ in range(4)] == [200, 429, 429, 429]
    until(lambda: aio.ask(key=poor["key"], max_tokens=100, model="auto").status_code == 429)
    assert aio.ask(key=poor["key"], model="auto").json()["error"]["code"] == "insufficient_quota"
    assert aio.ask(key=poor["key"], model="no-such-model").status_code == 404
    assert aio.ask(key=poor["key"], messages="wrong", model="auto").status_code == 400
    assert httpx.get(f"{aio.url}/v1/no-such-endpoint").status_code == 404
    began = time.time()
    for number in range(500):
        assert aio.ask(key=f"sk-wrong-{number}", model="auto").status_code == 401
    ended = time.time()

    until(lambda: stored(aio, code="invalid_api_key")[1] == 500)

    rows, total = stored(aio, key_id=slow["key_id"], code="rate_limit_exceeded")
    assert {(row["status"], row["reason"], row["path"]) for row in rows} == {
        (429, "the key's limit of 1 requests per minute", "/v1/chat/completions")
    }
    assert total == 3
    rows, total = stored(aio, key_id=poor["key_id"], code="insufficient_quota")
    assert (rows[0]["reason"], total) == ("the key's budget of $1e-06 per day", 2)
    assert "no-such-model" in stored(aio, key_id=poor["key_id"], code="model_not_found")[0][0]["last_message"]
    assert {row["status"] for row in stored(aio, key_id=poor["key_id"])[0]} == {400, 404, 429}
    strangers, _ = stored(aio, code="invalid_api_key")
    minutes = ended // 60 - began // 60 + 1
    assert len(strangers) <= minutes  # one row per minute, however many they are
    assert {row["key_id"] for row in strangers} == {None}

    shown = httpx.get(f"{aio.url}/metrics", headers=ADMIN_HEADERS).text
    assert 'aio_refused_requests_total{code="invalid_api_key",status="401"} 500.0' in shown
    assert re.search(
        rf'aio_key_refused_requests_total{{.*key="{poor["key_id"]}",reason="the key\'s budget.*}} 2\.0', shown
    )
    assert "aio_key_refused" not in httpx.get(f"{aio.url}/metrics").text
    lines = [line for line in (tmp_path / "data/log").read_text().splitlines() if "aio.refused refused" in line]
    assert any("code=insufficient_quota" in line and f"key={poor['key_id']}" in line for line in lines)
    assert len([line for line in lines if "invalid_api_key" in line]) <= minutes


async def test_pages_answer_why_an_app_gets_a_429(aio: ServedProcess) -> None:
    slow = made_key(aio, "slow", requests_per_minute=1)
    assert [aio.ask(key=slow["key"], model="auto").status_code for _ in range(3)] == [200, 429, 429]
    until(lambda: stored(aio, key_id=slow["key_id"])[1] == 2)

    async with httpx.AsyncClient(base_url=aio.url, timeout=60, follow_redirects=True) as browser:
        await sign_in(browser)
        query = {"status": "refused", "tier": "1", "key_id": slow["key_id"]}
        shown = (await browser.get("/admin/requests", params=query)).text
        assert "the key&#39;s limit of 1 requests per minute" in shown
        assert "Try again in" in shown

        async def told() -> bool:
            shown = (await browser.get("/admin")).text
            return "2 over a rate limit" in shown and "slow" in shown

        await eventually(told, 0.5)
    assert aio.admin.get("/admin/api/traffic").json()["together"]["refused"] == 2


def made_key(aio: ServedProcess, name: str, **terms: Any) -> dict[str, Any]:
    made = aio.admin.post("/admin/api/keys", json={"name": name, "terms": terms})
    assert made.status_code == 201, made.text
    key: dict[str, Any] = made.json()
    return key


def stored(aio: ServedProcess, **chosen: str) -> tuple[list[dict[str, Any]], int]:
    rows = aio.admin.get("/admin/api/refused-requests", params=chosen).json()["rows"]
    return rows, sum(row["count"] for row in rows)
