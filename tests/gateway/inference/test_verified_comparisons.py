"""Verification asks a partner too, so that requests begin to compare cheap answers where that pays, unasked."""

import asyncio
import gc
import weakref
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Literal, cast

import httpx
import msgspec
import pytest
from sqlalchemy import select

from classifier.policy.agreement import AgreementSettings
from classifier.policy.agreement_counts import AgreementCounts, AgreementPlace
from gateway.base.settings import Settings
from gateway.operations.labels.loop_setup import PROBES_IN_IDLE_TIME, offer_answer
from migrations.tables.quality import verifications
from quality.monitor.answer_monitor import AnswerMonitor
from quality.monitor.worker import ToCompare
from quality.quality_loop import QualityLoop
from quality.verification.sampling import Purpose
from tests.gateway.inference.test_compared_tiers import asking, serving_alone
from tests.polling import eventually
from tests.support.app import RunningGateway, StartApp
from tiers.catalog.consent import Consent
from tiers.conversation import Turn

QUESTION = "Which number is larger?\nA) 9.11\nB) 9.9\nAnswer with the letter."


def script(gateway: RunningGateway, *answers: str) -> None:
    """No cheap tier is good enough alone, and so weak ones are not certain to agree on what is right."""
    gateway.reset()
    gateway.classifier.p_ok = (0.3, 0.4, 0.7, 1.0)
    gateway.classifier.novelty = 1.0
    for tier, words in zip(gateway.tiers, answers, strict=True):
        tier.words = (words,)


async def ask(gateway: RunningGateway, **more: Any) -> httpx.Response:
    body = {"model": "auto", "max_tokens": 8, "messages": [{"role": "user", "content": QUESTION}]} | more
    # Verification between two requests may take longer than the server keeps an idle connection.
    headers = {"x-aio-cache": "off", "connection": "close"}
    answer = await gateway.http.post("/v1/chat/completions", json=body, headers=headers)
    assert answer.status_code == 200, answer.text
    return answer


async def verified(gateway: RunningGateway) -> None:
    """Verify what was drawn, and look at what is stored."""
    await gateway.serving.records.flush()  # type: ignore[attr-defined]
    await (await eventually(lambda: monitor_of(gateway))).drain()
    agreements = gateway.serving.service.agreements
    assert agreements is not None
    await agreements.catch_up(gateway.serving.database)


async def monitor_of(gateway: RunningGateway) -> AnswerMonitor | None:
    """None until it has started; before that nothing is sampled."""
    loop = gateway.operations.quality_loop
    return None if loop is None else loop.monitor


async def unpaced(gateway: RunningGateway) -> None:
    """Let a cold start draw as many as it would of few requests a second, however fast they come here."""
    monitor = await eventually(lambda: monitor_of(gateway))
    monitor.settings = msgspec.structs.replace(monitor.settings, cold_start_per_second=1e9)


async def is_compared(gateway: RunningGateway, most: int) -> bool:
    """Ask up to `most` times, 20 at once; return whether requests begin to be compared."""
    for _ in range(0, most, 20):
        answers = await asyncio.gather(*(ask(gateway) for _ in range(20)))
        if any("x-aio-agreed" in answer.headers for answer in answers):
            return True
        await verified(gateway)
    return False


async def stored(gateway: RunningGateway) -> list[dict[str, Any]]:
    async with gateway.serving.database.connect() as connection:
        rows = (await connection.execute(select(verifications))).mappings().all()
    return [dict(row) for row in rows if row["compared"] and row["status"] == "done"]


@pytest.fixture
def shipped(tmp_path: Path) -> Settings:
    return Settings(data_dir=str(tmp_path), drain_seconds=5)


async def test_requests_compare_once_verification_has_shown_that_it_pays(shipped: Settings, app: StartApp) -> None:
    gateway = await app(shipped)
    await unpaced(gateway)
    script(gateway, "A", "The answer is A.", "A", "A")
    assert await is_compared(gateway, most=600)
    answer = await ask(gateway)
    assert (answer.headers["x-aio-tier"], answer.headers["x-aio-agreed"]) == ("2", "true")
    rows = await stored(gateway)
    assert len(rows) >= 2
    assert {(row["compared"]["agreed"], row["compared"]["lost"]) for row in rows} == {(True, False)}


