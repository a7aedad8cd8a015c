"""A tier on a remote server, over httpx; the differences between kinds of servers are in its wire."""

import asyncio
import json
import logging
import math
import os
import re
import time
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import aclosing
from functools import partial

import httpx
import msgspec

from inference_core.io.background_tasks import repeated
from inference_core.protocol import StepTimes
from inference_core.tokenization.prompt_size import BYTES_PER_TOKEN, TOKENS_PER_MESSAGE
from tiers.catalog.pricing import write_pays
from tiers.catalog.tier_spec import USUAL_CONTEXT, TierSpec
from tiers.errors import (
    CatalogError,
    MissingKeyError,
    TierAnswerError,
    TierAnswerTooLongError,
    TierBusyError,
    TierError,
    TierKeyError,
    TierRequestError,
    TierUnavailableError,
)
from tiers.merge_streams import merge
from tiers.native_content import NativeContent
from tiers.prompt_bounds import prompt_bounds
from tiers.remote.answer_bounds import UNCOUNTED_JSON_BYTES, AnswerBounds, bounds_of
from tiers.remote.http_connection import OversizedHeadError
from tiers.remote.http_exchange import headers_of, pieces_of, read_rest, trace_headers, up_to
from tiers.remote.http_transport import (
    HttpTransport,
    Reply,
    head_bytes,
    header_lines,
    request_bytes,
    transport_to,
)
from tiers.remote.openai_format import WireError, parse_retry_after
from tiers.remote.reasoning_makers import MAKERS, ReasoningMakers
from tiers.remote.server_models import ServerModel, chosen_model, parse_models
from tiers.remote.server_queue import QueueReport, ServerQueue, Stream
from tiers.remote.sse import EventTooLargeError, ServerSentEvent
from tiers.remote.usage_counter import Tally
from tiers.remote.wire import QueueMetric, StreamParser, WireCall
from tiers.remote.wires import wire_of
from tiers.server_words import one_line
from tiers.tier import AnswerEnd, ChatMessage, Delta, GenerationRequest, Tier, TierLoad, TraceHeaders

log = logging.getLogger(__name__)

MAX_ERROR_BYTES = 64 * 1024
MAX_METRICS_BYTES = 2 * 2**20
MAX_MODELS_BYTES = 4 * 2**20
# Of a list of models; a provider with 400 of them has 30,000.
MAX_MODELS_COMMAS = 200_000
MOST_NAMED = 12
# Time limit of a look at the server's queue, and the pause after one without a report.
QUEUE_SECONDS, SILENT_SECONDS = 1.0, 10.0
OPERATOR_STATUSES = (401, 402, 403, 404, 407)
KEY_STATUSES = (401, 402, 403)
# How Anthropic, OpenAI and Bedrock refuse a limit above what the model can answer.
_MOST_ANSWERED = re.compile(
    r"max_tokens: \d{1,10} > (\d{1,10}), which is the maximum|supports at most (\d{1,10}) completion tokens"
    r"|exceeds the model limit of (\d{1,10})"
)
_UNREACHED = (httpx.ConnectError, httpx.ConnectTimeout)
TRY_LATER_STATUSES = (408, 409, 425)
# 529: Anthropic's "overloaded".
BUSY_STATUSES = (429, 529)


