"""A served process whose strongest tier goes down: the page, the metrics and the errors say so."""

from pathlib import Path

import httpx
import pytest

from tests.gateway.operations.dashboard.browsing import sign_in
from tests.ports import held_port
from tests.support.served import Serve
from tests.support.upstream import Upstream, write_remote_catalog

pytestmark = pytest.mark.processes

HARD = (
    "Prove rigorously that every finite group of odd order less than 60 is solvable, derive the class equation "
    "of each, and design a distributed verification protocol with a formal proof of its liveness and safety."
)


async def test_page_metrics_and_errors_name_the_outage(tmp_path: Path, upstream: Upstream, served: Serve) -> None:
    catalog = write_remote_catalog(tmp_path / "catalog.toml", upstream.base_url, tiers=2, own_models=True)
    text = catalog.read_text()
    place = text.rindex(upstream.base_url)
    listener = held_port()
    dead = f"http://127.0.0.1:{listener.getsockname()[1]}/v1"
    catalog.write_text(text[:place] + dead + text[place + len(upstream.base_url) :])
    aio = served("--catalog", str(catalog))
    named = aio.ask(HARD, model="tier-2")
    assert named.status_code == 503
    assert "Tier 2 ('tier-2') cannot answer: the tier is down" in named.json()["error"]["message"]
    answered = aio.ask(HARD, model="auto", headers={"x-aio-quality": "careful"})
    assert (answered.status_code, answered.headers["x-aio-tier"]) == (200, "1")
    assert float(answered.headers["x-aio-p-ok"]) < 0.9
    assert aio.ask(HARD).status_code == 200

    shown = aio.admin.get("/metrics").text
    assert 'aio_below_target_answers_total{tier="1"} 1.0' in shown
    async with httpx.AsyncClient(base_url=aio.url, timeout=60, follow_redirects=True) as browser:
        await sign_in(browser)
        page = (await browser.get("/admin")).text
    assert "Tier tier-2 is down: it takes no requests." in page
    assert "1 of 2 answers of the last" in page
    assert page.index("Tier tier-2 is down") < page.index("Saved, net")
    overview = aio.admin.get("/admin/api/overview").json()
    assert [tier["below_target"] for tier in overview["tiers"]] == [1, 0]
