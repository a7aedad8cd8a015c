"""Who asks what: batches of prompts drawn with replacement, before and after the shift."""

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from quality.laboratory.scenario import Common, Scenario
from quality.laboratory.world import Prompts


class Batch(NamedTuple):
    """Requests that come together: the number of the first, and whose prompts they are (rows [n])."""

    start: int
    rows: npt.NDArray[np.intp]


def batches(
    scenario: Scenario, common: Common, prompts: Prompts, size: int, rng: np.random.Generator
) -> Iterator[Batch]:
    """The warm-up and then the scenario's requests, `size` at a time."""
    special = np.flatnonzero(np.isin(prompts.domain, scenario.domains))
    usual = np.setdiff1d(np.arange(len(prompts)), special)
    total = common.warm_up_requests + scenario.requests
    for start in range(0, total, size):
        count = min(size, total - start)
        share = scenario.share_at(start - common.warm_up_requests)
        rows = rng.choice(usual, count)
        if share > 0:
            rows = np.where(rng.random(count) < share, rng.choice(special, count), rows)
        yield Batch(start, rows)


def mix(scenario: Scenario, prompts: Prompts) -> npt.NDArray[np.float64]:
    """The weight of each prompt in the traffic at the end of the scenario; they sum to 1."""
    special = np.isin(prompts.domain, scenario.domains)
    share = scenario.share_at(scenario.requests)
    weights: npt.NDArray[np.float64] = np.where(
        special, share / max(int(special.sum()), 1), (1.0 - share) / int((~special).sum())
    )
    return weights
