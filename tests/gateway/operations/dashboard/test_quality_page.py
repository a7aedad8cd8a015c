"""The quality page: figures, and changes by authorised users, each with a recorded reason."""

import re
import time
from collections.abc import AsyncIterator

import httpx
import msgspec
import pytest
import pytest_asyncio
from sqlalchemy import insert

from classifier.registry.artefact import default_artefact, load_manifest, load_model_tensors, save_artefact
from classifier.registry.registry import ArtefactRegistry
from gateway.base.settings import Settings
from migrations.tables.quality import classifier_versions, retrain_runs, verifications
from quality.estimates.verified_sample import wilson_interval
from quality.monitor.status import CalibrationDrift, MonitorStatus
from quality.store.database import open_database
from tests.gateway.operations.dashboard.browsing import forms_of, submit, with_user
from tests.support.app import RunningGateway, StartApp, running_gateway

pytestmark = pytest.mark.asyncio(loop_scope="module")
PAGE = "/admin/quality"
DETAILS = f"{PAGE}/details"
SCRIPT = "<script>alert(1)</script>"
SHIPPED, OTHER = load_manifest(default_artefact()).version, "v1-0123456789ab"


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def aio(tmp_path_factory: pytest.TempPathFactory, module_app: StartApp) -> RunningGateway:
    """Without a monitor; its registry holds two versions."""
    settings = Settings(data_dir=str(tmp_path_factory.mktemp("data")), monitor=False, drain_seconds=5)
    registry = ArtefactRegistry(settings.registry_path)
    registry.seed(default_artefact())
    manifest = msgspec.structs.replace(load_manifest(default_artefact()), version=OTHER)
    save_artefact(registry.root, manifest, load_model_tensors(default_artefact()))
    return await module_app(settings)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def operator(aio: RunningGateway) -> AsyncIterator[httpx.AsyncClient]:
    async with with_user(aio, "oscar", "operator") as client:
        yield client


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def viewer(aio: RunningGateway) -> AsyncIterator[httpx.AsyncClient]:
    async with with_user(aio, "vera", "viewer") as client:
        yield client


async def actions(aio: RunningGateway, limit: int) -> list[tuple[str, str, str]]:
    events = (await aio.http.get("/admin/api/transitions", params={"limit": limit})).json()["rows"]
    return [(event["action"], event["actor"], event["reason"]) for event in events]


async def test_an_empty_installation_without_a_monitor_says_so(operator: httpx.AsyncClient) -> None:
    page = await operator.get(DETAILS)
    assert page.status_code == 200, page.text
    for said in ("The quality monitor does not run", "has not been retrained yet", "No version has been made here"):
        assert said in page.text
    assert f"{PAGE}/retrain" not in forms_of(page)


async def test_an_operator_orders_versions_and_a_viewer_looks_on(
    aio: RunningGateway, operator: httpx.AsyncClient, viewer: httpx.AsyncClient
) -> None:
    registry = ArtefactRegistry(aio.serving.settings.registry_path)
    seen = await viewer.get(DETAILS)
    assert not [action for action in forms_of(seen) if action.startswith(PAGE)]
    token = {"csrf_token": forms_of(seen)["/admin/logout"]["fields"]["csrf_token"]}
    asked = {"version": OTHER, "share": "10", "reason": SCRIPT}
    for order in ("trial", "trial/end", "promote", "rollback", "retrain", "promotions/end"):
        assert (await viewer.post(f"{PAGE}/{order}", data=asked | token)).status_code == 403, order
        assert (await operator.post(f"{PAGE}/{order}", data=asked)).status_code == 403, f"{order}: no token"
    assert (registry.current().name, registry.canary()) == (SHIPPED, None)

    started = await submit(operator, await operator.get(DETAILS), f"{PAGE}/trial", **asked)
    assert (started.status_code, started.headers["location"]) == (303, DETAILS)
    trial = registry.canary()
    assert trial is not None
    assert (trial.version, trial.share) == (OTHER, 0.1)
    page = await operator.get(DETAILS)
    assert "10.0% of the requests" in page.text
    assert (await submit(operator, page, f"{PAGE}/trial/end", reason="enough")).status_code == 303
    assert registry.canary() is None

    promoted = await submit(operator, page, f"{PAGE}/promote", version=OTHER, reason=SCRIPT)
    assert promoted.status_code == 303, promoted.text
    assert registry.current().name == OTHER
    page = await operator.get(DETAILS)
    assert SCRIPT not in page.text
    assert page.text.count("<script") == 1
    assert (await submit(operator, page, f"{PAGE}/rollback", reason="as it was")).status_code == 303
    assert registry.current().name == SHIPPED
    assert (await actions(aio, 2)) == [
        ("classifier.rolled_back", "user:oscar", "as it was"), ("classifier.promoted", "user:oscar", SCRIPT),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("order", "fields", "status"),
    [
        ("promote", {"version": OTHER, "reason": " "}, 400),
        ("promote", {"version": "none-such", "reason": "x"}, 409),
        ("trial", {"version": OTHER, "share": "100", "reason": "x"}, 400),
        ("trial", {"version": OTHER, "share": "ten", "reason": "x"}, 400),
    ],
)
async def test_an_order_without_meaning_is_refused(
    aio: RunningGateway, operator: httpx.AsyncClient, order: str, fields: dict[str, str], status: int
) -> None:
    page = await operator.get(DETAILS)
    assert (await submit(operator, page, f"{PAGE}/{order}", **fields)).status_code == status
    registry = ArtefactRegistry(aio.serving.settings.registry_path)
    assert (registry.current().name, registry.canary()) == (SHIPPED, None)


