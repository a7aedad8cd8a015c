"""The loads of the sources that can be planned from their figures, and their benchmark table against the formulas."""

import math

import msgspec

from gateway.planning.capacity.capacity import Objectives, Plan, operation, plan
from gateway.planning.capacity.replica_profile import replica_profile
from gateway.planning.capacity.workload import Workload, per_second

# Source 001, voice bot on Llama 3.1 8B: concurrency -> (tokens per second, requests per second).
_VOICE = {
    "l4": {
        1: (45.66, 0.23), 2: (89.37, 0.45), 4: (153.39, 0.78), 8: (279.88, 1.47), 16: (547.8, 2.77), 32: (925.7, 4.78),
        64: (1164.4, 6.2), 128: (1445.18, 7.69), 256: (1600.81, 8.52),
    },
    "a100": {
        1: (130.05, 0.68), 2: (264.5, 1.35), 4: (437.69, 2.27), 8: (760.49, 3.96), 16: (1343.8, 7.01),
        32: (2287.3, 11.92), 64: (3625.22, 18.89), 128: (4456.51, 23.24), 256: (5188.24, 27.05),
    },
}  # fmt: skip
# Mean answer of that table: its tokens per second over its requests per second are 188 to 199 (SPEC AS-07).
VOICE_OUTPUT_TOKENS = 193
VOICE = Workload(rate=1000, prompt_tokens=1950, output_tokens=VOICE_OUTPUT_TOKENS)
# Source 004: tokens of an answer, and the share of 50 million requests a day (SPEC RT-10), by replica.
TIERS = (
    ("llama-3.2-3b/q4_0/l4", 200, 0.60),
    ("llama-3.1-8b/awq-int4/a100-40gb", 200, 0.20),
    ("llama-3.3-70b/fp8/8xh100", 200, 0.15),
    ("llama-3.3-70b/fp8/8xh100", 822, 0.05),
)


class VoiceRow(msgspec.Struct, frozen=True, kw_only=True):
    """A row of the sources' table: requests per second as stated, from its tokens per second, and from step times."""

    stated: float
    from_tokens: float
    from_step_times: float


def voice_rows() -> list[VoiceRow]:
    """Return the table of source 001, both cards."""
    return [
        VoiceRow(
            stated=requests,
            from_tokens=tokens / VOICE_OUTPUT_TOKENS,
            from_step_times=operation(replica_profile(f"llama-3.1-8b-voice-{card}"), VOICE, concurrency).rate,
        )
        for card, ladder in _VOICE.items()
        for concurrency, (tokens, requests) in ladder.items()
    ]


def edge_nodes(rate: float, share: float, node_rate: float) -> int:
    """Return the nodes that serve `share` of `rate` at `node_rate` each (SPEC AS-04)."""
    return math.ceil(rate * share / node_rate - 1e-9)


def daily(replica: str, answer: int, share: float) -> Plan:
    """Return the plan for a share of 50 million requests a day, at twice their mean rate."""
    load = Workload(rate=per_second(50_000_000) * 2.0 * share, prompt_tokens=200, output_tokens=answer)
    return plan(replica_profile(replica), load, Objectives(ttft_s=0.5))
