"""A gateway opens a data folder that an older version wrote, with its database, knob files and classifier.

`written_at_0019` holds such a folder: its database as an SQL dump at revision 0041, the rest as it was written.
"""

import shutil
import sqlite3
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from classifier.class_predictor import ClassPredictor
from classifier.features.routing_input import routing_input_of_text
from classifier.registry.artefact import load_artefact
from classifier.registry.registry import ArtefactRegistry
from gateway.base.settings import Settings
from gateway.inference.replica_knobs import ReplicaKnobs
from tests.support.app import RunningGateway, running_gateway
from tests.support.core import laptop_hash_core
from tests.tiers.tier_world import remote_spec
from tiers.replicas.replica_set import ReplicaSet

STORED = Path(__file__).with_name("written_at_0019")
# Of the key "notebook" in the stored database.
NOTEBOOK_KEY = "sk-aio-nUrpCEvh7TZTL79k4ZjmRBAfMoBhVpDFEDWr-KofNxI"
REQUESTS = ("chatcmpl-01a201ad7cfcb3b3d84ab3cea53656b5", "resp-01a201ad7de0137ed9fff7d76b4cce06")
pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def gateway(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[RunningGateway]:
    """A gateway that serves from a copy of the stored folder, with its hash core."""
    data = tmp_path_factory.mktemp("older") / "data"
    shutil.copytree(STORED, data)
    with sqlite3.connect(data / "aio.sqlite3") as database:
        database.executescript((data / "aio.sql").read_text())
    database.close()
    settings = Settings(
        data_dir=str(data), monitor=False, drain_seconds=5, text_days=None, retain_days=None, file_days=None
    )
    async with running_gateway(settings, core=laptop_hash_core(settings), scripted=False) as running:
        yield running


async def test_stored_requests_keep_their_texts(gateway: RunningGateway) -> None:
    for request in REQUESTS:
        shown = (await gateway.http.get(f"/admin/api/requests/{request}")).json()
        assert shown["request"]["request_id"] == request
        assert shown["request"]["messages"][-1]["content"].startswith("Stored")


async def test_a_stored_key_still_opens_the_gateway_within_its_budget(gateway: RunningGateway) -> None:
    headers = {"authorization": f"Bearer {NOTEBOOK_KEY}"}
    body = {"model": "tier-1", "messages": [{"role": "user", "content": "hello"}], "max_tokens": 2}
    assert (await gateway.http.post("/v1/chat/completions", json=body, headers=headers)).status_code == 200
    [budget] = (await gateway.http.get("/admin/api/budgets")).json()["rows"]
    assert (budget["amount_usd"], budget["period"]) == (5.0, "day")


async def test_a_stored_batch_is_listed_as_completed(gateway: RunningGateway) -> None:
    [batch] = (await gateway.http.get("/admin/api/batches")).json()["rows"]
    assert batch["status"] == "completed"


async def test_stored_knobs_take_effect(gateway: RunningGateway) -> None:
    models = (await gateway.http.get("/v1/admin/knobs/core")).json()["models"]
    routing = (await gateway.http.get("/v1/admin/knobs/routing")).json()["knobs"]
    cache = (await gateway.http.get("/v1/admin/knobs/cache")).json()
    batches = (await gateway.http.get("/v1/admin/knobs/batches")).json()["knobs"]
    assert (models["smollm2-int4"]["max_num_seqs"], models["smollm2-bf16"]["max_num_seqs"] > 3) == (3, True)
    assert routing["conversation_seconds"] == 60, "next to the names of knobs that are no more"
    assert cache["knobs"]["ttl_seconds"] == 77
    assert batches["concurrency"] == 2
    replicated = ReplicaSet(remote_spec(base_urls=["http://127.0.0.1:1/v1", "http://127.0.0.1:2/v1"]))
    ReplicaKnobs([replicated], STORED / "replica_knobs.json")
    assert replicated.balancing.hedging


async def test_a_stored_classifier_decides_and_loses_the_prompts_that_it_kept(gateway: RunningGateway) -> None:
    registry = ArtefactRegistry(Path(gateway.serving.settings.registry_path))
    folder, prompt = registry.current(), routing_input_of_text("Why is the sky blue?")
    before = ClassPredictor(load_artefact(folder)).read(prompt)
    assert (folder / "base.safetensors").exists()

    await gateway.operations.privacy.erase("nobody", actor="ann", reason="she asked")

    assert registry.current() == folder
    assert sorted(path.name for path in folder.iterdir()) == ["manifest.json", "weights.safetensors"]
    after = ClassPredictor(load_artefact(folder)).read(prompt)
    assert (after[0], after[1].embedding.tobytes()) == (before[0], before[1].embedding.tobytes())
