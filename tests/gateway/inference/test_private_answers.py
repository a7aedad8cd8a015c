"""An answer that escalates, and a tier that a reload has changed: no server elsewhere sees what it may not see."""

from collections.abc import AsyncIterator
from contextlib import suppress

import msgspec
import pytest
import pytest_asyncio

from gateway.inference.generation import Generation
from gateway.inference.served_catalogue import ServedCatalogue
from gateway.tenancy.admission import Admission
from tests.gateway.inference.scripted_service import CATALOG
from tests.gateway.inference.test_conversations import ask
from tests.gateway.inference.test_escalation import UNSURE, EscalatingService
from tests.gateway.sinks import Sinks, running_sinks
from tests.tiers.tier_world import remote_spec
from tiers.catalog.consent import ALL, Consent
from tiers.errors import TierUnavailableError
from tiers.remote.remote_tier import RemoteTier

PRIVATE = [Consent(local=True), Consent(tiers=frozenset({1}))]


@pytest_asyncio.fixture
async def sinks() -> AsyncIterator[Sinks]:
    async with running_sinks() as running:
        yield running


def escalating(sinks: Sinks) -> EscalatingService:
    """Tier 1 is unsure of its answer; the tiers above it are a server elsewhere."""
    scripted = EscalatingService(hold_tokens=8)
    scripted.tiers[0].sureness, scripted.tiers[0].is_local = (UNSURE,), True
    away = [
        msgspec.structs.replace(spec, remote=remote_spec(sinks.servers[0].base_url).remote, local=False)
        for spec in CATALOG.tiers[1:]
    ]
    routing = scripted.routing
    catalog = msgspec.structs.replace(CATALOG, tiers=[CATALOG.tiers[0], *away])
    routing.served = ServedCatalogue(catalog, {**routing.served.tiers, **{k.number: RemoteTier(k) for k in away}})
    return scripted


async def test_an_open_answer_escalates_to_a_server_elsewhere(sinks: Sinks) -> None:
    scripted = escalating(sinks)
    assert await scripted.streamed() == "7"
    assert len(sinks.away) == 1
    assert scripted.attempts() == [(1, "escalated", "opening"), (2, "ok", None)]


@pytest.mark.parametrize("consent", PRIVATE)
@pytest.mark.parametrize("stream", [True, False])
async def test_a_private_one_stays(sinks: Sinks, consent: Consent, stream: bool) -> None:
    scripted = escalating(sinks)
    answer = await scripted.answer(stream=stream, own_consent=consent)
    await answer.whole()
    assert sinks.away == []
    assert [(attempt.tier, attempt.status) for attempt in scripted.records[-1].attempts] == [(1, "ok")]


@pytest.mark.parametrize("consent", [ALL, *PRIVATE])
async def test_a_tier_that_changed_after_the_route_is_asked_again_for_each_attempt(
    sinks: Sinks, consent: Consent
) -> None:
    """The tier was routed to when it was local and named; a reload has put another in its place."""
    scripted = escalating(sinks)
    routing = scripted.routing
    request = ask(("user", "A secret"), own_consent=consent)
    decision = routing.route(request)
    generation = Generation(request, decision, routing.served.tier(2), routing, Admission(), None)
    with suppress(TierUnavailableError):
        await anext(generation)
    await generation.aclose()
    assert bool(sinks.away) == (consent == ALL)
    assert [
        attempt.error for attempt in generation.attempts if "is not asked" in (attempt.error or "")
    ] or consent == ALL
