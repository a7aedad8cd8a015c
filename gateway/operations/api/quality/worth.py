"""`GET /admin/api/worth`: does routing pay here, against every fixed tier and the best mix of them?"""

from collections.abc import Iterator
from typing import Any

from litestar import get
from litestar.response import Response

from gateway.edge.asgi import HttpRequest
from gateway.edge.openapi import describe
from gateway.operations.csv_export import as_asked
from gateway.operations.running import operations_of
from gateway.operations.usecases.worth import WorthShown, worth_shown


@get("/worth", operation_class=describe(None, WorthShown), summary="Show whether routing pays")
async def show_worth(request: HttpRequest) -> Response[Any]:
    """By the requests that every tier answered, in the catalogue and for each key with enough of them; `sentence` says
    it in words. Bounds hold however often one looks. Query: `format`, json, or csv for a row per verdict."""
    shown = await worth_shown(operations_of(request))
    return as_asked(request, "worth", shown, ("name", "verdict", "probes", "missing", "sentence"), _rows(shown))


def _rows(shown: WorthShown) -> Iterator[dict[str, Any]]:
    for one in (shown.catalogue, *shown.keys):
        worth = one.worth
        verdict = "not_known_yet" if worth is None else worth.verdict
        counts = {"probes": 0, "missing": None} if worth is None else {"probes": worth.probes, "missing": worth.missing}
        yield {"name": one.name, "verdict": verdict, "sentence": one.sentence, **counts}
