"""The page "Does routing pay?": the verdict with observe mode, costs net of checks, quality, and what would help; a
target and a mode applied by authorised users."""

import csv
import html
import io
import re
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import httpx
import pytest
import pytest_asyncio
from sqlalchemy import insert

from classifier.complexity.classes import Complexity
from classifier.decision import Decision, PolicyInputs, Prediction
from classifier.policy.decide import decide
from gateway.base.settings import Settings
from gateway.inference.classifier_versions import ActiveClassifier
from gateway.operations.routing_report import serving_version
from gateway.tenancy.changes import Order
from gateway.tenancy.keys.key_commands import KeyTerms, create_key, create_team
from migrations.tables.audit import JUDGE_TEST, audit_events
from migrations.tables.quality import training_rows, verifications
from migrations.tables.requests import routing_decisions
from migrations.tables.tenancy import api_keys
from quality.estimates.verified_sample import PEOPLE
from quality.verification.training_rows import encode_prompt
from tests.gateway.operations.dashboard.browsing import browser, forms_of, sign_in, submit, with_user
from tests.gateway.operations.dashboard.rows import insert_requests
from tests.support.app import RunningGateway, running_gateway

pytestmark = pytest.mark.asyncio(loop_scope="module")
PAGE, API = "/admin/routing", "/admin/api/report"
APPLY, SWITCH = f"{PAGE}/target", f"{PAGE}/mode"
SCRIPT = "<script>alert(1)</script>"
COSTS = [0.001, 0.002, 0.004, 0.01]
# Before the period that the page shows unless it is asked for another.
LONG_AGO = 40 * 86_400


