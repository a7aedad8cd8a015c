"""The live knobs of routing: shown, changed, written down, followed by other processes, and refused by name."""

from pathlib import Path

import pytest

from gateway.base.errors import ApiError
from gateway.inference.routing_knobs import RoutingKnobFile, RoutingKnobs
from tests.gateway.running_gateway import RunningGateway

ROUTING = "/v1/admin/routing"


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


def test_a_hold_that_an_operator_chose_in_an_earlier_version_stays(tmp_path: Path) -> None:
    path = tmp_path / "knobs.json"
    path.write_text('{"stage_2": true, "hold_tokens": 3}')
    assert RoutingKnobFile(path).active == RoutingKnobs(hold_tokens=3)


def test_earlier_names_of_knobs_are_taken_with_a_warning(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "knobs.json"
    # As an earlier version wrote it, with its default hold of every stream.
    path.write_text('{"stage_2": true, "stage_3": false, "hold_tokens": 8, "observe_tier": 2}')
    knobs = RoutingKnobFile(path)
    assert knobs.active == RoutingKnobs(judge_answers=False, hold_tokens=0, observe_tier=2)
    assert "knob stage_2 of routing does nothing any more" in caplog.text
    assert "knob stage_3 of routing is now judge_answers" in caplog.text
    knobs.change({"stage_2": False, "stage_3": True})
    assert knobs.active == RoutingKnobFile(path).active == RoutingKnobs(judge_answers=True, observe_tier=2)


@pytest.mark.parametrize(
    ("changes", "param"),
    [
        ({"quality_target": 1.5}, "quality_target"),
        ({"quality_target": float("nan")}, "quality_target"),
        ({"observe_tier": 0}, "observe_tier"),
        ({"observe_tier": 2.5}, "observe_tier"),
        ({"safe_tier": 3}, "safe_tier"),
        ({"conversations": "yes"}, "conversations"),
        ({"conversation_seconds": 0}, "conversation_seconds"),
        ({"hold_tokens": 257}, "hold_tokens"),
        ({"stage_3": "perhaps"}, "judge_answers"),
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


@pytest.mark.parametrize("content", ["{", "[]", '{"observe_tier": 9}', '{"unknown": 1}'])
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


def test_knobs_of_earlier_releases_in_a_stored_file_are_ignored_with_one_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "knobs.json"
    path.write_text(
        '{"hold_tokens": 3, "novelty_threshold": 0.9, "safe_tier": 3, "novelty_fallback": false, '
        '"auto_promotion": true, "promotion_cost_share": 0.2}'
    )
    knobs = RoutingKnobFile(path)
    assert knobs.active == RoutingKnobs(hold_tokens=3)
    path.write_text('{"hold_tokens": 4, "safe_tier": 2}')
    knobs.refresh()
    assert knobs.active == RoutingKnobs(hold_tokens=4)
    warned = [record.message for record in caplog.records if "no longer exist" in record.message]
    assert len(warned) == 1
    assert "auto_promotion, novelty_fallback, novelty_threshold, promotion_cost_share, safe_tier" in warned[0]
    knobs.change({"hold_tokens": 5})
    assert "safe_tier" not in path.read_text()


@pytest.mark.asyncio(loop_scope="module")
async def test_operators_may_still_send_an_earlier_name(gateway: RunningGateway) -> None:
    sent = await gateway.http.patch(ROUTING, json={"stage_3": False, "stage_2": False})
    assert (sent.status_code, sent.json()["knobs"]["judge_answers"]) == (200, False)
    assert (await gateway.http.patch(ROUTING, json={"judge_answers": None})).json()["knobs"]["judge_answers"] is True


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
