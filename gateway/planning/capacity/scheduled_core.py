"""One replica in virtual time: the core plans every step, and a profile says how long it takes (SPEC TB-08).

The fluid model of `simulated_replica` serves fleets over days. Quantiles of first tokens depend on how single steps are
formed, so here every step is planned. Nothing is measured: times are as good as the profile's step times, and a bound
where those are a bound of the hardware.
"""

import math
import random
from collections.abc import Iterator

import msgspec
import numpy as np

from gateway.planning.capacity.replica_profile import Evidence, ReplicaProfile
from gateway.planning.capacity.workload import PlanError, Workload
from inference_core.engine.core import Core
from inference_core.errors import InvalidRequestError
from inference_core.execution.runner import ModelRunner
from inference_core.kv_cache.layout import KVLayout
from inference_core.loaders.decoder_tensors import shape
from inference_core.protocol import AddRequest, Knobs, ModelInfo, SamplingParams
from inference_core.step_plan import SampledToken, StepPlan, StepResult

# Bytes do not matter where nothing is stored; blocks have the size of those of real models.
LAYOUT = KVLayout(num_layers=1, num_kv_heads=1, head_dim=2, block_size=16, dtype="float32")
SLAB_BYTES = 64 * LAYOUT.block_bytes
# The first requests find an idle replica, which is not the state to be described.
_SETTLING_SHARE = 0.1
_UNLIMITED_QUEUE = 1_000_000
_MOST_STEP_TOKENS = 65_536


class SimulatedSchedule(msgspec.Struct, frozen=True, kw_only=True):
    """What `requests` at `rate` per second got on one replica, in seconds; the first tenth is left out of times."""

    profile: str
    evidence: Evidence
    """Where the step times are from."""
    requests: int
    rate: float
    ttft_p50_s: float
    ttft_p99_s: float
    itl_p50_s: float
    itl_p99_s: float
    steps: int
    mean_batch: float
    """Mean number of sequences in a step."""
    preemptions: int
    """Sequences that lost their memory and were computed again."""


class VirtualClock:
    """Seconds of the simulation."""

    def __init__(self) -> None:
        # Not 0: an arrival of 0 means "now" to the core.
        self.now = 1.0

    def __call__(self) -> float:
        return self.now


class ProfileRunner(ModelRunner):
    """Computes nothing: a step takes what the profile says, and every draw is the same token."""

    def __init__(self, profile: ReplicaProfile, clock: VirtualClock, max_context: int) -> None:
        self.config = shape(profile.model)
        self.layout = LAYOUT
        self.info = ModelInfo(
            name=profile.model,
            model_path="",
            max_context=max_context,
            vocab_size=self.config.vocab_size,
            weight_bytes=0,
            compute="simulated",
        )
        self._profile = profile
        self._clock = clock

    def run(self, plan: StepPlan) -> StepResult:
        profile, seconds = self._profile, self._profile.base_s
        for share in plan.sequences:
            tokens = len(share.token_ids)
            if tokens == 1 and share.start:
                seconds += profile.decode_s(share.start + 1)
            else:
                seconds += profile.prefill_s(share.start + tokens, share.start)
        self._clock.now += seconds
        return StepResult([[SampledToken(1)] if share.sample else [] for share in plan.sequences], seconds)


