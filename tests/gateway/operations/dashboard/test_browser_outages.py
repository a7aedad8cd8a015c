"""The dashboard without traffic, while the database is down, and after its core has died."""

import asyncio
import os
import subprocess
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path

import asyncpg
import pytest

# A missing package only fails a run that requires it.
if not os.environ.get("AIO_REQUIRE_BROWSER"):
    pytest.importorskip("playwright", reason="needs playwright and axe-playwright-python, of the extra dev")

from playwright.sync_api import Page, expect

from gateway.admin.routes import PAGES
from tests.gateway.operations.dashboard.real_gateway import IN_CHROMIUM, chromium, headline, serious_findings, signed_in
from tests.gateway.operations.dashboard.real_traffic import ADMIN
from tests.support.administrator import ADMIN_KEY
from tests.support.database import PostgresServer
from tests.support.served import served, started

pytestmark = IN_CHROMIUM

PATHS = {page.title: f"/admin{page.path}".rstrip("/") for page in PAGES}
WITHOUT_DATABASE = ("Overview", "Try", "Core", "System")
"""What is read from memory is shown without the database."""

Installation = tuple[Page, "subprocess.Popen[str]"]


@pytest.fixture(scope="module")
def installation(
    tmp_path_factory: pytest.TempPathFactory, postgres_server: PostgresServer, weight_cache: Path
) -> Iterator[Installation]:
    """A signed-in page of a gateway without traffic, and its core in a separate process."""
    folder = tmp_path_factory.mktemp("data")
    socket = ("--socket", str(folder / "core.sock"))
    environment = {"AIO_ADMIN_KEYS": f"boss={ADMIN}"}
    options = ("--role", "gateway", *socket, "--database-url", postgres_server.emptied_database())
    with ExitStack() as stack:
        core = stack.enter_context(started(folder / "core", weight_cache, "--role", "core", *socket))
        gateway = stack.enter_context(served(folder / "gateway", weight_cache, *options, environment=environment))
        browser = stack.enter_context(chromium())
        context = browser.new_context(base_url=gateway.url)
        yield signed_in(context), core


def checked(page: Page, title: str) -> None:
    """Check a page: its place in the navigation, and axe's serious findings."""
    page.goto(PATHS[title])
    expect(page.get_by_role("link", name=title, exact=True).first).to_have_attribute("aria-current", "page")
    assert not serious_findings(page)


def test_an_empty_installation_says_what_is_missing_on_every_page(installation: Installation) -> None:
    page, _ = installation
    for title in PATHS:
        checked(page, title)
        expect(headline(page, title)).to_be_visible()
    for title, said in (
        ("Does routing pay?", "Nothing was spent in this period."),
        ("Experiments", "No experiment has been run yet."),
        ("Core", "No knob has been changed yet."),
        ("Keys", "No key has been made yet."),
    ):
        page.goto(PATHS[title])
        expect(page.get_by_text(said)).to_be_visible()


@contextmanager
def requests_locked(server: PostgresServer) -> Iterator[None]:
    """Let queries of the stored requests wait. Playwright's event loop is this thread's."""
    locked, seen = threading.Event(), threading.Event()

    async def hold() -> None:
        connection = await asyncpg.connect(host="127.0.0.1", port=server.port, user="aio", database="postgres")
        async with connection.transaction():
            await connection.execute("LOCK TABLE requests IN ACCESS EXCLUSIVE MODE")
            locked.set()
            await asyncio.to_thread(seen.wait)
        await connection.close()

    with ThreadPoolExecutor(1) as pool:
        holding = pool.submit(asyncio.run, hold())
        assert locked.wait(60)
        try:
            yield
        finally:
            seen.set()
            holding.result()


def test_figures_that_are_being_read_are_loading_and_then_come_by_themselves(
    installation: Installation, postgres_server: PostgresServer
) -> None:
    page, _ = installation
    page.goto(PATHS["Overview"])
    with requests_locked(postgres_server):
        page.goto("/admin?span=15m")
        for label in ("Refused", "Failed"):
            figure = page.locator(".figure").filter(has=page.get_by_text(label, exact=True))
            expect(figure).to_contain_text("loading")
        expect(page.get_by_text("Charts: loading.")).to_be_visible()
    expect(page.get_by_text("No request in the last 15 minutes.").first).to_be_visible()
    expect(page.get_by_text("loading")).to_have_count(0)


def test_pages_say_that_the_database_is_away_and_are_whole_when_it_is_back(
    installation: Installation, postgres_server: PostgresServer
) -> None:
    page, _ = installation
    postgres_server.stop()
    try:
        for title in PATHS:
            checked(page, title)
            if title in WITHOUT_DATABASE:
                expect(headline(page, title)).to_be_visible()
            else:
                expect(page.get_by_role("heading", name="Not available now")).to_be_visible()
                expect(page.get_by_text("Requests are still answered and kept in the journal")).to_be_visible()
    finally:
        postgres_server.start()
    page.goto(PATHS["Keys"])
    expect(page.get_by_text("No key has been made yet.")).to_be_visible()


def test_where_answers_need_no_key_the_dashboard_does_and_leads_on_to_the_page_that_was_asked_for(
    installation: Installation, tmp_path: Path
) -> None:
    other = installation[0].context.browser
    assert other is not None
    options = ("--role", "gateway", "--socket", str(tmp_path / "no-core.sock"))
    with served(tmp_path, tmp_path / "cache", *options) as gateway:
        page = other.new_context(base_url=gateway.url).new_page()
        page.goto("/admin/keys")
        expect(page.get_by_role("button")).to_have_count(1)
        page.get_by_label("Password or admin key").fill(ADMIN_KEY)
        page.get_by_role("button", name="Sign in").click()
        page.wait_for_url("**/admin/keys")
        expect(page.get_by_role("heading", name="Make a key")).to_be_visible()
        page.context.close()


# Last in this module: the core stays dead.
def test_pages_say_that_the_core_is_dead(installation: Installation) -> None:
    page, core = installation
    core.kill()
    core.wait()
    for title in PATHS:
        checked(page, title)
        expect(headline(page, title)).to_be_visible()
    page.goto(PATHS["Core"])
    expect(page.get_by_role("alert")).to_contain_text("does not answer")
    page.goto(PATHS["Overview"])
    expect(page.get_by_role("alert").first).to_contain_text("does not answer")
