"""How a model is divided over devices: every decision with its rule, and every rank's memory with its arithmetic.

A rank's memory holds its weights; the rest is for keys and values, and says how many tokens fit.
"""

from itertools import groupby
from typing import Literal

import msgspec

from inference_core.errors import MemoryPlanError
from inference_core.kv_cache.layout import KV_ITEMSIZE, KV_SCALE_BYTES, kv_bytes_per_token
from inference_core.kv_cache.memory_plan import KVDemand, format_bytes
from inference_core.model_config import ModelConfig
from inference_core.parallel.mesh import Mesh, RankShare
from inference_core.placement.hardware import Device, Workload
from inference_core.placement.weight_formats import VECTOR_BITS, PlacedDraft, WeightFormat, rank_weights


class RankMemory(msgspec.Struct, frozen=True, kw_only=True):
    """Memory in bytes."""

    rank: int
    stage: int
    shard: int
    weight_bytes: int
    draft_bytes: int = 0
    """Weights of its draft, whose keys and values are included in `kv_bytes_per_token`."""
    usable_bytes: int
    kv_bytes_per_token: int
    kv_tokens: int
    """How many tokens fit in addition to the weights."""
    parts: str
    """The rank's part of the model, in words."""
    lines: tuple[str, ...]


def explain_ranks(ranks: list[RankMemory]) -> list[str]:
    """The arithmetic of every rank; adjacent ranks of a stage with equal memory share one explanation."""
    lines: list[str] = []
    for _, alike in groupby(ranks, key=lambda rank: (rank.stage, rank.parts, rank.lines)):
        first, *others = alike
        if others:
            last = others[-1]
            head = (
                f"ranks {first.rank} to {last.rank}, each (stage {first.stage}, shards {first.shard} to {last.shard})"
            )
        else:
            head = f"rank {first.rank} (stage {first.stage}, shard {first.shard})"
        lines += [f"{head}: {first.parts}", *first.lines]
    return lines


class _HeldDraft(msgspec.Struct, frozen=True):
    """A rank's share of a draft, in bytes."""

    name: str
    format: str
    weight_bytes: int
    kv_bytes_per_token: int

    @classmethod
    def of(cls, draft: PlacedDraft, share: RankShare) -> "_HeldDraft":
        local = share.config(draft.config)
        per_token = kv_bytes_per_token(
            num_layers=local.num_layers, num_kv_heads=local.num_kv_heads, head_dim=local.head_dim, dtype=draft.kv_dtype
        )
        return cls(draft.name, draft.form.name, rank_weights(draft.config, share).num_bytes(draft.form), per_token)

    @property
    def weight_lines(self) -> tuple[str, ...]:
        return (f"  weights of its draft {self.name} ({self.format}): {format_bytes(self.weight_bytes)}",)

    def kv_lines(self, in_all: int) -> tuple[str, ...]:
        return (f"  and its draft's: {self.kv_bytes_per_token:,} bytes, {in_all:,} in all",)


def _windows_of(share: RankShare, config: ModelConfig, device: Device, workload: Workload) -> KVDemand | None:
    """What a sequence needs where window layers keep no more than they see: on a CPU that holds the whole model."""
    whole = len(share.layers) == config.num_layers and len(share.heads.query) == config.num_heads
    if device.kind != "cpu" or not whole:
        return None
    demand = KVDemand.of_model(config, length=workload.length, batch=1, dtype=workload.kv_dtype, window_groups=True)
    return demand if demand.window_tokens else None


def _window_lines(demand: KVDemand, average: int) -> tuple[str, ...]:
    """How the windows of a model change what a token takes."""
    return (
        f"  with windows: {demand.full_layers} layers keep {demand.length:,} tokens of a sequence and "
        f"{demand.window_layers} at most {demand.window_tokens:,}: {average:,} bytes per token on average",
    )


