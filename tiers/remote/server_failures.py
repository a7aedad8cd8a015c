"""What the failures of a server elsewhere mean: typed errors, and for how long its tier is avoided."""

import asyncio
import math
import re
from collections.abc import AsyncIterator, Callable
from functools import partial
from typing import NamedTuple, TypeVar

import httpx
import msgspec

from tiers.catalog.tier_spec import RemoteSpec
from tiers.dialects.dialect import ServerDialect
from tiers.dialects.echoes import MOST_READ, own_words
from tiers.dialects.event_stream import EventTooLargeError
from tiers.dialects.lenient_json import NotAnObjectError
from tiers.dialects.refusals import ELSEWHERE, REFUSAL_ROWS, is_unable, refused_in, told_tools, too_long
from tiers.dialects.server_error import (
    ErrorObject,
    ServerSaidError,
    parse_error,
    parse_reset,
    parse_retry_after,
    wait_in,
)
from tiers.errors import (
    CallerCredential,
    CallerCredentialError,
    Redaction,
    TierAnswerError,
    TierAnswerTooLongError,
    TierBusyError,
    TierCapabilityError,
    TierContextError,
    TierError,
    TierKeyError,
    TierRequestError,
    TierUnavailableError,
)
from tiers.remote.http_connection import OversizedHeadError
from tiers.remote.http_exchange import preceded, up_to
from tiers.remote.http_transport import Reply
from tiers.server_words import one_line
from tiers.tier import REPLAYED

MAX_ERROR_BYTES = 64 * 1024
LEAST_COOLDOWN_SECONDS = 1.0
FAILURES = (EventTooLargeError, httpx.DecodingError, httpx.TransportError, TimeoutError, TierError)
"""What ends an answer, as `ServerFailures.of_answer` takes it."""
OPERATOR_STATUSES = (401, 402, 403, 404, 407, 410)
KEY_STATUSES = (401, 402, 403)
PAYMENT_REQUIRED = 402
"""Also of an account that could pay for a shorter answer."""
# 424: Bedrock's, of a model that failed. 499: of a proxy before the server.
TRY_LATER_STATUSES = (408, 409, 421, 423, 424, 425, 499)
# 498: Groq's, 529: Anthropic's "overloaded".
BUSY_STATUSES = (429, 498, 529)
_STATUSES = (400, 413, 422, *OPERATOR_STATUSES, *TRY_LATER_STATUSES, *BUSY_STATUSES)
_Meanings = list[tuple[int, re.Pattern[str]]]
_MEANINGS: _Meanings = []
"""What an error says by its type, its code or its words, where it names no status."""
_SENTENCES: _Meanings = []
"""The same in whole sentences, and what is about the model."""
for _row in REFUSAL_ROWS.meanings:
    (_SENTENCES if _row.sentences else _MEANINGS).append((_row.status, REFUSAL_ROWS.pattern(*_row.patterns)))
# How OpenRouter and xAI refuse a prompt for its content (https://openrouter.ai/docs/api-reference/errors,
# https://docs.x.ai/docs/guides/errors): no matter of keys.
_FLAGGED = re.compile(
    r"input was flagged|content violates|violates (?:our |the )?(?:usage|content)|safety_check|moderation",
    re.IGNORECASE,
)
MOST_SAID = 400
"""Characters of an error in which it says what it is."""
_NOT_SERVED = re.compile(r"no (?:endpoints (?:found|available)|allowed providers)", re.IGNORECASE)
_READ_HERE_BYTES = 64 * 1024
_LEAST_SECRET, _LONG = 8, 16
_WORDS = re.compile(r"[A-Za-z]{1,14}(?:[-_. ][A-Za-z]{1,14})*")
_UNREACHED = (httpx.ConnectError, httpx.ConnectTimeout, httpx.ProxyError)
_CUT_OFF = (httpx.RemoteProtocolError, httpx.ReadError, httpx.WriteError)


Located = TypeVar("Located", bound=TierError)


class ServerRequest(NamedTuple):
    """What was asked: `model` in `dialect`."""

    dialect: ServerDialect
    model: str
    body: bytes | None = None
    """The body that was sent; without it a failure is no request's own."""
    credential: CallerCredential | None = None
    """The caller's own credential, with which it was asked."""
    tenant: str = ""
    """The tenant whose request it was; "" is AIO itself."""


