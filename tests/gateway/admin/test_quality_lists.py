"""`/admin/api`: operators list the loop's work, see its estimates, and start a retraining; other callers cannot."""

import asyncio
from typing import Any

import msgspec
import pytest
import pytest_asyncio
from sqlalchemy import insert

from gateway.base.settings import Settings
from migrations.tables.quality import classifier_versions, verifications
from migrations.tables.requests import requests
from quality.quality_loop import QualityLoop
from tests.gateway.operations.dashboard.browsing import sign_in
from tests.support.app import RunningGateway, StartApp, running_gateway

pytestmark = pytest.mark.asyncio(loop_scope="module")
ADMIN = "test-admin-07158b06243a3ef4b8e7746013aa659a"
VERDICT = {
    "request_id": "r", "model": "m", "sampled_probability": 1.0, "status": "done", "judge": "exact", "cost_usd": 0.0,
    "reserved_usd": 0.0, "attempts": 1, "verifier_answer": "a secret", "judged_answer": "a secret",
}  # fmt: skip
SERVED = {
    "api": "chat", "requested_model": "auto", "stream": False, "status": "ok", "http_status": 200, "model": "m",
    "attempts": [], "messages": [{"role": "user", "content": "a secret"}], "answer": "a secret", "prompt_tokens": 1,
    "completion_tokens": 1, "cached_tokens": 0, "reasoning_tokens": 0, "cost_usd": 0.0, "baseline_cost_usd": 0.0,
    "route_ms": 0.1, "e2e_ms": 1.0, "overhead_ms": 0.2,
}  # fmt: skip


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def aio(tmp_path_factory: pytest.TempPathFactory, module_app: StartApp) -> RunningGateway:
    data = tmp_path_factory.mktemp("data")
    running = await module_app(Settings(data_dir=str(data), drain_seconds=5, admin_keys=f"ann={ADMIN}"))
    running.http.headers["authorization"] = f"Bearer {ADMIN}"
    async with running.serving.database.begin() as connection:
        for tier, label, at in ((1, "worse", 1.0), (2, "no_worse", 2.0), (1, "no_worse", 3.0)):
            row = VERDICT | {"tier": tier, "label": label, "created_at": at, "sampled_reason": f"sample {at}"}
            await connection.execute(insert(verifications).values(**row | {"request_id": f"r{at}"}))
        for number, key in enumerate(("ann", "bob", "ann")):
            row = SERVED | {"request_id": f"q{number}", "key_id": key, "tier": 1 + number % 2}
            await connection.execute(insert(requests).values(**row, created_at=float(number)))
        version = {"version": "v-test", "path": "", "status": "refused", "reason": "loses", "metrics": {}}
        await connection.execute(insert(classifier_versions).values(**version, created_at=1.0))
    return running


async def listed(aio: RunningGateway, what: str, **query: Any) -> list[dict[str, Any]]:
    answer = await aio.http.get(f"/admin/api/{what}", params=query)
    assert answer.status_code == 200, answer.text
    rows: list[dict[str, Any]] = answer.json()["rows"]
    return rows


async def test_verifications_are_filtered_and_paged_without_texts(aio: RunningGateway) -> None:
    assert [row["created_at"] for row in await listed(aio, "verifications")] == [3.0, 2.0, 1.0]
    assert [row["created_at"] for row in await listed(aio, "verifications", tier=1, label="worse")] == [1.0]
    first = (await aio.http.get("/admin/api/verifications", params={"limit": 2})).json()
    rest = await listed(aio, "verifications", limit=2, cursor=first["next"])
    assert [row["created_at"] for row in rest] == [1.0]
    assert "secret" not in str(first)


async def test_one_verification_is_shown_with_the_verifiers_answer(aio: RunningGateway) -> None:
    number = (await listed(aio, "verifications"))[0]["verification_id"]

    shown = (await aio.http.get(f"/admin/api/verifications/{number}")).json()["verification"]

    assert shown["verifier_answer"] == "a secret"
    assert (await aio.http.get("/admin/api/verifications/999999")).status_code == 404


