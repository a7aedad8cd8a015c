"""Predictive scaling: the forecast need over a new replica's start-up time, in replicas, with slow scale-down."""

from functools import cache
from typing import Annotated

import msgspec
from msgspec import Meta

from gateway.planning.capacity.capacity import Objectives, Operation, best_operation
from gateway.planning.capacity.errors import PlanError
from gateway.planning.capacity.replica_profile import ReplicaProfile
from gateway.planning.capacity.workload import Workload
from gateway.planning.scaling.forecast import Forecaster
from gateway.planning.scaling.scaling import Observation, ServiceObjectives, SlowDown, replicas_for


class PredictiveKnobs(msgspec.Struct, frozen=True, kw_only=True):
    """Knobs of predictive scaling."""

    busy: Annotated[float, Meta(description="Share of its best rate that a replica is given.")] = 0.8
    quantile: Annotated[float, Meta(description="Quantile of the forecast's errors that is kept in reserve.")] = 0.9
    down_window_s: Annotated[
        float, Meta(description="Scale down to no less than was recommended within this time.")
    ] = 900.0
    catch_up_s: Annotated[float, Meta(description="Time in which to clear a backlog.")] = 15.0
    memory: Annotated[float, Meta(description="Requests over which mean lengths are taken.")] = 2000.0


class PredictiveRule:
    """Asked every `interval_s`. A replica ordered now serves `cold_start_s` later, and the next order is possible after
    another interval, so the need over all of that time is forecast.

    Demand is measured in replicas: seconds of work offered per second. Prompts count when they arrive, answers by the
    mean length of ended ones, because an answer's length is unknown in advance.
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
        """Return how many replicas the coming intervals keep fully busy, including the reserve."""
        return self._forecaster.need()

    def miss(self) -> None:
        """Record an unobserved interval."""
        self._forecaster.observe(None)

    def desired(self, seen: Observation) -> int:
        return self._slow_down.steady(seen.at, replicas_for(self.need(seen) / self._knobs.busy))

    def need(self, seen: Observation) -> float:
        """Return how many replicas the time until the next order takes effect keeps fully busy."""
        self._learn_lengths(seen)
        if not self._requests:
            self._forecaster.observe(0.0)
            return 0.0
        prompt = max(1.0, self._prompt_tokens / self._requests)
        output = max(1.0, self._output_tokens / self._finished) if self._finished else prompt
        each = self._best(float(f"{prompt:.2g}"), float(f"{output:.2g}"))
        # The prompt's part of a request's cost scales with the arrived tokens, the rest with the number of requests.
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
        """A replica's best operation within its objectives; without them if even an idle one misses them."""
        load = Workload(rate=1.0, prompt_tokens=prompt, output_tokens=output)
        try:
            return best_operation(self._profile, load, self._objectives.for_lengths(self._profile, prompt))[0]
        except PlanError:
            return best_operation(self._profile, load, Objectives())[0]
