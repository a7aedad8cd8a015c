"""What the files of a load sweep, an ablation and a search for limits say: results, as structs."""

from typing import Any

import msgspec


class MeasurementError(ValueError):
    """A file is no measurement; the message names it and what is wrong."""


class Head(msgspec.Struct, frozen=True, kw_only=True):
    """What was measured, with which settings, on which machine. Equal heads but for `started` may be continued."""

    measurement: str
    settings: dict[str, Any]
    machine: dict[str, Any]
    started: str


class Spread(msgspec.Struct, frozen=True):
    """The median of some rounds, and the smallest and largest value."""

    median: float
    low: float
    high: float


class SweepPoint(msgspec.Struct, frozen=True):
    """Medians and ranges over the rounds at one concurrency, by column.

    `gain`: tokens per second over those of the loop of one request in the same round, the geometric mean with its 95%
    interval; None at a concurrency of 1 and of a single round (SPEC TB-07).
    """

    concurrency: int
    figures: dict[str, Spread | None]
    gain: Spread | None = None


class SweepResults(msgspec.Struct, frozen=True):
    """The curve, the concurrency at its knee and the one at which its asymptotes meet (see `knee`)."""

    points: list[SweepPoint]
    knee: int
    saturation: float


class Effect(msgspec.Struct, frozen=True, kw_only=True):
    """Ratios with / without, by column: over the baseline alone, and in the full system.

    `interaction`: the effect on throughput in the full system, over the effect alone. Above 1 the rest of the system
    makes the technique worth more, below 1 it does part of its work.
    """

    technique: str
    small: bool
    alone: dict[str, Spread | None]
    full: dict[str, Spread | None] | None
    interaction: float | None


class FeatureEffect(msgspec.Struct, frozen=True, kw_only=True):
    """Ratios with / without a decoding feature in the full system, by column."""

    feature: str
    load: str
    without: str
    ratios: dict[str, Spread | None]


class Rung(msgspec.Struct, frozen=True, kw_only=True):
    """A step of the ladder: figures of the system with this technique and all before it, ratios to the rung before."""

    technique: str
    small: bool
    configuration: str
    figures: dict[str, Spread | None]
    step: dict[str, Spread | None] | None


class Variant(msgspec.Struct, frozen=True, kw_only=True):
    """The full system computing in another arithmetic; ratios to float32."""

    compute: str
    weights_mb: float
    figures: dict[str, Spread | None]
    ratios: dict[str, Spread | None]


class AblationResults(msgspec.Struct, frozen=True, kw_only=True):
    """What an ablation found; `ladder` and `effects` in the order of the techniques."""

    ladder: list[Rung]
    effects: list[Effect]
    features: list[FeatureEffect]
    computes: list[Variant]


class LimitLoad(msgspec.Struct, frozen=True, kw_only=True):
    """Medians and ranges at one load over the rounds that tried it; `kept`: in how many the promise was kept."""

    offered: int
    rounds: int
    kept: int
    figures: dict[str, Spread | None]


class LimitResults(msgspec.Struct, frozen=True, kw_only=True):
    """`highest`: over the rounds, the highest load that kept the promise; 0 where none did."""

    profile: str
    offered: str
    promise: str
    highest: Spread | None
    loads: list[LimitLoad]


def machine_line(head: Head) -> str:
    """The machine and the day of a measurement, in a sentence."""
    machine = head.machine
    flags = ", ".join(machine.get("flags", [])) or "none of the vector extensions that matter"
    memory = f", {machine['memory_gib']:g} GiB" if "memory_gib" in machine else ""
    commit = f", commit {machine['commit']}" if "commit" in machine else ""
    return (
        f"Measured on {head.started[:10]}: {machine['cpus']} CPUs of {machine['processor']} ({flags}){memory}, kernels "
        f"{machine['kernels']}, Python {machine['python']}{commit}."
    )