async def test_versions_say_what_became_of_them(aio: RunningGateway) -> None:
    [refused] = await listed(aio, "artefacts", status="refused")
    assert (refused["version"], refused["reason"]) == ("v-test", "loses")


async def test_estimates_show_evidence_judges_and_spending(aio: RunningGateway) -> None:
    shown = (await aio.http.get("/admin/api/estimates")).json()
    assert {"evidence_of_shift", "upgrade_rates", "calibrations", "spending", "acceptance"} <= set(shown)


async def test_a_retraining_can_be_ordered_and_leaves_its_traces(aio: RunningGateway) -> None:
    answer = await aio.http.post("/admin/api/retrainings", json={"reason": "prices changed"})
    assert (answer.status_code, answer.json()) == (202, {"started": True})
    assert aio.operations.quality_loop is not None
    await aio.operations.quality_loop.retraining_ended()

    [order] = await listed(aio, "transitions", action="retrain.ordered")
    assert (order["actor"], order["reason"]) == ("ann", "prices changed")
    [run] = await listed(aio, "retrainings", trigger="button")
    assert run["status"] == "done"


@pytest.mark.parametrize(
    ("query", "param"),
    [({"tier": "one"}, "tier"), ({"limit": "0"}, "limit"), ({"cursor": "x"}, "cursor"), ({"colour": "red"}, "colour")],
)
async def test_a_query_that_cannot_be_understood_is_refused_by_parameter(
    aio: RunningGateway, query: dict[str, str], param: str
) -> None:
    answer = await aio.http.get("/admin/api/verifications", params=query)
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, param)


@pytest.mark.parametrize("path", ["verifications", "artefacts", "transitions", "retrainings", "estimates"])
async def test_lists_require_an_admin_key(aio: RunningGateway, path: str) -> None:
    answer = await aio.http.get(f"/admin/api/{path}", headers={"authorization": "Bearer wrong"})
    assert answer.status_code == 401


async def test_without_a_monitor_there_are_no_estimates(settings: Settings) -> None:
    async with running_gateway(msgspec.structs.replace(settings, monitor=False)) as gateway:
        answer = await gateway.http.get("/admin/api/estimates")
    assert (answer.status_code, answer.json()["error"]["code"]) == (409, "monitor_off")


async def test_a_monitor_that_has_not_started_is_said_to_be_starting(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def unfinished(loop: QualityLoop) -> None:
        await asyncio.Event().wait()

    monkeypatch.setattr(QualityLoop, "start", unfinished)
    given = msgspec.structs.replace(settings, monitor=True, admin_keys=f"ann={ADMIN}")
    async with running_gateway(given) as gateway:
        answer = await gateway.http.get("/admin/api/estimates", headers={"authorization": f"Bearer {ADMIN}"})
        await sign_in(gateway.http, ADMIN)
        page = await gateway.http.get("/admin/quality/details")
    assert (answer.status_code, answer.json()["error"]["code"]) == (503, "monitor_starting")
    assert "retry-after" in answer.headers
    assert page.status_code == 200


async def test_requests_are_filtered_and_paged_without_texts(aio: RunningGateway) -> None:
    assert [row["request_id"] for row in await listed(aio, "requests")] == ["q2", "q1", "q0"]
    assert [row["request_id"] for row in await listed(aio, "requests", key_id="ann", tier=1)] == ["q2", "q0"]
    first = (await aio.http.get("/admin/api/requests", params={"limit": 2})).json()
    assert [row["request_id"] for row in await listed(aio, "requests", cursor=first["next"])] == ["q0"]
    assert "secret" not in str(first)
    assert (await aio.http.get("/admin/api/requests", params={"colour": "red"})).status_code == 400
