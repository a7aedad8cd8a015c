"""The log of a refused request says what led to it."""

import itertools
import sqlite3

import pytest
from sqlalchemy.exc import OperationalError

from gateway.base.errors import ApiError
from gateway.base.logs import with_first_cause


def raised(*errors: Exception) -> Exception:
    """The last of the errors, each raised from the one before."""
    for earlier, later in itertools.pairwise(errors):
        later.__cause__ = earlier
    return errors[-1]


@pytest.mark.parametrize(
    ("errors", "said"),
    [
        ([], "ApiError"),
        ([TimeoutError(), KeyError("budget")], "ApiError from TimeoutError"),
        (
            [OSError(111, "Connection refused"), KeyError()],
            "ApiError from ConnectionRefusedError ([Errno 111] Connection refused)",
        ),
        ([ValueError("a user's text")], "ApiError from ValueError"),
    ],
)
def test_the_first_cause_is_named_with_words_that_hold_no_text_of_a_user(errors: list[Exception], said: str) -> None:
    assert with_first_cause(raised(*errors, ApiError(503, "No."))) == said


def test_of_the_database_it_is_the_drivers_words_without_the_statement() -> None:
    locked = sqlite3.OperationalError("database is locked")
    wrapped = OperationalError("INSERT INTO requests VALUES (?)", ("a user's text",), locked)
    said = with_first_cause(raised(locked, wrapped, ApiError(503, "No.")))
    assert said == "ApiError from OperationalError (database is locked)"
