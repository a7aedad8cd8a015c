"""Two hundred open questions to a new installation: labels exist without a command, by a judge that errs on 8%."""

import random

import msgspec

from gateway.base.settings import Settings
from gateway.operations.quality_loop.label_sources import labels_text
from gateway.operations.quality_loop.quality_loop import QualityLoop
from migrations.tables.quality import verifications
from quality.store.database import migrate, open_database
from tests.quality.judges.test_judges import judged_texts
from tests.quality.judges.test_self_calibration import GOOD
from tests.quality.loop_world import ScriptedTier, record, rows, store_request
from tiers.catalog.load import load_catalog
from tiers.tier import GenerationRequest, Tier

QUESTIONS = 200


def is_good(text: str) -> bool:
    return text in GOOD or text.startswith("A right answer")


def strongest(request: GenerationRequest) -> str:
    """Answer rightly, each time in other words; as a judge err about 8% of the pairs, alike in both orders."""
    assert request.messages is not None
    texts = judged_texts(request.messages[-1].content)
    if not texts:
        return f"A right answer, {request.sampling.temperature}: {request.messages[-1].content}"
    _, first, second = texts
    errs = random.Random(f"{sorted((first, second))}").random() < 0.08
    if is_good(first) == is_good(second):
        return ("FIRST" if first < second else "SECOND") if errs else "TIE"
    return "FIRST" if is_good(first) is not errs else "SECOND"


async def test_most_verifications_of_open_answers_have_a_label_and_few_labels_are_false(settings: Settings) -> None:
    await migrate(settings.database)
    engine = open_database(settings.database)
    tiers: dict[int, Tier] = {n: ScriptedTier(n, reply=strongest) for n in (1, 2, 3, 4)}
    given = msgspec.structs.replace(settings, sampling_rate=1.0, verification_budget=1e6, cold_start_usd=1.0)
    loop = QualityLoop(given, load_catalog("laptop"), engine, tiers, encode=None)
    try:
        await loop.start()
        assert loop.monitor is not None
        for number in range(QUESTIONS):
            answer = f"A {'wrong' if number % 3 == 0 else 'right'} answer of tier 1 to question {number}."
            served = record(f"open-{number}", prompt=f"Tell me about number {number}.", answer=answer)
            await store_request(engine, served)
            loop.monitor.offer(served)
            if number % 20 == 0:
                await loop.monitor.drain()
                await loop._judging.drain()
        await loop.monitor.drain()
        found = await rows(engine, verifications)
    finally:
        await loop.close()
        await engine.dispose()

    taught = {row["request_id"]: row["label"] for row in found if row["label"] in ("worse", "no_worse", "tie")}
    false = [name for name, label in taught.items() if (label == "worse") is not (int(name[5:]) % 3 == 0)]
    assert len(found) > 30
    assert 1 - len(taught) / len(found) <= 0.20, f"{len(taught)} of {len(found)}"
    assert len(false) / len(taught) <= 0.12, f"{len(false)} of {len(taught)}"


def test_a_sentence_says_where_labels_come_from_and_what_that_costs(settings: Settings) -> None:
    on = msgspec.structs.replace(settings, monitor=True, cold_start_usd=1.0)

    assert "costs at most $0.50" in labels_text(on)
    assert "aio quality calibrate" in labels_text(msgspec.structs.replace(on, cold_start_usd=0.0))
    assert "switched off" in labels_text(msgspec.structs.replace(on, monitor=False))
