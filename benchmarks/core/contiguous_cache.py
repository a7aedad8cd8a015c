"""KV memory without paging: each request takes one contiguous run for its longest possible life (SPEC KV-03)."""

from inference_core.errors import IntegrityError


class ContiguousArena:
    """`capacity` tokens of memory handed out in contiguous runs, first fit from the lowest address (Knuth 1968, 2.5).

    This is how caches were allocated before paging; it is here to be measured against `BlockPool`. A run that comes
    free joins the adjacent holes.
    """

    def __init__(self, capacity: int) -> None:
        if capacity < 1:
            raise ValueError(f"capacity is {capacity}; it must be at least 1")
        self.capacity = capacity
        self._runs: dict[str, tuple[int, int]] = {}
        self._holes: list[tuple[int, int]] = [(0, capacity)]

    @property
    def reserved(self) -> int:
        return sum(size for _, size in self._runs.values())

    @property
    def free(self) -> int:
        return self.capacity - self.reserved

    def reserve(self, owner: str, tokens: int) -> int | None:
        """A run of `tokens` for `owner`: its first address, or None if no hole is large enough, whatever is free."""
        if owner in self._runs or tokens < 1:
            raise ValueError(f"{owner!r} asks for {tokens} tokens and holds {self._runs.get(owner)}")
        for index, (start, size) in enumerate(self._holes):
            if size >= tokens:
                self._holes[index : index + 1] = [(start + tokens, size - tokens)] if size > tokens else []
                self._runs[owner] = (start, tokens)
                return start
        return None

    def release(self, owner: str) -> None:
        """`owner` is done with its run. Raises `KeyError` if it has none."""
        start, size = self._runs.pop(owner)
        before = [hole for hole in self._holes if hole[0] + hole[1] < start]
        after = [hole for hole in self._holes if hole[0] > start + size]
        for hole in self._holes[len(before) : len(self._holes) - len(after)]:
            start, size = min(start, hole[0]), size + hole[1]
        self._holes = [*before, (start, size), *after]

    def check_integrity(self) -> None:
        """Runs and holes cover every address exactly once, and no two holes touch. Raises `IntegrityError`."""
        pieces = sorted([*((s, n, "run") for s, n in self._runs.values()), *((s, n, "hole") for s, n in self._holes)])
        address, kind_before = 0, "run"
        for start, size, kind in pieces:
            if start != address or size < 1:
                raise IntegrityError(f"a {kind} of {size} tokens at {start}, where {address} was next")
            if kind == kind_before == "hole":
                raise IntegrityError(f"two holes touch at {start}")
            address, kind_before = start + size, kind
        if address != self.capacity:
            raise IntegrityError(f"runs and holes end at {address} of {self.capacity}")
