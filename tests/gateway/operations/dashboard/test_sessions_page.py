"""The sessions page: empty, a list with sums, a timeline with the reason of each move; rows go with their requests."""

import time
from typing import Any

import httpx
import pytest
from sqlalchemy import func, insert, select

from migrations.tables.requests import session_steps
from quality.privacy import Retention, RetentionLimits
from quality.store.queries import delete_key_data
from tests.gateway.operations.dashboard.browsing import browser
from tests.gateway.operations.dashboard.rows import insert_requests
from tests.support.app import RunningGateway

pytestmark = pytest.mark.asyncio(loop_scope="module")
SCRIPT = "<script>alert(1)</script>"
STEP: dict[str, Any] = {
    "session": "a" * 32, "key_id": "ada", "client": "opencode", "purpose": "main", "loop_step": 1, "at": "loop",
    "tier": 1, "previous": 1, "rule": "stay", "reason": "the tool loop stays on tier 1", "gap_seconds": 2.0,
    "errors": 0, "repeats": 0, "bad_calls": 0, "last_exit": None, "prompt_tokens": 1000,
    "cached_tokens": 900, "written_tokens": 100, "completion_tokens": 20, "cost_usd": 0.001, "strongest_usd": 0.01,
    "ended": None, "end_sign": None,
    "end_weight": None, "trouble": None,
}  # fmt: skip
UP = {
    "at": "turn", "tier": 2, "rule": "up", "reason": f"above tier 1 {SCRIPT}", "ended": "bad", "end_sign": "check",
    "end_weight": 1.0,
}  # fmt: skip


async def insert_steps(aio: RunningGateway, *steps: dict[str, Any], at: float | None = None) -> None:
    """Steps a second apart, the last of them at `at`, by default now."""
    last = time.time() if at is None else at
    rows = [
        STEP | {"request_id": f"{step.get('session', 'a')[0]}{place}", "step": place + 1} | step
        | {"created_at": last - len(steps) + place + 1}
        for place, step in enumerate(steps)
    ]  # fmt: skip
    await insert_requests(
        aio.serving.database, *({name: row[name] for name in ("request_id", "created_at", "key_id")} for row in rows)
    )
    async with aio.serving.database.begin() as connection:
        await connection.execute(insert(session_steps), rows)


async def stored(aio: RunningGateway) -> int:
    async with aio.serving.database.connect() as connection:
        return int((await connection.execute(select(func.count()).select_from(session_steps))).scalar_one())


async def test_an_empty_list_says_how_to_begin(admin: httpx.AsyncClient) -> None:
    page = await admin.get("/admin/sessions")
    assert page.status_code == 200
    assert "aio launch claude" in page.text
    assert (await admin.get("/v1/admin/sessions")).json() == {"sessions": []}


async def test_a_session_is_listed_with_its_sums_and_shown_step_by_step(
    aio: RunningGateway, admin: httpx.AsyncClient
) -> None:
    await insert_steps(aio, {}, {}, UP, {"tier": 2, "previous": 2})
    (listed,) = (await admin.get("/v1/admin/sessions")).json()["sessions"]
    assert (listed["steps"], listed["moves"], listed["bad_ends"], listed["highest_tier"]) == (4, 1, 1, 2)
    assert (listed["cost_usd"], listed["strongest_usd"]) == (pytest.approx(0.004), pytest.approx(0.04))
    shown = (await admin.get(f"/v1/admin/sessions/{'a' * 32}")).json()
    assert [step["tier"] for step in shown["steps"]] == [1, 1, 2, 2]
    assert shown["steps"][2]["reason"] == UP["reason"]
    listing, timeline = await admin.get("/admin/sessions"), await admin.get(f"/admin/sessions/{'a' * 32}")
    assert f'href="/admin/sessions/{"a" * 32}"' in listing.text
    assert "from tier 1" in timeline.text
    assert SCRIPT not in timeline.text
    assert "&lt;script&gt;" in timeline.text


async def test_a_single_request_with_tools_is_no_session_unless_an_agent_sent_it(
    aio: RunningGateway, admin: httpx.AsyncClient
) -> None:
    await insert_steps(aio, {"session": "c" * 32, "client": ""})
    await insert_steps(aio, {"session": "d" * 32, "client": ""}, {"session": "d" * 32, "client": ""})
    await insert_steps(aio, {"session": "e" * 32})
    listed = (await admin.get("/v1/admin/sessions")).json()["sessions"]
    assert {row["session"][0] for row in listed} == {"a", "d", "e"}


async def test_a_session_that_is_not_stored_and_a_wrong_limit_are_errors_of_the_caller(
    aio: RunningGateway, admin: httpx.AsyncClient
) -> None:
    lost = await admin.get("/v1/admin/sessions/none")
    assert (lost.status_code, lost.json()["error"]["code"]) == (404, "session_not_found")
    wrong = await admin.get("/v1/admin/sessions?limit=0")
    assert (wrong.status_code, wrong.json()["error"]["param"]) == (400, "limit")
    assert (await admin.get("/admin/sessions/%00")).status_code == 404
    async with browser(aio) as stranger:
        assert (await stranger.get("/v1/admin/sessions")).status_code == 401


async def test_steps_go_with_their_requests_by_erasure_and_retention(aio: RunningGateway) -> None:
    await insert_steps(aio, {"session": "b" * 32, "key_id": "bob"}, at=time.time() - 90_000)
    before = await stored(aio)
    await Retention(aio.serving.database, RetentionLimits(days=1.0)).purge()
    assert await stored(aio) == before - 1
    await delete_key_data(aio.serving.database, "ada", now=time.time() + 1)
    assert await stored(aio) == 0


def finished(place: int) -> list[dict[str, Any]]:
    """A session whose work ended well on tier 1, one whose bad end tier 3 made good, or one of tier 3 alone."""
    kind, session = ("good", "again", "strong")[place % 3], f"{place:032x}"
    named = {"session": session, "client": "claude-code"}
    first = named | {"at": "start", "tier": 3 if kind == "strong" else 1, "cost_usd": 1.0 if kind == "strong" else 0.01}
    if kind != "again":
        return [first, named | {"at": "turn", "rule": "rest", "ended": "good"}]
    up = named | {"at": "turn", "rule": "up", "tier": 3, "cost_usd": 1.0, "ended": "bad"}
    return [first, up, named | {"at": "turn", "rule": "rest", "tier": 3, "ended": "good"}]


async def test_the_verdict_on_pairs_of_tiers_is_one_sentence(aio: RunningGateway, admin: httpx.AsyncClient) -> None:
    few = [step for place in range(9) for step in finished(place)]
    await insert_steps(aio, *({"request_id": f"few-{place}"} | step for place, step in enumerate(few)))
    (verdict,) = (await admin.get("/admin/api/report")).json()["worth"]["sessions"]
    assert (verdict["client"], verdict["work"], verdict["decision"]) == ("claude-code", 9, None)
    assert verdict["sentence"].startswith(
        "claude-code: not known yet which tiers serve these sessions: 9 pieces of work"
    )
    many = [step for place in range(9, 309) for step in finished(place)]
    await insert_steps(aio, *({"request_id": f"many-{place}"} | step for place, step in enumerate(many)))
    (verdict,) = (await admin.get("/admin/api/report")).json()["worth"]["sessions"]
    assert (verdict["work"], verdict["decision"]["verdict"]) == (309, "pays")
    assert verdict["sentence"].startswith("claude-code: tier 1, and tier 3 after a bad end, ends well ")
    assert verdict["sentence"] in (await admin.get("/admin/routing")).text
