"""A guardrail: it judges texts of a request before a tier sees them, or of an answer before its caller does.

In process it is a class whose `check` takes an `Asked` and returns a `Verdict`, at once or as a coroutine; a server
gets the `Asked` as JSON by POST, and answers with a `Verdict` as JSON.
"""

import asyncio
import importlib
import inspect
import logging
import os
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Literal, NamedTuple

import msgspec

from gateway.base.errors import ApiError, bad_request
from inference_core.io.files import JSON_ERRORS
from tiers.catalog.catalog import GuardrailSpec, Stage
from tiers.catalog.consent import Consent, hidden_from
from tiers.catalog.replica_spec import server_key
from tiers.errors import CatalogError

if TYPE_CHECKING:
    import httpx

log = logging.getLogger(__name__)

Action = Literal["pass", "block", "replace"]
Outcome = Literal["pass", "block", "replace", "failed"]
_THREADS = 4
# Of a server's answer, beyond twice what it was sent.
_MORE_BYTES = 1 << 16


class AskedText(msgspec.Struct, frozen=True):
    """A text, and whose it is: a role of the conversation, `prompt`, or `answer`, `reasoning` and `arguments` (the JSON
    of a tool call) of an answer."""

    role: str
    text: str


class Asked(msgspec.Struct, frozen=True, kw_only=True):
    """What a guardrail judges: all texts of a request, or of an answer with all its choices."""

    stage: Stage
    request_id: str
    model: str
    """The model as requested."""
    texts: list[AskedText]


class Verdict(msgspec.Struct, frozen=True, kw_only=True):
    """What a guardrail decides."""

    action: Action = "pass"
    """`block` refuses the request or answer; with `replace`, `texts` go on instead."""
    reason: str = ""
    """Shown to the caller of what is refused."""
    texts: list[str] = []
    """As many as were asked about, in their order."""


class _ServersVerdict(msgspec.Struct, frozen=True, kw_only=True):
    """A `Verdict` as a server says it: another object, such as an error with the status 200, lets nothing pass."""

    action: Action
    reason: str = ""
    texts: list[str] = []


Check = Callable[[Asked], Awaitable[Verdict]]
CountVerdict = Callable[[str, Stage, Outcome], None]
"""Called with every verdict: the guardrail's name, the stage and the outcome."""


class VerdictError(Exception):
    """A guardrail gave no verdict; the message says why, without the texts."""


class _Outsider(NamedTuple):
    """A guardrail as a reader of requests, which is no tier."""

    is_local: bool
    number: int = 0
    asks_credential: bool = False


class Guardrail:
    """A guardrail of the catalogue. `check` asks it; `close` ends what it holds. Belongs to one event loop."""

    def __init__(
        self, spec: GuardrailSpec, check: Check, close: Callable[[], Awaitable[None]], count: CountVerdict
    ) -> None:
        self.spec, self._check, self.close, self._count = spec, check, close, count

    async def verdict(self, asked: Asked, consent: Consent) -> Verdict:
        """Return its verdict. Raises `ApiError` if it gives none and is to fail closed: 403 where it may not see the
        request, else 503."""
        hidden = hidden_from(_Outsider(self.spec.is_local), Consent(local=consent.local))
        try:
            if hidden is not None:
                raise VerdictError(hidden)
            async with asyncio.timeout(self.spec.timeout_seconds):
                verdict = await self._check(asked)
            if verdict.action == "replace" and len(verdict.texts) != len(asked.texts):
                raise VerdictError(f"it gave {len(verdict.texts)} texts in place of {len(asked.texts)}")
            self._count(self.spec.name, asked.stage, verdict.action)
            return verdict
        except Exception as error:
            self._count(self.spec.name, asked.stage, "failed")
            # Any other error may quote the texts.
            why = str(error) if isinstance(error, VerdictError) else type(error).__name__
            log.error("guardrail %s judged no %s of %s: %s", self.spec.name, asked.stage, asked.request_id, why)
            if self.spec.fail == "open":
                return Verdict()
            raise self._refusal(asked.stage, hidden) from None

    def _refusal(self, stage: Stage, hidden: str | None) -> ApiError:
        name = self.spec.name
        if hidden is not None:
            return ApiError(
                403, f"The guardrail {name!r} may not see this request: {hidden}.", code="no_guardrail_may_see"
            )
        return ApiError(
            503, f"The guardrail {name!r} gave no verdict on the {stage}. Try again later.", code="guardrail_failed"
        )


def guardrail_of(spec: GuardrailSpec, count: CountVerdict) -> Guardrail:
    """Return an entry's guardrail. Raises `CatalogError` for a class that cannot be made, or an unset variable."""
    return _in_process(spec, count) if spec.python is not None else _at_server(spec, count)


def _in_process(spec: GuardrailSpec, count: CountVerdict) -> Guardrail:
    module, _, name = (spec.python or "").partition(":")
    try:
        check = getattr(importlib.import_module(module), name)(**spec.options).check
    except Exception as error:
        raise CatalogError(f"guardrails '{spec.name}'.python = {spec.python!r}: {error!r}") from error
    # Its own threads, so that one that hangs takes no others.
    threads = ThreadPoolExecutor(_THREADS, f"guardrail-{spec.name}")

    async def asked(texts: Asked) -> Verdict:
        if inspect.iscoroutinefunction(check):
            verdict = await check(texts)
        else:
            verdict = await asyncio.get_running_loop().run_in_executor(threads, check, texts)
        if not isinstance(verdict, Verdict):
            raise VerdictError(f"it gave {type(verdict).__name__}, no Verdict")
        return verdict

    async def close() -> None:
        threads.shutdown(wait=False, cancel_futures=True)

    return Guardrail(spec, asked, close, count)


def _at_server(spec: GuardrailSpec, count: CountVerdict) -> Guardrail:
    import httpx

    from tiers.remote.http_exchange import bounded_answer
    from tiers.remote.http_transport import transport_to

    headers = {"content-type": "application/json"}
    if spec.api_key_env is not None:
        key = server_key(os.environ, spec.api_key_env)
        if not key:
            raise CatalogError(f"guardrails '{spec.name}'.api_key_env = {spec.api_key_env!r}: it is not set")
        headers["authorization"] = f"Bearer {key}"
    url, kept = httpx.URL(spec.url or ""), _Client()

    async def asked(texts: Asked) -> Verdict:
        client = kept.client = kept.client or httpx.AsyncClient(transport=transport_to(url), follow_redirects=False)
        body = msgspec.json.encode(texts)
        request = client.build_request("POST", url, content=body, headers=headers)
        response, content = await bounded_answer(client, request, 2 * len(body) + _MORE_BYTES, spec.timeout_seconds)
        if response.status_code != 200:
            raise VerdictError(f"its server answered with status {response.status_code}")
        try:
            said = msgspec.json.decode(content, type=_ServersVerdict)
        except JSON_ERRORS:
            raise VerdictError("its server's answer is no verdict") from None
        return Verdict(action=said.action, reason=said.reason, texts=said.texts)

    async def close() -> None:
        if kept.client is not None:
            await kept.client.aclose()

    return Guardrail(spec, asked, close, count)


class _Client:
    """The connections to a server, which are made in the event loop that uses them."""

    client: "httpx.AsyncClient | None" = None


def refused(spec: GuardrailSpec, reason: str, param: str) -> ApiError:
    """Return the 400 for a request that a guardrail blocked, with the code that Azure's filter has."""
    said = reason or "its content is not allowed"
    return bad_request(f"The guardrail {spec.name!r} blocked this request: {said}.", param, "content_filter")
