"""Every view has its figures as JSON and as CSV, and its page links to both."""

import csv
import io
from collections.abc import AsyncIterator

import httpx
import pytest
import pytest_asyncio

from classifier.complexity.classes import Complexity
from gateway.admin.quality import estimate_rows
from gateway.admin.routes import PAGES
from gateway.base.settings import Settings
from gateway.inference.classifier_versions import ActiveClassifier
from gateway.operations.labels.active_labels import ActiveLabels
from quality.estimates.verified_sample import Kind, KindShare, UpgradeRate, wilson_interval
from quality.judges.calibration import Calibration
from quality.monitor.status import CalibrationDrift, InputDrift, MonitorStatus
from quality.verification.job import Depth
from quality.verification.judging import OpinionsGiven
from quality.verification.sampling import Spending
from tests.gateway.operations.dashboard.browsing import browser, sign_in
from tests.support.app import running_gateway
from tests.support.core import laptop_hash_core
from tiers.catalog.catalog import CatalogInUse

pytestmark = pytest.mark.asyncio(loop_scope="module")
API = "/admin/api"
# By page, its views on a server with a core, a monitor and the packaged classifier.
EXPORTS = {
    "/": [f"{API}/overview"],
    "/try": [],
    "/requests": [],
    "/sessions": [],
    "/routing": [f"{API}/report"],
    "/quality": [],
    "/quality/details": [f"{API}/{name}" for name in ("estimates", "retrainings", "artefacts")],
    "/quality/review": [f"{API}/reviews"],
    "/experiments": [],
    "/core": ["/v1/admin/stats", "/v1/admin/knobs/core", "/v1/admin/knobs/changes"],
    "/keys": [f"{API}/keys", f"{API}/teams", f"{API}/budgets"],
    "/users": [f"{API}/dashboard-users"],
    "/system": [f"{API}/system"],
}
# Linked only with a row, or from no page at all.
_MORE = (
    "requests",
    "experiments",
    "rollouts",
    "transitions",
    "slo",
)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def admin(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[httpx.AsyncClient]:
    settings = Settings(data_dir=str(tmp_path_factory.mktemp("data")), monitor=True)
    async with running_gateway(settings, core=laptop_hash_core(settings)) as aio, browser(aio) as client:
        serving, operations = aio.serving, aio.operations
        classifier = ActiveClassifier(settings.registry_path, serving.routing.served.catalog.fingerprint)
        classifier.load()
        serving.routing.classifier = classifier
        operations.active_labels = ActiveLabels(
            serving.database, classifier, operations.metrics, CatalogInUse(serving.routing.served.catalog)
        )
        assert operations.quality_loop is not None
        await operations.quality_loop.start()
        await sign_in(client)
        yield client


def sheet_of(answer: httpx.Response) -> list[dict[str, str]]:
    assert answer.status_code == 200, answer.text
    assert answer.headers["content-type"].startswith("text/csv")
    return list(csv.DictReader(io.StringIO(answer.text)))


async def test_every_page_of_the_site_is_looked_at() -> None:
    assert {page.path for page in PAGES} | {"/quality/details", "/quality/review"} == set(EXPORTS)


@pytest.mark.parametrize("page", EXPORTS)
async def test_a_page_links_to_its_figures_in_both_forms(admin: httpx.AsyncClient, page: str) -> None:
    shown = (await admin.get(f"/admin{page}".rstrip("/"))).text
    for path in EXPORTS[page]:
        assert f'href="{path}"' in shown, path
        assert f'href="{path}?format=csv"' in shown, path


@pytest.mark.parametrize(
    "path",
    [
        *(path for paths in EXPORTS.values() for path in paths),
        *(f"{API}/{name}" for name in _MORE),
        "/v1/admin/sessions",
    ],
)
async def test_an_endpoint_answers_in_both_forms_and_no_other(admin: httpx.AsyncClient, path: str) -> None:
    answer = await admin.get(path)
    assert answer.headers["content-type"].startswith("application/json"), answer.text
    sheet_of(await admin.get(path, params={"format": "csv"}))
    refused = await admin.get(path, params={"format": "xlsx"})
    assert (refused.status_code, refused.json()["error"]["param"]) == (400, "format")


async def test_the_models_of_a_core_and_their_knobs_have_a_row_each(admin: httpx.AsyncClient) -> None:
    models = sheet_of(await admin.get("/v1/admin/stats?format=csv"))
    shown = (await admin.get("/v1/admin/knobs/core")).json()
    assert {(row["core"], row["name"]) for row in models} == {(core, name) for name, core in shown["cores"].items()}
    knobs = sheet_of(await admin.get("/v1/admin/knobs/core?format=csv"))
    assert {(row["model"], row["knob"]) for row in knobs} == {
        (model, knob) for model, values in shown["models"].items() for knob in values
    }


async def test_estimates_are_rows_of_one_table_with_the_figures_that_are_shown() -> None:
    status = MonitorStatus(
        queue=Depth(pending=1, done=2, failed=3, labelled=4),
        offered=9, sampled=5, dropped=0, no_judge=0, held=0,
        second_opinions=OpinionsGiven(confirmed=7, uncertain=2, cost_usd=0.25),
        spending=Spending(serving_usd=2.0, committed_usd=0.5), budget_usd=1.0,
        upgrade_rates=[UpgradeRate(tier=None, needs_upgrade=wilson_interval(4, 10), alarm=True, reason="=many")],
        evidence_of_shift={"tier 1": 3.5},
        acceptance={2: wilson_interval(3, 4)},
        acceptance_by_kind=[
            KindShare(
                tier=1, kind=Kind(by="class", complexity=Complexity.SIMPLE), answers=6, value=0.5, low=0.2, high=0.8
            )
        ],
        input_drift=[InputDrift(of="novelty", prompts=8, before=9, value=0.1, low=0.05, high=0.2, drifted=True)],
        calibration_drift=[
            CalibrationDrift(tier=1, answers=20, predicted=0.75, verified=0.5, low=-0.4, high=-0.1, drifted=True)
        ],
        calibrations=[
            Calibration(judge="pairwise", true_no_worse=3, false_worse=1, true_worse=1, false_no_worse=1, abstained=0)
        ],
    )  # fmt: skip
    found = {(row.estimate, row.tier, row.kind, row.of): row for row in estimate_rows(status)}
    assert len(found) == len(list(estimate_rows(status))), "no figure is another's"
    assert found["no worse, of the sample", 2, None, None].value == 0.75
    assert found["no worse, of all traffic", 1, "SIMPLE prompts", None].count == 6
    needs = found["needs an upgrade", None, None, None]
    assert (needs.value, needs.flagged, needs.reason) == (0.4, True, "=many")
    assert found["evidence of shift (e-value)", None, None, "tier 1"].value == 3.5
    assert found["drift of prompts", None, None, "novelty"].flagged
    assert found["verified less predicted", 1, None, None].value == -0.25
    assert found["sensitivity on generated pairs", None, None, "pairwise"].value == 0.75
    assert found["verifications", None, None, "failed"].count == 3
    opinions = "second opinions since start"
    assert [found[opinions, None, None, name].count for name in ("confirmed", "uncertain")] == [7, 2]
    assert found[opinions, None, None, "cost_usd"].value == 0.25
    assert found["spending", None, None, "committed_usd"].value == 0.5
