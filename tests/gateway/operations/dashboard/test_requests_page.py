"""The requests page: search, paging, export, and stored text is never executed."""

import csv
import io
import time
from typing import Any

import httpx
import pytest

from classifier.decision import Exclusion, PolicyInputs, Prediction
from classifier.policy.decide import decide
from gateway.admin.requests import rerouted, stages_of
from gateway.admin.resource import cell
from gateway.admin.tier_chances import chances_of
from gateway.inference.classifier_versions import ActiveClassifier, RoutingModel
from gateway.tenancy.changes import Order
from gateway.tenancy.keys.key_commands import KeyTerms, create_key
from quality.estimates.traffic import SPANS
from quality.store.queries import RefusalCount, RefusalKind, add_refused
from tests.gateway.operations.dashboard.browsing import forms_of, tier_coloured
from tests.gateway.operations.dashboard.rows import insert_requests
from tests.support.app import RunningGateway

pytestmark = pytest.mark.asyncio(loop_scope="module")
SCRIPT = "<script>alert(1)</script>"


def rows_of(text: str) -> list[dict[str, Any]]:
    return list(csv.DictReader(io.StringIO(text)))


async def test_an_empty_installation_says_how_to_get_the_first_row(admin: httpx.AsyncClient) -> None:
    page = await admin.get("/admin/requests")
    assert page.status_code == 200
    assert "No request has been recorded yet." in page.text
    assert "/v1/chat/completions" in page.text


async def test_a_server_without_a_core_links_to_no_page_of_cores(admin: httpx.AsyncClient) -> None:
    page = await admin.get("/admin/requests")
    links = page.text.split('<nav aria-label="Pages">')[1].split("</nav>")[0]
    assert '"/admin/requests"' in links
    assert '"/admin/core"' not in links


async def test_without_a_core_the_core_page_offers_nothing_to_set(admin: httpx.AsyncClient) -> None:
    page = await admin.get("/admin/core")
    assert page.status_code == 200
    assert list(forms_of(page)) == ["/admin/logout"]
    assert "nothing to set here: all its tiers are remote" in page.text


async def test_requests_are_found_by_tier_key_time_and_id_and_paged(
    aio: RunningGateway, admin: httpx.AsyncClient
) -> None:
    at = 1_700_000_000.0
    await insert_requests(
        aio.serving.database,
        *({"request_id": f"r{n:03}", "created_at": at + 60 * n, "tier": 1 + n % 2, "key_id": "k"} for n in range(60)),
    )
    first = await admin.get("/admin/requests")
    assert "r059" in first.text
    assert "r009" not in first.text
    older = first.text.split('rel="next" href="')[1].split('"')[0].replace("&amp;", "&")
    assert "r009" in (await admin.get(older)).text
    assert "r058" not in (await admin.get("/admin/requests?tier=2&key_id=k&since=&until=")).text
    await insert_requests(
        aio.serving.database,
        {"request_id": "failed", "created_at": at, "status": "error", "requested_model": "org/a-model", "key_id": "k"},
        {"request_id": "left", "created_at": at, "status": "aborted", "requested_model": "auto", "key_id": "k"},
    )
    for query, found in (
        ({"status": "error"}, "failed"),
        ({"requested_model": "org/a-model", "key_id": "k"}, "failed"),
        ({"status": "aborted", "requested_model": "auto", "tier": "1"}, "left"),
    ):
        page = await admin.get("/admin/requests", params=query)
        assert [name for name in ("failed", "left", "r059") if name in page.text] == [found], query
        listed = (await admin.get("/admin/api/requests", params=query)).json()["rows"]
        assert [row["request_id"] for row in listed] == [found]
    assert "facet" not in listed[0]
    late = await admin.get("/admin/requests", params={"since": "2023-11-14T23:12"})
    assert "r059" in late.text
    assert "r057" not in late.text
    assert "No request matches." in (await admin.get("/admin/requests?key_id=missing")).text
    sent = await admin.get("/admin/requests", params={"request_id": " r007 "})
    assert sent.headers["location"] == "/admin/requests/r007"
    for wrong in ("since=yesterday", "tier=x", "cursor=x", "colour=red", "limit=0"):
        assert (await admin.get(f"/admin/requests?{wrong}")).status_code == 400, wrong


