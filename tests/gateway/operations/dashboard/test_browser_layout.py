"""The layout of the pages in a real browser on a desk's and a laptop's width, and the first day's overview."""

import os
from pathlib import Path

import pytest

# A missing package only fails a run that requires it.
if not os.environ.get("AIO_REQUIRE_BROWSER"):
    pytest.importorskip("playwright", reason="needs playwright and axe-playwright-python, of the extra dev")

from playwright.sync_api import Browser, Page, expect

from gateway.admin.routes import PAGES as SITE
from tests.gateway.operations.dashboard.browsing import PASSWORD
from tests.gateway.operations.dashboard.page_layout import (
    cut_tables,
    lines_of_the_header,
    overlapping_texts,
    unreadable_labels,
)
from tests.gateway.operations.dashboard.real_gateway import (
    IN_CHROMIUM,
    MODELS,
    add_user,
    import_labels,
    serious_findings,
    signed_in,
)
from tests.gateway.operations.dashboard.real_prompts import real_prompts
from tests.gateway.operations.dashboard.real_traffic import ADMIN, ask, order
from tests.support.served import Serve, ServedProcess

pytestmark = IN_CHROMIUM

PAGES = (
    *(f"/admin{page.path}".rstrip("/") for page in SITE),
    "/admin/requests td a",
    "/admin/keys td a",
    "/admin/quality/details",
    "/admin/quality/review",
    "/admin/system/alerts",
)
WIDTHS = (1280, 1024)
LONG_NAME = "christabella.van-der-westhuizen@platform.example.com"
# The widest that the overview's figures become.
WIDEST = """() => {
  for (const badge of document.querySelectorAll(".figure .badge, td .badge")) badge.textContent = "too few requests";
  for (const cell of document.querySelectorAll(".figure dd")) {
    if (!cell.querySelector(".badge")) cell.firstChild.data = "$123,456.78";
  }
  for (const name of document.querySelectorAll(".model")) name.textContent = "organisation/A-Large-70B-Instruct-v2";
  for (const cell of document.querySelectorAll("[aria-label=Tiers] td.num")) cell.textContent = "$0.000012";
  for (const cell of document.querySelectorAll("[aria-label=Latencies] td.num")) {
    cell.firstChild.data = "0.123 / 12.4 / 118 s";
  }
}"""


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory, weight_cache: Path, module_served: Serve) -> ServedProcess:
    """It has answered nothing yet: the first test asks it."""
    data = tmp_path_factory.mktemp("data")
    process = module_served(cache=weight_cache, data=data, environment={"AIO_ADMIN_KEYS": f"boss={ADMIN}"})
    add_user(data, LONG_NAME, "operator")
    import_labels(data, 30)
    return process


@pytest.fixture(scope="module")
def used(gateway: ServedProcess) -> ServedProcess:
    for model, prompt in zip(MODELS, real_prompts(len(MODELS)), strict=True):
        ask(gateway, model, prompt)
    order(gateway)
    return gateway


def opened(page: Page, place: str) -> None:
    path, _, link = place.partition(" ")
    page.goto(path)
    if link:
        page.goto(page.locator(link).first.get_attribute("href") or "")


def complaints(page: Page) -> list[str]:
    """What a reader of the page would stumble over."""
    found = [f"over each other: {pair}" for pair in overlapping_texts(page)]
    found += [f"cut: {table}" for table in cut_tables(page)]
    if (lines := lines_of_the_header(page)) != 1:
        found.append(f"the header has {lines} lines")
    return [f"{page.url}: {one}" for one in found]


def test_on_the_first_day_the_overview_says_what_to_do_until_the_first_request_is_answered(
    chrome: Browser, gateway: ServedProcess
) -> None:
    context = chrome.new_context(base_url=gateway.url, viewport={"width": 1024, "height": 800})
    context.grant_permissions(["clipboard-read", "clipboard-write"])
    page = signed_in(context)
    assert not complaints(page)
    assert not serious_findings(page)
    expect(page.locator("figure.timeline")).to_have_count(0)
    first = page.locator("ol.steps li").filter(has_text="Send a first request")
    expect(first).to_contain_text("to do")
    page.get_by_role("button", name="Copy").click()
    expect(page.get_by_role("button", name="Copied")).to_be_visible()
    copied = page.evaluate("navigator.clipboard.readText()")
    assert copied.startswith(f"curl {gateway.url}/v1/chat/completions ")
    ask(gateway, "tier-1", "Hello")
    # The page follows without a reload.
    expect(page.locator("figure.timeline")).to_have_count(5)
    page.get_by_text("First steps:").click()
    expect(page.locator("ol.steps li").filter(has_text="Send a first request")).to_contain_text("done")
    context.close()


