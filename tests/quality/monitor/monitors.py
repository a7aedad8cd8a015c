"""A monitor whose tiers answer from a script, and records that it is offered."""

from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any

import numpy as np
from sqlalchemy.ext.asyncio import AsyncEngine

from quality.judges.calibration import calibrate
from quality.judges.judge import Judge
from quality.judges.known_pairs import graded_pairs
from quality.judges.panel import Panel
from quality.judges.rules import ExactJudge, SimilarityJudge
from quality.monitor.answer_monitor import AnswerMonitor
from quality.monitor.detectors import ShiftAlarm
from quality.monitor.worker import MonitorSettings
from quality.records.record import Record
from quality.verification.sampling import SamplingSettings
from quality.verification.training_rows import Encode, EncodedPrompt
from tests.quality.loop_world import ScriptedTerms, ScriptedTier, ladder, store_request
from tiers.tier import Tier

EVERY = SamplingSettings(rates=(1.0,) * 4, least_attention=1.0, probe_rate=0.0, budget_share=1e6)
TIERS = ["one", "two", "three", "four"]
ALL = MonitorSettings(sampling=EVERY, retry_seconds=0.0, max_attempts=3)


async def encode(messages: list[dict[str, str]]) -> EncodedPrompt:
    vector = np.full(2, float(len(messages[-1]["content"])), dtype="<f4")
    return EncodedPrompt(feature_spec="test-1", embedding=vector.tobytes(), features=None)


async def monitor_of(
    engine: AsyncEngine,
    verifier: ScriptedTier,
    settings: MonitorSettings = ALL,
    judges: Sequence[Judge] = (ExactJudge(), SimilarityJudge()),
    alarms: list[ShiftAlarm] | None = None,
    encode: Encode = encode,
    tiers: Sequence[Tier] | None = None,
    clock: Callable[[], float] = lambda: 1500.0,
) -> AnswerMonitor:
    """A monitor of `tiers`, by default four with `verifier` as the strongest; its alarms are added to `alarms`."""

    async def on_alarm(alarm: ShiftAlarm) -> None:
        if alarms is not None:
            alarms.append(alarm)

    calibration = await calibrate(ExactJudge(), graded_pairs())
    panel = Panel(judges, {"exact": calibration})
    return AnswerMonitor(
        engine,
        tiers or ladder(verifier),
        settings,
        terms=ScriptedTerms(fingerprints=TIERS),
        panel=panel,
        encode=encode,
        on_alarm=on_alarm,
        clock=clock,
    )


@asynccontextmanager
async def running_monitor(
    engine: AsyncEngine, verifier: ScriptedTier, *given: Any, **more: Any
) -> AsyncIterator[AnswerMonitor]:
    """A monitor as `monitor_of` makes it, from its start to its end."""
    monitor = await monitor_of(engine, verifier, *given, **more)
    await monitor.start()
    try:
        yield monitor
    finally:
        await monitor.close()


async def serve(monitor: AnswerMonitor, engine: AsyncEngine, *records: Record) -> None:
    """Store the requests of `records`, offer these, and wait until all are verified."""
    for served in records:
        await store_request(engine, served)
        monitor.offer(served)
    await monitor.drain()
