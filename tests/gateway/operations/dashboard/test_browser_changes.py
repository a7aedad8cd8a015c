"""Every change in the dashboard, made in a browser by labels, buttons and dialogs."""

import os
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

# A missing package only fails a run that requires it.
if not os.environ.get("AIO_REQUIRE_BROWSER"):
    pytest.importorskip("playwright", reason="needs playwright and axe-playwright-python, of the extra dev")

from playwright.sync_api import Browser, BrowserContext, Page, expect

from gateway.admin.routes import PAGES
from tests.gateway.operations.dashboard.browsing import PASSWORD
from tests.gateway.operations.dashboard.real_gateway import (
    IN_CHROMIUM,
    add_user,
    admin_at,
    asked_gateway,
    card,
    headline,
    reloaded_until,
    row,
    signed_in,
)
from tests.support.served import ServedProcess

pytestmark = IN_CHROMIUM

VIEWER = "vera"


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory, weight_cache: Path) -> Iterator[ServedProcess]:
    data = tmp_path_factory.mktemp("data")
    with asked_gateway(data, weight_cache, 3) as process:
        add_user(data, VIEWER, "viewer")
        yield process


@pytest.fixture
def page(chrome: Browser, gateway: ServedProcess) -> Iterator[Page]:
    with admin_at(chrome, gateway) as page:
        yield page


def answered(gateway: ServedProcess, key: str, tokens: int = 2) -> int:
    """Return the status of a short request with a key."""
    body = {"model": "tier-1", "messages": [{"role": "user", "content": "Hi"}], "max_tokens": tokens}
    url = f"{gateway.url}/v1/chat/completions"
    return httpx.post(url, json=body, headers={"authorization": f"Bearer {key}"}, timeout=60).status_code


def test_a_knob_is_changed_refused_out_of_bounds_and_in_the_history(page: Page) -> None:
    page.goto("/admin/core")
    button = page.get_by_role("button", name="Change smollm2-int4")
    page.get_by_label("prefill_chunk", exact=True).fill("64")
    page.get_by_label("Reason", exact=True).fill("shorter steps")
    button.click()
    expect(page.get_by_role("status")).to_contain_text("prefill_chunk")
    expect(page.get_by_label("prefill_chunk", exact=True)).to_have_value("64")
    expect(row(page, "Table of changes", "prefill_chunk", "shorter steps", "boss")).to_contain_text("64")
    assert overflow(page, 360) == 0

    page.get_by_label("prefill_chunk", exact=True).fill("-1")
    button.click()
    expect(page.get_by_role("alert")).to_contain_text("prefill_chunk")
    page.get_by_role("link", name="Back to Core").click()
    expect(page.get_by_label("prefill_chunk", exact=True)).to_have_value("64")


def test_a_technique_is_switched_off_for_good_with_its_effect_and_on_again(page: Page) -> None:
    page.goto("/admin/core")
    cached = row(page, "Models of core cpu", "smollm2-int4").locator("td").nth(5)
    expect(cached).not_to_have_text("0")
    page.get_by_label("prefix_caching", exact=True).select_option("false")
    page.get_by_label("speculation", exact=True).select_option("off")
    page.get_by_label("keep across restarts", exact=True).check()
    page.get_by_role("button", name="Change smollm2-int4").click()
    expect(page.get_by_role("status")).to_contain_text("prefix_caching of smollm2-int4: true → false")
    expect(row(page, "Table of changes", "speculation", "off")).to_contain_text("kept")
    expect(cached).to_have_text("0")
    page.get_by_label("prefix_caching", exact=True).select_option("true")
    page.get_by_label("speculation", exact=True).select_option("prompt_lookup")
    page.get_by_role("button", name="Change smollm2-int4").click()
    expect(page.get_by_label("prefix_caching", exact=True)).to_have_value("true")


def test_a_knob_of_all_models_is_set_and_emptied_again(page: Page) -> None:
    page.goto("/admin/core")
    before = page.get_by_label("threads", exact=True).input_value()
    page.get_by_label("threads", exact=True).fill("1")
    page.get_by_role("button", name="Change all models of cpu").click()
    expect(page.get_by_role("status")).to_contain_text("threads of smollm2-int4, smollm2-bf16")
    for model in ("smollm2-int4", "smollm2-bf16"):
        page.goto(f"/admin/core?model={model}")
        expect(page.get_by_label("threads", exact=True)).to_have_value("1")
    page.get_by_label("threads", exact=True).fill("")
    page.get_by_role("button", name="Change all models of cpu").click()
    expect(page.get_by_label("threads", exact=True)).to_have_value(before)


