"""The routing page: curve, preview on recorded decisions, calibration; and a target applied by authorised users."""

import csv
import io
import time
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import httpx
import msgspec
import numpy as np
import pytest
import pytest_asyncio
from sqlalchemy import insert

from classifier.decision import PolicyInputs, Prediction
from classifier.policy.decide import decide
from gateway.admin.first_day import Predicted, at_targets, in_words
from gateway.admin.routing_reports import preview
from gateway.base.settings import Settings
from gateway.inference.classifier_versions import ActiveClassifier, RoutingRule
from migrations.tables.quality import training_rows, verifications
from migrations.tables.requests import routing_decisions
from quality.estimates.traffic import RoutedRequest
from quality.verification.training_rows import encode_prompt
from tests.gateway.operations.dashboard.browsing import browser, forms_of, sign_in, submit, with_user
from tests.gateway.operations.dashboard.rows import insert_requests
from tests.gateway.running_gateway import RunningGateway, running_gateway

pytestmark = pytest.mark.asyncio(loop_scope="module")
PAGE, APPLY = "/admin/routing", "/admin/routing/target"
SCRIPT = "<script>alert(1)</script>"
COSTS = [0.001, 0.002, 0.004, 0.01]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def aio(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[RunningGateway]:
    """The packaged classifier; no request yet."""
    settings = Settings(data_dir=str(tmp_path_factory.mktemp("data")), monitor=False)
    async with running_gateway(settings) as running:
        classifier = ActiveClassifier(settings.registry_path, running.serving.routing.served.catalog.fingerprint)
        classifier.load()
        running.serving.routing.classifier = classifier
        yield running


def inputs_of(p_ok: list[float]) -> PolicyInputs:
    prediction = Prediction(p_ok=p_ok, kind="measured", novelty=0.1, classifier_version="v")
    return PolicyInputs(prediction=prediction, costs=COSTS, quality_target=0.9, tau=0.9, objective="utility")


def rule(target: float) -> RoutingRule:
    return RoutingRule(quality_target=target, tau=target)


async def decided(aio: RunningGateway, at: list[float], p_ok: list[float], name: str, **served: float) -> None:
    """A served request at each time, decided with these probabilities."""
    ids = [f"{name}{number}" for number in range(len(at))]
    requests = [{"request_id": one, "created_at": when} for one, when in zip(ids, at, strict=True)]
    inputs = inputs_of(p_ok)
    decision = decide(inputs)
    row = {
        "tier": decision.tier, "classifier_version": "v", "prediction_kind": "measured", "novelty": 0.1,
        "decision": decision,
    }  # fmt: skip
    await insert_requests(aio.serving.database, *(one | served for one in requests))
    async with aio.serving.database.begin() as connection:
        await connection.execute(insert(routing_decisions), [row | one for one in requests])


async def test_an_empty_installation_says_what_is_missing(admin: httpx.AsyncClient) -> None:
    page = await admin.get(PAGE)
    assert page.status_code == 200
    for said in ("Nothing was routed yet.", "No answer has been verified yet.", "Not measured yet"):
        assert said in page.text
    assert "an even mix of the four classes" in page.text
    assert "needs 100 more labels" in page.text
    curve = (await admin.get("/admin/api/routing/curve")).json()
    assert (curve["probes"], curve["points"], curve["no_worse"], curve["cost_share"]) == (0, [], None, None)
    for wrong in ("2", "-0.1", "nan", "x"):
        assert (await admin.get(PAGE, params={"quality_target": wrong})).status_code == 400, wrong
    assert (await admin.get("/admin/api/routing/preview")).json() == {"preview": None}


async def test_before_any_label_a_target_moves_along_the_first_days_curve(admin: httpx.AsyncClient) -> None:
    shown = (await admin.get("/admin/api/routing/first-day", params={"quality_target": "1"})).json()
    assert (shown["probes"], shown["missing"], shown["a_day"], shown["estimate"]["requests"]) == (0, 100, 0.0, 0)
    now, then = shown["estimate"]["now"], shown["estimate"]["then"]
    assert (now["threshold"], then["threshold"]) == (0.7, 1.0)
    assert now["cost_share"] <= then["cost_share"] <= 1.0
    assert now["no_worse"] <= then["no_worse"] <= 1.0
    page = await admin.get(PAGE, params={"quality_target": "1"})
    assert f"At 70.0% it costs {now['cost_share']:.1%} of the strongest tier alone" in page.text
    assert f"At 100.0%: {then['cost_share']:.1%}, and {then['no_worse']:.1%}." in page.text
    assert f"as previewed: {then['cost_share']:.1%}, {then['no_worse']:.1%}." in page.text
    assert "as previewed" not in (await admin.get(PAGE)).text
    points = shown["estimate"]["points"]
    assert [point["threshold"] for point in points] == sorted(point["threshold"] for point in points)
    assert [point["cost_share"] for point in points] == sorted(point["cost_share"] for point in points)
    sheet = await admin.get("/admin/api/routing/first-day", params={"format": "csv"})
    assert len(list(csv.DictReader(io.StringIO(sheet.text)))) == len(points)


async def test_the_estimate_is_of_the_newest_requests_once_there_are_some() -> None:
    """At 0 a strongest answer is worth as much as a good one, so both prompts go lower; at 0.9 the second gets it."""
    known = Predicted(
        np.array([[0.9, 0.9, 0.95, 1.0], [0.3, 0.4, 0.9, 1.0]]), np.array([COSTS, COSTS]), np.full(2, 0.01), np.ones(2)
    )
    cheap, careful = at_targets(known, (0.0, 0.9))
    assert (cheap.no_worse, cheap.cost_share) == (pytest.approx((0.9 + 0.9) / 2), pytest.approx(0.005 / 0.02))
    assert (careful.no_worse, careful.cost_share) == (pytest.approx((0.95 + 1.0) / 2), pytest.approx(0.014 / 0.02))
    # On the first day what is good enough with 0.7 counts as certain.
    first_day = msgspec.structs.replace(known, enough=np.full(2, 0.7))
    assert at_targets(first_day, (0.9,))[0].cost_share == pytest.approx((0.001 + 0.004) / 0.02)


@pytest.mark.parametrize(
    ("missing", "a_day", "said"),
    [
        (0, 5.0, ""),
        (100, 0.0, "none come while no requests do"),
        (100, 0.1, "more than a year"),
        (90, 30.0, "90 more labels, requests that every tier answers and a judge compares: expected on 2026-01-04"),
        (1, 0.5, "1 more label, a request that every tier answers"),
    ],
)
async def test_what_is_missing_is_one_sentence_with_a_number_and_a_day(missing: int, a_day: float, said: str) -> None:
    sentence = in_words(missing, a_day, datetime(2026, 1, 1, tzinfo=UTC).timestamp())
    assert said in sentence
    assert sentence.count(". ") == 0


def routed(p_ok: list[float], tier: int, paid: float, strongest: float, at: float = 1.0) -> RoutedRequest:
    """A request that `tier` answered."""
    inputs = inputs_of(p_ok)
    return RoutedRequest(
        created_at=at, key_id=None, tier=tier, watched=False, complexity=None, p_ok=p_ok[tier - 1], labels=0.0,
        paid_usd=paid, strongest_usd=strongest, costs=inputs.costs, inputs=msgspec.json.encode(inputs).decode(),
    )  # fmt: skip


async def test_a_preview_decides_again_at_the_tokens_that_were_used() -> None:
    """Twice as many tokens were used as predicted: all tiers would have cost twice as much."""
    sure = routed([0.99, 0.99, 0.99, 1.0], 1, 0.002, 0.02, 9.0)
    doubtful = routed([0.85, 0.6, 0.99, 1.0], 3, 0.008, 0.02, 2.0)
    other = msgspec.structs.replace(sure, inputs='{"prediction": {}}')
    shown = preview([sure, other, sure, sure, doubtful], rule(0.9), rule(0.4))
    assert shown is not None
    assert (shown.since, shown.until, shown.requests, shown.moved) == (2.0, 9.0, 4, 0.25)
    assert shown.now.split == [0.75, 0.0, 0.25, 0.0]
    assert shown.now.cost_usd == pytest.approx((3 * 0.002 + 0.008) / 4)
    assert shown.now.cost_share == pytest.approx((3 * 0.002 + 0.008) / 0.08)
    assert shown.now.no_worse == pytest.approx((3 * 0.99 + 0.99) / 4)
    assert shown.then.split == [1.0, 0.0, 0.0, 0.0]
    assert shown.then.cost_share == pytest.approx(0.1)
    assert preview([other], rule(0.9), rule(0.4)) is None


async def test_the_newest_requests_are_shown_at_a_target_and_exported(
    aio: RunningGateway, admin: httpx.AsyncClient
) -> None:
    now = time.time()
    await decided(aio, [now - 3600] * 3, [0.99, 0.995, 0.999, 1.0], "d", cost_usd=0.001, baseline_cost_usd=0.01)
    page = await admin.get(PAGE, params={"quality_target": "1"})
    assert page.status_code == 200
    assert "Previewed" in page.text
    assert "100.0% of them would go to another tier" in page.text
    assert page.text.count("<script") == 1
    shown = (await admin.get("/admin/api/routing/preview?quality_target=1")).json()["preview"]
    assert shown["then"]["split"] == [0.0, 0.0, 0.0, 1.0]
    assert shown["then"]["no_worse"] == 1.0
    assert shown["now"]["cost_usd"] < shown["then"]["cost_usd"]
    answer = await admin.get("/admin/api/routing/preview?quality_target=1&format=csv")
    rows = list(csv.DictReader(io.StringIO(answer.text)))
    assert [float(row["no_worse"]) for row in rows] == [shown["now"]["no_worse"], 1.0]
    assert (await admin.get("/admin/api/routing/preview?format=xlsx")).status_code == 400


async def test_a_burst_weighs_as_many_requests_as_it_has_and_the_page_says_one_saving(
    aio: RunningGateway, admin: httpx.AsyncClient
) -> None:
    burst = [1000.0 + n / 1000 for n in range(400)]
    await decided(aio, burst, [0.99, 0.99, 0.99, 1.0], "s", cost_usd=0.002, baseline_cost_usd=0.01)
    await decided(aio, [500.0] * 100, [0.1, 0.1, 0.1, 1.0], "w", tier=4, cost_usd=0.03, baseline_cost_usd=0.03)
    shown = (await admin.get("/admin/api/routing/preview")).json()["preview"]
    assert [round(503 * share) for share in shown["now"]["split"]] == [403, 0, 0, 100]
    seen = (await admin.get("/admin/api/routing/traffic")).json()["traffic"]
    assert seen["saving"] == pytest.approx(1 - 3.803 / 7.03, abs=1e-4)
    assert shown["now"]["cost_share"] == pytest.approx(1 - seen["saving"], abs=1e-4)


async def test_a_target_is_applied_with_a_reason_and_written_down(
    aio: RunningGateway, admin: httpx.AsyncClient
) -> None:
    page = await admin.get(PAGE, params={"quality_target": "0.9"})
    assert (await submit(admin, page, APPLY)).status_code == 400, "no reason"
    assert aio.serving.routing.active_target is None
    done = await submit(admin, page, APPLY, reason=SCRIPT)
    assert (done.status_code, done.headers["location"]) == (303, PAGE)
    assert aio.serving.routing.active_target == 0.9
    decision = (
        await aio.http.post("/v1/route", json={"model": "auto", "messages": [{"role": "user", "content": "Hi"}]})
    ).json()
    assert decision["decision"]["inputs"]["quality_target"] == 0.9
    change = (await aio.http.get("/v1/admin/knobs/changes?knob=quality_target")).json()["changes"][0]
    assert (change["old_value"], change["new_value"], change["reason"]) == (None, 0.9, SCRIPT)
    after = await admin.get(PAGE)
    assert SCRIPT not in after.text
    back = await submit(admin, after, APPLY, reason="enough", default="1")
    assert back.status_code == 303
    assert aio.serving.routing.active_target is None


async def test_viewers_and_foreign_pages_change_nothing(aio: RunningGateway, admin: httpx.AsyncClient) -> None:
    async with with_user(aio, "vera", "viewer") as viewer:
        page = await viewer.get(PAGE, params={"quality_target": "0.9"})
        assert page.status_code == 200
        assert APPLY not in forms_of(page)
        token = forms_of(page)["/admin/logout"]["fields"]["csrf_token"]
        order = {"quality_target": "0.9", "reason": "why", "csrf_token": token}
        assert (await viewer.post(APPLY, data=order)).status_code == 403
    async with with_user(aio, "oscar", "operator") as operator:
        page = await operator.get(PAGE, params={"quality_target": "0.8"})
        del order["csrf_token"]
        assert (await operator.post(APPLY, data=order)).status_code == 403
        assert aio.serving.routing.active_target is None
        assert (await submit(operator, page, APPLY, reason="why")).status_code == 303
        assert aio.serving.routing.active_target == 0.8
    assert (await admin.post(APPLY, data=order)).status_code == 403


async def test_probes_draw_a_curve_again_after_another_and_verdicts_the_calibration(
    aio: RunningGateway, admin: httpx.AsyncClient
) -> None:
    now, version = time.time(), aio.serving.routing.classifier.serving.current  # type: ignore[attr-defined]
    encoded = encode_prompt(version.model, [{"role": "user", "content": "What is the capital of France?"}])
    row = {
        "source": "probe", "feature_spec": encoded.feature_spec, "embedding": encoded.embedding,
        "features": encoded.features, "classes": encoded.classes, "no_worse": [False, True, True, True],
        "weights": [1.0] * 4, "created_at": now,
    }  # fmt: skip
    verdict = {
        "tier": 1, "model": "m", "sampled_probability": 0.05, "sampled_reason": "sample", "status": "done",
        "judge": "exact", "label": "worse", "cost_usd": 0.0, "reserved_usd": 0.0, "attempts": 1, "created_at": now,
        "finished_at": now,
    }  # fmt: skip
    await decided(aio, [now], [0.25, 0.5, 0.9, 1.0], "v")
    async with aio.serving.database.begin() as connection:
        await connection.execute(insert(training_rows), [row | {"request_id": f"p{n}"} for n in range(4)])
        await connection.execute(insert(verifications).values(verdict | {"request_id": "v0"}))
    curve = (await admin.get("/admin/api/routing/curve")).json()
    first, last = curve["points"][0], curve["points"][-1]
    # At a threshold of 0 the cheapest tier answers, which was worse; at 1 the strongest.
    assert (curve["probes"], first["threshold"], first["no_worse"], last["threshold"]) == (4, 0.0, 0.0, 1.0)
    assert (last["no_worse"], last["cost_share"]) == (1.0, 1.0)
    assert 0.0 <= curve["no_worse"] <= 1.0
    bins = (await admin.get("/admin/api/routing/reliability")).json()["bins"]
    assert [(one["tier"], one["predicted"], one["no_worse"]["count"]) for one in bins] == [(1, 0.25, 0)]
    page = await admin.get(PAGE)
    assert "probes (4)" in page.text
    assert "needs 96 more labels" in page.text
    first = (await admin.get("/admin/api/routing/first-day")).json()
    assert (first["probes"], first["missing"], first["a_day"]) == (4, 96, 4.0)
    assert 0 < first["estimate"]["requests"] <= 300
    assert "tier 1, 0 of 1" in page.text
    for view in ("curve", "reliability", "kinds", "tiers"):
        answer = await admin.get(f"/admin/api/routing/{view}?format=csv")
        assert answer.headers["content-type"] == "text/csv; charset=utf-8", view
        assert list(csv.DictReader(io.StringIO(answer.text))), view

    curves, table = aio.operations.cost_quality_curves, version.table
    drawn = await curves.of("a version", table)
    assert await curves.of("a version", table) is drawn
    async with aio.serving.database.begin() as connection:
        await connection.execute(insert(training_rows).values(row | {"request_id": "p4", "created_at": now + 1}))
    assert (await curves.of("a version", table)).probes == 5
    assert await curves.of("another", table) is not await curves.of("a version", table)


async def test_before_the_first_probe_the_day_is_expected_by_the_days_requests(tmp_path: Path) -> None:
    settings = Settings(data_dir=str(tmp_path), monitor=True, sampling_rate=1.0, verification_budget=1000.0)
    async with running_gateway(settings) as running, browser(running) as client:
        classifier = ActiveClassifier(settings.registry_path, running.serving.routing.served.catalog.fingerprint)
        classifier.load()
        running.serving.routing.classifier = classifier
        await sign_in(client)
        shown = (await client.get("/admin/api/routing/first-day")).json()
        assert (shown["a_day"], shown["missing"]) == (0.0, 100)
        now = time.time()
        rows = [{"request_id": f"r{n}", "created_at": now - 60, "cost_usd": 1.0} for n in range(500)]
        await insert_requests(running.serving.database, *(row | {"messages": [{"role": "user"}]} for row in rows))
        shown = (await client.get("/admin/api/routing/first-day")).json()
        # One in a hundred is asked of every tier, and the budget pays for all of them.
        assert shown["a_day"] == 5.0
        day = datetime.fromtimestamp(now, UTC) + timedelta(days=20)
        assert (
            f"expected on {day:%Y-%m-%d}" in shown["sentence"]
            or f"{day + timedelta(days=1):%Y-%m-%d}" in shown["sentence"]
        )


async def test_without_its_database_the_page_says_so(tmp_path: Path) -> None:
    settings = Settings(data_dir=str(tmp_path), monitor=False, database_url="postgresql://missing@127.0.0.1:1/none")
    async with running_gateway(settings) as running, browser(running) as client:
        await sign_in(client)
        page = await client.get(PAGE)
        assert page.status_code == 503
        assert "this page needs the database" in page.text