@pytest.mark.parametrize("width", WIDTHS)
def test_no_text_lies_over_another_and_no_table_is_cut(chrome: Browser, used: ServedProcess, width: int) -> None:
    context = chrome.new_context(base_url=used.url, viewport={"width": width, "height": 800})
    page = signed_in(context)
    found: list[str] = []
    for place in PAGES:
        opened(page, place)
        found += complaints(page)
    context.close()
    assert not found, "\n".join(found)


@pytest.mark.parametrize("width", WIDTHS)
def test_the_widest_figures_have_room_on_the_overview(chrome: Browser, used: ServedProcess, width: int) -> None:
    context = chrome.new_context(base_url=used.url, viewport={"width": width, "height": 800})
    page = signed_in(context)
    page.get_by_role("button", name="Pause updates").click()
    page.evaluate(WIDEST)
    found = complaints(page)
    context.close()
    assert not found, "\n".join(found)


@pytest.mark.parametrize("width", WIDTHS)
def test_a_long_name_does_not_push_the_navigation_to_a_second_line(
    chrome: Browser, gateway: ServedProcess, width: int
) -> None:
    context = chrome.new_context(base_url=gateway.url, viewport={"width": width, "height": 800})
    page = context.new_page()
    page.goto("/admin/login")
    page.get_by_label("Name").fill(LONG_NAME)
    page.get_by_label("Password or admin key").fill(PASSWORD)
    page.get_by_role("button", name="Sign in").click()
    page.wait_for_url("**/admin")
    found = complaints(page)
    expect(page.get_by_role("button", name="Sign out")).to_be_in_viewport(ratio=1)
    context.close()
    assert not found, "\n".join(found)


@pytest.mark.parametrize("width", [390, 360])
def test_on_a_phone_no_table_is_cut_and_charts_can_be_read(chrome: Browser, used: ServedProcess, width: int) -> None:
    context = chrome.new_context(base_url=used.url, viewport={"width": width, "height": 740})
    page = signed_in(context)
    found = []
    for place in PAGES:
        opened(page, place)
        complaints = cut_tables(page) + overlapping_texts(page) + unreadable_labels(page)
        found += [f"{page.url}: {one}" for one in complaints]
    context.close()
    assert not found, "\n".join(found)


def test_on_a_phone_the_pages_are_in_a_menu_that_needs_no_script(chrome: Browser, used: ServedProcess) -> None:
    desk = chrome.new_context(base_url=used.url, viewport={"width": 1024, "height": 740})
    signed_in(desk)
    cookies = desk.storage_state()
    desk.close()
    context = chrome.new_context(
        base_url=used.url, viewport={"width": 390, "height": 740}, java_script_enabled=False, storage_state=cookies
    )
    page = context.new_page()
    page.goto("/admin/requests")
    link = page.get_by_role("navigation", name="Pages").get_by_role("link", name="Keys")
    expect(link).to_be_hidden()
    page.get_by_text("Menu", exact=True).click()
    expect(link).to_be_visible()
    page.set_viewport_size({"width": 1024, "height": 740})
    page.goto("/admin/requests")
    expect(page.get_by_text("Menu", exact=True)).to_be_hidden()
    expect(link).to_be_visible()
    context.close()


def test_a_key_is_made_with_four_fields_and_the_others_on_request(chrome: Browser, used: ServedProcess) -> None:
    context = chrome.new_context(base_url=used.url)
    page = signed_in(context)
    page.goto("/admin/keys")
    form = page.locator('form[action="/admin/keys"]')
    visible = form.locator("input:not([type=hidden]), select").locator("visible=true")
    expect(visible).to_have_count(4)
    form.get_by_text("Advanced").click()
    expect(form.get_by_label("Tokens a minute")).to_be_visible()
    context.close()
