"""GPU device groups of a catalogue: data for planning, with the memory arithmetic of SPEC TI-06."""

from typing import Annotated, Literal

import msgspec

from inference_core.kv_layout import kv_bytes_per_token
from inference_core.memory_plan import Devices


class GpuModelSpec(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A model of a GPU group: its file, its weight format and the numbers that its memory depends on.

    `shape` names the rest of them (`inference_core.model_shapes`), so that a placement can be planned without the file.
    """

    name: str
    path: str
    weights: Literal["awq-int4", "gptq-int4", "bfloat16"]
    weight_bytes: Annotated[int, msgspec.Meta(gt=0)]
    num_layers: Annotated[int, msgspec.Meta(gt=0)]
    num_kv_heads: Annotated[int, msgspec.Meta(gt=0)]
    head_dim: Annotated[int, msgspec.Meta(gt=0)]
    kv_dtype: Literal["float16", "bfloat16"] = "float16"
    shape: str | None = None
    max_context: Annotated[int, msgspec.Meta(ge=2)]

    @property
    def kv_bytes_per_token(self) -> int:
        """See `inference_core.kv_layout.kv_bytes_per_token`."""
        return kv_bytes_per_token(
            num_layers=self.num_layers, num_kv_heads=self.num_kv_heads, head_dim=self.head_dim, dtype=self.kv_dtype
        )


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
        cards = Devices(bytes_each=self.card_bytes, count=self.cards, usable_share=self.memory_utilization)
        return cards.usable_bytes

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
