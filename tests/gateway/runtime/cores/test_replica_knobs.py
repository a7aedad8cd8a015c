"""The live knobs of replica sets: shown, changed, recorded, followed by other processes, and rejected by name."""

from pathlib import Path

import pytest

from gateway.base.errors import ApiError
from gateway.inference.replica_knobs import ReplicaKnobs
from tests.support.app import StartApp
from tests.tiers.tier_world import remote_spec
from tiers.catalog.replica_spec import BalancingSpec
from tiers.replicas.replica_set import ReplicaSet

REPLICAS = "/v1/admin/knobs/replicas"
URLS = ["http://127.0.0.1:1/v1", "http://127.0.0.1:2/v1"]


def replicated(**balancing: object) -> ReplicaSet:
    return ReplicaSet(remote_spec(base_urls=URLS, balancing=BalancingSpec(**balancing)))


def test_what_one_process_changes_another_follows_and_a_restart_keeps(tmp_path: Path) -> None:
    path = tmp_path / "replica_knobs.json"
    ours, theirs = replicated(max_attempts=2), replicated(max_attempts=2)
    one, other = ReplicaKnobs([ours], path), ReplicaKnobs([theirs], path)
    one.change([1], {"hedging": True, "max_attempts": 5})
    assert ours.balancing == BalancingSpec(hedging=True, max_attempts=5)
    assert theirs.balancing == BalancingSpec(max_attempts=2)
    other.refresh()
    assert theirs.balancing == ours.balancing
    one.change([1], {"max_attempts": None})
    restarted = replicated(max_attempts=3)
    ReplicaKnobs([restarted], path)
    assert ours.balancing == BalancingSpec(hedging=True, max_attempts=2)
    assert restarted.balancing == BalancingSpec(hedging=True, max_attempts=3), "null is the catalogue's value"


@pytest.mark.parametrize(
    ("tier", "changes", "param"),
    [
        (1, {"hedging": "yes"}, "hedging"),
        (1, {"hedging": True, "retry_share": 1.5}, "retry_share"),
        (1, {"affinity_load": float("inf")}, "affinity_load"),
        (1, {"hedging": True, "no_such_knob": 1}, "no_such_knob"),
        (2, {"hedging": True}, "tier"),
    ],
)
def test_what_is_not_allowed_is_refused_by_name_and_changes_nothing(
    tmp_path: Path, tier: int, changes: dict[str, object], param: str
) -> None:
    ours = replicated()
    with pytest.raises(ApiError) as caught:
        ReplicaKnobs([ours], tmp_path / "knobs.json").change([tier], changes)
    assert caught.value.body.param == param
    assert ours.balancing == BalancingSpec()
    assert not (tmp_path / "knobs.json").exists()


@pytest.mark.parametrize("content", ["{", "[]", '{"tier-1": {"hedging": 9}}', '{"tier-1": {"unknown": 1}}'])
def test_a_file_that_makes_no_sense_changes_nothing(
    tmp_path: Path, content: str, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "knobs.json"
    ours = replicated()
    knobs = ReplicaKnobs([ours], path)
    knobs.change([1], {"hedging": True})
    path.unlink()
    path.write_text(content)
    knobs.refresh()
    assert ours.balancing.hedging
    assert "stay as they are" in caplog.text


async def test_operators_see_and_change_them_over_http_and_every_change_is_in_the_history(app: StartApp) -> None:
    aio = await app()
    ours = replicated()
    aio.operations.replica_knobs = ReplicaKnobs([ours])
    shown = (await aio.http.get(REPLICAS)).json()
    assert set(shown["schemas"]) == set(BalancingSpec.__struct_fields__)
    assert [replica["replica"] for replica in shown["tiers"][0]["replicas"]] == URLS
    changed = (await aio.http.patch(REPLICAS, json={"tier": 1, "hedging": True, "reason": "slow tail"})).json()
    assert changed["tiers"][0]["knobs"]["hedging"]
    assert ours.balancing.hedging
    refused = await aio.http.patch(REPLICAS, json={"retry_share": 7})
    assert (refused.status_code, refused.json()["error"]["param"]) == (400, "retry_share")
    history = (await aio.http.get("/v1/admin/knobs/changes")).json()["changes"]
    assert [(c["part"], c["knob"], c["new_value"], bool(c["refused"])) for c in history] == [
        ("replicas", "retry_share", 7, True),
        ("replicas of tier 1", "hedging", True, False),
    ]
    assert history[1]["reason"] == "slow tail"


async def test_the_profile_for_the_tail_hedges_and_the_catalogue_puts_back_its_own_value(app: StartApp) -> None:
    aio = await app()
    ours = replicated()
    aio.operations.replica_knobs = ReplicaKnobs([ours])
    changed = (await aio.http.post("/v1/admin/knobs/profiles", json={"profile": "tail"})).json()["changed"]
    assert [(c["part"], c["knob"], c["new_value"]) for c in changed] == [("replicas of tier 1", "hedging", True)]
    assert ours.balancing.hedging
    await aio.http.post("/v1/admin/knobs/profiles", json={"profile": "catalogue"})
    assert ours.balancing == BalancingSpec()
