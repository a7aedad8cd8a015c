"""Pictures of every page of the dashboard, of a gateway with its real model and real prompts: `make screenshots`."""

import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
from PIL import Image
from playwright.sync_api import Browser, Page, ViewportSize

from gateway.admin.routes import PAGES
from gateway.telemetry.overview import SAMPLE_SECONDS
from quality.estimates.traffic import SPANS
from quality.evaluation.ladder import measured_tasks
from tests.gateway.operations.dashboard.real_gateway import add_user, asked_gateway, chromium, signed_in
from tests.gateway.operations.dashboard.real_prompts import real_prompts
from tests.gateway.operations.dashboard.real_traffic import (
    ADMIN,
    WATCHED,
    administration,
    ask,
    ask_until_judged_worse,
    complain,
    meet_limits,
    order,
    rate,
    retrain,
    until_judged,
)
from tests.http_server import Reply, answering
from tests.polling import until
from tests.support.served import ServedProcess, served

SIZE: ViewportSize = {"width": 1280, "height": 860}
PHONE: ViewportSize = {"width": 390, "height": 844}
# Long pages end in long tables, whose start is enough.
MOST_HEIGHT = {"/requests": 1000, "/system": 900}
USUAL_MOST_HEIGHT = 2200
PROMPTS, SAMPLES = 12, 6
# Asked last, since the overview's tables are of five minutes, and judging the others may take longer.
RECENT = 24
BEFORE_LIMITS = 90
OF_FIGURES = ("/", "/routing", "/quality")
"""Pages whose figures complaints would make."""
EMPTY = ("/sessions",)
# The request in the picture: `auto` chose its tier, and it has positive feedback.
TYPICAL = (
    "What causes the seasons on Earth? A. its distance from the sun B. the tilt of its axis C. its speed D. the moon"
)


def take(folder: Path) -> None:
    """Take one picture of each page by its name, and of some in dark mode and on a phone."""
    folder.mkdir(parents=True, exist_ok=True)
    _first_day(folder)
    with (
        tempfile.TemporaryDirectory() as data,
        alerted() as channels,
        asked_gateway(Path(data), Path(data) / "cache", PROMPTS, **WATCHED, **channels) as gateway,
    ):
        request_id = _lived_in(gateway)
        for name, role in (("vera", "viewer"), ("oscar", "operator"), ("ada", "admin")):
            add_user(Path(data), name, role)
        with chromium() as browser:
            _every_page(browser, gateway, folder, request_id)
            _login(browser, gateway, folder)
    _figures(folder)


def _first_day(folder: Path) -> None:
    """The overview and the curve of a gateway that has answered nothing yet."""
    with (
        tempfile.TemporaryDirectory() as data,
        served(Path(data), Path(data) / "cache", environment={"AIO_ADMIN_KEYS": f"boss={ADMIN}"}) as gateway,
        chromium() as browser,
    ):
        page = signed_in(browser.new_context(base_url=gateway.url, viewport=SIZE))
        _whole(page, folder / "dashboard-first-day.png")
        page.goto("/admin/routing?quality_target=careful")
        page.locator("#help").screenshot(path=folder / "dashboard-first-curve.png")


def _figures(folder: Path) -> None:
    """The pages of figures of the ladder of `make run`: asked tasks that its adapter learned, in wordings that it never
    saw, while a key meets its rate limit and another its budget, and the catalogue is reloaded."""
    prompts = [task.prompt for task in measured_tasks(3, "held-out")]
    # At the price of verifying every answer nothing would be saved.
    watched = {"AIO_ADMIN_KEYS": f"boss={ADMIN}", **WATCHED, "AIO_SAMPLING_RATE": "0.5"}
    with (
        tempfile.TemporaryDirectory() as data,
        served(Path(data), Path(data) / "cache", "--catalog", "ladder", environment=watched) as gateway,
    ):
        gateway.until_whole()
        began = time.monotonic()
        for number, prompt in enumerate(prompts[:-RECENT]):
            if number == BEFORE_LIMITS:
                meet_limits(gateway)
            ask(gateway, "auto", prompt, 256)
        until_judged(gateway)
        for prompt in prompts[-RECENT:]:
            ask(gateway, "auto", prompt, 256)
        # A slow machine takes longer than the shortest span, and what happened first would be missing.
        span = "15m" if time.monotonic() - began < SPANS["15m"][0] else "1h"
        with chromium() as browser:
            page = signed_in(browser.new_context(base_url=gateway.url, viewport=SIZE))
            for path in OF_FIGURES:
                page.goto(f"/admin{path}".rstrip("/") + f"?span={span}")
                _whole(page, folder / f"dashboard-{name_of(path)}.png")
            for name, scheme, size in (("dark", "dark", SIZE), ("phone", "light", PHONE)):
                other = signed_in(browser.new_context(base_url=gateway.url, viewport=size, color_scheme=scheme))  # type: ignore[arg-type]
                other.goto(f"/admin?span={span}")
                other.screenshot(path=folder / f"dashboard-overview-{name}.png")


