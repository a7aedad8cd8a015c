"""The whole loop on one database: served, sampled, verified, learned from, retrained, decided, with reasons."""

import subprocess
import sys
from pathlib import Path

import pytest
from sqlalchemy.ext.asyncio import AsyncEngine

from migrations.tables.audit import audit_events
from migrations.tables.quality import classifier_versions, retrain_runs, training_rows, verifications
from migrations.tables.requests import requests
from quality.evaluation.task_set import check, tasks
from quality.judges.panel import standing_panel
from quality.ledger.ledger import Ledger
from quality.monitor.answer_monitor import AnswerMonitor
from quality.monitor.worker import MonitorSettings
from quality.retraining.retrain import retrain
from quality.verification.sampling import SamplingSettings
from quality.verification.training_rows import encoder_of
from tests.quality.loop_world import ScriptedTerms, ScriptedTier, ladder, record, rows
from tests.quality.retraining.tiny_classifier import SETTINGS, base_artefact, fresh_registry, model_in

pytestmark = pytest.mark.processes

EVERYTHING = MonitorSettings(
    sampling=SamplingSettings(rates=(1.0,) * 4, least_attention=1.0, probe_rate=0.0, budget_share=1e6),
    # The other tiers of the script know nothing.
    second_opinions=1,
)


async def test_from_served_requests_to_a_decided_candidate(engine: AsyncEngine, tmp_path: Path) -> None:
    registry = fresh_registry(tmp_path / "registry", base_artefact(tmp_path / "shipped"))
    model = model_in(registry)
    exam = [task for task in tasks(seed=4, per_level=3) if task.kind in ("compare", "arithmetic")]
    right = {task.prompt: task.answer for task in exam}
    strongest = ScriptedTier(reply=lambda request: f"The answer is {right[request.messages[-1].text]}.")  # type: ignore[index]
    monitor = AnswerMonitor(
        engine,
        ladder(strongest),
        EVERYTHING,
        terms=ScriptedTerms(),
        panel=await standing_panel(engine),
        encode=encoder_of(lambda: model),
        clock=lambda: 1500.0,
    )
    ledger = Ledger(tmp_path / "journal", engine)
    await ledger.start()
    await monitor.start()

    # Tier 1 knows the answers of easy tasks only.
    for number, task in enumerate(exam):
        answer = task.answer if task.level <= 3 else "0"
        served = record(f"req-{number}", prompt=task.prompt, answer=answer)
        ledger.append(served)
        monitor.offer(served)
    await ledger.flush()
    await monitor.drain()
    result = await retrain(engine, registry, SETTINGS, trigger="cli")
    await monitor.close()
    await ledger.close()

    assert len(await rows(engine, requests)) == len(exam)
    verdicts = {row["request_id"]: row for row in await rows(engine, verifications)}
    learned = {row["request_id"]: row["no_worse"] for row in await rows(engine, training_rows)}
    for number, task in enumerate(exam):
        good = task.level <= 3
        assert verdicts[f"req-{number}"]["label"] == ("no_worse" if good else "worse")
        assert learned[f"req-{number}"] == [good, None, None, True]
        assert check(task, verdicts[f"req-{number}"]["verifier_answer"])
    assert all(row["reason"] for row in verdicts.values())

    assert result.outcome == "refused"
    assert "newer rows" in result.reason
    assert [row["reason"] for row in await rows(engine, retrain_runs)] == [result.reason]
    assert {row["status"] for row in await rows(engine, classifier_versions)} == {"promoted", "refused"}
    assert all(row["reason"] for row in await rows(engine, classifier_versions))
    assert (await rows(engine, audit_events))[-1]["reason"] == result.reason


def test_the_serving_side_of_the_loop_imports_no_training_library() -> None:
    program = (
        "import sys, quality.monitor.answer_monitor, quality.retraining.retrain, quality.retraining.schedule, "
        "quality.verification.training_rows, quality.judges.panel\n"
        "print([name for name in ('torch', 'sklearn', 'scipy', 'transformers') if name in sys.modules])"
    )

    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)

    assert done.stdout.strip() == "[]"
