"""Whether weights and KV cache fit the memory of the devices: exact arithmetic. No torch."""

from typing import Literal

import msgspec

from inference_core.errors import MemoryPlanError
from inference_core.kv_cache.layout import (
    KV_ITEMSIZE,
    KV_SCALE_BYTES,
    KVDtype,
    KVLayout,
    WindowGroups,
    grouped,
    kv_bytes_per_token,
)
from inference_core.model_config import ModelConfig

GB = 10**9
_BLOCK_SIZE = 16  # tokens


def format_bytes(count: int) -> str:
    """Format in binary and decimal units, since vendors use one and allocators the other."""
    size = abs(count)
    for power, binary, decimal in ((3, "GiB", "GB"), (2, "MiB", "MB"), (1, "KiB", "kB")):
        if size >= 1000**power:
            return f"{count / 1024**power:,.2f} {binary} ({count / 1000**power:,.2f} {decimal})"
    return f"{count} bytes"


class KVDemand(msgspec.Struct, frozen=True, kw_only=True):
    """Keys and values of `batch` sequences of `length` tokens each (SPEC KV-02). All counts at least 1."""

    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    length: int
    batch: int = 1
    dtype: KVDtype = "float16"
    window_tokens: int = 0
    """What layers with a window keep of a sequence at most, while a prompt is computed; 0 where every layer keeps every
    token.
    """
    window_layers: int = 0
    """Layers with a window, which keep `window_tokens` and their blocks' free room."""
    full_layers: int = 0
    """Layers without a window."""

    def __post_init__(self) -> None:
        for field in ("num_layers", "num_heads", "num_kv_heads", "head_dim", "length", "batch"):
            if getattr(self, field) < 1:
                raise MemoryPlanError(f"{field} is {getattr(self, field)}; it must be at least 1")
        if self.num_heads % self.num_kv_heads:
            raise MemoryPlanError(f"{self.num_heads} query heads cannot share {self.num_kv_heads} KV heads evenly")

    @classmethod
    def of_model(
        cls, config: ModelConfig, *, length: int, batch: int, dtype: KVDtype, window_groups: bool = False
    ) -> "KVDemand":
        """`window_groups`: the model's window layers keep no more than they see, as on the CPU, where that saves memory
        in contexts of the model's length."""
        whole = KVLayout(
            num_layers=config.num_layers,
            num_kv_heads=config.num_kv_heads,
            head_dim=config.head_dim,
            block_size=_BLOCK_SIZE,
            dtype=dtype,
        )
        layout = grouped(whole, config, config.max_position) if window_groups else whole
        windows = WindowGroups(layout) if layout.window else None
        return cls(
            num_layers=config.num_layers,
            num_heads=config.num_heads,
            num_kv_heads=config.num_kv_heads,
            head_dim=config.head_dim,
            length=length,
            batch=batch,
            dtype=dtype,
            window_tokens=windows.window_blocks(windows.most_chunk) * _BLOCK_SIZE if windows else 0,
            window_layers=layout.num_layers * max(1, layout.window_groups) if windows else 0,
            full_layers=layout.num_layers if windows and windows.keeps_all else 0,
        )

    @property
    def bytes_per_token(self) -> int:
        """See `kv_bytes_per_token`."""
        return kv_bytes_per_token(
            num_layers=self.num_layers, num_kv_heads=self.num_kv_heads, head_dim=self.head_dim, dtype=self.dtype
        )

    @property
    def tokens(self) -> int:
        return self.length * self.batch

    @property
    def sequence_bytes(self) -> int:
        """Bytes of one sequence of `length` tokens."""
        if not self.window_tokens:
            return self.bytes_per_token * self.length
        kept = self.full_layers * self.length + self.window_layers * min(self.length, self.window_tokens)
        return self.bytes_per_token // self.num_layers * kept

    @property
    def total_bytes(self) -> int:
        return self.sequence_bytes * self.batch

    @property
    def attention(self) -> Literal["MHA", "GQA", "MQA"]:
        """Multi-head, grouped-query or multi-query attention (SPEC KV-08)."""
        if self.num_kv_heads == self.num_heads:
            return "MHA"
        return "MQA" if self.num_kv_heads == 1 else "GQA"

    @property
    def share_of_mha(self) -> float:
        """KV heads per query head: the cache's size as a share of what multi-head attention would need."""
        return self.num_kv_heads / self.num_heads

    def explain(self) -> list[str]:
        """The arithmetic, one line per step."""
        item, scale = KV_ITEMSIZE[self.dtype], KV_SCALE_BYTES[self.dtype]
        numbers = f"{self.head_dim} head dim x {item}"
        bytes_per_head = f"({numbers} + {scale})" if scale else numbers
        return [
            f"{self.attention}: {self.num_kv_heads} KV heads for {self.num_heads} query heads, "
            f"{self.share_of_mha:.3g}x the cache of multi-head attention",
            f"KV per token = 2 x {self.num_layers} layers x {self.num_kv_heads} KV heads x "
            f"{bytes_per_head} bytes ({self.dtype}) = {self.bytes_per_token:,} bytes "
            f"= {self.bytes_per_token / 1024:,.1f} KiB",
            *self._explain_windows(),
            f"KV in all = {self._sequence()} x {self.batch:,} sequences = {format_bytes(self.total_bytes)}",
        ]

    def _sequence(self) -> str:
        if self.window_tokens:
            return f"{self.sequence_bytes:,} bytes"
        return f"{self.bytes_per_token:,} bytes x {self.length:,} tokens"

    def _explain_windows(self) -> list[str]:
        if not self.window_tokens:
            return []
        share = self.sequence_bytes / (self.bytes_per_token * self.length)
        return [
            f"windows: {self.full_layers} layers keep {self.length:,} tokens, and the blocks of layers with a window, "
            f"{self.window_layers} with padding, at most {min(self.length, self.window_tokens):,}: "
            f"{share:.3g}x a cache that keeps all"
        ]


