"""The guard of every `/v1` endpoint: names the request, notes its arrival, and finds out who asks."""

import time
from typing import Any

from litestar.connection import ASGIConnection
from litestar.handlers import BaseRouteHandler

from gateway.errors import ApiError
from gateway.parts import PARTS
from gateway.request_ids import new_request_id


def admit(connection: ASGIConnection[Any, Any, Any, Any], handler: BaseRouteHandler) -> None:
    """Set `request_id`, `arrival` (monotonic seconds) and `key_id` of the request's state.

    Raises `ApiError` 401 where keys are configured and the caller has none of them.
    """
    state = connection.state
    state["arrival"] = time.monotonic()
    state["request_id"] = new_request_id(handler.opt.get("id_prefix", "req"))
    state["key_id"] = None
    keys = connection.app.state[PARTS].keys
    if not keys:
        return
    owner = keys.owner(connection.headers.get("authorization"))
    if owner is None:
        raise ApiError(
            401,
            "Missing or wrong API key. Send one as 'Authorization: Bearer KEY'; the operator hands them out.",
        )
    state["key_id"] = owner
