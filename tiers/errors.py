"""Errors of the tiers, one type per thing the gateway can do about it, and what they report or must not show.

The result of asking one replica, as records and statistics report it. A caller's own credential for one provider: it
goes from the request's header to one server, and nowhere else.
"""

import base64
import re
from collections.abc import Callable
from typing import Literal, NoReturn
from urllib.parse import quote, urlsplit

import msgspec

TryOutcome = Literal["answered", "failed", "overtaken"]
ReplicaCondition = Literal["serving", "paused", "ejected", "probing"]


class ReplicaTry(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One replica asked for one request."""

    replica: str
    outcome: TryOutcome
    seconds: float
    """Seconds until its first delta, its failure, or a faster replica's delta."""
    error: str | None = None


class ReplicaStatus(msgspec.Struct, frozen=True, kw_only=True):
    """One replica as its balancer sees it; the mean `weight` of a tier's replicas is 1."""

    replica: str
    weight: float
    condition: ReplicaCondition
    """`serving`; `paused` at the server's request; `ejected`; or `probing`: ejected until one trial request has
    succeeded.
    """
    available_in_seconds: float
    """Time until the next request may go there."""
    outstanding: int
    elsewhere: int = 0
    """Its requests from other clients, if it reports them."""
    ttft_seconds: float | None
    """Peak-sensitive moving average of the time to the first token; None before the first."""
    consecutive_failures: int
    requests: int
    """Requests since start."""
    failures: int
    """Failures since start."""


HEADER = "x-aio-upstream-authorization"
_FORM = re.compile(r"(?!(?:Bearer|Basic)\Z)(?:(?:Bearer|Basic) )?[\x21-\x7e]{1,8192}", re.IGNORECASE)
_SHOWN = "[credential]"
_LEAST_SECRET = 8
"""Characters: what is shorter is no secret, and may stand in any text; so may the beginning of a secret."""


def without_credential(text: str, credential: str, mark: str) -> str:
    """Return `text` with `mark` in place of `credential`, also of its beginning where the text ends with that."""
    encoded = base64.b64encode(credential.encode()).decode()
    for form in (credential, quote(credential, safe=""), encoded.rstrip("=")):
        text = text.replace(form, mark)
    most = min(len(credential), len(text))
    cut = next((size for size in range(most, _LEAST_SECRET - 1, -1) if text.endswith(credential[:size])), 0)
    return text[: len(text) - cut] + mark if cut else text


class CallerCredential:
    """What the caller sent in `HEADER`: `Bearer TOKEN` or `Basic TOKEN`, which goes on as `authorization`, or a key
    alone, which goes where the kind of server expects its keys.

    It is not shown, copied into a message, pickled or encoded, so that no record, log line or cache can hold it.
    """

    __slots__ = ("_value",)

    def __init__(self, value: str) -> None:
        """Raises `ValueError`, without the value, for one of another form."""
        if not _FORM.fullmatch(value):
            raise ValueError("expected a key, or Bearer and a token, of printable ASCII and at most 8,192 characters")
        self._value = value

    def __repr__(self) -> str:
        return _SHOWN

    def __reduce__(self) -> NoReturn:
        raise TypeError("a caller's credential is never stored")

    def headers(self, of_key: Callable[[str], list[tuple[bytes, bytes]]]) -> list[tuple[bytes, bytes]]:
        """Return the headers that carry it: `authorization` as it is, or a key where the kind of server has its keys.
        `of_key`: the headers of a server with a key, or with none."""
        if " " in self._value:
            return [(b"authorization", self._value.encode())]
        always = of_key("")
        return [header for header in of_key(self._value) if header not in always]

    def scrub(self, text: str) -> str:
        """Return a server's words without it."""
        key = self._value.rpartition(" ")[2]
        return without_credential(text, key, _SHOWN) if len(key) >= _LEAST_SECRET else text


_MOST_CREDENTIALS = 4


class Redaction:
    """Removes what operators alone know from the words of the server at `base_url`: its address and credentials.

    A credential is found as it is, percent-encoded and in base64, and cut off at the end of a text.
    """

    def __init__(self, base_url: str) -> None:
        self._address = _address_pattern(base_url)
        self._credentials: dict[str, None] = {}

    def add(self, credential: str) -> None:
        """Remove `credential` too. The latest `_MOST_CREDENTIALS` are known, since tokens are renewed."""
        self._credentials.pop(credential, None)
        self._credentials[credential] = None
        if len(self._credentials) > _MOST_CREDENTIALS:
            del self._credentials[next(iter(self._credentials))]

    def __call__(self, text: str) -> str:
        for credential in self._credentials:
            text = without_credential(text, credential, "[key]")
        return text if self._address is None else self._address.sub("[server]", text)


def _address_pattern(base_url: str) -> re.Pattern[str] | None:
    """Match the host, with what stands around it: scheme, port and the path of `base_url`; and its port behind another
    name, because a server may know itself by one."""
    try:
        parts = urlsplit(base_url)
        host, port = re.escape(parts.hostname or ""), parts.port
    except ValueError:
        return None
    if not host:
        return None
    # A word such as `model` may be a host, and is no address in a sentence.
    is_word = re.fullmatch(r"[\w-]+", parts.hostname or "") is not None and parts.hostname != "localhost"
    bounded = rf"(?<![\w.-]){host}(?![\w-]|\.\w)"
    named = rf"(?:(?<=//)|(?<=@)|(?<=host=')){bounded}|{bounded}(?=:\d)" if is_word else bounded
    path = re.escape(parts.path.rstrip("/"))
    ports = r"(?::\d{1,5}|\\*['\"]?, ?(?:port=)?\d{1,5})"
    patterns = [rf"\[?(?:{named})\]?{ports}?"]
    if port is not None:
        # "name:80", and "host='name', port=80" as Python's libraries write it.
        patterns.append(rf"(?<![\w.-])[\w.-]{{1,253}}(?::|\\*['\"], ?(?:port=)?|, ?port=){port}(?!\d)")
    whole = rf"(?:https?://)?(?:{'|'.join(patterns)})(?:{path}(?![\w-]))?"
    return re.compile(rf"{whole}|{path}" if path.count("/") > 1 else whole, re.IGNORECASE)


CONTEXT_CODE = "context_length_exceeded"
"""OpenAI's code for a prompt that is too long, by which clients decide to make it shorter."""


class TierError(Exception):
    """Base class; raised itself if a tier failed in a way that a retry on another tier may fix. The message may be
    shown to the caller.
    """

    tries: tuple[ReplicaTry, ...] = ()
    """The replicas that were asked, if the tier has several and none answered."""
    chain: str = ""
    """What was tried before and passed over, in words for the caller; "" for one tier alone."""
    server: str = ""
    """The address of the server that failed, for operators alone."""
    reason: str = ""
    """What the connection said, for operators alone."""

    @property
    def for_operators(self) -> str:
        """The message with the server's address, which no caller is shown."""
        where = ": ".join(filter(None, (self.server, self.reason)))
        return f"{self} [{where}]" if where else str(self)


class TierAnswerError(TierError):
    """A server elsewhere broke off its answer, or answered in an unknown form. The message says so without secrets,
    and may be shown to the caller."""


class InvalidAnswerError(TierAnswerError):
    """A finished answer, or the arguments of a call in it, does not hold for the caller's schema, or could not be
    checked. The message names the field of the request, and the keyword.
    """

    token_ids: tuple[int, ...] = ()
    """The tokens that a model here had drawn."""


class TierAnswerTooLongError(TierAnswerError):
    """A server elsewhere answered far more than the request allows, and was cut off. What it had sent is billed."""


class TierUnavailableError(TierError):
    """The tier cannot take requests now (core gone, server down, queue full)."""

    retry_after_seconds: float = 1.0
    """When it may take requests again."""


class MissingKeyError(TierUnavailableError):
    """The environment variable of the tier's API key is not set: no further attempt of this process can help."""


class TierKeyError(TierUnavailableError):
    """The server refuses the API key, or its account: no request with it can be served until an operator acts."""


class TierBusyError(TierUnavailableError):
    """The server is healthy, but asks for no requests for `retry_after_seconds`."""


class TierLostError(TierUnavailableError):
    """The core died while it computed the answer; the request may be the cause."""


class TierRequestError(TierError):
    """The request is invalid for this tier; `param` names the field. Never retried."""

    refused: frozenset[str] = frozenset()
    """What a server elsewhere refuses of it (`tiers.dialects.refusals.refused_in`)."""
    said: str = ""
    """The status and the code with which the server refuses."""

    def __init__(self, message: str, param: str | None = None, code: str | None = None) -> None:
        super().__init__(message)
        self.param = param
        self.code = code


class BadRequestError(TierRequestError):
    """The caller's dialect has no such request: no tier is asked. `param` is a path in the caller's own words."""


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

    `prompt_tokens`, `answer_tokens`, `total_tokens`: as the server counts them; 0 where it does not say.
    `max_context`: the most of both, in tokens; 0 if unknown. `in_bytes`: the body itself is too large, and its tokens
    are not what is refused.
    """

    def __init__(
        self,
        message: str,
        param: str | None = None,
        *,
        prompt_tokens: int = 0,
        answer_tokens: int = 0,
        total_tokens: int = 0,
        max_context: int = 0,
        in_bytes: bool = False,
    ) -> None:
        super().__init__(message, param, CONTEXT_CODE)
        self.prompt_tokens, self.answer_tokens, self.max_context = prompt_tokens, answer_tokens, max_context
        self.total_tokens = total_tokens
        self.in_bytes = in_bytes


class CatalogError(ValueError):
    """The catalogue is inconsistent; the message names the entry, the value and what is allowed."""


class CoreMemoryError(CatalogError):
    """Two versions of a core do not fit in memory at once. Free memory, or restart with the new catalogue."""
