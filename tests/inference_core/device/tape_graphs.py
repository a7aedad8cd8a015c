"""A recorder of work that replays as a CUDA graph does: the operations that it saw, on the memory that they had."""

from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any, ClassVar

import torch
import torch.distributed as dist
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from inference_core.device.batch import Graphs

# Reading a value back makes the host wait for the device, which no capture allows.
WAITS = {"aten::_local_scalar_dense", "aten::equal", "aten::is_nonzero", "aten::nonzero"}
ALLOCATIONS = {"aten::empty", "aten::empty_like", "aten::new_empty", "aten::empty_strided", "aten::new_empty_strided"}
Tape = list[Callable[[], object]]


class TapeGraphs(Graphs):
    """Records the operations of the first work of a key, and from then on repeats them alone: neither Python around
    them nor new memory takes part. Sums over ranks are recorded as sums over ranks."""

    made: ClassVar[list["TapeGraphs"]] = []

    def __init__(self) -> None:
        self.tapes: dict[Hashable, tuple[Tape, torch.Tensor]] = {}
        self.replays = 0
        TapeGraphs.made.append(self)

    def run(self, key: Hashable, work: Callable[[], torch.Tensor]) -> torch.Tensor:
        if key not in self.tapes:
            work(), work()
            tape: Tape = []
            with _Recorder(tape), _recorded_sums(tape):
                result = work()
            self.tapes[key] = tape, result
        tape, result = self.tapes[key]
        for repeat in tape:
            repeat()
        self.replays += 1
        return result

    @property
    def captured(self) -> tuple[Hashable, ...]:
        return tuple(self.tapes)


class _Recorder(TorchDispatchMode):  # type: ignore[misc]  # torch has no types for it
    def __init__(self, tape: Tape) -> None:
        super().__init__()
        self._tape = tape

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        name = func._schema.name
        assert name not in WAITS, f"{name} within captured work"
        out = func(*args, **kwargs)
        if func.namespace == "c10d":
            return out  # recorded as a whole
        if func._schema.is_mutable:
            self._tape.append(partial(func, *args, **kwargs))
        elif name not in ALLOCATIONS and not _is_view(out, (args, kwargs)):
            self._tape.append(lambda: _refill(out, func(*args, **kwargs)))
        return out


def _is_view(out: Any, given: Any) -> bool:
    memory = {leaf.untyped_storage().data_ptr() for leaf in tree_leaves(given) if isinstance(leaf, torch.Tensor)}
    return all(leaf.untyped_storage().data_ptr() in memory for leaf in tree_leaves(out))


def _refill(out: Any, again: Any) -> None:
    for mine, new in zip(tree_leaves(out), tree_leaves(again), strict=True):
        mine.copy_(new)


@contextmanager
def _recorded_sums(tape: Tape) -> Iterator[None]:
    """Record an all-reduce as one operation, for which gloo needs several."""
    plain = dist.all_reduce

    def recorded(part: torch.Tensor, **how: Any) -> None:
        plain(part, **how)
        tape.append(partial(plain, part, **how))

    dist.all_reduce = recorded
    try:
        yield
    finally:
        dist.all_reduce = plain