def test_a_quality_target_is_previewed_applied_and_taken_back(page: Page) -> None:
    page.goto("/admin/routing")
    field = page.get_by_label("Preview another target")
    page.get_by_label("From cheaper to better").focus()
    page.keyboard.press("Home")  # the slider's least, which asks for the preview by itself
    page.wait_for_url("**/admin/routing?quality_target=0.5*")
    expect(row(page, "Targets", "Previewed")).to_contain_text("50")
    field.fill("0.75")
    page.get_by_role("button", name="Preview").click()
    expect(row(page, "Targets", "Previewed")).to_contain_text("75")
    page.get_by_role("button", name="Apply 75").click()
    form = page.locator('form[action="/admin/routing/target"]')
    expect(form.get_by_label("Why")).to_be_focused()  # the browser asks for what is missing
    form.get_by_label("Why").fill("cheaper")
    page.get_by_role("button", name="Apply 75").click()
    expect(page.get_by_role("status")).to_contain_text("The quality target is now 0.75")
    expect(row(page, "Targets", "Active")).to_contain_text("75")
    form.get_by_label("Why").fill("as before")
    page.get_by_role("button", name="Back to the server's own").click()
    expect(page.get_by_role("status")).to_contain_text("now the server's own")
    expect(page.get_by_role("button", name="Back to the server's own")).to_have_count(0)


def test_a_key_is_made_shown_once_bounded_rotated_and_revoked(page: Page, gateway: ServedProcess) -> None:
    page.goto("/admin/keys")
    form = card(page, "Make a key")
    form.get_by_label("Name").fill("reports")
    form.get_by_role("button").click()
    first = page.get_by_label("The key").inner_text()
    assert answered(gateway, first) == 200
    assert answered(gateway, first[:-1]) == 401
    page.get_by_role("link", name="I have it").click()
    expect(page.get_by_role("heading", name="reports")).to_be_visible()
    assert first not in page.content()

    bounds = card(page, "What it may do")
    bounds.get_by_label("Requests a minute").fill("2")
    bounds.get_by_label("Requests in flight").fill("1")
    bounds.get_by_role("button").click()
    expect(page.get_by_role("status")).to_contain_text("requests_per_minute: none → 2")
    expect(page.get_by_text("2 requests a minute")).to_be_visible()

    renewal = card(page, "Give it a new secret")
    renewal.get_by_label("Hours that the old one stays valid").fill("0")
    renewal.get_by_role("button").click()
    second = page.get_by_label("The key").inner_text()
    assert second != first
    assert answered(gateway, first) == 401
    page.get_by_role("link", name="I have it").click()
    assert [answered(gateway, second) for _ in range(3)].count(429) >= 1, "bounded at two a minute"

    card(page, "Revoke it").get_by_role("button").click()
    expect(page.get_by_role("status")).to_contain_text("revoked")
    expect(card(page, "Revoke it")).to_have_count(0)
    assert answered(gateway, second) == 401


def test_a_team_is_made_and_its_budget_set_and_removed(page: Page) -> None:
    page.goto("/admin/keys")
    team = card(page, "Make a team")
    team.get_by_label("Name").fill("research")
    team.get_by_role("button").click()
    expect(card(page, "Teams").get_by_role("link", name="research")).to_be_visible()
    budget = card(page, "Set a budget")
    budget.get_by_label("For a").select_option("team")
    budget.get_by_label("Name or id").fill("research")
    budget.get_by_label("US dollars").fill("12.5")
    budget.get_by_role("button").click()
    expect(page.get_by_role("status")).to_contain_text("research may spend $12.50 (month)")
    line = row(page, "Table of budgets", "team research")
    expect(line).to_contain_text("$12.5")
    line.get_by_role("button", name="Remove").click()
    expect(page.get_by_role("status")).to_contain_text("The budget is removed.")
    expect(page.get_by_text("No budget limits spending.")).to_be_visible()


def test_a_question_that_is_denied_changes_nothing(chrome: Browser, gateway: ServedProcess) -> None:
    page = signed_in(chrome.new_context(base_url=gateway.url))
    page.goto("/admin/keys")
    card(page, "Make a key").get_by_label("Name").fill("kept")
    card(page, "Make a key").get_by_role("button").click()
    kept = page.get_by_label("The key").inner_text()
    page.get_by_role("link", name="I have it").click()
    page.once("dialog", lambda dialog: dialog.dismiss())
    card(page, "Revoke it").get_by_role("button").click()
    expect(card(page, "Revoke it")).to_be_visible()
    assert answered(gateway, kept) == 200
    page.context.close()


