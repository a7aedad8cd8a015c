"""Pass a request on to the server that has its endpoint: the caller's limits and budget before, the bill and the
record after."""

import asyncio
import json
import math
import time
from collections.abc import Mapping
from contextlib import ExitStack
from typing import Any

import msgspec
from litestar.types import Receive, Scope, Send

from gateway.base.errors import ApiError, as_api_error, bad_request
from gateway.base.inference_request import InferenceRequest, PrivateMark, RoutingOptions
from gateway.base.numbers import usd_text
from gateway.edge.response_cycle import DisconnectWatch, StallWatch
from gateway.inference.api.build_request import received, routing_options, unanswered_request
from gateway.inference.api.parsing import decoded_body, json_of
from gateway.inference.api.passed.endpoints import SPEECH_TOKENS_A_SECOND, PassedEndpoint, Workload
from gateway.inference.api.passed.form import MOST_BYTES, PassedForm, check_names
from gateway.inference.embedding.embedder import embedding_record
from gateway.inference.service import Serving, serving_of
from gateway.tenancy.admission import Admission, check_max_cost
from gateway.tenancy.guard import PlainRequest
from inference_core.io.files import JSON_ERRORS
from quality.records.record import Attempt
from tiers.audio.duration import audio_duration
from tiers.catalog.catalog import TargetSpec
from tiers.catalog.consent import NO_CREDENTIAL, Consent, CredentialConsent, hidden_from
from tiers.catalog.tier_spec import TierSpec
from tiers.catalog.unit_price import UnitPrice, unit_price
from tiers.dialects.caller_urls import refuse_raw
from tiers.errors import HEADER, TierAnswerError, TierAnswerTooLongError, TierError
from tiers.remote.passed_server import PassedAnswer, PassedServer

MOST_ANSWER_BYTES = 256 * 2**20
MOST_JSON_BYTES = 64 * 2**20
# A page of HTML from a server elsewhere would run in the name of this one.
KINDS = ("application/json", "text/event-stream", "text/plain", "text/vtt", "application/x-subrip", "audio/", "image/")
_DECODED_AT_ONCE = 256 * 1024
# OpenAI's `pcm`: 24,000 samples of 16 bits a second.
_PLAIN_AUDIO, PLAIN_AUDIO_BYTES_A_SECOND = ("audio/pcm", "audio/l16"), 48_000
# As of chats: a server's own count of tokens is believed down to this share of our estimate.
LEAST_SHARE = 1 / 64
_TAIL_BYTES = 4096
"""Of a stream of events: its last one ends with the usage, after an image of megabytes."""


