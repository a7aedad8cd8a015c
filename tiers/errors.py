"""Errors of the tiers, one type per thing the gateway can do about it."""

from tiers.attempt import ReplicaTry
from tiers.credential import HEADER

CONTEXT_CODE = "context_length_exceeded"
"""OpenAI's code for a prompt that is too long, by which clients decide to make it shorter."""


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


class InvalidAnswerError(TierAnswerError):
    """A finished answer, or the arguments of a call in it, does not hold for the caller's schema, or could not be
    checked. The message names the field of the request, and the keyword. `token_ids`: what a model here had drawn."""

    token_ids: tuple[int, ...] = ()


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


class TierCapabilityError(TierRequestError):
    """This tier cannot serve the request, which another tier may."""


class TierContextError(TierCapabilityError):
    """The prompt, alone or with its answer, exceeds what this tier takes; `TierRequestError.code` is CONTEXT_CODE.

    `prompt_tokens`, `answer_tokens`: as the server counts them; 0 where it does not say. `max_context`: the most of
    both, in tokens; 0 if unknown. `in_bytes`: the body itself is too large, and its tokens are not what is refused.
    """

    def __init__(
        self,
        message: str,
        param: str | None = None,
        *,
        prompt_tokens: int = 0,
        answer_tokens: int = 0,
        max_context: int = 0,
        in_bytes: bool = False,
    ) -> None:
        super().__init__(message, param, CONTEXT_CODE)
        self.prompt_tokens, self.answer_tokens, self.max_context = prompt_tokens, answer_tokens, max_context
        self.in_bytes = in_bytes


class CatalogError(ValueError):
    """The catalogue is inconsistent; the message names the entry, the value and what is allowed."""


class CoreMemoryError(CatalogError):
    """Two versions of a core do not fit in memory at once. Free memory, or restart with the new catalogue."""
