"""Shared by the endpoints of live knobs: a resource by part, whose PATCH is carried out as an order."""

from collections.abc import Callable, Iterable
from typing import Any, Generic, TypeVar

import msgspec
from litestar import patch
from litestar.handlers import HTTPRouteHandler
from litestar.response import Response
from msgspec import UNSET, UnsetType

from gateway.base.knobs import KnobFile
from gateway.edge.asgi import HttpRequest
from gateway.edge.openapi import describe
from gateway.inference.api.reading.parsing import read_body
from gateway.operations.running import operations_of
from gateway.operations.usecases.knobs import order_knobs
from gateway.tenancy.access.admin_guard import OPERATOR, actor_of
from quality.store.queries import KnobChange

K = TypeVar("K", bound=msgspec.Struct)


class FileKnobs(msgspec.Struct, Generic[K], frozen=True, kw_only=True):
    """The current `knobs`, and their descriptions."""

    knobs: K
    schemas: dict[str, dict[str, Any]]


class FileKnobsChanged(msgspec.Struct, Generic[K], frozen=True, kw_only=True):
    """What changed; `recorded` is False while the database is down, but the change applies."""

    knobs: K
    changed: list[KnobChange]
    recorded: bool


def paths_of(part: str) -> list[str]:
    """The resource with the knobs of a part, and its earlier path."""
    return [f"/knobs/{part}", f"/{part}"]


class KnobPatch:
    """The body of a change of `knobs`: any of them, null for the default, with a `reason` and the fields `more`.

    The owner of the knobs checks the values, so that a refusal names the knob and is recorded.
    """

    def __init__(
        self, name: str, knobs: type[msgspec.Struct], *more: tuple[str, Any, Any], retired: Iterable[str] = ()
    ) -> None:
        """`retired`: former names that are still accepted."""
        self._names = (*knobs.__struct_fields__, *retired)
        fields: list[Any] = [(knob, Any | UnsetType, UNSET) for knob in self._names]
        struct = msgspec.defstruct(
            name, [*fields, *more, ("reason", str | None, None)], kw_only=True, forbid_unknown_fields=True
        )
        self._struct = struct

    async def read(self, request: HttpRequest) -> Any:
        """Read the body. Raises `ApiError` as `read_body` does."""
        return await read_body(request, self._struct)

    def wanted(self, body: Any) -> dict[str, Any]:
        """The knobs that a body names."""
        given = {name: getattr(body, name) for name in self._names}
        return {name: value for name, value in given.items() if value is not UNSET}


def change_handler(
    part: str,
    title: str,
    struct: type[msgspec.Struct],
    knobs_of: Callable[[HttpRequest], KnobFile[Any]],
    retired: Iterable[str] = (),
) -> HTTPRouteHandler:
    """Return the PATCH of the knobs in a file. `part`: its resource; `title`: what the knobs are of, for people."""
    changes = KnobPatch(f"{part.title()}Patch", struct, retired=retired)

    async def change(request: HttpRequest) -> Response[Any]:
        """All named knobs change at once, or none; null restores a default. They survive restarts, and the other
        processes of this data folder follow within `AIO_ARTEFACT_POLL_SECONDS`."""
        body, knobs = await changes.read(request), knobs_of(request)
        operations, actor = operations_of(request), actor_of(request)
        done = await order_knobs(operations, actor, knobs, changes.wanted(body), body.reason)
        shown = FileKnobsChanged(knobs=knobs.active, changed=done.changed, recorded=done.recorded)
        return Response(shown, media_type="application/json")

    change.__name__ = f"change_{part}"  # the operation's id
    operation = describe(struct, FileKnobsChanged[struct])  # type: ignore[valid-type]
    handler = patch(paths_of(part), opt=OPERATOR, operation_class=operation, summary=f"Change the knobs of {title}")
    return handler(change)
