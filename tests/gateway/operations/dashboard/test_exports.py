"""Every view has its figures as JSON, and its rows as CSV, and its page links to them."""

import csv
import io
from collections.abc import AsyncIterator

import httpx
import pytest
import pytest_asyncio

from gateway.admin.routes import PAGES
from gateway.base.settings import Settings
from gateway.inference.classifier_versions import ActiveClassifier
from gateway.operations.quality_loop.followers import ActiveLabels
from tests.gateway.operations.dashboard.browsing import browser, sign_in
from tests.gateway.running_gateway import laptop_hash_core, running_gateway
from tiers.catalog.catalog import CatalogInUse

pytestmark = pytest.mark.asyncio(loop_scope="module")
API = "/admin/api"
# By page, its tables on a server with a core, a monitor and the packaged classifier.
EXPORTS = {
    "/": [],
    "/try": [],
    "/spend": [f"{API}/budgets"],
    "/requests": [],
    "/sessions": [],
    "/routing": [f"{API}/routing/{name}" for name in ("first-day", "tiers", "kinds", "traffic")],
    "/shadow": [f"{API}/shadow"],
    "/quality": [f"{API}/{name}" for name in ("retrainings", "artefacts")],
    "/quality/review": [f"{API}/reviews"],
    "/experiments": [],
    "/core": ["/v1/admin/knobs/changes"],
    "/keys": [f"{API}/keys", f"{API}/teams", f"{API}/budgets"],
    "/users": [f"{API}/dashboard-users"],
    "/system": [],
}
# By page, figures that are no rows of one table.
FIGURES = {
    "/": [f"{API}/overview"],
    "/quality": [f"{API}/{name}" for name in ("estimates", "learning", "worth")],
    "/core": ["/v1/admin/stats", "/v1/admin/knobs"],
    "/system": [f"{API}/system"],
}
# Linked only with a row, or from no page at all.
_MORE = (
    "requests",
    "routing/curve",
    "routing/preview",
    "routing/reliability",
    "experiments",
    "rollouts",
    "transitions",
    "costs",
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
    assert {page.path for page in PAGES} | {"/quality/review"} == set(EXPORTS)


@pytest.mark.parametrize("page", EXPORTS)
async def test_a_page_links_to_its_figures_in_both_forms(admin: httpx.AsyncClient, page: str) -> None:
    shown = (await admin.get(f"/admin{page}".rstrip("/"))).text
    for path in EXPORTS[page]:
        assert f'href="{path}"' in shown, path
        assert f'href="{path}?format=csv"' in shown, path
    for path in FIGURES.get(page, ()):
        assert f'href="{path}"' in shown, path
        answer = await admin.get(path)
        assert answer.headers["content-type"].startswith("application/json"), answer.text


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
