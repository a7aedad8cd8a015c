"""`/admin/api/learning`: what was learned for each key, and how well the newest labels were predicted; `GET
/admin/api/worth`: does routing pay here, against every fixed tier and the best mix of them, in numbers and words?
"""

from collections.abc import Iterator
from typing import Any

from litestar import get
from litestar.response import Response

from gateway.admin.resource import json_or_csv
from gateway.admin.routing_reports import active_version, rule_at
from gateway.base.stores.database import reached
from gateway.edge.asgi import HttpRequest
from gateway.edge.openapi import describe
from gateway.inference.service import Serving
from gateway.operations.running import operations_of
from gateway.operations.worth import WorthShown, label_source, worth_shown
from quality.learning.learning import LabelSource, Learned, Learning


def learning_source(serving: Serving) -> LabelSource:
    """Return the source for the serving version at the active target. Raises `ApiError` 409 without one."""
    target = rule_at(serving, serving.routing.active_target).quality_target
    version, catalog = active_version(serving), serving.routing.served.catalog
    return label_source(version.model, catalog, serving.settings.data_path, target)


# A row for each point of a key's learning curve, or for the key alone without one.
_FIGURES = ("error", "no_worse", "curve_saving", "utility", "of_oracle")
_COLUMNS = (
    *("key_id", "name", "labels", "requests", "saving", "expected_no_worse", "at_labels", "tested", "rate_error"),
    *(f"{figure}{end}" for figure in _FIGURES for end in ("", "_low", "_high")),
)


@get("/learning", operation_class=describe(None, Learning), summary="Show what was learned for each key")
async def show_learning(request: HttpRequest) -> Response[Any]:
    """Labels, class mix, saving, expected quality and the learning curve, for all keys together and for each. 409
    without a classifier. `format`: json, or csv for the points of the curves."""
    operations = operations_of(request)
    shown = await reached(operations.learning.of(learning_source(operations.serving)))
    rows = (row for one in (shown.together, *shown.keys) for row in _rows(one))
    return json_or_csv(request, "learning", shown, _COLUMNS, rows)


def _rows(one: Learned) -> Iterator[dict[str, Any]]:
    seen, curve = one.traffic, one.curve
    row: dict[str, Any] = {"key_id": one.key_id, "name": one.name, "labels": one.labels, "requests": 0}
    if seen is not None:
        row |= {"requests": seen.requests, "saving": seen.saving, "expected_no_worse": seen.p_ok}
    if curve is None:
        yield row
        return
    for point in curve.points:
        known = (point.error, point.no_worse, point.saving, point.utility, point.of_oracle)
        columns = {"at_labels": point.labels, "tested": curve.tested, "rate_error": curve.rate_error}
        for name, figure in zip(_FIGURES, known, strict=True):
            if figure is not None:
                columns |= {name: figure.value, f"{name}_low": figure.low, f"{name}_high": figure.high}
        yield row | columns


@get("/worth", operation_class=describe(None, WorthShown), summary="Show whether routing pays")
async def show_worth(request: HttpRequest) -> Response[Any]:
    """By the requests that every tier answered, in the catalogue and for each key with enough of them; `sentence` says
    it in words. Bounds hold however often one looks. Query: `format`, json, or csv for a row per verdict."""
    shown = await worth_shown(operations_of(request))
    return json_or_csv(
        request, "worth", shown, ("name", "verdict", "probes", "missing", "sentence"), _worth_rows(shown)
    )


def _worth_rows(shown: WorthShown) -> Iterator[dict[str, Any]]:
    for one in (shown.catalogue, *shown.keys):
        worth = one.worth
        verdict = "not_known_yet" if worth is None else worth.verdict
        counts = {"probes": 0, "missing": None} if worth is None else {"probes": worth.probes, "missing": worth.missing}
        yield {"name": one.name, "verdict": verdict, "sentence": one.sentence, **counts}


LEARNING_ENDPOINTS = (show_learning, show_worth)
