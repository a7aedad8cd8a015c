"""GPU device groups of a catalogue: data for planning, with the memory arithmetic of SPEC TI-06."""

from typing import Annotated, Literal

import msgspec

KV_ITEMSIZE = {"float16": 2, "bfloat16": 2}


class GpuModelSpec(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A model of a GPU group: its file, its weight format and the numbers that its memory depends on."""

    name: str
    path: str
    weights: Literal["awq-int4", "gptq-int4", "bfloat16"]
    weight_bytes: Annotated[int, msgspec.Meta(gt=0)]
    num_layers: Annotated[int, msgspec.Meta(gt=0)]
    num_kv_heads: Annotated[int, msgspec.Meta(gt=0)]
    head_dim: Annotated[int, msgspec.Meta(gt=0)]
    kv_dtype: Literal["float16", "bfloat16"] = "float16"
    max_context: Annotated[int, msgspec.Meta(ge=2)]

    @property
    def kv_bytes_per_token(self) -> int:
        """2 x layers x KV heads x head dim x item size (SPEC KV-02)."""
        return 2 * self.num_layers * self.num_kv_heads * self.head_dim * KV_ITEMSIZE[self.kv_dtype]


class GpuGroupSpec(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`cards` equal GPUs that hold their models in tensor parallel; `memory_utilization` of a card may be used."""

    name: str
    cards: Annotated[int, msgspec.Meta(ge=1)]
    card_bytes: Annotated[int, msgspec.Meta(gt=0)]
    memory_utilization: Annotated[float, msgspec.Meta(gt=0, le=1)] = 0.9
    max_num_batched_tokens: Annotated[int, msgspec.Meta(ge=1)] = 8192
    models: list[GpuModelSpec]

    @property
    def usable_bytes(self) -> int:
        """Bytes of all cards together that weights and keys and values may take."""
        return int(self.cards * self.card_bytes * self.memory_utilization)

    @property
    def kv_bytes(self) -> int:
        """Bytes left for keys and values; negative when the weights alone do not fit."""
        return self.usable_bytes - sum(m.weight_bytes for m in self.models)

    def memory_lines(self) -> list[str]:
        """The arithmetic, one line per term, in GB of 10^9 bytes."""
        lines = [
            f"{self.name}: {self.cards} x {self.card_bytes / 1e9:.1f} GB x {self.memory_utilization:g} "
            f"= {self.usable_bytes / 1e9:.1f} GB usable"
        ]
        lines += [f"  - {m.weight_bytes / 1e9:.1f} GB weights of {m.name} ({m.weights})" for m in self.models]
        lines.append(f"  = {self.kv_bytes / 1e9:.1f} GB for keys and values")
        for m in self.models:
            tokens = max(self.kv_bytes, 0) // m.kv_bytes_per_token
            lines.append(f"  / {m.kv_bytes_per_token} bytes per token of {m.name} = {tokens} tokens")
        return lines
