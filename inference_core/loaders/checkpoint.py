"""The interface of model files of any format: settings, tensors under Hugging Face names, content hash.

`describe_sparsity` finds out whether a model is 2:4 sparse (SPEC TI-11): no kernel skips zeros, so its owner should
know.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from functools import cached_property
from pathlib import Path

from inference_core.loaders.model_file import file_fingerprint
from inference_core.loaders.packed_tensor import PLAIN_DTYPES, PackedTensor, column_unit, cut, dequantize
from inference_core.model_config import ModelConfig


class Checkpoint(ABC):
    """Contract: opening checks the whole directory (names, shapes, byte ranges) but reads no weights; tensors are
    memory-mapped, read-only and made on access. Any error raises ModelFileError.

    Tensor names are those of `decoder_tensors`; `lm_head.weight` is absent when `config.tie_embeddings`. Rows of q and
    k projections are in Hugging Face's half-split rotary order.
    """

    def __init__(self, path: Path, cache_dir: Path | None) -> None:
        self.path = path
        self._cache_dir = cache_dir

    @property
    @abstractmethod
    def config(self) -> ModelConfig: ...

    @property
    @abstractmethod
    def tensors(self) -> Mapping[str, PackedTensor]: ...

    @property
    def stored_bytes(self) -> int:
        """Bytes of the weights as the file has them."""
        return self.path.stat().st_size

    @property
    def stated_sparsity(self) -> str | None:
        """The pattern of zeros that the file's settings claim, as "2:4"; None if they do not."""
        return None

    def cut(self, name: str, rows: range, columns: range | None = None) -> PackedTensor:
        """Read only these rows and columns of a tensor (None: all columns) (SPEC PX-05).

        Columns are cut at multiples of `column_unit`, rows at multiples of `row_unit`.
        """
        return cut(self.tensors[name], rows, columns)

    def column_unit(self, name: str) -> int:
        """The number of columns that share a scale and cannot be split."""
        return column_unit(self.tensors[name])

    def row_unit(self, name: str) -> int:
        """The number of rows that the file packs together; q and k projections are also cut only between heads."""
        return 1

    @cached_property
    def fingerprint(self) -> str:
        """Content hash of the file or folder; cached under `cache_dir`, so that a warm start reads nothing."""
        return file_fingerprint(self.path, self._cache_dir)


_SAMPLED = ("self_attn.o_proj.weight", "mlp.down_proj.weight")


def describe_sparsity(checkpoint: Checkpoint) -> str | None:
    """How a 2:4 sparse model is computed, None for any other one.

    A model is sparse if its settings say so, or if two of every four weights are zero in one row of each of two
    matrices in every layer; only unquantised weights are looked at.
    """
    if checkpoint.stated_sparsity == "2:4" or _is_two_of_four(checkpoint):
        return "2:4 sparse: held and multiplied as dense, zeros included"
    return None


def _is_two_of_four(checkpoint: Checkpoint) -> bool:
    tensors, has_sampled = checkpoint.tensors, False
    for layer in range(checkpoint.config.num_layers):
        for name in (f"model.layers.{layer}.{part}" for part in _SAMPLED):
            if name not in tensors:
                continue  # a network of experts
            tensor = tensors[name]
            if tensor.kind not in PLAIN_DTYPES or tensor.shape[1] % 4:
                return False
            row = dequantize(checkpoint.cut(name, range(1))).reshape(-1, 4)
            if ((row == 0).sum(axis=1) < 2).any() or not row.any():
                return False
            has_sampled = True
    return has_sampled
