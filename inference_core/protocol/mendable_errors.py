"""Errors of a core that its operator can mend, and how they cross to another process."""

from inference_core.errors import (
    CoreError,
    DeviceFailedError,
    DevicesMissingError,
    MemoryPlanError,
    MeshError,
    ModelFileError,
    PrefixError,
)

MENDABLE: tuple[type[CoreError], ...] = (
    DeviceFailedError,
    DevicesMissingError,
    MemoryPlanError,
    MeshError,
    ModelFileError,
    PrefixError,
)
"""Logged without a traceback; every other error that ends a core is a bug."""

_BY_NAME = {kind.__name__: kind for kind in MENDABLE}


def sent_error(cause: BaseException | None) -> tuple[str, str] | None:
    """Return the class and the message of a mendable error, of any other None."""
    return (type(cause).__name__, str(cause)) if isinstance(cause, MENDABLE) else None


def received_error(sent: tuple[str, str] | None) -> CoreError | None:
    """Return the error that `sent_error` named; None without one, and for a class that only the sender knows."""
    if sent is None or (kind := _BY_NAME.get(sent[0])) is None:
        return None
    return kind(sent[1])