def rank_memory(
    number: int,
    share: RankShare,
    config: ModelConfig,
    form: WeightFormat,
    device: Device,
    workload: Workload,
    draft: tuple[PlacedDraft, RankShare] | None = None,
) -> RankMemory:
    """The memory of rank `number` of a replica of `config`, which holds `share`, and of its draft."""
    weights, local = rank_weights(config, share), share.config(config)
    weight_bytes = weights.num_bytes(form)
    usable = int(device.memory_bytes * workload.usable_share)
    per_token = kv_bytes_per_token(
        num_layers=local.num_layers, num_kv_heads=local.num_kv_heads, head_dim=local.head_dim, dtype=workload.kv_dtype
    )
    windows = _windows_of(share, config, device, workload)
    average = per_token if windows is None else -(-windows.sequence_bytes // workload.length)
    held_draft = None if draft is None else _HeldDraft.of(*draft)
    left = usable - weight_bytes - (held_draft.weight_bytes if held_draft else 0)
    in_all = average + (held_draft.kv_bytes_per_token if held_draft else 0)
    tokens = max(0, left) // in_all
    item, scale = KV_ITEMSIZE[workload.kv_dtype], KV_SCALE_BYTES[workload.kv_dtype]
    numbers = f"({local.head_dim} x {item} + {scale})" if scale else f"{local.head_dim} x {item}"
    parts = (
        f"layers {share.layers.start} to {share.layers.stop - 1}, "
        f"{len(share.heads.query)} of {config.num_heads} query heads, "
        f"{len(share.heads.kv_heads)} of {config.num_kv_heads} KV heads, {len(share.inner):,} inner columns"
    )
    lines = (
        f"  weights: {weights.linear:,} x {form.bits:g} bits + {weights.vocabulary:,} of embedding and head x "
        f"{form.other_bits:g} bits + {weights.vectors:,} of norms and biases x {max(VECTOR_BITS, form.other_bits):g} "
        f"bits = {format_bytes(weight_bytes)}",
        *(held_draft.weight_lines if held_draft else ()),
        f"  usable: {format_bytes(device.memory_bytes)} x {workload.usable_share:g} = {format_bytes(usable)}",
        f"  left for keys and values: {format_bytes(left)}",
        f"  KV per token: 2 x {local.num_layers} layers x {local.num_kv_heads} KV heads x {numbers} bytes "
        f"({workload.kv_dtype}) = {per_token:,} bytes",
        *(_window_lines(windows, average) if windows else ()),
        *(held_draft.kv_lines(in_all) if held_draft else ()),
        f"  tokens: {tokens:,}",
    )
    return RankMemory(
        rank=number,
        stage=share.stage,
        shard=share.shard,
        weight_bytes=weight_bytes,
        draft_bytes=held_draft.weight_bytes if held_draft else 0,
        usable_bytes=usable,
        kv_bytes_per_token=in_all,
        kv_tokens=tokens,
        parts=parts,
        lines=lines,
    )


Rule = Literal[
    "executable",
    "unsupported",
    "weight-format",
    "tensor-cores",
    "power-limit",
    "over-30b",
    "asked-for",
    "one-device",
    "tensor-parallel-within-a-node",
    "link-too-slow-for-tensor-parallel",
    "pipeline-across-islands",
    "kv-heads",
    "replicas",
    "offload",
    "does-not-fit",
]


class Decision(msgspec.Struct, frozen=True):
    """A rule that fired, and its consequence."""

    rule: Rule
    text: str


class Placement(msgspec.Struct, frozen=True, kw_only=True):
    """How a model is placed on devices."""

    device: str
    executable: bool
    """Whether AIO runs models on this kind of device, or only plans for it."""
    format: str
    mesh: Mesh
    """The mesh of one of `replicas` whole copies."""
    replicas: int
    decisions: tuple[Decision, ...]
    ranks: tuple[RankMemory, ...]
    """The ranks of one of `replicas` whole copies."""
    kv_tokens: int
    max_sequences: int
    """Sequences of the planned length per replica."""
    lines: tuple[str, ...]


class PlacementError(MemoryPlanError):
    """There is no placement: the message has the rule, the arithmetic, and a remedy. Change model or devices."""

    def __init__(self, decisions: list[Decision], lines: list[str] | None = None) -> None:
        last = decisions[-1]
        super().__init__("\n".join([f"{last.rule}: {last.text}", *(lines or [])]))
        self.decisions = tuple(decisions)

    @property
    def rule(self) -> Rule:
        return self.decisions[-1].rule