@pytest.mark.parametrize(
    "answers",
    [
        ("B", "B", "A", "A"),  # the cheap tiers agree on what is wrong
        ("A", "B", "A", "A"),  # they do not agree
    ],
)
async def test_a_kind_where_it_does_not_pay_stays_off_and_nothing_more_is_bought(
    shipped: Settings, answers: tuple[str, ...], app: StartApp
) -> None:
    gateway = await app(shipped)
    await eventually(lambda: monitor_of(gateway))
    await unpaced(gateway)
    script(gateway, *answers)
    assert not await is_compared(gateway, most=60)
    rows = await stored(gateway)
    # Those of probes cost nothing more; which others are verified is drawn.
    assert 0 < len(rows) <= PROBES_IN_IDLE_TIME + 20


@pytest.mark.parametrize(
    ("fields", "mode", "purpose", "tiers"),
    [
        ({}, "verified", "sample", (1, 2)),
        ({}, "off", "sample", None),
        ({"agree": False}, "verified", "sample", None),
        ({"agree": True}, "verified", "sample", None),  # its answers were compared already
        ({"stream": True}, "verified", "sample", None),
        ({"stream": True, "may_wait": True}, "verified", "sample", (1, 2)),
        ({"stream": True}, "verified", "probe", (1, 2)),  # its answers are there
        ({"deadline_seconds": 60.0}, "verified", "sample", None),
        ({"own_consent": Consent(tiers=frozenset({1, 3, 4}))}, "verified", "sample", None),
        ({"own_consent": Consent(reuse=False)}, "verified", "sample", None),
        ({"messages": [Turn.of("user", "Write a poem.")]}, "verified", "sample", None),
    ],
)
async def test_verification_compares_what_requests_like_it_would_compare(
    fields: dict[str, Any], mode: str, purpose: Purpose, tiers: tuple[int, ...] | None
) -> None:
    service, scripted, knobs = serving_alone()
    knobs.change({"agreement": mode})
    for tier in scripted:
        tier.words = ("A",)
    assert service.agreements is not None
    answer = await service.complete(asking(**{"agree": None} | fields))
    assert answer.record is not None
    found = service.agreements.to_verify(answer.request, answer.choices[0], answer.record, purpose)
    assert (None if found is None else found.tiers) == tiers


@pytest.mark.parametrize(("purpose", "tiers"), [("sample", None), ("probe", (1, 2))])
async def test_only_what_costs_nothing_is_compared_once_counts_decide(
    purpose: Purpose, tiers: tuple[int, ...] | None
) -> None:
    service, scripted, _ = serving_alone()
    for tier in scripted:
        tier.words = ("A",)
    assert service.agreements is not None
    lost = AgreementCounts(compared=30.0, agreed=30.0, verified=30.0, lost=30.0)
    service.agreements.table.add(AgreementPlace("", "", "", "choice"), (1, 2), lost)
    answer = await service.complete(asking(agree=None))
    assert answer.record is not None
    found = service.agreements.to_verify(answer.request, answer.choices[0], answer.record, purpose)
    assert (None if found is None else found.tiers) == tiers


@pytest.mark.parametrize(("stage", "tiers"), [("whole", (3, 3)), (None, None)])
async def test_without_a_partner_two_samples_are_compared_where_answers_are_judged(
    stage: Literal["whole"] | None, tiers: tuple[int, ...] | None
) -> None:
    service, scripted, _ = serving_alone(AgreementSettings(price_share=1e-6))
    scripted[2].words = ("A",)
    assert service.agreements is not None
    answer = await service.complete(asking(agree=None, quality_target=0.6))
    assert answer.record is not None
    judged = [msgspec.structs.replace(attempt, stage=stage) for attempt in answer.record.attempts]
    record = msgspec.structs.replace(answer.record, attempts=judged)
    found = service.agreements.to_verify(answer.request, answer.choices[0], record, "sample")
    assert (None if found is None else found.tiers) == tiers


async def test_an_offer_that_waits_can_be_compared_and_keeps_nothing_of_how_its_answer_was_made() -> None:
    service, scripted, _ = serving_alone()
    for tier in scripted:
        tier.words = ("A",)
    assert service.agreements is not None
    offered: list[ToCompare] = []
    monitor = SimpleNamespace(offer=lambda record, to_compare, turn: offered.append(to_compare))
    answer = await service.complete(asking(agree=None))
    assert answer.record is not None
    offer_answer(
        cast(QualityLoop, SimpleNamespace(monitor=monitor)), service.agreements.to_verify, answer, answer.record
    )
    whole = weakref.ref(answer)
    del answer
    gc.collect()
    assert whole() is None
    found = offered[0]("sample")
    assert found is not None
    assert found.tiers == (1, 2)