def test_a_user_is_added_comes_in_loses_rights_is_signed_out_and_removed(page: Page, chrome: Browser) -> None:
    page.goto("/admin/users")
    form = card(page, "Add a user")
    form.get_by_label("Name").fill("otto")
    form.get_by_label("Password").fill(PASSWORD)
    form.get_by_label("Role").select_option("operator")
    form.get_by_role("button").click()
    expect(page.get_by_role("status")).to_contain_text("otto may sign in as operator.")
    context = chrome.new_context(base_url=page.url)
    otto = signed_in_by_name(context, "otto", "/admin/core")
    expect(otto.get_by_role("button", name="Change smollm2-int4")).to_be_visible()

    page.get_by_label("Role of otto", exact=True).select_option("viewer")
    page.get_by_role("button", name="Change the role of otto").click()
    expect(page.get_by_role("status")).to_contain_text("otto: operator → viewer")
    reloaded_until(otto, otto.locator("header").get_by_text("viewer"))
    expect(otto.get_by_role("button", name="Change smollm2-int4")).to_have_count(0)
    page.get_by_role("button", name="Sign otto out").click()
    expect(page.get_by_role("status")).to_contain_text("otto is signed out everywhere (1)")
    reloaded_until(otto, otto.get_by_role("button", name="Sign in"))
    context.close()
    page.get_by_role("button", name="Remove otto").click()
    expect(page.get_by_role("status")).to_contain_text("otto is removed")
    expect(row(page, "Table of users", "otto")).to_have_count(0)


def test_an_experiment_is_started_and_stopped(page: Page) -> None:
    page.goto("/admin/experiments")
    page.get_by_label("Name").fill("small or large")
    page.get_by_label("Arm a").select_option("tier:1")
    page.get_by_label("Arm b").select_option("tier:3")
    page.get_by_label("Percent of the traffic").fill("50")
    page.get_by_label("Why").fill("is the large one worth it")
    page.get_by_role("button", name="Start").click()
    expect(card(page, "small or large")).to_contain_text("half to each arm")
    expect(page.get_by_role("button", name="Start")).to_have_count(0)
    card(page, "small or large").get_by_label("Why").fill("seen enough")
    page.get_by_role("button", name="Stop").click()
    expect(card(page, "small or large")).to_contain_text("seen enough")
    expect(page.get_by_role("button", name="Start")).to_be_visible()


def test_a_viewer_has_no_forms_but_searches_tries_a_route_and_signs_out(
    chrome: Browser, gateway: ServedProcess
) -> None:
    context = chrome.new_context(base_url=gateway.url)
    page = signed_in_by_name(context, VIEWER, "/admin/core")
    for one in PAGES:
        if one.role != "viewer":
            continue
        page.goto(f"/admin{one.path}".rstrip("/"))
        expect(headline(page, one.title)).to_be_visible()
        forms = [form.get_attribute("action") for form in page.locator('form[method="post"]').all()]
        # What the page Try sends changes nothing; its button that asks for answers is an admin's.
        assert forms == ["/admin/logout", *(["/admin/try"] if one.path == "/try" else [])]
        expect(page.get_by_role("button", name="Ask", exact=True)).to_have_count(0)
    page.get_by_role("button", name="Sign out").click()
    page.wait_for_url("**/admin/login")
    page.goto("/admin/core")
    page.wait_for_url("**/admin/login?next=**")
    context.close()


def signed_in_by_name(context: BrowserContext, name: str, path: str) -> Page:
    """Sign in by name and open a path."""
    page = context.new_page()
    page.goto(f"/admin/login?next={path}")
    page.get_by_label("Name").fill(name)
    page.get_by_label("Password or admin key").fill(PASSWORD)
    page.get_by_role("button", name="Sign in").click()
    page.wait_for_url(f"**{path}")
    return page


def overflow(page: Page, width: int) -> int:
    """Return by how many pixels the page is wider than a screen of that width."""
    usual = page.viewport_size
    page.set_viewport_size({"width": width, "height": 740})
    wider = int(page.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth"))
    if usual is not None:
        page.set_viewport_size(usual)
    return wider
