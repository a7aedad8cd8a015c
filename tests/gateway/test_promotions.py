"""Immediate repair over HTTP: bad verified outcomes promote prompts like theirs, visibly, within a budget."""

import time
from collections.abc import AsyncIterator
from typing import Any

import msgspec
import pytest
import pytest_asyncio
from gateway.routing.recent_in_force import RecentInForce
from sqlalchemy import delete, insert

from classifier.artefact import default_artefact, load_manifest
from classifier.decision import PolicyInputs
from classifier.policy import decide
from gateway.routing.classifier_in_force import ClassifierInForce
from gateway.settings import Settings
from migrations.tables import training_rows
from quality.experience import encode_prompt
from tests.gateway.dashboard.browsing import forms_of, submit, with_user
from tests.gateway.running_gateway import RunningGateway, running_gateway

pytestmark = pytest.mark.asyncio(loop_scope="module")
ADMIN = "an-admin-key-of-some-length"
PROMPT = [{"role": "user", "content": "What is the capital of France?"}]
OTHER = [{"role": "user", "content": "Which of the following is a mammal? A. shark B. whale C. trout D. frog"}]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def aio(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[RunningGateway]:
    """A gateway with the shipped heads as if measured here; tiers 1 and 2 answered PROMPT badly twelve times."""
    data = tmp_path_factory.mktemp("data")
    settings = Settings(data_dir=str(data), drain_seconds=5, admin_keys=f"ann={ADMIN}", monitor=False)
    async with running_gateway(settings) as running:
        running.http.headers["authorization"] = f"Bearer {ADMIN}"
        parts = running.parts
        measured_on = load_manifest(default_artefact()).catalogue_fingerprint
        classifier = ClassifierInForce(parts.settings.registry_path, measured_on)
        classifier.load()
        parts.routing.classifier = classifier
        parts.recent = RecentInForce(parts.database, classifier, parts.metrics)
        yield running


@pytest_asyncio.fixture(autouse=True, loop_scope="module")
async def bad_outcomes(aio: RunningGateway) -> None:
    """Stored afresh for each test, with a day's serving behind it."""
    parts, now = aio.parts, time.time()
    assert isinstance(parts.routing.classifier, ClassifierInForce)
    encoded = encode_prompt(parts.routing.classifier.model, PROMPT)
    row = {
        "source": "verification", "feature_spec": encoded.feature_spec, "embedding": encoded.embedding,
        "features": encoded.features, "no_worse": [False, False, None, True], "weights": [1.0, 1.0, 0, 0],
    }  # fmt: skip
    async with parts.database.begin() as connection:
        await connection.execute(delete(training_rows))
        rows = [{**row, "request_id": f"{now}-{i}", "created_at": now} for i in range(12)]
        await connection.execute(insert(training_rows), rows)
    parts.routing.promotions.book(10.0, 0.0, time.monotonic())
    assert parts.recent is not None
    await parts.recent.catch_up(now + 1)


async def decided(aio: RunningGateway, messages: list[dict[str, str]] = PROMPT, quality: float = 0.7) -> dict[str, Any]:
    answer = await aio.http.post("/v1/route", json={"messages": messages}, headers={"x-aio-quality": str(quality)})
    assert answer.status_code == 200, answer.text
    shown: dict[str, Any] = answer.json()
    return shown


async def promotions(aio: RunningGateway) -> dict[str, Any]:
    answer = await aio.http.get("/admin/api/promotions")
    assert answer.status_code == 200, answer.text
    shown: dict[str, Any] = answer.json()
    return shown


async def test_a_prompt_like_the_bad_ones_is_promoted_and_its_decision_replays(aio: RunningGateway) -> None:
    """QM-05."""
    shown = await decided(aio)
    decision = shown["decision"]
    assert shown["tier"] > 2
    assert "promoted from tier 2: verified outcomes nearby" in shown["reason"]
    assert "verified outcomes nearby" in dict(decision["inputs"]["prediction"]["contributions"])
    replayed = decide(msgspec.convert(decision["inputs"], PolicyInputs))
    assert (replayed.tier, replayed.reason) == (decision["tier"], decision["reason"])
    assert "verified" not in (await decided(aio, OTHER))["reason"]


async def test_a_higher_quality_target_never_gets_a_lower_tier(aio: RunningGateway) -> None:
    """RT-05, with the repair in force."""
    tiers = [(await decided(aio, quality=target / 20))["tier"] for target in range(21)]
    assert tiers == sorted(tiers)


async def test_what_is_in_force_is_listed_counted_and_measured(aio: RunningGateway) -> None:
    shown = await promotions(aio)
    assert sorted(one["tier"] for one in shown["promotions"]) == [1, 2]
    assert (shown["on"], shown["suspended"]) == (True, False)
    one = shown["promotions"][0]
    assert one["worse"] == pytest.approx(12, abs=0.1)
    assert one["expires"] == pytest.approx(one["newest"] + 7 * 86_400)
    assert 0 <= one["cluster"] < 8
    assert list(shown["outcomes"].values()) == [12]
    assert "aio_promotions_in_force 2.0" in (await aio.http.get("/metrics")).text


async def test_promotions_are_suspended_when_their_share_of_the_cost_is_spent(aio: RunningGateway) -> None:
    account = aio.parts.routing.promotions
    spent = 0.2 * account.serving_usd
    account.book(0.0, spent, time.monotonic())
    try:
        assert (await promotions(aio))["suspended"]
        shown = await decided(aio)
        assert "promoted" not in shown["reason"]
        assert shown["decision"]["inputs"]["prediction"]["p_ok_before"] == []
    finally:
        account.book(0.0, -spent, time.monotonic())
    assert "promoted" in (await decided(aio))["reason"]


async def test_a_served_promotion_is_booked(aio: RunningGateway) -> None:
    account = aio.parts.routing.promotions
    before = account.extra_usd
    answer = await aio.http.post("/v1/chat/completions", json={"model": "auto", "messages": PROMPT},
                                 headers={"x-aio-quality": "0.7"})  # fmt: skip
    assert int(answer.headers["x-aio-tier"]) > 2
    await aio.parts.service.idle()
    assert account.extra_usd > before
    assert 'aio_promoted_requests_total{from_tier="2"' in (await aio.http.get("/metrics")).text


async def test_an_operator_switches_it_off_and_on(aio: RunningGateway) -> None:
    for on in (False, True):
        patched = await aio.http.patch("/v1/admin/routing", json={"auto_promotion": on})
        assert patched.status_code == 200, patched.text
        assert ("promoted" in (await decided(aio))["reason"]) is on


async def test_an_operator_resets_it_and_that_is_written_down(aio: RunningGateway) -> None:
    refused = await aio.http.post("/admin/api/promotions/reset", json={})
    assert refused.status_code == 400
    answer = await aio.http.post("/admin/api/promotions/reset", json={"reason": "tier 1 is mended"})
    assert answer.status_code == 200, answer.text
    assert answer.json()["promotions"] == []
    assert "promoted" not in (await decided(aio))["reason"]
    rows = (await aio.http.get("/admin/api/transitions", params={"action": "promotions.reset"})).json()["rows"]
    assert (rows[0]["actor"], rows[0]["reason"]) == ("ann", "tier 1 is mended")


async def test_nobody_sees_or_ends_promotions_without_an_admin_key(aio: RunningGateway) -> None:
    wrong = {"authorization": "Bearer wrong"}
    assert (await aio.http.get("/admin/api/promotions", headers=wrong)).status_code == 401
    order = await aio.http.post("/admin/api/promotions/reset", json={"reason": "x"}, headers=wrong)
    assert order.status_code == 401


async def test_the_dashboard_shows_promotions_and_an_operator_ends_them_there(aio: RunningGateway) -> None:
    end = "/admin/quality/promotions/end"
    async with with_user(aio, "oscar", "operator") as operator, with_user(aio, "vera", "viewer") as viewer:
        seen = await viewer.get("/admin/quality")
        assert "Promoted neighbourhoods" in seen.text
        token = {"csrf_token": forms_of(seen)["/admin/logout"]["fields"]["csrf_token"]}
        assert end not in forms_of(seen)
        assert (await viewer.post(end, data=token | {"reason": "x"})).status_code == 403
        assert (await operator.post(end, data={"reason": "x"})).status_code == 403, "no token"
        page = await operator.get("/admin/quality")
        assert (await submit(operator, page, end)).status_code == 400, "no reason"
        assert (await promotions(aio))["promotions"]
        assert (await submit(operator, page, end, reason="mended")).status_code == 303
        assert (await promotions(aio))["promotions"] == []
        assert "No neighbourhood of prompts is promoted" in (await operator.get("/admin/quality")).text
