"""Separate prefill and decode replicas (SPEC BS-08) in simulated time.

One pool computes a prompt and samples its first token; the keys and values then move to the other pool, which generates
the rest. The pools share nothing, so each can be sized and scaled alone.
"""

from collections.abc import Sequence

import msgspec

from gateway.planning.capacity.replica_profile import ReplicaProfile
from gateway.planning.capacity.workload import Arrival
from gateway.planning.scaling.predictive import FleetSettings
from inference_core.kv_cache.layout import kv_bytes_per_token
from inference_core.loaders.decoder_tensors import shape
from tests.gateway.planning.scaling.simulated_fleet import FleetRun, FleetSimulation, ScalingRule, SimulatedRequest


class Transfer(msgspec.Struct, frozen=True, kw_only=True):
    """Transfer of keys and values between the pools: bytes per token, bytes per second for one request, set-up
    seconds."""

    bytes_per_token: float
    bytes_per_s: float
    latency_s: float = 0.001

    def seconds(self, tokens: int) -> float:
        """Seconds for a whole prompt, without overlap with the prefill."""
        return self.latency_s + tokens * self.bytes_per_token / self.bytes_per_s


def run_apart(
    requests: Sequence[SimulatedRequest],
    profile: ReplicaProfile,
    transfer: Transfer,
    prefill: tuple[FleetSettings, ScalingRule],
    decode: tuple[FleetSettings, ScalingRule],
) -> tuple[list[SimulatedRequest], FleetRun, FleetRun]:
    """Return the requests with the times of both pools, and what each pool did under its own rule."""
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
    """Return the same request with another answer length."""
    return SimulatedRequest(request.number, request.at, request.prompt_tokens, output_tokens, request.cached_tokens)


def requests_of(arrivals: Sequence[Arrival]) -> list[SimulatedRequest]:
    """Return a trace's requests, nothing cached."""
    return [
        SimulatedRequest(number, each.at, max(1, each.prompt_tokens), each.output_tokens)
        for number, each in enumerate(arrivals)
    ]


def kv_bytes_of(profile: ReplicaProfile) -> int:
    """Bytes of keys and values per token of a profile's model, 16 bits each."""
    config = shape(profile.model)
    return kv_bytes_per_token(
        num_layers=config.num_layers, num_kv_heads=config.num_kv_heads, head_dim=config.head_dim, dtype="bfloat16"
    )
