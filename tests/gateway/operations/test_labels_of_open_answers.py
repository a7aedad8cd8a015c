"""Two hundred open questions to a new installation: labels exist without a command, by a judge that errs on 8%."""

import random
import re
from typing import Any

import httpx
import msgspec
import pytest

from benchmarks.replay.comparisons import as_written, comparison_in
from gateway.base.settings import Settings
from gateway.operations.labels.label_sources import labels_text
from gateway.operations.setup.checks import stored_judge
from migrations.tables.quality import verifications
from quality.judges.calibration import Calibration, InUse, RealPairs, Verdicts
from quality.judges.pairwise import Word, judging_fingerprint
from quality.judges.panel import store_calibration
from quality.judges.self_calibration import JudgeState, judge_state
from quality.store.database import migrate, open_database
from tests.gateway.operations.dashboard.browsing import with_user
from tests.gateway.operations.running_loop import running_loop
from tests.polling import eventually
from tests.quality.judges.test_judges import better_of
from tests.quality.judges.test_real_pairs import row as pair_row
from tests.quality.judges.test_real_pairs import store as store_pairs
from tests.quality.judges.test_self_calibration import GOOD, knowing, made
from tests.quality.loop_world import ScriptedTier, record, rows, store_request
from tests.support.app import running_gateway
from tests.tiers.tier_world import remote_spec
from tiers.catalog.load import load_catalog
from tiers.tier import GenerationRequest, Tier

pytestmark = pytest.mark.processes

QUESTIONS = 200
LAPTOP = load_catalog("laptop")
BILLED = msgspec.structs.replace(LAPTOP, tiers=[*LAPTOP.tiers[:-1], remote_spec("http://127.0.0.1:9/v1")])


def is_good(text: str) -> bool:
    return text in GOOD or text.startswith("A right answer")


def strongest(request: GenerationRequest) -> str:
    """Answer rightly, each time in other words; as a judge err about 8% of the pairs, alike in both orders."""
    assert request.messages is not None
    asked = comparison_in(request.messages[-1].text)
    if asked is None:
        return f"A right answer, {request.sampling.temperature}: {request.messages[-1].text}"
    first, second = as_written(asked.first), as_written(asked.second)
    errs = random.Random(f"{sorted((first, second))}").random() < 0.08
    said = better_of(is_good(first), is_good(second))
    if errs:
        wrong: dict[Word, Word] = {"first": "second", "second": "first", "tie": "first" if first < second else "second"}
        said = wrong[said]
    return asked.label(asked.control or said)


async def test_most_verifications_of_open_answers_have_a_label_and_few_labels_are_false(settings: Settings) -> None:
    tiers: dict[int, Tier] = {n: ScriptedTier(n, reply=strongest) for n in (1, 2, 3, 4)}
    given = msgspec.structs.replace(settings, sampling_rate=1.0, verification_budget=1e6, cold_start_usd=1.0)
    async with running_loop(given, tiers) as (loop, monitor, engine):
        for number in range(QUESTIONS):
            answer = f"A {'wrong' if number % 3 == 0 else 'right'} answer of tier 1 to question {number}."
            served = record(f"open-{number}", prompt=f"Tell me about number {number}.", answer=answer)
            await store_request(engine, served)
            monitor.offer(served)
            if number % 20 == 0:
                await monitor.drain()
                await loop._judging.drain()
        await monitor.drain()
        found = await rows(engine, verifications)

    taught = {row["request_id"]: row["label"] for row in found if row["label"] in ("worse", "no_worse", "tie")}
    false = [name for name, label in taught.items() if (label == "worse") is not (int(name[5:]) % 3 == 0)]
    assert len(found) > 30
    assert 1 - len(taught) / len(found) <= 0.20, f"{len(taught)} of {len(found)}"
    assert len(false) / len(taught) <= 0.12, f"{len(false)} of {len(taught)}"


def test_a_sentence_says_where_labels_come_from_and_what_that_costs(settings: Settings) -> None:
    on = msgspec.structs.replace(settings, monitor=True, cold_start_usd=1.0)

    assert "for at most $0.50" in labels_text(on, BILLED)
    assert "$" not in labels_text(on, LAPTOP)
    assert "aio quality calibrate" in labels_text(msgspec.structs.replace(on, cold_start_usd=0.0), BILLED)
    assert "switched off" in labels_text(msgspec.structs.replace(on, monitor=False), BILLED)
    without_texts = msgspec.structs.replace(on, store_texts=False)
    assert "because AIO_STORE_TEXTS is false" in labels_text(without_texts, BILLED)
    assert not without_texts.verifies


FOUND = Calibration(
    judge="pairwise", true_no_worse=19, false_worse=1, true_worse=17, false_no_worse=3, abstained=0, pairs="planted",
    decided=True,
)  # fmt: skip


IN_USE = InUse(pairs=RealPairs(said_worse=9), sensitivity=0.7, specificity=0.9, low=0.6, high=0.9)


