"""Low-rank adapters in a core: what one is, which layers it changes, and which slots hold those in use.

An adapter is read from its folder (`adapter_file`). Slots hold the resident adapters (SPEC LO-02): the scheduler
assigns them, and the runner's bank computes with them.
"""

import re
from abc import ABC, abstractmethod
from collections import Counter, OrderedDict
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from inference_core.errors import IntegrityError, InvalidRequestError
from inference_core.model_config import ModelConfig
from inference_core.protocol import AdapterInfo

if TYPE_CHECKING:
    from inference_core.loaders.packed_tensor import PackedTensor

Projection = Literal["qkv", "output", "gate_up", "down"]
PROJECTIONS: tuple[Projection, ...] = ("qkv", "output", "gate_up", "down")


@dataclass(slots=True, frozen=True)
class AdapterTarget:
    """A linear layer of every block: outputs `column` to `column + outputs` of a fused projection."""

    parent: str
    projection: Projection
    column: int
    inputs: int
    outputs: int


def adapter_targets(config: ModelConfig) -> dict[str, AdapterTarget]:
    """The layers that an adapter may change, by transformers' names: not experts, and not queries and keys whose
    numbers the decoder has in another order than the file (`RotaryEmbedding.dim`)."""
    refused = {"q_proj", "k_proj"} if config.rope.dim is not None else set()
    if config.num_experts:
        refused |= {"gate_proj", "up_proj", "down_proj"}
    return {name: target for name, target in projection_parts(config).items() if name not in refused}


def projection_parts(config: ModelConfig) -> dict[str, AdapterTarget]:
    """Every part of the fused projections of a block without experts, by transformers' names, adaptable or not."""
    hidden, wide = config.hidden_size, config.intermediate_size
    queries, keys = config.num_heads * config.head_dim, config.num_kv_heads * config.head_dim
    return {
        "q_proj": AdapterTarget("self_attn", "qkv", 0, hidden, queries),
        "k_proj": AdapterTarget("self_attn", "qkv", queries, hidden, keys),
        "v_proj": AdapterTarget("self_attn", "qkv", queries + keys, hidden, keys),
        "o_proj": AdapterTarget("self_attn", "output", 0, queries, hidden),
        "gate_proj": AdapterTarget("mlp", "gate_up", 0, hidden, wide),
        "up_proj": AdapterTarget("mlp", "gate_up", wide, hidden, wide),
        "down_proj": AdapterTarget("mlp", "down", 0, wide, hidden),
    }


@dataclass(slots=True, frozen=True, eq=False)
class LowRank:
    """One layer's update: y += scale * B (A x), with `down` = A [rank, inputs] and `up` = B [outputs, rank]."""

    down: "PackedTensor"
    up: "PackedTensor"
    scale: float

    @property
    def rank(self) -> int:
        return self.down.shape[0]

    @property
    def num_weights(self) -> int:
        return self.rank * (self.down.shape[1] + self.up.shape[0])


@dataclass(slots=True, frozen=True, eq=False)
class Adapter:
    """A checked adapter, its tensors mapped from the file."""

    path: Path
    digest: bytes
    """16-byte content hash, so that cached results of other weights are never used for this adapter."""
    layers: list[dict[str, LowRank]]
    """For each block, its layers by module name (`adapter_targets`)."""

    @property
    def rank(self) -> int:
        """The largest of its layers' ranks."""
        return max((low.rank for layer in self.layers for low in layer.values()), default=0)

    @property
    def num_weights(self) -> int:
        return sum(low.num_weights for layer in self.layers for low in layer.values())


class AdapterBank(ABC):
    """A runner's adapters, in slots 0 to `num_slots` - 1.

    Contract: a scheduled sequence whose `adapter` is a slot uses the adapter last installed there; slots change only
    between steps. Rows of other sequences are computed without adapters. Banks that keep adapters only in slots need
    neither `hold` nor `forget`.
    """

    num_slots: int

    @abstractmethod
    def read(self, folder: Path) -> Adapter:
        """Read the adapter in `folder` and check it against the runner's model. Raises ModelFileError."""

    @abstractmethod
    def install(self, slot: int, adapter: Adapter) -> None:
        """Install `adapter` in `slot`, replacing the previous one."""

    @abstractmethod
    def clear(self, slot: int) -> None:
        """Free `slot`."""

    def hold(self, adapter: Adapter) -> None:  # noqa: B027
        """Keep `adapter`, which belongs to this bank's model, ready to be installed, as `read` does.

        Raises ModelFileError if no slot takes it.
        """

    def forget(self, adapter: Adapter) -> None:  # noqa: B027
        """Drop `adapter`, which was read or held; it will not be installed again."""

    @abstractmethod
    def bytes_of(self, adapter: Adapter) -> int:
        """Bytes that `adapter` takes in a slot."""


NO_SLOT = -1
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")


