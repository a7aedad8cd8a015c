"""What the pages say of stored requests, refusals, changes, budgets and verdicts, on a desk and on a phone."""

import os
import re
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

# A missing package only fails a run that requires it.
if not os.environ.get("AIO_REQUIRE_BROWSER"):
    pytest.importorskip("playwright", reason="needs playwright and axe-playwright-python, of the extra dev")

from playwright.sync_api import Browser, Page, expect
from sqlalchemy import Connection, Table, create_engine, insert

from classifier.decision import PolicyInputs, Prediction
from classifier.policy.decide import decide
from migrations.tables.audit import audited
from migrations.tables.quality import verifications
from migrations.tables.requests import refused_requests, requests, routing_decisions
from quality.estimates.verified_sample import PEOPLE
from tests.gateway.operations.dashboard.page_layout import overlapping_texts, unreadable_labels
from tests.gateway.operations.dashboard.real_gateway import IN_CHROMIUM, card, row, serious_findings, signed_in
from tests.gateway.operations.dashboard.real_traffic import ADMIN, administration
from tests.gateway.operations.dashboard.rows import SERVED
from tests.support.served import Serve, ServedProcess

pytestmark = IN_CHROMIUM

PHONE_HEIGHT = 2500
MINUTE = 60.0
ANSWERS, GOOD = 30, 21
BUSIEST = ("batch-jobs", "nightly", "reports", "intern", "demo")
FAILED = 40
CHANGES = (
    (50, "catalogue.reloaded", "laptop"),
    (20, "classifier.canary_started", "v2-abc"),
    (19.9, "classifier.promoted", "v2-abc"),
    (5, "experiment.started", "small or large"),
)


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory, weight_cache: Path, module_served: Serve) -> ServedProcess:
    data = tmp_path_factory.mktemp("data")
    process = module_served(cache=weight_cache, data=data, environment={"AIO_ADMIN_KEYS": f"boss={ADMIN}"})
    with administration(process) as admin:
        keys = {name: admin.post("/admin/api/keys", json={"name": name}).json()["key_id"] for name in BUSIEST}
        for number in range(7):
            admin.post("/admin/api/keys", json={"name": f"team-{number}"})
    store = create_engine(f"sqlite:///{data / 'aio.sqlite3'}")
    with store.begin() as connection:
        _traffic(connection, keys)
        _refusals(connection, keys)
        _verdicts(connection)
        for ago, action, subject in CHANGES:
            connection.execute(audited(time.time() - ago * MINUTE, "ann", action, subject, "as planned"))
    store.dispose()
    with administration(process) as admin:
        for subject, period in (("batch-jobs", "day"), ("nightly", "total"), ("reports", "month")):
            budget = {"kind": "key", "subject": subject, "period": period, "amount_usd": 1.0}
            admin.put("/admin/api/budgets", json=budget)
    return process


def _traffic(connection: Connection, keys: dict[str, str]) -> None:
    """An hour of answers of tier 1, and failures of tier 2 half an hour ago."""
    now = time.time()
    decision = decide(
        PolicyInputs(
            prediction=Prediction(p_ok=[0.999, 1.0, 1.0, 1.0], kind="measured", novelty=0.1, classifier_version="v"),
            costs=[0.001, 0.002, 0.004, 0.01],
            quality_target=0.9,
            tau=0.9,
            objective="utility",
        )
    )
    usual = {**SERVED, "ttft_ms": 80.0, "cost_usd": 0.01, "baseline_cost_usd": 0.1}
    answered = [
        {**usual, "request_id": f"a{n}", "created_at": now - (n + 2) * MINUTE, "key_id": keys["intern"]}
        for n in range(ANSWERS)
    ]
    failed = [
        {**usual, "request_id": f"f{n}", "created_at": now - 30 * MINUTE, "tier": 2, "status": "error", "key_id": None}
        for n in range(FAILED)
    ]
    spent = {**usual, "request_id": "spent", "created_at": now - 10, "key_id": keys["nightly"], "cost_usd": 2.0}
    nearly = {**spent, "request_id": "nearly", "created_at": now - 20, "key_id": keys["batch-jobs"], "cost_usd": 0.999}
    _insert(connection, requests, [*answered, *failed, spent, nearly])
    decided = {
        "tier": 1, "classifier_version": "v", "prediction_kind": "measured", "novelty": 0.1, "decision": decision,
    }  # fmt: skip
    _insert(
        connection,
        routing_decisions,
        [{**decided, "request_id": row["request_id"], "created_at": row["created_at"]} for row in answered],
    )


