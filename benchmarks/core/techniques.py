"""Which systems an ablation compares: configurations, the techniques that lead from one to the other, and loads."""

from dataclasses import dataclass
from typing import Any

import msgspec

from benchmarks.core.ablation_worker import Configuration, LoadKind

BASELINE = Configuration(
    native=False,
    batching="static",
    paging=False,
    prefix_caching=False,
    chunked_prefill=False,
    compute="float32",
    kv_dtype="bfloat16",
)
FULL = Configuration(kv_dtype="int8", speculation="prompt_lookup")


@dataclass(frozen=True, slots=True)
class Technique:
    """A change of the configuration: what is set to have it, and to be without it in the full system.

    `needs` is enabled with it where it cannot work alone. A technique that is `superseded` by another has no place in
    the full system. `slow`: being without it is so slow that it is measured on the small load.
    """

    name: str
    on: dict[str, Any]
    off: dict[str, Any]
    needs: dict[str, Any] | None = None
    superseded: bool = False
    slow: bool = False

    @property
    def load(self) -> LoadKind:
        return "small" if self.slow else "mixed"


# In the order in which the ladder adds them.
TECHNIQUES = (
    Technique("native kernels", {"native": True}, {"native": False}, slow=True),
    Technique("dynamic batching", {"batching": "dynamic"}, {"batching": "static"}, superseded=True),
    Technique("continuous batching", {"batching": "continuous"}, {"batching": "dynamic"}),
    # Without paging no two requests share memory.
    Technique("paging", {"paging": True}, {"paging": False, "prefix_caching": False}),
    Technique("prefix cache", {"prefix_caching": True}, {"prefix_caching": False}, needs={"paging": True}),
    Technique("chunked prefill", {"chunked_prefill": True}, {"chunked_prefill": False}),
    Technique("INT4 weights, INT8 activations", {"compute": "int4-int8"}, {"compute": "float32"}),
    Technique("INT8 KV cache", {"kv_dtype": "int8"}, {"kv_dtype": "bfloat16"}),
    Technique("prompt lookup", {"speculation": "prompt_lookup"}, {"speculation": "off"}),
)


@dataclass(frozen=True, slots=True)
class DecodingFeature:
    """What requests may ask for, or have drafted: the full system without and with it, on the load `load`.

    `beside` is set on both sides.
    """

    name: str
    on: dict[str, Any]
    off: dict[str, Any]
    load: LoadKind = "mixed"
    beside: dict[str, Any] | None = None


FEATURES = (
    DecodingFeature("prompt lookup", {"speculation": "prompt_lookup"}, {"speculation": "off"}, load="copy"),
    DecodingFeature(
        "INT4 drafts for BF16", {"speculation": "draft_model"}, {"speculation": "off"}, "copy", {"compute": "bfloat16"}
    ),
    DecodingFeature(
        "INT4 drafts for BF16", {"speculation": "draft_model"}, {"speculation": "off"}, "mixed", {"compute": "bfloat16"}
    ),
    DecodingFeature("JSON schema", {"structured": True}, {"structured": False}),
    DecodingFeature("8 adapters of rank 8", {"adapters": 8}, {"adapters": 0}),
)
COMPUTES = ("float32", "bfloat16", "int4", "int4-int8")


@dataclass(frozen=True, slots=True)
class Arm:
    """A configuration under one of the loads."""

    configuration: Configuration
    load: LoadKind = "mixed"

    @property
    def small(self) -> bool:
        return self.load == "small"

    @property
    def label(self) -> str:
        return f"{self.configuration.label}{'' if self.load == 'mixed' else f' ({self.load} load)'}"


@dataclass(frozen=True, slots=True)
class Pair:
    """The same arm without and with a technique."""

    without: Arm
    having: Arm


def changed(configuration: Configuration, change: dict[str, Any] | None) -> Configuration:
    return msgspec.structs.replace(configuration, **(change or {}))


def ladder() -> list[tuple[str, Arm]]:
    """The rungs from bottom to top. The lowest runs on both loads, since only the small one reaches below it."""
    kernels, *rest = TECHNIQUES
    base = changed(BASELINE, kernels.on)
    rungs = [("torch, static batches", Arm(BASELINE, "small")), (kernels.name, Arm(base, "small"))]
    rungs.append(("the same on the mixed load", Arm(base)))
    now = base
    for technique in rest:
        now = changed(now, technique.on)
        rungs.append((technique.name, Arm(now)))
    return rungs


def alone(technique: Technique) -> Pair:
    """Over the baseline with native kernels, but for what the technique needs; of the kernels, over the baseline."""
    base = BASELINE if technique.slow else changed(BASELINE, TECHNIQUES[0].on)
    base = changed(base, technique.needs)
    return Pair(Arm(base, technique.load), Arm(changed(base, technique.on), technique.load))


def in_full(technique: Technique) -> Pair | None:
    """The full system without and with it."""
    if technique.superseded:
        return None
    return Pair(Arm(changed(FULL, technique.off), technique.load), Arm(FULL, technique.load))


def of_feature(feature: DecodingFeature) -> Pair:
    """The full system without and with it."""
    base = changed(FULL, feature.beside)
    return Pair(Arm(changed(base, feature.off), feature.load), Arm(changed(base, feature.on), feature.load))


def arms() -> list[Arm]:
    """Every arm that a figure needs, once."""
    pairs = [p for t in TECHNIQUES for p in (alone(t), in_full(t)) if p is not None] + [of_feature(f) for f in FEATURES]
    wanted = [arm for _, arm in ladder()] + [arm for pair in pairs for arm in (pair.without, pair.having)]
    wanted += [Arm(changed(FULL, {"compute": compute})) for compute in COMPUTES]
    return list(dict.fromkeys(wanted))
