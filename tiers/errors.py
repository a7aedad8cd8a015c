"""Errors of the tiers, one type per thing the gateway can do about it."""


class TierError(Exception):
    """Base; raised bare when a tier failed in a way that a retry elsewhere may mend."""


class TierUnavailableError(TierError):
    """The tier cannot take requests now (core gone, upstream down, queue full); it may in `retry_after_seconds`."""

    retry_after_seconds: float = 1.0


class TierRequestError(TierError):
    """The request itself is wrong for this tier; `param` names the field. Never retried."""

    def __init__(self, message: str, param: str | None = None, code: str | None = None) -> None:
        super().__init__(message)
        self.param = param
        self.code = code


class CatalogError(ValueError):
    """The catalogue is inconsistent; the message names the entry, the value and what is allowed."""