@asynccontextmanager
async def serving(settings: Settings) -> AsyncIterator[RunningGateway]:
    """With the packaged classifier."""
    async with running_gateway(settings) as running:
        classifier = ActiveClassifier(settings.registry_path, running.serving.routing.served.catalog.fingerprint)
        classifier.load()
        running.serving.routing.classifier = classifier
        yield running


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def aio(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[RunningGateway]:
    """No request yet."""
    async with serving(Settings(data_dir=str(tmp_path_factory.mktemp("data")), monitor=False)) as running:
        yield running


def mode_of(aio: RunningGateway) -> str:
    return aio.serving.routing.knobs.active.mode


def classes_of(complexity: Complexity) -> list[float]:
    return [0.97 if one == complexity else 0.01 for one in Complexity]


async def routed(
    aio: RunningGateway, names: Sequence[str], p_ok: list[float], complexity: Complexity, **request: Any
) -> None:
    """Requests that routing decided with these probabilities."""
    prediction = Prediction(
        p_ok=p_ok, kind="measured", novelty=0.1, classifier_version="v", classes=classes_of(complexity)
    )
    inputs = PolicyInputs(prediction=prediction, costs=COSTS, quality_target=0.9, tau=0.9, objective="utility")
    decision = decide(inputs)
    at = time.time()
    rows = [{"request_id": name, "created_at": at - number} for number, name in enumerate(names)]
    stored = {
        "tier": decision.tier, "classifier_version": "v", "prediction_kind": "measured", "novelty": 0.1,
        "decision": decision,
    }  # fmt: skip
    await insert_requests(aio.serving.database, *(row | {"tier": decision.tier, **request} for row in rows))
    async with aio.serving.database.begin() as connection:
        await connection.execute(insert(routing_decisions), [stored | row for row in rows])


async def labelled(aio: RunningGateway, names: Sequence[str], key: str) -> None:
    """Labels of all tiers for simple prompts, of which tier 1 fails each."""
    version, now = serving_version(aio.serving), time.time()
    assert version is not None
    rows = []
    for number, name in enumerate(names):
        encoded = encode_prompt(version.model, [{"role": "user", "content": f"Which fruit is {name}?"}])
        rows.append(
            {"request_id": name, "key_id": key, "source": "probe", "feature_spec": encoded.feature_spec,
             "embedding": encoded.embedding, "features": encoded.features, "no_worse": [False, True, True, True],
             "weights": [1.0] * 4, "classes": classes_of(Complexity.SIMPLE), "created_at": now + number}
        )  # fmt: skip
    async with aio.serving.database.begin() as connection:
        await connection.execute(insert(training_rows), rows)


async def judged(aio: RunningGateway, name: str, label: str, **more: Any) -> None:
    now = time.time()
    row = {
        "request_id": name, "tier": 1, "model": "m", "sampled_probability": 0.05, "sampled_reason": "sample",
        "status": "done", "judge": "exact", "label": label, "cost_usd": 0.0, "reserved_usd": 0.0, "attempts": 1,
        "created_at": now, "finished_at": now,
    }  # fmt: skip
    async with aio.serving.database.begin() as connection:
        await connection.execute(insert(verifications), [row | more])


def text_of(page: httpx.Response) -> str:
    """The visible text, on one line."""
    assert page.status_code == 200, page.text
    return html.unescape(re.sub(r"\s+", " ", re.sub(r"<[^>]+>", " ", page.text)))


def rows_of(page: httpx.Response, region: str) -> list[list[str]]:
    """The cells of the body of a page's table."""
    table = page.text.partition(f'aria-label="{region}"')[2].partition("</table>")[0]
    body = table.partition("<tbody>")[2].partition("</tbody>")[0]
    cells = [re.findall(r"<t[hd][^>]*>(.*?)</t[hd]>", row, re.DOTALL) for row in body.split("</tr>")]
    return [[re.sub(r"\s+", " ", re.sub(r"<[^>]+>", "", cell)).strip() for cell in row] for row in cells if row]


async def report_of(client: httpx.AsyncClient, **query: Any) -> dict[str, Any]:
    answer = await client.get(API, params=query)
    assert answer.status_code == 200, answer.text
    found: dict[str, Any] = answer.json()
    return found


async def test_an_empty_installation_answers_four_questions_with_what_is_missing(admin: httpx.AsyncClient) -> None:
    page = await admin.get(PAGE)
    said = text_of(page)
    places = [page.text.index(f"<h2>{question}") for question in (
        "Not known yet", "What it costs", "How good it is", "What would help"
    )]  # fmt: skip
    assert places == sorted(places)
    for sentence in (
        "Nothing was spent in this period.",
        "No answer has been verified yet, so how good the answers are is not measured.",
        "Whether routing pays here is not known yet: no request has been answered by all tiers",
        "takes about 100 more requests that every tier answers and a judge compares: none come",
        "for an even mix of the four classes at the catalogue's prices.",
    ):
        assert sentence in said
    report = await report_of(admin)
    assert (report["help"]["missing_probes"], report["help"]["probes_a_day"]) == (100, 0.0)
    assert (report["quality"]["overall"], report["worth"]["worth"]["catalogue"]) == (None, None)


@pytest.mark.parametrize(
    ("wrong", "name"),
    [
        ("quality_target=2", "quality_target"), ("quality_target=nan", "quality_target"),
        ("quality_target=x", "quality_target"), ("days=0", "days"), ("days=x", "days"), ("days=367", "days"),
        ("span=2h", "span"), ("since=x", "since"), ("until=-1", "until"), ("since=10&until=5", "since"),
        ("tag=a%22b", "tag"),
    ],
)  # fmt: skip
async def test_a_query_without_meaning_is_refused(admin: httpx.AsyncClient, wrong: str, name: str) -> None:
    refused = await admin.get(f"{API}?{wrong}")
    assert (refused.status_code, refused.json()["error"]["param"]) == (400, name)
    assert (await admin.get(f"{PAGE}?{wrong}")).status_code == 400


async def test_before_any_request_a_target_moves_along_the_expected_curve(admin: httpx.AsyncClient) -> None:
    targets = (await report_of(admin, quality_target="1"))["help"]["targets"]
    active, previewed = targets["active"], targets["previewed"]
    assert (targets["requests"], active["target"], previewed["target"]) == (0, 0.7, 1.0)
    assert active["cost_share"] <= previewed["cost_share"] <= 1.0
    assert active["no_worse"] <= previewed["no_worse"] <= 1.0
    points = targets["points"]
    for name in ("target", "cost_share"):
        assert [point[name] for point in points] == sorted(point[name] for point in points)
    page = await admin.get(PAGE, params={"quality_target": "1"})
    assert f"target of 70.0% is expected to cost {active['cost_share']:.1%} of tier-4 alone" in text_of(page)
    assert f"as previewed: {previewed['cost_share']:.1%}, {previewed['no_worse']:.1%}." in page.text
    assert [row[0] for row in rows_of(page, "Targets")] == ["Active", "Previewed"]
    assert "as previewed" not in (await admin.get(PAGE)).text


async def test_what_tiers_keys_teams_and_models_cost_is_shown_net_of_all_checks(tmp_path: Path) -> None:
    settings = Settings(data_dir=str(tmp_path), monitor=False)
    async with running_gateway(settings) as aio, browser(aio) as admin:
        await sign_in(admin)
        await costs_net_of_checks(aio, admin)


async def costs_net_of_checks(aio: RunningGateway, admin: httpx.AsyncClient) -> None:
    database, now = aio.serving.database, time.time()
    order = Order(actor="test", now=now)
    await create_team(database, "research", order)
    ada = (await create_key(database, "ada", "research", KeyTerms(), order)).key_id
    paid = [
        {"request_id": "a", "key_id": ada, "model": "small", "cost_usd": 1.0, "baseline_cost_usd": 9.0},
        {"request_id": "b", "model": "large", "tier": 4, "cost_usd": 4.0, "baseline_cost_usd": 11.0},
    ]
    old = {"request_id": "old", "created_at": now - LONG_AGO, "cost_usd": 500.0, "baseline_cost_usd": 500.0}
    await insert_requests(
        database, *({"created_at": now - 3, "key_id": None} | one for one in paid), {"key_id": None} | old
    )
    await judged(aio, "a", "uncertain", key_id=ada, model="small", cost_usd=2.0)
    test = {"created_at": now - 1, "actor": "x", "action": JUDGE_TEST, "subject": "j", "details": {"spent_usd": 3.0}}
    async with database.begin() as connection:
        await connection.execute(insert(audit_events).values(**test))

    page = await admin.get(PAGE)

    said = text_of(page)
    assert "2 requests cost $5.00, and checks $5.00: verification $2.00, test of the judge $3.00." in said
    assert "All by tier-4 would have cost $20.00: after checks, routing saved $10.00, 50.0%." in said
    none = ["1", "50.0%", "1", "1", "$4.00", "$11.00", "$0.00", "$7.00", "63.6%"]
    mine = ["1", "50.0%", "1", "1", "$1.00", "$9.00", "$2.00", "$6.00", "66.7%"]
    assert rows_of(page, "Tiers") == [["tier-1", *mine], ["tier-4", *none]]
    assert rows_of(page, "Keys") == [["no key", *none], ["ada", *mine]]
    assert rows_of(page, "Teams") == [["no team", *none], ["research", *mine]]
    assert rows_of(page, "Models") == [["large", *none], ["small", *mine]]
    assert "$505.00" in (await admin.get(PAGE, params={"days": 90})).text
    year = await admin.get(PAGE, params={"days": 366})
    assert f'href="{API}?days=366"' in year.text
    total = (await report_of(admin, days=366))["cost"]["costs"]["total"]
    assert (total["spent"]["cost_usd"], total["net"]["saved_usd"]) == (505.0, 10.0)
    sheet = csv.DictReader(io.StringIO((await admin.get(API, params={"format": "csv"})).text))
    rows = {(row["split"], row["name"]): row for row in sheet}
    assert (rows["total", ""]["saved_usd"], rows["tier", "1"]["checks_usd"]) == ("10.0", "2.0")


async def test_costs_of_a_short_span_are_charted_by_its_buckets_and_of_a_long_one_by_day(tmp_path: Path) -> None:
    hours_ago = [(0.1, 1.0), (2.0, 10.0), (30.0, 100.0), (200.0, 1000.0)]
    now = time.time()
    rows = [
        {"request_id": str(ago), "created_at": now - 3600 * ago, "key_id": None, "cost_usd": usd}
        for ago, usd in hours_ago
    ]
    async with running_gateway(Settings(data_dir=str(tmp_path), monitor=False)) as aio, browser(aio) as admin:
        await sign_in(admin)
        await insert_requests(aio.serving.database, *rows)
        for span, buckets, spent in (
            ("15m", 15, 1.0), ("1h", 60, 1.0), ("24h", 96, 11.0), ("7d", 84, 111.0), ("30d", 30, 1111.0)
        ):  # fmt: skip
            title = "Cost per day" if span == "30d" else "Cost per hour"
            page = await admin.get(PAGE, params={"span": span, "quality_target": "0.9"})
            figures = page.text.partition("<figcaption><h3>")
            assert figures[2].startswith(title)
            assert f'data-buckets="{buckets}"' in figures[0]
            assert (await report_of(admin, span=span))["cost"]["costs"]["total"]["spent"]["cost_usd"] == spent
            assert f'href="{PAGE}?span={span}&amp;quality_target=0.9" aria-current="true"' in page.text
            preview = forms_of(page)[PAGE]["fields"]
            assert (preview["span"], preview["quality_target"]) == (span, "0.9")
        assert 'span=30d" aria-current="true">30 days' in (await admin.get(PAGE)).text
        today = (await admin.get(PAGE, params={"days": 1})).text
        assert 'aria-current="true">1 day<' in today
        assert "<h3>Cost per" not in today


async def test_a_burst_weighs_as_many_requests_as_it_has(aio: RunningGateway, admin: httpx.AsyncClient) -> None:
    """The even mix counts no more once there is a request, and a decision that named its tier is none of routing."""
    await routed(aio, [f"s{n}" for n in range(8)], [0.99, 0.995, 0.999, 1.0], Complexity.SIMPLE, key_id="k1")
    await routed(aio, ["e0", "e1"], [0.1, 0.1, 0.1, 1.0], Complexity.EXPERT, key_id="k1")
    targets = (await report_of(admin, quality_target="1"))["help"]["targets"]
    assert (targets["requests"], targets["classes"]) == (10, {"SIMPLE": 8, "EXPERT": 2})
    assert targets["active"]["split"] == [0.8, 0.0, 0.0, 0.2]
    assert targets["active"]["cost_share"] == pytest.approx((8 * 0.001 + 2 * 0.01) / 0.1)
    assert (targets["previewed"]["split"][3], targets["previewed"]["no_worse"]) == (1.0, 1.0)
    page = await admin.get(PAGE, params={"quality_target": "1"})
    assert "by the predictions for the newest 10 requests" in text_of(page)
    assert "How difficult the prompts are" in page.text
    assert page.text.count("<script") == 1


async def test_how_good_each_tier_is_for_each_kind_is_what_was_verified(
    aio: RunningGateway, admin: httpx.AsyncClient
) -> None:
    async with aio.serving.database.begin() as connection:
        key = {
            "key_id": "k1", "name": "support desk", "prefix": "p", "digest": "d", "scopes": [], "consent": True,
            "priority_ceiling": 1, "created_at": 1.0,
        }  # fmt: skip
        await connection.execute(insert(api_keys).values(key))
    for number in range(8):
        await judged(aio, f"s{number}", "worse" if number < 2 else "tie")
    for name, label in (("e0", "worse"), ("e1", "no_worse")):
        await judged(aio, name, label, tier=4, judge=PEOPLE, sampled_probability=1.0)
    await labelled(aio, [f"s{number}" for number in range(8)], "k1")
    await aio.operations.constant.look()

    page = await admin.get(PAGE)

    assert "How good the answers are is not known yet: 8 are verified, and it takes 2 more." in text_of(page)
    few, none = "not known yet: 2 more", "not known yet: 10 more"
    assert rows_of(page, "Kinds of prompts") == [
        ["SIMPLE prompts", few, "8", none, "0", none, "0"],
        ["support desk, no system prompt", few, "8", none, "0", none, "0"],
    ]
    tiers = rows_of(page, "How good the tiers are")
    assert tiers[0][2:5] == [few, "8", "–"]
    assert tiers[3][2:4] == ["what the others are compared with", "1 of 2"]
    [tenth] = (await report_of(admin))["quality"]["calibration"]
    assert (tenth["tier"], tenth["predicted"], tenth["no_worse"]["count"]) == (1, 0.99, 6)
    assert (tenth["least"], tenth["most"]) == (0.9, 1.0)
    assert "Calibration not known yet: tier-1 predicted at 90% to 100%: 2 more." in text_of(page)
    assert "Calibration: predicted and verified" not in page.text
    assert "needs 92 more" not in page.text
    assert "measured, 8 probes" in page.text


async def verified_as(aio: RunningGateway, tier: int, p_ok: float, good: int, answers: int) -> None:
    """Answers of `tier`, predicted to be no worse with `p_ok`, of which `good` were."""
    at = time.time()
    rows = [{"request_id": f"t{tier}p{p_ok}n{n}", "created_at": at - n} for n in range(answers)]
    prediction = Prediction(p_ok=[p_ok] * 3 + [1.0], kind="measured", novelty=0.1, classifier_version="v")
    inputs = PolicyInputs(prediction=prediction, costs=COSTS, quality_target=0.1, tau=0.1)
    decision = {
        "tier": tier, "classifier_version": "v", "prediction_kind": "measured", "novelty": 0.1,
        "decision": Decision(tier=tier, reason="r", scores=[0.5] * 4, inputs=inputs),
    }  # fmt: skip
    await insert_requests(aio.serving.database, *({"tier": tier} | row for row in rows))
    async with aio.serving.database.begin() as connection:
        await connection.execute(insert(routing_decisions), [decision | row for row in rows])
    for n, row in enumerate(rows):
        await judged(aio, str(row["request_id"]), "tie" if n < good else "worse", tier=tier)


async def test_calibration_is_shown_by_tenths_of_ten_answers_and_warns_of_drift(tmp_path: Path) -> None:
    async with running_gateway(Settings(data_dir=str(tmp_path), monitor=False)) as aio, browser(aio) as admin:
        await sign_in(admin)
        await verified_as(aio, 1, 0.25, 3, 10)
        await verified_as(aio, 1, 0.34, 1, 2)
        await verified_as(aio, 2, 0.89, 42, 60)
        page = await admin.get(PAGE)
    assert "tier-1, 3 of 10: 25.0%, 30.0%." in page.text
    assert "tier-1, 1 of 2" not in page.text
    assert "Calibration not known yet: tier-1 predicted at 30% to 40%: 8 more." in text_of(page)
    section = page.text.partition("<h2>How good it is</h2>")[2].lstrip()
    assert section.startswith('<p class="alert"><strong>tier-2:</strong> 89% expected, 70% verified as good, of 60')
    assert "<strong>tier-1:</strong>" not in section


async def test_labels_by_key_and_what_they_changed(aio: RunningGateway, admin: httpx.AsyncClient) -> None:
    await labelled(aio, [f"l{number}" for number in range(29)], "k1")
    await labelled(aio, ["other"], "k2")
    aio.operations.learning._drawn_at = float("-inf")
    report = await report_of(admin)

    page = await admin.get(PAGE)
    said = text_of(page)

    assert "all keys together: 38 labels." in said
    assert "support desk: 37 of 100 labels; from about 100 on, the key has its own model. On its 12 newest" in said
    curve = [row for row in rows_of(page, "Learning curve") if row[0] == "support desk"]
    [mine] = [one for one in report["help"]["learning"]["keys"] if one["key_id"] == "k1"]
    assert [int(row[1]) for row in curve] == [point["labels"] for point in mine["curve"]["points"]] == [0, 25]
    assert [float(row[2]) for row in curve] == [round(point["error"], 3) for point in mine["curve"]["points"]]
    assert float(curve[1][2]) < float(curve[0][2])


async def test_a_page_does_not_wait_for_the_learning_curve(
    aio: RunningGateway, admin: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gateway.admin.routing.WAIT_SECONDS", 0.0)
    monkeypatch.setattr(aio.operations.learning, "_last", None)
    assert "What was learned from labels is computed in the background" in text_of(await admin.get(PAGE))


async def test_a_gateway_that_stops_ends_the_drawing_of_its_curve(tmp_path: Path) -> None:
    async with serving(Settings(data_dir=str(tmp_path), monitor=False)) as aio:
        async with browser(aio) as client:
            await sign_in(client)
            await client.get(PAGE)
        learning = aio.operations.learning
    assert learning._running is not None
    assert learning._running.done()


async def test_a_target_is_applied_with_a_reason_and_written_down(
    aio: RunningGateway, admin: httpx.AsyncClient
) -> None:
    page = await admin.get(PAGE, params={"quality_target": "0.9"})
    assert (await submit(admin, page, APPLY)).status_code == 400, "no reason"
    assert aio.serving.routing.active_target is None
    done = await submit(admin, page, APPLY, reason=SCRIPT)
    assert (done.status_code, done.headers["location"]) == (303, PAGE)
    assert aio.serving.routing.active_target == 0.9
    decision = (
        await aio.http.post("/v1/route", json={"model": "auto", "messages": [{"role": "user", "content": "Hi"}]})
    ).json()
    assert decision["decision"]["inputs"]["quality_target"] == 0.9
    change = (await aio.http.get("/v1/admin/knobs/changes?knob=quality_target")).json()["changes"][0]
    assert (change["old_value"], change["new_value"], change["reason"]) == (None, 0.9, SCRIPT)
    after = await admin.get(PAGE)
    assert SCRIPT not in after.text
    assert rows_of(after, "Targets")[0][1] == "90.0%"
    back = await submit(admin, after, APPLY, reason="enough", default="1")
    assert back.status_code == 303
    assert aio.serving.routing.active_target is None


async def test_viewers_and_foreign_pages_change_nothing(aio: RunningGateway, admin: httpx.AsyncClient) -> None:
    async with with_user(aio, "vera", "viewer") as viewer:
        page = await viewer.get(PAGE, params={"quality_target": "0.9"})
        assert page.status_code == 200
        assert not {APPLY, SWITCH} & set(forms_of(page))
        token = forms_of(page)["/admin/logout"]["fields"]["csrf_token"]
        order = {"quality_target": "0.9", "mode": "observe", "reason": "why", "csrf_token": token}
        for path in (APPLY, SWITCH):
            assert (await viewer.post(path, data=order)).status_code == 403
    async with with_user(aio, "oscar", "operator") as operator:
        page = await operator.get(PAGE, params={"quality_target": "0.8"})
        assert SWITCH not in forms_of(page)
        token = forms_of(page)["/admin/logout"]["fields"]["csrf_token"]
        assert (await operator.post(SWITCH, data=order | {"csrf_token": token})).status_code == 403
        del order["csrf_token"]
        assert (await operator.post(APPLY, data=order)).status_code == 403
        assert aio.serving.routing.active_target is None
        assert (await submit(operator, page, APPLY, reason="why")).status_code == 303
        assert aio.serving.routing.active_target == 0.8
    for path in (APPLY, SWITCH):
        assert (await admin.post(path, data=order)).status_code == 403
    assert mode_of(aio) == "route"


async def test_what_routing_would_have_saved_is_shown_with_its_worst_answers_and_no_text_of_them(
    aio: RunningGateway, admin: httpx.AsyncClient
) -> None:
    at = time.time()
    prediction = Prediction(p_ok=[0.99, 0.99, 0.99, 1.0], kind="measured", novelty=0.1, classifier_version="v")
    inputs = PolicyInputs(prediction=prediction, costs=COSTS, quality_target=0.9, tau=0.9)
    ids = [{"request_id": f"w{k}", "created_at": at - k} for k in range(40)]
    texts = {"messages": [{"role": "user", "content": SCRIPT}], "answer": SCRIPT}
    await insert_requests(aio.serving.database, *({"tier": 4, "cost_usd": 0.01, **texts, **one} for one in ids))
    decision = {
        "tier": 4, "would_be_tier": 1, "classifier_version": "v", "prediction_kind": "measured", "novelty": 0.1,
        "decision": Decision(tier=4, would_be=1, reason="r", scores=[0.1, 0.2, 0.4, 1.0], inputs=inputs),
    }  # fmt: skip
    async with aio.serving.database.begin() as connection:
        await connection.execute(insert(routing_decisions), [decision | one for one in ids])
    shadow = {
        "sampled_reason": "shadow", "verifier_tier": 4, "verifier_model": "m", "judge": "pairwise",
        "judge_reliability": 0.8, "judged_answer": SCRIPT, "judged_cost_usd": 0.001, "reason": SCRIPT,
    }  # fmt: skip
    for one in ids:
        await judged(aio, one["request_id"], "worse", **shadow)

    page = await admin.get(PAGE)

    assert "over the newest 40 requests, it would have cost $0.040 instead of $0.40, and checks cost" in text_of(page)
    worst = rows_of(page, "The worst answers of routing while it was observed")
    assert len(worst) == 20
    assert worst[0] == ["w0", "tier-4", "tier-1", "worse", "pairwise", "80.0%"]
    assert 'href="/admin/requests/w0"' in page.text
    answer = await admin.get("/admin/requests/w0")
    assert "The answer of tier-1 that was judged" in text_of(answer)
    assert html.escape(SCRIPT) in answer.text
    assert SCRIPT not in answer.text
    assert SCRIPT not in page.text
    assert page.text.count("<script") == 1


async def test_an_admin_switches_the_mode_with_a_reason_that_is_written_down(
    aio: RunningGateway, admin: httpx.AsyncClient
) -> None:
    observing = await submit(admin, await admin.get(PAGE), SWITCH, reason="to see")
    assert (observing.status_code, observing.headers["location"], mode_of(aio)) == (303, PAGE, "observe")
    page = await admin.get(PAGE)
    assert "Switch routing on" in page.text
    assert "Observe mode: tier-4 answers everything" in page.text
    assert (await submit(admin, page, SWITCH)).status_code == 400, "no reason"
    assert (await submit(admin, page, SWITCH, mode="x", reason="r")).status_code == 400
    assert (await admin.post(SWITCH, data={"mode": "route", "reason": "r"})).status_code == 403, "no token"
    assert mode_of(aio) == "observe"
    assert (await submit(admin, page, SWITCH, reason="it pays")).status_code == 303
    assert mode_of(aio) == "route"
    change = (await aio.http.get("/v1/admin/knobs/changes?knob=mode")).json()["changes"][0]
    assert (change["old_value"], change["new_value"], change["reason"]) == ("observe", "route", "it pays")


@pytest.mark.parametrize(("former", "section"), [("spend", "cost"), ("shadow", "worth")])
async def test_a_former_page_leads_to_its_section(admin: httpx.AsyncClient, former: str, section: str) -> None:
    moved = await admin.get(f"/admin/{former}")
    assert (moved.status_code, moved.headers["location"]) == (301, f"{PAGE}#{section}")
    assert f'id="{section}"' in (await admin.get(PAGE)).text


@pytest.mark.parametrize(
    ("former", "field"),
    [("costs", "cost.costs"), ("shadow", "worth.observed"), ("worth", "worth"), ("learning", "help.learning"),
     ("routing/curve", "help.targets"), ("routing/kinds", "quality.kinds")],
)  # fmt: skip
async def test_a_former_endpoint_says_where_its_figures_are(admin: httpx.AsyncClient, former: str, field: str) -> None:
    gone = await admin.get(f"/admin/api/{former}")
    assert (gone.status_code, gone.json()["error"]["code"]) == (410, "endpoint_gone")
    assert f"are '{field}' of GET {API}" in gone.json()["error"]["message"]
    shown: Any = await report_of(admin)
    for name in field.split("."):
        shown = shown[name]


async def test_without_a_session_nothing_is_shown(aio: RunningGateway) -> None:
    async with browser(aio) as stranger:
        for path in (PAGE, "/admin/spend", "/admin/shadow"):
            assert (await stranger.get(path)).status_code == 303, path
        for path in (API, "/admin/api/costs"):
            assert (await stranger.get(path)).status_code == 401, path


async def test_before_the_first_probe_the_day_is_expected_by_the_days_requests(tmp_path: Path) -> None:
    settings = Settings(data_dir=str(tmp_path), monitor=True, sampling_rate=1.0, verification_budget=1000.0)
    async with serving(settings) as running, browser(running) as client:
        await sign_in(client)
        assert (await report_of(client))["help"]["probes_a_day"] == 0.0
        now = time.time()
        rows = [{"request_id": f"r{n}", "created_at": now - 60, "cost_usd": 1.0} for n in range(500)]
        await insert_requests(running.serving.database, *(row | {"messages": [{"role": "user"}]} for row in rows))
        shown = (await report_of(client))["help"]
        # One in a hundred is asked of every tier, and the budget pays for all of them.
        assert (shown["missing_probes"], shown["probes_a_day"]) == (100, 5.0)
        days = [datetime.fromtimestamp(now, UTC) + timedelta(days=more) for more in (20, 21)]
        assert any(f"expected on {day:%Y-%m-%d}" in shown["sentences"][0] for day in days)


async def test_without_a_classifier_the_page_says_what_the_catalogue_says(tmp_path: Path) -> None:
    async with running_gateway(Settings(data_dir=str(tmp_path), monitor=False)) as running, browser(running) as client:
        await sign_in(client)
        page = await client.get(PAGE)
        assert "There is nothing without an active classifier." in text_of(page)
        assert (await report_of(client))["help"]["learning"] is None


async def test_without_its_database_the_page_says_so(tmp_path: Path) -> None:
    settings = Settings(data_dir=str(tmp_path), monitor=False, database_url="postgresql://missing@127.0.0.1:1/none")
    async with running_gateway(settings) as running, browser(running) as client:
        await sign_in(client)
        page = await client.get(PAGE)
        assert page.status_code == 503
        assert "this page needs the database" in page.text
