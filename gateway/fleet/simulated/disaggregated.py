"""Prefill and decode on replicas of their own (SPEC BS-08), against replicas that do both, in simulated time.

A prompt is computed by one pool, which also draws the first token; its keys and values then travel to the other pool,
which writes the rest. The pools share nothing, so each can be sized, and scaled, alone.
"""

import math
from collections.abc import Callable, Sequence
from functools import partial

import msgspec

from gateway.fleet.replica_profile import ReplicaProfile
from gateway.fleet.scaling import FixedRule, ScalingRule
from gateway.fleet.simulated.scoring import ServiceObjectives
from gateway.fleet.simulated.simulated_replica import SimulatedRequest
from gateway.fleet.simulated.simulation import FleetRun, FleetSettings, FleetSimulation
from inference_core.bench.trace_file import Arrival
from inference_core.kv_cache.layout import kv_bytes_per_token
from inference_core.loaders.known_shapes import shape

_HALVINGS = 7


class Transfer(msgspec.Struct, frozen=True, kw_only=True):
    """Of keys and values between the pools: bytes per token, bytes per second for one request, seconds to begin."""

    bytes_per_token: float
    bytes_per_s: float
    latency_s: float = 0.001

    def seconds(self, tokens: int) -> float:
        """For a whole prompt; overlapping it with the prefill is not counted on."""
        return self.latency_s + tokens * self.bytes_per_token / self.bytes_per_s


class Split(msgspec.Struct, frozen=True, kw_only=True):
    """Of a number of replicas the best division, and the most that both ways carry: times the trace's own rate."""

    replicas: int
    prefill_replicas: int
    together: float
    apart: float

    @property
    def gain(self) -> float:
        """Of apart over together; below 1 it costs more than it brings."""
        return self.apart / self.together if self.together else math.inf


def run_apart(
    requests: Sequence[SimulatedRequest],
    profile: ReplicaProfile,
    transfer: Transfer,
    prefill: tuple[FleetSettings, ScalingRule],
    decode: tuple[FleetSettings, ScalingRule],
) -> tuple[list[SimulatedRequest], FleetRun, FleetRun]:
    """The requests with the times that both pools gave them, and what each pool did under its own rule."""
    prompts = [_with_answer(request, output_tokens=1) for request in requests]
    first = FleetSimulation(profile, *prefill).run(prompts)
    arrived = sorted(
        (
            SimulatedRequest(
                number=prompt.number,
                at=(prompt.first_token_at or 0.0) + transfer.seconds(whole.prompt_tokens),
                prompt_tokens=whole.prompt_tokens,
                output_tokens=whole.output_tokens - 1,
                cached_tokens=whole.prompt_tokens - 1,
            )
            for prompt, whole in zip(prompts, requests, strict=True)
            if whole.output_tokens > 1
        ),
        key=lambda request: request.at,
    )
    second = FleetSimulation(profile, *decode).run(arrived)
    ends = {request.number: request.finished_at for request in arrived}
    for prompt, whole in zip(prompts, requests, strict=True):
        whole.first_token_at = prompt.first_token_at
        whole.finished_at = ends.get(whole.number, prompt.first_token_at)
    return list(requests), first, second


def _with_answer(request: SimulatedRequest, *, output_tokens: int) -> SimulatedRequest:
    """The same request with another answer."""
    return SimulatedRequest(request.number, request.at, request.prompt_tokens, output_tokens, request.cached_tokens)


def best_split(
    make: Callable[[float], list[SimulatedRequest]],
    profile: ReplicaProfile,
    transfer: Transfer,
    objectives: ServiceObjectives,
    *,
    replicas: int,
    attainment: float = 0.9,
) -> Split:
    """How much faster than recorded the trace may come, with `attainment` of it served well, together and apart.

    `make(speed)`: fresh requests, `speed` times as many a second.
    """

    def share_met(requests: Sequence[SimulatedRequest]) -> float:
        return sum(objectives.met(request, profile) for request in requests) / len(requests)

    def together(speed: float) -> float:
        requests = make(speed)
        FleetSimulation(profile, _fixed(replicas), FixedRule(replicas)).run(requests)
        return share_met(requests)

    def apart(speed: float, prefill: int) -> float:
        pools = [(_fixed(number), FixedRule(number)) for number in (prefill, replicas - prefill)]
        return share_met(run_apart(make(speed), profile, transfer, *pools)[0])

    splits = [(_most(partial(apart, prefill=number), attainment), number) for number in range(1, replicas)]
    best, prefill = max(splits)
    return Split(replicas=replicas, prefill_replicas=prefill, together=_most(together, attainment), apart=best)


def _fixed(replicas: int) -> FleetSettings:
    return FleetSettings(cold_start_s=0.0, least=replicas, most=replicas)


def _most(met: Callable[[float], float], attainment: float) -> float:
    """The largest speed at which `met` reaches `attainment`, within a factor of 2 ** (10 / 2 ** `_HALVINGS`)."""
    low, high = 1 / 32, 32.0
    if met(low) < attainment:
        return 0.0
    for _ in range(_HALVINGS):
        middle = math.sqrt(low * high)
        if met(middle) >= attainment:
            low = middle
        else:
            high = middle
    return low


def requests_at(arrivals: Sequence[Arrival], speed: float) -> list[SimulatedRequest]:
    """A trace's requests, `speed` times as many a second, nothing cached."""
    return [
        SimulatedRequest(number, each.at / speed, max(1, each.prompt_tokens), each.output_tokens)
        for number, each in enumerate(arrivals)
    ]


def kv_bytes_of(profile: ReplicaProfile) -> int:
    """Bytes of keys and values per token of a profile's model, 16 bits each."""
    config = shape(profile.model)
    return kv_bytes_per_token(
        num_layers=config.num_layers, num_kv_heads=config.num_kv_heads, head_dim=config.head_dim, dtype="bfloat16"
    )
