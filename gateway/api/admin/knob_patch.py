"""Shared by the endpoints of live knobs: the body of a PATCH, and the change itself, recorded with its author."""

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Generic, NamedTuple, TypeVar

import msgspec
from litestar.response import Response
from msgspec import UNSET, UnsetType

from gateway.api.access.admin_guard import actor_of
from gateway.api.inference.parsing import read_body
from gateway.errors import ApiError
from gateway.knobs.file import KnobFile
from gateway.protocols.http_request import HttpRequest
from gateway.running import operations_of
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


class PartChange(NamedTuple):
    """The knobs of a part, named as the history names it, before and after a change."""

    part: str
    before: msgspec.Struct
    after: msgspec.Struct


class KnobsWritten(NamedTuple):
    """What changed, and whether the database has it: it applies and is logged even while the database is down."""

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
        return await carry_out_order(request, wanted, body.reason, part, change)


async def order_knobs(
    request: HttpRequest, knobs: KnobFile[Any], wanted: Mapping[str, Any], reason: str
) -> KnobsWritten:
    """Change the knobs of a file to `wanted`, without a body. Raises `ApiError`."""
    part = knobs.part
    return await carry_out_order(request, wanted, reason, part, lambda named: [PartChange(part, *knobs.change(named))])


async def carry_out_order(
    request: HttpRequest,
    wanted: Mapping[str, Any],
    reason: str | None,
    part: str,
    change: Callable[[Mapping[str, Any]], Sequence[PartChange]],
) -> KnobsWritten:
    """Apply `change` to `wanted`, and record that or the refusal in the history of `part`. Raises `ApiError`."""
    actor, knobs = actor_of(request), operations_of(request).core_knobs
    try:
        made = change(wanted)
    except ApiError as error:
        name = error.body.param or ""
        refused = _change(actor, part, name, None, wanted.get(name), reason, str(error))
        await knobs.write_down([refused])
        raise
    except OSError as error:
        raise ApiError(503, f"The knobs cannot be saved: {error}.", code="knobs_unwritable") from error
    changed = [
        _change(actor, one.part, name, getattr(one.before, name), getattr(one.after, name), reason)
        for one in made
        for name in one.after.__struct_fields__
        if getattr(one.before, name) != getattr(one.after, name)
    ]
    return KnobsWritten(changed, await knobs.write_down(changed))


def _change(
    actor: str, part: str, knob: str, old: Any, new: Any, reason: str | None, refused: str | None = None
) -> KnobChange:
    return KnobChange(
        created_at=time.time(),
        actor=actor,
        part=part,
        model=None,
        knob=knob,
        old_value=old,
        new_value=new,
        reason=reason,
        kept=True,
        refused=refused,
    )
