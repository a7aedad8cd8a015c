"""A tier behind any OpenAI-compatible server, over httpx."""

import asyncio
import json
import math
import os
import time
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import aclosing

import httpx

from tiers.errors import CatalogError, TierBusyError, TierError, TierRequestError, TierUnavailableError
from tiers.remote_wire import WireError, parse_chunk, parse_error, parse_retry_after, request_body
from tiers.sse import EventParser, EventTooLargeError, ServerSentEvent
from tiers.tally import BYTES_PER_TOKEN, Tally
from tiers.tier import Delta, GenerationRequest, Tier, TierLoad
from tiers.tier_spec import TierSpec

TOKENS_PER_MESSAGE = 4
MAX_ERROR_BYTES = 64 * 1024
OPERATOR_STATUSES = (401, 403, 404, 407)
TRY_LATER_STATUSES = (408, 409, 425)


class RemoteTier(Tier):
    """Streams from `spec.remote`; the key is read from the environment once and never shown.

    After a failure that is the server's, the tier calls itself unhealthy for `cooldown_seconds`, so that routing
    avoids it for that long, or as long as the server said, and then tries again.
    Raises CatalogError if the key's environment variable is not set.
    """

    def __init__(
        self,
        spec: TierSpec,
        *,
        environ: Mapping[str, str] = os.environ,
        cooldown_seconds: float = 10.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        if spec.remote is None:
            raise CatalogError(f"tier '{spec.name}' has no remote table")
        self.name, self.number, self.model = spec.name, spec.number, spec.remote.model
        self.max_context = spec.remote.max_context
        self._spec, self._remote = spec, spec.remote
        self._key = _api_key(spec, environ)
        self._cooldown_seconds, self._clock = cooldown_seconds, clock
        self._unhealthy_until = -math.inf
        self._running = 0
        self._client: httpx.AsyncClient | None = None

    async def start(self) -> None:
        """See `Tier.start`: the server answers on `/models`, whatever it answers."""
        try:
            response = await self._connection().get("models")
        except httpx.TransportError as error:
            raise self._unavailable(error) from error
        if response.status_code in (401, 403) or response.status_code >= 500:
            raise self._status_error(response, parse_error(response.content))

    async def close(self) -> None:
        """See `Tier.close`."""
        client, self._client = self._client, None
        if client is not None:
            await client.aclose()

    def generate(self, request: GenerationRequest) -> AsyncGenerator[Delta, None]:
        """See `Tier.generate`; closing the iterator closes the connection, by which the server knows."""
        tally = Tally(request.n, self.count_prompt_tokens(request))
        return self.answer(request, tally, self._remote.total_timeout_seconds)

    async def answer(self, request: GenerationRequest, tally: Tally, seconds: float) -> AsyncGenerator[Delta, None]:
        """As `generate`, within `seconds`; a new `tally` counts along, also of an answer that does not end."""
        self._running += 1
        try:
            async with aclosing(self._stream(request, tally, seconds)) as deltas:
                async for delta in deltas:
                    yield delta
        except (httpx.TransportError, TimeoutError) as error:
            raise self._unavailable(error) from error
        except (EventTooLargeError, httpx.DecodingError) as error:
            raise TierError(f"{self._where}: {error}") from error
        finally:
            self._running -= 1

    def count_prompt_tokens(self, request: GenerationRequest) -> int:
        """An estimate: four UTF-8 bytes per token, four tokens per message; exact for token ids."""
        if isinstance(request.prompt, list):
            return len(request.prompt)
        texts = (
            [m.content for m in request.messages or []]
            + _tool_texts(request)
            + ([request.prompt] if request.prompt else [])
        )
        size = sum(_text_tokens(text) for text in texts)
        return max(1, size + TOKENS_PER_MESSAGE * len(request.messages or []))

    def load(self) -> TierLoad:
        """Requests in flight from here, and whether the last failure is long enough ago."""
        return TierLoad(healthy=self._clock() >= self._unhealthy_until, running=self._running)

    async def _stream(self, request: GenerationRequest, tally: Tally, seconds: float) -> AsyncGenerator[Delta, None]:
        if request.echo:
            raise TierRequestError(
                f"echo: tier '{self.name}' is served elsewhere and cannot repeat or score a prompt; leave echo out, or "
                "name a tier that runs here",
                "echo",
            )
        deadline = asyncio.get_running_loop().time() + seconds
        room = max(1, self.max_context - tally.prompt_tokens)
        max_tokens = min(self._spec.max_tokens, room, request.max_tokens or room)
        path = "chat/completions" if request.messages is not None else "completions"
        body = request_body(self._remote, request, max_tokens)
        client = self._connection()
        call = client.build_request("POST", path, json=body, headers={"accept": "text/event-stream"})
        async with asyncio.timeout_at(deadline):
            response = await client.send(call, stream=True)
        async with aclosing(response):
            async with asyncio.timeout_at(deadline):
                await self._check(response)
            async with aclosing(_events(response)) as events:
                while (event := await _next_before(deadline, events)) is not None and event.data.strip() != "[DONE]":
                    for delta in self._deltas(event, tally):
                        yield delta
        if tally.unfinished:
            raise TierError(f"{self._where}: the stream ended before its choices were finished")
        self._unhealthy_until = -math.inf
        yield Delta(usage=tally.usage())

    def _deltas(self, event: ServerSentEvent, tally: Tally) -> list[Delta]:
        if event.event == "error":
            raise TierError(
                f"{self._where} failed in mid-stream: {self._scrub(parse_error(event.data.encode()).message)}"
            )
        chunk = parse_chunk(event.data)
        if chunk.error is not None:
            raise self._mid_stream_error(chunk.error if isinstance(chunk.error, str) else chunk.error.message)
        tally.reported = chunk.token_usage() or tally.reported
        return [delta for delta in chunk.deltas() if tally.count(delta)]

    async def _check(self, response: httpx.Response) -> None:
        kind = response.headers.get("content-type", "")
        if response.status_code == 200 and "json" not in kind:
            return
        body = bytearray()
        async for part in response.aiter_bytes():
            body += part
            if len(body) >= MAX_ERROR_BYTES:
                break
        error = parse_error(bytes(body))
        if response.status_code == 200:
            raise TierError(f"{self._where} answered {kind} instead of a stream: {self._scrub(error.message)[:200]}")
        raise self._status_error(response, error)

    def _status_error(self, response: httpx.Response, error: WireError) -> TierError:
        status, later = response.status_code, parse_retry_after(response.headers)
        message = f"{self._where} answered {status}: {self._scrub(error.message)}"
        if status in OPERATOR_STATUSES:
            self._cool_down()
            return TierUnavailableError(f"{message} (check base_url, model and api_key_env in the catalogue)")
        if status == 429 or (status == 503 and later is not None):
            self._cool_down(later)
            busy = TierBusyError(message)
            busy.retry_after_seconds = busy.retry_after_seconds if later is None else later
            return busy
        if status in TRY_LATER_STATUSES or status >= 500 or status < 400:
            self._cool_down()
            return TierUnavailableError(message)
        return TierRequestError(message, param=error.param, code=None if error.code is None else str(error.code))

    def _mid_stream_error(self, message: str) -> TierError:
        return TierError(f"{self._where} failed in mid-stream: {self._scrub(message)}")

    def _unavailable(self, error: Exception) -> TierUnavailableError:
        self._cool_down()
        reason = str(error) or type(error).__name__
        return TierUnavailableError(f"{self._where} cannot be reached: {type(error).__name__}: {self._scrub(reason)}")

    def _cool_down(self, seconds: float | None = None) -> None:
        self._unhealthy_until = self._clock() + (self._cooldown_seconds if seconds is None else seconds)

    def _scrub(self, text: str) -> str:
        return text.replace(self._key, "[key]") if self._key else text

    @property
    def _where(self) -> str:
        return f"tier '{self.name}' ({self._remote.base_url})"

    def _connection(self) -> httpx.AsyncClient:
        if self._client is None:
            connect, read = self._remote.connect_timeout_seconds, self._remote.read_timeout_seconds
            headers = {"accept-encoding": "identity"}
            if self._key:
                headers["authorization"] = f"Bearer {self._key}"
            self._client = httpx.AsyncClient(
                base_url=self._remote.base_url.rstrip("/") + "/",
                headers=headers,
                timeout=httpx.Timeout(connect=connect, read=read, write=read, pool=connect),
                # Without TLS there is no certificate to check, and reading the authorities' takes time.
                verify=self._remote.base_url.startswith("https:"),
                limits=httpx.Limits(max_connections=1000, max_keepalive_connections=100),
            )
        return self._client


async def _events(response: httpx.Response) -> AsyncGenerator[ServerSentEvent, None]:
    parser = EventParser()
    async for chunk in response.aiter_bytes():
        for event in parser.feed(chunk):
            yield event
    for event in parser.flush():
        yield event


async def _next_before(deadline: float, events: AsyncGenerator[ServerSentEvent, None]) -> ServerSentEvent | None:
    """The next event, or None at the end. Raises TimeoutError at `deadline` (seconds of the loop's clock)."""
    async with asyncio.timeout_at(deadline):
        return await anext(events, None)


def _tool_texts(request: GenerationRequest) -> list[str]:
    calls = [call for message in request.messages or [] for call in message.tool_calls]
    tools = () if request.tooling is None else request.tooling.tools
    return [call.name + call.arguments for call in calls] + [json.dumps(tool.definition()) for tool in tools]


def _text_tokens(text: str) -> int:
    return math.ceil(len(text.encode("utf-8", errors="replace")) / BYTES_PER_TOKEN)


def _api_key(spec: TierSpec, environ: Mapping[str, str]) -> str:
    variable = spec.remote.api_key_env if spec.remote is not None else None
    if variable is None:
        return ""
    key = environ.get(variable, "").strip()
    if not key:
        raise CatalogError(
            f"tier '{spec.name}': its API key is expected in the environment variable {variable}; set it"
        )
    return key
