"""A tier on a remote server, over httpx; what differs by the kind of server is in its dialect and its endpoint."""

import asyncio
import os
import re
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Collection, Mapping
from contextlib import aclosing, suppress
from copy import copy
from functools import partial

import httpx
import msgspec

from inference_core.io.background_tasks import repeated
from inference_core.protocol import StepTimes
from tiers.catalog.pricing import write_pays
from tiers.catalog.replica_spec import server_key
from tiers.catalog.tier_spec import NO_TLS, ONE_CHOICE, OWN_SERVERS, USUAL_CONTEXT, TierSpec
from tiers.deltas import merged_answers
from tiers.dialects.adapted_request import Adapted, adapted
from tiers.dialects.dialect import ServerCall, dialect_of
from tiers.dialects.extras import extra_reads
from tiers.dialects.refusals import (
    ANY_FORMAT,
    CHOICES,
    CONTEXT,
    LIMIT,
    SCHEMA,
    THIS_VALUE,
    TOOLS,
    least_told,
    of_this_request,
    room_left,
    taught,
)
from tiers.dialects.rules import num_tools, unserved
from tiers.dialects.seal_registry import SEALS, SealRegistry, server_model_of
from tiers.dialects.server_error import ErrorObject, ServerSaidError, parse_error
from tiers.dialects.server_models import ServerModel, chosen_model, parse_models
from tiers.dialects.usage_counter import HiddenThoughts, ImpossibleClaims, Tally, bounds_of, estimated_prompt_tokens
from tiers.dialects.written.inline_text import SeenThoughts, opens_thoughts
from tiers.errors import (
    HEADER,
    CallerCredentialError,
    CatalogError,
    MissingKeyError,
    TierCapabilityError,
    TierContextError,
    TierError,
    TierRequestError,
    TierUnavailableError,
)
from tiers.prompt_bounds import prompt_bounds, room_after
from tiers.remote.answer_reader import READING_ON, ReadingOn, ReplyReader
from tiers.remote.endpoint import Credentials, endpoint_of
from tiers.remote.http_exchange import HttpClient, is_whole, pieces_of, preceded, read_rest
from tiers.remote.http_transport import Reply, transport_to
from tiers.remote.refusals import NOTHING, REFUSALS, LearnedRefusals, ServedModel
from tiers.remote.server_failures import (
    FAILURES,
    MAX_ERROR_BYTES,
    ServerFailures,
    ServerRequest,
    UnsettledError,
)
from tiers.remote.server_state import ServerQueue, Stream
from tiers.response_format import follows_schema, is_object
from tiers.tier import REPLAYED, AnswerEnd, Delta, GenerationRequest, Tier, TierLoad

