"""Verification yields to users: a request in its middle is answered first, and until then no load is shown."""

import asyncio
import threading
import time
from typing import Any

import msgspec

from gateway.base.settings import Settings
from gateway.planning.scaling.target_server import Passed, TrafficCounters
from gateway.runtime.cluster.placement import pressures
from inference_core.engine.live_knobs import KnobsFile, LiveKnobs
from inference_core.protocol import AddRequest, Knobs, SequenceOutput
from inference_core.transport.core_thread import ThreadCoreClient
from migrations.tables.quality import verifications
from quality.store.queries import insert_records
from quality.verification.queue import VerificationQueue
from quality.verification.sampling import Draw, SamplingSettings
from tests.inference_core.hash_model import hash_core
from tests.quality.store.records import make_record
from tests.support.app import RunningGateway, running_gateway

NAMES = ("smollm2-int4", "smollm2-bf16")
STARTED, ANSWER = 20, 8


class StepBudget:
    """A core that makes this many steps and then none until it is allowed more."""

    def __init__(self, core: Any) -> None:
        self._core = core
        self.allowed = STARTED
        self.spent, self.user_waits = threading.Event(), threading.Event()

    def add(self, request: AddRequest) -> None:
        self._core.add(request)
        if not request.idle:
            self.user_waits.set()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._core, name)

    def step(self) -> list[SequenceOutput]:
        if self.allowed <= 0:
            self.spent.set()
            return []
        self.allowed -= 1
        outputs: list[SequenceOutput] = self._core.step()
        return outputs


async def traffic(gateway: RunningGateway) -> dict[str, Passed]:
    """What the gateway's counters say of all its requests, by tier."""
    counters = TrafficCounters()
    counters.take({"gateway": ""})
    return counters.take({"gateway": (await gateway.http.get("/metrics")).text}) or {}


async def test_a_user_is_answered_in_the_middle_of_a_verification(settings: Settings) -> None:
    made: list[StepBudget] = []

    def load() -> StepBudget:
        live = LiveKnobs(dict.fromkeys(NAMES, Knobs(max_num_seqs=1)), KnobsFile(settings.knobs_path))
        core = hash_core(*NAMES, slabs=256, max_context=8192, vocab_size=49152, knobs=live, adapter_slots=2)
        made.append(StepBudget(core))
        return made[0]

    watching = msgspec.structs.replace(settings, monitor=True, verification_budget=1e6)
    async with running_gateway(watching, core=ThreadCoreClient(load), scripted=False) as gateway:
        database = gateway.serving.database
        served = make_record("r-1", tier=1, created_at=time.time(), cost_usd=1.0)
        async with database.begin() as connection:
            await insert_records(connection, [served])
        queue = VerificationQueue(database, SamplingSettings(), lease_seconds=1.0, max_attempts=1)
        assert await queue.add(served, Draw(sampled=True, probability=1.0, reason="drawn"), time.time())
        # The strongest tier is answering, in the only batch place.
        assert await asyncio.to_thread(made[0].spent.wait, 20.0)
        # Neither what scales cores nor what scales gateways sees it, and routing does not either.
        stats = made[0].stats()
        assert sum(model.idle_work for model in stats.models) == 1
        assert set(pressures(stats).values()) == {0.0}
        assert await traffic(gateway) == {}
        load = (await gateway.http.get("/v1/admin/stats")).json()["tiers"][-1]
        assert (load["running"], load["waiting"], load["predicted_wait_seconds"]) == (0, 0, 0.0)
        asked = {"model": "tier-2", "messages": [{"role": "user", "content": "Hello."}], "max_tokens": ANSWER}
        answering = asyncio.create_task(gateway.http.post("/v1/chat/completions", json=asked))

        assert await asyncio.to_thread(made[0].user_waits.wait, 20.0)

        # This few steps would not finish the verification.
        made[0].allowed = 10 * ANSWER
        answer = await answering

        assert answer.status_code == 200, answer.text
        assert answer.json()["usage"]["completion_tokens"] == ANSWER
        assert (await traffic(gateway))["2"].requests == 1
        made[0].allowed = 1_000_000
        assert gateway.operations.quality_loop is not None
        assert gateway.operations.quality_loop.monitor is not None
        await gateway.operations.quality_loop.monitor.drain()
        async with database.connect() as connection:
            row = (await connection.execute(verifications.select())).one()
    # It continued where it was: neither dropped nor restarted.
    assert (row.status, row.attempts) == ("done", 1)
