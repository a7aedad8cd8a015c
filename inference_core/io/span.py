"""A run of consecutive indices."""

from typing import NamedTuple


class Span(NamedTuple):
    """Indices from `begin` up to, not including, `end`."""

    begin: int
    end: int

    @property
    def size(self) -> int:
        return self.end - self.begin

    @property
    def slice(self) -> slice:
        return slice(self.begin, self.end)
