"""A gateway of the default catalogue in a process of its own, with answers of its real model, for browsers."""

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from playwright.sync_api import Browser, BrowserContext, Page, sync_playwright

from gateway.demo import demo_prompts
from tests.gateway.served_process import ServedProcess, served

ADMIN = "an-admin-key-of-some-length"
MODELS = ("tier-1", "tier-2", "auto", "tier-1", "tier-3", "tier-4")
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")


@contextmanager
def asked_gateway(data: Path, cache: Path, prompts: int, **environment: str) -> Iterator[ServedProcess]:
    """Started, and asked so many prompts: those of the data folder where there is one."""
    with served(data, cache, environment={"AIO_ADMIN_KEYS": f"boss={ADMIN}", **environment}) as process:
        for number, prompt in enumerate(demo_prompts(prompts)[0]):
            process.client.chat.completions.create(
                model=MODELS[number % len(MODELS)],
                messages=[{"role": "user", "content": prompt}],
                max_tokens=12,
                temperature=0,
                stream=False,
            )
        yield process


@contextmanager
def chromium() -> Iterator[Browser]:
    """The system's browser, driven by Playwright, without a window."""
    # A container's root may not make the namespaces of the sandbox.
    arguments = ["--no-sandbox"] if os.geteuid() == 0 else []
    with sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=CHROMIUM, args=arguments)
        yield browser
        browser.close()


def signed_in(context: BrowserContext) -> Page:
    """A page of somebody who came in by the admin key."""
    page = context.new_page()
    page.goto("/admin/login")
    page.get_by_label("Password or admin key").fill(ADMIN)
    page.get_by_role("button", name="Sign in").click()
    page.wait_for_url("**/admin")
    return page
