"""Sessions of ten steps of four agents' clients, over two providers with caches: each loop has one tier, housekeeping
goes to tier 1, a failed check moves the session up, and a boundary after a good end lets it back."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from sqlalchemy import select

from classifier.policy.decide import decide
from gateway.base.settings import Settings
from migrations.tables.requests import session_steps
from quality.records.record import Record
from tests.gateway.inference.agent_sessions import CLIENTS, Step
from tests.gateway.inference.caching_provider import CachingProvider
from tests.polling import eventually
from tests.support.app import RunningGateway, running_gateway
from tests.support.served import UNCACHED

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.processes]
CATALOGUE = """
[[tiers]]
name = "small"
url = "{small}"
price = {{ input_usd_per_million = 0.2, output_usd_per_million = 1.0, cached_input_usd_per_million = 0.02 }}

[[tiers]]
name = "middle"
url = "{strong}"
price = {{ input_usd_per_million = 1.0, output_usd_per_million = 5.0, cached_input_usd_per_million = 0.1 }}

[[tiers]]
name = "strong"
url = "{strong}"
price = {{ input_usd_per_million = 3.0, output_usd_per_million = 15.0, cached_input_usd_per_million = 0.3 }}
"""
PRICES = {1: (0.2, 0.02, 1.0), 2: (1.0, 0.1, 5.0), 3: (3.0, 0.3, 15.0)}


class Providers:
    def __init__(self, gateway: RunningGateway, small: CachingProvider, strong: CachingProvider) -> None:
        self.gateway, self.small, self.strong = gateway, small, strong

    async def ask(self, step: Step) -> Record:
        bills = len(self.small.bills) + len(self.strong.bills)
        answer = await self.gateway.http.post(step.path, json=step.body, headers=UNCACHED | step.headers)
        assert answer.status_code == 200, answer.text
        assert len(self.small.bills) + len(self.strong.bills) == bills + 1
        request_id = answer.headers["x-request-id"]

        async def recorded() -> Record | None:
            found = await self.gateway.serving.records.find(request_id)
            assert found is None or isinstance(found, Record)
            return found

        found = await eventually(recorded)
        assert found is not None
        return found


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def providers(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Providers]:
    folder: Path = tmp_path_factory.mktemp("agents")
    small, strong = CachingProvider(), CachingProvider()
    async with small.server, strong.server:
        path = folder / "catalog.toml"
        path.write_text(CATALOGUE.format(small=small.server.base_url, strong=strong.server.base_url))
        settings = Settings(data_dir=str(folder / "data"), catalog=str(path), monitor=False, drain_seconds=5)
        async with running_gateway(settings, scripted=False) as gateway:
            gateway.classifier.p_ok = [0.99, 0.99, 1.0]
            yield Providers(gateway, small, strong)


@pytest.mark.parametrize("client", list(CLIENTS))
async def test_a_session_of_a_client_keeps_its_tier_moves_after_a_failed_check_and_comes_back(
    providers: Providers, client: str
) -> None:
    records: list[tuple[str, Record]] = []
    for step in CLIENTS[client]():
        record = await providers.ask(step)
        records.append((step.name, record))
        # The bill is what the provider counted, by kind of token.
        provider = providers.small if record.tier == 1 else providers.strong
        prompt, cached, answer = provider.bills[-1]
        fresh_usd, cached_usd, output_usd = PRICES[record.tier]
        usd = ((prompt - cached) * fresh_usd + cached * cached_usd + answer * output_usd) / 1e6
        assert record.cost_usd == pytest.approx(usd)

    tiers = [(name, record.tier) for name, record in records]
    up = [tier for name, tier in tiers if name in ("after failure", "loop up", "turn up")]
    assert {tier for name, tier in tiers if name in ("start", "loop", "turn", "title", "commit")} == {1}
    assert set(up) == {2}, tiers
    assert {tier for name, tier in tiers if name in ("back", "loop back", "turn back")} == {1}, tiers
    moved = next(record for name, record in records if name == "after failure")
    assert "the session moves up from tier 1 after a bad end: " in moved.decision.reason
    for name, record in records:
        inputs = record.decision.inputs
        assert decide(inputs) == record.decision, name
        assert inputs.client == client
        if name in ("title", "commit"):
            assert (inputs.purpose, inputs.session) == ("housekeeping", None)
    steps = [record.decision.inputs.session for _, record in records if record.decision.inputs.session is not None]
    assert len({step.session for step in steps}) == 1, "one session"
    assert [step.step for step in steps] == list(range(1, len(steps) + 1))
    assert any(record.cached_tokens for _, record in records), "caches were read"


async def test_each_step_is_stored_as_numbers_with_the_reason_of_its_move(providers: Providers) -> None:
    steps = [step for step in CLIENTS["opencode"]() if step.name != "title"]
    for step in steps:
        # A session of its own, of which nothing is known.
        headers = step.headers | {"x-session-id": "ses_stored"}
        record = await providers.ask(step._replace(headers=headers))
    assert record.decision.inputs.session is not None
    mine = session_steps.c.session == record.decision.inputs.session.session

    async def stored() -> list[dict[str, Any]] | None:
        async with providers.gateway.serving.database.connect() as connection:
            query = select(session_steps).where(mine).order_by("created_at")
            found = [row._asdict() for row in await connection.execute(query)]
        return found if len(found) == len(steps) else None

    rows = await eventually(stored)
    assert rows is not None
    assert [row["at"] for row in rows] == ["start", "loop", "loop", "loop", "turn", "loop", "loop", "turn", "loop"]
    assert [row["tier"] for row in rows] == [1, 1, 1, 1, 2, 2, 2, 1, 1]
    assert [row["rule"] for row in rows][3:8] == ["stay", "up", "stay", "stay", "rest"]
    moved, back = rows[4], rows[7]
    assert (moved["ended"], moved["end_sign"], moved["end_weight"]) == ("bad", "check", 1.0)
    assert moved["reason"] == "the session moves up from tier 1 after a bad end: the last check failed"
    assert (back["ended"], back["end_sign"], back["previous"]) == ("good", "accepted", 2)
    assert rows[3]["last_exit"] == "failed"
    assert rows[3]["errors"] == 1
    # The strongest tier alone would have read all but the first prompt from its cache, too.
    assert sum(row["strongest_usd"] for row in rows) < sum(
        (row["prompt_tokens"] * 3.0 + row["completion_tokens"] * 15.0) / 1e6 for row in rows
    )
