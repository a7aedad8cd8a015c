"""Shared by the endpoints of live knobs: the body of a PATCH, which is carried out as an order."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Generic, TypeVar

import msgspec
from litestar.response import Response
from msgspec import UNSET, UnsetType

from gateway.base.knobs.file import KnobFile
from gateway.edge.http_request import HttpRequest
from gateway.inference.api.reading.parsing import read_body
from gateway.operations.running import operations_of
from gateway.operations.usecases.knobs import KnobsWritten, PartChange, carry_out_order
from gateway.tenancy.access.admin_guard import actor_of
from quality.store.knob_log import KnobChange

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
        self._decoder = msgspec.json.Decoder(struct)

    async def change_file(self, request: HttpRequest, knobs: KnobFile[Any]) -> Response[Any]:
        """Change the knobs of a file as the body of `request` says; return `FileKnobsChanged`. Raises `ApiError`."""
        body, part = await self.read(request), knobs.part
        done = await self.carry_out(request, body, part, lambda wanted: [PartChange(part, *knobs.change(wanted))])
        shown = FileKnobsChanged(knobs=knobs.active, changed=done.changed, recorded=done.recorded)
        return Response(shown, media_type="application/json")

    async def read(self, request: HttpRequest) -> Any:
        """Read the body. Raises `ApiError` as `read_body` does."""
        return await read_body(request, self._decoder)

    async def carry_out(
        self, request: HttpRequest, body: Any, part: str, change: Callable[[Mapping[str, Any]], Sequence[PartChange]]
    ) -> KnobsWritten:
        """Apply `change` to what the body names, and record that or the refusal in the history of `part`.

        Raises what `change` raises: `ApiError` as it is, OSError as 503.
        """
        given = {name: getattr(body, name) for name in self._names}
        wanted = {name: value for name, value in given.items() if value is not UNSET}
        return await carry_out_order(operations_of(request), actor_of(request), wanted, body.reason, part, change)
