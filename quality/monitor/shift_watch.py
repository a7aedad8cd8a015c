"""Follows the stored verdicts, whoever made them, and feeds them to the sequential test that asks for a retraining."""

import re
from collections.abc import Sequence
from typing import Any

import msgspec
from sqlalchemy import RowMapping, and_, func, insert, or_, select
from sqlalchemy.ext.asyncio import AsyncEngine

from classifier.complexity.classes import likeliest
from classifier.decision import LEARNED_KINDS
from migrations.tables import audit_events, classifier_versions, routing_decisions, training_rows, verifications
from quality.monitor.e_detector import ShiftAlarm, ShiftDetector, ShiftSettings

# An answer counts with its tier, and with the complexity class of its prompt.
VIEWS = 2
# At least so novel, a prompt counts among those that the classifier does not know yet.
UNFAMILIAR = 0.95
_ALARM = "quality.alarm"
_BATCH = 1000


def streams_of(tier: int, novelty: float, classes: Sequence[float] | None, *, served: bool = True) -> list[str]:
    """The streams that a verified answer belongs to, as their alarms name them; at most `VIEWS`.

    What a probe says of a tier that did not serve is about the tier, not about how prompts of a class are routed.
    `classes`: P of the four complexity classes, if they are known.
    """
    by_tier = f"tier {tier}, {'unfamiliar' if novelty >= UNFAMILIAR else 'familiar'} prompts"
    return [by_tier, f"{likeliest(classes).name} prompts"] if served and classes else [by_tier]


def changed_tier(stream: str) -> int | None:
    """The tier whose answers have changed where that stream alarms; None where it may as well be what is asked."""
    tier = re.fullmatch(r"tier (\d+), familiar prompts", stream)
    return None if tier is None else int(tier[1])


async def tier_changes(engine: AsyncEngine) -> dict[int, float]:
    """By tier, when its answers have last changed, in epoch seconds, as far as alarms said so."""
    query = select(audit_events.c.details).where(audit_events.c.action == _ALARM).order_by(audit_events.c.created_at)
    async with engine.connect() as connection:
        alarms = (await connection.scalars(query)).all()
    found: dict[int, float] = {}
    for alarm in alarms:
        tier = changed_tier(alarm["stream"])
        # Alarms of earlier releases name no time.
        if tier is not None and "since" in alarm:
            found[tier] = max(alarm["since"], found.get(tier, 0.0))
    return found


def judged_worse(predicted: float, reliability: float | None) -> float:
    """How often a judge of that balanced accuracy says "worse" where it is true with probability `predicted`."""
    error = 0.0 if reliability is None else 1.0 - reliability
    return error + (1.0 - 2.0 * error) * predicted


class ShiftWatch:
    """Streams are each tier's familiar and unfamiliar prompts, and each class's: what gets worse for one kind of
    prompts is not hidden by the others. Answers count as they were served, and probes with every tier that they asked.
    Evidence starts anew when a classifier is promoted.

    All is read back from the database: a restart forgets nothing, and a replica sees the verdicts of all. One that is
    stored late, behind others that finished after it, is passed over; which ones are does not depend on what they say.
    """

    def __init__(self, engine: AsyncEngine, settings: ShiftSettings) -> None:
        self.settings = settings
        self._engine = engine
        self._detector = ShiftDetector(settings, VIEWS)
        self._begun = 0.0
        self._cursor = (0.0, 0)

    def evidence(self) -> dict[str, float]:
        """By stream, as its alarm would name it."""
        return {str(stream): value for stream, value in self._detector.evidence().items()}

    async def catch_up(self) -> list[ShiftAlarm]:
        """Take in the verdicts since the last call; the alarms that they raise and that no replica has stored yet."""
        await self._begin_anew_after_a_promotion()
        raised: list[ShiftAlarm] = []
        while rows := await self._verdicts():
            for row in rows:
                raised += [alarm for alarm in self._observe(row) if await self._store(alarm, row)]
        return raised

    def _observe(self, row: RowMapping) -> list[ShiftAlarm]:
        self._cursor = (row["finished_at"], row["verification_id"])
        prediction = row["inputs"]["prediction"]
        p_ok = prediction["p_ok"]
        predicted = judged_worse(1.0 - p_ok[row["tier"] - 1], row["judge_reliability"])
        streams = streams_of(row["tier"], row["novelty"], row["classes"], served=row["tier"] == row["served"])
        worse, at = row["label"] == "worse", row["finished_at"]
        alarms = [self._detector.observe(stream, worse, predicted, at) for stream in streams]
        return [alarm for alarm in alarms if alarm is not None]

    async def _begin_anew_after_a_promotion(self) -> None:
        async with self._engine.connect() as connection:
            promoted = await connection.scalar(select(func.max(classifier_versions.c.promoted_at))) or 0.0
        if promoted > self._begun:
            self._detector = ShiftDetector(self.settings, VIEWS)
            self._begun, self._cursor = promoted, (promoted, 0)

    async def _verdicts(self) -> Sequence[RowMapping]:
        """The next ones with a label, in the order in which they were finished."""
        finished, number = verifications.c.finished_at, verifications.c.verification_id
        query = (
            select(
                number,
                finished,
                verifications.c.tier,
                verifications.c.label,
                verifications.c.judge_reliability,
                training_rows.c.classes,
                routing_decisions.c.tier.label("served"),
                routing_decisions.c.inputs,
                routing_decisions.c.novelty,
            )
            .join(routing_decisions, routing_decisions.c.request_id == verifications.c.request_id)
            .outerjoin(
                training_rows,
                and_(
                    training_rows.c.request_id == verifications.c.request_id,
                    training_rows.c.source.in_(("verification", "probe")),
                ),
            )
            .where(
                verifications.c.label.is_not(None),
                # Of no version's prediction it says nothing.
                routing_decisions.c.prediction_kind.in_(LEARNED_KINDS),
                # Probes ask every tier, whichever was chosen. Those who complain do not do so at random.
                or_(verifications.c.tier == routing_decisions.c.tier, verifications.c.sampled_reason == "probe"),
                verifications.c.sampled_reason != "feedback",
                or_(finished > self._cursor[0], and_(finished == self._cursor[0], number > self._cursor[1])),
            )
            .order_by(finished, number)
            .limit(_BATCH)
        )
        async with self._engine.connect() as connection:
            return (await connection.execute(query)).mappings().all()

    async def _store(self, alarm: ShiftAlarm, row: RowMapping) -> bool:
        """Write the alarm that this verdict raised, unless it is there: after a restart, or from another replica."""
        subject = f"{alarm.stream}, verification {row['verification_id']}"
        known = and_(audit_events.c.action == _ALARM, audit_events.c.subject == subject)
        values: dict[str, Any] = {
            "created_at": row["finished_at"],
            "actor": "monitor",
            "action": _ALARM,
            "subject": subject,
            "reason": alarm.reason,
            "details": msgspec.to_builtins(alarm),
        }
        async with self._engine.execution_options(sqlite_begin="BEGIN IMMEDIATE").begin() as connection:
            if await connection.scalar(select(func.count()).select_from(audit_events).where(known)):
                return False
            await connection.execute(insert(audit_events).values(values))
        return True
