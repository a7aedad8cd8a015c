"""What one replica can do: step times (measured, stated by a source or bounded by its hardware) and its price."""

import math
import tomllib
from functools import cache
from importlib import resources
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from gateway.planning.capacity.workload import PlanError
from inference_core.kv_cache.layout import KVDtype, kv_bytes_per_token
from inference_core.loaders.decoder_tensors import SHAPES, shape
from inference_core.model_config import ModelConfig
from inference_core.placement.hardware import Device, device
from inference_core.placement.weight_formats import FORMATS, model_weights, preferred_format, weight_format
from inference_core.protocol import Knobs
from tiers.catalog.load import load_catalog

Evidence = Literal["measured", "stated", "roofline"]
Seconds = Annotated[float, Meta(ge=0)]
# Shares of a data sheet's peak that a well-made engine reaches: assumptions, not measurements.
BANDWIDTH_SHARE, FLOPS_SHARE = 0.7, 0.5
# Share of a card's memory (SPEC TI-03), minus the activations.
MEMORY_SHARE = 0.9
# Bytes per second of loading weights from a local disk, before a process starts: an assumption.
LOAD_RATE, START_SECONDS = 2e9, 15.0


class ReplicaProfile(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Seconds of a step: `base_s` + per decoding sequence (`sequence_s` + `context_token_s` x its context) + per prompt
    token (`prompt_token_s` + `prompt_pair_s` x the tokens before it).
    """

    name: str
    model: str
    hardware: str
    evidence: Evidence
    source: str
    base_s: Seconds
    sequence_s: Seconds
    prompt_token_s: Seconds
    context_token_s: Seconds = 0.0
    prompt_pair_s: Seconds = 0.0
    chunk_tokens: Annotated[int, Meta(ge=1)] = 512
    """Prompt tokens computed in one step."""
    max_sequences: Annotated[int, Meta(ge=1)] = 256
    kv_tokens: Annotated[int, Meta(ge=1)]
    """Capacity of the cache."""
    cold_start_s: Seconds
    """Seconds from the order to the first answer."""
    usd_per_hour: Seconds
    """Cost of all of them; an assumption unless given."""
    devices: Annotated[int, Meta(ge=1)] = 1
    """Devices of a replica."""

    def decode_s(self, context_tokens: float) -> float:
        """Return what one decoding sequence adds to a step."""
        return self.sequence_s + self.context_token_s * context_tokens

    def prefill_s(self, prompt_tokens: float, cached_tokens: float = 0.0) -> float:
        """Return the work of a prompt with `cached_tokens` in the cache, on top of its steps."""
        fresh = max(1.0, prompt_tokens - cached_tokens)
        return fresh * (self.prompt_token_s + self.prompt_pair_s * (cached_tokens + fresh / 2))

    def unloaded_ttft_s(self, prompt_tokens: float, cached_tokens: float = 0.0) -> float:
        """Time to the first token on an idle replica."""
        chunks = math.ceil(max(1.0, prompt_tokens - cached_tokens) / self.chunk_tokens)
        return self.prefill_s(prompt_tokens, cached_tokens) + chunks * self.base_s


class _Catalogue(msgspec.Struct, forbid_unknown_fields=True):
    profiles: list[ReplicaProfile]
    usd_per_device_hour: dict[str, float]


@cache
def _shipped() -> _Catalogue:
    raw = tomllib.loads(resources.files(__package__).joinpath("profiles.toml").read_text(encoding="utf-8"))
    raw["profiles"] = [_completed(entry) for entry in raw["profiles"]]
    return msgspec.convert(raw, _Catalogue)


def _completed(entry: dict[str, Any]) -> dict[str, Any]:
    """Return a profile's fields, with those that follow from where it is `served_as` a model of a catalogue's CPU core,
    whose cache all models of that core share."""
    if "served_as" not in entry:
        return entry
    served = entry["served_as"]
    core = load_catalog(served["catalogue"]).core
    model = next(each for each in core.models if each.name == served["model"])
    knobs = msgspec.convert({**core.knobs, **model.knobs}, Knobs)
    return {name: value for name, value in entry.items() if name != "served_as"} | {
        "chunk_tokens": min(knobs.prefill_chunk, knobs.max_num_batched_tokens),
        "max_sequences": knobs.max_num_seqs,
        "kv_tokens": core.arena_bytes // _kv_bytes(shape(entry["model"]), model.kv_dtype),
    }


def _kv_bytes(config: ModelConfig, dtype: KVDtype) -> int:
    """Return the bytes of one token in the cache."""
    return kv_bytes_per_token(
        num_layers=config.num_layers, num_kv_heads=config.num_kv_heads, head_dim=config.head_dim, dtype=dtype
    )


def profiles() -> dict[str, ReplicaProfile]:
    """Return the profiles with step times measured, by us or by a source, by name."""
    return {profile.name: profile for profile in _shipped().profiles}


def replica_profile(name: str) -> ReplicaProfile:
    """One of `profiles`, or a bound from hardware: `MODEL/FORMAT/[COUNTx]DEVICE` such as llama-3.3-70b/fp8/8xh100.

    Raises `PlanError` and names what is known.
    """
    if name in profiles():
        return profiles()[name]
    model, _, rest = name.partition("/")
    form, _, devices = rest.partition("/")
    if model not in SHAPES or form not in FORMATS or not devices:
        raise PlanError(
            f"no replica profile {name!r}: known are {', '.join(profiles())}, or MODEL/FORMAT/[COUNTx]DEVICE with "
            f"a model of {', '.join(SHAPES)} and a format of {', '.join(FORMATS)}, such as llama-3.3-70b/fp8/8xh100"
        )
    count, _, kind = devices.rpartition("x") if devices[0].isdigit() else ("1", "", devices)
    if not count.isdigit() or int(count) < 1:
        raise PlanError(f"{devices!r} is not a number of devices; write it as in 8xh100")
    return roofline_profile(model, device(kind), int(count), form)


def roofline_profile(model: str, card: Device, count: int = 1, form: str | None = None) -> ReplicaProfile:
    """Return the bound of the hardware: a decode step reads all weights and every context once, a token costs two
    operations per weight (Williams et al. 2009; Pope et al. 2022, "Efficiently scaling transformer inference"), at
    `BANDWIDTH_SHARE` and `FLOPS_SHARE` of the data sheet. Communication between devices is ignored.

    Raises `PlanError` if the data sheet lacks a figure or the weights do not fit.
    """
    config, held = shape(model), model_weights(shape(model))
    chosen = preferred_format(card) if form is None else weight_format(form)
    if card.bandwidth is None or card.flops is None:
        raise PlanError(f"{card.name} has no bandwidth or no operations per second on its data sheet")
    weights = held.num_bytes(chosen)
    kv_bytes = _kv_bytes(config, "bfloat16")
    free = count * card.memory_bytes * MEMORY_SHARE - weights
    if free < kv_bytes * 1024:
        raise PlanError(
            f"{model} takes {weights / 1e9:.1f} GB as {chosen.name}: {count} x {card.name} "
            f"({card.memory_bytes / 1e9:.0f} GB each) cannot hold it and a cache"
        )
    bandwidth = count * card.bandwidth * BANDWIDTH_SHARE
    doubled = 2 if chosen.name in ("fp8", "int8") and card.has_fp8 else 1
    token_s = 2 * (held.linear + held.vocabulary / 2) / (count * card.flops * doubled * FLOPS_SHARE)
    return ReplicaProfile(
        name=f"{model}/{chosen.name}/{count}x{card.name}",
        model=model,
        hardware=f"{count} x {card.name}",
        evidence="roofline",
        source=f"data sheet at {BANDWIDTH_SHARE:.0%} of bandwidth and {FLOPS_SHARE:.0%} of operations",
        base_s=weights / bandwidth,
        sequence_s=token_s,
        context_token_s=kv_bytes / bandwidth,
        prompt_token_s=token_s,
        # Scores and their sum over values: two products of every head's width with each earlier token.
        prompt_pair_s=4 * config.num_layers * config.num_heads * config.head_dim / (count * card.flops * FLOPS_SHARE),
        chunk_tokens=2048,
        kv_tokens=int(free / kv_bytes),
        cold_start_s=START_SECONDS + weights / LOAD_RATE,
        usd_per_hour=count * _shipped().usd_per_device_hour.get(card.name, 0.0),
        devices=count,
    )
