"""Targets, fallback chains and rules follow the catalogue's file while a gateway serves."""

from pathlib import Path
from typing import Any

import httpx
import pytest

from quality.records.record import Record
from tests.gateway.chained_tiers import BACKUP, HELLO, SECOND, Servers, broken, chained_tiers
from tests.support.administrator import ADMIN_HEADERS
from tests.support.app import RunningGateway
from tiers.catalog.pricing import request_cost_usd

RULE = """
[[rules]]
name = "research"
when = {{ tag = {{ project = ["research"] }} }}
floor = "large"
"""


async def reload(gateway: RunningGateway, folder: Path, text: str) -> httpx.Response:
    (folder / "catalog.toml").write_text(text)
    return await gateway.http.post("/v1/admin/reload", json={"reason": "new chains"}, headers=ADMIN_HEADERS)


async def ask(gateway: RunningGateway, servers: Servers, **fields: Any) -> list[str]:
    """Who was asked, in order."""
    servers.asked.clear()
    await gateway.http.post("/v1/chat/completions", json={"messages": HELLO, "temperature": 0.5, **fields})
    return servers.asked


async def test_a_reload_brings_targets_chains_and_rules_and_takes_them_away(tmp_path: Path) -> None:
    async with chained_tiers(tmp_path, more="") as (gateway, servers):
        # Pinned, so that only a target may stand in, and the tier's own cooling down does not matter.
        servers.by_model["large"] = broken

        def recover() -> None:
            gateway.serving.routing.served.tier(3)._failures.unhealthy_until = 0.0  # type: ignore[attr-defined]

        async def asked() -> list[str]:
            recover()
            return await ask(gateway, servers, model="large")

        assert await asked() == ["large"]
        more = BACKUP + SECOND + RULE
        done = await reload(gateway, tmp_path, servers.catalog(more, large='fallback = ["second", "backup"]'))
        assert done.status_code == 200, done.text
        assert await asked() == ["large", "second"]
        assert await ask(gateway, servers, model="auto") == ["small"]
        servers.by_model.clear()
        recover()
        assert await ask(gateway, servers, model="auto", metadata={"project": "research"}) == ["large"]

        servers.by_model["large"] = broken
        done = await reload(gateway, tmp_path, servers.catalog(BACKUP, large='fallback = ["backup"]'))
        assert done.status_code == 200, done.text
        assert await asked() == ["large", "backup"]
        assert await ask(gateway, servers, model="auto", metadata={"project": "research"}) == ["small"]
        assert list(gateway.serving.routing.served.targets) == ["backup"]


async def test_a_catalogue_with_a_wrong_rule_changes_nothing(tmp_path: Path) -> None:
    async with chained_tiers(tmp_path, RULE) as (gateway, servers):
        wrong = RULE.replace('floor = "large"', 'floor = "huge"')
        refused = await reload(gateway, tmp_path, servers.catalog(wrong))
        assert refused.status_code == 409
        assert "rules 'research'.floor = 'huge': no such tier" in refused.json()["error"]["message"]
        assert await ask(gateway, servers, model="auto", metadata={"project": "research"}) == ["large"]


async def test_a_target_that_keeps_its_entry_keeps_its_state(tmp_path: Path) -> None:
    chain = 'fallback = ["backup"]'
    async with chained_tiers(tmp_path, BACKUP, small=chain) as (gateway, servers):
        before = gateway.serving.routing.served.targets["backup"].active_tier()
        assert (await reload(gateway, tmp_path, servers.catalog(BACKUP + SECOND, small=chain))).status_code == 200
        assert gateway.serving.routing.served.targets["backup"].active_tier() is before
        other = BACKUP.replace("7.0", "8.0")
        assert (await reload(gateway, tmp_path, servers.catalog(other + SECOND, small=chain))).status_code == 200
        assert gateway.serving.routing.served.targets["backup"].active_tier() is not before


async def test_another_price_is_billed_from_then_on_and_the_record_keeps_it(tmp_path: Path) -> None:
    async with chained_tiers(tmp_path, more="") as (gateway, servers):

        async def record() -> Record:
            body = {"model": "small", "messages": HELLO, "temperature": 0.5}
            answer = await gateway.http.post("/v1/chat/completions", json=body)
            found = await gateway.serving.records.find(answer.json()["id"])
            assert isinstance(found, Record)
            return found

        before = await record()
        dearer = servers.catalog("").replace("input_usd_per_million = 1.0", "input_usd_per_million = 3.0", 1)
        assert (await reload(gateway, tmp_path, dearer)).json()["tiers"] == [1]
        after = await record()
    assert (before.cost_usd, after.cost_usd) == (pytest.approx(12e-6), pytest.approx(32e-6))
    for kept in (before, after):
        [attempt] = kept.attempts
        assert attempt.price is not None
        assert request_cost_usd(attempt.price, attempt.prompt_tokens, attempt.completion_tokens) == kept.cost_usd