class PassedOn:
    """The ASGI application of one request."""

    def __init__(self, request: PlainRequest, endpoint: PassedEndpoint) -> None:
        self._request, self._endpoint = request, endpoint
        self._serving, self._head = serving_of(request), received(request)
        self._admission: Admission | None = None
        """By the caller's limits, of a form."""
        self._started = False
        self._units = 0.0
        self._tokens: Mapping[str, float] = {}
        self._tells_units = self._tells_tokens = False

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """See ASGI."""
        with ExitStack() as stack:
            workload, model, form, fields = await self._read(stack)
            own = routing_options(self._head.headers, self._serving.routing.served.strongest)
            consent, mark = await self._consent(own, form, fields)
            spec = self._chosen(model, consent)
            if (hidden := hidden_from(spec, consent)) is not None:
                raise _not_shown(spec, hidden, mark)
            if form is not None:
                kind, body = form.written(spec.model_name)
            else:
                named = msgspec.Raw(msgspec.json.encode(spec.model_name))
                kind, body = "application/json", msgspec.json.encode(fields | {"model": named})
            disconnect = DisconnectWatch(scope, receive)
            try:
                await self._pass_on(spec, workload, model or spec.name, own, kind, body, send)
            except BaseException as error:
                if disconnect.is_reason(error) or (self._started and isinstance(error, Exception)):
                    # Nothing is left to say: the connection ends before the body does.
                    return
                raise
            finally:
                disconnect.end()

    async def _read(self, stack: ExitStack) -> tuple[Workload, str | None, PassedForm | None, dict[str, msgspec.Raw]]:
        """Return the work, of which model, and the form, or the fields of the body."""
        endpoint = self._endpoint
        if endpoint.body is None:
            # Before it is read: a form takes as long as its sender likes.
            self._admission = await self._serving.service.limited(unanswered_request(self._head, "auto"))
            stack.callback(self._admission.settle, 0.0, 0)
            form = PassedForm(endpoint, self._request.hold)
            await form.read(self._request)
            threads, whole = self._serving.routing.threads, form.whole()
            form.refuse_urls()
            workload = await threads.run(self._head.caller.tenant, lambda: endpoint.workload(whole))
            return workload, form.fields.get("model"), form, {}
        raw = await json_of(self._request)
        decoder = msgspec.json.Decoder(endpoint.body)
        body: Any = await decoded_body(self._serving, decoder, raw, self._head.caller)
        refuse_raw(raw, "")
        fields = msgspec.json.decode(raw, type=dict[str, msgspec.Raw])
        check_names(fields, endpoint.body.__struct_fields__, endpoint)
        return endpoint.workload(body), body.model, None, fields

    def _chosen(self, model: str | None, consent: Consent) -> TierSpec:
        """Return the entry that has the endpoint: the one with this name or model, else the first; one that may see the
        request comes first. Raises `ApiError` 404."""
        served, caller = self._serving.routing.served, self._head.caller
        catalog = served.catalog
        able = [spec for spec in (*catalog.tiers, *catalog.targets) if self._endpoint.serves in spec.serves]
        able = [spec for spec in able if caller.may_use(spec)]
        named = None if model is None else served.unaliased(model, caller)
        fitting = [spec for spec in able if named in (None, "auto", spec.name, spec.model_name, f"tier-{spec.number}")]
        if fitting:
            return next((spec for spec in fitting if hidden_from(spec, consent) is None), fitting[0])
        names = ", ".join(dict.fromkeys(name for spec in able for name in (spec.name, spec.model_name)))
        there = f"there are {names}" if names else f"no entry of the catalogue has serves = [{self._endpoint.serves!r}]"
        raise ApiError(
            404, f"No model {model!r} is served at /v1/{self._endpoint.path}; {there}.", param="model",
            code="model_not_found",
        )  # fmt: skip

    async def _consent(
        self, own: RoutingOptions, form: PassedForm | None, fields: dict[str, msgspec.Raw]
    ) -> tuple[Consent, PrivateMark | None]:
        """Return what key and request consent to, and what makes the request private."""
        consent = self._head.caller.consent.narrowed(own.consent)
        mark, screen = own.private, self._serving.service.screen
        if mark is None and screen is not None and screen.has_rules:
            from gateway.inference.screening.texts import texts_of_body

            texts = texts_of_body(fields if form is None else form.texts, () if form is None else form.files)
            mark = await screen.mark_of(texts, self._head.caller.tenant, self._serving.routing.threads)
        if mark is not None:
            consent = consent.narrowed(Consent(local=True))
        if own.credential is not None:
            consent = CredentialConsent.of(consent)
        return consent, mark

    async def _pass_on(
        self, spec: TierSpec, workload: Workload, model: str, own: RoutingOptions, kind: str, body: bytes, send: Send
    ) -> None:
        serving, endpoint, caller = self._serving, self._endpoint, self._head.caller
        price = unit_price(spec, endpoint.serves, workload.words)
        request = unanswered_request(self._head, model, options=own)
        is_bounded = bool(caller.allowance.budgets) or request.max_cost_usd is not None
        if workload.unreadable and price.is_known and is_bounded:
            raise bad_request(workload.unreadable, endpoint.file[0], "unsupported_file")
        failure: BaseException | None = None
        most_usd = price.usd(workload.most, workload.most_tokens) or 0.0
        check_max_cost(request, most_usd)
        server = _server(serving, spec)
        tokens = math.ceil(sum(workload.tokens.values()))
        async with serving.service.reading(request, tokens, self._admission) as admission:
            await admission.reserve(caller, most_usd)
            started = time.monotonic()
            try:
                async with server.sent(endpoint.path, kind, body, own.credential) as answer:
                    # From here on it is billed, however it ends.
                    self._units, self._tokens = workload.units, workload.tokens
                    await self._send(spec, workload, answer, price, admission, send)
            except TierError as error:
                failure = as_api_error(error)
                raise failure from error
            except BaseException as error:
                failure = error
                if not isinstance(error, Exception) and not self._units:
                    # The caller leaves before the answer begins: the server works, and bills, to the end.
                    self._units, self._tokens = workload.units, workload.tokens
                raise
            finally:
                usd = self._usd(price, workload)
                admission.settle(usd, math.ceil(sum(self._tokens.values())))
                serving.records.append(self._record(request, spec, workload, started, failure, usd, price))

    def _usd(self, price: UnitPrice, workload: Workload) -> float:
        """Return what is billed: of tokens at most what is held."""
        usd = price.usd(self._units, self._tokens) if self._units else None
        if usd is None:
            return 0.0
        return usd if price.usd_per_unit is not None else min(usd, price.usd(0.0, workload.most_tokens) or 0.0)

    def _record(
        self, request: InferenceRequest, spec: TierSpec, workload: Workload, started: float, failure: Any, usd: float,
        price: UnitPrice,
    ) -> Any:  # fmt: skip
        record = embedding_record(
            request, spec.model_name, started, failure, 0, usd, self._serving.service.replica, spec.price
        )
        attempt = Attempt(
            tier=0,
            model=spec.model_name,
            status=record.status,
            cost_usd=usd,
            error=record.error,
            reason=price.said(self._units, usd if price.is_known else None),
            target=spec.name if isinstance(spec, TargetSpec) else None,
            estimated=price.is_known
            and self._units > 0
            and (failure is not None or not self._is_counted(price, workload)),
        )
        return msgspec.structs.replace(record, api=self._endpoint.api, attempts=[attempt])

    def _is_counted(self, price: UnitPrice, workload: Workload) -> bool:
        """Whether what a whole answer is billed by was counted: only the parts of documents, tokens, and the length of
        a file that cannot be read are not known from the request itself."""
        if price.rates:
            return self._tells_tokens
        return self._tells_units or not (workload.unreadable or self._endpoint.serves == "rerank")

    async def _send(
        self, spec: TierSpec, workload: Workload, answer: PassedAnswer, price: UnitPrice, admission: Admission,
        send: Send,
    ) -> None:  # fmt: skip
        """Send the answer: JSON whole, because it says what is billed, and all else as it comes."""
        shown = answer.kind if answer.kind.lower().startswith(KINDS) else "application/octet-stream"
        headers = dict(admission.headers) | {
            "content-type": shown,
            "x-content-type-options": "nosniff",
            "x-request-id": self._head.request_id,
            "x-aio-model": spec.model_name.encode("ascii", "replace").decode(),
        }
        if isinstance(spec, TargetSpec):
            headers["x-aio-target"] = spec.name
        if shown.startswith("application/json"):
            whole = await self._whole(workload, answer)
            if price.is_known:
                usd = self._usd(price, workload)
                headers["x-aio-cost-usd"] = usd_text(usd)
                if (more := usd - (price.usd(workload.most, workload.most_tokens) or 0.0)) > 0:
                    # The answer shows more than was asked for. It is charged as far as the budget goes.
                    await admission.make_room(self._head.caller, more)
                    admission.affords(more)
            headers["content-length"] = str(len(whole))
            await self._begin(headers, send)
            await send({"type": "http.response.body", "body": whole, "more_body": False})
            return
        heard = bytearray() if shown.startswith("audio/") and price.rates else None
        size, tail, stall = 0, b"", StallWatch(self._serving.settings.stalled_reader_seconds)
        try:
            async for piece in answer.pieces:
                if not self._started:
                    await self._begin(headers, send)
                size += len(piece)
                if size > MOST_ANSWER_BYTES:
                    raise TierAnswerTooLongError(f"'{spec.name}' answered more than {MOST_ANSWER_BYTES} bytes")
                if heard is not None and size <= MOST_BYTES:
                    heard += piece
                tail = (tail + piece)[-_TAIL_BYTES:] if len(piece) < _TAIL_BYTES else piece[-_TAIL_BYTES:]
                stall.sending()
                await send({"type": "http.response.body", "body": piece, "more_body": True})
                stall.taken()
        finally:
            stall.end()
        if not self._started:
            raise TierAnswerError(f"'{spec.name}' answered nothing")
        if shown.startswith("text/event-stream") and (usage := _usage_at_end(tail)) is not None:
            self._count({"usage": usage}, workload)
        if heard is not None:
            await self._count_heard(bytes(heard), shown)
        await send({"type": "http.response.body", "body": b"", "more_body": False})

    def _count(self, answer: dict[str, Any], workload: Workload) -> None:
        """Take the units and tokens that an answer tells."""
        units = self._endpoint.units(answer)
        self._units, self._tells_units = workload.counted(units), units is not None
        usage = answer.get("usage")
        counts = _tokens_of(usage) if isinstance(usage, dict) else {}
        least = 0.0 if workload.unreadable else LEAST_SHARE * sum(workload.tokens.values())
        is_too_few = sum(counts.values()) < least
        self._tokens, self._tells_tokens = (workload.tokens, False) if is_too_few else (counts, bool(counts))

    async def _count_heard(self, audio: bytes, kind: str) -> None:
        """Take the tokens of the speech that was sent: an answer of audio has no usage."""
        if kind.lower().startswith(_PLAIN_AUDIO):
            seconds: float | None = len(audio) / PLAIN_AUDIO_BYTES_A_SECOND
        else:
            duration = await self._serving.routing.threads.run(self._head.caller.tenant, lambda: audio_duration(audio))
            seconds = None if duration is None else duration.most
        if seconds is not None:
            self._tokens = {**self._tokens, "output": seconds * SPEECH_TOKENS_A_SECOND}

    async def _whole(self, workload: Workload, answer: PassedAnswer) -> bytes:
        body = bytearray()
        async for piece in answer.pieces:
            body += piece
            if len(body) > MOST_JSON_BYTES:
                raise TierAnswerTooLongError(f"the answer has more than {MOST_JSON_BYTES} bytes")
        whole = bytes(body)
        document = await asyncio.to_thread(_read, whole) if len(whole) > _DECODED_AT_ONCE else _read(whole)
        if document is None:
            raise TierAnswerError("the server's answer is no object of JSON")
        self._count(document, workload)
        return whole

    async def _begin(self, headers: dict[str, str], send: Send) -> None:
        encoded = [(name.encode(), value.encode("latin-1")) for name, value in headers.items()]
        await send({"type": "http.response.start", "status": 200, "headers": encoded})
        self._started = True


