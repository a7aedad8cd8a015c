"""What `aio serve` sets up by default, before scripted models as slow as its catalogue says, on a clock of its own."""

import pytest

from gateway.base.settings import Settings
from gateway.operations.labels.loop_setup import monitor_settings
from migrations.tables.quality import verifications
from quality.judges.panel import standing_panel
from quality.monitor.answer_monitor import AnswerMonitor
from quality.store.database import migrate, open_database
from quality.verification.tier_terms import CatalogTerms
from tests.gateway.operations.test_labels_of_open_answers import LAPTOP
from tests.quality.loop_world import ScriptedTier, record, rows, store_request
from tests.quality.monitor.monitors import encode
from tiers.catalog.catalog import CatalogInUse
from tiers.tier import GenerationRequest

pytestmark = pytest.mark.processes

EACH, EVERY_SECONDS, IDLE_SECONDS = 80, 2.0, 600.0


class World:
    """The time, and models that take their catalogue's time for an answer: the cheapest errs in a third of the sums."""

    def __init__(self) -> None:
        self.now = 1_000_000.0
        self.tiers = [self._tier(spec.number, spec.mean_latency_ms / 1e3) for spec in LAPTOP.tiers]

    def _tier(self, number: int, seconds: float) -> ScriptedTier:
        def say(request: GenerationRequest) -> str:
            self.now += seconds
            assert request.messages is not None
            return said(number, request.messages[-1].text)

        tier = ScriptedTier(number, reply=say)
        tier.is_local = True
        return tier

    def clock(self) -> float:
        return self.now


def said(tier: int, question: str) -> str:
    if not question.startswith("Add"):
        return f"Tier {tier} would rather tell a story."
    number = int(question.split()[4].rstrip("."))
    return str(number + (5 if tier == 1 and number % 3 == 0 else 4))


async def verified(settings: Settings) -> tuple[list[str | None], list[str]]:
    """Ask 160 questions, half of them sums, then wait ten minutes: the labels, and what verification asked."""
    await migrate(settings.database)
    engine = open_database(settings.database)
    world = World()
    monitor = AnswerMonitor(
        engine,
        world.tiers,
        monitor_settings(Settings(), LAPTOP),
        terms=CatalogTerms(CatalogInUse(LAPTOP)),
        panel=await standing_panel(engine),
        encode=encode,
        clock=world.clock,
    )
    try:
        await monitor.start()
        for number in range(2 * EACH):
            asked = f"Add 4 to number {number}. Answer with the number only." if number % 2 else f"Tell me of {number}."
            bill = {"cost_usd": 0.0001, "baseline_cost_usd": 0.01, "created_at": world.now}
            served = record(f"r-{number}", prompt=asked, answer=said(1, asked), **bill)
            await store_request(engine, served)
            monitor.offer(served)
            if number % 8 == 7:
                await monitor.drain()
            world.now += EVERY_SECONDS
        ended = world.now
        while world.now < ended + IDLE_SECONDS:
            await monitor.drain()
            world.now += 30.0
        labels = [row["label"] for row in await rows(engine, verifications) if row["status"] == "done"]
    finally:
        await monitor.close()
        await engine.dispose()
    return labels, [r.messages[-1].text for tier in world.tiers for r in tier.seen if r.messages]


async def test_half_of_160_requests_for_rules_make_labels_in_ten_idle_minutes_and_chats_cost_nothing(
    settings: Settings,
) -> None:
    labels, asked = await verified(settings)

    assert sum(label in ("no_worse", "worse") for label in labels) >= 5
    assert "worse" in labels
    assert all(question.startswith("Add") for question in asked)
