"""What callers hear while the database is away."""

from collections.abc import Awaitable
from typing import TypeVar

from sqlalchemy.exc import SQLAlchemyError

from gateway.errors import ApiError

T = TypeVar("T")


async def reached(answer: Awaitable[T]) -> T:
    """What the database says. Raises `ApiError` 503 while it is away."""
    try:
        return await answer
    except (SQLAlchemyError, OSError) as error:
        raise ApiError(503, "The database is away. Try again later.", code="database_unavailable") from error
