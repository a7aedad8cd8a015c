"""Sets of live knobs for a goal: throughput, latency, the tail or cost (SPEC FR-04). None is best at all of them."""

from collections.abc import Mapping
from typing import Any

import msgspec

from gateway.base.errors import bad_request
from inference_core.protocol import Knobs, KnobValue

# Gaps between tokens are aimed at no less than this share of what the tiers promise: a machine may be unable to keep
# less, and prompts would wait for it.
_TIGHTEST = 0.5


class Profile(msgspec.Struct, frozen=True, kw_only=True):
    """Values of the knobs of every model of every core, of routing and of all replicas; None is what the server was
    started with. All profiles name the same knobs, so that nothing of a former profile stays."""

    name: str
    why: str
    core: dict[str, Any]
    routing: dict[str, Any]
    replicas: dict[str, Any]

    def core_changes(self, start: Knobs, *, reserved: bool = False) -> dict[str, KnobValue]:
        """Return the changes for a model that was started with `start`; `reserved`: the core has memory for the steps
        of `start` and no larger ones, as a GPU group has."""
        return {
            name: None if value is None else _within(name, value, start, reserved) for name, value in self.core.items()
        }


def _within(name: str, value: Any, start: Knobs, reserved: bool) -> Any:
    """Return `value` of knob `name`, or None where `start` is as good or better."""
    match name:
        case "max_num_seqs":
            return value if value < start.max_num_seqs else None
        case "max_num_batched_tokens":
            return value if value > start.max_num_batched_tokens and not reserved else None
        case "itl_objective_ms":
            tightened = max(value, start.itl_objective_ms * _TIGHTEST)
            return tightened if tightened < start.itl_objective_ms else None
        case _:
            unbounded: KnobValue = value
            return unbounded


def _profile(name: str, why: str, core: Mapping[str, Any], **other: Any) -> Profile:
    return Profile(
        name=name,
        why=why,
        core=dict.fromkeys(CORE_KNOBS) | dict(core),
        routing={"quality_target": other.get("quality_target")},
        replicas={"hedging": other.get("hedging")},
    )


CORE_KNOBS = (
    "max_num_batched_tokens",
    "prefill_chunk",
    "max_num_seqs",
    "max_join_penalty",
    "auto_tune",
    "itl_objective_ms",
    "ttft_objective_ms",
    "max_waiting",
    "speculation",
)
CATALOGUE = "catalogue"
# Steps of 1,024 prompt tokens spread what a step costs besides its tokens over enough of them; longer ones would gain
# nothing and stop every stream. The first token of "latency" is that of SPEC OB-01; that of "tail" is so late that in
# an overload, where not both objectives can be kept, first tokens wait and streams go on.
PROFILES = {
    each.name: each
    for each in (
        _profile(
            "throughput",
            "The most tokens per second: long steps, whole prompts that join at once, no drafts, no latency objective.",
            {
                "max_num_batched_tokens": 1024,
                "prefill_chunk": 8192,
                "max_num_seqs": 1024,
                "max_join_penalty": 1000.0,
                "auto_tune": False,
                "speculation": "off",
            },
        ),
        _profile(
            "latency",
            "For the median user: steps tuned for short gaps and early first tokens, drafts as in the catalogue.",
            {
                "prefill_chunk": 512,
                "max_num_seqs": 128,
                "auto_tune": True,
                "itl_objective_ms": 50.0,
                "ttft_objective_ms": 500.0,
            },
        ),
        _profile(
            "cost",
            "The cheapest answers: economical routing, longer steps, prompts that join at once, no latency objective.",
            {
                "max_num_batched_tokens": 512,
                "prefill_chunk": 2048,
                "max_num_seqs": 256,
                "max_join_penalty": 1000.0,
                "auto_tune": False,
            },
            quality_target="economy",
        ),
        _profile(
            "tail",
            "For the slowest requests: no stream waits for prompts, few run at once, a short queue, hedging.",
            {
                "prefill_chunk": 512,
                "max_num_seqs": 64,
                "auto_tune": True,
                "itl_objective_ms": 50.0,
                "ttft_objective_ms": 20_000.0,
                "max_waiting": 100,
                "speculation": "off",
            },
            hedging=True,
        ),
        _profile(CATALOGUE, "As the server was started. This puts back the knobs of every profile.", {}),
    )
}


def profile_named(name: str) -> Profile:
    """Return the profile. Raises `ApiError` 400 that names the known ones."""
    if name not in PROFILES:
        raise bad_request(f"No profile {name[:64]!r}; there are {', '.join(PROFILES)}.", "profile", "invalid_value")
    return PROFILES[name]
