"""The benchmark of the fast path answers real prompts by real tiers, with the path and without."""

import pytest

from benchmarks.gateway.edge import bench_edge
from gateway.base.settings import Settings

pytestmark = pytest.mark.processes


async def test_both_ways_are_measured_and_only_one_is_short_of_the_classifier(settings: Settings) -> None:
    seen: list[float] = []

    rows = await bench_edge(
        settings, requests=2, prompt_tokens=12, new_tokens=4, progress=lambda _, share: seen.append(share)
    )

    edge, ordinary = rows
    assert [(row.path, row.requests) for row in rows] == [("edge", 2), ("ordinary", 2)]
    # A machine under load may take so long that another tier answers a request, too.
    assert 1 in edge.tiers
    assert 0 < edge.decided.p50 <= edge.first_token.p50
    assert 0 < ordinary.decided.p50 <= ordinary.first_token.p50
    assert seen[-1] == 1.0