MAX_METRICS_BYTES = 2 * 2**20
MAX_MODELS_BYTES = 4 * 2**20
# Of a list of models; a provider with 400 of them has 30,000.
MAX_MODELS_COMMAS = 200_000
MOST_NAMED = 12
MOST_ADAPTED = 3
"""Refusals of one request that are answered by the same request without what was refused."""
# Time limit of a look at the server's queue, and the pause after one without a report.
QUEUE_SECONDS, SILENT_SECONDS = 1.0, 10.0
CUT_SECONDS = 5.0
"""The caller's end waits so long for the counts of an answer that is cut here and billed to its own end."""


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
        seals: SealRegistry = SEALS,
        refusals: LearnedRefusals = REFUSALS,
        reading_on: ReadingOn = READING_ON,
    ) -> None:
        """`seals`: where it notes the reasoning that its model has sealed, and looks up whose an earlier one is.
        `refusals`: where it notes the parameters that its server refuses. `reading_on`: reads answers to their end that
        their callers have left."""
        if spec.remote is None:
            raise CatalogError(f"tier '{spec.name}' has no remote table")
        self.name, self.number, self.model = spec.name, spec.number, spec.model_name
        self.max_context, self.max_output = spec.remote.max_context or USUAL_CONTEXT, spec.max_output_tokens
        self._spec, self._remote = spec, spec.remote
        key = self._key = server_key(environ, spec.remote.api_key_env)
        self._clock = clock
        self._running = 0
        self._ignores_n, self._claims = False, ImpossibleClaims(f"tier '{spec.name}' ({spec.remote.base_url})")
        self._thoughts = SeenThoughts()
        self._queue = ServerQueue()
        self._watching: asyncio.Task[None] | None = None
        self._dialect, self._endpoint = dialect_of(spec.remote, spec.provider), endpoint_of(spec.remote)
        lists, where = self._endpoint.models_path is not None, f"tier '{spec.name}'"
        self._failures = ServerFailures(where, spec.remote, key, cooldown_seconds, clock, lists_models=lists)
        turns = self._dialect.rules.turns
        self.continues_chats = turns.continues and turns.prefill == "taken"
        self._seals, self._refusals = seals, refusals
        self._reading_on, self._left = reading_on, set[asyncio.Task[None]]()
        self._hidden = HiddenThoughts()
        self.server_model = server_model_of(spec.remote, spec.provider)
        self.asks_credential = spec.asks_credential
        sign = None if self._endpoint.credentials is None else partial(self._signature, self._endpoint.credentials)
        headers, seconds = self._endpoint.key_headers(key), spec.remote.connect_timeout_seconds
        if spec.remote.tls != NO_TLS:
            connect = partial(transport_to, tls=spec.remote.tls)
        self._http = HttpClient(spec.remote.base_url, headers, seconds, connect, sign)

    def _signature(self, credentials: Credentials, request: httpx.Request) -> list[tuple[bytes, bytes]]:
        headers = credentials.signature(request)
        for name, value in headers:
            if name.lower() in (b"authorization", b"x-amz-security-token"):
                self._failures.keep_secret(re.split(r" |Signature=", value.decode())[-1])
        return headers

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
            await asyncio.to_thread(self._dialect.prepare)
            if self._endpoint.credentials is not None:
                await asyncio.to_thread(self._endpoint.credentials.find)
        except TierUnavailableError as error:
            self._failures.cool_down()
            raise self._unavailable(f": {error}") from error
        if not self._endpoint.health_path:
            return
        if self.asks_credential:
            # Without any credential, so whatever it answers, it is there.
            await self._reply_to(self._endpoint.health_path, MAX_ERROR_BYTES)
            return
        seen = await self._look(self._endpoint.health_path, MAX_MODELS_BYTES)
        is_known = self._remote.model and self._remote.max_context is not None
        is_seen = self._endpoint.models_path == self._endpoint.health_path
        if self._endpoint.models_path is not None and (is_seen or not is_known):
            self._take_model(parse_models(*seen) if is_seen else await self.listed_models())
        if (path := self._endpoint.model_path) is not None:
            status, body = seen if path == self._endpoint.health_path else await self._look(path)
            problem = self._dialect.model_problem(status, body)
            if problem is not None:
                self._failures.cool_down()
                raise self._unavailable(f" {self._failures.scrub(problem)}")
            if self.max_output is None and status == 200:
                self.max_output = self._dialect.published_output(body)

    async def listed_models(self) -> list[ServerModel] | None:
        """Return the server's models; None if it does not list them. Raises `TierUnavailableError`."""
        self._require_key()
        path = self._endpoint.models_path
        return None if path is None or self.asks_credential else parse_models(*await self._look(path, MAX_MODELS_BYTES))

    def _require_key(self) -> None:
        if self._remote.api_key_env is not None and not self._key:
            raise MissingKeyError(
                f"tier '{self.name}': its API key is expected in the environment variable {self._remote.api_key_env}, "
                "which is not set; set it and start again, or remove the tier from the catalogue"
            )

    def _take_model(self, models: list[ServerModel] | None) -> None:
        """Use what the server says of its models, where the catalogue leaves it open."""
        chosen = chosen_model(self._remote.model or self.name, models or [])
        if not self._remote.model:
            if chosen is None and models:
                names = ", ".join(model.name for model in models[:MOST_NAMED]) + ", …" * (len(models) > MOST_NAMED)
                several = f'has several models: {names}; name one in the catalogue: model = "{models[0].name}"'
                raise self._unavailable(f" {several}")
            self.model = self.name if chosen is None else chosen.name
            self._remote = msgspec.structs.replace(self._remote, model=self.model)
            self.server_model = server_model_of(self._remote, self._spec.provider)
            self._dialect, self._endpoint = dialect_of(self._remote, self._spec.provider), endpoint_of(self._remote)
        if chosen is None or chosen.name != self.model:
            return
        if self._remote.max_context is None:
            self.max_context = chosen.max_context or self.max_context
        if self.max_output is None:
            self.max_output = chosen.max_output

    async def _look(self, path: str, most: int = MAX_ERROR_BYTES) -> tuple[int, bytes]:
        """Return status and body of a GET. Raises `TierUnavailableError` if the server is unreachable or refuses."""
        response, body = await self._reply_to(path, most)
        if body.count(b",") > MAX_MODELS_COMMAS:
            too_many = f"answered GET {path} with more values than any list of models"
            raise self._unavailable(f" {too_many}")
        refusal = parse_error(body) if response.status_code >= 400 else ErrorObject()
        is_operators = path == self._endpoint.health_path and self._dialect.is_about_model(refusal)
        if response.status_code in (401, 403) or response.status_code >= 500 or is_operators:
            raise self._failures.of_status(response, refusal, ServerRequest(self._dialect, self.model))
        return response.status_code, body

    def _unavailable(self, what: str) -> TierUnavailableError:
        return self._failures.located(TierUnavailableError(f"{self._failures.where}{what}"))

    async def _reply_to(self, path: str, most: int) -> tuple[Reply | httpx.Response, bytes]:
        try:
            return await self._http.get(path, self._remote.read_timeout_seconds, most)
        except (httpx.TransportError, httpx.DecodingError) as error:
            raise self._failures.unavailable(error) from error

    @property
    def base_url(self) -> str:
        return self._remote.base_url

    @property
    def tells_queue(self) -> bool:
        """Whether servers of this kind report the number of their requests."""
        return self._endpoint.queue is not None

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
        metric, report = self._endpoint.queue, None
        if metric is not None:
            with suppress(httpx.TransportError, httpx.DecodingError):
                response, page = await self._http.get(metric.path, QUEUE_SECONDS, MAX_METRICS_BYTES)
                report = metric.read(page) if response.status_code == 200 else None
        self._queue.tell(report, self._clock())
        return None if report is None else report.running + report.waiting

    async def close(self) -> None:
        watching, self._watching = self._watching, None
        if watching is not None:
            watching.cancel()
            await asyncio.wait([watching])
        for task in self._left:
            task.cancel()
        if self._left:
            await asyncio.wait(self._left)
        await self._http.close()

    def generate(self, request: GenerationRequest) -> AsyncGenerator[Delta, None]:
        """See `Tier.generate`; closing the iterator closes the connection, or reads on as `answer` says."""
        if request.n > 1 and self._answers_one(request):
            single = msgspec.structs.replace(request, n=1)
            return merged_answers([self.generate(single) for _ in range(request.n)], 1)
        tally = self.tally(request)
        request.meter.add(tally.usage)
        return self.answer(request, tally, self._remote.total_timeout_seconds)

    def _answers_one(self, request: GenerationRequest) -> bool:
        """Whether the server gives one choice at a time."""
        is_known = self._ignores_n or self._remote.kind in ONE_CHOICE or self._dialect.rules.parameters.one_choice
        return is_known or CHOICES in self._refusals.at(self._served(""), request.salt)

    def tally(self, request: GenerationRequest) -> Tally:
        """Return the count of one request's usage, before it is sent."""
        reads = 1 + extra_reads(self._spec, request)
        bounds = partial(prompt_bounds, request, self.max_context, reads)
        return Tally(request.n, self.count_prompt_tokens(request), bounds)

    def answer(self, request: GenerationRequest, tally: Tally, seconds: float) -> AsyncGenerator[Delta, None]:
        """Like `generate`, within `seconds`; a new `tally` counts usage, also of an answer that does not end. One whose
        provider bills more of it than its caller has taken is read to its end for its counts."""
        deltas = self._answer(request, tally, seconds)
        if self._dialect.rules.bills_unread == "no":
            return deltas
        left = partial(self._note_left, request, tally)
        return self._reading_on.answer(deltas, request, tally, left, self._left)

    def _note_left(self, request: GenerationRequest, tally: Tally) -> bool:
        """Estimate what is hidden of an answer that has not ended; return whether what was not read is billed."""
        if not tally.sent or tally.over:
            return False
        rules = self._dialect.rules
        bills_on = rules.bills_unread == "all" or (rules.bills_unread == "whole" and not tally.streamed)
        seconds = self._clock() - tally.sent_at
        tally.hidden = self._hidden.estimate(request, tally, rules.hides_thoughts, seconds, bills_on=bills_on)
        return bills_on or tally.is_ended

    async def _answer(self, request: GenerationRequest, tally: Tally, seconds: float) -> AsyncGenerator[Delta, None]:
        self._running += 1
        reply: Reply | httpx.Response | None = None
        stream: Stream | None = None
        body: bytes | None = None
        is_cut = False
        try:
            call, fitted, served = self._call(request, tally)
            body = call.body
            deadline = asyncio.get_running_loop().time() + seconds
            tally.sent, tally.sent_at, tally.streamed = True, self._clock(), call.streamed
            if call.streamed:
                stream = self._queue.send(self._clock(), tally.prompt_tokens)
            sent = await self._ask(call, fitted, served, request, tally, seconds, deadline)
            if sent is None:
                async with aclosing(self.generate(request)) as answers:
                    async for delta in answers:
                        yield delta
                return
            reply, pieces, fitted = sent
            reader = self._reader(request, fitted, tally)
            if stream is None:
                for delta in await reader.reply(pieces):
                    yield delta
            else:
                try:
                    async for piece in pieces:
                        if not (reader.size or piece.strip()):
                            # Blanks keep a connection open.
                            continue
                        if not reader.size and is_whole(piece):
                            deltas = await reader.reply(preceded(piece, pieces))
                        else:
                            deltas = reader.piece(piece)
                        if deltas:
                            self._queue.first_token(stream, self._clock())
                        for delta in deltas:
                            yield delta
                        if reader.ended:
                            break
                        if reader.has_cut and not tally.unfinished:
                            is_cut = not (self._note_left(request, tally) and await _read_counts(reader, pieces))
                            break
                except httpx.TransportError:
                    # All has come but the mark of the end.
                    if not tally.is_ended:
                        raise
                for delta in reader.end():
                    yield delta
            if request.n > 1 and tally.left_out:
                self._ignores_n = True
                async for delta in self._further(request, tally, deadline):
                    yield delta
            if tally.unfinished:
                raise TierError("the answer ended before its choices were finished")
            self._failures.end_well()
            if reader.inline is not None:
                self._thoughts.note(reader.inline, tally)
            if not tally.is_counted:
                self._note_left(request, tally)
            elif not is_cut and request.credential is None:
                self._hidden.note(request, tally, self._clock() - tally.sent_at)
            tally.over = not is_cut
            if stream is None:
                yield Delta(end=AnswerEnd(usage=tally.usage(), answered_by=self.server_model), at_once=True)
            else:
                times = StepTimes(queue_seconds=stream.queue_seconds)
                told = tally.streamed_tokens()
                end = AnswerEnd(usage=tally.usage(), times=times, streamed_tokens=told, answered_by=self.server_model)
                yield Delta(end=end)
                if not is_cut:
                    await read_rest(reply, pieces)
        except (GeneratorExit, asyncio.CancelledError):
            self._note_left(request, tally)
            raise
        except FAILURES as error:
            if tally.said:
                self._note_left(request, tally)
            if isinstance(error, ServerSaidError):
                await self._failures.read(error.said, self._server_request(request, body))
            # Not a local variable: the frame, which the error's traceback holds, would hold the error.
            raise self._named(error, request, body)  # noqa: B904 - it says its cause itself
        finally:
            self._running -= 1
            self._claims.note(request, tally)
            tally.find_bounds = None
            if stream is not None:
                self._queue.end(stream)
            if reply is not None:
                await reply.aclose()

    async def _ask(
        self,
        call: ServerCall,
        fitted: Adapted,
        refused_at: ServedModel,
        request: GenerationRequest,
        tally: Tally,
        seconds: float,
        deadline: float,
    ) -> tuple[Reply | httpx.Response, AsyncIterator[bytes], Adapted] | None:
        """Send the request, and again without what the server refuses of it, or as it says; return its reply, the
        pieces of that, and as what the request was sent. None if each choice has to be asked for alone. `refused_at`:
        where its refusals are noted. Raises `FAILURES`."""
        credential = request.credential if self.asks_credential else None
        own_headers = [] if credential is None else credential.headers(self._endpoint.key_headers)
        patience = min(self._remote.read_timeout_seconds, seconds) if call.streamed else seconds
        refused: dict[str, str] = {}
        for tries_left in range(MOST_ADAPTED, -1, -1):
            reply = await self._http.send(
                "POST", call.path, call.body, patience, deadline, request.trace, (*call.headers, *own_headers)
            )
            try:
                pieces = pieces_of(reply, deadline, lenient=True)
                sent = self._server_request(request, call.body)
                pieces = await self._failures.checked(reply, pieces, sent, streamed=call.streamed)
                break
            except TierRequestError as error:
                await reply.aclose()
                if CHOICES in error.refused and request.n > 1:
                    self._learn(self._served(""), {CHOICES: error.said}, request)
                    tally.sent = False
                    return None
                if (most_tools := least_told(error.refused, TOOLS) or 0) and most_tools < num_tools(request):
                    self._learn(self._served(""), {f"{TOOLS}{most_tools}": error.said}, request)
                more = self._news(error, refused.keys(), request, tally)
                again = call
                if tries_left and more:
                    refused |= dict.fromkeys(more, error.said)
                    again, fitted, _ = self._call(request, tally, frozenset(refused))
                if (again.body, again.path) == (call.body, call.path):
                    if isinstance(error, UnsettledError):
                        raise error.meant() from None
                    raise
                call = again
            except BaseException:
                await reply.aclose()
                raise
        self._learn(refused_at, refused, request)
        return reply, pieces, fitted

    def _server_request(self, request: GenerationRequest, body: bytes | None) -> ServerRequest:
        credential = request.credential if self.asks_credential else None
        return ServerRequest(self._dialect, self.model, body, credential, request.salt)

    def _news(
        self, error: TierRequestError, refused: Collection[str], request: GenerationRequest, tally: Tally
    ) -> set[str]:
        """Return what a refusal says that the request has not been adapted to yet."""
        more = {name for name in error.refused if not name.startswith((LIMIT, TOOLS))}.difference(refused)
        if request.response_format is None:
            more.discard(SCHEMA)
        elif SCHEMA in error.refused and (SCHEMA in refused or not follows_schema(request.response_format)):
            # Nor is any other form of JSON taken.
            more |= {ANY_FORMAT}.difference(refused)
        for names, ending in ((error.refused, ""), (of_this_request(error.refused), THIS_VALUE)):
            if 0 < (most := least_told(names, LIMIT) or 0) < tally.max_tokens:
                more.add(f"{LIMIT}{most}{ending}")
        if (
            isinstance(error, TierContextError)
            and (room := room_left(error, tally.prompt_tokens, tally.max_tokens)) > 0
        ):
            more |= {f"{CONTEXT}{error.max_context}", f"{LIMIT}{room}{THIS_VALUE}"}
        return more

    def _learn(self, where: ServedModel, refused: dict[str, str], request: GenerationRequest) -> None:
        """Note what the request was not refused without, by the status and the code of each refusal. What a caller's
        own account is refused, or its choice of providers, says nothing of the others; and AIO's checks send a caller's
        words once more."""
        is_own = (self.asks_credential and request.credential is not None) or "provider" in request.extra
        if is_own or request.salt.startswith(REPLAYED):
            return
        for said in set(refused.values()):
            names = {name for name, cause in refused.items() if cause == said and not name.endswith(THIS_VALUE)}
            self._refusals.learn(where, names, request.salt, said)

    def _reader(self, request: GenerationRequest, fitted: Adapted, tally: Tally) -> ReplyReader:
        logprobs = request.sampling.logprobs
        tally.scored = logprobs is not None
        # Providers separate thoughts themselves.
        usual = self._remote.kind in ("openai", *OWN_SERVERS) and opens_thoughts(self.model)
        inline = self._thoughts.reader(request, fitted.request, tally, usual=usual)
        bounds = bounds_of(request.n, tally.max_tokens, logprobs, cumulative=self._remote.cumulative_text)
        note, include = partial(self._seals.note_all, server_model=self.server_model), request.include_stop
        # Blocks of the server's own API go on as they are, and vLLM looks for no stop string among the first tokens.
        is_plain = not (tally.opaque or request.sampling.min_tokens)
        stops = request.stop if is_plain else fitted.stops
        is_json = is_object(request.response_format) or follows_schema(request.response_format)
        return ReplyReader(
            self._dialect, tally, bounds, note, inline, fitted, stops,
            include_stop=include, is_json=is_json and not request.is_in(tally.form) and logprobs is None,
        )  # fmt: skip

    def _named(self, error: Exception, request: GenerationRequest, body: bytes | None) -> TierError:
        """Return a failure of the request as the tier's error, without the caller's credential."""
        credential = request.credential if self.asks_credential else None
        failure = None
        if isinstance(error, ServerSaidError) and credential is None:
            failure = self._failures.of_said(error.said, self._server_request(request, body))
        named = failure or self._failures.of_answer(error, body, credential)
        if isinstance(named, TierContextError):
            named.param = "messages" if request.messages is not None else "prompt"
        if named is not error:
            named.__cause__ = error
        return named

    async def _further(self, request: GenerationRequest, tally: Tally, deadline: float) -> AsyncGenerator[Delta, None]:
        """Ask again for each choice that the server left out, because it takes no notice of `n`."""
        single, indices = msgspec.structs.replace(request, n=1), tally.left_out
        seconds = max(0.0, deadline - asyncio.get_running_loop().time())
        tally.further = [self.tally(single) for _ in indices]
        answers = [self.answer(single, further, seconds) for further in tally.further]
        async with aclosing(merged_answers(answers, 1)) as deltas:
            async for delta in deltas:
                if delta.end is None:
                    delta.index = indices[delta.index]
                    yield delta
        tally.unfinished.difference_update(indices)

    def count_prompt_tokens(self, request: GenerationRequest) -> int:
        """Return an estimate (`estimated_prompt_tokens`); exact for token ids."""
        if isinstance(request.prompt, list):
            return len(request.prompt)
        key = "bytes", request.request_id
        if (tokens := request.prompts_read.get(key)) is None:
            tokens = request.prompts_read[key] = estimated_prompt_tokens(request)
        return int(tokens)

    def refusal(self, request: GenerationRequest) -> TierRequestError | None:
        """See `Tier.refusal`: no server elsewhere repeats a prompt, and its kind decides the rest."""
        if request.echo:
            return TierRequestError(
                f"echo: tier '{self.name}' is served elsewhere and cannot repeat or score a prompt; leave echo out, or "
                "name a tier that runs here",
                "echo",
            )
        if request.extra and (lost := unserved(request.extra, self._dialect.further_fields)) is not None:
            what = f"{lost}: the API of tier '{self.name}' does not have it; leave it out, or name another tier"
            return TierRequestError(what, lost)
        if request.server_tools and not request.is_in(self._dialect.form):
            return TierRequestError(
                f"tools: {', '.join(request.server_tools)} is run by the provider that has it, and tier "
                f"'{self.name}' has not got it; leave it out, or name another tier",
                "tools",
            )
        try:
            self._dialect.check(request)
        except TierRequestError as error:
            return error
        return None

    def learned_refusal(self, request: GenerationRequest) -> TierRequestError | None:
        """See `Tier.learned_refusal`."""
        told = self._refusals.at(self._served(""), request.salt) if self._refusals.known else NOTHING
        most, count = least_told(told, TOOLS), num_tools(request)
        if most is None or count <= most:
            return None
        return TierRequestError(f"tools: tier '{self.name}' takes at most {most}, and the request has {count}", "tools")

    def load(self) -> TierLoad:
        """Return the requests in flight from here, the server's queue, and whether its last failure is long ago."""
        now, queue = self._clock(), self._queue
        waiting = queue.waiting(now) if queue.silent or queue.is_told else 0
        return TierLoad(
            healthy=now >= self._failures.unhealthy_until,
            down_seconds=max(0.0, self._failures.unhealthy_until - now),
            running=self._running,
            waiting=waiting,
            predicted_wait_seconds=self._queue.predicted_wait(now) if waiting else 0.0,
        )

    def queues(self) -> dict[str, int]:
        server = self._remote.base_url if self._queue.is_told else self.name
        return {server: self._queue.waiting(self._clock())}

    def _call(
        self, request: GenerationRequest, tally: Tally, refused: frozenset[str] = NOTHING
    ) -> tuple[ServerCall, Adapted, ServedModel]:
        """Return what to send, without what the server is known to have `refused`, how the request was adapted, and
        where its refusals are noted. Raises TierRequestError for what the server does not support."""
        if (refusal := self.refusal(request)) is not None:
            raise TierCapabilityError(str(refusal), refusal.param, refusal.code)
        if self.asks_credential and request.credential is None:
            raise CallerCredentialError(
                f"tier '{self.name}' is asked with the caller's own credential alone, and there is none: send it as "
                f"{HEADER}",
                403,
                "upstream_authorization_missing",
            )
        stated = self._spec.stated_limit(request.max_tokens or None)
        tally.max_tokens = self.most_answer_tokens(stated, tally.prompt_tokens)
        if stated is not None and stated > self.max_context - tally.prompt_tokens:
            tally.max_tokens = max(1, min(tally.max_tokens, room_after(tally.prompt_tokens, self.max_context)))
        limit = None if stated is None and not self._dialect.needs_limit else tally.max_tokens
        readable, lost = self._readable(request)
        fitted = adapted(readable, self._dialect.rules)
        call = self._dialect.call(fitted.request, limit)
        served = self._served(call.form or call.path.partition("?")[0])
        learned = self._refusals.at(served, request.salt) if self._refusals.known else NOTHING
        if all_refused := refused | learned:
            all_refused |= of_this_request(all_refused)
            if (context := least_told(learned, CONTEXT)) is not None:
                room = room_after(tally.prompt_tokens, context)
                # Of a prompt whose estimate may be wrong by as much, the server counts what is left.
                tally.max_tokens = min(tally.max_tokens, room if room > tally.prompt_tokens // 4 else tally.max_tokens)
            tally.max_tokens = min(tally.max_tokens, least_told(all_refused, LIMIT) or tally.max_tokens)
            # An account may pay for fewer tokens than a model writes without any limit.
            is_of_account = least_told(refused, CONTEXT) is None
            if limit is not None or (is_of_account and least_told(of_this_request(refused), LIMIT)):
                limit = tally.max_tokens
            dialect = copy(self._dialect)
            dialect.rules = taught(dialect.rules, all_refused)
            fitted = adapted(readable, dialect.rules, all_refused)
            call = dialect.call(fitted.request, limit)
        changed: tuple[str, ...] = ()
        if all_refused:
            body, left_out, changed = self._dialect.without_refused(call, all_refused)
            lost += left_out
            call = msgspec.structs.replace(call, body=body)
        sent = request.sent
        sent.max_tokens, sent.added = limit, call.added
        if lost:
            lost = tuple(name for name in lost if name not in call.dropped)
        sent.dropped, sent.changed = call.dropped + fitted.left_out + lost, fitted.changed + changed
        tally.form = call.form or self._dialect.form
        if (tooling := fitted.request.tooling) is not None:
            tally.tool_names = [tool.name for tool in tooling.tools]
        sent.dropped += request.lost_in(tally.form)
        is_wanted = request.wants_opaque or request.is_in(tally.form)
        tally.opaque = tally.form not in (None, "chat") and is_wanted and not fitted.stops
        return call, fitted, served

    def _served(self, api: str) -> ServedModel:
        return ServedModel(self.name, self._remote.base_url, api, self.model)

    def _readable(self, request: GenerationRequest) -> tuple[GenerationRequest, tuple[str, ...]]:
        """Return the request as its model may read it, and the names of what is left out."""
        reuse = request.cache_reuse
        if reuse and not (self._dialect.marks_cache and write_pays(self._spec.price, reuse)):
            request = msgspec.structs.replace(request, cache_reuse=0.0)
        if request.opaque is None and (request.messages is None or all(turn.is_plain for turn in request.messages)):
            return request, ()
        is_own = self._remote.kind in OWN_SERVERS
        return self._seals.readable_request(
            request, self._dialect, self.server_model,
            is_only_server=self.is_only_server, is_only_of_api=self.is_only_of_api, is_own=is_own,
        )  # fmt: skip


async def _read_counts(reader: ReplyReader, pieces: AsyncIterator[bytes]) -> bool:
    """Read the rest of an answer that is cut here for its counts; return whether it ended within `CUT_SECONDS`."""
    with suppress(TimeoutError, *FAILURES):
        async with asyncio.timeout(CUT_SECONDS):
            async for piece in pieces:
                reader.piece(piece)
                if reader.ended:
                    break
            return True
    return False
