"""`/v1/admin/knobs/routing`: the live knobs of routing, and the serving versions of the classifier."""

from typing import Any

import msgspec
from litestar import get
from litestar.response import Response

from gateway.base.knobs import knob_schemas
from gateway.edge.asgi import HttpRequest
from gateway.edge.openapi import describe
from gateway.inference.routing.classifier_versions import ActiveClassifier
from gateway.inference.routing.knobs import EARLIER_NAMES, RoutingKnobs
from gateway.inference.service import Serving, serving_of
from gateway.operations.api.knob_patch import FileKnobs, change_handler, paths_of


class ClassifierShown(msgspec.Struct, frozen=True, kw_only=True):
    """`current` decides, except for the `share` of the requests that `canary` does; `kind`: measured, or a prior.

    `refusal`: why the registry's latest version is not active; empty if it is.
    """

    current: str | None = None
    kind: str | None = None
    parent: str | None = None
    canary: str | None = None
    share: float = 0.0
    refusal: str = ""


class RoutingShown(FileKnobs[RoutingKnobs], frozen=True, kw_only=True):
    """Also shows which versions serve, and how many `conversations` this process remembers."""

    classifier: ClassifierShown
    conversations: int


@get(
    paths_of("routing"),
    operation_class=describe(None, RoutingShown),
    summary="Show the knobs of routing and the serving versions",
)
async def show_routing(request: HttpRequest) -> Response[Any]:
    """The current knobs, the classifier's versions, and why a version was rejected, if one was."""
    serving = serving_of(request)
    shown = RoutingShown(
        knobs=serving.routing.knobs.active,
        schemas=knob_schemas(RoutingKnobs),
        classifier=_classifier(serving),
        conversations=len(serving.routing.conversations),
    )
    return Response(shown, media_type="application/json")


change_routing = change_handler(
    "routing", "routing", RoutingKnobs, lambda request: serving_of(request).routing.knobs, EARLIER_NAMES
)


def _classifier(serving: Serving) -> ClassifierShown:
    active = serving.routing.classifier
    if not isinstance(active, ActiveClassifier):
        return ClassifierShown()
    versions = active.serving_or_none
    if versions is None:
        return ClassifierShown(refusal=active.refusal)
    model = versions.current.model
    return ClassifierShown(
        current=model.version,
        kind=versions.current.kind,
        parent=model.manifest.parent,
        canary=None if versions.canary is None else versions.canary.version,
        share=versions.share,
        refusal=active.refusal,
    )