def _read(body: bytes) -> dict[str, Any] | None:
    try:
        document = msgspec.json.decode(body)
    except JSON_ERRORS:
        return None
    return document if isinstance(document, dict) else None


def _usage_at_end(tail: bytes) -> dict[str, Any] | None:
    """Return the last `usage` of a stream's end; None without one."""
    _, field, rest = tail.decode(errors="replace").rpartition('"usage"')
    try:
        usage, _ = json.JSONDecoder().raw_decode(rest.lstrip(" :")) if field else (None, 0)
    except ValueError:
        return None
    return usage if isinstance(usage, dict) else None


def _not_shown(spec: TierSpec, hidden: str, mark: PrivateMark | None) -> ApiError:
    if hidden == NO_CREDENTIAL:
        return ApiError(
            403, f"{spec.name} answers only with your own credential. Send it as {HEADER}.", param=HEADER,
            code="upstream_authorization_missing",
        )  # fmt: skip
    message, param = f"{spec.name} may not see this request: {hidden}.", "model"
    if mark is not None:
        message, param = f"{message} The request is private ({mark}).", mark.where
    return ApiError(403, message, param=param, code="no_tier_may_see")


def _server(serving: Serving, spec: TierSpec) -> PassedServer:
    """Return the client of the entry's server; a reload that changes the entry makes another."""
    server = serving.passed.get(spec.name)
    if server is None or server.spec is not spec:
        if server is not None:
            serving.replaced.append(server)
        server = serving.passed[spec.name] = PassedServer(spec)
    return server


def _tokens_of(usage: Mapping[str, Any]) -> dict[str, float]:
    """Return the tokens by kind of an answer's `usage`, in OpenAI's forms and of those that tell their sum alone; none
    where it has no such counts."""
    details = usage.get("input_tokens_details")
    details = details if isinstance(details, dict) else {}
    image, audio = (_positive(details.get(f"{kind}_tokens")) for kind in ("image", "audio"))
    output = _positive(usage.get("output_tokens")) or _positive(usage.get("completion_tokens"))
    total = _positive(usage.get("input_tokens")) or _positive(usage.get("prompt_tokens"))
    total = total or max(0.0, _positive(usage.get("total_tokens")) - output)
    if not total and not output:
        return {}
    return {"input": max(0.0, total - image - audio), "input_image": image, "input_audio": audio, "output": output}


def _positive(value: object) -> float:
    is_count = isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value) and value > 0
    return float(value) if is_count else 0.0  # type: ignore[arg-type]