async def test_stored_texts_are_shown_and_never_run(aio: RunningGateway, viewer: httpx.AsyncClient) -> None:
    run = {
        "run_id": "r1", "trigger": "cli", "status": "running", "owner": "o", "lease_until": 1e12, "step": "trained",
        "reason": SCRIPT, "created_at": 1.7e9,
    }  # fmt: skip
    made = {
        "version": SCRIPT, "parent": SHIPPED, "path": "p", "status": "refused", "reason": SCRIPT, "metrics": {},
        "created_at": 4e9,
    }  # fmt: skip
    async with aio.serving.database.begin() as connection:
        await connection.execute(insert(retrain_runs).values(run))
        await connection.execute(insert(classifier_versions).values(made))
    page = await viewer.get(DETAILS)
    assert page.text.count("&lt;script&gt;alert(1)&lt;/script&gt;") >= 3
    assert page.text.count("<script") == 1
    assert "trained" in page.text


async def test_the_report_of_a_version_has_the_calibration_slope_of_each_tier_in_the_api_and_on_the_page(
    aio: RunningGateway, viewer: httpx.AsyncClient
) -> None:
    """RT-06."""
    calibration = [
        {"tier": 1, "rows": 300, "error": 0.02, "allowed": 0.06, "sharper": False, "slope": [0.974, 0.8, 1.148]},
        {"tier": 2, "rows": 300, "error": 0.02, "allowed": 0.06, "sharper": False, "slope": None},
        {"tier": 3, "rows": 300, "error": 0.02, "allowed": 0.06},
    ]
    made = {
        "version": "v1-calibrated", "parent": SHIPPED, "path": "p", "status": "refused", "reason": "x",
        "metrics": {"calibration": calibration}, "created_at": 5e9,
    }  # fmt: skip
    async with aio.serving.database.begin() as connection:
        await connection.execute(insert(classifier_versions).values(made))
    rows = (await aio.http.get("/admin/api/artefacts")).json()["rows"]
    [row] = [row for row in rows if row["version"] == "v1-calibrated"]
    assert row["metrics"]["calibration"][0]["slope"] == [0.974, 0.8, 1.148]
    page = (await viewer.get(DETAILS)).text
    assert "Calibration slope (wanted: 0.9 to 1.1)" in page
    assert ">tier-1: 0.97 [0.80, 1.15]</td>" in page


