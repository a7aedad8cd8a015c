"""The experiments page: started, shown and stopped by authorised users, and typed text is never executed."""

import pytest
from sqlalchemy import insert

from classifier.policy.experiment_split import Arm
from classifier.registry.registry import ArtefactRegistry
from migrations.tables.quality import experiments
from quality.rollout.experiments import Plan, Results
from quality.rollout.guardrails import Guarded, Guardrails
from tests.gateway.operations.dashboard.browsing import browser, forms_of, sign_in, submit, with_user
from tests.support.app import RunningGateway

pytestmark = pytest.mark.asyncio(loop_scope="module")
PAGE = "/admin/experiments"
SCRIPT = "<script>alert(1)</script>"
PLAN = {"name": SCRIPT, "a": "tier:3", "b": "tier:1", "share": "50", "reason": SCRIPT}


def split_of(aio: RunningGateway) -> object:
    return ArtefactRegistry(aio.serving.settings.registry_path).experiment()


async def test_an_operator_starts_and_stops_one_and_a_viewer_looks_on(aio: RunningGateway) -> None:
    async with with_user(aio, "oscar", "operator") as operator, with_user(aio, "vera", "viewer") as viewer:
        empty = await operator.get(PAGE)
        assert "No experiment has been run yet." in empty.text
        assert (await operator.post(PAGE, data=PLAN)).status_code == 403, "no token"
        seen = await viewer.get(PAGE)
        assert PAGE not in forms_of(seen)
        token = {"csrf_token": forms_of(seen)["/admin/logout"]["fields"]["csrf_token"]}
        assert (await viewer.post(PAGE, data=PLAN | token)).status_code == 403
        assert split_of(aio) is None

        started = await submit(operator, empty, PAGE, **PLAN)
        assert (started.status_code, started.headers["location"]) == (303, PAGE)
        assert split_of(aio) is not None
        page = await operator.get(PAGE)
        assert SCRIPT not in page.text
        assert page.text.count("<script") == 1
        assert "half to each arm" in page.text
        stop = next(action for action in forms_of(page) if action.endswith("/stop"))
        for refused in (await viewer.post(stop, data=token | {"reason": "x"}), await operator.post(stop, data={})):
            assert refused.status_code == 403
        assert split_of(aio) is not None
        assert (await submit(operator, page, stop, reason="enough")).status_code == 303
        assert split_of(aio) is None
        events = (await aio.http.get("/admin/api/transitions", params={"limit": 2})).json()["rows"]
        assert [(event["action"], event["actor"]) for event in events] == [
            ("experiment.stopped", "user:oscar"), ("experiment.started", "user:oscar"),
        ]  # fmt: skip


@pytest.mark.parametrize("wrong", [{"share": "0"}, {"share": "x"}, {"a": "tier:9"}, {"b": "tier:3"}, {"reason": " "}])
async def test_a_plan_without_meaning_is_refused(aio: RunningGateway, wrong: dict[str, str]) -> None:
    async with browser(aio) as client:
        await sign_in(client)
        assert (await submit(client, await client.get(PAGE), PAGE, **(PLAN | wrong))).status_code == 400
    assert split_of(aio) is None


async def test_units_and_margins_of_the_form_are_those_of_the_plan(aio: RunningGateway) -> None:
    async with browser(aio) as client:
        await sign_in(client)
        margins = {"cost_margin": "150", "ttft_margin": "none", "by": "conversation"}
        assert (await submit(client, await client.get(PAGE), PAGE, **(PLAN | margins))).status_code == 303
        page = await client.get(PAGE)
        assert "half to each arm, by conversation" in page.text
        assert "too few requests" in page.text
        stop = next(action for action in forms_of(page) if action.endswith("/stop"))
        await submit(client, page, stop, reason="enough")
    [row] = (await aio.http.get("/admin/api/experiments", params={"limit": 1})).json()["rows"]
    assert row["config"]["guardrails"] == {"cost": 1.5, "ttft": None, "e2e": 1.0}


async def test_a_guardrail_that_ended_an_experiment_is_shown_with_its_figures(aio: RunningGateway) -> None:
    rails = Guardrails(cost=1.0, ttft=1.0)
    plan = Plan(share=0.5, a=Arm(tier=1), b=Arm(tier=2), tiers=4, by="user", guardrails=rails)
    dear = Guarded(measure="cost", margin=1.0, level=0.0125, units_a=20, units_b=21, a=0.001, b=0.004, p_value=0.0001)
    slow = Guarded(measure="ttft", margin=1.0, level=0.0125, units_a=20, units_b=21, a=300.0, b=330.0, p_value=0.99)
    results = Results(looks=1, guardrails=[dear, slow], breached="cost")
    row = {"experiment_id": "breached", "name": "dear", "status": "stopped", "config": plan, "metrics": results}
    async with aio.serving.database.begin() as connection:
        # It is the newest of all.
        times = {"created_at": 4e9, "finished_at": 4e9 + 60}
        await connection.execute(insert(experiments).values(**row, **times, reason=dear.reason))

    async with browser(aio) as client:
        await sign_in(client)
        text = (await client.get(PAGE, params={"limit": "1"})).text

    assert "the cost per request of b is $0.004 against $0.001 of a, 4.00 times as much" in text
    assert ">breached<" in text
    assert ">within<" in text
    assert "20 / 21" in text
    assert "half to each arm, by user" in text
