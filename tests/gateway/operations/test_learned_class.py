"""The whole way of a label: served answers are verified, and what that teaches moves their class of prompts alone."""

import re
import time
from collections.abc import AsyncGenerator
from typing import Any

import msgspec
import pytest
from sqlalchemy import select

from gateway.base.settings import Settings
from migrations.tables.audit import audit_events
from migrations.tables.quality import verifications
from quality.quality_loop import QualityLoop
from tests.support.app import RunningGateway, running_gateway
from tests.support.scripted_tier import ScriptedTier
from tiers.tier import Delta, GenerationRequest

pytestmark = pytest.mark.processes

SUM = "What is {} + {}? Answer with the number only."
MERGE = (
    "Write a Python function that merges two sorted lists of {} and {} numbers. How long is the merged list? Answer "
    "with the number only."
)
# By likeliest class; none of them is served, so none is labelled.
ASKED = {
    "SIMPLE": "What is the capital of France?",
    "MEDIUM": "Write a Python function that merges two sorted lists.",
    "COMPLEX": "If all bloops are razzies and some razzies are lazzies, are some bloops lazzies? Think step by step.",
    "EXPERT": "Compare two ways to design a distributed lock service, analyse trade-offs under partitions, and derive "
    "the failure probability.",
}


class AddingTier(ScriptedTier):
    """Adds the two numbers of a prompt; where it `errs`, a sum that is asked for plainly is one too high."""

    errs = False

    async def generate(self, request: GenerationRequest) -> AsyncGenerator[Delta, None]:
        assert request.messages is not None
        text = request.messages[-1].text
        first, second = (int(digits) for digits in re.findall(r"\d+", text)[:2])
        self.words = (str(first + second + (self.errs and text.startswith("What is"))),)
        async for delta in super().generate(request):
            yield delta


async def _served(gateway: RunningGateway, model: str, numbers: range) -> None:
    """Serve a sum and a merge for each number, verify what is drawn, and take in the labels."""
    for number in numbers:
        for prompt in (SUM, MERGE):
            asked = [{"role": "user", "content": prompt.format(number, number + 7)}]
            answer = await gateway.http.post("/v1/chat/completions", json={"model": model, "messages": asked})
            assert answer.status_code == 200, answer.text
    loop, labels = gateway.operations.quality_loop, gateway.operations.active_labels
    assert loop is not None
    assert loop.monitor is not None
    assert labels is not None
    await loop.monitor.drain()
    await labels.catch_up(time.time() + 1)


async def _routed(gateway: RunningGateway, prompt: str, quality: float = 0.8) -> dict[str, Any]:
    asked = {"messages": [{"role": "user", "content": prompt}]}
    answer = await gateway.http.post("/v1/route", json=asked, headers={"x-aio-quality": str(quality)})
    assert answer.status_code == 200, answer.text
    found: dict[str, Any] = answer.json()
    return found


async def _tiers(gateway: RunningGateway) -> dict[str, int]:
    return {name: (await _routed(gateway, prompt))["tier"] for name, prompt in ASKED.items()}


async def test_a_tier_that_begins_to_err_on_one_class_loses_that_class_alone_until_it_is_mended(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """QM-05, with no label but those that the monitor's verification makes."""

    async def only_labels(self: QualityLoop, alarm: object) -> None:
        """Start no retraining, which would move decisions, too."""

    models = ("smollm2-int4", "smollm2-bf16", "smollm2-bf16", "smollm2-bf16")
    tiers = [AddingTier(number, model=model) for number, model in enumerate(models, start=1)]
    monkeypatch.setattr("tests.support.app.scripted_tiers", lambda: tiers)
    monkeypatch.setattr(QualityLoop, "on_alarm", only_labels)
    # Labels are taken in where the test says so; else the first ones would move later sums to tier 2 at any time.
    given = msgspec.structs.replace(
        settings,
        monitor=True,
        retrain_cron="",
        sampling_rate=1.0,
        verification_budget=1e6,
        artefact_poll_seconds=3600.0,
    )
    async with running_gateway(given, protocol="httptools") as gateway:
        before = await _tiers(gateway)
        # Of what was measured, tier 2 wrote enough more of the functions right to be worth its price.
        assert (before["SIMPLE"], before["MEDIUM"]) == (1, 2)

        tiers[0].errs = True
        await _served(gateway, "auto", range(10, 30))

        after = await _tiers(gateway)
        assert after["SIMPLE"] > 1
        # Its right answers to others of that class make it enough there, if anything.
        assert after["MEDIUM"] <= before["MEDIUM"]
        # The middle tiers were right, which may move harder prompts to them; none comes to the tier that errs.
        assert min(after["COMPLEX"], after["EXPERT"]) > 1
        said = (await _routed(gateway, ASKED["SIMPLE"]))["reason"]
        assert said.startswith("SIMPLE")
        bad = await _routed(gateway, ASKED["SIMPLE"], quality=0.25)
        assert bad["tier"] > 1

        tiers[0].errs = False
        # Labels are taken in after every fifth sum, as they are while a gateway serves.
        for first in range(110, 170, 5):
            await _served(gateway, "tier-1", range(first, first + 5))

        good = await _routed(gateway, ASKED["SIMPLE"], quality=0.25)
        scores = good["decision"]["scores"]
        assert scores[0] > scores[3], "what is mended may be used again"
        assert good["p_ok"][0] > bad["p_ok"][0] + 0.5
        async with gateway.serving.database.connect() as connection:
            labels = (await connection.execute(select(verifications.c.label, verifications.c.judge))).all()
            is_recovery = audit_events.c.action == "quality.recovery"
            shown = select(audit_events.c.reason, audit_events.c.details).where(is_recovery)
            recoveries = (await connection.execute(shown)).all()
        assert recoveries, "labels of the time when it erred would weigh as much as new ones"
        assert "as good as the strongest tier's" in recoveries[0].reason
        assert recoveries[0].details["answers"] <= 25
    # A rule that cannot compare two answers leaves them without a label.
    labels = [row for row in labels if row.label is not None]
    assert len(labels) > 40
    assert {judge for _, judge in labels} <= {"exact", "code"}
    assert "worse" in {label for label, _ in labels}
