"""Errors of the tiers, one type per thing the gateway can do about it."""

from tiers.attempt import ReplicaTry
from tiers.credential import HEADER


class TierError(Exception):
    """Base class; raised itself if a tier failed in a way that a retry on another tier may fix.

    `tries`: the replicas that were asked, if the tier has several and none answered. `chain`: what was tried before and
    passed over, in words for the caller; "" for one tier alone.
    """

    tries: tuple[ReplicaTry, ...] = ()
    chain: str = ""


class TierAnswerError(TierError):
    """A server elsewhere broke off its answer, or answered in an unknown form. The message says so without secrets,
    and may be shown to the caller."""


class TierAnswerTooLongError(TierAnswerError):
    """A server elsewhere answered far more than the request allows, and was cut off. What it had sent is billed."""


class TierUnavailableError(TierError):
    """The tier cannot take requests now (core gone, server down, queue full); it may in `retry_after_seconds`."""

    retry_after_seconds: float = 1.0


class MissingKeyError(TierUnavailableError):
    """The environment variable of the tier's API key is not set: no further attempt of this process can help."""


class TierKeyError(TierUnavailableError):
    """The server refuses the API key, or its account: no request with it can be served until an operator acts."""


class TierBusyError(TierUnavailableError):
    """The server is healthy, but asks for no requests for `retry_after_seconds`."""


class TierLostError(TierUnavailableError):
    """The core died while it computed the answer; the request may be the cause."""


class TierRequestError(TierError):
    """The request is invalid for this tier; `param` names the field. Never retried. `refused`: parameters that a server
    elsewhere refuses as such, whatever their value."""

    refused: frozenset[str] = frozenset()

    def __init__(self, message: str, param: str | None = None, code: str | None = None) -> None:
        super().__init__(message)
        self.param = param
        self.code = code


class CallerCredentialError(TierRequestError):
    """The server refuses the caller's own credential, or limits its account, with `status`: nothing that the tier or
    another one can help. `retry_after_seconds`: as the server asks; None if it does not."""

    def __init__(self, message: str, status: int, code: str | None, retry_after_seconds: float | None = None) -> None:
        super().__init__(message, HEADER, code)
        self.status, self.retry_after_seconds = status, retry_after_seconds


class CatalogError(ValueError):
    """The catalogue is inconsistent; the message names the entry, the value and what is allowed."""


class CoreMemoryError(CatalogError):
    """Two versions of a core do not fit in memory at once. Free memory, or restart with the new catalogue."""