def _refusals(connection: Connection, keys: dict[str, str]) -> None:
    """Most are over the budget of one key, others over the limits of five."""
    now = time.time()
    minute = now // MINUTE * MINUTE
    counts = [("insufficient_quota", "batch-jobs", 412)]
    counts += [("rate_limit_exceeded", name, 50 - 10 * n) for n, name in enumerate(BUSIEST)]
    usual = {"status": 429, "reason": "", "path": "", "last_request_id": "", "last_message": None}
    rows = [
        {**usual, "refusal_id": f"{code}{name}", "code": code, "key_id": keys[name], "count": count}
        | {"created_at": minute, "last_at": now}
        for code, name, count in counts
    ]
    _insert(connection, refused_requests, rows)


def _verdicts(connection: Connection) -> None:
    """Of the answers, a judge found nine in thirty worse; people complained about forty more."""
    usual = {
        "tier": 1, "model": "m", "sampled_probability": 0.5, "sampled_reason": "sample", "status": "done",
        "cost_usd": 0.0, "reserved_usd": 0.0, "attempts": 1, "created_at": time.time() - MINUTE,
    }  # fmt: skip
    rows = [
        {**usual, "request_id": f"a{n}", "label": "no_worse" if n < GOOD else "worse", "judge": "exact"}
        | {"finished_at": time.time() - MINUTE + n}
        for n in range(ANSWERS)
    ]
    rows += [
        {**usual, "request_id": f"f{n}", "tier": 2, "label": "worse", "judge": PEOPLE, "finished_at": time.time()}
        for n in range(FAILED)
    ]
    _insert(connection, verifications, rows)


def _insert(connection: Connection, table: Table, rows: Sequence[dict[str, Any]]) -> None:
    connection.execute(insert(table), rows)


@pytest.fixture
def page(chrome: Browser, gateway: ServedProcess) -> Iterator[Page]:
    context = chrome.new_context(base_url=gateway.url, viewport={"width": 1280, "height": 900})
    yield signed_in(context)
    context.close()


@pytest.fixture
def phone(chrome: Browser, gateway: ServedProcess) -> Iterator[Page]:
    context = chrome.new_context(base_url=gateway.url, viewport={"width": 390, "height": 844})
    yield signed_in(context)
    context.close()


def figure(page: Page, label: str) -> Any:
    """The value of a figure with its note."""
    return page.locator(".figure").filter(has=page.get_by_text(label, exact=True)).locator("dd")


def test_refusals_name_the_keys_and_lead_to_their_requests(page: Page) -> None:
    refused = figure(page, "Refused")
    expect(refused).to_contain_text("412 over budget (key batch-jobs)")
    expect(refused).to_contain_text("over a rate limit (keys batch-jobs 50, nightly 40, reports 30 and 2 more)")
    refused.get_by_role("link", name="batch-jobs").first.click()
    refusals = page.get_by_role("region", name="Table of refused requests").locator("tbody tr")
    expect(refusals).to_have_count(1)
    expect(refusals).to_contain_text("insufficient_quota")
    expect(refusals).to_contain_text("batch-jobs")


def test_changes_are_marked_on_every_chart_by_the_letters_of_their_list(page: Page) -> None:
    listed = card(page, "Changes").locator("tbody tr")
    expect(listed).to_have_count(len(CHANGES))
    assert [line.locator("th").inner_text() for line in listed.all()] == ["D", "C", "B", "A"]
    expect(listed.last).to_contain_text("The catalogue was reloaded")
    charts = page.locator("figure.timeline > svg")
    for chart in charts.all():
        # Two that are seconds apart share a line.
        assert chart.locator("text.event").all_text_contents() == ["A", "B–C", "D"]
        title = chart.locator("g title").first.text_content() or ""
        assert re.match(r"A, .* UTC: The catalogue was reloaded: laptop", title)
        assert "Changes: A, " in (chart.get_attribute("aria-label") or "")
    assert charts.count() == 5
    assert not serious_findings(page)


def test_letters_of_changes_can_be_read_on_a_phone(phone: Page) -> None:
    expect(phone.locator("text.event").first).to_be_visible()
    assert not unreadable_labels(phone) + overlapping_texts(phone)


def test_failed_requests_are_in_no_line_of_a_tier(page: Page) -> None:
    values = page.locator('[aria-label="Values: Requests per minute"]')
    cells = values.locator("tbody tr td:nth-child(3)").all_text_contents()
    assert {float(cell) for cell in cells if cell != "–"} == {0.0}
    expect(figure(page, "Failed")).to_contain_text(f"{FAILED}")
    expect(figure(page, "Requests")).to_contain_text(f"{ANSWERS + FAILED + 2}")


