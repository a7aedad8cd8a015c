"""Operators promote, roll back and try versions over HTTP: checked first, written down, and refused with the reason."""

from pathlib import Path
from typing import Any

import msgspec
import pytest
import pytest_asyncio

from classifier.registry.artefact import default_artefact, load_manifest, load_model_tensors, save_artefact
from classifier.registry.registry import ArtefactRegistry
from gateway.base.settings import Settings
from quality.store.database import open_database
from tests.support.app import RunningGateway, StartApp

pytestmark = pytest.mark.asyncio(loop_scope="module")
SHIPPED, OTHER = load_manifest(default_artefact()).version, "v1-0123456789ab"
WHY = {"reason": "a test of ours"}


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def aio(tmp_path_factory: pytest.TempPathFactory, module_app: StartApp) -> RunningGateway:
    settings = Settings(data_dir=str(tmp_path_factory.mktemp("data")), monitor=False, drain_seconds=5)
    registry = ArtefactRegistry(settings.registry_path)
    registry.seed(default_artefact())
    manifest = msgspec.structs.replace(load_manifest(default_artefact()), version=OTHER)
    save_artefact(registry.root, manifest, load_model_tensors(default_artefact()))
    return await module_app(settings)


@pytest.fixture(autouse=True)
def as_new(aio: RunningGateway) -> None:
    """The shipped version serves, and nothing is on trial."""
    registry = ArtefactRegistry(aio.serving.settings.registry_path)
    registry.stop_canary()
    registry.promote(SHIPPED)


async def ordered(aio: RunningGateway, method: str, path: str, body: dict[str, Any] | None = None) -> dict[str, Any]:
    answer = await aio.http.request(method, f"/admin/api/{path}", json=body)
    assert answer.status_code == 200, answer.text
    now: dict[str, Any] = answer.json()
    return now


async def test_a_promotion_and_its_rollback_are_carried_out_and_written_down(aio: RunningGateway) -> None:
    promoted = await ordered(aio, "POST", f"artefacts/{OTHER}/promote", WHY)
    assert (promoted["current"], promoted["previous"]) == (OTHER, SHIPPED)

    back = await ordered(aio, "POST", "artefacts/rollback", WHY)
    assert back["current"] == SHIPPED

    events = (await aio.http.get("/admin/api/transitions", params={"limit": 2})).json()["rows"]
    assert [event["action"] for event in events] == ["classifier.rolled_back", "classifier.promoted"]
    assert {event["reason"] for event in events} == {WHY["reason"]}


async def test_a_trial_is_started_and_ended(aio: RunningGateway) -> None:
    started = await ordered(aio, "PUT", "trial", {"version": OTHER, "share": 0.1, **WHY})
    assert (started["current"], started["trial"], started["share"]) == (SHIPPED, OTHER, 0.1)

    ended = await ordered(aio, "DELETE", "trial")
    assert (ended["current"], ended["trial"]) == (SHIPPED, None)


@pytest.mark.parametrize("damage", ["absent", "cut short"])
async def test_a_version_that_cannot_serve_is_refused_and_what_serves_stays(aio: RunningGateway, damage: str) -> None:
    registry = ArtefactRegistry(aio.serving.settings.registry_path)
    version = f"v1-{damage.replace(' ', '-')}"
    if damage == "cut short":
        broken = Path(registry.add(_renamed(registry, version)))
        weights = broken / "weights.safetensors"
        weights.write_bytes(weights.read_bytes()[:-100])

    answer = await aio.http.post(f"/admin/api/artefacts/{version}/promote", json=WHY)

    assert (answer.status_code, answer.json()["error"]["code"]) == (409, "artefact_refused")
    assert registry.current().name == SHIPPED


def _renamed(registry: ArtefactRegistry, version: str) -> Path:
    manifest = msgspec.structs.replace(load_manifest(registry.folder(OTHER)), version=version)
    return save_artefact(registry.root, manifest, load_model_tensors(registry.folder(OTHER)))


async def test_an_order_without_a_reason_is_refused(aio: RunningGateway) -> None:
    answer = await aio.http.post(f"/admin/api/artefacts/{OTHER}/promote", json={})
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "reason")


async def test_what_is_under_way_is_listed(aio: RunningGateway) -> None:
    await ordered(aio, "PUT", "trial", {"version": OTHER, "share": 0.1, **WHY})
    running = (await aio.http.get("/admin/api/rollouts", params={"status": "running"})).json()["rows"]
    assert [(row["version"], row["incumbent"], row["stage"]) for row in running] == [(OTHER, SHIPPED, "canary")]
    await ordered(aio, "DELETE", "trial")
    assert (await aio.http.get("/admin/api/rollouts", params={"status": "running"})).json()["rows"] == []


@pytest.mark.parametrize(
    ("method", "path", "body"),
    [
        ("POST", f"artefacts/{OTHER}/promote", WHY),
        ("POST", "artefacts/rollback", WHY),
        ("PUT", "trial", {"version": OTHER, "share": 0.1, **WHY}),
        ("DELETE", "trial", None),
    ],
)
async def test_an_order_while_the_database_is_away_is_put_off_and_changes_nothing(
    aio: RunningGateway, monkeypatch: pytest.MonkeyPatch, method: str, path: str, body: dict[str, Any] | None
) -> None:
    await ordered(aio, "POST", f"artefacts/{OTHER}/promote", WHY)
    await ordered(aio, "POST", "artefacts/rollback", WHY)
    registry = ArtefactRegistry(aio.serving.settings.registry_path)
    before = (registry.root / "current.json").read_bytes()
    away = open_database("postgresql://missing@127.0.0.1:1/none")
    aio.replace_database(monkeypatch, away)

    answer = await aio.http.request(method, f"/admin/api/{path}", json=body)

    assert (answer.status_code, answer.json()["error"]["code"]) == (503, "database_unavailable")
    assert (registry.root / "current.json").read_bytes() == before
    await away.dispose()
