"""How much load one replica can serve within its objectives, and how many replicas a rate needs; and what a fleet is
planned for with each set of live knobs (`runtime.cores.knob_profiles`).

One replica runs `n` answers at once under continuous batching. With a step's base b, d per decoding sequence, p seconds
of work per prompt and O tokens per answer:

- inter-token latency: ITL(n) = b + max(1, n) d + n p / O. Within one step n / O answers end and as many prompts arrive.
- rate, by Little's law (n = rate x O x ITL): rate(n) = n / (O ITL(n)). It rises with n, and n may be below 1: with long
prompts and short answers a replica often has no decoding sequence.
- a prompt fills c = tokens / chunk steps, in which the decodes run too: it occupies the prompt queue for S(n) = p + c
(b + n d). That is a single-server queue with utilisation u = rate S, whose waiting time in heavy traffic has the tail
of Kingman (1961): P(W > t) = u exp(-t / m), m = S (ca^2 + cs^2) / 2 / (1 - u), with the coefficients of variation of
gaps and lengths.
- TTFT at quantile q: p + ceil(c) (b + n d) + max(0, m ln(u / (1 - q))).

All of these rise with n, so the best n is the largest that meets every objective.
"""

import math
from collections.abc import Sequence

import msgspec

from gateway.planning.capacity.replica_profile import ReplicaProfile
from gateway.planning.capacity.workload import PlanError, Workload
from gateway.runtime.cores.knob_profiles import PROFILES

HOURS_PER_MONTH = 730.0
# Above this utilisation a queue's waiting time varies too much to plan with.
MOST_PROMPT_BUSY = 0.9
# Batch of an idle replica, and the resolution of the search for the best batch.
_LEAST_IN_FLIGHT, _HALVINGS = 1e-3, 48


class Objectives(msgspec.Struct, frozen=True, kw_only=True):
    """Objectives in seconds; None for no objective. Raises `PlanError` for impossible values."""

    ttft_s: float | None = None
    """Time to the first token that the share `quantile` of the requests meets."""
    itl_s: float | None = None
    """Mean time between tokens of an answer."""
    e2e_s: float | None = None
    """Time to the whole answer that the share `quantile` of the requests meets."""
    quantile: float = 0.99
    most_busy: float = 1.0
    """The share of its best rate that a replica is planned to run at."""
    spare: int = 0
    """Additional replicas."""

    def __post_init__(self) -> None:
        for name in ("ttft_s", "itl_s", "e2e_s"):
            value = getattr(self, name)
            if value is not None and not value > 0:
                raise PlanError(f"{name} is {value}; an objective is above 0 seconds")
        if not 0 < self.quantile < 1 or not 0 < self.most_busy <= 1:
            raise PlanError(f"quantile {self.quantile} and most_busy {self.most_busy}: both are shares above 0")


class Operation(msgspec.Struct, frozen=True, kw_only=True):
    """One replica at `in_flight` answers: requests per second, seconds."""

    in_flight: float
    rate: float
    itl_s: float
    ttft_s: float
    e2e_s: float
    prompt_busy: float


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """Replicas for a load and their cost. A month has 730 hours."""

    profile: str
    evidence: str
    rate: float
    replicas: int
    devices: int
    each: Operation
    bound: str
    """The objective or limit that kept the batch from growing."""
    in_flight: float
    usd_per_hour: float
    usd_per_month: float
    usd_per_1k_tokens: float
    """Cost by tokens of prompts and answers."""
    usd_per_1k_output_tokens: float
    """Cost by tokens of answers alone."""


def operation(profile: ReplicaProfile, load: Workload, in_flight: float, quantile: float = 0.99) -> Operation:
    """Apply the formulas above at `in_flight`; times are infinite where prompts arrive faster than computed."""
    cached = load.prompt_tokens * load.cached_share
    work = profile.prefill_s(load.prompt_tokens, cached)
    chunks = (load.prompt_tokens - cached) / profile.chunk_tokens
    step = profile.base_s + in_flight * profile.decode_s(load.context_tokens)
    alone = max(0.0, 1 - in_flight) * profile.decode_s(load.context_tokens)
    itl = step + alone + in_flight * work / load.output_tokens
    rate = in_flight / (load.output_tokens * itl)
    service = work + chunks * step
    busy = rate * service
    ttft = work + math.ceil(chunks) * step + _wait(service, busy, load, quantile)
    return Operation(
        in_flight=in_flight,
        rate=rate,
        itl_s=itl,
        ttft_s=ttft,
        e2e_s=ttft + (load.output_tokens - 1) * itl,
        prompt_busy=busy,
    )