async def test_the_first_page_says_what_was_refused_in_the_last_hour(
    aio: RunningGateway, admin: httpx.AsyncClient
) -> None:
    minute = time.time() // 60 * 60
    counts = {("insufficient_quota", 0): 7, ("rate_limit_exceeded", 600): 20, ("model_not_found", 7200): 900}
    refusals = [
        (minute - ago, RefusalKind(None, 429, code, "", "/v1/chat/completions"), RefusalCount(count=count))
        for (code, ago), count in counts.items()
    ]
    await add_refused(aio.serving.database, refusals)
    aio.operations.live.traffic._fresh_until = dict.fromkeys(SPANS, 0.0)
    page = (await admin.get("/admin/requests")).text
    said = page.partition("Refused in the last hour: 27.")[2].partition("</p>")[0]
    assert said.index("20 over a rate limit") < said.index("7 over budget")
    whole = said.rpartition('href="')[2].partition('"')[0].replace("&amp;", "&")
    listed = (await admin.get(whole)).text
    assert [code in listed for code, _ in counts] == [True, True, False]
    for other in ("status=ok", "status=refused", "key_id=k", f"cursor={_cursor_in(page)}"):
        assert "Refused in the last hour" not in (await admin.get(f"/admin/requests?{other}")).text, other


def _cursor_in(page: str) -> str:
    return page.partition('rel="next" href="')[2].partition('"')[0].rpartition("cursor=")[2]


async def test_what_was_stored_is_shown_and_never_run(aio: RunningGateway, admin: httpx.AsyncClient) -> None:
    answer = await aio.openai.chat.completions.create(
        model="auto", messages=[{"role": "user", "content": SCRIPT}], metadata={"team": SCRIPT}
    )
    await aio.serving.records.recorded(answer.id)  # type: ignore[attr-defined]
    await insert_requests(
        aio.serving.database, {"request_id": "odd", "created_at": 2e9, "key_id": SCRIPT, "model": SCRIPT}
    )
    for path in ("/admin/requests", f"/admin/requests/{answer.id}", f"/admin/requests?key_id={SCRIPT}"):
        page = await admin.get(path)
        assert page.status_code == 200
        assert SCRIPT not in page.text
        assert page.text.count("<script") == 1
    assert SCRIPT not in (await admin.get(f"/admin/requests/{SCRIPT}")).text


async def test_a_file_for_spreadsheets_has_all_rows_and_no_formula(
    aio: RunningGateway, admin: httpx.AsyncClient
) -> None:
    formula = '=HYPERLINK("http://evil","x")'
    await insert_requests(
        aio.serving.database,
        *({"request_id": f"f{n}", "created_at": float(n), "key_id": "csv", "model": formula} for n in range(1200)),
    )
    answer = await admin.get("/admin/api/requests?format=csv&key_id=csv")
    assert answer.headers["content-type"] == "text/csv; charset=utf-8"
    assert "attachment" in answer.headers["content-disposition"]
    rows = rows_of(answer.text)
    assert [row["request_id"] for row in rows] == [f"f{n}" for n in reversed(range(1200))]
    assert {row["model"] for row in rows} == {f"'{formula}"}
    assert "messages" not in rows[0]
    assert len(rows_of((await admin.get("/admin/api/requests?format=csv&limit=7")).text)) == 7
    for wrong in ("format=xlsx", "format=csv&limit=100001", "format=csv&limit=0"):
        assert (await admin.get(f"/admin/api/requests?{wrong}")).status_code == 400