@pytest.mark.parametrize(
    ("state", "said"),
    [
        (JudgeState(state="testing", pairs=12, spent_usd=0.07), "12 pairs so far, for $0.07 of at most $0.50"),
        (JudgeState(state="capped", pairs=12, spent_usd=0.49), "reached its cap after 12 pairs, for $0.49"),
        (
            JudgeState(state="trusted", pairs=40, spent_usd=0.1, calibration=FOUND),
            "right about 90% of 40 planted pairs, so a label weighs 0.80",
        ),
        (
            JudgeState(state="refused", calibration=msgspec.structs.replace(FOUND, decided=False)),
            "refused as their judge (right about 90% of 40 planted pairs)",
        ),
        (
            JudgeState(
                state="refused",
                calibration=Calibration(
                    judge="pairwise",
                    true_no_worse=0,
                    false_worse=0,
                    true_worse=0,
                    false_no_worse=0,
                    abstained=12,
                    pairs="planted",
                    decided=False,
                    in_use=IN_USE,
                ),
            ),
            "refused as their judge (it judged none of 12 planted pairs as it was asked to)",
        ),
        (
            JudgeState(state="trusted", calibration=msgspec.structs.replace(FOUND, in_use=IN_USE)),
            "right in 80% [60%, 90%] by a test on 40 planted pairs",
        ),
        (
            JudgeState(
                state="trusted",
                calibration=msgspec.structs.replace(
                    FOUND,
                    in_use=msgspec.structs.replace(IN_USE, pairs=RealPairs(reviewed=Verdicts(true_worse=3))),
                ),
            ),
            "right in 80% [60%, 90%] by 3 reviewed answers and a test on 40 planted pairs",
        ),
    ],
)
def test_the_sentence_says_how_the_judge_stands_and_no_money_to_everybody(
    settings: Settings, state: JudgeState, said: str
) -> None:
    on = msgspec.structs.replace(settings, monitor=True, cold_start_usd=1.0)

    assert said in labels_text(on, BILLED, state)
    assert "$" not in labels_text(on, BILLED, state, costs=False)


async def test_the_database_says_how_the_judge_stands_through_its_test(settings: Settings) -> None:
    catalog, cap_usd = load_catalog("laptop"), 10.0
    assert await stored_judge(settings, catalog) is None
    await migrate(settings.database)
    engine = open_database(settings.database)
    judging = judging_fingerprint(catalog.tier_fingerprints[-1])

    async def stands(cap_usd: float) -> JudgeState:
        return await judge_state(engine, catalog.fingerprint, judging, cap_usd)

    try:
        seen = [await stands(cap_usd)]
        test = made(engine, tier := knowing(0.0), judging, cap_usd=cap_usd)
        assert await test.step()
        seen.append(await stands(cap_usd))
        while await test.step():
            pass
        seen.append(await stands(cap_usd))
        seen.append(await stands(2 * cap_usd))
        more = made(engine, tier, judging, cap_usd=1e6)
        while await more.step():
            pass
        seen.append(await stands(cap_usd))
        stored = await stored_judge(settings, catalog)
        by_hand = msgspec.structs.replace(FOUND, decided=False)
        await store_calibration(engine, by_hand, catalog.fingerprint, 2.0, "test")
        seen.append(await stands(cap_usd))
    finally:
        await engine.dispose()

    assert [one.state for one in seen] == ["untested", "testing", "capped", "testing", "trusted", "refused"]
    assert 0 < seen[1].spent_usd < seen[2].spent_usd <= cap_usd
    assert stored == seen[4]


async def page_with_estimates(viewer: httpx.AsyncClient) -> str:
    """Empty until the monitor has started."""
    text = (await viewer.get("/admin/quality/details")).text
    return text if "Judge of open answers" in text else ""


async def test_health_and_the_quality_page_say_where_labels_come_from(settings: Settings) -> None:
    async with running_gateway(msgspec.structs.replace(settings, monitor=True, cold_start_usd=1.0)) as gateway:
        async with with_user(gateway, "vera", "viewer") as viewer:
            page = await eventually(lambda: page_with_estimates(viewer))
        ready = (await gateway.http.get("/health/ready")).json()

    assert "in idle time" in page
    assert "passed a test as their judge" in ready["labels"]
    assert "$" not in ready["labels"]


async def test_real_pairs_move_the_weight_of_the_judge_and_end_its_trust_while_serving(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("quality.quality_loop.JUDGE_POLL_SECONDS", 0.1)
    catalog = load_catalog(settings.catalog)
    judging = judging_fingerprint(catalog.tier_fingerprints[-1])
    await migrate(settings.database)
    engine = open_database(settings.database)

    def checked(number: int, label: str, score: float) -> dict[str, Any]:
        return pair_row(number, "exact", label, score, judging=judging, at=10.0 + number)

    async def says(text: str) -> str:
        labels: str = (await gateway.http.get("/health/ready")).json()["labels"]
        return labels if text in labels else ""

    try:
        await store_calibration(engine, FOUND, judging, 1.0, "test")
        async with running_gateway(msgspec.structs.replace(settings, monitor=True, cold_start_usd=1.0)) as gateway:
            before = await eventually(lambda: says("by a test on"))
            await store_pairs(engine, [checked(n, "no_worse" if n % 2 else "worse", n % 2) for n in range(40)])
            better = await eventually(lambda: says("by 40 checked"))
            await store_pairs(engine, [checked(n, "worse" if n % 2 else "no_worse", n % 2) for n in range(40, 160)])
            refused = await eventually(lambda: says("by 160 checked"))
            loop = gateway.operations.quality_loop
            assert loop is not None
            assert loop.monitor is not None
            monitor = loop.monitor
            # The page of health shows the verdict just before the panel follows it.
            closed = await eventually(lambda: not monitor.panel.may_label("Tell me about Lyon.", None))
    finally:
        await engine.dispose()

    assert weight(better) > weight(before) > 0.5
    assert "refused as their judge" in refused
    assert closed


def weight(labels: str) -> float:
    return float(re.findall(r"a label weighs (\d\.\d+)", labels)[0])
