"""Tables of what was changed and by which actor, of alerts that were sent, and of what was erased."""

from typing import Any

from sqlalchemy import Boolean, Column, Double, Index, Insert, String, Table, false, insert

from migrations.tables.columns import FreeText, Json, RowId, metadata

knob_changes = Table(
    "knob_changes",
    metadata,
    Column("knob_change_id", RowId, primary_key=True, autoincrement=True),
    Column("created_at", Double, nullable=False),
    Column("actor", FreeText, nullable=False),
    Column("part", String(64), nullable=False),  # the part with the knob
    Column("model", FreeText),  # of the part, if it has several
    Column("knob", String(64), nullable=False),
    Column("old_value", Json),
    Column("new_value", Json),
    Column("reason", FreeText),
    Column("kept", Boolean, nullable=False, server_default=false()),  # kept across restarts
    Column("refused", FreeText),  # why nothing was changed
    Index(None, "created_at"),
    Index(None, "knob", "created_at"),
)

# The action of the row that a running test of a judge is kept in; its details have `spent_usd`.
JUDGE_TEST = "judge.calibrating"

audit_events = Table(
    "audit_events",
    metadata,
    Column("audit_event_id", RowId, primary_key=True, autoincrement=True),
    Column("created_at", Double, nullable=False),
    Column("actor", FreeText, nullable=False),
    Column("action", String(64), nullable=False),
    Column("subject", FreeText, nullable=False),
    Column("reason", FreeText),
    Column("details", Json),
    Index(None, "created_at"),
    Index(None, "action", "created_at"),
    Index(None, "actor", "created_at"),
    Index(None, "action", "actor", "created_at"),
)


def audited(at: float, actor: str, action: str, subject: str, reason: str | None = None, details: Any = None) -> Insert:
    """Return the insert of a row: `actor` did `action` to `subject` at that time (epoch seconds); `details` is any JSON
    value or struct."""
    row = {"actor": actor, "action": action, "subject": subject, "reason": reason, "details": details}
    return insert(audit_events).values(created_at=at, **row)


# The last message about each cause of an alert in each channel, so that restarts and replicas repeat none.
alert_messages = Table(
    "alert_messages",
    metadata,
    Column("channel", String(16), primary_key=True),
    Column("cause", String(256), primary_key=True),
    Column("state", String(8), nullable=False),  # on | over | sending
    Column("severity", String(16), nullable=False),
    Column("summary", FreeText, nullable=False),
    Column("ends", Boolean, nullable=False),  # its end is a message for people
    Column("sent_at", Double, nullable=False),
    Index(None, "sent_at"),
)

# A user's data are erased up to `erased_at`; records still in a journal are dropped on arrival.
erasures = Table(
    "erasures",
    metadata,
    Column("key_id", String(128), primary_key=True),
    Column("erased_at", Double, nullable=False),
)
