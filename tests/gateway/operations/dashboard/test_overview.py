"""The overview: the gateway's measurements, live, and plain words when there is nothing or a dependency is down."""

import asyncio
import csv
import io
import re
import threading
import time
from contextvars import ContextVar
from datetime import UTC, datetime
from typing import Any

import httpx
import pytest
from sqlalchemy import insert

from gateway.admin.overview import first_steps
from gateway.base.settings import Settings
from gateway.operations.dashboard.html.charts import HEIGHT
from gateway.telemetry.alert_rules import RULES
from gateway.telemetry.overview import SAMPLE_SECONDS, over_limit
from migrations.tables.quality import verifications
from quality.estimates.traffic import SPANS
from quality.estimates.verified_sample import UpgradeRate, UpgradeSettings, upgrade_rate
from quality.store.queries import RefusalCount, RefusalKind, add_refused, record_audit
from tests.gateway.operations.dashboard.browsing import browser, sign_in, submit
from tests.gateway.operations.dashboard.rows import insert_requests
from tests.polling import eventually
from tests.support.app import RunningGateway, running_gateway
from tests.support.core import laptop_hash_core

pytestmark = pytest.mark.asyncio(loop_scope="module")
HELLO = [{"role": "user", "content": "Say hello."}]


async def test_an_empty_installation_says_what_to_do(admin: httpx.AsyncClient) -> None:
    page = await admin.get("/admin")
    assert page.status_code == 200
    assert "No request in the last hour." in page.text
    assert 'aria-current="page">Overview' in page.text
    assert "curl http://127.0.0.1:" in page.text
    assert "<figure" not in page.text


