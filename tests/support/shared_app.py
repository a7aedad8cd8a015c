"""The application of a gateway, made once per process: later gateways are copies of it, each with a state of its own.

To register its 270 handlers takes longer than to start all else of a gateway. Processes that tests start register
theirs.
"""

from contextlib import nullcontext
from copy import copy
from functools import cache, partial

from litestar import Litestar
from litestar.datastructures import State

from gateway.base.settings import Settings
from gateway.edge.asgi import LATE_APP, LateApp
from gateway.http import Lifespan, http_app, whole_app


def shared_http_app(settings: Settings, lifespan: Lifespan) -> Litestar:
    """As `http_app`."""
    app = _copy(_front(settings.body_limit, settings.cors_origins))
    app.state = State({LATE_APP: LateApp(partial(_whole_app, settings.body_limit))})
    app._lifespan_managers = [lifespan]
    return app


def forget_whole_app() -> None:
    """Let the next gateway's administration be made again, for tests of what an application does once."""
    _whole.cache_clear()


def _whole_app(body_limit: int, state: State) -> Litestar:
    app = _copy(_whole(body_limit))
    app.state = state
    return app


@cache
def _front(body_limit: int, cors_origins: str) -> Litestar:
    return http_app(Settings(body_limit=body_limit, cors_origins=cors_origins), nullcontext)


@cache
def _whole(body_limit: int) -> Litestar:
    return whole_app(Settings(body_limit=body_limit), State())


def _copy(app: Litestar) -> Litestar:
    """An application with the same routes, which its router starts and ends."""
    copied = copy(app)
    copied.asgi_router = copy(app.asgi_router)
    copied.asgi_router.app = copied
    return copied