@contextmanager
def alerted() -> Iterator[dict[str, str]]:
    """Settings that send alerts to a server here, and to a mail server that does not exist."""
    with answering(lambda asked: Reply()) as url:
        mail = "mailtos://mail.example.com:587?from=a@example.com&to=ops@example.com"
        yield {"AIO_ALERT_URLS": f"json://{url.partition('://')[2]} {mail}", "AIO_ALERT_POLL_SECONDS": "1"}


def spend_half(gateway: ServedProcess) -> None:
    """Give the key `reports` a budget of which more than half is spent, and wait until it is reported."""
    with administration(gateway) as admin:

        def spent() -> float:
            """Of the key's budget for all time, which is set to what that makes 63%."""
            budget = {"kind": "key", "subject": "reports", "period": "total"}
            made = admin.put("/admin/api/budgets", json=budget | {"amount_usd": 1000.0}).json()["budget_id"]
            rows = admin.get("/admin/api/budgets").json()["rows"]
            usd: float = next(row["spent_usd"] for row in rows if row["budget_id"] == made)
            admin.put("/admin/api/budgets", json=budget | {"amount_usd": usd * 1.6})
            return usd

        until(spent, every=0.5)

        def reported() -> bool:
            sent = admin.get("/v1/admin/alerts").json()["sent"]
            return any(message["cause"].startswith("AioBudget/") for message in sent)

        until(reported, every=0.5)


def _lived_in(gateway: ServedProcess) -> str:
    """Use the gateway until its pages have content; return the id of a request to show."""
    complain(gateway, real_prompts(2)[-1])
    ask_until_judged_worse(gateway, 6)
    retrain(gateway)
    typical = ask(gateway, "auto", TYPICAL, 64)
    rate(gateway, typical, "up")
    order(gateway)
    # The curve needs some of the gateway's samples.
    prompts = real_prompts(4 * SAMPLES)
    for begin in range(0, len(prompts), 4):
        for model, prompt in zip(("auto", "tier-1", "auto", "tier-2"), prompts[begin:], strict=False):
            ask(gateway, model, prompt)
        time.sleep(SAMPLE_SECONDS)
    spend_half(gateway)
    return typical


def _every_page(browser: Browser, gateway: ServedProcess, folder: Path, request_id: str) -> None:
    page = signed_in(browser.new_context(base_url=gateway.url, viewport=SIZE))
    shown = [one.path for one in PAGES if one.path not in (*OF_FIGURES, *EMPTY)]
    for path in (*shown, "/quality/review", "/system/alerts"):
        page.goto(f"/admin{path}".rstrip("/"))
        _whole(page, folder / f"dashboard-{name_of(path)}.png", MOST_HEIGHT.get(path, USUAL_MOST_HEIGHT))
    page.goto("/admin/try")
    page.get_by_label("Prompt", exact=True).fill(TYPICAL)
    page.get_by_label("Quality target").fill("economy")
    page.get_by_label("Longest answer, tokens").fill("64")
    page.get_by_role("button", name="Ask", exact=True).click()
    page.get_by_role("heading", name="Which is better?").wait_for()
    _whole(page, folder / "dashboard-try.png")
    page.goto(f"/admin/requests/{request_id}?quality=0.8")
    _whole(page, folder / "dashboard-request.png")
    page.goto("/admin/keys")
    page.get_by_role("link", name="reports").first.click()
    _whole(page, folder / "dashboard-key.png")


def _whole(page: Page, path: Path, most: int = USUAL_MOST_HEIGHT) -> None:
    height = min(most, int(page.evaluate("document.documentElement.scrollHeight")))
    page.screenshot(path=path, full_page=True, clip={"x": 0, "y": 0, "width": SIZE["width"], "height": height})


def _login(browser: Browser, gateway: ServedProcess, folder: Path) -> None:
    page = browser.new_context(base_url=gateway.url, viewport=SIZE).new_page()
    page.goto("/admin/login")
    page.screenshot(path=folder / "dashboard-login.png", clip={"x": 340, "y": 0, "width": 600, "height": 470})


def shrink(folder: Path) -> None:
    """Reduce the colours: a few make up nearly the whole page, the tiers' own among them, and stay exact; the others
    become their nearest. Saves two thirds of the bytes."""
    for path in folder.glob("dashboard-*.png"):
        pixels = np.asarray(Image.open(path).convert("RGB"), np.int32)
        packed, place, counts = np.unique(pixels @ [1 << 16, 1 << 8, 1], return_inverse=True, return_counts=True)
        colours = np.stack([packed >> 16, packed >> 8 & 255, packed & 255], axis=1)
        # Coloured pixels matter more than another grey at a letter's edge.
        kept = colours[np.argsort(-counts * (1 + np.ptp(colours, axis=1)), kind="stable")[:256]]
        nearest = np.square(colours[:, None] - kept[None]).sum(axis=2).argmin(axis=1).astype(np.uint8)
        picture = Image.fromarray(nearest[place].reshape(pixels.shape[:2]), "P")
        picture.putpalette(kept.astype(np.uint8).tobytes())
        picture.save(path, optimize=True)


def name_of(path: str) -> str:
    """Name of a page's file."""
    return path.strip("/").replace("/", "-") or "overview"


if __name__ == "__main__":
    take(Path(sys.argv[1]))
    shrink(Path(sys.argv[1]))
