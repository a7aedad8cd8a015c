"""The spend page: keys, teams and models by name, with all checks taken off what was saved; and the budgets."""

import time

import httpx
import pytest
from sqlalchemy import insert

from gateway.tenancy.budgets.budget_commands import set_budget
from gateway.tenancy.changes import Order
from gateway.tenancy.keys.key_commands import KeyTerms, create_key, create_team
from migrations.tables.audit import JUDGE_TEST, audit_events
from migrations.tables.quality import verifications
from tests.gateway.operations.dashboard.browsing import browser
from tests.gateway.operations.dashboard.rows import insert_requests
from tests.gateway.running_gateway import RunningGateway

pytestmark = pytest.mark.asyncio(loop_scope="module")
PAGE = "/admin/spend"


def cells(page: httpx.Response, table: str) -> list[list[str]]:
    """The texts of a table's rows."""
    body = page.text.split(f'aria-label="{table}"')[1].split("<tbody>")[1].split("</tbody>")[0]
    rows = [row.split("</tr>")[0] for row in body.split("<tr>")[1:]]
    return [
        ["".join(part.partition(">")[2] for part in f">{cell}".split("<")).strip() for cell in _cells(row)]
        for row in rows
    ]


def _cells(row: str) -> list[str]:
    ends = row.replace("</th>", "</td>").split("</td>")[:-1]
    return [cell.partition(">")[2] for cell in ends]


async def test_an_empty_installation_says_what_will_be_here(admin: httpx.AsyncClient) -> None:
    page = await admin.get(PAGE)
    assert page.status_code == 200
    assert "Nothing was spent in this period." in page.text
    assert "No budget limits spending." in page.text


async def test_what_keys_teams_and_models_cost_is_shown_net_of_all_checks(
    aio: RunningGateway, admin: httpx.AsyncClient
) -> None:
    database, now = aio.serving.database, time.time()
    order = Order(actor="test", now=now)
    await create_team(database, "research", order)
    ada = (await create_key(database, "ada", "research", KeyTerms(), order)).key_id
    await insert_requests(
        database,
        {
            "request_id": "a",
            "created_at": now - 3,
            "key_id": ada,
            "model": "small",
            "cost_usd": 1.0,
            "baseline_cost_usd": 9.0,
        },
        {
            "request_id": "b",
            "created_at": now - 2,
            "key_id": None,
            "model": "large",
            "cost_usd": 4.0,
            "baseline_cost_usd": 11.0,
        },
        {
            "request_id": "old",
            "created_at": now - 40 * 86_400,
            "key_id": None,
            "cost_usd": 500.0,
            "baseline_cost_usd": 500.0,
        },
    )
    await set_budget(database, "team", "research", "month", 20.0, Order(actor="test", now=now))
    check = {
        "request_id": "a", "key_id": ada, "tier": 1, "model": "small", "sampled_probability": 1.0,
        "sampled_reason": "sample", "status": "done", "cost_usd": 2.0, "reserved_usd": 0.0, "attempts": 1,
        "created_at": now - 1,
    }  # fmt: skip
    test = {"created_at": now - 1, "actor": "x", "action": JUDGE_TEST, "subject": "j", "details": {"spent_usd": 3.0}}
    async with database.begin() as connection:
        await connection.execute(insert(verifications).values(**check))
        await connection.execute(insert(audit_events).values(**test))

    page = await admin.get(PAGE)

    figures = page.text.split('<dl class="figures lead">')[1].split("</dl>")[0]
    for shown in ("$5.00", "$20.00", "verification $2.00, test of the judge $3.00", "50.0%", "$10.00"):
        assert shown in figures, shown
    none = ["no key", "1", "1", "1", "$4.00", "$11.00", "$0.00", "$7.00", "63.6%"]
    mine = ["1", "1", "1", "$1.00", "$9.00", "$2.00", "$6.00", "66.7%"]
    assert cells(page, "Keys") == [none, ["ada", *mine]]
    assert cells(page, "Teams") == [["no team", *none[1:]], ["research", *mine]]
    assert cells(page, "Models") == [["large", *none[1:]], ["small", *mine]]
    assert cells(page, "Table of budgets")[0][:4] == [
        "team research",
        f"month {time.strftime('%Y-%m', time.gmtime(now))}",
        "$20.00",
        "$1.00",
    ]
    assert "$505.00" in (await admin.get(PAGE, params={"days": 90})).text
    link = page.text.split('href="/admin/api/costs?')[2].split('"')[0].replace("&amp;", "&")
    report = (await admin.get(f"/admin/api/costs?{link}")).json()
    assert (report["total"]["spent"]["cost_usd"], report["total"]["net"]["share"]) == (5.0, 0.5)


async def test_a_period_that_cannot_be_is_refused_and_strangers_see_nothing(
    aio: RunningGateway, admin: httpx.AsyncClient
) -> None:
    for wrong in ("0", "x", "367"):
        assert (await admin.get(PAGE, params={"days": wrong})).status_code == 400, wrong
    async with browser(aio) as stranger:
        assert (await stranger.get(PAGE)).status_code == 303
