"""What a fleet is planned for with each set of live knobs (`runtime.cores.knob_profiles`): objectives and load."""

import msgspec

from gateway.planning.capacity.capacity import Objectives
from gateway.planning.capacity.replica_profile import ReplicaProfile
from gateway.planning.capacity.workload import PlanError
from gateway.runtime.cores.knob_profiles import PROFILES


class KnobProfile(msgspec.Struct, frozen=True, kw_only=True):
    """Live knobs of the core (`aio knobs profile`), and the objectives that a fleet is planned for with them.

    Objectives in seconds, for interactive use: TTFT below 500 ms, more than 30 tokens per second (SPEC OB-01).
    """

    name: str
    why: str
    objectives: Objectives

    def applied(self, profile: ReplicaProfile) -> ReplicaProfile:
        """Return the replica with these knobs, never beyond the range of its own profile."""
        core = PROFILES[self.name].core
        return msgspec.structs.replace(
            profile,
            chunk_tokens=min(profile.chunk_tokens, core["prefill_chunk"]),
            max_sequences=min(profile.max_sequences, core["max_num_seqs"]),
        )


KNOB_PROFILES = {
    each.name: each
    for each in (
        KnobProfile(
            name="throughput",
            why="most tokens per device: batches as large as memory, no latency objective",
            objectives=Objectives(),
        ),
        KnobProfile(
            name="latency",
            why="the median user: TTFT and inter-token latency met at p50, replicas 70 % busy",
            objectives=Objectives(ttft_s=0.5, itl_s=1 / 30, quantile=0.5, most_busy=0.7),
        ),
        KnobProfile(
            name="tail",
            why="the slowest requests: the same met at p99.9, replicas half busy and one spare",
            objectives=Objectives(ttft_s=0.5, itl_s=1 / 30, quantile=0.999, most_busy=0.5, spare=1),
        ),
        KnobProfile(
            name="cost",
            why="the cheapest fleet that meets batch objectives: TTFT below 2 s at p99",
            objectives=Objectives(ttft_s=2.0, quantile=0.99, most_busy=0.9),
        ),
    )
}


def knob_profile(name: str) -> KnobProfile:
    """Raises `PlanError` and names the known ones."""
    if name not in KNOB_PROFILES:
        raise PlanError(f"no knob profile {name!r}; known are {', '.join(KNOB_PROFILES)}")
    return KNOB_PROFILES[name]
