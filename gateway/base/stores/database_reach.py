"""What callers are answered while the database is down."""

from collections.abc import Awaitable
from typing import TypeVar

from sqlalchemy.exc import SQLAlchemyError

from gateway.base.errors import ApiError, bad_request
from quality.store.database import blames_data

T = TypeVar("T")


async def reached(answer: Awaitable[T]) -> T:
    """Return the database's answer. Raises `ApiError`: 503 while it is down, 400 for values that it cannot hold."""
    try:
        return await answer
    except (SQLAlchemyError, OSError, OverflowError) as error:
        if blames_data(error):
            raise bad_request("A value is out of the range that the database holds.", None, "invalid_value") from error
        raise ApiError(503, "The database is down. Try again later.", code="database_unavailable") from error
