"""Experiments over HTTP: started, listed and stopped by operators; every decision says which arm it is of."""

from typing import Any

import msgspec
import pytest

from classifier.policy.decide import decide
from classifier.policy.experiment_split import Arm, Split
from classifier.registry.registry import ArtefactRegistry
from quality.records.record import Record
from tests.support.app import RunningGateway

pytestmark = pytest.mark.asyncio(loop_scope="module")
HELLO = [{"role": "user", "content": "Say hello."}]
SPLIT = Split(experiment_id="full-or-distilled", share=1.0, a=Arm(tier=3), b=Arm(tier=2))


def order(**changes: Any) -> dict[str, Any]:
    arms = {"a": {"tier": 3}, "b": {"tier": 1}}
    return {"name": "full against distilled", "share": 0.5, "reason": "a test of ours", **arms} | changes


async def recorded(gateway: RunningGateway, request_id: str) -> Record:
    await gateway.serving.records.recorded(request_id)  # type: ignore[attr-defined]
    record = await gateway.serving.records.find(request_id)
    assert record is not None
    return record


async def test_an_experiment_is_started_listed_and_stopped(gateway: RunningGateway) -> None:
    answer = await gateway.http.post("/admin/api/experiments", json=order())
    assert answer.status_code == 201, answer.text
    started = answer.json()["experiment_id"]
    registry = ArtefactRegistry(gateway.serving.settings.registry_path)
    split = registry.experiment()
    assert (split and split.experiment_id) == started
    again = await gateway.http.post("/admin/api/experiments", json=order())
    assert (again.status_code, again.json()["error"]["code"]) == (409, "experiment_refused")

    listed = (await gateway.http.get("/admin/api/experiments", params={"status": "running"})).json()["rows"]
    assert [(row["experiment_id"], row["name"]) for row in listed] == [(started, "full against distilled")]

    for status in (200, 404):
        stopped = await gateway.http.post(f"/admin/api/experiments/{started}/stop", json={"reason": "enough"})
        assert stopped.status_code == status
    assert registry.experiment() is None
    events = (await gateway.http.get("/admin/api/transitions", params={"limit": 2})).json()["rows"]
    assert [event["action"] for event in events] == ["experiment.stopped", "experiment.started"]


@pytest.mark.parametrize(
    "changes",
    [
        {"b": {"tier": 3}},
        {"b": {"tier": 9}},
        {"b": {}},
        {"share": 0.0},
        {"name": ""},
        {"by": "age"},
        {"guardrails": {"cost": -0.1}},
    ],
    ids=["arms alike", "no such tier", "neither", "no share", "no name", "no such unit", "a negative margin"],
)
async def test_a_plan_without_meaning_is_refused(gateway: RunningGateway, changes: dict[str, Any]) -> None:
    answer = await gateway.http.post("/admin/api/experiments", json=order(**changes))
    assert answer.status_code == 400, answer.text


async def test_a_version_that_cannot_serve_is_refused(gateway: RunningGateway) -> None:
    answer = await gateway.http.post("/admin/api/experiments", json=order(b={"version": "v9"}))
    assert (answer.status_code, answer.json()["error"]["code"]) == (409, "artefact_refused")


async def _plan(gateway: RunningGateway, **changes: Any) -> dict[str, Any]:
    """The plan of an experiment that was ordered and stopped again."""
    answer = await gateway.http.post("/admin/api/experiments", json=order(**changes))
    assert answer.status_code == 201, answer.text
    [row] = (await gateway.http.get("/admin/api/experiments", params={"status": "running"})).json()["rows"]
    await gateway.http.post(f"/admin/api/experiments/{row['experiment_id']}/stop", json={"reason": "seen"})
    config: dict[str, Any] = row["config"]
    return config


