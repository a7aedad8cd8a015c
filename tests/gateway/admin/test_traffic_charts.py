"""Charts of traffic show rates, and none of a bucket that is only seconds old."""

import msgspec
import pytest

from gateway.admin.traffic import charts_of
from quality.estimates.traffic import Bucket, Traffic

BUCKET = Bucket(
    at=0.0, answered={1: 120}, failed=6, refused=30, verified=0, worse=0, cost_usd=0.5, strongest_usd=2.0, ttft_p50=0.1,
    ttft_p95=0.2,
)  # fmt: skip


@pytest.mark.parametrize(("passed", "last"), [(1.0, None), (29.0, None), (30.0, 240.0), (60.0, 120.0)])
def test_the_last_bucket_has_a_rate_from_its_half_on(passed: float, last: float | None) -> None:
    buckets = [BUCKET, msgspec.structs.replace(BUCKET, at=60.0)]
    traffic = Traffic(
        span="1h", until=60.0 + passed, seconds=60.0, buckets=buckets, together=BUCKET, causes=[], changes=[]
    )  # fmt: skip

    requests, failures, refusals, _, costs = charts_of(traffic, {1: "small", 2: "large"})

    assert [(line.name, list(line.values)) for line in requests.series] == [
        ("small", [120.0, last]), ("large", [0.0, None if last is None else 0.0])
    ]  # fmt: skip
    assert [line.values[0] for chart in (failures, refusals) for line in chart.series] == [6.0, 30.0]
    assert [line.values[0] for line in costs.series] == [30.0, 120.0]
