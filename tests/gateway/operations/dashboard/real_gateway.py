"""A gateway of the default catalogue in its own process, with answers of its real model, and a browser for it."""

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Browser, BrowserContext, Locator, Page, expect, sync_playwright

from tests.gateway.operations.dashboard.browsing import PASSWORD
from tests.gateway.operations.dashboard.real_prompts import real_prompts
from tests.gateway.operations.dashboard.real_traffic import ADMIN, ask
from tests.polling import until
from tests.support.served import ServedProcess, served

MODELS = ("tier-1", "tier-2", "auto", "tier-1", "tier-3", "tier-4")
PATIENCE = 60_000
"""Milliseconds."""
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
# Marks of a module.
IN_CHROMIUM = [
    pytest.mark.browser,
    pytest.mark.skipif(
        CHROMIUM is None and not os.environ.get("AIO_REQUIRE_BROWSER"), reason="needs Chromium (Debian's package)"
    ),
]


@contextmanager
def asked_gateway(data: Path, cache: Path, prompts: int, **environment: str) -> Iterator[ServedProcess]:
    """Start a gateway and ask it this many prompts, from the data folder if there is one."""
    with served(data, cache, environment={"AIO_ADMIN_KEYS": f"boss={ADMIN}", **environment}) as process:
        for number, prompt in enumerate(real_prompts(prompts)):
            ask(process, MODELS[number % len(MODELS)], prompt)
        yield process


def add_user(data: Path, name: str, role: str) -> None:
    """Add a user to the installation of a data folder."""
    order = ["admin", "add-user", name, "--role", role, "--password-stdin", "--data-dir", str(data)]
    # In a separate process: Playwright's event loop is this thread's.
    command = [sys.executable, "-c", "from gateway.cli import main; main()", *order]
    subprocess.run(command, input=f"{PASSWORD}\n", text=True, check=True, stdout=subprocess.DEVNULL)


def import_labels(data: Path, count: int) -> None:
    """Import labels of all tiers into the installation of a data folder, without a key."""
    lines = [
        json.dumps({"prompt": f"{prompt} ({number})", "scores": {"1": number % 2, "2": 1, "3": 1, "4": 1}})
        for number, prompt in enumerate(real_prompts(count))
    ]
    file = data / "outcomes.jsonl"
    file.write_text("\n".join(lines), encoding="utf-8")
    command = [sys.executable, "-c", "from gateway.cli import main; main()", "outcomes", "import", str(file)]
    done = subprocess.run([*command, "--data-dir", str(data)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


@contextmanager
def chromium(*arguments: str) -> Iterator[Browser]:
    """The system's browser, driven by Playwright, headless, with these command-line arguments."""
    # Root in a container cannot create the sandbox's namespaces.
    sandbox = ["--no-sandbox"] if os.geteuid() == 0 else []
    # A busy machine may take longer than the usual five seconds to show what is asserted.
    expect.set_options(timeout=PATIENCE)
    with sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=CHROMIUM, args=[*sandbox, *arguments])
        yield browser
        browser.close()


def signed_in(context: BrowserContext) -> Page:
    """A page signed in by the admin key."""
    page = context.new_page()
    page.goto("/admin/login")
    page.get_by_label("Password or admin key").fill(ADMIN)
    page.get_by_role("button", name="Sign in").click()
    page.wait_for_url("**/admin")
    return page


@contextmanager
def admin_at(browser: Browser, gateway: ServedProcess) -> Iterator[Page]:
    """A page of the admin, who accepts every confirmation."""
    context = browser.new_context(base_url=gateway.url)
    context.set_default_timeout(PATIENCE)
    page = signed_in(context)
    page.on("dialog", lambda dialog: dialog.accept())
    yield page
    context.close()


def card(page: Page, heading: str) -> Locator:
    """The section under a heading."""
    return page.locator("section.card").filter(has=page.get_by_role("heading", name=heading, exact=True))


def headline(page: Page, link: str) -> Locator:
    """The headline of the page behind a link of the navigation, which may be shorter."""
    return page.get_by_role("heading", level=1, name=re.compile(rf"^{re.escape(link)}(?!\w)"))


def row(page: Page, table: str, *texts: str) -> Locator:
    """The first row of a table with all these texts."""
    rows = page.get_by_role("region", name=table).locator("tbody tr")
    for text in texts:
        rows = rows.filter(has_text=text)
    return rows.first


def reloaded_until(page: Page, there: Locator) -> None:
    """Reload until the page has it."""

    def found() -> bool:
        page.reload()
        return there.count() > 0

    until(found)


def serious_findings(page: Page) -> list[str]:
    """Return axe's serious and critical findings on a page, in light and in dark mode."""
    found = []
    for scheme in ("light", "dark"):
        page.emulate_media(color_scheme=scheme)  # type: ignore[arg-type]
        found += [
            f"{page.url}, {scheme}: {one['id']}: {[node['html'][:160] for node in one['nodes'][:3]]}"
            for one in Axe().run(page).response["violations"]
            if one["impact"] in ("serious", "critical")
        ]
    return found