async def test_an_order_is_by_user_and_guarded_unless_it_says_otherwise(gateway: RunningGateway) -> None:
    usual = await _plan(gateway)
    dearer = await _plan(gateway, a={"tier": 1}, b={"tier": 3})
    stated = await _plan(gateway, by="conversation", guardrails={"cost": 0.25, "e2e": None})

    assert (usual["by"], usual["guardrails"]) == ("user", {"cost": 1.0, "ttft": 1.0, "e2e": 1.0})
    # By the catalogue tier 3 costs 30 times as much, begins after 5 times and ends after 2.5 times as long.
    assert dearer["guardrails"] == {"cost": 59.0, "ttft": 9.0, "e2e": 4.0}
    assert (stated["by"], stated["guardrails"]) == ("conversation", {"cost": 0.25, "ttft": 1.0, "e2e": None})


async def test_a_user_has_one_arm_over_all_endpoints(gateway: RunningGateway) -> None:
    gateway.classifier.experiment = msgspec.structs.replace(SPLIT, by="user")
    client, units = gateway.openai, {}
    for user in ("ann", "bob", "cleo"):
        chat = await client.chat.completions.create(model="auto", messages=HELLO, user=user)
        text = await client.completions.create(model="auto", prompt="Once upon a time", user=user)
        response = await client.responses.create(model="auto", input="What is new?", safety_identifier=user)
        message = {"model": "auto", "max_tokens": 9, "messages": HELLO, "metadata": {"user_id": user}}
        posted = (await gateway.http.post("/v1/messages", json=message)).json()
        inputs = [
            (await recorded(gateway, given)).decision.inputs for given in (chat.id, text.id, response.id, posted["id"])
        ]
        assert len({(one.unit, one.arm) for one in inputs}) == 1
        units[user] = str(inputs[0].unit)
    assert len(set(units.values())) == 3
    assert all(unit.startswith("user:") and user not in unit for user, unit in units.items())


async def test_an_arm_decides_and_the_record_says_which(gateway: RunningGateway) -> None:
    gateway.classifier.experiment = SPLIT
    answer = await gateway.openai.chat.completions.create(model="auto", messages=HELLO)
    record = await recorded(gateway, answer.id)
    arm = SPLIT.arm_of(answer.id)
    assert arm is not None
    assert (record.decision.inputs.experiment_id, record.decision.inputs.arm) == ("full-or-distilled", arm)
    assert record.decision.tier == SPLIT.arm(arm).tier
    assert f"arm {arm} of experiment full-or-distilled" in record.decision.reason
    assert decide(record.decision.inputs) == record.decision, "a replay gives the same"


@pytest.mark.parametrize(
    ("model", "headers"), [("tier-1", {}), ("auto", {"x-aio-min-tier": "3"})], ids=["pinned", "an arm is barred"]
)
async def test_who_could_not_have_been_in_either_arm_is_in_none(
    gateway: RunningGateway, model: str, headers: dict[str, str]
) -> None:
    gateway.classifier.experiment = SPLIT
    answer = await gateway.openai.chat.completions.create(model=model, messages=HELLO, extra_headers=headers)
    record = await recorded(gateway, answer.id)
    assert (record.decision.inputs.experiment_id, record.decision.inputs.arm_tier) == (None, None)


async def test_an_arm_whose_tier_fails_falls_over_as_others_do(gateway: RunningGateway) -> None:
    gateway.classifier.experiment = Split(experiment_id="x", share=1.0, a=Arm(tier=1), b=Arm(tier=3))
    gateway.tier(3).fail_at = 0
    for _ in range(40):  # the chance that none of them is of the arm whose tier fails is 2^-40
        answer = await gateway.openai.chat.completions.create(model="auto", messages=HELLO)
        record = await recorded(gateway, answer.id)
        if record.decision.tier == 3:
            break
        assert record.tier == 1
    assert record.decision.tier == 3
    assert record.tier != 3
    assert [(attempt.tier, attempt.status) for attempt in record.attempts] == [(3, "error"), (record.tier, "ok")]
