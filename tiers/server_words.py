"""What a server elsewhere says that becomes a header, a label, a path or a line of a log."""

import re

MOST_CONTEXT = 100_000_000
"""Tokens; no model has more, and larger numbers would not be those of a context."""
MOST_SHOWN = 1000
# A model's name is a header and a label of metrics: visible ASCII, with single spaces inside at most.
_NAME = re.compile(r"[!-~]+(?: [!-~]+)*")
_LONGEST_NAME = 256


def is_name(text: object) -> bool:
    """Whether `text` may be the name of a model: visible ASCII, at most 256 characters."""
    return isinstance(text, str) and len(text) <= _LONGEST_NAME and _NAME.fullmatch(text) is not None


def context_of(value: object) -> int | None:
    """Return the context, in tokens, that a server gives a model; None for what cannot be one."""
    if isinstance(value, int) and not isinstance(value, bool) and 2 <= value <= MOST_CONTEXT:
        return value
    return None


def one_line(text: str, most: int = MOST_SHOWN) -> str:
    """Return a server's text for an error or a log: without control characters, on one line, and not for long."""
    cut = text[:most]
    if not cut.isprintable():
        cut = "".join(char if char.isprintable() else " " if char.isspace() else "\ufffd" for char in cut)
    return cut if len(text) <= most else cut + "…"
