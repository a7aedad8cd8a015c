"""The panel that sits by default, and the stored reliability of judges that cost money to measure."""

import msgspec
from sqlalchemy import insert, select
from sqlalchemy.ext.asyncio import AsyncEngine

from migrations.tables import audit_events
from quality.judges.calibration import Calibration, calibrate
from quality.judges.exact import ExactJudge
from quality.judges.graded import graded_pairs
from quality.judges.json_validity import JsonValidityJudge
from quality.judges.judge import Judge
from quality.judges.pairwise import PairwiseJudge
from quality.judges.panel import Panel
from quality.judges.similarity import Embed, SimilarityJudge

_CALIBRATED = "judge.calibrated"


async def standing_panel(
    engine: AsyncEngine, pairwise: PairwiseJudge | None = None, embed: Embed | None = None
) -> Panel:
    """JSON, exact and similarity judges, then `pairwise` if its stored calibration is significant.

    The rule-based judges are measured here and now, on generated pairs, in milliseconds; so their reliability always
    belongs to the code that runs. A pairwise judge that could not make labels would only cost money: it stays out.
    """
    rule_based: list[Judge] = [JsonValidityJudge(), ExactJudge()]
    pairs = graded_pairs()
    calibrations = {judge.name: await calibrate(judge, pairs) for judge in rule_based}
    judges: list[Judge] = [*rule_based, SimilarityJudge(embed)]
    if pairwise is not None:
        stored = await stored_calibration(engine, pairwise.name, pairwise.model)
        if stored is not None and stored.trusted:
            judges.append(pairwise)
            calibrations[pairwise.name] = stored
    return Panel(judges, calibrations)


async def measure_pairwise(engine: AsyncEngine, judge: PairwiseJudge, now: float, actor: str) -> Calibration:
    """Ask `judge` about the graded pairs (two generations each) and store what came out, for its model."""
    calibration = await calibrate(judge, graded_pairs())
    row = {
        "created_at": now,
        "actor": actor,
        "action": _CALIBRATED,
        "subject": _subject(judge.name, judge.model),
        "reason": f"balanced accuracy {calibration.balanced_accuracy:.3f}, lower bound {calibration.lower_bound:.3f}",
        "details": calibration,
    }
    async with engine.begin() as connection:
        await connection.execute(insert(audit_events).values(row))
    return calibration


async def stored_calibration(engine: AsyncEngine, judge: str, model: str) -> Calibration | None:
    """The latest stored calibration of `judge` asking `model`; None if it was never measured."""
    query = (
        select(audit_events.c.details)
        .where(audit_events.c.action == _CALIBRATED, audit_events.c.subject == _subject(judge, model))
        .order_by(audit_events.c.audit_event_id.desc())
        .limit(1)
    )
    async with engine.connect() as connection:
        details = await connection.scalar(query)
    return None if details is None else msgspec.convert(details, Calibration)


def _subject(judge: str, model: str) -> str:
    return f"{judge}/{model}"
