"""Names as label values, limited in number: labels chosen by callers would grow without bound."""

OTHER = "other"
NO_NAME = "none"


class BoundedNames:
    """The first `most` names are kept, all later ones are "other"; a missing name is "none"."""

    def __init__(self, most: int = 100) -> None:
        self._most = most
        self._known: set[str] = set()

    def label(self, name: str | None) -> str:
        """Return the label of `name`."""
        if name is None:
            return NO_NAME
        if name in self._known:
            return name
        if len(self._known) >= self._most:
            return OTHER
        self._known.add(name)
        return name
