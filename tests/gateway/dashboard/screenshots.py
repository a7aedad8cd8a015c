"""Pictures of every page of the dashboard, of a gateway with its real model and real prompts: `make screenshots`."""

import sys
import tempfile
import time
from pathlib import Path

from PIL import Image
from playwright.sync_api import BrowserContext, ViewportSize

from gateway.dashboard.live import SAMPLE_SECONDS
from gateway.dashboard.site import PAGES
from gateway.demo import demo_prompts
from tests.gateway.dashboard.real_gateway import asked_gateway, chromium, signed_in

SIZE: ViewportSize = {"width": 1280, "height": 860}
PHONE: ViewportSize = {"width": 390, "height": 844}
PROMPTS = 12
COLOURS = 64


def take(folder: Path) -> None:
    """One picture of each page by its name, and of some in the dark and on a phone."""
    folder.mkdir(parents=True, exist_ok=True)
    with (
        tempfile.TemporaryDirectory() as data,
        chromium() as browser,
        asked_gateway(Path(data), Path(data) / "cache", PROMPTS) as gateway,
    ):
        # A curve needs some of the samples that the gateway takes of itself.
        for prompt in demo_prompts(5)[0]:
            gateway.client.chat.completions.create(
                model="auto", messages=[{"role": "user", "content": prompt}], max_tokens=12
            )
            time.sleep(SAMPLE_SECONDS)
        desk = browser.new_context(base_url=gateway.url, viewport=SIZE)
        page = signed_in(desk)
        for one in PAGES:
            page.goto(f"/admin{one.path}".rstrip("/"))
            page.screenshot(path=folder / f"dashboard-{name_of(one.path)}.png", full_page=True)
        page.goto("/admin/requests")
        page.locator("td a").first.click()
        page.screenshot(path=folder / "dashboard-request.png", full_page=True)
        _login(desk, folder)
        for name, scheme, size in (("dark", "dark", SIZE), ("phone", "light", PHONE)):
            other = browser.new_context(base_url=gateway.url, viewport=size, color_scheme=scheme)  # type: ignore[arg-type]
            signed_in(other).screenshot(path=folder / f"dashboard-overview-{name}.png")


def shrink(folder: Path) -> None:
    """Few colours are enough for pages, and make a third of the bytes."""
    for path in folder.glob("dashboard-*.png"):
        Image.open(path).convert("RGB").quantize(COLOURS, dither=Image.Dither.NONE).save(path, optimize=True)


def name_of(path: str) -> str:
    """Of a page's file."""
    return path.strip("/").replace("/", "-") or "overview"


def _login(context: BrowserContext, folder: Path) -> None:
    page = context.new_page()
    page.goto("/admin/login")
    page.screenshot(path=folder / "dashboard-login.png", clip={"x": 340, "y": 0, "width": 600, "height": 420})


if __name__ == "__main__":
    take(Path(sys.argv[1]))
    shrink(Path(sys.argv[1]))
