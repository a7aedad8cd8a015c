"""Scaling ahead: the forecast need of the time that a new replica takes to come, in replicas, with a steady hand."""

from functools import cache

import msgspec

from gateway.fleet.capacity import Objectives, Operation, best_operation
from gateway.fleet.errors import PlanError
from gateway.fleet.forecast import Forecaster
from gateway.fleet.replica_profile import ReplicaProfile
from gateway.fleet.scaling import Observation, SlowDown, replicas_for
from gateway.fleet.simulated.scoring import ServiceObjectives
from gateway.fleet.workload import Workload


class PredictiveKnobs(msgspec.Struct, frozen=True, kw_only=True):
    """`busy`: share of its best rate that a replica is given. `quantile`: of the forecast's errors, the reserve.
    `down_window_s`: scale down to no less than was recommended within it. `catch_up_s`: a backlog is gone after it.
    `memory`: of the means of lengths, in requests.
    """

    busy: float = 0.8
    quantile: float = 0.9
    down_window_s: float = 900.0
    catch_up_s: float = 15.0
    memory: float = 2000.0


class PredictiveRule:
    """Asked every `interval_s`; a replica ordered now serves `cold_start_s` later, and the next chance to order is an
    interval away, so the need of all that time is forecast.

    Demand is measured in replicas: seconds of work offered per second. Prompts are counted as they come, answers by the
    mean length of those that ended, because how long an answer becomes is not known before.
    """

    def __init__(
        self,
        profile: ReplicaProfile,
        *,
        interval_s: float,
        cold_start_s: float,
        objectives: ServiceObjectives,
        knobs: PredictiveKnobs | None = None,
    ) -> None:
        self._profile, self._knobs = profile, knobs or PredictiveKnobs()
        self._objectives = objectives
        ahead = replicas_for((cold_start_s + interval_s) / interval_s)
        self._forecaster = Forecaster(interval_s, ahead, self._knobs.quantile)
        self._slow_down = SlowDown(self._knobs.down_window_s)
        self._requests = self._prompt_tokens = self._finished = self._output_tokens = 0.0
        self._best = cache(self._operation)

    @property
    def forecast(self) -> float:
        """Replicas that the coming intervals keep wholly busy, the reserve included."""
        return self._forecaster.need()

    def miss(self) -> None:
        """An interval passed that nobody saw."""
        self._forecaster.observe(None)

    def desired(self, seen: Observation) -> int:
        return self._slow_down.steady(seen.at, replicas_for(self.need(seen) / self._knobs.busy))

    def need(self, seen: Observation) -> float:
        """Replicas that the time until the next order takes effect will keep wholly busy."""
        self._learn_lengths(seen)
        if not self._requests:
            self._forecaster.observe(0.0)
            return 0.0
        prompt = max(1.0, self._prompt_tokens / self._requests)
        output = max(1.0, self._output_tokens / self._finished) if self._finished else prompt
        each = self._best(float(f"{prompt:.2g}"), float(f"{output:.2g}"))
        # Of a request's share of a replica, what its prompt takes follows the tokens that came, the rest their number.
        of_prompts = min(1.0, self._profile.prefill_s(prompt) * each.rate)
        requests = of_prompts * seen.prompt_tokens / prompt + (1 - of_prompts) * seen.requests
        self._forecaster.observe(requests / each.rate / seen.seconds)
        usual = each.rate * each.e2e_s
        waiting = max(0.0, seen.in_flight - seen.replicas * usual)
        return self._forecaster.need() + waiting / each.rate / self._knobs.catch_up_s

    def _learn_lengths(self, seen: Observation) -> None:
        keep = max(0.0, 1 - seen.requests / self._knobs.memory)
        self._requests = keep * self._requests + seen.requests
        self._prompt_tokens = keep * self._prompt_tokens + seen.prompt_tokens
        keep = max(0.0, 1 - seen.finished / self._knobs.memory)
        self._finished = keep * self._finished + seen.finished
        self._output_tokens = keep * self._output_tokens + seen.output_tokens

    def _operation(self, prompt: float, output: float) -> Operation:
        """A replica's best within its objectives; without them where even an idle one misses them."""
        load = Workload(rate=1.0, prompt_tokens=prompt, output_tokens=output)
        try:
            return best_operation(self._profile, load, self._objectives.for_lengths(self._profile, prompt))[0]
        except PlanError:
            return best_operation(self._profile, load, Objectives())[0]
