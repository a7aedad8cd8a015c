"""The dashboard in a real browser, over a gateway with its real model: display, accessibility, keyboard, live
updates."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

# A missing package only fails a run that requires it.
if not os.environ.get("AIO_REQUIRE_BROWSER"):
    pytest.importorskip("playwright", reason="needs playwright and axe-playwright-python, of the extra dev")

from playwright.sync_api import Browser, BrowserContext, ConsoleMessage, Page, ViewportSize, expect

from gateway.admin.routes import PAGES as SITE
from tests.gateway.operations.dashboard.real_gateway import (
    IN_CHROMIUM,
    asked_gateway,
    card,
    import_labels,
    reloaded_until,
    serious_findings,
    signed_in,
)
from tests.gateway.operations.dashboard.real_traffic import ADMIN, order
from tests.support.served import ServedProcess

pytestmark = IN_CHROMIUM

# Every page of the site, and those behind a link: a path, or a link's position on the previous page.
PAGES = (
    "/admin/login",
    *(f"/admin{page.path}".rstrip("/") for page in SITE),
    "/admin/requests td a",
    "/admin/keys td a",
    "/admin/quality/details",
    "/admin/quality/review",
    "/admin/system/alerts",
    "/admin/none",
)
PHONE: ViewportSize = {"width": 360, "height": 740}
# Prompts with labels of all tiers.
LABELS = 30
DESK: ViewportSize = {"width": 1280, "height": 900}


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory, weight_cache: Path) -> Iterator[ServedProcess]:
    data = tmp_path_factory.mktemp("data")
    with asked_gateway(data, weight_cache, 6) as process:
        order(process)
        import_labels(data, LABELS)
        yield process


@pytest.fixture
def desk(chrome: Browser, gateway: ServedProcess) -> Iterator[BrowserContext]:
    context = chrome.new_context(base_url=gateway.url, viewport=DESK)
    yield context
    context.close()


def opened(page: Page, place: str) -> None:
    """Go to a path, or follow the first link at a position."""
    path, _, link = place.partition(" ")
    page.goto(path)
    if link:
        page.goto(page.locator(link).first.get_attribute("href") or "")


@pytest.mark.parametrize("viewport", [DESK, PHONE], ids=["desk", "phone"])
def test_every_page_obeys_its_policy_fits_and_can_be_read_in_light_and_dark(
    chrome: Browser, gateway: ServedProcess, viewport: ViewportSize
) -> None:
    context = chrome.new_context(base_url=gateway.url, viewport=viewport)
    page = signed_in(context)
    complaints: list[str] = []

    def note(message: ConsoleMessage) -> None:
        # One page returns 404 on purpose.
        if message.type in ("error", "warning") and "404" not in message.text:
            complaints.append(f"{page.url}: {message.text}")

    page.on("console", note)
    page.on("pageerror", lambda error: complaints.append(f"{page.url}: {error}"))
    for place in PAGES:
        opened(page, place)
        wide = page.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth")
        if wide > 0:
            complaints.append(f"{page.url}: {wide} px too wide")
        complaints += serious_findings(page)
    context.close()
    assert not complaints, "\n".join(complaints)


def test_pages_say_in_words_what_is_asked_what_it_saves_and_what_was_learned(desk: BrowserContext) -> None:
    page = signed_in(desk)
    page.goto("/admin/routing")
    reloaded_until(page, card(page, "What would help").get_by_text(f"requests without a key: {LABELS} labels"))
    report = page.request.get("/admin/api/report").json()
    questions = {
        "What it costs": "cost", "How good it is": "quality", "Not known yet": "worth", "What would help": "help"
    }  # fmt: skip
    for question, name in questions.items():
        for sentence in report[name]["sentences"]:
            expect(card(page, question)).to_contain_text(sentence)
    tiers = card(page, "What it costs").get_by_role("region", name="Tiers").locator("tbody tr")
    for part in report["cost"]["costs"]["by_tier"]:
        row = tiers.filter(has_text=f"tier-{part['name']}")
        expect(row.locator("td").first).to_have_text(str(part["spent"]["requests"]))
    expect(page.get_by_role("region", name="Learning curve").locator("tbody tr").first).to_be_visible()


def test_the_keyboard_alone_signs_in_and_reaches_a_request(desk: BrowserContext) -> None:
    page = desk.new_page()
    page.goto("/admin/requests")
    for _ in range(2):
        page.keyboard.press("Tab")
    page.keyboard.press("Tab")
    expect(page.get_by_label("Password or admin key")).to_be_focused()
    page.keyboard.type(ADMIN)
    page.keyboard.press("Enter")
    page.wait_for_url("**/admin/requests")
    link = page.locator("td a").first
    for _ in range(40):
        page.keyboard.press("Tab")
        if link.evaluate("link => link === document.activeElement"):
            break
    page.keyboard.press("Enter")
    expect(page.get_by_role("heading", name="Decision")).to_be_visible()


def test_the_overview_follows_requests_without_a_reload_until_it_is_paused(
    desk: BrowserContext, gateway: ServedProcess
) -> None:
    page = signed_in(desk)
    page.evaluate("window.stayed = true")
    figures = page.locator('[data-live="now"] .figure')
    count = figures.filter(has=page.get_by_text("Requests", exact=True)).locator("dd")
    before = count.inner_text()
    gateway.client.chat.completions.create(model="tier-1", messages=[{"role": "user", "content": "Hi"}], max_tokens=2)
    expect(count).not_to_have_text(before)
    assert page.evaluate("window.stayed")
    pause = page.get_by_role("button", name="Pause updates")
    pause.click()
    expect(page.get_by_role("button", name="Resume updates")).to_have_attribute("aria-pressed", "true")


def test_without_javascript_everything_is_there(chrome: Browser, gateway: ServedProcess) -> None:
    context = chrome.new_context(base_url=gateway.url, java_script_enabled=False)
    page = signed_in(context)
    assert page.locator("svg.bar rect").count() == 5
    expect(page.get_by_role("button", name="Pause updates")).to_have_count(0)
    page.get_by_role("link", name="Requests").click()
    page.get_by_label("Tier").select_option("1")
    page.get_by_role("button", name="Search").click()
    assert "tier=1" in page.url
    assert page.locator("tbody tr").count() >= 2
    page.locator("td a").first.click()
    page.get_by_label("Quality target, 0 to 1").fill("1")
    page.get_by_role("button", name="Decide again").click()
    expect(page.get_by_text("routing would choose")).to_be_visible()
    page.get_by_role("button", name="Sign out").click()
    page.wait_for_url("**/admin/login")
    page.goto("/admin")
    page.wait_for_url("**/admin/login")
    context.close()


def test_a_script_in_a_prompt_and_its_tags_does_not_run(desk: BrowserContext, gateway: ServedProcess) -> None:
    script = "<script>alert(1)</script><img src=x onerror=alert(2)>"
    answer = gateway.client.chat.completions.create(
        model="tier-1", messages=[{"role": "user", "content": script}], metadata={"from": script}, max_tokens=2
    )
    page = signed_in(desk)
    ran: list[str] = []
    page.on("dialog", lambda dialog: ran.append(dialog.message))
    page.goto(f"/admin/requests/{answer.id}")
    page.get_by_text("Prompt and answer").click()
    expect(page.get_by_text(script).first).to_be_visible()
    assert not ran


def test_files_come_with_the_session(desk: BrowserContext, tmp_path: Path) -> None:
    page = signed_in(desk)
    page.goto("/admin/requests")
    with page.expect_download() as download:
        page.get_by_role("link", name="CSV").click()
    kept = tmp_path / "requests.csv"
    download.value.save_as(kept)
    assert kept.read_text().startswith("request_id,")
