"""A router that an application takes as it is."""

from typing import Any, Self

from litestar import Router


class OnceRouter(Router):
    """A router that is registered once.

    Of others litestar makes a deep copy, so that they may be registered again: a hundred handlers with all that they
    hold. Handlers may be shared between routers nevertheless, because each router copies its own.
    """

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        return self