async def test_cells_that_would_be_formulas_are_texts() -> None:
    for start in "=+-@\t\r":
        assert cell(f"{start}1") == f"'{start}1"
    assert [cell(value) for value in (-1.5, None, "a=b", True, {"a": 1})] == [-1.5, None, "a=b", "true", '{"a":1}']


async def test_a_requests_page_explains_its_path(aio: RunningGateway, admin: httpx.AsyncClient) -> None:
    answer = await aio.openai.chat.completions.create(model="auto", messages=[{"role": "user", "content": "Hello"}])
    await aio.serving.records.recorded(answer.id)  # type: ignore[attr-defined]
    page = await admin.get(f"/admin/requests/{answer.id}")
    assert page.status_code == 200
    for shown in ("Route", "Queue", "Prefill", "Decode", "Stream", "P(good enough", "chosen", "What if", "Hello"):
        assert shown in page.text, shown
    assert tier_coloured(page.text) == []
    record = await aio.serving.records.find(answer.id)
    assert record is not None
    path = stages_of(record)
    assert path[0].begin_ms == 0
    assert all(stage.begin_ms <= stage.end_ms for stage in path)
    assert path[-1].end_ms == pytest.approx(record.timings.e2e_ms)
    assert path[2].end_ms == pytest.approx(record.timings.ttft_ms)


async def test_another_target_repeats_the_decision_from_the_record(
    aio: RunningGateway, admin: httpx.AsyncClient
) -> None:
    answer = await aio.openai.chat.completions.create(model="auto", messages=[{"role": "user", "content": "Hello"}])
    await aio.serving.records.recorded(answer.id)  # type: ignore[attr-defined]
    path = f"/admin/requests/{answer.id}"
    record = await aio.serving.records.find(answer.id)
    assert record is not None
    tiers = []
    for target in (0.0, 0.5, 1.0):
        otherwise = rerouted(aio.serving.routing, record, target)
        assert not isinstance(otherwise, str)
        assert otherwise.inputs.prediction == record.decision.inputs.prediction
        tiers.append(otherwise.tier)
        assert f"tier-{otherwise.tier}" in (await admin.get(path, params={"quality": target})).text
    assert tiers == sorted(tiers)
    for wrong in ("2", "x", "nan"):
        assert (await admin.get(path, params={"quality": wrong})).status_code == 400


