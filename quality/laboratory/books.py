"""The trailing day's books of a simulated deployment, as the sampling rules want to see them."""

from collections import deque
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from quality.sampling import Purpose, Spending


class Books:
    """What was served and verified in the last `window` batches; amounts in the scenario's units."""

    def __init__(self, window: int, tiers: int) -> None:
        self._batches: deque[npt.NDArray[np.float64]] = deque()
        self._window, self._tiers = window, tiers
        # Per batch: serving cost, answers by tier, cost and number of verifications, cost and number of probes.
        self._sums = np.zeros(tiers + 5)

    def open_batch(self, served: npt.NDArray[np.int_], prices: Sequence[float]) -> None:
        """Begin a batch in which each tier answered `served` [tiers] requests."""
        row = np.zeros(self._tiers + 5)
        row[0], row[1 : self._tiers + 1] = served @ np.asarray(prices), served
        self._batches.append(row)
        self._sums += row
        if len(self._batches) > self._window:
            self._sums -= self._batches.popleft()

    def spend(self, purpose: Purpose, amount: float) -> None:
        """Book a verification on the newest batch."""
        column = -2 if purpose == "probe" else -4
        for row in (self._batches[-1], self._sums):
            row[column] += amount
            row[column + 1] += 1

    def spending(self) -> Spending:
        """The window's sums."""
        serving, *answered = self._sums[: self._tiers + 1].tolist()
        committed, verifications, probe, probes = self._sums[-4:].tolist()
        return Spending(
            serving_usd=serving,
            answered={tier: round(n) for tier, n in enumerate(answered, 1) if n > 0.5},
            committed_usd=max(committed, 0.0),
            verifications=round(verifications),
            probe_usd=max(probe, 0.0),
            probes=round(probes),
        )

    @property
    def share(self) -> float:
        """Verification and probes over serving, in the window."""
        return float((self._sums[-4] + self._sums[-2]) / self._sums[0])
