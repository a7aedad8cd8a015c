"""A rank's part of every adapter: cut as the layers are that it belongs to, read from the folder by the rank itself."""

from pathlib import Path

from inference_core.errors import ModelFileError
from inference_core.loaders.packed_tensor import PackedTensor
from inference_core.loaders.tensor_cut import cut, stack
from inference_core.lora.adapter import Adapter, LowRank
from inference_core.lora.adapter_file import read_adapter
from inference_core.lora.bank import AdapterBank
from inference_core.model_config import ModelConfig
from inference_core.parallel.shards.shard_checkpoint import head_runs, rows_of_heads
from inference_core.parallel.topology.splits import RankShare


class RankAdapters:
    """The adapters of one model, by the numbers that the leader gives them; `bank`: the slots of this rank's stage."""

    def __init__(self, whole: ModelConfig, share: RankShare, bank: AdapterBank) -> None:
        """`whole` is the undivided model, of which this rank holds `share`."""
        self.bank = bank
        self._whole = whole
        self._share = share
        self._parts: dict[int, Adapter] = {}

    def read(self, number: int, folder: Path, digest: bytes) -> None:
        """Keep this rank's part of the adapter in `folder` as `number`.

        Raises ModelFileError for a bad folder, and for one whose content is not the leader's, named by `digest`.
        """
        adapter = read_adapter(folder, self._whole)
        if adapter.digest != digest:
            raise ModelFileError(f"{folder} holds another adapter on this machine than on the leader's; copy that one")
        part = shard_adapter(adapter, self._share, self._whole)
        self.bank.hold(part)
        self._parts[number] = part

    def install(self, slot: int, number: int) -> None:
        """Compute with adapter `number` where sequences name `slot`."""
        self.bank.install(slot, self._parts[number])

    def forget(self, number: int) -> None:
        """Drop adapter `number`, if it was read here."""
        part = self._parts.pop(number, None)
        if part is not None:
            self.bank.forget(part)


def shard_adapter(adapter: Adapter, share: RankShare, config: ModelConfig) -> Adapter:
    """The part of `adapter`, of a model of `config`, that belongs to `share`: an adapter of `share.config(config)`.

    Where a layer is split by its outputs, B is; where by its inputs, A is: every rank then adds its part of the
    low-rank product to its part of the layer's, and the sum over the ranks that is taken anyway is that of both.
    """
    layers = adapter.layers[share.layers.start : share.layers.stop]
    parts = [{name: _part(name, low, share, config.head_dim) for name, low in layer.items()} for layer in layers]
    return Adapter(adapter.path, adapter.digest, parts)


def _part(name: str, low: LowRank, share: RankShare, head_dim: int) -> LowRank:
    match name:
        case "q_proj":
            return LowRank(low.down, cut(low.up, rows_of_heads(share.heads.query, head_dim)), low.scale)
        case "k_proj" | "v_proj":
            runs = head_runs(share.heads.kv_heads)
            return LowRank(low.down, stack([cut(low.up, rows_of_heads(run, head_dim)) for run in runs]), low.scale)
        case "gate_proj" | "up_proj":
            return LowRank(low.down, cut(low.up, share.inner), low.scale)
        case "o_proj":
            return LowRank(_columns(low.down, rows_of_heads(share.heads.query, head_dim)), low.up, low.scale)
        case _:
            return LowRank(_columns(low.down, share.inner), low.up, low.scale)


def _columns(down: PackedTensor, columns: range) -> PackedTensor:
    return cut(down, range(down.shape[0]), columns)