class UnsettledError(TierRequestError):
    """A refusal by a status of other failures: `meant` returns that one, if nothing can be done about it."""

    def __init__(self, meant: Callable[[], TierError]) -> None:
        super().__init__("refused")
        self.meant = meant


class ServerFailures:
    """The errors of one server. They name its subject; callers see neither its address nor its key in them, whatever
    field of its own error repeats these.

    `unhealthy_until`: by `clock`, minus infinity after an answer. A failure of the server moves it as far on as the
    server asks, else `cooldown_seconds`; of one that can be reached first `LEAST_COOLDOWN_SECONDS`, then twice as long
    with each failure: mostly it answers again at once, and who asks for its tier alone has no other. A failure that may
    be of one request alone, whose `body` is named, does so only if it is not the first since an answer: else a request
    that a server cannot bear would take its tier from everybody, and then the next tier. Asked again it is still that
    request. What only the words of a failure say of the server, one tenant's requests alone are not believed.
    """

    def __init__(
        self,
        subject: str,
        remote: RemoteSpec,
        key: str,
        cooldown_seconds: float,
        clock: Callable[[], float],
        *,
        lists_models: bool = False,
    ) -> None:
        """`subject`: whose server it is, such as "tier 'x'", as errors name it. `lists_models`: whether `aio check` can
        name the server's models."""
        self.where, self._address = subject, remote.base_url
        self._lists_models = lists_models
        self._redact = Redaction(remote.base_url)
        if is_secret(key):
            self.keep_secret(key)
        self.unhealthy_until = -math.inf
        self._suspect: int | None = None
        # By the status that words meant: the first tenant that got this refusal since an answer.
        self._told: dict[int, str] = {}
        self._pause = 0.0
        self._key, self._key_variable = key, remote.api_key_env
        self._cooldown_seconds, self._clock = cooldown_seconds, clock

    def keep_secret(self, credential: str) -> None:
        """Show `credential`, with which requests are sent, in no error."""
        self._redact.add(credential)

    def cool_down(self, seconds: float | None = None) -> None:
        self.unhealthy_until = self._clock() + (self._cooldown_seconds if seconds is None else seconds)

    def end_well(self) -> None:
        """Note that the server answered now."""
        self.unhealthy_until, self._suspect, self._pause = -math.inf, None, 0.0
        self._told.clear()

    def _back_off(self) -> None:
        now = self._clock()
        # Requests that were sent before the pause are no reason for a longer one.
        if now >= self.unhealthy_until:
            self._pause = min(max(2 * self._pause, LEAST_COOLDOWN_SECONDS), self._cooldown_seconds)
            self.unhealthy_until = now + self._pause

    def _suspected(self, body: bytes | None) -> None:
        if body is None or self.unhealthy_until > -math.inf or self._suspect not in (None, hash(body)):
            self._back_off()
        else:
            self._suspect = hash(body)

    def located(self, error: Located) -> Located:
        """Return `error` with the server's address, which is for operators."""
        error.server = self._address
        return error

    def _is_confirmed(self, meaning: int, tenant: str) -> bool:
        """Whether AIO itself, or a second tenant, got this answer too. Words that AIO sends again are a tenant's."""
        if tenant.startswith(REPLAYED):
            return False
        return not tenant or self._told.setdefault(meaning, tenant) != tenant

    async def read(self, error: ErrorObject, request: ServerRequest) -> ErrorObject:
        """Return the error of a refusal, whose own words are known: a long request is compared on a thread."""
        is_long = len(request.body or b"") > _READ_HERE_BYTES
        return await asyncio.to_thread(_with_own_words, error, request) if is_long else _with_own_words(error, request)

    def of_answer(
        self, error: Exception, body: bytes | None = None, credential: CallerCredential | None = None
    ) -> TierError:
        """Return one of `FAILURES` as the tier's error: itself, if it says already what it is about. `credential`: the
        caller's own, with which the server was asked."""
        said = f"{self.where}: {self.scrub(str(error), credential)}"
        if isinstance(error, EventTooLargeError | httpx.DecodingError | OversizedHeadError):
            return self.located(TierAnswerError(said))
        if isinstance(error, TierAnswerTooLongError):
            return self.located(TierAnswerTooLongError(said))
        if isinstance(error, ServerSaidError):
            about_tier = self._of_tier(self._redacted(error.said, credential), said, 200)
            return self.located(about_tier or TierAnswerError(said))
        if type(error) in (TierError, NotAnObjectError):
            return self.located(TierAnswerError(said))
        return error if isinstance(error, TierError) else self.unavailable(error, body)

    def unavailable(self, error: Exception, body: bytes | None = None) -> TierUnavailableError:
        """Return the error of a server that cannot be reached. What the connection or a proxy says, which names
        addresses, is for operators."""
        if isinstance(error, _CUT_OFF):
            self._suspected(body)
        else:
            self.cool_down()
        is_unreached, words = isinstance(error, _UNREACHED), self.scrub(str(error))
        reason = type(error).__name__ if is_unreached or not words else f"{type(error).__name__}: {words}"
        advice = " (is it running? check url in the catalogue)" if is_unreached else ""
        failure = self.located(TierUnavailableError(f"{self.where} cannot be reached: {reason}{advice}"))
        if is_unreached:
            failure.reason = one_line(str(error))
        return failure

    async def checked(
        self,
        reply: Reply | httpx.Response,
        pieces: AsyncIterator[bytes],
        request: ServerRequest,
        *,
        streamed: bool,
    ) -> AsyncIterator[bytes]:
        """Return the pieces of the body of `reply`. Raises `TierError` unless this is the expected kind of answer; of a
        caller's own credential, with which it was asked, what the server says of that."""
        kind = reply.headers.get("content-type", "")
        is_answer = reply.status_code // 100 == 2
        if is_answer and "html" not in kind:
            # Some servers send events as JSON or as text, or a whole answer where a stream was asked for.
            return pieces
        if is_answer and not (first := await anext(pieces, b"")).lstrip().startswith(b"<"):
            # PHP calls all that it sends a page.
            return preceded(first, pieces)
        body = await up_to(MAX_ERROR_BYTES, preceded(first, pieces) if is_answer else pieces)
        error = await self.read(parse_error(body), request)
        raise self._refusal(reply, body, error, request, streamed=streamed)

    def _refusal(
        self,
        reply: Reply | httpx.Response,
        body: bytes,
        error: ErrorObject,
        request: ServerRequest,
        *,
        streamed: bool,
    ) -> TierError:
        """Return what an answer that is not of the expected kind says: `body`, read as `error`."""
        error = self._redacted(error, request.credential)
        if reply.status_code // 100 == 2:
            kind, wanted = reply.headers.get("content-type", ""), "a stream" if streamed else "JSON"
            kind = self.scrub(kind, request.credential)[:100] or "bytes without a type"
            return TierError(f"answered {kind} instead of {wanted}: {error.message[:200]}")
        if (refused := self.of_caller(reply, error, request)) is not None:
            return refused
        named, meant = refused_in(body, error), partial(self.of_status, reply, error, request)
        is_elsewhere = reply.status_code in ELSEWHERE
        if is_elsewhere and not named and refused_in(body, msgspec.structs.replace(error, own=None)):
            # Words of the request may be what hides a lesson: then such a status says nothing of the tier.
            return self.located(TierCapabilityError(f"{self.where}: {one_line(error.message)}", *_named(error)))
        may_settle = is_elsewhere or reply.status_code == PAYMENT_REQUIRED
        failure = UnsettledError(meant) if named and may_settle else meant()
        if isinstance(failure, TierRequestError):
            failure.refused, failure.said = named, f"{reply.status_code} {error.code}"
        return failure

    def of_status(self, response: Reply | httpx.Response, error: ErrorObject, request: ServerRequest) -> TierError:
        """Return what the status of `response` and the `error` in its body say."""
        error, status = self._redacted(_with_own_words(error, request), request.credential), response.status_code
        did, typed, is_doubted = f"answered {status}", f"{error.type} {error.code}", False
        meant = _status_in(typed)
        if meant in (0, 400) and status in (400, 403, 429, 503):
            meant = _status_in(typed, _SENTENCES) or _status_in(error.words[:MOST_SAID], _SENTENCES)
            is_worded = _status_in(typed, _SENTENCES) == 0 and _as_meant(status, meant) != status
            # 403 and 429 say themselves that the tier is to be avoided.
            if is_worded and status in (400, 503) and not self._is_confirmed(meant, request.tenant):
                meant, is_doubted = status, status == 400
        status = _as_meant(status, meant)
        if 300 <= status < 400 and (location := response.headers.get("location")):
            did += f" to {self.scrub(location, request.credential)[:200]}, which the url in the catalogue should be"
        later = parse_retry_after(response.headers)
        if later is None and status in BUSY_STATUSES and error.retry_after_seconds is None:
            later = parse_reset(response.headers)
        return self._of(status, did, later, error, request, is_doubted=is_doubted)

    def of_said(self, error: ErrorObject, request: ServerRequest) -> TierError | None:
        """Return what an `error` within an answer that began with 200 says, like a reply with the status that it names
        or means; None if it is about nothing that a status says."""
        error, code = self._redacted(_with_own_words(error, request), request.credential), str(error.code)
        status = int(code) if code.isdecimal() and len(code) == 3 else 0
        if status not in _STATUSES:
            typed, words = f"{error.type} {code}", error.words[:MOST_READ]
            meant = _status_in(typed) or _status_in(typed, _SENTENCES)
            if meant == 0:
                meant = _status_in(words) or _status_in(words[:MOST_SAID], _SENTENCES)
                if meant not in (0, 400) and not self._is_confirmed(meant, request.tenant):
                    meant = 0
            status = meant if status < 500 or (meant == 429 and status in (500, 503)) else status
        # One answer that fails says nothing of the next one, nor does one upstream of a server's for the others.
        is_told = status in BUSY_STATUSES or 400 <= status < 500
        return self._of(status, "broke off", None, error, request) if is_told else None

    def _of(
        self,
        status: int,
        did: str,
        later: float | None,
        error: ErrorObject,
        request: ServerRequest,
        *,
        is_doubted: bool = False,
    ) -> TierError:
        """`is_doubted`: its words alone, to one tenant, say that it is no concern of the caller's."""
        return self.located(self._meant(status, did, later, error, request, is_doubted=is_doubted))

    def _meant(
        self,
        status: int,
        did: str,
        later: float | None,
        error: ErrorObject,
        request: ServerRequest,
        *,
        is_doubted: bool,
    ) -> TierError:
        if later is None:
            later = wait_in(error.words) if error.retry_after_seconds is None else error.retry_after_seconds
        message = f"{self.where} {did}: {one_line(error.message)}"
        # By all words, because these two leave the tier as it is.
        if status == 403 and _FLAGGED.search(error.message):
            return TierRequestError(message, *_named(error))
        if status == 404 and _NOT_SERVED.search(error.message):
            # OpenRouter's, of what none of its providers has.
            return TierCapabilityError(message, *_named(error))
        is_operators = status in OPERATOR_STATUSES
        if not is_operators and request.dialect.is_about_model(error):
            typed = msgspec.structs.replace(error, own="")
            is_operators = request.dialect.is_about_model(typed) or self._is_confirmed(404, request.tenant)
            is_doubted = not is_operators
        if is_operators:
            kind = TierKeyError if status in KEY_STATUSES else TierUnavailableError
            return self._asked_to_wait(kind(f"{message} ({self._remedy(status, request)})"), later)
        if status in BUSY_STATUSES or (status == 503 and later is not None):
            if later is None:
                self._back_off()
                return TierBusyError(message)
            return self._asked_to_wait(TierBusyError(message), later)
        about_tier = self._of_tier(error, message, status)
        if isinstance(about_tier, TierContextError):
            return about_tier
        if status in TRY_LATER_STATUSES or status >= 500 or status < 400:
            self._suspected(request.body if 400 <= status <= 500 else None)
            return TierUnavailableError(message)
        return about_tier or (TierCapabilityError if is_doubted else TierRequestError)(message, *_named(error))

    def _of_tier(self, error: ErrorObject, message: str, status: int) -> TierCapabilityError | None:
        """Return what this tier cannot take, where another may; None if that is not what was refused."""
        if (excess := too_long(error, status)) is not None:
            return TierContextError(message, _named(error)[0], **excess._asdict())
        is_limit = is_unable(error) or told_tools(error.words) > 0
        return TierCapabilityError(message, *_named(error)) if is_limit else None

    def of_caller(
        self, response: Reply | httpx.Response, error: ErrorObject, request: ServerRequest
    ) -> CallerCredentialError | None:
        """Return what the server says of the caller's own credential or its account, by which the tier is not avoided;
        None if it says something else, or was asked without one."""
        status = response.status_code
        if request.credential is None:
            return None
        if status not in (*OPERATOR_STATUSES, 429) and not request.dialect.is_about_model(error):
            return None
        error, later = self._redacted(error, request.credential), parse_retry_after(response.headers)
        return self.located(
            CallerCredentialError(
                f"{self.where} answered {status} to your credential: {one_line(error.message)}",
                403 if status == 407 else status,
                _named(error)[1],
                error.retry_after_seconds if later is None else later,
            )
        )

    def _asked_to_wait(self, error: TierUnavailableError, seconds: float | None) -> TierUnavailableError:
        self.cool_down(seconds)
        if seconds is not None:
            error.retry_after_seconds = seconds
        return error

    def _remedy(self, status: int, request: ServerRequest) -> str:
        """Return what the operator can do about a status that is the catalogue's fault, or the account's."""
        if status == PAYMENT_REQUIRED:
            return "pay for the account of the tier's key"
        if status not in (401, 403):
            listing = "; `aio check` lists the server's models" if self._lists_models else ""
            return f"check url and model = {request.model!r} in the catalogue{listing}"
        variable = self._key_variable
        if variable is None:
            return "the server wants a key: name the environment variable that holds it as api_key_env in the catalogue"
        return f"check the key in {variable}" if self._key else f"set {variable}, where the key is expected"

    def scrub(self, text: str, credential: CallerCredential | None = None) -> str:
        """Return a server's own words for an error: without its address and keys, on one line, and not for long."""
        return one_line(self._redact(text if credential is None else credential.scrub(text)))

    def _redacted(self, error: ErrorObject, credential: CallerCredential | None) -> ErrorObject:
        """Return the error without the server's address and keys: every field that may be passed on."""

        def cleaned(text: str) -> str:
            return self._redact(text if credential is None else credential.scrub(text))

        named = {name: getattr(error, name) for name in ("message", "type", "param", "code")}
        said = {name: cleaned(text) for name, text in named.items() if isinstance(text, str)}
        return msgspec.structs.replace(error, **said)


