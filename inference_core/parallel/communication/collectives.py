"""What ranks say to each other while they compute: sums and gathers within a stage, activations between stages."""

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist

from inference_core.errors import RankLostError


@contextmanager
def _collective(what: str) -> Iterator[None]:
    """Raises RankLostError where a connection broke or a rank kept the others waiting for too long."""
    try:
        yield
    except RuntimeError as error:
        raise RankLostError(f"{what} broke off: {error}") from error


class TensorGroup:
    """The ranks that share the layers of a stage; `index` is this rank's place among them. Alone, it does nothing.

    `calls` counts collective operations by name. All ranks get the same bits out of a sum, so what follows it stays
    equal on all of them without being compared.
    """

    def __init__(self, ranks: list[int], rank: int, group: Any = None) -> None:
        """`group`: the torch.distributed process group of `ranks` (None: this rank alone)."""
        self.ranks = ranks
        self.index = ranks.index(rank)
        self.calls: Counter[str] = Counter()
        self._group = group

    @property
    def size(self) -> int:
        return len(self.ranks)

    def all_reduce(self, part: torch.Tensor) -> torch.Tensor:
        """Replace `part` [...] by the sum over the ranks, in place."""
        if self.size > 1:
            self.calls["all_reduce"] += 1
            with _collective("a sum over the ranks"):
                dist.all_reduce(part, group=self._group)
        return part

    def gather_columns(self, part: torch.Tensor, widths: list[int]) -> torch.Tensor | None:
        """[rows, sum of widths] on the first rank, None on the others; `part` [rows, widths[index]] from each."""
        if self.size == 1:
            return part
        self.calls["gather"] += 1
        widest = max(widths)
        # Backends gather equal shapes only.
        padded = part if part.shape[1] == widest else part.new_zeros(part.shape[0], widest)
        if padded is not part:
            padded[:, : part.shape[1]] = part
        parts = [torch.empty_like(padded) for _ in widths] if self.index == 0 else None
        with _collective("gathering the vocabulary"):
            dist.gather(padded.contiguous(), parts, dst=self.ranks[0], group=self._group)
        if parts is None:
            return None
        return torch.cat([each[:, :width] for each, width in zip(parts, widths, strict=True)], dim=1)


class PipelineLinks:
    """The way from the stage before to the stage after, for the rank at the same place of each stage's group.

    `send` returns at once, so that a stage computes its next micro-batch while the last one travels (SPEC PX-03);
    `finish` waits until all of it has left.
    """

    def __init__(self, before: int | None, after: int | None) -> None:
        """Ranks; None at the ends of the pipeline."""
        self._before = before
        self._after = after
        self._travelling: list[tuple[Any, torch.Tensor]] = []

    def send(self, hidden: torch.Tensor, to: int | None = None) -> None:
        """`hidden` [T, hidden size] to the stage after, or to the rank `to`; it must not change until `finish`."""
        target = self._after if to is None else to
        tensor = hidden.contiguous()
        with _collective(f"sending to rank {target}"):
            self._travelling.append((dist.isend(tensor, target), tensor))

    def receive(self, into: torch.Tensor, source: int | None = None) -> torch.Tensor:
        """Fill `into` with what the stage before, or the rank `source`, sends next."""
        origin = self._before if source is None else source
        with _collective(f"receiving from rank {origin}"):
            dist.recv(into, origin)
        return into

    def finish(self) -> None:
        with _collective("sending"):
            for work, _ in self._travelling:
                work.wait()
        self._travelling.clear()