def _wait(service: float, busy: float, load: Workload, quantile: float) -> float:
    if busy >= 1:
        return math.inf
    mean = service * (load.arrival_cv**2 + load.prompt_cv**2) / 2 / (1 - busy)
    return max(0.0, mean * math.log(busy / (1 - quantile)))


def best_operation(profile: ReplicaProfile, load: Workload, wanted: Objectives) -> tuple[Operation, str]:
    """Return the largest batch that meets the objectives, and what limits it. Raises `PlanError` if even one request at
    a time misses them."""
    memory = int(profile.kv_tokens // (load.prompt_tokens + load.output_tokens))
    limit = float(min(profile.max_sequences, memory))
    if limit < 1:
        raise PlanError(
            f"{profile.name} holds {profile.kv_tokens:,} tokens, a request takes "
            f"{load.prompt_tokens + load.output_tokens:,.0f}"
        )
    low, high = _LEAST_IN_FLIGHT, limit
    broken = _broken(operation(profile, load, low, wanted.quantile), wanted)
    if broken:
        raise PlanError(
            f"{profile.name} misses {broken} with one request at a time; loosen it or choose a faster replica"
        )
    largest = operation(profile, load, limit, wanted.quantile)
    if not _broken(largest, wanted):
        return largest, "memory" if memory < profile.max_sequences else "max sequences"
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        if _broken(operation(profile, load, middle, wanted.quantile), wanted):
            high = middle
        else:
            low = middle
    return operation(profile, load, low, wanted.quantile), _broken(
        operation(profile, load, high, wanted.quantile), wanted
    )


def _broken(point: Operation, wanted: Objectives) -> str:
    """Return the first objective that a point misses, '' if none."""
    if point.prompt_busy > MOST_PROMPT_BUSY:
        return f"prompts {MOST_PROMPT_BUSY:.0%} of the time"
    for name, value, most in (
        ("TTFT", point.ttft_s, wanted.ttft_s),
        ("ITL", point.itl_s, wanted.itl_s),
        ("E2E", point.e2e_s, wanted.e2e_s),
    ):
        if most is not None and value > most:
            return f"{name} {most * 1e3:g} ms"
    return ""


def plan(profile: ReplicaProfile, load: Workload, wanted: Objectives | None = None) -> Plan:
    """Return replicas that serve `load` with its objectives met on each. Raises `PlanError`."""
    wanted = wanted or Objectives()
    each, bound = best_operation(profile, load, wanted)
    replicas = math.ceil(load.rate / (each.rate * wanted.most_busy) - 1e-9) + wanted.spare
    hourly = replicas * profile.usd_per_hour
    per_request = hourly / (3600 * load.rate)
    return Plan(
        profile=profile.name,
        evidence=profile.evidence,
        rate=load.rate,
        replicas=replicas,
        devices=replicas * profile.devices,
        each=each,
        bound=bound,
        in_flight=load.rate * each.e2e_s,
        usd_per_hour=hourly,
        usd_per_month=hourly * HOURS_PER_MONTH,
        usd_per_1k_tokens=1000 * per_request / (load.prompt_tokens + load.output_tokens),
        usd_per_1k_output_tokens=1000 * per_request / load.output_tokens,
    )


def cheapest(profiles: Sequence[ReplicaProfile], load: Workload, wanted: Objectives) -> Plan:
    """Return the plan with the lowest price per hour that meets the objectives. Raises `PlanError` if none does."""
    plans, refusals = [], []
    for profile in profiles:
        try:
            plans.append(plan(profile, load, wanted))
        except PlanError as error:
            refusals.append(str(error))
    if not plans:
        raise PlanError("no profile keeps the objectives: " + "; ".join(refusals))
    return min(plans, key=lambda each: (each.usd_per_hour, each.replicas))


KNOB_OBJECTIVES = {
    "throughput": Objectives(),
    "latency": Objectives(ttft_s=0.5, itl_s=1 / 30, quantile=0.5, most_busy=0.7),
    "tail": Objectives(ttft_s=0.5, itl_s=1 / 30, quantile=0.999, most_busy=0.5, spare=1),
    "cost": Objectives(ttft_s=2.0, quantile=0.99, most_busy=0.9),
}
"""What a fleet is planned for with each set of live knobs. Interactive use needs a TTFT below 500 ms and more than 30
tokens per second (SPEC OB-01)."""


def with_knobs(profile: ReplicaProfile, name: str) -> ReplicaProfile:
    """Return the replica with the live knobs of this set, never beyond the range of its own profile."""
    core = PROFILES[name].core
    return msgspec.structs.replace(
        profile,
        chunk_tokens=min(profile.chunk_tokens, core["prefill_chunk"]),
        max_sequences=min(profile.max_sequences, core["max_num_seqs"]),
    )
