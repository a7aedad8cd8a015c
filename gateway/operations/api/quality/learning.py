"""`/admin/api/learning`: what was learned for each key, and how well the newest labels were predicted."""

from collections.abc import Iterator
from typing import Any

import msgspec
from litestar import get
from litestar.response import Response

from gateway.base.stores.database import reached
from gateway.edge.asgi import HttpRequest
from gateway.edge.openapi import describe
from gateway.operations.csv_export import as_asked
from gateway.operations.running import operations_of
from gateway.operations.usecases.learning import learning_source
from quality.learning.learning import Learned, Learning, Measured


class LearningRow(msgspec.Struct, frozen=True, kw_only=True):
    """A point of a key's learning curve, or the key alone without one; figures as in the curve."""

    key_id: str | None
    name: str
    labels: int
    requests: int
    saving: float | None
    expected_no_worse: float | None
    at_labels: int | None = None
    tested: int | None = None
    rate_error: float | None = None
    error: float | None = None
    error_low: float | None = None
    error_high: float | None = None
    no_worse: float | None = None
    no_worse_low: float | None = None
    no_worse_high: float | None = None
    curve_saving: float | None = None
    curve_saving_low: float | None = None
    curve_saving_high: float | None = None
    utility: float | None = None
    utility_low: float | None = None
    utility_high: float | None = None
    of_oracle: float | None = None
    of_oracle_low: float | None = None
    of_oracle_high: float | None = None


@get("/learning", operation_class=describe(None, Learning), summary="Show what was learned for each key")
async def show_learning(request: HttpRequest) -> Response[Any]:
    """Labels, class mix, saving, expected quality and the learning curve, for all keys together and for each. 409
    without a classifier. `format`: json, or csv for the points of the curves."""
    operations = operations_of(request)
    shown = await reached(operations.learning.of(learning_source(operations.serving)))
    rows = (row for one in (shown.together, *shown.keys) for row in _rows(one))
    return as_asked(request, "learning", shown, LearningRow.__struct_fields__, rows)


def _rows(one: Learned) -> Iterator[LearningRow]:
    seen, curve = one.traffic, one.curve
    row = LearningRow(
        key_id=one.key_id,
        name=one.name,
        labels=one.labels,
        requests=0 if seen is None else seen.requests,
        saving=None if seen is None else seen.saving,
        expected_no_worse=None if seen is None else seen.p_ok,
    )
    if curve is None:
        yield row
        return
    for point in curve.points:
        figures = {"error": point.error, "no_worse": point.no_worse, "curve_saving": point.saving}
        figures |= {"utility": point.utility, "of_oracle": point.of_oracle}
        columns = {name: value for figure, known in figures.items() for name, value in _columns(figure, known)}
        at = {"at_labels": point.labels, "tested": curve.tested, "rate_error": curve.rate_error}
        yield msgspec.structs.replace(row, **at, **columns)


def _columns(name: str, measured: Measured | None) -> list[tuple[str, float]]:
    if measured is None:
        return []
    return [(name, measured.value), (f"{name}_low", measured.low), (f"{name}_high", measured.high)]
