"""The experiments page: started, shown and stopped by authorised users, and typed text is never executed."""

import pytest

from classifier.registry.registry import ArtefactRegistry
from tests.gateway.dashboard.browsing import browser, forms_of, sign_in, submit, with_user
from tests.gateway.running_gateway import RunningGateway

pytestmark = pytest.mark.asyncio(loop_scope="module")
PAGE = "/admin/experiments"
SCRIPT = "<script>alert(1)</script>"
PLAN = {"name": SCRIPT, "a": "tier:3", "b": "tier:1", "share": "50", "reason": SCRIPT}


def split_of(aio: RunningGateway) -> object:
    return ArtefactRegistry(aio.parts.settings.registry_path).experiment()


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
