"""What the quality monitor adds to a request: on its path, and in the background of the same event loop."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import msgspec

from classifier.decision import Decision, PolicyInputs, Prediction
from gateway.inference.catalogue.class_prior import class_prior
from gateway.inference.routing.active_classifier import ActiveClassifier
from quality.judges.calibration import calibrate
from quality.judges.exact import ExactJudge
from quality.judges.panel import Panel
from quality.judges.synthetic_pairs import graded_pairs
from quality.monitor.monitor import Monitor
from quality.monitor.settings import MonitorSettings
from quality.records.record import Attempt, Record, Timings
from quality.records.redaction import patterns_redaction, redacted
from quality.store.database import migrate, open_database
from quality.store.queries import insert_records
from quality.verification.feedback import Feedback, FeedbackDesk
from quality.verification.training_rows import encoder_of
from tiers.catalog.catalog import Catalog
from tiers.catalog.pricing import cost_usd
from tiers.tier import Delta, GenerationRequest, Tier, TierLoad, Usage

# Of a redaction as operators write them: mail addresses, card numbers, telephone numbers, IBANs, addresses of machines.
PATTERNS = (
    r"[\w.+-]+@[\w-]+\.[\w.]+",
    r"\b(?:\d[ -]?){13,16}\b",
    r"\+\d[\d ()-]{7,}\d",
    r"\b[A-Z]{2}\d{2}(?: ?[A-Z0-9]{4}){3,7}\b",
    r"\b(?:\d{1,3}\.){3}\d{1,3}\b",
)
SENTENCE = "Please tell me how the committee decided on the third of May, and what it costs per year. "
# What its own words make checkable: an open question is not drawn where no judge can label it.
PROMPT, ANSWER = "Repeat word for word: " + SENTENCE * 12, SENTENCE * 24
SPENT_AHEAD = 2000
FEEDBACKS = 200


class MonitorCost(msgspec.Struct, frozen=True, kw_only=True):
    """Microseconds of CPU time of the event loop's thread. `offer_…`: of the call that every finished request makes.

    `background_us`: what is done later for those that may be verified, divided by all requests. `redaction_us`: of
    five regular expressions on a prompt and an answer, where they are wanted. `feedback_us`: to store one word of a
    user, which has a request of its own.
    """

    requests: int
    sampled: int
    offer_mean_us: float
    offer_p50_us: float
    offer_p99_us: float
    background_us: float
    redaction_us: float
    feedback_us: float


class BusyTier(Tier):
    """A tier at which users wait, so that nothing is verified: the benchmark is about everything else."""

    def __init__(self, number: int) -> None:
        self.name, self.number, self.model, self.max_context = f"tier-{number}", number, "none", 8192

    async def start(self) -> None: ...

    async def close(self) -> None: ...

    async def generate(self, request: GenerationRequest) -> AsyncIterator[Delta]:
        yield Delta(finish_reason="error")

    def count_prompt_tokens(self, request: GenerationRequest) -> int:
        return sum(len(message.content) for message in request.messages or []) // 4

    def load(self) -> TierLoad:
        return TierLoad(waiting=1)


async def bench_monitor(catalog: Catalog, folder: Path, requests: int) -> MonitorCost:
    """Offer `requests` finished requests to a monitor over a fresh SQLite database in `folder`."""
    records = [_record(number, catalog) for number in range(SPENT_AHEAD + requests)]
    classifier = ActiveClassifier(folder / "classifier", catalog.fingerprint, prior=class_prior(catalog, folder))
    classifier.load()
    encode = encoder_of(lambda: classifier.model)
    url = f"sqlite:///{folder / 'bench.sqlite3'}"
    await migrate(url)
    engine = open_database(url)
    try:
        async with engine.begin() as connection:
            await insert_records(connection, records[:SPENT_AHEAD])
        monitor = Monitor(
            engine,
            [BusyTier(spec.number) for spec in catalog.tiers],
            MonitorSettings(max_offered=requests),
            price=lambda tier, usage: cost_usd(catalog.tier(tier), usage),
            panel=Panel([ExactJudge()], {"exact": await calibrate(ExactJudge(), graded_pairs())}),
            encode=encode,
        )
        offered = records[SPENT_AHEAD:]
        for record in records[:SPENT_AHEAD]:
            monitor.offer(record)  # what is made once is not counted
        async with _drained(monitor):
            pass
        times = _times(monitor.offer, offered)
        began = time.thread_time_ns()
        async with _drained(monitor):
            pass
        background = (time.thread_time_ns() - began) / requests / 1e3
        status = await monitor.status()
        (folder / "patterns").write_text("\n".join(PATTERNS), "utf-8")
        redact = patterns_redaction(folder / "patterns")
        redaction = _times(lambda record: redacted(record, redact), offered[:1000])
        feedback = await _feedback_us(FeedbackDesk(engine, encode, len(catalog.tiers)), offered[:FEEDBACKS])
    finally:
        await engine.dispose()
    return MonitorCost(
        requests=requests,
        sampled=status.sampled,
        offer_mean_us=round(sum(times) / len(times), 2),
        offer_p50_us=times[len(times) // 2],
        offer_p99_us=times[int(0.99 * (len(times) - 1))],
        background_us=round(background, 2),
        redaction_us=round(redaction[len(redaction) // 2], 2),
        feedback_us=round(feedback, 1),
    )


@asynccontextmanager
async def _drained(monitor: Monitor) -> AsyncIterator[None]:
    """The monitor works off what it was offered; starting and stopping it is part of that."""
    await monitor.start()
    try:
        await monitor.drain()
        yield
    finally:
        await monitor.close()


def _times(work: Callable[[Record], object], records: Sequence[Record]) -> list[float]:
    """Microseconds of each call, ascending, without what the clock itself takes."""
    clock = time.thread_time_ns
    own = min(-(clock() - clock()) for _ in range(1000))
    times = []
    for record in records:
        began = clock()
        work(record)
        times.append(max(clock() - began - own, 0) / 1e3)
    return sorted(times)


async def _feedback_us(desk: FeedbackDesk, records: Sequence[Record]) -> float:
    await desk.take(records[0], Feedback(score=1.0))
    began = time.thread_time_ns()
    for record in records[1:]:
        await desk.take(record, Feedback(score=1.0))
    await asyncio.sleep(0)
    return (time.thread_time_ns() - began) / (len(records) - 1) / 1e3


def _record(number: int, catalog: Catalog) -> Record:
    """Served now by a tier of the usual mix; doubt and novelty differ from request to request."""
    place = number % 20
    tier = 1 if place < 12 else 2 if place < 16 else 3 if place < 19 else 4
    usage = Usage(prompt_tokens=300, completion_tokens=600)
    doubt = (number * 37 % 100) / 100
    prediction = Prediction(
        p_ok=[1 - doubt / 2, 1 - doubt / 4, 1 - doubt / 8, 1.0],
        kind="measured",
        novelty=doubt,
        classifier_version="v",
    )
    costs = [cost_usd(spec, usage) for spec in catalog.tiers]
    inputs = PolicyInputs(prediction=prediction, costs=costs, quality_target=0.9, tau=0.9)
    model = catalog.tier(tier).model_name
    return Record(
        request_id=f"chatcmpl-{number:032x}",
        created_at=time.time(),
        api="chat",
        requested_model="auto",
        key_id="key",
        stream=True,
        status="ok",
        http_status=200,
        error=None,
        decision=Decision(tier=tier, reason="cheapest", scores=list(costs), inputs=inputs),
        tier=tier,
        model=model,
        attempts=[Attempt(tier=tier, model=model, status="ok", cost_usd=costs[tier - 1])],
        messages=[{"role": "user", "content": PROMPT}],
        answer=ANSWER,
        reasoning=None,
        finish_reason="stop",
        prompt_tokens=usage.prompt_tokens,
        completion_tokens=usage.completion_tokens,
        cached_tokens=0,
        reasoning_tokens=0,
        cost_usd=costs[tier - 1],
        baseline_cost_usd=costs[-1],
        timings=Timings(route_ms=1.0, ttft_ms=20.0, e2e_ms=900.0, overhead_ms=2.0),
    )
