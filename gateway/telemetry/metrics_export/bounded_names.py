"""Names as label values, at most so many: a label whose values callers choose would grow without end."""

OTHER = "other"
NOBODY = "none"


class BoundedNames:
    """The first `most` names are themselves, all later ones are "other"; who has no name is "none"."""

    def __init__(self, most: int = 100) -> None:
        self._most = most
        self._known: set[str] = set()

    def label(self, name: str | None) -> str:
        """The label of `name`."""
        if name is None:
            return NOBODY
        if name in self._known:
            return name
        if len(self._known) >= self._most:
            return OTHER
        self._known.add(name)
        return name