def _as_meant(status: int, meant: int) -> int:
    """Return the status that a reply with this one has where its error means another one."""
    taken = {402: (400, 429), 401: (400, 500), 429: (400, 403, 500, 503), 404: (400,)}
    return meant if status in taken.get(meant, ()) else status


def _with_own_words(error: ErrorObject, request: ServerRequest) -> ErrorObject:
    if error.own is None:
        error.own = own_words(error.message, request.body)
        # What is no identifier are words too.
        for name in ("type", "code"):
            if isinstance(said := getattr(error, name), str) and " " in said:
                setattr(error, name, own_words(said, request.body))
    return error


def _status_in(words: str, meanings: _Meanings = _MEANINGS) -> int:
    """Return the status that the words of an error mean; 0 for none."""
    return next((status for status, pattern in meanings if pattern.search(words)), 0)


def is_secret(key: str) -> bool:
    """Whether a key looks like one, and not like words (`ollama`, `not-needed`) or a placeholder (`sk-1234`), which
    servers that want none are often given."""
    is_word = _WORDS.fullmatch(key) is not None and not key.startswith("sk-")
    return len(key) >= _LONG or (len(key) >= _LEAST_SECRET and not is_word)


def _named(error: ErrorObject) -> list[str | None]:
    """Return the field that a refusal names, and its code."""
    return [None if said is None else one_line(str(said), 128) for said in (error.param, error.code)]