def simulate_schedule(
    profile: ReplicaProfile, load: Workload, *, requests: int = 2000, seed: int = 0
) -> SimulatedSchedule:
    """Serve `requests` of `load` with chunk, batch and memory of `profile`; other knobs have their defaults.

    Gaps and prompt lengths are drawn from gamma distributions with the load's coefficients of variation; answers have
    its mean length. The same for the same seed. Raises `PlanError` if a request does not fit the replica's memory.
    """
    clock, draw = VirtualClock(), random.Random(seed)
    prompts = [max(1, round(_gamma(draw, load.prompt_tokens, load.prompt_cv))) for _ in range(requests)]
    answer = max(1, round(load.output_tokens))
    core = _core(profile, clock, max(prompts) + answer + 1)
    arrivals, at = [], clock.now
    for prompt in prompts:
        arrivals.append((at, prompt))
        at += _gamma(draw, 1 / load.rate, load.arrival_cv)
    asked = _requests(profile.model, arrivals, answer, load.cached_share, draw)
    try:
        first, gaps = _serve(core, clock, asked, settling=int(requests * _SETTLING_SHARE))
    except InvalidRequestError as error:
        raise PlanError(f"{profile.name}: {error}") from error
    stats = core.stats()
    core.close()
    batches = stats.models[0].batch_sizes
    return SimulatedSchedule(
        profile=profile.name,
        evidence=profile.evidence,
        requests=requests,
        rate=load.rate,
        ttft_p50_s=float(np.quantile(first, 0.5)),
        ttft_p99_s=float(np.quantile(first, 0.99)),
        itl_p50_s=float(np.quantile(gaps, 0.5)) if gaps else 0.0,
        itl_p99_s=float(np.quantile(gaps, 0.99)) if gaps else 0.0,
        steps=stats.steps,
        mean_batch=sum(size * count for size, count in batches.items()) / max(1, stats.steps),
        preemptions=stats.models[0].preemptions,
    )


def _core(profile: ReplicaProfile, clock: VirtualClock, max_context: int) -> Core:
    knobs = Knobs(
        max_num_batched_tokens=min(_MOST_STEP_TOKENS, profile.chunk_tokens + profile.max_sequences),
        max_num_seqs=min(4096, profile.max_sequences),
        prefill_chunk=profile.chunk_tokens,
        max_waiting=_UNLIMITED_QUEUE,
        alert_waiting=_UNLIMITED_QUEUE,
    )
    slabs = math.ceil(profile.kv_tokens / LAYOUT.block_size / LAYOUT.blocks_per_slab(SLAB_BYTES))
    return Core(
        {profile.model: ProfileRunner(profile, clock, max_context)},
        arena_bytes=slabs * SLAB_BYTES,
        slab_bytes=SLAB_BYTES,
        knobs=knobs,
        clock=clock,
        seed=0,
    )


def _gamma(draw: random.Random, mean: float, variation: float) -> float:
    """A value of this mean and coefficient of variation; a variation of 1 is an exponential, as of a Poisson stream."""
    if not variation:
        return mean
    return draw.gammavariate(variation**-2, mean * variation**2)


def _requests(
    model: str, arrivals: list[tuple[float, int]], answer: int, cached_share: float, draw: random.Random
) -> Iterator[AddRequest]:
    """Requests by arrival; `cached_share` of each prompt is a prefix that all have in common."""
    vocabulary = range(1000)
    common = draw.choices(vocabulary, k=max(prompt for _, prompt in arrivals))
    sampling = SamplingParams(temperature=0, max_tokens=answer, ignore_eos=True)
    for number, (at, prompt) in enumerate(arrivals):
        shared = int(prompt * cached_share)
        tokens = common[:shared] + draw.choices(vocabulary, k=prompt - shared)
        yield AddRequest(request_id=str(number), model=model, prompt_token_ids=tokens, sampling=sampling, arrival=at)


def _serve(
    core: Core, clock: VirtualClock, asked: Iterator[AddRequest], *, settling: int
) -> tuple[list[float], list[float]]:
    """Seconds to the first token of every request from number `settling` on, and their gaps between tokens."""
    last: dict[str, float] = {}
    first: list[float] = []
    gaps: list[float] = []
    arrived: dict[str, float] = {}
    coming = next(asked, None)
    while coming is not None or core.has_work:
        if not core.has_work and coming is not None:
            clock.now = max(clock.now, coming.arrival)
        while coming is not None and coming.arrival <= clock.now:
            core.add(coming)
            arrived[coming.request_id] = coming.arrival
            coming = next(asked, None)
        for output in core.step():
            counted = int(output.request_id) >= settling
            if output.token_ids and counted:
                since = last.get(output.request_id)
                if since is None:
                    first.append(clock.now - arrived[output.request_id])
                else:
                    gaps.append(clock.now - since)
            last[output.request_id] = clock.now
            if output.finish_reason is not None:
                del last[output.request_id], arrived[output.request_id]
    return first, gaps
