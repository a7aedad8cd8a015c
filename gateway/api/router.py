"""A router that an application takes as it is, and a handler that its guards get as it is."""

from typing import Any, Self

from litestar import Router
from litestar.connection import ASGIConnection
from litestar.handlers import HTTPRouteHandler


class OnceRouter(Router):
    """A router that is registered once.

    Of others litestar makes a deep copy, so that they may be registered again: a hundred handlers with all that they
    hold. Handlers may be shared between routers nevertheless, because each router copies its own.
    """

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        return self


class InferenceRoute(HTTPRouteHandler):
    """The decorator of the endpoints with the most requests.

    litestar gives each guard a copy of the handler, which costs as much as all that the guard does. Guards of ours only
    read it.
    """

    async def authorize_connection(self, connection: ASGIConnection[Any, Any, Any, Any]) -> None:
        """Run the guards in scope."""
        for guard in self.resolve_guards():
            await guard(connection, self)  # type: ignore[misc]
