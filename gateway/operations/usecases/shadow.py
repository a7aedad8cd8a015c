"""What routing would have saved while it was observed: the report that a query asks for."""

import time
from collections.abc import Mapping

from gateway.base.numbers import epoch_seconds, whole_number
from gateway.base.stores.database import reached
from gateway.inference.service import Serving
from gateway.operations.quality_loop.quality_loop import sampling_settings
from quality.shadow.figures import ShadowReport
from quality.shadow.observed import NEWEST
from quality.shadow.report import budget_now, shadow_report

# More would take longer than a page may: aio report shadow has no such bound.
_MOST = 20_000


def epoch_of(query: Mapping[str, str], name: str, usual: float) -> float:
    """Return a time in the query, in epoch seconds; `usual` without it. Raises `ApiError` 400."""
    given = query.get(name)
    return usual if given is None else epoch_seconds(given, name)


async def shadow_shown(serving: Serving, query: Mapping[str, str]) -> ShadowReport:
    """Return the report that `query` asks for with `since` and `last`. Raises `ApiError` 400 and 503."""
    since = epoch_of(query, "since", 0.0)
    last = whole_number(query.get("last", str(NEWEST)), "last", 1, _MOST)
    sampling = sampling_settings(serving.settings, serving.routing.served.catalog)
    budget = await reached(budget_now(serving.database, sampling, time.time()))
    return await reached(shadow_report(serving.database, budget, since, last))
