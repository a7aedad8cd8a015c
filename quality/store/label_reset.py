"""The reset of labels: from then on nothing counts them, neither routing nor retraining, on any process."""

from sqlalchemy import func, select
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from migrations.tables.audit import audit_events
from quality.store.queries import record_audit

# The audit action of a reset, which outlives restarts: audit events are kept.
RESET = "promotions.reset"


async def labels_count_from(connection: AsyncConnection) -> float:
    """Return the epoch seconds of the last reset; labels up to then are forgotten. 0 without one."""
    last = select(func.max(audit_events.c.created_at)).where(audit_events.c.action == RESET)
    found: float | None = await connection.scalar(last)
    return found or 0.0


async def reset_labels(engine: AsyncEngine, *, actor: str, reason: str, now: float) -> None:
    """Forget all labels up to `now` (epoch seconds): every replica stops following them at its next poll, and no later
    retraining reads them."""
    await record_audit(engine, at=now, actor=actor, action=RESET, subject="own labels", reason=reason)
