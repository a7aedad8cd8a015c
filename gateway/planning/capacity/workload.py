"""What a fleet is planned for: a rate of requests, their lengths, and their variation."""

import math
from collections.abc import Sequence
from statistics import fmean, pvariance

import msgspec

from gateway.planning.capacity.errors import PlanError
from gateway.planning.capacity.trace_file import Arrival

SECONDS_PER_DAY = 86_400


class Workload(msgspec.Struct, frozen=True, kw_only=True):
    """Requests per second and mean tokens. `cached_share`: share of a prompt found in the prefix cache.

    `prompt_cv`: coefficient of variation of the prompts' lengths; `arrival_cv`: of the gaps, 1 for a Poisson stream.
    Raises `PlanError` for impossible values.
    """

    rate: float
    prompt_tokens: float
    output_tokens: float
    cached_share: float = 0.0
    prompt_cv: float = 0.0
    arrival_cv: float = 1.0

    def __post_init__(self) -> None:
        if not (self.rate > 0 and math.isfinite(self.rate)):
            raise PlanError(f"the rate is {self.rate}; give requests per second above 0")
        if self.prompt_tokens < 1 or self.output_tokens < 1:
            raise PlanError(
                f"{self.prompt_tokens} tokens in and {self.output_tokens} out: a request has at least one of each"
            )
        if not 0 <= self.cached_share < 1:
            raise PlanError(f"the cached share is {self.cached_share}; it is at least 0 and below 1")

    @property
    def context_tokens(self) -> float:
        """Tokens that a decode step attends to on average."""
        return self.prompt_tokens + self.output_tokens / 2

    def at(self, rate: float) -> "Workload":
        """The same requests at another rate."""
        return msgspec.structs.replace(self, rate=rate)


def per_second(requests_per_day: float) -> float:
    """Convert requests per day to a mean rate: 50 million a day are 579 a second."""
    return requests_per_day / SECONDS_PER_DAY


def trace_workload(arrivals: Sequence[Arrival], quantile: float = 0.99, window_s: float = 10.0) -> Workload:
    """Return a trace's lengths, at the rate that its windows of `window_s` exceed in only 1 - `quantile` of the time.

    Variation within a window is assumed Poisson: bursts are part of the rate. Raises `PlanError` for fewer than two
    requests.
    """
    if len(arrivals) < 2:
        raise PlanError(f"a trace of {len(arrivals)} requests has no rate; give a trace of at least two")
    prompts = [arrival.prompt_tokens for arrival in arrivals]
    counts = sorted(window_counts(arrivals, window_s))
    busy = counts[min(len(counts) - 1, math.ceil(quantile * len(counts)) - 1)]
    mean = fmean(prompts)
    return Workload(
        rate=max(busy, 1) / window_s,
        prompt_tokens=max(mean, 1.0),
        output_tokens=fmean(arrival.output_tokens for arrival in arrivals),
        prompt_cv=math.sqrt(pvariance(prompts)) / max(mean, 1.0),
    )


def window_counts(arrivals: Sequence[Arrival], window_s: float) -> list[int]:
    """Count requests in each window from the trace's start to its last request."""
    counts = [0] * (int(arrivals[-1].at // window_s) + 1)
    for arrival in arrivals:
        counts[int(arrival.at // window_s)] += 1
    return counts
