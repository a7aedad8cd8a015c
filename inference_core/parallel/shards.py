"""A model of a mesh, divided over its ranks: one rank's part of a model file as the checkpoint of a smaller model.

Dividing reads no weights; a rank reads only its part of the file.
"""

import hashlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from math import lcm

import msgspec

from inference_core.device.load_device_core import device_layout
from inference_core.errors import MemoryPlanError
from inference_core.kv_cache.layout import KVLayout
from inference_core.loaders.checkpoint import Checkpoint
from inference_core.loaders.decoder_tensors import refuse_features
from inference_core.loaders.packed_tensor import PackedTensor, stack
from inference_core.model_config import ModelConfig
from inference_core.model_spec import DeviceModelSpec
from inference_core.models.weights import Projection, projections
from inference_core.parallel.mesh import Mesh, RankShare, SplitUnits, divide
from inference_core.protocol import ModelInfo

EMBEDDING = "model.embed_tokens.weight"
FINAL_NORM = "model.norm.weight"
HEAD = "lm_head.weight"
_Cut = Callable[[str], PackedTensor]


def split_units(checkpoint: Checkpoint) -> SplitUnits:
    """The smallest units in which row-parallel layers can be split: never inside a group of weights with one scale.

    Inner columns are also the outputs of gate and up, and some files pack several of these into one integer.
    """

    config = checkpoint.config
    layers = [f"model.layers.{i}" for i in range(config.num_layers)]
    networks = [f".mlp.experts.{e}" for e in range(config.num_experts)] or [".mlp"]
    mlps = [f"{layer}{network}" for layer in layers for network in networks]
    columns = lcm(*(checkpoint.column_unit(f"{mlp}.down_proj.weight") for mlp in mlps))
    rows = lcm(*(checkpoint.row_unit(f"{mlp}.{part}_proj.weight") for mlp in mlps for part in ("gate", "up")))
    return SplitUnits(
        attention_output=lcm(*(checkpoint.column_unit(f"{layer}.self_attn.o_proj.weight") for layer in layers)),
        down=lcm(columns, rows),
    )


class ShardCheckpoint(Checkpoint):
    """The shard of one rank. Layers count from 0; the settings are those of `RankShare.config`.

    `tensors` has the embedding only in the first stage, and final norm and head only in the last. A tied head is the
    embedding's rows, so the last stage has these too.
    """

    def __init__(self, whole: Checkpoint, share: RankShare, file_fingerprint: str | None = None) -> None:
        """`file_fingerprint`: content hash of the whole file if known, so that the file is not read for it."""
        super().__init__(whole.path, None)
        self._file_fingerprint = file_fingerprint
        self._whole = whole
        self._share = share
        self._config = share.config(whole.config)

    @property
    def config(self) -> ModelConfig:
        return self._config

    @cached_property
    def tensors(self) -> Mapping[str, PackedTensor]:
        return _Tensors(self._whole, self._share)

    @cached_property
    def fingerprint(self) -> str:
        """The file's content hash, and which part of it this is."""
        share = msgspec.json.encode(self._share, enc_hook=_borders)
        part = hashlib.blake2b(share, digest_size=8).hexdigest()
        return f"{self._file_fingerprint or self._whole.fingerprint}-part-{part}"


