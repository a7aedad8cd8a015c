"""The application of a gateway, made once per process: later gateways are copies of it, each with a state of its own.

To register its 270 handlers takes longer than to start all else of a gateway. Processes that tests start register
theirs.
"""

from contextlib import nullcontext
from copy import copy
from functools import cache

from litestar import Litestar
from litestar.datastructures import State

from gateway.base.settings import Settings
from gateway.http import Lifespan, http_app


def shared_http_app(settings: Settings, lifespan: Lifespan) -> Litestar:
    """As `http_app`."""
    made = _made(settings.body_limit, settings.cors_origins)
    app = copy(made)
    app.asgi_router = copy(made.asgi_router)
    app.asgi_router.app = app
    app.state = State()
    app._lifespan_managers = [lifespan]
    return app


@cache
def _made(body_limit: int, cors_origins: str) -> Litestar:
    return http_app(Settings(body_limit=body_limit, cors_origins=cors_origins), nullcontext)
