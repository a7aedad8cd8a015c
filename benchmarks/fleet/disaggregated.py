"""Separate prefill and decode replicas (SPEC BS-08) against combined ones, in simulated time.

One pool computes a prompt and samples its first token; the keys and values then move to the other pool, which generates
the rest. The pools share nothing, so each can be sized and scaled alone.
"""

import math
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

import click
import msgspec

from benchmarks.fleet.rules import FixedRule, ScalingRule
from benchmarks.fleet.scoring import was_served_well
from benchmarks.fleet.simulated_replica import SimulatedRequest
from benchmarks.fleet.simulation import FleetRun, FleetSimulation
from gateway.operations.cli.options import echo_json, json_option, table
from gateway.planning.capacity.replica_profile import ReplicaProfile, replica_profile
from gateway.planning.capacity.workload import Arrival, read_trace
from gateway.planning.scaling.scaling import FleetSettings, ServiceObjectives
from inference_core.kv_cache.layout import kv_bytes_per_token
from inference_core.loaders.decoder_tensors import shape

_HALVINGS = 7


class Transfer(msgspec.Struct, frozen=True, kw_only=True):
    """Transfer of keys and values between the pools: bytes per token, bytes per second for one request, set-up
    seconds."""

    bytes_per_token: float
    bytes_per_s: float
    latency_s: float = 0.001

    def seconds(self, tokens: int) -> float:
        """Seconds for a whole prompt, without overlap with the prefill."""
        return self.latency_s + tokens * self.bytes_per_token / self.bytes_per_s


class Split(msgspec.Struct, frozen=True, kw_only=True):
    """The best division of a number of replicas, and the highest multiples of the trace's rate for both ways."""

    replicas: int
    prefill_replicas: int
    together: float
    apart: float

    @property
    def gain(self) -> float:
        """Gain of split over combined pools; below 1 splitting loses."""
        return self.apart / self.together if self.together else math.inf


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


def best_split(
    make: Callable[[float], list[SimulatedRequest]],
    profile: ReplicaProfile,
    transfer: Transfer,
    objectives: ServiceObjectives,
    *,
    replicas: int,
    attainment: float = 0.9,
) -> Split:
    """Find how much faster than recorded the trace may run with `attainment` of it served well, combined and split.

    `make(speed)`: fresh requests, `speed` times as many per second.
    """

    def share_met(requests: Sequence[SimulatedRequest]) -> float:
        return sum(was_served_well(request, profile, objectives) for request in requests) / len(requests)

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
    """Return the highest speed at which `met` reaches `attainment`, within a factor of 2 ** (10 / 2 ** `_HALVINGS`)."""
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
    """Return a trace's requests, `speed` times as many per second, nothing cached."""
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


def spread(arrivals: Sequence[Arrival]) -> list[Arrival]:
    """Spread requests that share a time stamp evenly over the time to the next: some clocks tick every few seconds."""
    times = sorted({arrival.at for arrival in arrivals})
    following = dict(zip(times, [*times[1:], times[-1]], strict=True))
    shared = Counter(arrival.at for arrival in arrivals)
    place: Counter[float] = Counter()
    found = []
    for arrival in arrivals:
        share = place[arrival.at] / shared[arrival.at]
        place[arrival.at] += 1
        found.append(replace(arrival, at=arrival.at + share * (following[arrival.at] - arrival.at)))
    return found


@click.command()
@click.option("--trace", type=click.Path(path_type=Path), help="CSV or JSONL.  [the Mooncake trace in the data folder]")
@click.option(
    "--trace-unit", type=click.Choice(["s", "ms"]), default="ms", show_default=True, help="Unit of the trace's times."
)
@click.option("--replica", default="llama-3.3-70b/fp8/8xh100", show_default=True, help="As for `aio plan`.")
@click.option("--replicas", type=click.IntRange(min=2), default=8, show_default=True, help="Total number of replicas.")
@click.option("--chunk", type=click.IntRange(min=1), default=2048, show_default=True, help="Prompt tokens per step.")
@click.option(
    "--itl-ms",
    "itls",
    type=float,
    multiple=True,
    default=(8, 10, 12, 15, 20, 33),
    show_default=True,
    help="Objectives for the mean time between tokens.",
)
@click.option(
    "--gbit",
    "links",
    type=float,
    multiple=True,
    default=(10, 25, 50, 100, 400),
    show_default=True,
    help="Link bandwidth per request.",
)
@click.option(
    "--ttft-ms",
    type=float,
    default=800.0,
    show_default=True,
    help="Objective, or three times the unloaded time if longer.",
)
@json_option
def split(
    trace: Path | None,
    trace_unit: str,
    replica: str,
    replicas: int,
    chunk: int,
    itls: tuple[float, ...],
    links: tuple[float, ...],
    ttft_ms: float,
    as_json: bool,
) -> None:
    """Find the multiple of a trace's rate that a fleet serves with 90 % within objectives, combined and best split."""

    from classifier.training.data.dataset import data_folder

    path = trace or data_folder() / "traces/mooncake_conversation.jsonl"
    arrivals = spread(read_trace(path, "ms" if trace_unit == "ms" else "s"))
    profile = msgspec.structs.replace(replica_profile(replica), chunk_tokens=chunk)
    rows: list[tuple[float, float, Split]] = []
    for itl in itls:
        for gbit in links if itl == itls[len(itls) // 2] else links[-1:]:
            found = best_split(
                lambda speed: requests_at(arrivals, speed),
                profile,
                Transfer(bytes_per_token=kv_bytes_of(profile), bytes_per_s=gbit * 1e9 / 8),
                ServiceObjectives(ttft_s=ttft_ms / 1e3, itl_s=itl / 1e3),
                replicas=replicas,
            )
            rows.append((itl, gbit, found))
    if as_json:
        echo_json([{"itl_ms": itl, "gbit": gbit, "split": found, "gain": found.gain} for itl, gbit, found in rows])
        return
    head = ["ITL ms", "Gbit/s", "together", "apart", "prefill + decode", "gain"]
    cells = [
        [
            f"{itl:g}",
            f"{gbit:g}",
            f"{found.together:.2f}",
            f"{found.apart:.2f}",
            f"{found.prefill_replicas} + {found.replicas - found.prefill_replicas}",
            f"{found.gain:.2f}",
        ]
        for itl, gbit, found in rows
    ]
    click.echo(table(head, cells))
