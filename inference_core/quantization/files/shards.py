"""Writes a checkpoint's tensors as they are made: numbered safetensors files of bounded size, and their index."""

from pathlib import Path
from types import TracebackType

import msgspec
import torch
from safetensors.torch import save_file

from inference_core.loaders.huggingface.hf_checkpoint import INDEX

SHARD_BYTES = 512 * 2**20


class ShardWriter:
    """Holds tensors up to `shard_bytes`, then writes them to `folder`. As a context manager: the files get their names
    and the index is written when the block ends well; when not, what was written is removed.
    """

    def __init__(self, folder: Path, shard_bytes: int = SHARD_BYTES) -> None:
        self._folder = folder
        self._shard_bytes = shard_bytes
        self._held: dict[str, torch.Tensor] = {}
        self._held_bytes = 0
        self._shards: list[tuple[Path, list[str]]] = []
        self.total_bytes = 0

    def add(self, name: str, tensor: torch.Tensor) -> None:
        """Take one more tensor, and write all that are held once they fill a file."""
        self._held[name] = tensor.contiguous()
        self._held_bytes += tensor.nbytes
        self.total_bytes += tensor.nbytes
        if self._held_bytes >= self._shard_bytes:
            self._flush()

    def __enter__(self) -> "ShardWriter":
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        if kind is None:
            self._flush()
            self._name_files()
        else:
            for path, _names in self._shards:
                path.unlink(missing_ok=True)

    def _flush(self) -> None:
        if not self._held:
            return
        path = self._folder / f".shard-{len(self._shards) + 1:05}.tmp"
        save_file(self._held, path, metadata={"format": "pt"})
        self._shards.append((path, list(self._held)))
        self._held, self._held_bytes = {}, 0

    def _name_files(self) -> None:
        total = len(self._shards)
        weight_map: dict[str, str] = {}
        for number, (path, names) in enumerate(self._shards, 1):
            name = "model.safetensors" if total == 1 else f"model-{number:05}-of-{total:05}.safetensors"
            path.replace(self._folder / name)
            weight_map |= dict.fromkeys(names, name)
        if total > 1:
            index = {"metadata": {"total_size": self.total_bytes}, "weight_map": weight_map}
            (self._folder / INDEX).write_bytes(msgspec.json.format(msgspec.json.encode(index), indent=2))