class AdapterSlots:
    """Adapters by name. A loaded adapter is mapped in host memory; before use it is installed in a slot of `bank`,
    replacing the least recently used one that is not pinned.

    A running sequence pins its adapter, and pinned adapters are never evicted: if other adapters pin all slots, the
    sequence at the head of the queue waits. `bank` None: the model's runner serves no adapters.
    """

    def __init__(self, bank: AdapterBank | None) -> None:
        self._bank = bank
        self._known: dict[str, Adapter] = {}
        self._leaving: set[str] = set()
        self._listed: set[str] = set()
        # Least recently used first.
        self._resident: OrderedDict[str, int] = OrderedDict()
        self._free = list(reversed(range(bank.num_slots))) if bank is not None else []
        self._pins: Counter[str] = Counter()
        self.installs = 0
        self.evictions = 0

    @property
    def num_slots(self) -> int:
        return 0 if self._bank is None else self._bank.num_slots

    @property
    def has_leaving(self) -> bool:
        """Whether an unloaded adapter still waits for its last request to end."""
        return bool(self._leaving)

    @property
    def digests(self) -> dict[str, str]:
        """The content hashes of the adapters that new requests may name, by name, in hexadecimal."""
        return {name: adapter.digest.hex() for name, adapter in self._known.items() if name not in self._leaving}

    def load(self, name: str, folder: Path, *, listed: bool = False) -> None:
        """Read and check the adapter in `folder`, and serve it as `name` from now on; `listed`: see `AdapterInfo`.

        Raises InvalidRequestError for a name that is not allowed or taken, ModelFileError for a bad folder.
        """
        if self._bank is None:
            raise InvalidRequestError(
                "this model serves no adapters; give it slots for them: max_adapters > 0", "model"
            )
        if not _NAME.fullmatch(name):
            raise InvalidRequestError(
                f"name is {name!r}; allowed are up to 64 letters, digits, '.', '_' and '-', a letter or digit first",
                "name",
            )
        if name in self._known:
            state = "is being unloaded; wait until its last request has ended" if name in self._leaving else "is loaded"
            raise InvalidRequestError(f"adapter {name!r} {state}; unload it first, or choose another name", "name")
        self._known[name] = self._bank.read(folder)
        if listed:
            self._listed.add(name)

    def unload(self, name: str) -> None:
        """Refuse new requests with `name`; `forget` drops it after its last request. Raises InvalidRequestError."""
        self.require(name, "name")
        self._leaving.add(name)

    def forget(self, in_use: Iterable[str]) -> None:
        """Drop the adapters that were unloaded and are not among those `in_use` by live requests."""
        for name in self._leaving - set(in_use):
            self._leaving.remove(name)
            adapter = self._known.pop(name)
            self._listed.discard(name)
            assert self._bank is not None  # a loaded adapter implies a bank
            slot = self._resident.pop(name, None)
            if slot is not None:
                self._bank.clear(slot)
                self._free.append(slot)
            self._bank.forget(adapter)

    def require(self, name: str, param: str = "adapter") -> Adapter:
        """Return the adapter `name`. Raises InvalidRequestError if it is unknown or being unloaded."""
        adapter = self._known.get(name)
        if adapter is None or name in self._leaving:
            state = "is unknown" if adapter is None else "is being unloaded"
            loaded = ", ".join(sorted(self._known.keys() - self._leaving)) or "none"
            raise InvalidRequestError(f"adapter {name!r} {state}; loaded: {loaded}", param)
        return adapter

    def has_room(self, name: str) -> bool:
        """Whether a sequence with that adapter could run now."""
        if name in self._resident or self._free:
            return True
        return any(not self._pins[resident] for resident in self._resident)

    def pin(self, name: str) -> int:
        """Pin the adapter of a sequence that starts to run. Returns its slot."""
        slot = self._resident.get(name)
        if slot is None:
            slot = self._install(name)
        self._resident.move_to_end(name)
        self._pins[name] += 1
        return slot

    def unpin(self, name: str) -> None:
        """Undo one `pin`, when a sequence stops running."""
        self._pins[name] -= 1
        if not self._pins[name]:
            del self._pins[name]
            self._resident.move_to_end(name)

    def infos(self) -> list[AdapterInfo]:
        return [self._info(name, adapter) for name, adapter in sorted(self._known.items())]

    def check_integrity(self, running: Iterable[str]) -> None:
        """Check that pins match the `running` adapters and that each slot is free or has one known adapter.

        Raises `IntegrityError`.
        """
        pinned = Counter(name for name in running if name)
        if pinned != self._pins:
            raise IntegrityError(f"adapters are pinned {dict(self._pins)} times, but run {dict(pinned)} times")
        slots = sorted([*self._free, *self._resident.values()])
        if slots != list(range(self.num_slots)):
            raise IntegrityError(f"slots {slots} are free or held; there are {self.num_slots}")
        if not pinned.keys() <= self._resident.keys() <= self._known.keys():
            raise IntegrityError(f"{dict(pinned)} run, {dict(self._resident)} are resident, {list(self._known)} known")

    def _install(self, name: str) -> int:
        assert self._bank is not None
        if self._free:
            slot = self._free.pop()
        else:
            victim = next(resident for resident in self._resident if not self._pins[resident])
            slot = self._resident.pop(victim)
            self.evictions += 1
        self._bank.install(slot, self._known[name])
        self._resident[name] = slot
        self.installs += 1
        return slot

    def _info(self, name: str, adapter: Adapter) -> AdapterInfo:
        assert self._bank is not None
        return AdapterInfo(
            name=name,
            path=str(adapter.path),
            rank=adapter.rank,
            bytes=self._bank.bytes_of(adapter),
            resident=name in self._resident,
            running=self._pins[name],
            leaving=name in self._leaving,
            listed=name in self._listed,
        )