class Devices(msgspec.Struct, frozen=True, kw_only=True):
    """Equal devices that hold one model together (tensor parallel)."""

    bytes_each: int
    """The memory of one device."""
    count: int = 1
    """Number of devices."""
    usable_share: float = 0.90
    """Share of the memory that may be planned; the rest is for the driver and activations."""

    def __post_init__(self) -> None:
        if self.bytes_each < 1 or self.count < 1:
            raise MemoryPlanError(f"{self.count} devices of {self.bytes_each} bytes: both must be at least 1")
        if not 0 < self.usable_share <= 1:
            raise MemoryPlanError(f"usable_share is {self.usable_share}; it must be above 0 and at most 1")

    @property
    def usable_bytes_each(self) -> int:
        return int(self.bytes_each * self.usable_share)

    @property
    def usable_bytes(self) -> int:
        return self.usable_bytes_each * self.count


class MemoryPlan(msgspec.Struct, frozen=True, kw_only=True):
    """What weights and reserve leave for the KV cache, over all devices together."""

    weight_bytes: int
    reserve_bytes: int
    kv_bytes: int
    kv_tokens: int
    """How many tokens fit into `kv_bytes`."""
    lines: tuple[str, ...]
    """The arithmetic, for people."""

    def blocks(self, block_size: int) -> int:
        """Whole KV blocks of `block_size` tokens."""
        return self.kv_tokens // block_size


def plan_memory(*, devices: Devices, weight_bytes: int, kv: KVDemand, reserve_bytes: int = 0) -> MemoryPlan:
    """Place weights, a reserve and at least `kv` (SPEC TI-06). Byte counts are of the whole model, not per device.

    Weights and KV heads are split evenly; if there are more devices than KV heads, heads are replicated. Raises
    MemoryPlanError, whose message is the same arithmetic and by how much it fails.
    """
    if weight_bytes < 0 or reserve_bytes < 0:
        raise MemoryPlanError(
            f"weights of {weight_bytes} and a reserve of {reserve_bytes} bytes: neither may be negative"
        )
    count = devices.count
    if kv.num_heads % count:
        raise MemoryPlanError(f"{kv.num_heads} query heads cannot be split over {count} devices evenly")
    heads_each = -(-kv.num_kv_heads // count)
    sequence_bytes_each = kv.sequence_bytes // kv.num_kv_heads * heads_each
    token_bytes_each = -(-sequence_bytes_each // kv.length)
    weights_each, reserve_each = -(-weight_bytes // count), -(-reserve_bytes // count)
    left_each = devices.usable_bytes_each - weights_each - reserve_each
    lines = [
        f"usable: {count} x {format_bytes(devices.bytes_each)} x {devices.usable_share:g} "
        f"= {format_bytes(devices.usable_bytes)}",
        f"weights: {format_bytes(weights_each * count)}",
        f"reserve: {format_bytes(reserve_each * count)}",
        f"left for the KV cache: {format_bytes(left_each * count)}",
        *kv.explain(),
    ]
    if heads_each * count != kv.num_kv_heads:
        lines.append(
            f"{kv.num_kv_heads} KV heads on {count} devices: {heads_each} on each, so {token_bytes_each * count:,} "
            "bytes per token"
        )
    if left_each < 0:
        raise MemoryPlanError(_refusal("the weights do not fit", lines, -left_each * count))
    kv_tokens = left_each * kv.length // sequence_bytes_each
    lines.append(
        f"tokens that fit = {format_bytes(left_each * count)} / {token_bytes_each * count:,} bytes = {kv_tokens:,}; "
        f"asked for {kv.length:,} x {kv.batch:,} = {kv.tokens:,}"
    )
    if kv_tokens < kv.tokens:
        missing = (kv.batch * sequence_bytes_each - left_each) * count
        raise MemoryPlanError(_refusal("the KV cache does not fit", lines, missing))
    return MemoryPlan(
        weight_bytes=weight_bytes,
        reserve_bytes=reserve_bytes,
        kv_bytes=left_each * count,
        kv_tokens=kv_tokens,
        lines=tuple(lines),
    )


def _refusal(what: str, lines: list[str], missing: int) -> str:
    advice = "use fewer or shorter sequences, a smaller KV dtype, fewer weight bits, or more memory"
    return "\n".join([f"{what}: {format_bytes(missing)} are missing", *lines, advice])