class _Tensors(Mapping[str, PackedTensor]):
    """Maps local names to parts of the file's tensors, each made on access."""

    def __init__(self, whole: Checkpoint, share: RankShare) -> None:
        self._whole = whole
        self._share = share
        self._cuts: dict[str, _Cut] = {
            "q_proj": self._query_rows,
            "k_proj": self._kv_rows,
            "v_proj": self._kv_rows,
            "o_proj": self._attention_columns,
            "gate_proj": lambda name: whole.cut(name, share.inner),
            "up_proj": lambda name: whole.cut(name, share.inner),
            "down_proj": self._inner_columns,
        }
        self._names = {self._local(name): name for name in whole.tensors if self._is_held(name)}

    def __getitem__(self, name: str) -> PackedTensor:
        stored = self._names[name]
        if stored in (EMBEDDING, HEAD):
            return self._whole.cut(stored, self._share.vocabulary)
        part = stored.split(".")[-2]
        cut = self._cuts.get(part)
        return self._whole.tensors[stored] if cut is None else cut(stored)

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)

    def _is_held(self, name: str) -> bool:
        if name == EMBEDDING:
            return self._share.first or (self._share.last and self._whole.config.tie_embeddings)
        if name in (FINAL_NORM, HEAD):
            return self._share.last
        layer = int(name.split(".")[2])
        return self._share.layers.start <= layer < self._share.layers.stop

    def _local(self, name: str) -> str:
        match name.split("."):
            case ["model", "layers", layer, *rest]:
                return ".".join(["model", "layers", str(int(layer) - self._share.layers.start), *rest])
        return name

    def _rows_of(self, heads: range) -> range:
        return rows_of_heads(heads, self._whole.config.head_dim)

    def _query_rows(self, name: str) -> PackedTensor:
        return self._whole.cut(name, self._rows_of(self._share.heads.query))

    def _kv_rows(self, name: str) -> PackedTensor:
        return stack([self._whole.cut(name, self._rows_of(run)) for run in head_runs(self._share.heads.kv_heads)])

    def _attention_columns(self, name: str) -> PackedTensor:
        return self._whole.cut(name, self._every_row, self._rows_of(self._share.heads.query))

    def _inner_columns(self, name: str) -> PackedTensor:
        return self._whole.cut(name, self._every_row, self._share.inner)

    @property
    def _every_row(self) -> range:
        return range(self._whole.config.hidden_size)


def _borders(indices: range) -> tuple[int, int]:
    return indices.start, indices.stop


def rows_of_heads(heads: range, head_dim: int) -> range:
    """The output rows of a projection that belong to `heads`."""
    return range(heads.start * head_dim, heads.stop * head_dim)


def head_runs(heads: tuple[int, ...]) -> list[range]:
    """Consecutive heads as spans, so that an even split is one cut: (2, 3) -> [2, 4); (0, 0, 1) -> [0, 1), [0, 2)."""
    runs: list[range] = []
    for head in heads:
        if runs and runs[-1].stop == head:
            runs[-1] = range(runs[-1].start, head + 1)
        else:
            runs.append(range(head, head + 1))
    return runs


@dataclass(slots=True, frozen=True)
class DividedModel:
    """A model divided over the ranks of a mesh."""

    spec: DeviceModelSpec
    checkpoint: Checkpoint
    shares: list[RankShare]
    layout: KVLayout
    """The layout of the rank whose blocks are the largest."""

    @property
    def config(self) -> ModelConfig:
        return self.checkpoint.config

    @property
    def max_context(self) -> int:
        """Tokens of prompt and answer together: the requested number, at most the model's trained length."""
        return min(self.spec.max_context or self.config.max_position, self.config.max_position)

    def vocabulary_widths(self, tensor_ranks: int) -> list[int]:
        """Vocabulary rows of each rank of a stage."""
        return [len(share.vocabulary) for share in self.shares[:tensor_ranks]]

    def info(self, weight_bytes: int) -> ModelInfo:
        return ModelInfo(
            name=self.spec.name,
            model_path=self.spec.path,
            max_context=self.max_context,
            vocab_size=self.config.vocab_size,
            weight_bytes=weight_bytes,
            compute=self.spec.compute,
            weights=self.checkpoint.fingerprint,
        )


def divide_model(
    spec: DeviceModelSpec, checkpoint: Checkpoint, mesh: Mesh, *, uneven: bool, slab_bytes: int
) -> DividedModel:
    """Divide a model. Raises MeshError if it cannot be divided, ModelFileError if it has features that meshes do not
    compute, MemoryPlanError for blocks larger than a slab."""
    refuse_features(checkpoint.path, checkpoint.config, "a mesh")
    shares = divide(checkpoint.config, mesh, split_units(checkpoint), uneven=uneven)
    layouts = [device_layout(spec, share.config(checkpoint.config)) for share in shares]
    largest = max(layouts, key=lambda layout: layout.block_bytes)
    if largest.block_bytes > slab_bytes:
        raise MemoryPlanError(
            f"{spec.name}: a rank's block of {largest.block_size} tokens takes {largest.block_bytes} bytes, more "
            f"than a slab of {slab_bytes}; make slab_bytes larger or block_size smaller"
        )
    return DividedModel(spec, checkpoint, shares, largest)


def held_projections(shard: ShardCheckpoint, share: RankShare) -> list[Projection]:
    """The linear layers that a rank holds; the head belongs to the last stage."""
    return [projection for projection in projections(shard) if projection.name != "head" or share.last]
