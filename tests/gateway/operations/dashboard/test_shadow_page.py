"""The shadow page: empty states, figures and cases without executing their texts, and the switch for admins alone."""

import time

import httpx
import pytest
from sqlalchemy import insert

from classifier.decision import Decision, PolicyInputs, Prediction
from migrations.tables.quality import verifications
from migrations.tables.requests import routing_decisions
from tests.gateway.operations.dashboard.browsing import browser, forms_of, submit, with_user
from tests.gateway.operations.dashboard.rows import insert_requests
from tests.gateway.running_gateway import RunningGateway

pytestmark = pytest.mark.asyncio(loop_scope="module")
PAGE, SWITCH = "/admin/shadow", "/admin/shadow/mode"
SCRIPT = "<script>alert(1)</script>"


def mode_of(aio: RunningGateway) -> str:
    return aio.serving.routing.knobs.active.mode


async def observed(aio: RunningGateway, count: int) -> None:
    """Requests that tier 4 answered for a cent, with shadow answers of tier 1 that were judged worse."""
    at = time.time()
    prediction = Prediction(p_ok=[0.99, 0.99, 0.99, 1.0], kind="measured", novelty=0.1, classifier_version="v")
    inputs = PolicyInputs(prediction=prediction, costs=[0.001, 0.002, 0.004, 0.01], quality_target=0.9, tau=0.9)
    ids = [{"request_id": f"r{k}", "created_at": at - k} for k in range(count)]
    texts = {"messages": [{"role": "user", "content": SCRIPT}], "answer": SCRIPT}
    await insert_requests(aio.serving.database, *({"tier": 4, "cost_usd": 0.01, **texts, **one} for one in ids))
    decision = {
        "tier": 4, "would_be_tier": 1, "classifier_version": "v", "prediction_kind": "measured", "novelty": 0.1,
        "decision": Decision(tier=4, would_be=1, reason="r", scores=[0.1, 0.2, 0.4, 1.0], inputs=inputs),
    }  # fmt: skip
    verdict = {
        "tier": 1, "model": "m", "sampled_probability": 0.05, "sampled_reason": "shadow", "status": "done",
        "verifier_tier": 4, "verifier_model": "m", "judge": "pairwise", "judge_reliability": 0.8, "label": "worse",
        "scores": {"pairwise": 0.0}, "judged_answer": SCRIPT, "judged_cost_usd": 0.001, "reason": SCRIPT,
        "cost_usd": 0.003, "reserved_usd": 0.0, "attempts": 1, "finished_at": at,
    }  # fmt: skip
    async with aio.serving.database.begin() as connection:
        await connection.execute(insert(routing_decisions), [decision | one for one in ids])
        await connection.execute(insert(verifications), [verdict | one for one in ids])


async def test_an_empty_installation_says_how_to_begin(aio: RunningGateway, admin: httpx.AsyncClient) -> None:
    page = await admin.get(PAGE)
    assert page.status_code == 200
    assert "Routing has not been observed yet." in page.text
    assert "aio knobs routing mode=observe" in page.text
    found = (await aio.http.get("/admin/api/shadow")).json()
    assert (found["requests"], found["saving"], found["quality"], found["cases"]) == (0, None, None, [])
    assert (await admin.get(PAGE, params={"last": "0"})).status_code == 400


async def test_figures_and_the_twenty_worst_cases_are_shown_and_no_text_is_executed(
    aio: RunningGateway, admin: httpx.AsyncClient
) -> None:
    await observed(aio, 40)
    page = await admin.get(PAGE)
    assert page.status_code == 200
    assert "On your last 40 requests routing would have cost 90.0% less [90.0%, 90.0%]" in page.text
    assert page.text.count("Given: ") == page.text.count("Routing: ") == 20
    assert SCRIPT not in page.text
    assert page.text.count("<script") == 1
    assert "Judge pairwise has a balanced accuracy of 80.0%" in page.text


async def test_an_admin_switches_with_a_reason_that_is_written_down(
    aio: RunningGateway, admin: httpx.AsyncClient
) -> None:
    assert mode_of(aio) == "route"
    observing = await submit(admin, await admin.get(PAGE), SWITCH, reason="to see")
    assert (observing.status_code, observing.headers["location"], mode_of(aio)) == (303, PAGE, "observe")
    page = await admin.get(PAGE)
    assert "Switch routing on" in page.text
    assert (await submit(admin, page, SWITCH)).status_code == 400, "no reason"
    assert (await submit(admin, page, SWITCH, mode="x", reason="r")).status_code == 400
    assert (await admin.post(SWITCH, data={"mode": "route", "reason": "r"})).status_code == 403, "no token"
    assert mode_of(aio) == "observe"
    assert (await submit(admin, page, SWITCH, reason="it pays")).status_code == 303
    assert mode_of(aio) == "route"
    change = (await aio.http.get("/v1/admin/knobs/changes?knob=mode")).json()["changes"][0]
    assert (change["old_value"], change["new_value"], change["reason"]) == ("observe", "route", "it pays")


@pytest.mark.parametrize("role", ["viewer", "operator"])
async def test_other_roles_look_on(aio: RunningGateway, role: str) -> None:
    async with with_user(aio, f"user-{role}", role) as user:  # type: ignore[arg-type]
        page = await user.get(PAGE)
        assert page.status_code == 200
        assert SWITCH not in forms_of(page)
        token = forms_of(page)["/admin/logout"]["fields"]["csrf_token"]
        order = {"mode": "observe", "reason": "why", "csrf_token": token}
        assert (await user.post(SWITCH, data=order)).status_code == 403
    assert mode_of(aio) == "route"


async def test_without_a_session_nothing_is_shown(aio: RunningGateway) -> None:
    async with browser(aio) as stranger:
        assert (await stranger.get(PAGE)).status_code == 303
        assert (await stranger.get("/admin/api/shadow")).status_code == 401