async def test_the_first_steps_are_done_once_the_installation_has_what_they_ask_for(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    settings = Settings(data_dir=str(tmp_path_factory.mktemp("new")), monitor=False)
    async with running_gateway(settings) as gateway, browser(gateway) as client:
        await sign_in(client)
        assert await _done(gateway) == {"Add a second tier"}
        await insert_requests(gateway.serving.database, {"request_id": "first", "created_at": 1.0})
        assert await _done(gateway) == {"Add a second tier", "Send a first request"}
        await submit(client, await client.get("/admin/keys"), "/admin/keys", name="first", scopes="inference")
        assert await _done(gateway) == {"Add a second tier", "Send a first request", "Make a key"}
        page = await client.get("/admin/keys")
        budget = {"kind": "key", "subject": "first", "period": "day", "amount_usd": "1"}
        await submit(client, page, "/admin/budgets", **budget)
        assert await _done(gateway) >= {"Limit spending"}
        _forget(gateway)
        page = await client.get("/admin")
        assert "4 of 5 done" in page.text


async def _done(gateway: RunningGateway) -> set[str]:
    return {step.title for step in await first_steps(gateway.operations) if step.done}


async def test_figures_are_of_the_requests_that_were_served(aio: RunningGateway, admin: httpx.AsyncClient) -> None:
    charged = dict.fromkeys(range(1, 5), 0.0)
    for tier in (1, 1, 3):
        answer = await aio.openai.chat.completions.create(model=f"tier-{tier}", messages=HELLO)
        charged[tier] += answer.model_extra["x_aio"]["cost_usd"]
    await aio.operations.readiness.ledger.flush()
    _forget(aio)
    now = (await admin.get("/admin/api/overview")).json()
    assert [tier["requests"] for tier in now["tiers"]] == [2, 0, 1, 0]
    assert now["tiers"][0]["share"] == pytest.approx(2 / 3)
    first, overall = now["tiers"][0], now["overall"]
    assert first["ttft_seconds"]["p50"] > 0
    assert first["e2e_seconds"]["p99"] >= first["e2e_seconds"]["p50"]
    assert overall["requests"] == 3
    assert [tier["cost_usd"] for tier in now["tiers"]] == pytest.approx([*charged.values()])
    assert overall["cost_usd"] == pytest.approx(sum(charged.values()))
    assert overall["requests_per_second"] == pytest.approx(3 / now["window_seconds"])
    rows = list(csv.DictReader(io.StringIO((await admin.get("/admin/api/overview?format=csv")).text)))
    assert [row["tier"] for row in rows] == ["", "1", "2", "3", "4"]
    assert rows[1]["requests"] == "2"
    assert (await admin.get("/admin/api/overview?format=xml")).status_code == 400
    page = await admin.get("/admin")
    assert "No request in the last" not in page.text
    assert "66.7%" in page.text
    shown = page.text.partition("<main")[2]
    assert (
        shown.index("Saved, net")
        < shown.index("Quality kept")
        < shown.index("Does routing pay?")
        < shown.index("<figure")
    )
    # Their servers elsewhere have no cache of ours.
    assert "KV cache" not in page.text


async def test_the_charts_show_the_span_that_is_asked_for(aio: RunningGateway, admin: httpx.AsyncClient) -> None:
    hours_ago = {"request_id": "early", "created_at": time.time() - 3 * 3600, "tier": 2, "ttft_ms": 50.0}
    await insert_requests(aio.serving.database, hours_ago)
    for span, answered in (("1h", 0), ("24h", 1)):
        traffic = (await admin.get(f"/admin/api/traffic?span={span}")).json()
        assert traffic["together"]["answered"].get("2", 0) == answered
        page = (await admin.get(f"/admin?span={span}")).text
        assert f'href="/admin?span={span}" aria-current="true"' in page
        assert f'data-events="/admin/overview/events?span={span}"' in page
    rows = list(csv.DictReader(io.StringIO((await admin.get("/admin/api/traffic?span=24h&format=csv")).text)))
    assert sum(int(row["tier_2"]) for row in rows) == 1
    assert (await admin.get("/admin?span=2h")).status_code == 400


async def test_an_outage_a_burst_a_spent_budget_and_a_promotion_are_seen_without_a_click(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    settings = Settings(data_dir=str(tmp_path_factory.mktemp("day")), monitor=False)
    minute = time.time() // 60 * 60
    usual = [{"created_at": minute - ago * 60 + second} for ago in range(1, 50) for second in (7, 29, 51)]
    outage = [{"created_at": minute - 30 * 60 + second, "status": "error"} for second in range(10, 40)]
    burst = [{"created_at": minute - 20 * 60 + second / 10} for second in range(600)]
    rows = [{"request_id": str(n), "tier": 1} | row for n, row in enumerate((*usual, *burst))]
    rows += [{"request_id": f"e{n}", "tier": 2, "status": "error"} | row for n, row in enumerate(outage)]
    spent = RefusalKind("team-a", 429, "insufficient_quota", "", "/v1/chat/completions")
    async with running_gateway(settings) as gateway, browser(gateway) as client:
        await sign_in(client)
        await insert_requests(gateway.serving.database, *rows)
        await add_refused(gateway.serving.database, [(minute - 600, spent, RefusalCount(count=40))])
        promoted = {
            "actor": "loop",
            "action": "classifier.promoted",
            "subject": "v2-abc",
            "reason": "better by 3 points",
        }
        await record_audit(gateway.serving.database, at=minute - 300, **promoted)
        await record_audit(gateway.serving.database, at=minute - 4000, **promoted | {"subject": "v1-old"})
        page = (await client.get("/admin")).text
    titles = ("Requests per minute", "Failed per minute", "Refused per minute")
    requests, failed, refused = (values_of(page, title) for title in titles)
    begins = [datetime.fromtimestamp(minute - ago * 60, UTC).strftime("%Y-%m-%d %H:%M:%S") for ago in (31, 30, 20, 10)]
    assert [failed[at][0] for at in begins] == ["0", "30", "0", "0"]
    assert [refused[at][0] for at in begins] == ["0", "0", "0", "40"]
    assert [requests[at][0] for at in begins] == ["3", "3", "603", "3"]
    said = re.sub(r"<[^>]*>", "", page.partition("40 over budget")[2][:400])
    assert said.split()[:2] == ["(key", "team-a)"]
    assert 'A version of the classifier was promoted: <span class="mono">v2-abc</span>' in page
    assert "better by 3 points" in page
    assert "v1-old" not in page


def values_of(page: str, title: str) -> dict[str, list[str]]:
    """The values that a chart's table shows, by the time of their buckets."""
    table = page.partition(f'aria-label="Values: {title}"')[2].partition("</table>")[0]
    rows = re.findall(r'<tr><th scope="row">(.*?)</th>(.*?)</tr>', table)
    return {at: re.findall(r"<td[^>]*>(.*?)</td>", cells) for at, cells in rows}


def height_of(page: str, title: str) -> float:
    """How much of a chart's height its highest point takes."""
    chart = page.partition(f"<h3>{title}</h3>")[2].partition("</svg>")[0]
    path = re.findall(r'<path class="line [^>]* d="([^"]*)"', chart)[0]
    return 1 - min(float(y) for y in re.findall(r"[ML][\d.]+ ([\d.]+)", path)) / HEIGHT


async def test_a_short_outage_is_seen_next_to_a_burst_of_refusals(tmp_path_factory: pytest.TempPathFactory) -> None:
    settings = Settings(data_dir=str(tmp_path_factory.mktemp("outage")), monitor=False)
    minute = time.time() // 60 * 60
    outage = [
        {"request_id": f"e{n}", "created_at": minute - 1800 + 2 * n, "tier": 1, "status": "error"} for n in range(14)
    ]
    limited = RefusalKind("k", 429, "rate_limit_exceeded", "", "/v1/chat/completions")
    async with running_gateway(settings) as gateway, browser(gateway) as client:
        await sign_in(client)
        await insert_requests(gateway.serving.database, *outage)
        await add_refused(gateway.serving.database, [(minute - 600, limited, RefusalCount(count=700))])
        page = (await client.get("/admin")).text
    assert height_of(page, "Failed per minute") > 0.5
    assert height_of(page, "Refused per minute") > 0.5


async def test_refusals_stand_in_the_first_row_with_their_causes(aio: RunningGateway, admin: httpx.AsyncClient) -> None:
    _forget(aio)
    refused = RefusalKind("k", 429, "insufficient_quota", "", "/v1/chat/completions")
    await add_refused(aio.serving.database, [(time.time() // 60 * 60, refused, RefusalCount(count=709))])
    page = (await admin.get("/admin")).text
    lead = page.partition('<dl class="figures lead">')[2].partition("</dl>")[0]
    assert ">709<" in lead
    assert "709 over budget" in lead
    assert "status=refused&amp;code=insufficient_quota&amp;since=20" in lead


async def test_how_many_verified_answers_were_worse_is_of_the_last_sample(
    aio: RunningGateway, admin: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    _forget(aio)
    assert (await admin.get("/admin/api/overview")).json()["upgrade"] is None
    assert "not measured by this server" in (await admin.get("/admin")).text

    async def three_of_fifty() -> UpgradeRate:
        return upgrade_rate([False] * 3 + [True] * 47, UpgradeSettings())

    monkeypatch.setattr(aio.operations.live, "_quality", three_of_fifty)
    await aio.operations.live.sample()
    assert (await admin.get("/admin/api/overview")).json()["upgrade"]["needs_upgrade"]["count"] == 3
    page = await admin.get("/admin")
    assert "94.0%" in page.text
    assert "of the last 50 verified" in page.text


async def test_the_saving_is_that_of_the_page_spend(aio: RunningGateway, admin: httpx.AsyncClient) -> None:
    now = time.time()
    served = {"created_at": now - 1, "cost_usd": 2.0, "baseline_cost_usd": 10.0}
    await insert_requests(aio.serving.database, {"request_id": "paid", **served})
    check = {
        "request_id": "paid", "tier": 1, "model": "m", "sampled_probability": 1.0, "sampled_reason": "sample",
        "status": "done", "cost_usd": 3.0, "reserved_usd": 0.0, "attempts": 1, "created_at": now - 1,
    }  # fmt: skip
    async with aio.serving.database.begin() as connection:
        await connection.execute(insert(verifications).values(**check))
    aio.operations.live._saved_until = 0.0
    await aio.operations.live.sample()
    _forget(aio)

    net = (await admin.get("/admin/api/report")).json()["cost"]["costs"]["total"]["net"]
    assert (await admin.get("/admin/api/overview")).json()["saved"] == net
    assert (net["checks_usd"], net["share"]) == (3.0, pytest.approx(0.5, abs=0.01))
    for page in ("/admin", "/admin/routing"):
        assert f">{net['share']:.1%}<" in (await admin.get(page)).text, page


async def test_the_saving_is_read_at_the_start(tmp_path_factory: pytest.TempPathFactory) -> None:
    settings = Settings(data_dir=str(tmp_path_factory.mktemp("begun")), monitor=False)
    async with running_gateway(settings) as gateway:
        live = gateway.operations.live
        async with asyncio.timeout(SAMPLE_SECONDS / 2):
            await eventually(lambda: live._saved is not None)
        assert (await live.overview()).saved is not None


async def test_what_moves_comes_as_events(
    aio: RunningGateway, admin: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gateway.admin.overview.EVENT_SECONDS", 0.01)
    async with admin.stream("GET", "/admin/overview/events") as answer:
        assert answer.headers["content-type"].startswith("text/event-stream")
        text = "".join([chunk async for chunk in answer.aiter_text()])
    assert text.startswith("retry: 1000\n\n")
    assert text.count("\n\n") == 1 + 5
    assert 'data-live="tiers"' in text
    # Charts are sent when their figures are new: once.
    assert text.count('data-live="charts"') == 1
    async with browser(aio) as stranger:
        assert (await stranger.get("/admin/overview/events")).status_code == 303


async def test_many_viewers_share_one_look(aio: RunningGateway, admin: httpx.AsyncClient) -> None:
    _forget(aio)
    seen = await asyncio.gather(*(admin.get("/admin/api/overview") for _ in range(8)))
    assert len({answer.json()["at"] for answer in seen}) == 1


async def test_an_alert_stands_after_its_time_and_until_it_is_over() -> None:
    rule = next(rule for rule in RULES if rule.name == "AioErrors")
    since: dict[str, float] = {}
    for at, value, expected in (
        (0.0, 0.5, 0), (rule.for_seconds - 1, 0.5, 0), (rule.for_seconds, 0.5, 1), (rule.for_seconds + 1, None, 0),
        (rule.for_seconds + 2, 0.5, 1), (rule.for_seconds + 3, rule.above, 0), (rule.for_seconds + 4, 0.5, 0),
    ):  # fmt: skip
        found = over_limit({"error_share": value}, since, at)
        assert len(found) == expected, at
        assert all((alert.name, alert.since) == ("AioErrors", 0.0) for alert in found)


async def test_a_core_that_is_gone_is_said_and_the_page_still_there(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    settings = Settings(data_dir=str(tmp_path_factory.mktemp("core")), monitor=False, drain_seconds=1)
    core = laptop_hash_core(settings, threading.Event())
    async with running_gateway(settings, core=core, scripted=False) as gateway, browser(gateway) as client:
        await sign_in(client)
        well = (await client.get("/admin/api/overview")).json()
        assert well["cores"][0]["problem"] is None
        assert well["cores"][0]["arena_bytes"] > 0
        assert well["tiers"][0]["kv_share"] == 0.0
        await gateway.openai.chat.completions.create(model="tier-1", messages=HELLO, max_tokens=2)
        _forget(gateway)
        memory = (await client.get("/admin")).text.partition('aria-label="Memory"')[2].partition("</table>")[0]
        assert re.findall(r'<th scope="col">([^<]*)<', memory) == ["Tier or core", "In use", "Reserved"]
        assert re.search(r"</svg>0 B of [\d.]+ \wiB</td>", memory)
        await core.close()
        _forget(gateway)
        page = await client.get("/admin")
        assert page.status_code == 200
        assert "Core cpu does not answer." in page.text


async def test_the_overview_needs_no_database(aio: RunningGateway, tmp_path_factory: pytest.TempPathFactory) -> None:
    data, nowhere = str(tmp_path_factory.mktemp("away")), "postgresql://missing@127.0.0.1:1/none"
    away = Settings(data_dir=data, database_url=nowhere, monitor=False)
    async with running_gateway(away) as gateway, browser(gateway) as client:
        await sign_in(client)
        page = await client.get("/admin")
        assert page.status_code == 200
        assert "unknown" in page.text
        assert (await client.get("/admin/requests")).status_code == 503


async def test_a_database_that_hangs_holds_up_one_look_at_most(
    aio: RunningGateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    silent, asked = asyncio.Event(), 0
    # The gateway's own loops ask the database, too.
    of_this_test = ContextVar("of_this_test", default=False)
    connect = type(aio.serving.database).connect

    class Silent:
        async def __aenter__(self) -> None:
            nonlocal asked
            asked += 1
            await silent.wait()
            raise OSError

        async def __aexit__(self, *_: object) -> None: ...

    monkeypatch.setattr("gateway.admin.overview.WAIT_SECONDS", 0.01)
    monkeypatch.setattr(aio.operations.live, "tables_held", set())

    def connected(database: Any) -> Any:
        return Silent() if of_this_test.get() else connect(database)

    monkeypatch.setattr(type(aio.serving.database), "connect", connected)
    of_this_test.set(True)
    for _ in range(3):
        steps = await first_steps(aio.operations)
        assert next(step for step in steps if step.title == "Limit spending").done is None
    assert asked == 1
    silent.set()


def _forget(gateway: RunningGateway) -> None:
    """Drop what was read, as if time had passed."""
    gateway.operations.live._snapshot = None
    gateway.operations.live.traffic._fresh_until = dict.fromkeys(SPANS, 0.0)
