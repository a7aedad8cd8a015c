"""Knob sets for different goals: throughput, latency, the tail or cost (SPEC FR-04). None is best at all of them."""

import msgspec

from gateway.fleet.capacity import Objectives
from gateway.fleet.errors import PlanError
from gateway.fleet.replica_profile import ReplicaProfile


class KnobProfile(msgspec.Struct, frozen=True, kw_only=True):
    """Live knobs of the core (`aio knobs set`), and the objectives that a fleet is planned for with them.

    Objectives in seconds, for interactive use: TTFT below 500 ms, more than 30 tokens per second (SPEC OB-01).
    """

    name: str
    why: str
    prefill_chunk: int
    max_num_seqs: int
    objectives: Objectives

    def applied(self, profile: ReplicaProfile) -> ReplicaProfile:
        """Return the replica with these knobs, never beyond the range of its own profile."""
        return msgspec.structs.replace(
            profile,
            chunk_tokens=min(profile.chunk_tokens, self.prefill_chunk),
            max_sequences=min(profile.max_sequences, self.max_num_seqs),
        )


KNOB_PROFILES = {
    each.name: each
    for each in (
        KnobProfile(
            name="throughput",
            why="most tokens per device: batches as large as memory, no latency objective",
            prefill_chunk=8192,
            max_num_seqs=1024,
            objectives=Objectives(),
        ),
        KnobProfile(
            name="latency",
            why="the median user: TTFT and inter-token latency met at p50, replicas 70 % busy",
            prefill_chunk=512,
            max_num_seqs=128,
            objectives=Objectives(ttft_s=0.5, itl_s=1 / 30, quantile=0.5, most_busy=0.7),
        ),
        KnobProfile(
            name="tail",
            why="the slowest requests: the same met at p99.9, replicas half busy and one spare",
            prefill_chunk=512,
            max_num_seqs=64,
            objectives=Objectives(ttft_s=0.5, itl_s=1 / 30, quantile=0.999, most_busy=0.5, spare=1),
        ),
        KnobProfile(
            name="cost",
            why="the cheapest fleet that meets batch objectives: TTFT below 2 s at p99",
            prefill_chunk=2048,
            max_num_seqs=256,
            objectives=Objectives(ttft_s=2.0, quantile=0.99, most_busy=0.9),
        ),
    )
}


def knob_profile(name: str) -> KnobProfile:
    """Raises `PlanError` and names the known ones."""
    if name not in KNOB_PROFILES:
        raise PlanError(f"no knob profile {name!r}; known are {', '.join(KNOB_PROFILES)}")
    return KNOB_PROFILES[name]
