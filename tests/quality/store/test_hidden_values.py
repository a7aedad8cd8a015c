"""An error of PostgreSQL is written without the values of the row that it refuses."""

import traceback

import pytest
from sqlalchemy import text
from sqlalchemy.exc import DBAPIError

from quality.store.database import blames_data, open_database
from quality.store.drivers import HIDDEN

SECRET = "cormorant: \"7e21\"\nDETAIL: 'no'"
INSERT = "insert into t values (:a, cast(cast(:b as text) as int), :c)"


@pytest.mark.parametrize(
    ("statement", "values", "said"),
    [
        (INSERT, {"a": SECRET, "b": "1", "c": "x"}, 'duplicate key value violates unique constraint "t_pkey"'),
        (INSERT, {"a": "k", "b": "1", "c": SECRET}, 'violates check constraint "t_c_check"'),
        (INSERT, {"a": "k", "b": SECRET, "c": "x"}, f"invalid input syntax for type integer: {HIDDEN}"),
        (INSERT, {"a": "k", "b": "77777777777", "c": "x"}, f"value {HIDDEN} is out of range for type integer"),
        ("insert into t values ('k', :b, 'x')", {"b": SECRET}, f"invalid input for query argument {HIDDEN}"),
    ],
    ids=["unique", "check", "syntax", "range", "unsendable"],
)
async def test_no_error_repeats_a_value(postgres_url: str, statement: str, values: dict[str, str], said: str) -> None:
    engine = open_database(postgres_url)
    try:
        async with engine.begin() as connection:
            await connection.execute(
                text("create table t (a text primary key, b int, c text constraint t_c_check check (length(c) < 5))")
            )
            await connection.execute(text(INSERT), {"a": SECRET, "b": "1", "c": "x"})
        with pytest.raises(DBAPIError) as raised:
            async with engine.begin() as connection:
                await connection.execute(text(statement), values)
    finally:
        await engine.dispose()
    written = "".join(traceback.format_exception(raised.value))
    assert said in written
    assert "cormorant" not in written
    assert "77777777777" not in written
    assert blames_data(raised.value)
