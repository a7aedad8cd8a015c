"""`/v1/admin/routing`: the live knobs of routing, and which versions of the classifier serve."""

import time
from typing import Any

import msgspec
from litestar import get, patch
from litestar.response import Response
from msgspec import UNSET, UnsetType

from gateway.api.generating import read_body
from gateway.api.guard import OPERATOR, actor_of
from gateway.api.operations import describe
from gateway.classifier_in_force import ClassifierInForce
from gateway.errors import ApiError
from gateway.parts import HttpRequest, Parts, parts_of
from gateway.routing_knobs import KNOB_NAMES, RoutingKnobs, knob_schemas
from quality.knob_log import KnobChange

PART = "routing"


class ClassifierShown(msgspec.Struct, frozen=True, kw_only=True):
    """`current` decides, but for the `share` of the requests that `canary` does; `kind`: measured, or a prior.

    `novelty_threshold` and `safe_tier` are the current version's own. `refusal`: why what the registry names last is
    not in force; empty if it is.
    """

    current: str | None = None
    kind: str | None = None
    parent: str | None = None
    canary: str | None = None
    share: float = 0.0
    novelty_threshold: float | None = None
    safe_tier: int | None = None
    refusal: str = ""


class RoutingShown(msgspec.Struct, frozen=True, kw_only=True):
    """`knobs` in force and what each of them is; `conversations` remembered by this process."""

    knobs: RoutingKnobs
    schemas: dict[str, dict[str, Any]]
    classifier: ClassifierShown
    conversations: int


class RoutingChanged(msgspec.Struct, frozen=True, kw_only=True):
    """What changed; `recorded` is False while the database is away, and the change in force nevertheless."""

    knobs: RoutingKnobs
    changed: list[KnobChange]
    recorded: bool


_fields: list[Any] = [(name, Any | UnsetType, UNSET) for name in KNOB_NAMES]
_Patch = msgspec.defstruct(
    "RoutingPatch", [*_fields, ("reason", str | None, None)], kw_only=True, forbid_unknown_fields=True
)
_decoder = msgspec.json.Decoder(_Patch)


@get("/routing", operation_class=describe(None, RoutingShown), summary="Show the knobs of routing and who serves")
async def show_routing(request: HttpRequest) -> Response[Any]:
    """The knobs in force, the classifier's versions, and why a version is refused if one is."""
    parts = parts_of(request)
    shown = RoutingShown(
        knobs=parts.routing.knobs.in_force,
        schemas=knob_schemas(),
        classifier=_classifier(parts),
        conversations=len(parts.routing.conversations),
    )
    return Response(shown, media_type="application/json")


@patch(
    "/routing",
    opt=OPERATOR,
    operation_class=describe(RoutingKnobs, RoutingChanged),
    summary="Change the knobs of routing",
)
async def change_routing(request: HttpRequest) -> Response[Any]:
    """All named knobs change at once, or none does; null is a knob's default. They outlast restarts, and the other
    gateway processes of this data folder follow within `AIO_ARTEFACT_POLL_SECONDS`."""
    body: Any = await read_body(request, _decoder)
    parts = parts_of(request)
    given = {name: getattr(body, name) for name in KNOB_NAMES}
    wanted = {name: value for name, value in given.items() if value is not UNSET}
    actor = actor_of(request)
    try:
        before, after = parts.routing.knobs.change(wanted)
    except ApiError as error:
        name = error.body.param or ""
        refused = _change(actor, name, None, wanted.get(name), body.reason, str(error))
        await parts.core_knobs.write_down([refused])
        raise
    except OSError as error:
        raise ApiError(503, f"The knobs cannot be written down: {error}.", code="knobs_unwritable") from error
    changed = [
        _change(actor, name, getattr(before, name), getattr(after, name), body.reason)
        for name in wanted
        if getattr(before, name) != getattr(after, name)
    ]
    recorded = await parts.core_knobs.write_down(changed)
    return Response(RoutingChanged(knobs=after, changed=changed, recorded=recorded), media_type="application/json")


def _classifier(parts: Parts) -> ClassifierShown:
    in_force = parts.routing.classifier
    if not isinstance(in_force, ClassifierInForce):
        return ClassifierShown()
    serving = in_force.serving_or_none
    if serving is None:
        return ClassifierShown(refusal=in_force.refusal)
    model, fallback = serving.current.model, serving.current.fallback()
    return ClassifierShown(
        current=model.version,
        kind=model.kind,
        parent=model.manifest.parent,
        canary=None if serving.canary is None else serving.canary.version,
        share=serving.share,
        novelty_threshold=fallback.threshold,
        safe_tier=fallback.tier,
        refusal=in_force.refusal,
    )


def _change(actor: str, knob: str, old: Any, new: Any, reason: str | None, refused: str | None = None) -> KnobChange:
    return KnobChange(
        created_at=time.time(),
        actor=actor,
        part=PART,
        model=None,
        knob=knob,
        old_value=old,
        new_value=new,
        reason=reason,
        kept=True,
        refused=refused,
    )