class RemoteTier(Tier):
    """Streams from `spec.remote`; the key is read from the environment once and never shown.

    After a failure of the server the tier reports itself unhealthy for `cooldown_seconds`, or as long as the server
    asked, so that routing avoids it; then it tries again. Without its key's environment variable it never starts.
    `model` and `max_context`, where the catalogue leaves them open, are the server's from `start` on.
    """

    def __init__(
        self,
        spec: TierSpec,
        *,
        environ: Mapping[str, str] = os.environ,
        cooldown_seconds: float = 10.0,
        clock: Callable[[], float] = time.monotonic,
        connect: Callable[[httpx.URL], httpx.AsyncBaseTransport] = transport_to,
        makers: ReasoningMakers = MAKERS,
    ) -> None:
        """`makers`: where it notes the reasoning that its model has sealed, and looks up whose an earlier one is."""
        if spec.remote is None:
            raise CatalogError(f"tier '{spec.name}' has no remote table")
        self.name, self.number, self.model = spec.name, spec.number, spec.model_name
        self.max_context, self.max_output = spec.remote.max_context or USUAL_CONTEXT, spec.max_output_tokens
        self._spec, self._remote = spec, spec.remote
        self._key = environ.get(spec.remote.api_key_env or "", "").strip()
        self._cooldown_seconds, self._clock, self._connect = cooldown_seconds, clock, connect
        self._unhealthy_until = -math.inf
        self._running = 0
        self._queue = ServerQueue()
        self._watching: asyncio.Task[None] | None = None
        self._wire = wire_of(spec.remote)
        self._makers = makers
        self._base = httpx.URL(spec.remote.base_url.rstrip("/") + "/")
        # Request lines and constant headers by method and path.
        self._heads: dict[tuple[str, str], bytes] = {}
        self._headers = headers_of(self._base, self._wire.key_headers(self._key))
        self._transport: httpx.AsyncBaseTransport | None = None

    async def start(self) -> None:
        """See `Tier.start`: the server must answer its kind's health path, with any status, and if it describes its
        model, that model must be able to serve the tier. A model that the catalogue does not name must be the server's
        only one, or have the tier's name. From then on its queue is read every `queue_poll_seconds`."""
        await self.reach()
        self.watch_queue()

    async def reach(self) -> None:
        """Do what `start` does, except to follow the server's queue."""
        self._require_key()
        try:
            await asyncio.to_thread(self._wire.prepare)
        except TierUnavailableError as error:
            self._cool_down()
            raise TierUnavailableError(f"{self._where}: {error}") from error
        if not self._wire.health_path:
            return
        seen = await self._look(self._wire.health_path, MAX_MODELS_BYTES)
        is_known = self._remote.model and self._remote.max_context is not None
        is_seen = self._wire.models_path == self._wire.health_path
        if self._wire.models_path is not None and (is_seen or not is_known):
            self._take_model(parse_models(*seen) if is_seen else await self.listed_models())
        if (path := self._wire.model_path) is not None:
            status, body = seen if path == self._wire.health_path else await self._look(path)
            problem = self._wire.model_problem(status, body)
            if problem is not None:
                self._cool_down()
                raise TierUnavailableError(f"{self._where} {self._scrub(problem)}")
            if self.max_output is None and status == 200:
                self.max_output = self._wire.published_output(body)

    async def listed_models(self) -> list[ServerModel] | None:
        """Return the server's models; None if it does not list them. Raises `TierUnavailableError`."""
        self._require_key()
        path = self._wire.models_path
        return None if path is None else parse_models(*await self._look(path, MAX_MODELS_BYTES))

    def _require_key(self) -> None:
        if self._remote.api_key_env is not None and not self._key:
            raise MissingKeyError(
                f"tier '{self.name}': its API key is expected in the environment variable {self._remote.api_key_env}, "
                "which is not set; set it and start again, or remove the tier from the catalogue"
            )

    def _take_model(self, models: list[ServerModel] | None) -> None:
        """Use what the server says of its models, where the catalogue leaves it open."""
        found = chosen_model(self._remote.model or self.name, models or [])
        if not self._remote.model:
            if found is None and models:
                names = ", ".join(model.name for model in models[:MOST_NAMED]) + ", …" * (len(models) > MOST_NAMED)
                raise TierUnavailableError(
                    f'{self._where} has several models: {names}; name one in the catalogue: model = "{models[0].name}"'
                )
            self.model = self.name if found is None else found.name
            self._remote = msgspec.structs.replace(self._remote, model=self.model)
            self._wire = wire_of(self._remote)
        if found is None or found.name != self.model:
            return
        if self._remote.max_context is None:
            self.max_context = found.max_context or self.max_context
        if self.max_output is None:
            self.max_output = found.max_output

    async def _look(self, path: str, most: int = MAX_ERROR_BYTES) -> tuple[int, bytes]:
        """Return status and body of a GET. Raises `TierUnavailableError` if the server is unreachable or refuses."""
        try:
            response, body = await self._get(path, self._remote.read_timeout_seconds, most)
        except (httpx.TransportError, httpx.DecodingError) as error:
            raise self._unavailable(error) from error
        if body.count(b",") > MAX_MODELS_COMMAS:
            raise TierUnavailableError(f"{self._where} answered GET {path} with more values than any list of models")
        refusal = self._wire.read_error(body) if response.status_code >= 400 else WireError()
        is_operators = path == self._wire.health_path and self._wire.is_about_model(refusal)
        if response.status_code in (401, 403) or response.status_code >= 500 or is_operators:
            raise self._status_error(response, refusal)
        return response.status_code, body

    @property
    def base_url(self) -> str:
        """The address of the server."""
        return self._remote.base_url

    @property
    def one_choice(self) -> bool:
        """Whether an answer of such a server has one choice, so that several are several requests."""
        return self._wire.one_choice

    @property
    def tells_queue(self) -> bool:
        """Whether servers of this kind report the number of their requests."""
        return self._wire.queue is not None

    def watch_queue(self) -> None:
        """Read the queue of a server that tells it every `queue_poll_seconds` until `close`."""
        if self._watching is None and self.tells_queue and self._remote.balancing.queue_poll_seconds:
            self._watching = repeated(self._watch_queue, f"queue of tier {self.number}")

    async def _watch_queue(self) -> None:
        seconds = self._remote.balancing.queue_poll_seconds
        while True:
            reports = await self.look_at_queue() is not None
            await asyncio.sleep(seconds if reports else max(seconds, SILENT_SECONDS))

    async def look_at_queue(self) -> int | None:
        """Return the number of the server's requests from all clients; None if it does not report it in time."""
        report = None if self._wire.queue is None else await self._queue_report(self._wire.queue)
        self._queue.tell(report, self._clock())
        return None if report is None else report.running + report.waiting

    async def _queue_report(self, metric: QueueMetric) -> QueueReport | None:
        try:
            response, page = await self._get(metric.path, QUEUE_SECONDS, MAX_METRICS_BYTES)
        except (httpx.TransportError, httpx.DecodingError):
            return None
        return metric.read(page) if response.status_code == 200 else None

    async def _get(self, path: str, seconds: float, most: int) -> tuple[Reply | httpx.Response, bytes]:
        """Return a page's head, and its first `most` bytes and a little more, all within `seconds`."""
        deadline = self._loop_time() + seconds
        response = await self._send("GET", path, b"", seconds, deadline)
        async with aclosing(response):
            return response, await up_to(most, self._pieces(response, deadline))

    async def close(self) -> None:
        """See `Tier.close`."""
        watching, self._watching = self._watching, None
        if watching is not None:
            watching.cancel()
            await asyncio.wait([watching])
        transport, self._transport = self._transport, None
        if transport is not None:
            await transport.aclose()

    def generate(self, request: GenerationRequest) -> AsyncGenerator[Delta, None]:
        """See `Tier.generate`; closing the iterator closes the connection, which tells the server."""
        if request.n > 1 and self.one_choice:
            return one_request_per_choice(self.generate, request)
        tally = self.tally(request)
        request.meter.add(tally.usage)
        return self.answer(request, tally, self._remote.total_timeout_seconds)

    def tally(self, request: GenerationRequest) -> Tally:
        """Return the count of one request's usage, before it is sent."""
        bounds = partial(prompt_bounds, request, self.max_context)
        return Tally(request.n, self.count_prompt_tokens(request), bounds)

    async def answer(self, request: GenerationRequest, tally: Tally, seconds: float) -> AsyncGenerator[Delta, None]:
        """Like `generate`, within `seconds`; a new `tally` counts usage, also of an answer that does not end."""
        self._running += 1
        response: Reply | httpx.Response | None = None
        stream: Stream | None = None
        try:
            call = self._call(request, tally)
            deadline = self._loop_time() + seconds
            patience = min(self._remote.read_timeout_seconds, seconds) if call.streamed else seconds
            tally.sent = True
            if call.streamed:
                stream = self._queue.send(self._clock(), tally.prompt_tokens)
            response = await self._post(call, patience, deadline, request.trace)
            pieces = self._pieces(response, deadline)
            try:
                await self._check(response, call, pieces)
            except TierRequestError as error:
                if not (self._wire.adapts_to(error) or self._learns_limit(error, tally)):
                    raise
                await response.aclose()
                call = self._call(request, tally)
                response = await self._post(call, patience, deadline, request.trace)
                pieces = self._pieces(response, deadline)
                await self._check(response, call, pieces)
            bounds = self._bounds(request, tally)
            if stream is not None:
                parser, ended, size = self._wire.parser(), False, 0
                async for piece in pieces:
                    size += len(piece)
                    if size > bounds.wire:
                        bounds.require_wire(size, bounds.wire)
                    deltas, ended = self._said(parser.feed(piece), tally, bounds)
                    if deltas:
                        self._queue.first_token(stream, self._clock())
                    for delta in _with_pieces(deltas):
                        yield delta
                    if ended:
                        break
                for delta in [] if ended else _with_pieces(self._said_last(parser, tally, bounds)):
                    yield delta
            else:
                body = await up_to(bounds.whole + 1, pieces)
                if len(body) > UNCOUNTED_JSON_BYTES:
                    bounds.require_wire(len(body), bounds.whole)
                    bounds.require_json(body)
                deltas = tally.passed(self._wire.read_whole(body, tally))
                if tally.native:
                    self._note_seals(deltas)
                if tally.said > bounds.said:
                    bounds.require_said(tally.said)
                for delta in deltas:
                    delta.at_once = True
                    yield delta
            if tally.unfinished:
                raise TierError("the answer ended before its choices were finished")
            self._unhealthy_until = -math.inf
            if stream is None:
                yield Delta(end=AnswerEnd(usage=tally.usage()), at_once=True)
            else:
                times = StepTimes(queue_seconds=stream.queue_seconds)
                end = AnswerEnd(usage=tally.usage(), times=times, streamed_tokens=tally.streamed_tokens())
                yield Delta(end=end)
                await read_rest(response, pieces)
        except (EventTooLargeError, httpx.DecodingError, OversizedHeadError) as error:
            raise TierAnswerError(f"{self._where}: {error}") from error
        except (httpx.TransportError, TimeoutError) as error:
            raise self._unavailable(error) from error
        except TierAnswerTooLongError as error:
            raise TierAnswerTooLongError(f"{self._where}: {error}") from error
        except TierError as error:
            if type(error) is not TierError:
                raise
            raise TierAnswerError(f"{self._where}: {self._scrub(str(error))}") from error
        finally:
            self._running -= 1
            self._note_claim(request, tally)
            tally.find_bounds = None
            if stream is not None:
                self._queue.end(stream)
            if response is not None:
                await response.aclose()

    def _note_claim(self, request: GenerationRequest, tally: Tally) -> None:
        """Log counts of the server that cannot be, and note them for the record."""
        if (claimed := tally.impossible_claim()) is None:
            return
        request.meter.claims.append(claimed)
        billed = tally.usage()
        log.warning(
            "%s: request %s: the server counts %d tokens of the prompt and %d of the answer, which cannot be; "
            "%d and %d are billed",
            self._where, request.request_id, claimed.prompt_tokens, claimed.completion_tokens,
            billed.prompt_tokens, billed.completion_tokens,
        )  # fmt: skip

    def count_prompt_tokens(self, request: GenerationRequest) -> int:
        """Return an estimate: four UTF-8 bytes per token, four tokens per message, and those of images, audio
        and files (`tiers.content_parts`); exact for token ids."""
        if isinstance(request.prompt, list):
            return len(request.prompt)
        key = "bytes", request.request_id
        if (known := request.prompts_read.get(key)) is None:
            known = request.prompts_read[key] = self._estimated(request)
        return int(known)

    @staticmethod
    def _estimated(request: GenerationRequest) -> int:
        size = _text_tokens(request.prompt) if isinstance(request.prompt, str) else 0
        for message in request.messages or ():
            size += TOKENS_PER_MESSAGE + _text_tokens(message.content + message.reasoning)
            if message.parts:
                size += message.media_tokens
            for call in message.tool_calls:
                size += _text_tokens(call.name + call.arguments)
        for tool in () if request.tooling is None else request.tooling.tools:
            size += _text_tokens(json.dumps(tool.definition(), check_circular=False))
        return max(1, size)

    def refusal(self, request: GenerationRequest) -> TierRequestError | None:
        """See `Tier.refusal`: no server elsewhere repeats a prompt, and its kind decides the rest."""
        if request.echo:
            return TierRequestError(
                f"echo: tier '{self.name}' is served elsewhere and cannot repeat or score a prompt; leave echo out, or "
                "name a tier that runs here",
                "echo",
            )
        native = request.native
        if native is not None and native.server_tools and native.form != self._wire.form:
            return TierRequestError(
                f"tools: {', '.join(native.server_tools)} is run by the provider that has it, and tier "
                f"'{self.name}' has not got it; leave it out, or name another tier",
                "tools",
            )
        try:
            self._wire.check(request)
        except TierRequestError as error:
            return error
        return None

    def load(self) -> TierLoad:
        """Return the requests in flight from here, the server's queue, and whether the last failure is long enough
        ago."""
        now = self._clock()
        waiting = self._queue.waiting(now)
        return TierLoad(
            healthy=now >= self._unhealthy_until,
            running=self._running,
            waiting=waiting,
            predicted_wait_seconds=self._queue.predicted_wait(now) if waiting else 0.0,
        )

    def queues(self) -> dict[str, int]:
        """See `Tier.queues`."""
        place = self._remote.base_url if self._queue.is_told else self.name
        return {place: self._queue.waiting(self._clock())}

    def _call(self, request: GenerationRequest, tally: Tally) -> WireCall:
        """Return what to send. Raises TierRequestError for what the server does not support."""
        if (refusal := self.refusal(request)) is not None:
            raise refusal
        stated = self._spec.stated_limit(request.max_tokens or None)
        tally.max_tokens = self.most_answer_tokens(stated, tally.prompt_tokens)
        sent = None if stated is None and not self._wire.needs_limit else tally.max_tokens
        call = self._wire.call(self._readable(request), sent)
        request.sent.max_tokens, request.sent.dropped, request.sent.added = sent, call.dropped, call.added
        tally.form = call.form or self._wire.form
        same_form = request.native is not None and request.native.form == tally.form
        if request.native is not None and not same_form:
            request.sent.dropped += request.native.unsaid
        tally.native = tally.form not in (None, "chat") and (request.wants_native or same_form)
        return call

    def _readable(self, request: GenerationRequest) -> GenerationRequest:
        """Return the request without what is in the form of another API, or is reasoning that another model made."""
        messages, native, reuse = request.messages, request.native, request.cache_reuse
        if reuse and not (self._wire.marks_cache and write_pays(self._spec.price, reuse)):
            reuse = 0.0
        if messages is not None and any(message.native or message.kept for message in messages):
            messages = [self._readable_turn(message) for message in messages]
        elif native is None and reuse == request.cache_reuse:
            return request
        native = native if native is not None and native.form == self._wire.form else None
        return msgspec.structs.replace(request, messages=messages, native=native, cache_reuse=reuse)

    def _readable_turn(self, message: ChatMessage) -> ChatMessage:
        said = next((one for one in (message.native, message.kept) if one and one.form == self._wire.form), None)
        if said is not None and said.is_sealed:
            readable = tuple(self._makers.readable(said, self._maker, is_only=self.is_only_maker))
            if len(readable) < len(said.blocks):
                # Gemini's seals are on the calls themselves, so the turn is said again without them.
                said = None if said.form == "gemini" else NativeContent(said.form, readable)
        if said is message.native and message.kept is None:
            return message
        return msgspec.structs.replace(message, native=said, kept=None)

    def _note_seals(self, deltas: list[Delta]) -> None:
        for delta in deltas:
            if delta.native is not None and delta.native.block is not None and delta.native.block.seal:
                self._makers.note(delta.native.block.seal, self._maker)

    @property
    def _maker(self) -> str:
        return f"{self._remote.kind}/{self._remote.model}"

    def _learns_limit(self, refusal: TierRequestError, tally: Tally) -> bool:
        """Return whether a limit was refused with the most that the model can answer, which is known from now on."""
        told = _MOST_ANSWERED.search(str(refusal))
        most = 0 if told is None else int(next(filter(None, told.groups())))
        if not 0 < most < tally.max_tokens:
            return False
        self.max_output = most
        return True

    def _bounds(self, request: GenerationRequest, tally: Tally) -> AnswerBounds:
        """Return how much the server may answer."""
        logprobs = request.sampling.logprobs
        tally.scored = logprobs is not None
        return bounds_of(request.n, tally.max_tokens, logprobs, cumulative=self._remote.cumulative_text)

    @staticmethod
    def _pieces(response: Reply | httpx.Response, deadline: float) -> AsyncIterator[bytes]:
        """Return the pieces of a body, by `deadline`, which our own transport keeps itself."""
        return pieces_of(response, None if isinstance(response, Reply) else deadline)

    def _said(self, events: list[ServerSentEvent], tally: Tally, bounds: AnswerBounds) -> tuple[list[Delta], bool]:
        """Return the deltas of `events`, and whether the last event is among them."""
        said: list[Delta] = []
        if events and len(events[0].data) > UNCOUNTED_JSON_BYTES:
            # Only the first can be larger than the piece that completed it.
            bounds.require_json(events[0].data)
        for event in events:
            deltas = self._wire.read_event(event, tally)
            if deltas is None:
                return said, True
            deltas = tally.passed(deltas)
            if tally.native:
                self._note_seals(deltas)
            said += deltas
        if tally.said > bounds.said:
            bounds.require_said(tally.said)
        return said, False

    def _said_last(self, parser: StreamParser, tally: Tally, bounds: AnswerBounds) -> list[Delta]:
        said, ended = self._said(parser.flush(), tally, bounds)
        return said if ended else said + tally.passed(self._wire.read_end(tally))

    def _post(
        self, call: WireCall, seconds: float, deadline: float, trace: TraceHeaders | None
    ) -> Awaitable[Reply | httpx.Response]:
        """Send the request of an answer; see `_send`."""
        return self._send("POST", call.path, call.body, seconds, deadline, trace, call.headers)

    async def _send(
        self,
        method: str,
        path: str,
        body: bytes,
        seconds: float,
        deadline: float,
        trace: TraceHeaders | None = None,
        more: Sequence[tuple[bytes, bytes]] = (),
    ) -> Reply | httpx.Response:
        """Send a request, with `more` headers, and return the head of the answer; each wait is at most `seconds`, and
        all end by `deadline`, in the loop's time."""
        if self._transport is None:
            self._transport = self._connect(self._base)
        connect, transport = self._remote.connect_timeout_seconds, self._transport
        if isinstance(transport, HttpTransport) and not self._wire.signs:
            return await transport.send(self._raw(method, path, body, trace, more), connect, seconds, deadline)
        async with asyncio.timeout_at(deadline):
            request = await self._request(method, path, body, trace, more)
            if isinstance(transport, HttpTransport):
                return await transport.send(request_bytes(request), connect, seconds, deadline)
            timeout = {"connect": connect, "read": seconds, "write": seconds, "pool": connect}
            request.extensions["timeout"] = timeout
            return await transport.handle_async_request(request)

    async def _request(
        self, method: str, path: str, body: bytes, trace: TraceHeaders | None, more: Sequence[tuple[bytes, bytes]]
    ) -> httpx.Request:
        """Return a request as httpx's, signed where the wire demands it."""
        # As a stream, so that httpx looks for no further headers, which are known here.
        stream = httpx.ByteStream(body)
        request = httpx.Request(method, self._base.join(path), headers=self._headers, stream=stream)
        if method == "POST":
            request.headers["Content-Length"] = str(len(body))
        if trace is not None:
            request.headers.update(trace_headers(trace))
        if more:
            request.headers.update(more)
        if self._wire.signs:
            # On a thread: temporary credentials are renewed there.
            request.headers.update(await asyncio.to_thread(self._wire.signature, request))
        return request

    def _raw(
        self, method: str, path: str, body: bytes, trace: TraceHeaders | None, more: Sequence[tuple[bytes, bytes]]
    ) -> bytes:
        """Return a request as bytes for the wire."""
        head = self._heads.get((method, path))
        if head is None:
            head = self._heads[method, path] = head_bytes(method, self._base.join(path), self._headers.raw)
        if method == "POST":
            head += b"content-length: %d\r\n" % len(body)
        if trace is not None:
            head += header_lines(trace_headers(trace))
        if more:
            head += header_lines(list(more))
        return head + b"\r\n" + body

    async def _check(self, response: Reply | httpx.Response, call: WireCall, pieces: AsyncIterator[bytes]) -> None:
        """Raise unless this is the expected kind of answer."""
        kind = response.headers.get("content-type", "")
        if response.status_code == 200 and ("json" in kind) is not call.streamed and "html" not in kind:
            return
        error = self._wire.read_error(await up_to(MAX_ERROR_BYTES, pieces))
        if response.status_code == 200:
            wanted = "a stream" if call.streamed else "JSON"
            raise TierError(
                f"answered {kind[:100] or 'bytes without a type'} instead of {wanted}: {error.message[:200]}"
            )
        raise self._status_error(response, error)

    def _status_error(self, response: Reply | httpx.Response, error: WireError) -> TierError:
        status, later = response.status_code, parse_retry_after(response.headers)
        later = error.retry_after_seconds if later is None else later
        message = f"{self._where} answered {status}: {self._scrub(error.message)}"
        if status in OPERATOR_STATUSES or self._wire.is_about_model(error):
            self._cool_down(later)
            kind = TierKeyError if status in KEY_STATUSES else TierUnavailableError
            refused = kind(f"{message} ({self._remedy(status, error)})")
            refused.retry_after_seconds = refused.retry_after_seconds if later is None else later
            return refused
        if status in BUSY_STATUSES or (status == 503 and later is not None):
            self._cool_down(later)
            busy = TierBusyError(message)
            busy.retry_after_seconds = busy.retry_after_seconds if later is None else later
            return busy
        if status in TRY_LATER_STATUSES or status >= 500 or status < 400:
            self._cool_down()
            return TierUnavailableError(message)
        param, code = (None if said is None else one_line(str(said), 128) for said in (error.param, error.code))
        return TierRequestError(message, param=param, code=code)

    def _remedy(self, status: int, error: WireError) -> str:
        """Return what the operator can do about a status that is the catalogue's fault, or the account's."""
        if status == 402:
            return "pay for the account of the tier's key"
        if status not in (401, 403):
            listing = "; `aio check` lists the server's models" if self._wire.models_path is not None else ""
            return f"check url and model = {self.model!r} in the catalogue{listing}"
        variable = self._remote.api_key_env
        if variable is None:
            return "the server wants a key: name the environment variable that holds it as api_key_env in the catalogue"
        return f"check the key in {variable}" if self._key else f"set {variable}, where the key is expected"

    def _unavailable(self, error: Exception) -> TierUnavailableError:
        self._cool_down()
        reason = str(error) or type(error).__name__
        advice = " (is it running? check url in the catalogue)" if isinstance(error, _UNREACHED) else ""
        return TierUnavailableError(
            f"{self._where} cannot be reached: {type(error).__name__}: {self._scrub(reason)}{advice}"
        )

    def _cool_down(self, seconds: float | None = None) -> None:
        self._unhealthy_until = self._clock() + (self._cooldown_seconds if seconds is None else seconds)

    def _scrub(self, text: str) -> str:
        """Return a server's own words for an error: without the key, on one line, and not for long."""
        return one_line(text.replace(self._key, "[key]") if self._key else text)

    @property
    def _where(self) -> str:
        return f"tier '{self.name}' ({self._remote.base_url})"

    @staticmethod
    def _loop_time() -> float:
        return asyncio.get_running_loop().time()


async def one_request_per_choice(
    generate: Callable[[GenerationRequest], AsyncGenerator[Delta, None]], request: GenerationRequest
) -> AsyncGenerator[Delta, None]:
    """Like `generate`, with one request to the server per choice."""

    async def choice(index: int) -> AsyncGenerator[Delta, None]:
        async with aclosing(generate(msgspec.structs.replace(request, n=1))) as deltas:
            async for delta in deltas:
                delta.index = index
                yield delta

    ends: list[Delta] = []
    async with aclosing(merge([choice(index) for index in range(request.n)])) as deltas:
        async for delta in deltas:
            if delta.end is None:
                yield delta
            else:
                ends.append(delta)
    yield Delta.last_of(ends)


def _with_pieces(deltas: list[Delta]) -> list[Delta]:
    """Note in the first of `deltas` with output, which came at once, how many of them have any."""
    said = [delta for delta in deltas if delta.text or delta.reasoning or delta.tool_calls]
    if said:
        said[0].pieces = len(said)
    return deltas


def _text_tokens(text: str) -> int:
    return math.ceil(len(text.encode("utf-8", errors="replace")) / BYTES_PER_TOKEN)
