"""The alert of a key whose requests have become dearer than those of its own week."""

import asyncio
import time
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import pytest

from gateway.base.settings import Settings
from gateway.telemetry.alert_rules import RULES
from gateway.telemetry.alerts import keep_looking
from quality.store.database import migrate, open_database
from tests.gateway.operations.dashboard.rows import insert_requests
from tests.gateway.telemetry.alert_desk import alert_url
from tests.support.app import running_gateway
from tests.support.upstream import Call, LoopbackServer


@pytest.mark.usefixtures("ready_alert_sender")
async def test_a_key_dearer_than_its_own_week_is_an_event_with_its_numbers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rule = msgspec.structs.replace(next(r for r in RULES if r.figure == "key_cost_of_week"), for_seconds=0.0)
    monkeypatch.setattr("gateway.telemetry.alerts.keep_looking", partial(keep_looking, rules=[rule]))
    settings = Settings(data_dir=str(tmp_path), monitor=False, alert_poll_seconds=0.02)
    await migrate(settings.database)
    engine, now = open_database(settings.database), time.time()
    for ago, usd in ((86_400, 0.002), (60, 0.01)):
        rows = [
            {"request_id": f"r{ago}-{n}", "key_id": "ada", "created_at": now - ago, "cost_usd": usd} for n in range(30)
        ]
        await insert_requests(engine, *rows)
    await engine.dispose()
    heard = asyncio.Queue[dict[str, Any]]()

    async def hear(call: Call) -> None:
        await call.reply(202, {"status": "success"})
        heard.put_nowait(call.body)

    async with LoopbackServer(hear) as desk:
        telling = msgspec.structs.replace(settings, alert_urls=alert_url(desk))
        async with running_gateway(telling):
            event = await asyncio.wait_for(heard.get(), 120)
    assert event["title"] == "AIO: AioKeyCostJump (warning)"
    assert event["message"].split("\n")[0] == (
        "a key's requests cost more than three times those of its own week (5); "
        "key ada: $0.01 a request in the last hour (30 requests), $0.002 in the week before (30)"
    )
