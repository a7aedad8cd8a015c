"""A Hugging Face folder (config.json and safetensors, sharded or not) as a checkpoint."""

from collections.abc import Iterator, Mapping
from functools import cached_property, partial
from pathlib import Path
from typing import cast

import msgspec
import numpy as np

from inference_core.errors import ModelFileError
from inference_core.io.files import JSON_ERRORS, prepare_types
from inference_core.loaders.checkpoint import Checkpoint
from inference_core.loaders.decoder_tensors import Shape, check_config, check_tensors
from inference_core.loaders.huggingface.hf_config import (
    logits_divisor,
    norm_offset,
    read_config,
    read_layer_format,
    read_sparsity,
)
from inference_core.loaders.huggingface.quantized_layer import Files, QuantizedLayer, without_parts
from inference_core.loaders.huggingface.safetensors_file import SafetensorsFile
from inference_core.loaders.model_file import MAX_INDEX, read_model_file
from inference_core.loaders.packed_tensor import PLAIN_DTYPES, Kind, PackedTensor
from inference_core.loaders.tensor_views import View, check_fused, gpt_oss_views, views
from inference_core.model_config import ModelConfig

INDEX = "model.safetensors.index.json"
MAX_LISTED = 400_000
"""Tensors of a folder: the largest models have some 150,000."""
_DERIVED = "rotary_emb.inv_freq"
_LM_HEAD, _EMBEDDING = "lm_head.weight", "model.embed_tokens.weight"


class _Index(msgspec.Struct):
    weight_map: dict[str, str]


prepare_types(_Index)


class HFCheckpoint(Checkpoint):
    """Folders of the architectures of `hf_config` with tensors in F32, F16 or BF16; linear layers also in AWQ, GPTQ,
    compressed-tensors, FP8 or bitsandbytes format, experts in MXFP4. Pickled weights are refused.
    """

    def __init__(self, path: Path, cache_dir: Path | None = None) -> None:
        super().__init__(path, cache_dir)
        self._config = read_config(path)
        check_config(path, self._config)
        stored = self._open_tensors()
        self._stored_bytes = sum(file.entries[name].num_bytes for name, file in stored.items())
        self._sparsity = read_sparsity(path)
        files: Files = _dense(path, stored) if self._sparsity.compressed else stored
        self._layers = _quantized_layers(path, files)
        self._files = without_parts(self._layers, files)
        for name, file in self._files.items():
            if file.entries[name].dtype not in PLAIN_DTYPES:
                raise ModelFileError(
                    f"{file.path}: tensor '{name}' is of kind {file.entries[name].dtype}; supported are "
                    f"{', '.join(PLAIN_DTYPES)}"
                )
        shapes: dict[str, Shape] = {name: file.entries[name].shape for name, file in self._files.items()}
        shapes |= {name: layer.shape for name, layer in self._layers.items()}
        check_fused(path, self._config, shapes)
        self._views = views(self._config, shapes, logits_divisor(path), norm_offset(self._config))
        self._views |= gpt_oss_views(self._config, shapes)
        changed = {name: view.shape(shapes[view.source]) for name, view in self._views.items() if view.source in shapes}
        fused = {view.source for view in self._views.values()} - self._views.keys()
        check_tensors(path, self._config, {n: s for n, s in shapes.items() if n not in fused} | changed)

    @property
    def config(self) -> ModelConfig:
        return self._config

    @property
    def stored_bytes(self) -> int:
        return self._stored_bytes

    @property
    def stated_sparsity(self) -> str | None:
        return self._sparsity.structure

    @cached_property
    def tensors(self) -> Mapping[str, PackedTensor]:
        return _Tensors(self.path, self._files, self._layers, self._views)

    def cut(self, name: str, rows: range, columns: range | None = None) -> PackedTensor:
        view = self._views.get(name, View(source=name))
        layer = self._layers.get(view.source)
        if layer is None:
            return super().cut(name, rows, columns)
        stored = range(view.first + rows.start, view.first + rows.stop)
        return view.moved(layer.cut(self.path, stored, range(layer.shape[1]) if columns is None else columns))

    def column_unit(self, name: str) -> int:
        layer = self._layer(name)
        return super().column_unit(name) if layer is None else layer.column_unit

    def row_unit(self, name: str) -> int:
        layer = self._layer(name)
        return super().row_unit(name) if layer is None else layer.row_unit

    def _layer(self, name: str) -> QuantizedLayer | None:
        return self._layers.get(self._views[name].source if name in self._views else name)

    def _open_tensors(self) -> dict[str, SafetensorsFile]:
        listed = _listed(self.path)
        shards = {name: SafetensorsFile(self.path / name) for name in sorted(set(listed.values()))} if listed else {}
        for tensor, shard in listed.items():
            if tensor not in shards[shard]:
                raise ModelFileError(f"{self.path / INDEX} says that {shard} holds '{tensor}', but it does not")
        if not listed:
            files = [SafetensorsFile(file) for file in sorted(self.path.glob("*.safetensors"))]
            file_by_name = {name: file for file in files for name in file}
        else:
            file_by_name = {tensor: shards[shard] for tensor, shard in listed.items()}
        if not file_by_name:
            raise ModelFileError(_no_weights(self.path))
        if self._config.tie_embeddings and _LM_HEAD in file_by_name:
            # Some files with a tied head store it twice, and some have a head of their own.
            if _is_copy(file_by_name, _LM_HEAD, _EMBEDDING):
                del file_by_name[_LM_HEAD]
            else:
                self._config = msgspec.structs.replace(self._config, tie_embeddings=False)
        # Old files store the rotary table.
        return {name: file for name, file in file_by_name.items() if not name.endswith(_DERIVED)}


