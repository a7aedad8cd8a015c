"""What a scrape of /metrics tells: health to everyone, names and money to those who may see them elsewhere."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from gateway.base.settings import Settings
from gateway.operations.worker_answers import WITH_PRIVATE, worker_answers
from gateway.tenancy.keys.key_secrets import new_key
from tests.gateway.operations.dashboard.browsing import browser, sign_in
from tests.support.app import RunningGateway, StartApp

APP, ADMIN = new_key()[0], new_key()[0]
PRIVATE = {
    "aio_cost_usd", "aio_baseline_cost_usd", "aio_would_be_cost_usd", "aio_cost_per_1k_tokens_usd", "aio_saving_ratio",
    "aio_key_cost_usd", "aio_key_requests", "aio_key_tokens", "aio_replica_serving",
}  # fmt: skip
OPEN = {"vllm:time_to_first_token_seconds", "vllm:e2e_request_latency_seconds", "aio_requests", "aio_tier_healthy"}


def keyed(folder: Path) -> Settings:
    return Settings(data_dir=str(folder), monitor=False, api_keys=f"acme-corp={APP}", admin_keys=f"root={ADMIN}")


async def scraped(gateway: RunningGateway, **headers: str) -> tuple[str, set[str]]:
    """The text of a scrape after a request, and the names of its families."""
    chat = {"model": "tier-1", "messages": [{"role": "user", "content": "hello"}]}
    asked = await gateway.http.post(
        "/v1/chat/completions", json=chat, headers={"authorization": f"Bearer {APP}", "x-aio-cache": "off"}
    )
    assert asked.status_code == 200
    answer = await gateway.http.get("/metrics", headers=headers)
    assert answer.status_code == 200
    return answer.text, {family.name for family in text_string_to_metric_families(answer.text)}


async def test_a_scrape_without_a_key_for_viewing_sees_no_names_and_no_money(tmp_path: Path, app: StartApp) -> None:
    gateway = await app(keyed(tmp_path))
    tries: list[dict[str, str]] = [
        {},
        {"authorization": f"Bearer {APP}"},
        {"authorization": "Bearer wrong"},
        {"authorization": f"Bearer {ADMIN}x"},
        {"authorization": "Basic YTpi"},
        {"x-api-key": APP},
        {"x-forwarded-for": "127.0.0.1", "host": "localhost"},
    ]
    for headers in tries:
        text, names = await scraped(gateway, **headers)
        assert names.isdisjoint(PRIVATE), headers
        assert names >= OPEN
        assert "usd" not in text.lower()
        assert "acme-corp" not in text


async def test_a_scrape_with_a_key_for_viewing_sees_everything(tmp_path: Path, app: StartApp) -> None:
    gateway = await app(keyed(tmp_path))
    order = {"name": "prometheus", "terms": {"scopes": ["viewer"]}}
    admin = {"authorization": f"Bearer {ADMIN}"}
    made = (await gateway.http.post("/admin/api/keys", json=order, headers=admin)).json()
    viewer = {"authorization": f"Bearer {made['key']}"}
    for headers in (admin, viewer, {"x-api-key": made["key"]}):
        text, names = await scraped(gateway, **headers)
        assert names >= (OPEN | PRIVATE)
        assert 'aio_key_cost_usd_total{key="acme-corp"}' in text
    await gateway.http.post(f"/admin/api/keys/{made['key_id']}/revoke", json={}, headers=admin)
    assert (await scraped(gateway, **viewer))[1].isdisjoint(PRIVATE)


async def test_a_key_of_the_settings_may_be_for_viewing_alone(tmp_path: Path, app: StartApp) -> None:
    viewer = new_key()[0]
    gateway = await app(keyed(tmp_path), viewer_keys=f"wall={viewer}")
    headers = {"authorization": f"Bearer {viewer}"}
    _, names = await scraped(gateway, **headers)
    assert names >= (OPEN | PRIVATE)
    assert (await gateway.http.get("/v1/admin/knobs/routing", headers=headers)).status_code == 200
    for method, path in (("PATCH", "/v1/admin/knobs/routing"), ("POST", "/v1/chat/completions")):
        refused = await gateway.http.request(method, path, json={}, headers=headers)
        assert refused.status_code in (401, 403), path
    async with browser(gateway) as client:
        assert (await sign_in(client, viewer)).status_code == 303
        page = await client.get("/admin/requests")
        assert (page.status_code, "viewer" in page.text) == (200, True)


@pytest.mark.parametrize(
    ("bound", "host", "shown"),
    [("127.0.0.1", "127.0.0.1", True), ("127.0.0.1", "evil.example", False), ("0.0.0.0", "127.0.0.1", False)],
)
async def test_without_inference_keys_only_this_machine_by_its_own_name_sees_everything(
    tmp_path: Path, bound: str, host: str, shown: bool, app: StartApp
) -> None:
    gateway = await app(keyed(tmp_path), api_keys="", host=bound, insecure=True)
    _, names = await scraped(gateway, host=f"{host}:{gateway.port}")
    assert names >= OPEN
    assert (names >= PRIVATE) == shown


async def test_of_several_processes_each_gives_the_others_no_more_than_the_caller_may_see(
    tmp_path: Path, app: StartApp
) -> None:
    gateway = await app(keyed(tmp_path))
    await scraped(gateway)
    no_records: Any = SimpleNamespace(answer=None)
    answers = worker_answers(gateway.operations, no_records)
    assert b"acme-corp" not in await answers["metrics"]("")
    assert b"acme-corp" in await answers["metrics"](WITH_PRIVATE)
