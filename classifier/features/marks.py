"""Which of a few short texts occur in a longer one: found in one pass over it, where the kernels are built."""

from collections.abc import Iterable

from classifier.native import KERNELS


class Marks:
    """At most 64 ASCII texts of two characters or more, to be looked for together."""

    def __init__(self, marks: Iterable[str]) -> None:
        self._marks = tuple(marks)
        self._native = None if KERNELS is None else KERNELS.make_marks(self._marks)

    def within(self, text: str) -> list[str]:
        """Return the marks that occur in `text`, in their own order."""
        if KERNELS is not None and text.isascii():
            found: list[str] = KERNELS.marks_in(self._native, text)
            return found
        return [mark for mark in self._marks if mark in text]
