"""The page Try and the first day's curve in a real browser: the route while one writes, both answers, a verdict, on a
desk and on a phone."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

# A missing package only fails a run that requires it.
if not os.environ.get("AIO_REQUIRE_BROWSER"):
    pytest.importorskip("playwright", reason="needs playwright and axe-playwright-python, of the extra dev")

from playwright.sync_api import Browser, BrowserContext, Page, ViewportSize, expect

from tests.gateway.operations.dashboard.page_layout import cut_tables, overlapping_texts
from tests.gateway.operations.dashboard.real_gateway import IN_CHROMIUM, card, serious_findings, signed_in
from tests.gateway.operations.dashboard.real_traffic import ADMIN
from tests.support.served import Serve, ServedProcess

pytestmark = IN_CHROMIUM
SIZES: dict[str, ViewportSize] = {"phone": {"width": 390, "height": 844}, "desk": {"width": 1280, "height": 900}}
PROMPT = "What is the capital of Australia?"


@pytest.fixture(scope="module")
def gateway(weight_cache: Path, module_served: Serve) -> ServedProcess:
    return module_served(cache=weight_cache, environment={"AIO_ADMIN_KEYS": f"boss={ADMIN}"})


@pytest.fixture(params=SIZES, ids=list(SIZES))
def context(request: pytest.FixtureRequest, chrome: Browser, gateway: ServedProcess) -> Iterator[BrowserContext]:
    context = chrome.new_context(base_url=gateway.url, viewport=SIZES[request.param])
    # The real model answers on a machine that other tests use too.
    context.set_default_timeout(60_000)
    yield context
    context.close()


def flaws(page: Page) -> list[str]:
    """What does not fit, is drawn over each other, or cannot be read."""
    wide = page.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth")
    return [*([f"{wide} px too wide"] if wide > 0 else []), *overlapping_texts(page), *serious_findings(page)]


def test_the_route_follows_what_is_written_and_both_answers_stream_to_a_verdict(context: BrowserContext) -> None:
    page = signed_in(context)
    if (menu := page.get_by_text("Menu", exact=True)).is_visible():
        menu.click()
    page.get_by_role("link", name="Try", exact=True).click()
    assert not flaws(page)
    page.evaluate("window.stayed = true")
    page.get_by_label("Prompt", exact=True).press_sequentially(PROMPT)
    route = page.locator('[data-live="route"]')
    expect(route.get_by_role("heading", name="Route: tier")).to_be_visible()
    expect(route.locator("dd").first).to_contain_text("SIMPLE (")
    page.get_by_label("Quality target").fill("1")
    expect(route.get_by_role("heading", name="Route: tier-4")).to_be_visible()
    page.get_by_label("Quality target").fill("0")
    expect(route.get_by_role("heading", name="Route: tier-1")).to_be_visible()
    page.get_by_label("Longest answer, tokens").fill("24")
    page.get_by_role("button", name="Ask", exact=True).click()
    for tier in (1, 4):
        answer = page.get_by_label(f"Answer of tier-{tier}")
        expect(answer.get_by_text("First token")).to_be_visible()
        record = str(answer.get_by_role("link", name="Its record").get_attribute("href")).rpartition("/")[2]
        recorded = page.request.get(f"/admin/api/requests/{record}").json()["request"]
        assert (answer.locator("pre").text_content() or "").strip() == recorded["answer"].strip()
        expect(answer.get_by_text("Cost", exact=True)).to_be_visible()
    assert page.evaluate("window.stayed"), "the answers came without a new page"
    assert not flaws(page)
    assert not cut_tables(page)
    page.get_by_role("button", name="Both are as good").click()
    expect(page.get_by_role("status")).to_contain_text("labelled no worse")


def test_what_cannot_be_asked_is_said_in_place_of_the_answers(context: BrowserContext) -> None:
    page = signed_in(context)
    page.goto("/admin/try")
    page.get_by_label("Prompt", exact=True).fill(PROMPT)
    page.get_by_label("By the rules of key").fill("nobody")
    page.get_by_role("button", name="Ask", exact=True).click()
    expect(page.locator("small.wrong")).to_contain_text("There is no such key")
    expect(page.get_by_label("Prompt", exact=True)).to_have_value(PROMPT)


def test_without_javascript_an_example_is_routed_asked_and_judged(chrome: Browser, gateway: ServedProcess) -> None:
    context = chrome.new_context(base_url=gateway.url, java_script_enabled=False)
    context.set_default_timeout(60_000)
    page = signed_in(context)
    page.goto("/admin/try")
    page.get_by_role("button", name=PROMPT).click()
    expect(page.get_by_role("heading", name="Route: tier")).to_be_visible()
    expect(page.get_by_label("Prompt", exact=True)).to_have_value(PROMPT)
    page.get_by_label("Quality target").fill("0")
    page.get_by_label("Longest answer, tokens").fill("8")
    page.get_by_role("button", name="Ask", exact=True).click()
    page.get_by_role("button", name="tier-1", exact=True).click()
    expect(page.get_by_role("status")).to_contain_text("labelled no worse")
    context.close()


def test_expected_cost_and_quality_are_a_picture_that_a_target_moves_on(context: BrowserContext) -> None:
    page = signed_in(context)
    page.goto("/admin/routing?quality_target=1")
    # On a phone charts are folded.
    page.evaluate("for (const folded of document.querySelectorAll('details.fold')) folded.open = true")
    picture = card(page, "What would help").locator("figure.chart").first
    expect(picture.get_by_text("Cost and quality at every target")).to_be_visible()
    expect(picture.locator("svg[role=img] circle")).to_have_count(2)
    expect(page.get_by_text("more requests that every tier answers and a judge compares")).to_be_visible()
    assert not flaws(page)


def test_the_apis_documentation_fits_the_screen_and_asks_for_nothing_else(context: BrowserContext) -> None:
    page = context.new_page()
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.url))
    page.goto("/docs")
    page.evaluate("for (const one of document.querySelectorAll('details')) one.open = true")

    assert page.evaluate("document.documentElement.scrollWidth - innerWidth") <= 0
    assert [url for url in asked if not url.endswith("/docs")] in ([], ["data:,"])
