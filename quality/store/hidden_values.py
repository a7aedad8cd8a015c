"""What PostgreSQL says of a statement that failed, without the values of its row, which may be users' texts.

SQLAlchemy's `hide_parameters` leaves the server's own words: the detail of a violated constraint has the row ("Failing
row contains …", "Key (name)=(…) already exists."), and an error in the data repeats the value.
"""

import re
from collections.abc import Iterator

from sqlalchemy.engine import ExceptionContext

HIDDEN = "(hidden)"
_DETAIL = "\nDETAIL:"
_OF_DATA = "22"
"""The class of SQLSTATE of errors in the data, whose messages repeat a value."""
# After a colon or in quotes, or asyncpg's own of a value that it cannot send.
_VALUE = re.compile(r"(?<=invalid input for query argument ).*|(?<=: ).*|\".*\"", re.DOTALL)


def hide_values(context: ExceptionContext) -> None:
    """Take the values out of an error before anybody writes it down: a listener of `handle_error`."""
    errors = list(_chain(context.original_exception))
    of_data = any(str(getattr(error, "sqlstate", "")).startswith(_OF_DATA) for error in errors)
    for error in (context.sqlalchemy_exception, *errors):
        if error is None:
            continue
        if getattr(error, "detail", None):
            error.detail = None  # type: ignore[attr-defined]
        if error.args and isinstance(error.args[0], str):
            said = error.args[0].partition(_DETAIL)[0]
            error.args = (_VALUE.sub(HIDDEN, said) if of_data else said, *error.args[1:])


def _chain(error: BaseException | None) -> Iterator[BaseException]:
    while error is not None:
        yield error
        error = error.__cause__
