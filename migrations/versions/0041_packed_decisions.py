"""A decision is one compressed value instead of five columns, attempts are compressed, and unused indexes go."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import sqlalchemy as sa
from alembic import op

from migrations.tables.packed import unpack

revision = "0041"
down_revision = "0040"
branch_labels = None
depends_on = None

AT_ONCE = 500
EXPERIMENT = sa.text("experiment_id IS NOT NULL")
UNUSED = (["created_at"], ["tier", "created_at"], ["classifier_version", "created_at"], ["experiment_id", "created_at"])
REPLACED = ("reason", "quality_target", "p_ok", "scores", "inputs")
FACET = "COALESCE(CAST(tier AS TEXT), '') || '/' || status || '/' || SUBSTR(requested_model, 1, 256)"
FACETS = {"ix_requests_facet": ["facet", "created_at"], "ix_requests_key_id_facet": ["key_id", "facet", "created_at"]}


def upgrade() -> None:
    """What is stored stays plain JSON, which is read like the compressed form; SQLite's file shrinks by a `VACUUM`."""
    is_sqlite = op.get_bind().dialect.name == "sqlite"
    for columns in UNUSED:
        op.drop_index("_".join(["ix_routing_decisions", *columns]), "routing_decisions")
    op.add_column("routing_decisions", sa.Column("decision", sa.LargeBinary))
    op.add_column("routing_decisions", sa.Column("unit", sa.Text))
    if is_sqlite:
        made = (
            "CAST(json_object('tier', tier, 'reason', reason, 'scores', json(scores), 'inputs', json(inputs), "
            "'would_be', would_be_tier) AS BLOB)"
        )
        unit = "json_extract(inputs, '$.unit')"
    else:
        made = (
            "convert_to(json_build_object('tier', tier, 'reason', reason, 'scores', scores, 'inputs', inputs, "
            "'would_be', would_be_tier)::text, 'UTF8')"
        )
        unit = "inputs ->> 'unit'"
    op.execute(f"UPDATE routing_decisions SET decision = {made}")  # noqa: S608
    op.execute(f"UPDATE routing_decisions SET unit = {unit} WHERE experiment_id IS NOT NULL")  # noqa: S608
    with op.batch_alter_table("routing_decisions", table_kwargs={"sqlite_with_rowid": False}) as table:
        for name in REPLACED:
            table.drop_column(name)
        table.alter_column("decision", existing_type=sa.LargeBinary(), nullable=False)
    op.create_index(
        "ix_routing_decisions_experiment",
        "routing_decisions",
        ["experiment_id", "created_at"],
        sqlite_where=EXPERIMENT,
        postgresql_where=EXPERIMENT,
    )
    for name in FACETS:
        op.drop_index(name, "requests")
    with _without_facet(), op.batch_alter_table("requests") as table:
        table.alter_column(
            "attempts",
            existing_type=sa.JSON(),
            type_=sa.LargeBinary(),
            existing_nullable=False,
            postgresql_using="convert_to(attempts::text, 'UTF8')",
        )
    for name, columns in FACETS.items():
        op.create_index(name, "requests", columns)


@contextmanager
def _without_facet() -> Iterator[None]:
    """Drop the computed column, which a copied table of SQLite would get wrong, and compute it again."""
    if op.get_bind().dialect.name == "sqlite":
        op.drop_column("requests", "facet")
        yield
        op.add_column("requests", sa.Column("facet", sa.Text, sa.Computed(FACET)))
    else:
        yield


def downgrade() -> None:
    """Every value becomes JSON again."""
    connection = op.get_bind()
    op.add_column("requests", sa.Column("plain", sa.JSON(none_as_null=True)))
    requests = sa.table(
        "requests", sa.column("request_id"), sa.column("attempts", sa.LargeBinary), sa.column("plain", sa.JSON)
    )
    for rows in _batches(connection, requests.c.request_id, requests.c.attempts):
        plain = [{"key": key, "plain": json.loads(unpack(stored))} for key, stored in rows]
        mine = requests.c.request_id == sa.bindparam("key")
        connection.execute(sa.update(requests).where(mine).values(plain=sa.bindparam("plain")), plain)
    for name in FACETS:
        op.drop_index(name, "requests")
    with _without_facet(), op.batch_alter_table("requests") as table:
        table.drop_column("attempts")
        table.alter_column("plain", new_column_name="attempts", existing_type=sa.JSON(), nullable=False)
    for name, columns in FACETS.items():
        op.create_index(name, "requests", [*columns, "request_id"])
    _plain_decisions(connection)


def _plain_decisions(connection: sa.Connection) -> None:
    op.drop_index("ix_routing_decisions_experiment", "routing_decisions")
    kinds: dict[str, Any] = {
        "reason": sa.Text(),
        "quality_target": sa.Double(),
        **{name: sa.JSON(none_as_null=True) for name in ("p_ok", "scores", "inputs")},
    }
    for name, kind in kinds.items():
        op.add_column("routing_decisions", sa.Column(name, kind))
    columns: list[sa.ColumnClause[Any]] = [sa.column("request_id"), sa.column("decision", sa.LargeBinary)]
    decisions = sa.table("routing_decisions", *columns, *(sa.column(name, kind) for name, kind in kinds.items()))
    mine = decisions.c.request_id == sa.bindparam("key")
    change = sa.update(decisions).where(mine).values({name: sa.bindparam(f"new_{name}") for name in kinds})
    for rows in _batches(connection, decisions.c.request_id, decisions.c.decision):
        connection.execute(change, [{"key": key, **_columns_of(json.loads(unpack(stored)))} for key, stored in rows])
    with op.batch_alter_table("routing_decisions", table_kwargs={"sqlite_with_rowid": True}) as table:
        for name in ("decision", "unit"):
            table.drop_column(name)
        for name, kind in kinds.items():
            table.alter_column(name, existing_type=kind, nullable=False)
    for names in UNUSED:
        op.create_index("_".join(["ix_routing_decisions", *names]), "routing_decisions", names)


def _columns_of(decision: dict[str, Any]) -> dict[str, Any]:
    inputs = decision["inputs"]
    return {
        "new_reason": decision["reason"],
        "new_quality_target": inputs["quality_target"],
        "new_p_ok": inputs["prediction"]["p_ok"],
        "new_scores": decision["scores"],
        "new_inputs": inputs,
    }


def _batches(connection: sa.Connection, key: Any, value: Any) -> Iterator[list[tuple[str, bytes]]]:
    """Yield the rows of a table in the order of their keys, some at a time."""
    after = ""
    while rows := connection.execute(sa.select(key, value).where(key > after).order_by(key).limit(AT_ONCE)).all():
        yield [(str(found), stored) for found, stored in rows]
        after = str(rows[-1][0])