async def test_a_request_is_shown_and_decided_again_without_a_serving_classifier(
    aio: RunningGateway, admin: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    answer = await aio.openai.chat.completions.create(model="auto", messages=[{"role": "user", "content": "Hello"}])
    await aio.serving.records.recorded(answer.id)  # type: ignore[attr-defined]
    none = ActiveClassifier(aio.serving.settings.registry_path, aio.serving.routing.served.catalog.fingerprint)
    monkeypatch.setattr(aio.serving.routing, "classifier", none)
    page = await admin.get(f"/admin/requests/{answer.id}", params={"quality": 0.9})
    assert page.status_code == 200, page.text
    assert (await admin.get("/admin/routing")).status_code == 200


async def test_a_mistake_in_a_version_is_not_taken_for_there_being_none(
    aio: RunningGateway, admin: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(request_id: str) -> RoutingModel:
        raise ZeroDivisionError

    monkeypatch.setattr(aio.classifier, "model_for", broken)
    assert (await admin.get("/admin/routing")).status_code == 500


async def test_a_request_is_there_for_programs_too(aio: RunningGateway, admin: httpx.AsyncClient) -> None:
    answer = await aio.openai.chat.completions.create(model="tier-2", messages=[{"role": "user", "content": "=1+1"}])
    await aio.serving.records.recorded(answer.id)  # type: ignore[attr-defined]
    shown = (await admin.get(f"/admin/api/requests/{answer.id}")).json()
    assert (shown["request"]["tier"], shown["verifications"]) == (2, [])
    [row] = rows_of((await admin.get(f"/admin/api/requests/{answer.id}?format=csv")).text)
    assert row["request_id"] == answer.id
    assert (await admin.get("/admin/api/requests/none")).status_code == 404
    assert (await admin.get("/admin/requests/none")).status_code == 404


def inputs_of(p_ok: list[float], **more: Any) -> PolicyInputs:
    costs = [1e-6 * 2**k for k in range(len(p_ok))]
    prediction = Prediction(p_ok=p_ok, novelty=0.0, kind="measured", classifier_version="v1")
    return PolicyInputs(prediction=prediction, costs=costs, quality_target=0.9, tau=0.9, **more)


@pytest.mark.parametrize(
    ("inputs", "reasons"),
    [
        (
            inputs_of([0.5, 0.95, 0.97, 1.0], exclusions=[Exclusion(tier=3, reason="the tier is down")]),
            [
                "P(good enough) 0.500 is below 0.900",
                None,
                "the tier is down",
                "it is good enough too, but no cheaper than tier 2",
            ],
        ),
        (inputs_of([0.5, 1.0], pinned_tier=1), [None, "the request is pinned to tier 1"]),
        (inputs_of([0.95, 1.0], key_min_tier=2), ["the key asks for at least tier 2", None]),
        (
            inputs_of([0.95, 1.0], previous_tier=2, in_tool_loop=True),
            ["the tool loop stays on tier 2", None],
        ),
        (
            inputs_of([0.5, 0.95, 1.0], observe_tier=3),
            [
                "routing would have chosen tier 2",
                "in observe mode tier 3 answers",
                None,
            ],
        ),
        (
            inputs_of([0.5, 1.0], experiment_id="e", arm="a", arm_tier=1),
            [None, "arm a of the experiment uses tier 1"],
        ),
    ],
    ids=["rule", "pin", "key", "conversation", "observed", "experiment"],
)
async def test_every_tier_that_was_not_chosen_says_why(inputs: PolicyInputs, reasons: list[str | None]) -> None:
    decision, names = decide(inputs), {1: "small", 2: "medium"}
    assert [chance.ruled_out for chance in chances_of(decision)] == reasons
    named = [why and why.replace("tier 1", "small").replace("tier 2", "medium") for why in reasons]
    assert [chance.ruled_out for chance in chances_of(decision, names)] == named


async def test_the_page_of_a_request_says_why_each_other_tier_was_ruled_out(
    aio: RunningGateway, admin: httpx.AsyncClient
) -> None:
    answer = await aio.openai.chat.completions.create(model="tier-2", messages=[{"role": "user", "content": "Hello"}])
    await aio.serving.records.recorded(answer.id)  # type: ignore[attr-defined]
    page = (await admin.get(f"/admin/requests/{answer.id}")).text
    assert page.count('<td class="why" data-head="Ruled out by">the request is pinned to tier-2</td>') == 3


async def test_keys_are_shown_and_found_by_name(aio: RunningGateway, admin: httpx.AsyncClient) -> None:
    database, order = aio.serving.database, Order(actor="test", now=1.0)
    issued = await create_key(database, "billing", None, KeyTerms(), order)
    await insert_requests(database, {"request_id": "of-billing", "created_at": 3e9, "key_id": issued.key_id})
    await insert_requests(database, {"request_id": "of-another", "created_at": 3e9, "key_id": "another"})
    for wanted in ("billing", issued.key_id):
        page = await admin.get("/admin/requests", params={"key_id": wanted})
        assert f'<a href="/admin/keys/{issued.key_id}">billing</a>' in page.text
        assert "of-another" not in page.text
        listed = (await admin.get("/admin/api/requests", params={"key_id": wanted})).json()["rows"]
        assert [row["request_id"] for row in listed] == ["of-billing"]
        rows = rows_of((await admin.get("/admin/api/requests", params={"key_id": wanted, "format": "csv"})).text)
        assert [row["request_id"] for row in rows] == ["of-billing"]
