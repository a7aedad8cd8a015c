"""The live knobs of routing: shown, changed, written down, followed by other processes, and refused by name."""

from pathlib import Path

import pytest

from gateway.base.errors import ApiError
from gateway.inference.routing_knobs import RoutingKnobFile, RoutingKnobs
from tests.support.app import RunningGateway

ROUTING = "/v1/admin/knobs/routing"


def test_what_one_process_changes_another_follows_and_a_restart_keeps(tmp_path: Path) -> None:
    path = tmp_path / "routing_knobs.json"
    one, other = RoutingKnobFile(path), RoutingKnobFile(path)
    before, after = one.change({"edge_tier": 3, "hold_tokens": 2})
    assert (before, after.edge_tier) == (RoutingKnobs(), 3)
    assert other.active == RoutingKnobs()
    other.refresh()
    assert other.active == after == RoutingKnobFile(path).active
    one.change({"edge_tier": None})
    other.refresh()
    assert (other.active.edge_tier, other.active.hold_tokens) == (1, 2)


def test_a_change_takes_nothing_back_that_another_process_has_changed_just_before(tmp_path: Path) -> None:
    path = tmp_path / "knobs.json"
    one, other = RoutingKnobFile(path), RoutingKnobFile(path)
    one.change({"hold_tokens": 3})

    other.change({"observe_tier": 2})

    one.refresh()
    assert one.active == other.active == RoutingKnobs(hold_tokens=3, observe_tier=2)


@pytest.mark.parametrize(
    ("changes", "param"),
    [
        ({"quality_target": 1.5}, "quality_target"),
        ({"quality_target": float("nan")}, "quality_target"),
        ({"observe_tier": 0}, "observe_tier"),
        ({"observe_tier": 2.5}, "observe_tier"),
        ({"conversations": "yes"}, "conversations"),
        ({"conversation_seconds": 0}, "conversation_seconds"),
        ({"hold_tokens": 257}, "hold_tokens"),
        ({"judge_answers": "perhaps"}, "judge_answers"),
        ({"stage_3": True}, "stage_3"),
        ({"observe_tier": 3, "no_such_knob": 1}, "no_such_knob"),
    ],
)
def test_what_is_not_allowed_is_refused_by_name_and_changes_nothing(
    tmp_path: Path, changes: dict[str, object], param: str
) -> None:
    knobs = RoutingKnobFile(tmp_path / "knobs.json")
    with pytest.raises(ApiError) as caught:
        knobs.change(changes)
    assert caught.value.body.param == param
    assert knobs.active == RoutingKnobs()
    assert not (tmp_path / "knobs.json").exists()


@pytest.mark.parametrize("content", ["{", "[]", '{"observe_tier": 9}'])
def test_a_file_that_makes_no_sense_changes_nothing(
    tmp_path: Path, content: str, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "knobs.json"
    knobs = RoutingKnobFile(path)
    knobs.change({"observe_tier": 2})
    path.unlink()
    path.write_text(content)
    knobs.refresh()
    assert knobs.active.observe_tier == 2
    assert "stay as they are" in caplog.text


def test_knobs_of_another_version_in_a_file_are_ignored(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "knobs.json"
    path.write_text('{"no_more": 1, "observe_tier": 2}')
    assert RoutingKnobFile(path).active == RoutingKnobs(observe_tier=2)
    assert "unknown knobs of routing are ignored: no_more" in caplog.text


@pytest.mark.asyncio(loop_scope="module")
async def test_operators_see_and_change_routing_and_every_change_is_in_the_history(gateway: RunningGateway) -> None:
    shown = (await gateway.http.get(ROUTING)).json()
    assert set(shown["knobs"]) == set(shown["schemas"]) == set(RoutingKnobs.__struct_fields__)
    assert all(schema["description"] for schema in shown["schemas"].values())
    changed = (await gateway.http.patch(ROUTING, json={"observe_tier": 3, "reason": "to compare"})).json()
    try:
        assert changed["knobs"]["observe_tier"] == 3
        assert changed["recorded"]
        refused = await gateway.http.patch(ROUTING, json={"observe_tier": 7})
        assert (refused.status_code, refused.json()["error"]["param"]) == (400, "observe_tier")
        history = (await gateway.http.get("/v1/admin/knobs/changes", params={"knob": "observe_tier"})).json()["changes"]
        assert [(c["part"], c["new_value"], bool(c["refused"])) for c in history[:2]] == [
            ("routing", 7, True),
            ("routing", 3, False),
        ]
        assert history[1]["reason"] == "to compare"
    finally:
        await gateway.http.patch(ROUTING, json={"observe_tier": None})
    assert (await gateway.http.get(ROUTING)).json()["knobs"]["observe_tier"] is None
    unknown = await gateway.http.patch(ROUTING, json={"no_such_knob": 1})
    assert (unknown.status_code, unknown.json()["error"]["param"]) == (400, "no_such_knob")
