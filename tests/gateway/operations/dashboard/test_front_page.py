"""`GET /`: a page for people, JSON for programs, and nothing of the models for who may not see them."""

import json
import shlex

import httpx
import pytest

from tests.gateway.operations.dashboard.browsing import browser, sign_in
from tests.support.app import RunningGateway, StartApp
from tiers.tier import TierLoad

KEY = "test-ada-f35eedd987dfd329c654d535ce9eb689"
BROWSER = {"accept": "text/html,application/xhtml+xml,*/*;q=0.8"}


@pytest.fixture
async def open_one(app: StartApp) -> RunningGateway:
    return await app()


@pytest.fixture
async def keyed(app: StartApp) -> RunningGateway:
    return await app(api_keys=f"ada={KEY}")


async def test_a_program_reads_state_links_and_a_request_that_works(open_one: RunningGateway) -> None:
    answer = await open_one.http.get("/")
    assert (answer.status_code, answer.headers["content-type"]) == (200, "application/json")
    shown = answer.json()
    assert (shown["status"], shown["base_url"]) == ("ok", f"{open_one.url}/v1")
    assert [tier["model"] for tier in shown["tiers"]] == [
        spec.model_name for spec in open_one.serving.routing.served.catalog.tiers
    ]
    for link in (shown["docs"], shown["dashboard"]):
        assert (await open_one.http.get(link, follow_redirects=True)).status_code == 200
    command = shlex.split(shown["curl"])
    assert command[0] == "curl"
    url, body = command[1], json.loads(command[-1])
    asked = await open_one.http.post(url, json=body)
    assert asked.json()["choices"][0]["message"]["content"]


async def test_a_browser_gets_a_page_that_runs_nothing_but_our_files(open_one: RunningGateway) -> None:
    answer = await open_one.http.get("/", headers=BROWSER)
    assert answer.headers["content-type"].startswith("text/html")
    assert "default-src 'none'" in answer.headers["content-security-policy"]
    assert answer.headers["vary"] == "accept"
    for part in ('href="/docs"', 'href="/admin"', f"curl {open_one.url}/v1/chat/completions", "smollm2"):
        assert part in answer.text


async def test_a_probe_is_answered_without_a_body(keyed: RunningGateway) -> None:
    answer = await keyed.http.head("/")
    assert (answer.status_code, answer.content) == (200, b"")


async def test_the_models_are_shown_to_who_has_a_key_or_is_signed_in(keyed: RunningGateway) -> None:
    closed = (await keyed.http.get("/")).json()
    assert closed["tiers"] is None
    assert "smollm2" not in json.dumps(closed)
    assert "smollm2" not in (await keyed.http.get("/", headers=BROWSER)).text
    assert "Bearer $AIO_API_KEY" in closed["curl"]
    with_key = await keyed.http.get("/", headers={"authorization": f"Bearer {KEY}"})
    assert len(with_key.json()["tiers"]) == 4
    async with browser(keyed) as page:
        await sign_in(page)
        assert "smollm2" in (await page.get("/", headers=BROWSER)).text


async def test_a_page_under_a_foreign_name_learns_no_models(open_one: RunningGateway) -> None:
    shown = (await open_one.http.get("/", headers={"host": "rebound.example"})).json()
    assert shown["tiers"] is None


@pytest.mark.parametrize("host", ["x$(id)", "x'y", "x y", "<b>x</b>"])
async def test_an_address_that_holds_a_command_does_not_reach_the_command(open_one: RunningGateway, host: str) -> None:
    async with httpx.AsyncClient() as client:
        answer = await client.get(f"{open_one.url}/", headers={"host": host})
    assert answer.status_code in (200, 400, 403)
    if answer.status_code == 200:
        assert host not in answer.text


async def test_the_page_says_what_is_missing(open_one: RunningGateway) -> None:
    for tier in open_one.tiers:
        tier.health = TierLoad(healthy=False)
    shown = (await open_one.http.get("/")).json()
    assert (shown["status"], shown["problems"]) == ("not ready", {"tiers": "no tier takes requests"})
    assert "no tier takes requests" in (await open_one.http.get("/", headers=BROWSER)).text
