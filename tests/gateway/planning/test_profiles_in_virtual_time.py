"""What the profiles of live knobs trade on the laptop catalogue, in virtual time at measured step times (SPEC FR-04).

The core plans every step, and the profile of the replica says how long each takes, so no clock of this machine counts.
"""

from dataclasses import dataclass, field
from functools import cache
from random import Random

import numpy as np
import pytest

from gateway.planning.capacity.replica_profile import replica_profile
from gateway.runtime.cores.knob_profiles import PROFILES
from inference_core.engine.core import Core
from inference_core.engine.live_knobs import start_knobs
from inference_core.protocol import AddRequest, SamplingParams
from inference_core.step_plan import SampledToken, StepPlan, StepResult
from tests.inference_core.hash_model import HashModelRunner
from tests.support.clock import Clock
from tiers.catalog.core_spec import core_spec
from tiers.catalog.load import load_catalog

MODEL = "smollm2-int4"
REPLICA = replica_profile("smollm2-135m-int4-cpu")
SLAB_BYTES = 1 << 16
START = start_knobs(core_spec(load_catalog("laptop")))[MODEL]


class MeasuredRunner(HashModelRunner):
    """Always answers 1, in the time that the replica's profile says. Nothing is drafted."""

    most_drafts = 0

    def __init__(self, clock: Clock) -> None:
        super().__init__(MODEL, bytearray(1), SLAB_BYTES, max_context=4096, clock=clock)
        self.virtual_clock = clock

    def run(self, plan: StepPlan) -> StepResult:
        seconds = REPLICA.base_s
        for share in plan.sequences:
            tokens = len(share.token_ids)
            if tokens == 1 and share.start:
                seconds += REPLICA.decode_s(share.start + 1)
            else:
                seconds += REPLICA.prefill_s(share.start + tokens, share.start)
        self.virtual_clock.advance(seconds)
        return StepResult([[SampledToken(1)] if share.sample else [] for share in plan.sequences])


@dataclass
class Served:
    """Seconds of first tokens, of gaps between tokens and of whole answers, and tokens generated per second."""

    first: list[float] = field(default_factory=list)
    gaps: list[float] = field(default_factory=list)
    whole: list[float] = field(default_factory=list)
    rate: float = 0.0


def p(quantile: float, values: list[float]) -> float:
    return float(np.quantile(values, quantile))


@cache
def served(
    profile: str, callers: int | None = None, rate: float = 0.0, requests: int = 200, gap_ms: float | None = None
) -> Served:
    """Serve `requests`, every eighth with a prompt of about 1,000 tokens and the others streams with short prompts:
    from so many `callers`, each with one at a time, or at random times at `rate` per second. `gap_ms`: the
    objective for the time between tokens, if it is not the profile's."""
    clock, draw = Clock(1.0), Random(1)
    core = Core({MODEL: MeasuredRunner(clock)}, arena_bytes=SLAB_BYTES * 4096, slab_bytes=SLAB_BYTES, knobs=START,
                clock=clock, seed=0)  # fmt: skip
    core.set_knobs(PROFILES[profile].core_changes(START))
    if gap_ms is not None:
        core.set_knobs({"itl_objective_ms": gap_ms})
    due = [1.0]
    for _ in range(requests - 1):
        due.append(due[-1] + (draw.expovariate(rate) if rate else 0.0))
    found, asked, last = Served(), dict[str, float](), dict[str, float]()
    sent = tokens = 0
    while sent < requests or core.has_work:
        if callers is None and not core.has_work:
            clock.now = max(clock.now, due[sent])
        while sent < requests and (due[sent] <= clock.now if callers is None else len(asked) < callers):
            name, prompt = str(sent), draw.randint(900, 1100) if sent % 8 == 4 else draw.randint(20, 200)
            answer = min(256, 8 + round(draw.expovariate(1 / 60)))
            asked[name] = due[sent] if callers is None else clock.now
            sampling = SamplingParams(temperature=0, max_tokens=answer, ignore_eos=True)
            ids = draw.choices(range(900), k=prompt)
            core.add(
                AddRequest(request_id=name, model=MODEL, prompt_token_ids=ids, sampling=sampling, arrival=asked[name])
            )
            sent += 1
        for output in core.step():
            name = output.request_id
            if name in last:
                found.gaps.append(clock.now - last[name])
            else:
                found.first.append(clock.now - asked[name])
            last[name] = clock.now
            tokens += len(output.token_ids)
            if output.finish_reason is not None:
                found.whole.append(clock.now - asked.pop(name))
    core.close()
    found.rate = tokens / (clock.now - 1.0)
    return found


def test_for_more_callers_than_the_machine_can_serve_throughput_computes_most_tokens_and_the_tail_fewest() -> None:
    rates = {name: served(name, callers=96).rate for name in ("throughput", "cost", "latency", "tail")}

    assert rates["throughput"] >= rates["cost"] > rates["latency"]
    assert rates["latency"] > 1.03 * rates["tail"]


@pytest.mark.parametrize("profile", ["latency", "tail"])
def test_where_the_machine_keeps_up_a_long_prompt_does_not_stop_the_streams(profile: str) -> None:
    """A step with a prompt of 1,000 tokens takes half a second and more."""
    found, most = served(profile, rate=4.0), served("throughput", rate=4.0)

    assert p(0.99, most.gaps) > 0.4
    assert p(0.99, found.gaps) < 0.1
    assert p(0.99, found.gaps) < 0.7 * p(0.99, served("catalogue", rate=4.0).gaps)
    assert p(0.5, found.first) < 0.5 * p(0.5, most.first)
    assert p(0.5, found.whole) < p(0.5, most.whole)


@pytest.mark.parametrize("load", [{"rate": 6.0}, {"callers": 96}])
def test_in_an_overload_the_tail_keeps_its_gaps_and_so_its_slowest_answers_end_sooner(load: dict[str, float]) -> None:
    tail = served("tail", **load)

    for name in ("throughput", "cost", "latency", "catalogue"):
        other = served(name, **load)
        assert p(0.99, tail.gaps) < 0.6 * p(0.99, other.gaps)
        assert p(0.95, tail.whole) < p(0.95, other.whole)


def test_of_the_two_objectives_the_one_for_gaps_is_kept_and_decides_when_first_tokens_come() -> None:
    """The catalogue's limit of a step leaves room for both."""
    found = {gap_ms: served("catalogue", callers=16, gap_ms=gap_ms) for gap_ms in (75.0, 100.0, 150.0, 200.0)}

    for gap_ms, by in found.items():
        assert p(0.95, by.gaps) < 1.05 * gap_ms / 1e3
    assert p(0.99, found[75.0].first) > p(0.99, found[100.0].first) > 1.1 * p(0.99, found[150.0].first)
    assert p(0.95, found[75.0].gaps) < p(0.95, found[100.0].gaps) < 0.8 * p(0.95, found[150.0].gaps)
    assert p(0.95, found[150.0].gaps) < p(0.95, found[200.0].gaps)


def test_in_an_overload_latency_and_throughput_give_first_tokens_sooner_than_the_tail() -> None:
    late = p(0.5, served("tail", rate=6.0).first)

    assert p(0.5, served("latency", rate=6.0).first) < 0.9 * late
    assert p(0.5, served("throughput", rate=6.0).first) < 0.3 * late
