"""A catalogue's own labels over HTTP: bad verdicts promote prompts like theirs, good ones and a reset end it."""

import time
from typing import Any
from unittest.mock import AsyncMock

import msgspec
import pytest
import pytest_asyncio
from sqlalchemy import delete, insert

from classifier.decision import PolicyInputs
from classifier.policy.decide import decide
from gateway.inference.classifier_versions import ActiveClassifier, LoadedVersion
from gateway.operations.labels.active_labels import ActiveLabels
from migrations.tables.audit import audit_events
from migrations.tables.quality import training_rows
from quality.learning.own_labels import OwnLabels
from quality.verification.training_rows import encode_prompt
from tests.gateway.operations.dashboard.browsing import forms_of, submit, with_user
from tests.support.app import RunningGateway, StartApp
from tiers.catalog.catalog import CatalogInUse

pytestmark = pytest.mark.asyncio(loop_scope="module")
ADMIN = "test-admin-07158b06243a3ef4b8e7746013aa659a"
PROMPT = [{"role": "user", "content": "What is the capital of France?"}]
RESET = "/admin/api/promotions/reset"
FORGET = "/admin/quality/promotions/end"


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def aio(tmp_path_factory: pytest.TempPathFactory, module_app: StartApp) -> RunningGateway:
    """A gateway with the shipped classifier, which sends PROMPT to tier 1."""
    data = tmp_path_factory.mktemp("data")
    running = await module_app(data_dir=str(data), admin_keys=f"ann={ADMIN}")
    running.http.headers["authorization"] = f"Bearer {ADMIN}"
    serving, operations = running.serving, running.operations
    classifier = ActiveClassifier(serving.settings.registry_path, serving.routing.served.catalog.fingerprint)
    classifier.load()
    serving.routing.classifier = classifier
    operations.active_labels = ActiveLabels(
        serving.database, classifier, operations.metrics, CatalogInUse(serving.routing.served.catalog)
    )
    return running


@pytest_asyncio.fixture(autouse=True, loop_scope="module")
async def bad_outcomes(aio: RunningGateway) -> None:
    """Stored afresh for each test: tiers 1 and 2 answered PROMPT badly."""
    async with aio.serving.database.begin() as connection:
        await connection.execute(delete(training_rows))
        await connection.execute(delete(audit_events).where(audit_events.c.action == "promotions.reset"))
    await label(aio, 40, good=False)


async def label(aio: RunningGateway, count: int, *, good: bool) -> None:
    serving, active_labels, now = aio.serving, aio.operations.active_labels, time.time()
    assert isinstance(serving.routing.classifier, ActiveClassifier)
    assert active_labels is not None
    encoded = encode_prompt(serving.routing.classifier.model, PROMPT)
    row = {
        "source": "verification", "feature_spec": encoded.feature_spec, "embedding": encoded.embedding,
        "features": encoded.features, "classes": encoded.classes, "no_worse": [good, good, None, True],
        "weights": [1.0, 1.0, 0, 0], "created_at": now,
    }  # fmt: skip
    async with serving.database.begin() as connection:
        await connection.execute(insert(training_rows), [{**row, "request_id": f"{now}-{i}"} for i in range(count)])
    await active_labels.catch_up(now + 1)


async def decided(aio: RunningGateway, quality: float = 0.7) -> dict[str, Any]:
    answer = await aio.http.post("/v1/route", json={"messages": PROMPT}, headers={"x-aio-quality": str(quality)})
    assert answer.status_code == 200, answer.text
    shown: dict[str, Any] = answer.json()
    return shown


async def test_a_class_whose_quality_drops_is_promoted_until_it_recovers(aio: RunningGateway) -> None:
    """QM-05."""
    shown = await decided(aio)
    assert shown["tier"] > 2
    inputs = msgspec.convert(shown["decision"]["inputs"], PolicyInputs)
    assert (inputs.prediction.labels[0] > 10, inputs.prediction.good_labels[0]) == (True, 0.0)
    replayed = decide(inputs)
    assert (replayed.tier, replayed.reason) == (shown["tier"], shown["reason"])

    await label(aio, 300, good=True)

    # Of the labels that count, a tenth is still bad: what a strongest answer adds is worth it only to who pays for it.
    back = await decided(aio, quality=0.5)
    assert back["tier"] == 1
    assert "tier 1 was good enough for" in back["reason"]


async def test_a_version_is_given_the_stored_labels_and_serves_without_them_where_they_cannot_be_read(
    aio: RunningGateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    active, classifier = aio.operations.active_labels, aio.serving.routing.classifier
    assert active is not None
    assert isinstance(classifier, ActiveClassifier)
    first, second = LoadedVersion(classifier.model), LoadedVersion(classifier.model)
    assert classifier.before_serving is not None

    await classifier.before_serving([first])
    monkeypatch.setattr(OwnLabels, "catch_up", AsyncMock(side_effect=OSError("away")))
    await classifier.before_serving([second])

    assert first.own is not None
    assert (first.own.labels, second.own) == (40, None)


async def test_a_higher_quality_target_never_gets_a_lower_tier(aio: RunningGateway) -> None:
    """RT-05, with own labels."""
    tiers = [(await decided(aio, quality=target / 20))["tier"] for target in range(21)]
    assert tiers == sorted(tiers)


async def test_an_operator_resets_the_labels_and_that_is_written_down(aio: RunningGateway) -> None:
    assert "aio_own_labels 40.0" in (await aio.http.get("/metrics")).text
    assert (await aio.http.post(RESET, json={})).status_code == 400
    answer = await aio.http.post(RESET, json={"reason": "tier 1 is mended"})
    assert answer.status_code == 200, answer.text
    assert list(answer.json()["labels"].values()) == [0]
    assert (await decided(aio))["tier"] == 1
    rows = (await aio.http.get("/admin/api/transitions", params={"action": "promotions.reset"})).json()["rows"]
    assert (rows[0]["actor"], rows[0]["reason"]) == ("ann", "tier 1 is mended")
    assert "aio_own_labels 0.0" in (await aio.http.get("/metrics")).text


async def test_resetting_them_requires_an_admin_key(aio: RunningGateway) -> None:
    order = await aio.http.post(RESET, json={"reason": "x"}, headers={"authorization": "Bearer wrong"})
    assert order.status_code == 401


async def test_the_dashboard_counts_them_and_an_operator_resets_them_there(aio: RunningGateway) -> None:
    async with with_user(aio, "oscar", "operator") as operator, with_user(aio, "vera", "viewer") as viewer:
        seen = await viewer.get("/admin/quality/details")
        assert "follows 40 labels" in seen.text
        token = {"csrf_token": forms_of(seen)["/admin/logout"]["fields"]["csrf_token"]}
        assert FORGET not in forms_of(seen)
        assert (await viewer.post(FORGET, data=token | {"reason": "x"})).status_code == 403
        assert (await operator.post(FORGET, data={"reason": "x"})).status_code == 403, "no token"
        page = await operator.get("/admin/quality/details")
        assert (await submit(operator, page, FORGET)).status_code == 400, "no reason"
        assert (await submit(operator, page, FORGET, reason="mended")).status_code == 303
        assert "follows 0 labels" in (await operator.get("/admin/quality/details")).text
    assert (await decided(aio))["tier"] == 1
