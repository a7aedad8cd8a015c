"""Which heads, inner columns, layers and vocabulary rows each rank holds. No torch: arithmetic only.

Linear layers are split as in Megatron-LM (Shoeybi et al. 2019): q, k, v, gate and up by their outputs (column
parallel), attention output and down by their inputs (row parallel), so that a layer needs two sums over the ranks
(SPEC PX-01). Embedding and head are split by vocabulary.
"""

import itertools
from math import gcd, lcm

import msgspec

from inference_core.errors import MeshError
from inference_core.model_config import ModelConfig
from inference_core.parallel.topology.mesh import Mesh


class SplitUnits(msgspec.Struct, frozen=True, kw_only=True):
    """The smallest units in which the file's row-parallel inputs can be split (SPEC PX-05)."""

    attention_output: int = 1
    down: int = 1


class HeadShare(msgspec.Struct, frozen=True):
    """A rank's query heads, and the KV heads that they read, in order; a KV head repeats where a group is split."""

    query: range
    kv_heads: tuple[int, ...]


class RankShare(msgspec.Struct, frozen=True, kw_only=True):
    """What one rank holds. Only the first stage has the embedding, only the last one has final norm and head."""

    stage: int
    shard: int
    layers: range
    heads: HeadShare
    inner: range
    vocabulary: range
    first: bool
    last: bool

    def config(self, whole: ModelConfig) -> ModelConfig:
        """The settings of this rank's decoder: those of a smaller model of the same width, layers counted from 0."""
        windows = None if whole.window_layers is None else self._own(whole.window_layers)
        return msgspec.structs.replace(
            whole,
            window_layers=windows,
            no_rope_layers=self._own(whole.no_rope_layers),
            num_layers=len(self.layers),
            num_heads=len(self.heads.query),
            num_kv_heads=len(self.heads.kv_heads),
            intermediate_size=len(self.inner),
            vocab_size=len(self.vocabulary),
        )

    def _own(self, layers: tuple[int, ...]) -> tuple[int, ...]:
        return tuple(layer - self.layers.start for layer in layers if layer in self.layers)


def divide(
    config: ModelConfig, mesh: Mesh, units: SplitUnits | None = None, *, uneven: bool = False
) -> list[RankShare]:
    """Return the shares of all ranks, in rank order.

    Raises MeshError, with the reason, for sizes that do not divide evenly; with `uneven`, shares may differ by one
    unit.
    """
    units = units or SplitUnits()
    stages = split(config.num_layers, mesh.pipeline, "layers", uneven=uneven)
    # The attention output is split between heads, and between scale groups if these span several heads.
    unit_heads = lcm(units.attention_output, config.head_dim) // config.head_dim
    heads = split_heads(config.num_heads, config.num_kv_heads, mesh.tensor, unit=unit_heads, uneven=uneven)
    # Kernels take inputs in pairs at least.
    inner = split(config.intermediate_size, mesh.tensor, "inner columns", unit=lcm(units.down, 2), uneven=uneven)
    vocabulary = split(config.vocab_size, mesh.tensor, "vocabulary rows", uneven=uneven)
    return [
        RankShare(
            stage=stage,
            shard=shard,
            layers=layers,
            heads=heads[shard],
            inner=inner[shard],
            vocabulary=vocabulary[shard],
            first=stage == 0,
            last=stage == mesh.pipeline - 1,
        )
        for stage, layers in enumerate(stages)
        for shard in range(mesh.tensor)
    ]


def split(total: int, parts: int, what: str, *, unit: int = 1, uneven: bool = False) -> list[range]:
    """Split `total` into consecutive spans of whole units, the first ones larger if they cannot be equal.

    Raises MeshError if spans would be empty, or unequal without `uneven`.
    """
    units, rest = divmod(total, unit)
    in_units = f"{total} {what}" + (f" in units of {unit}" if unit > 1 else "")
    if rest and parts > 1:
        raise MeshError(f"{in_units} leave {rest} over; they cannot be split")
    if parts > max(units, 1):
        raise MeshError(f"{in_units} cannot give each of {parts} ranks a part; use at most {max(units, 1)} ranks")
    if units % parts and not uneven:
        allowed = ", ".join(str(n) for n in range(1, min(units, 64) + 1) if units % n == 0)
        raise MeshError(
            f"{in_units} cannot be split over {parts} ranks evenly; use one of {allowed} ranks, or allow uneven splits"
        )
    small, larger = divmod(units, parts)
    borders = [0]
    for part in range(parts):
        borders.append(borders[-1] + (small + (part < larger)) * unit)
    borders[-1] = total
    return [range(begin, end) for begin, end in itertools.pairwise(borders)]


def split_heads(
    num_heads: int, num_kv_heads: int, parts: int, *, unit: int = 1, uneven: bool = False
) -> list[HeadShare]:
    """Split query heads over the ranks, with the KV heads that each rank needs (SPEC PX-02).

    KV heads are split if their number is a multiple of the ranks, and replicated if the ranks are a multiple of it.
    With `uneven` a rank's queries may start or end inside a group; its KV heads are then repeated, at worst once per
    query head, so that all of them serve equally many queries, as attention backends require.
    """
    spans = split(num_heads, parts, "query heads", unit=unit, uneven=uneven)
    if num_kv_heads % parts and parts % num_kv_heads and not uneven:
        raise MeshError(
            f"{num_kv_heads} KV heads can neither be split over {parts} ranks evenly nor be replicated on them; "
            "use a divisor or a multiple as the number of ranks, or allow uneven splits"
        )
    return [HeadShare(span, _kv_heads(span, num_heads // num_kv_heads)) for span in spans]


def _kv_heads(query: range, group: int) -> tuple[int, ...]:
    """The KV heads of query heads `query`; in the whole model, `group` query heads share one."""
    pieces = [
        (head, min(query.stop, (head + 1) * group) - max(query.start, head * group))
        for head in range(query.start // group, -(-query.stop // group))
    ]
    served = gcd(*(size for _, size in pieces))
    return tuple(head for head, size in pieces for _ in range(size // served))
