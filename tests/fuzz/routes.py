"""The routes of the HTTP application."""

import re
from contextlib import nullcontext
from functools import cache

from gateway.base.settings import Settings
from gateway.http import http_app


@cache
def paths_of(method: str, *starts: str) -> tuple[str, ...]:
    """Return the paths below `starts` that have this method, sorted, with `x` and `1` for their parameters.

    A stream of events has no end, and is left out.
    """
    return tuple(
        sorted(
            re.sub(r"{\w+}", "x", route.path_format.replace("{number}", "1"))
            for route in http_app(Settings(), nullcontext).routes
            if method in getattr(route, "methods", ())
            and route.path_format.startswith(starts)
            and not route.path_format.endswith("/events")
        )
    )
