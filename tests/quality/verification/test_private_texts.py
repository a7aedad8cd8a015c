"""Verification asks no server elsewhere about a private prompt, whatever it is for: the server's bytes are counted."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
import pytest_asyncio
from sqlalchemy.ext.asyncio import AsyncEngine

from migrations.tables.quality import verifications
from quality.distillation.examples import recorded_examples
from quality.judges.calibration import calibrate
from quality.judges.known_pairs import graded_pairs
from quality.judges.pairwise import PairwiseJudge
from quality.judges.panel import Panel
from quality.judges.rules import ExactJudge, SimilarityJudge
from quality.monitor.answer_monitor import AnswerMonitor
from quality.monitor.worker import MonitorSettings
from quality.records.record import Record
from quality.verification.queue import VerificationQueue
from quality.verification.sampling import Draw, Purpose, SamplingSettings
from tests.gateway.sinks import Sinks, running_sinks
from tests.quality.loop_world import ScriptedTerms, record, rows, store_request
from tiers.build import build_tiers
from tiers.catalog.catalog import Catalog
from tiers.catalog.consent import ALL, Consent, CredentialConsent
from tiers.catalog.load import load_catalog

PRIVATE = {
    "key with tiers": Consent(tiers=frozenset({1})),
    "only local tiers": Consent(local=True),
    "answer alone": Consent(reuse=False),
    "local and tiers": Consent(tiers=frozenset({1, 2, 3}), local=True),
}
# What a request is verified for, and how it is drawn for that; tier 1 is at home.
DRAWN: dict[Purpose, dict[str, Any]] = {
    "sample": {"rates": (1.0,) * 3},
    "downgrade": {"rates": (1.0,) * 3, "downgrade_from": 1},
    "probe": {"rates": (0.0,) * 3, "probe_rate": 1.0},
    "shadow": {"rates": (0.0,) * 3, "shadow_rate": 1.0},
}


def served_by_tier_1(purpose: Purpose, consent: Consent) -> Record:
    """A request whose answer a judge must look at; in observe mode routing would have taken tier 2."""
    served = record("r-1", answer="a long answer that must be judged", prompt="Why is it so?", consent=consent)
    if purpose != "shadow":
        return served
    return msgspec.structs.replace(served, decision=msgspec.structs.replace(served.decision, would_be=2))


class LoopbackMonitor:
    """A monitor whose tiers are real servers on loopback."""

    def __init__(self, engine: AsyncEngine, sinks: Sinks, catalog: Catalog) -> None:
        self.engine, self.sinks, self.catalog = engine, sinks, catalog
        self.tiers = build_tiers(catalog, {})

    async def monitor(self, purpose: Purpose) -> AnswerMonitor:
        """It draws everything for `purpose`, and the strongest tier judges."""
        sampling = SamplingSettings(**{"probe_rate": 0.0, "least_attention": 1.0, "budget_share": 1e9} | DRAWN[purpose])
        calibration = await calibrate(ExactJudge(), graded_pairs())
        judges = [ExactJudge(), PairwiseJudge(self.tiers[-1]), SimilarityJudge()]
        panel = Panel(judges, {"exact": calibration, "pairwise": calibration})
        settings = MonitorSettings(sampling=sampling, retry_seconds=0.0, max_attempts=1)
        return AnswerMonitor(
            self.engine, self.tiers, settings, terms=ScriptedTerms(), panel=panel, clock=lambda: 1500.0
        )

    async def verify(self, purpose: Purpose, consent: Consent) -> None:
        """Serve a request of this consent, answered by tier 1, and verify all that is drawn."""
        served = served_by_tier_1(purpose, consent)
        await store_request(self.engine, served)
        monitor = await self.monitor(purpose)
        await monitor.start()
        monitor.offer(served)
        await monitor.drain()
        await monitor.close()


@pytest_asyncio.fixture
async def world(sqlite_engine: AsyncEngine, tmp_path: Path) -> AsyncIterator[LoopbackMonitor]:
    async with running_sinks() as sinks:
        catalog = tmp_path / "catalog.toml"
        catalog.write_text(sinks.catalog())
        world = LoopbackMonitor(sqlite_engine, sinks, load_catalog(str(catalog)))
        for tier in world.tiers:
            await tier.start()
        yield world
        for tier in world.tiers:
            await tier.close()


@pytest.mark.parametrize("purpose", DRAWN)
async def test_texts_of_an_open_request_are_verified_elsewhere(world: LoopbackMonitor, purpose: Purpose) -> None:
    """What the tests below show is due to consent alone."""
    await world.verify(purpose, ALL)
    asked = {body["model"] for body in world.sinks.away}
    assert asked == {"away", "farther"} if purpose in ("probe", "shadow") else {"farther"}
    judged = [body for body in world.sinks.away if "You compare two answers" in body["messages"][0]["content"]]
    assert judged, "the strongest tier judges"


@pytest.mark.parametrize("consent", PRIVATE.values(), ids=PRIVATE)
@pytest.mark.parametrize("purpose", DRAWN)
async def test_texts_of_a_private_request_are_not(world: LoopbackMonitor, purpose: Purpose, consent: Consent) -> None:
    await world.verify(purpose, consent)
    assert world.sinks.away == []
    assert await rows(world.engine, verifications) == []


@pytest.mark.parametrize("consent", [ALL, CredentialConsent()])
@pytest.mark.parametrize("purpose", DRAWN)
async def test_no_tier_verifies_that_answers_with_callers_credentials(
    world: LoopbackMonitor, purpose: Purpose, consent: Consent
) -> None:
    for tier in world.tiers[1:]:
        tier.asks_credential = True
    await world.verify(purpose, consent)
    assert world.sinks.away == []
    assert await rows(world.engine, verifications) == []


@pytest.mark.parametrize("purpose", DRAWN)
async def test_what_waits_already_is_asked_about_again(world: LoopbackMonitor, purpose: Purpose) -> None:
    """A request that was queued, by an older process or before a tier lost its label, is not sent on."""
    served = served_by_tier_1(purpose, Consent(local=True))
    await store_request(world.engine, served)
    monitor = await world.monitor(purpose)
    queue = VerificationQueue(world.engine, monitor.settings.sampling, lease_seconds=60.0, max_attempts=1)
    assert await queue.add(served, Draw(sampled=True, probability=1.0, reason="drawn", purpose=purpose), 1400.0)
    await monitor.start()
    await monitor.drain()
    await monitor.close()
    assert world.sinks.away == []
    [row] = await rows(world.engine, verifications)
    assert row["status"] == "failed"


async def test_a_request_that_some_tiers_may_see_is_verified_by_these_and_never_probed(
    world: LoopbackMonitor,
) -> None:
    """Tier 1 answered, tier 3 may be asked, tier 2 may not: no second opinion of tier 2, and no full ladder."""
    consent = Consent(tiers=frozenset({1, 3}))
    await world.verify("probe", consent)
    assert world.sinks.away == []
    await world.verify("sample", consent)
    assert {body["model"] for body in world.sinks.away} == {"farther"}


@pytest.mark.parametrize(("learner", "learned"), [("home", ["open", "tiers"]), ("away", ["open"]), (None, ["open"])])
async def test_no_adapter_learns_what_its_tiers_may_not_see(
    world: LoopbackMonitor, learner: str | None, learned: list[str]
) -> None:
    for name, consent in {"open": ALL, "tiers": Consent(tiers=frozenset({1})), "alone": Consent(reuse=False)}.items():
        await store_request(world.engine, record(name, prompt=name, consent=consent))
    learners = [spec for spec in world.catalog.tiers if spec.name == learner]
    found = await recorded_examples(world.engine, 1, 10, learners)
    assert sorted(example.turns[0]["content"] for example in found) == learned