async def test_a_database_that_is_away_is_a_page_that_says_so(
    aio: RunningGateway, operator: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    page = await operator.get(DETAILS)
    aio.replace_database(monkeypatch, open_database("postgresql://missing@127.0.0.1:1/none"))
    away = await operator.get(DETAILS)
    assert (away.status_code, away.headers["content-type"]) == (503, "text/html; charset=utf-8")
    refused = await submit(operator, page, f"{PAGE}/promote", version=OTHER, reason="x")
    assert refused.status_code == 503
    assert ArtefactRegistry(aio.serving.settings.registry_path).current().name == SHIPPED


async def test_with_a_monitor_there_are_estimates_and_a_retraining_is_ordered(settings: Settings) -> None:
    async with running_gateway(msgspec.structs.replace(settings, monitor=True)) as aio:
        loop = aio.operations.quality_loop
        assert loop is not None
        await loop.start()
        async with with_user(aio, "olga", "operator") as client:
            page = await client.get(DETAILS)
            for said in ("of a budget of", "15.0% of the last 100", "Drift"):
                assert said in page.text
            assert "nothing drifts; 0 labelled, 50 needed before an alarm" in (await client.get(PAGE)).text
            assert (await submit(client, page, f"{PAGE}/retrain", reason=SCRIPT)).status_code == 303
            await loop.retraining_ended()
            page = await client.get(DETAILS)
            assert "button" in page.text
            assert page.text.count("<script") == 1
        ordered = [one for one in await actions(aio, 20) if one[0] == "retrain.ordered"]
        assert ordered == [("retrain.ordered", "user:olga", SCRIPT)]


async def test_the_summary_says_what_serves_and_leads_to_the_details(viewer: httpx.AsyncClient) -> None:
    page = (await viewer.get(PAGE)).text
    assert f"<dt>Serves</dt><dd>{SHIPPED}" in page
    assert "The quality monitor does not run" in page
    assert f'href="{DETAILS}"' in page
    assert f'href="{PAGE}"' in (await viewer.get(DETAILS)).text


async def test_the_summary_charts_the_verdicts_of_the_range_that_is_asked_for(
    aio: RunningGateway, viewer: httpx.AsyncClient
) -> None:
    judged = {
        "request_id": "v1", "tier": 1, "model": "m", "sampled_probability": 1.0, "sampled_reason": "sample",
        "cost_usd": 0.0, "reserved_usd": 0.0, "attempts": 1, "status": "done", "label": "worse", "judge": "pairwise",
        "created_at": time.time() - 7300, "finished_at": time.time() - 7200,
    }  # fmt: skip
    async with aio.serving.database.begin() as connection:
        await connection.execute(insert(verifications).values(judged))
    for span, said in (("1h", "No judge gave a verdict in the last hour"), ("24h", "1 of 1 verdicts of judges")):
        page = (await viewer.get(f"{PAGE}?span={span}")).text
        assert said in page
        assert f'href="{PAGE}?span={span}" aria-current="true"' in page
    assert "Values: Verdicts of judges" in page


async def test_the_summary_knows_no_share_of_fewer_than_ten_answers_and_warns_of_drift(
    tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    shares = {1: wilson_interval(7, 10), 2: wilson_interval(3, 4)}
    drift = CalibrationDrift(tier=1, answers=60, predicted=0.89, verified=0.70, low=-0.3, high=-0.1, drifted=True)
    settings = Settings(data_dir=str(tmp_path_factory.mktemp("monitored")), monitor=True)
    async with running_gateway(settings) as gateway, with_user(gateway, "vera", "viewer") as client:
        loop = gateway.operations.quality_loop
        assert loop is not None
        await loop.start()
        assert loop.monitor is not None
        status = loop.monitor.status

        async def with_shares() -> MonitorStatus:
            return msgspec.structs.replace(await status(), acceptance=shares, calibration_drift=[drift])

        monkeypatch.setattr(loop.monitor, "status", with_shares)
        page = re.sub(r"<[^>]*>|\s+", " ", (await client.get(PAGE)).text)
    assert re.search(r"tier-1\s+70\.0%\s+39\.7% to 89\.2%\s+10", page)
    assert re.search(r"tier-2\s+not known yet: 6 more\s+4", page)
    assert re.search(r"tier-3\s+not known yet: 10 more\s+0", page)
    # The strongest tier is what the others are compared with.
    assert re.search(r"no worse than those of tier-4", page)
    assert "tier-4 not known" not in page
    assert re.search(r"tier-1:\s+89% expected, 70% verified as good, of 60 answers\.", page)