def test_the_page_on_routing_asks_a_question_and_answers_it_first(page: Page) -> None:
    page.get_by_role("navigation", name="Pages").get_by_role("link", name="Does routing pay?").click()
    page.wait_for_url("**/admin/routing")
    expect(page).to_have_title("Does routing pay? · AIO")
    expect(page.get_by_role("heading", level=1)).to_have_text("Does routing pay?")
    answer = page.locator("main section").first
    expect(answer.get_by_role("heading", level=2)).to_have_text("Not known yet")
    expect(answer).to_contain_text("Whether routing pays here is not known yet")


def test_what_is_expected_and_was_not_verified_is_a_warning(page: Page) -> None:
    page.goto("/admin/routing")
    warnings = page.locator("#quality .alert")
    expect(warnings.filter(has_text="tier-1: 100% expected, 70% verified as good, of 30 answers.")).to_be_visible()
    expect(warnings.filter(has_text="99.9% expected at the active target, by 30 requests; 70.0%")).to_be_visible()
    expect(page.locator("#quality")).to_contain_text("By 30 verified answers, 70.0% [52.1%, 83.3%] of all answers")
    expect(row(page, "How good the tiers are", "tier-1")).to_contain_text("70.0% 52.1% to 83.3%")
    # Nothing else was verified.
    expect(row(page, "How good the tiers are", "tier-2")).to_contain_text("not known yet: 10 more")


def test_complaints_of_people_are_not_in_the_quality_that_is_kept(page: Page) -> None:
    expect(figure(page, "Quality kept")).to_contain_text("70.0%")
    expect(figure(page, "Quality kept")).to_contain_text(f"of the last {ANSWERS} verified")
    page.goto("/admin/quality")
    expect(figure(page, "Quality kept")).to_contain_text("70.0%")
    expect(figure(page, "Verdicts of judges")).to_contain_text(
        re.compile(rf"^{ANSWERS}by {ANSWERS} comparisons, of which 0 were left undecided; 0 waiting")
    )
    page.goto("/admin/routing")
    expect(row(page, "How good the tiers are", "tier-2")).to_contain_text(f"0 of {FAILED}")


def test_a_key_whose_budget_is_spent_or_too_low_says_so_and_when_it_starts_again(page: Page) -> None:
    page.goto("/admin/keys")
    tomorrow = time.strftime("%Y-%m-%d", time.gmtime(time.time() + 86_400))
    left = "$0.001 left: less than its last request could cost; "
    for key, state, said in (
        ("batch-jobs", "budget too low", f"{left}starts again on {tomorrow}, 00:00 UTC"),
        ("nightly", "budget spent", "it has no period that ends: raise it to go on"),
    ):
        line = row(page, "Table of keys", key)
        expect(line.locator(".badge.amber")).to_have_text(state)
        expect(line).to_contain_text(said)
    expect(row(page, "Table of keys", "reports").locator(".badge.green")).to_have_text("active")
    row(page, "Table of keys", "batch-jobs").get_by_role("link", name="batch-jobs").click()
    expect(page.locator("dl.facts").get_by_text("budget too low")).to_be_visible()


def test_the_page_system_has_every_tier_with_what_it_runs_on(page: Page) -> None:
    page.goto("/admin/system")
    for number in range(1, 5):
        tier = row(page, "Table of dependencies", f"tier {number}, smollm2")
        expect(tier).to_contain_text("takes requests; runs on the core cpu, on the CPU")
        expect(tier.locator(".badge.green")).to_have_text("ok")


@pytest.mark.parametrize("path", ["", "/keys", "/quality", "/routing", "/core"])
def test_a_page_is_short_on_a_phone(phone: Page, path: str) -> None:
    phone.goto(f"/admin{path}")
    height = phone.evaluate("document.documentElement.scrollHeight")
    assert height <= PHONE_HEIGHT


def test_on_a_phone_a_long_table_opens_without_a_script(chrome: Browser, gateway: ServedProcess) -> None:
    desk = chrome.new_context(base_url=gateway.url, viewport={"width": 1280, "height": 900})
    cookies = signed_in(desk).context.storage_state()
    desk.close()
    context = chrome.new_context(
        base_url=gateway.url, viewport={"width": 390, "height": 844}, java_script_enabled=False, storage_state=cookies
    )
    page = context.new_page()
    page.goto("/admin/keys")
    keys = page.get_by_role("region", name="Table of keys").locator("tbody tr")
    shown = keys.locator("visible=true")
    expect(shown).to_have_count(5)
    page.get_by_text("Show all 12").click()
    expect(shown).to_have_count(12)
    form = page.locator('form[action="/admin/teams"]')
    expect(form).to_be_hidden()
    page.locator("summary").filter(has_text="Make a team").click()
    expect(form).to_be_visible()
    page.set_viewport_size({"width": 1280, "height": 900})
    page.goto("/admin/keys")
    expect(shown).to_have_count(12)
    expect(page.get_by_text("Show all 12")).to_be_hidden()
    context.close()
