"""The quality page's changes in a browser, on answers that the monitor judged and users rated."""

import os
import re
from collections.abc import Iterator

import pytest

# A missing package only fails a run that requires it.
if not os.environ.get("AIO_REQUIRE_BROWSER"):
    pytest.importorskip("playwright", reason="needs playwright and axe-playwright-python, of the extra dev")

from playwright.sync_api import Browser, Locator, Page, expect

from tests.gateway.operations.dashboard.real_gateway import (
    IN_CHROMIUM,
    admin_at,
    asked_gateway,
    card,
    reloaded_until,
    row,
    serious_findings,
)
from tests.gateway.operations.dashboard.real_prompts import real_prompts
from tests.gateway.operations.dashboard.real_traffic import WATCHED, ask_until_judged_worse, complain
from tests.support.served import ServedProcess

pytestmark = [
    *IN_CHROMIUM,
    # A real model answers and verifies, feedback is given, and a real classifier is trained.
    pytest.mark.timeout(1200),
]


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServedProcess]:
    data, cache = tmp_path_factory.mktemp("data"), tmp_path_factory.mktemp("cache")
    with asked_gateway(data, cache, 1, **WATCHED) as process:
        complain(process, real_prompts(2)[-1])
        ask_until_judged_worse(process, 3)
        yield process


@pytest.fixture
def page(chrome: Browser, gateway: ServedProcess) -> Iterator[Page]:
    with admin_at(chrome, gateway) as page:
        page.goto("/admin/quality/details")
        yield page


def form(page: Page, button: str) -> Locator:
    """Return the form of a submit button."""
    return page.locator("form").filter(has=page.get_by_role("button", name=button))


def send(page: Page, button: str, why: str) -> None:
    form(page, button).get_by_label("Why").fill(why)
    page.get_by_role("button", name=button).click()


def test_the_labels_that_routing_follows_are_counted_and_forgotten(page: Page) -> None:
    followed = page.get_by_text(re.compile(r"follows [1-9]\d* labels"))
    reloaded_until(page, followed)
    assert not serious_findings(page)
    page.get_by_role("button", name="Forget the labels").click()
    expect(form(page, "Forget the labels").get_by_label("Why")).to_be_focused()  # the browser asks for what is missing
    send(page, "Forget the labels", "the complaints were a prank")
    expect(page.get_by_role("status")).to_contain_text("The labels up to now are forgotten.")


def test_disagreements_are_read_and_labelled_one_after_the_other(page: Page) -> None:
    page.get_by_role("link", name="Back to the summary").click()
    page.get_by_role("link", name="Review answers that were judged worse").click()
    request = page.locator("h2 a")
    first = request.inner_text()
    for shown in ("Prompt", "The served answer is"):
        expect(page.get_by_role("heading", name=shown)).to_be_visible()
    expect(card(page, "The verifier's, tier-4").locator("pre")).not_to_be_empty()
    assert not serious_findings(page)
    page.get_by_label("Comment, if any").fill("both are right")
    page.get_by_role("button", name="No worse").click()
    expect(page.get_by_role("status")).to_contain_text("Reviewed as no worse: the next training learns from it.")
    second = request.inner_text()
    assert second != first
    page.get_by_role("link", name="Skip", exact=True).click()
    expect(request).not_to_have_text(second)
    third = request.inner_text()
    page.get_by_role("button", name="Worse", exact=True).click()
    expect(page.get_by_role("status")).to_contain_text("Reviewed as worse")
    expect(request).to_have_text(second)  # what was skipped is still there
    page.get_by_role("button", name="Tie").click()
    expect(page.get_by_role("status")).to_contain_text("Reviewed as tie")
    for reviewed, label in ((first, "no_worse"), (second, "no_worse"), (third, "worse")):
        page.goto(f"/admin/requests/{reviewed}")
        expect(row(page, "Verifications", "user")).to_contain_text(label)


def test_a_version_is_trained_put_on_trial_promoted_and_rolled_back(page: Page) -> None:
    versions = card(page, "Versions of the classifier")
    send(page, "Retrain now", "people complain")
    expect(page.get_by_role("status")).to_contain_text("The retraining has started.")
    send(page, "Retrain now", "people complain a lot")
    expect(page.get_by_role("status")).to_contain_text("A retraining is already running.")
    # These few verified answers prove nothing: the candidate is refused, and an operator may still promote it.
    made = row(page, "Versions", "refused")
    reloaded_until(page, made)
    expect(row(page, "Retraining runs", "button")).to_contain_text("a comparison needs at least 50")
    candidate, shipped = (made.locator("code").nth(place).inner_text() for place in (0, 1))

    form(page, "Put on trial").get_by_label("Version").select_option(candidate)
    form(page, "Put on trial").get_by_label("Percent of the requests").fill("25")
    send(page, "Put on trial", "let us see")
    expect(page.get_by_role("status")).to_contain_text(f"Version {candidate} is on trial.")
    expect(versions).to_contain_text("25.0% of the requests")
    expect(row(page, "Trials and watches", "canary", candidate)).to_contain_text("running")
    assert not serious_findings(page)
    send(page, "End the trial", "seen enough")
    expect(page.get_by_role("status")).to_contain_text("The trial has ended.")
    expect(row(page, "Trials and watches", "canary", candidate)).to_contain_text("seen enough")

    form(page, "Promote").get_by_label("Version").select_option(candidate)
    send(page, "Promote", "it may serve")
    expect(page.get_by_role("status")).to_contain_text(f"Version {candidate} serves.")
    assert_decides(page, candidate)
    send(page, f"Roll back to {shipped}", "as it was")
    expect(page.get_by_role("status")).to_contain_text(f"Version {shipped} serves again.")
    assert_decides(page, shipped)


def assert_decides(page: Page, version: str) -> None:
    """Wait until the gateway itself says so; then go back to the quality page."""
    page.goto("/admin/system")
    reloaded_until(page, card(page, "Versions").get_by_text(version))
    page.goto("/admin/quality/details")