def _is_copy(file_by_name: Mapping[str, SafetensorsFile], name: str, source: str) -> bool:
    """Whether two tensors are the same, bit by bit."""
    if source not in file_by_name:
        return False
    copied, copy = file_by_name[source], file_by_name[name]
    is_like = copied.entries[source].dtype == copy.entries[name].dtype
    return is_like and np.array_equal(copied[source].view(np.uint8), copy[name].view(np.uint8))


# A folder has one format of weights, and does without the readers of the others.


def _dense(path: Path, stored: Mapping[str, SafetensorsFile]) -> Files:
    from inference_core.loaders.huggingface.scaled_layers import made_dense

    return made_dense(path, stored)


def _quantized_layers(path: Path, files: Files) -> Mapping[str, QuantizedLayer]:
    """The quantised linear layers, by the name of their weight."""
    form = read_layer_format(path)
    if form is None:
        return {}
    if form == "mxfp4":
        from inference_core.loaders.huggingface.table_layers import mxfp4_layers

        return mxfp4_layers(path, files)
    if form == "compressed int4":
        from inference_core.loaders.huggingface.int4_layers import compressed_int4_layers

        return compressed_int4_layers(path, files)
    if form != "eight bits" and form != "bitsandbytes":
        from inference_core.loaders.huggingface.int4_layers import group_layers

        return group_layers(path, form, files)
    from inference_core.loaders.huggingface.scaled_layers import scaled_layers

    if form == "eight bits":
        return scaled_layers(path, files)
    from inference_core.loaders.huggingface.table_layers import table_layers

    return table_layers(path, files) | scaled_layers(path, files)


def _listed(folder: Path) -> dict[str, str]:
    """Tensor name to shard file, from the index of a sharded folder; empty if it has none."""
    index = folder / INDEX
    if not index.exists():
        return {}
    try:
        listed = msgspec.json.decode(read_model_file(index, MAX_INDEX), type=_Index).weight_map
    except JSON_ERRORS as error:
        raise ModelFileError(f"{index} is not a safetensors index ({error})") from error
    if len(listed) > MAX_LISTED:
        raise ModelFileError(f"{index} lists {len(listed)} tensors; at most {MAX_LISTED} are supported")
    for shard in set(listed.values()):
        if Path(shard).name != shard:
            raise ModelFileError(f"{index} points outside the folder: '{shard}'")
    return listed


def _no_weights(folder: Path) -> str:
    pickled = sorted(file.name for pattern in ("*.bin", "*.pt", "*.pth") for file in folder.glob(pattern))
    if pickled:
        return (
            f"{folder} holds only pickled weights ({', '.join(pickled[:3])}), which can run code when loaded; "
            "convert them to safetensors"
        )
    return f"{folder} holds no *.safetensors file"


class _Tensors(Mapping[str, PackedTensor]):
    """Maps the decoder's names to tensors, each made on access."""

    def __init__(
        self, path: Path, files: Files, layers: Mapping[str, QuantizedLayer], changed: Mapping[str, View]
    ) -> None:
        self._path, self._files, self._layers, self._views = path, files, layers, changed
        fused = {view.source for view in changed.values()} - changed.keys()
        self._names = ({*files, *layers} - fused) | changed.keys()

    def __getitem__(self, name: str) -> PackedTensor:
        view = self._views.get(name)
        return self._stored(name) if view is None else view.of(self._stored(view.source))

    def _stored(self, name: str) -> PackedTensor:
        if name in self._layers:
            return self._layers[name].tensor(self._path)
        file = self._files[name]
        entry = file.entries[name]
        kind = cast(Kind, entry.dtype)
        # A sparse weight is made when its numbers are asked for, not with its shape.
        source = file[name] if isinstance(file, SafetensorsFile) else partial(file.__getitem__, name)
        return PackedTensor(kind, entry.shape, source)

    def __iter__(self) -> Iterator[str]:
        return iter(sorted(self._names))

    def __len__(self) -> int:
        return len(self._names)
