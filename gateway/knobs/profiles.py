"""Sets of live knobs for a goal: throughput, latency, the tail or cost (SPEC FR-04). None is best at all of them."""

from collections.abc import Mapping
from typing import Any

import msgspec

from gateway.errors import bad_request
from inference_core.protocol import Knobs, KnobValue

# Memory is reserved for so many: a profile lowers what a model was started with, and never raises it.
_BOUNDED = ("max_num_seqs",)


class Profile(msgspec.Struct, frozen=True, kw_only=True):
    """Values of the knobs of every model of every core, of routing and of all replicas; None is what the server was
    started with. All profiles name the same knobs, so that nothing of a former profile stays."""

    name: str
    why: str
    core: dict[str, Any]
    routing: dict[str, Any]
    replicas: dict[str, Any]

    def core_changes(self, start: Knobs) -> dict[str, KnobValue]:
        """Return the changes for a model that was started with `start`."""
        return {
            name: None if value is None or (name in _BOUNDED and value >= getattr(start, name)) else value
            for name, value in self.core.items()
        }


def _profile(name: str, why: str, core: Mapping[str, Any], **other: Any) -> Profile:
    return Profile(
        name=name,
        why=why,
        core=dict.fromkeys(CORE_KNOBS) | dict(core),
        routing={"quality_target": other.get("quality_target")},
        replicas={"hedging": other.get("hedging")},
    )


CORE_KNOBS = (
    "prefill_chunk",
    "max_num_seqs",
    "max_join_penalty",
    "auto_tune",
    "ttft_objective_ms",
    "max_waiting",
    "speculation",
)
CATALOGUE = "catalogue"
# The tail's first token is that of SPEC OB-01. Its gaps follow the tiers' objectives: one that is too strict for
# a machine makes first tokens wait.
PROFILES = {
    each.name: each
    for each in (
        _profile(
            "throughput",
            "Most tokens per second: prompts go whole and join at once, no drafts, no latency objective.",
            {
                "prefill_chunk": 8192,
                "max_num_seqs": 1024,
                "max_join_penalty": 1000.0,
                "auto_tune": False,
                "speculation": "off",
            },
        ),
        _profile(
            "latency",
            "The median user: prompts in chunks, no step is held short for others, drafts as the catalogue says.",
            {"prefill_chunk": 512, "max_num_seqs": 128, "auto_tune": False},
        ),
        _profile(
            "cost",
            "The cheapest answers: routing is economical, prompts join at once, no latency objective.",
            {"prefill_chunk": 2048, "max_num_seqs": 256, "max_join_penalty": 1000.0, "auto_tune": False},
            quality_target="economy",
        ),
        _profile(
            "tail",
            "The slowest requests: few at once, steps tuned to the tiers' objectives, a short queue, hedged replicas.",
            {
                "prefill_chunk": 512,
                "max_num_seqs": 64,
                "auto_tune": True,
                "ttft_objective_ms": 500.0,
                "max_waiting": 100,
                "speculation": "off",
            },
            hedging=True,
        ),
        _profile(CATALOGUE, "As the server was started: puts back the knobs of every profile.", {}),
    )
}


def profile_named(name: str) -> Profile:
    """Return the profile. Raises `ApiError` 400 that names the known ones."""
    if name not in PROFILES:
        raise bad_request(f"No profile {name[:64]!r}; there are {', '.join(PROFILES)}.", "profile", "invalid_value")
    return PROFILES[name]
