"""Which model of a core computes next: deficit round robin on measured step time, deadlines first."""

from collections.abc import Mapping, Sequence


class ModelRoundRobin:
    """Shares a core's time between models with work (Shreedhar and Varghese, "Efficient fair queueing using deficit
    round robin", 1995, with the cost known only afterwards).

    Every model has a credit in seconds. A step is charged to its model; when no model with work is in credit,
    each gets the same number of quanta. So over any period in which two models both have work, their times
    differ by at most a quantum and their longest steps. Among models in credit the earliest deadline
    of a first token goes first, then the one served longest ago: deadlines decide when, never how much.
    """

    # So that steps of no measurable cost take turns as well.
    MIN_CHARGE_SECONDS = 1e-4

    def __init__(self, models: Sequence[str], quantum_seconds: float = 0.02) -> None:
        self._quantum = quantum_seconds
        self._credit = dict.fromkeys(models, 0.0)
        self._last_turn = {model: i - len(models) for i, model in enumerate(models)}
        self._turns = 0

    def order(self, deadlines: Mapping[str, float]) -> list[str]:
        """The models to try, best first. `deadlines`: for each model with work, when a first token is due (or inf)."""
        for model in self._credit.keys() - deadlines.keys():
            # An idle model saves nothing up, but still owes what it overdrew.
            self._credit[model] = min(self._credit[model], 0.0)
        if not deadlines:
            return []
        best = max(self._credit[model] for model in deadlines)
        if best <= 0:
            quanta = int(-best / self._quantum) + 1
            for model in deadlines:
                self._credit[model] += quanta * self._quantum
        return sorted(deadlines, key=lambda m: (self._credit[m] <= 0, deadlines[m], self._last_turn[m]))

    def charge(self, model: str, seconds: float) -> None:
        """`model` took a step of `seconds`."""
        self._credit[model] -= max(seconds, self.MIN_CHARGE_SECONDS)
        self._turns += 1
        self._last_turn[model] = self._turns
