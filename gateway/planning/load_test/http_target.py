"""A server over HTTP as a target of benchmarks: streamed completions, read by a client that costs little itself."""

import asyncio
import contextlib
from collections.abc import AsyncGenerator, AsyncIterator
from time import perf_counter

import httpx
import msgspec

from gateway.planning.load_test.run import AskError, BenchTarget, Timing
from gateway.planning.load_test.workload import Job
from tiers.dialects.chat_chunk import Chunk
from tiers.dialects.chat_schemas import CompletionRequest, StreamOptions
from tiers.dialects.dialect import fields_of
from tiers.dialects.event_stream import EventParser
from tiers.remote.http_exchange import HttpClient, pieces_of
from tiers.remote.http_transport import HttpTransport

_CONNECT_SECONDS = 30.0
# `LoadRun` ends an answer that takes too long.
_MOST_SECONDS = 86_400.0


_decode = msgspec.json.Decoder(Chunk).decode


# What is measured is answers that are made; other servers pass it over.
NO_CACHE = (b"x-aio-cache", b"off")


class HttpTarget(BenchTarget):
    """`model` of the OpenAI-compatible server at `url`, asked with `key`, if any, as remote tiers ask theirs: the load
    generator shares the machine with the server, so its client costs little. Connections are kept and used again."""

    api = "completions"

    def __init__(self, url: str, model: str, key: str | None = None) -> None:
        head = [NO_CACHE] if key is None else [NO_CACHE, (b"authorization", b"Bearer " + key.encode())]
        self._http = HttpClient(f"{url.rstrip('/')}/v1", head, _CONNECT_SECONDS, HttpTransport, None)
        self._model = model

    async def ask(self, job: Job, due: float, timing: Timing) -> None:
        body = CompletionRequest(
            model=self._model,
            prompt=job.prompt,
            max_tokens=job.output_tokens,
            temperature=0,
            ignore_eos=True,
            stream=True,
            stream_options=StreamOptions(include_usage=True),
        )
        try:
            async with contextlib.aclosing(self._events(msgspec.json.encode(fields_of(body)))) as events:
                await _read(events, due, timing)
        except httpx.TransportError as error:
            raise AskError("connection", str(error)) from error
        except (ValueError, msgspec.MsgspecError) as error:
            raise AskError("bad or error event", str(error)) from error

    async def close(self) -> None:
        await self._http.close()

    async def _events(self, body: bytes) -> AsyncGenerator[bytes, None]:
        """The data of every event of one answer. The connection is kept if the answer was read to its end."""
        deadline = asyncio.get_running_loop().time() + _MOST_SECONDS
        reply = await self._http.send("POST", "completions", body, _MOST_SECONDS, deadline)
        async with contextlib.aclosing(reply):
            if reply.status_code != 200:
                refusal = b"".join([piece async for piece in pieces_of(reply)])
                raise AskError(f"http {reply.status_code}", refusal.decode(errors="replace")[:300])
            parser = EventParser()
            async for piece in pieces_of(reply):
                for event in parser.feed(piece):
                    if not event.is_end:
                        yield event.data


async def _read(events: AsyncIterator[bytes], due: float, timing: Timing) -> None:
    last, pieces = due, 0
    async for data in events:
        now, event = perf_counter(), _decode(data)
        if event.error is not None:
            raise ValueError(f"the answer broke off: {event.error}")
        if event.usage is not None:
            timing.prompt_tokens = event.usage.prompt_tokens or 0
            timing.output_tokens = event.usage.completion_tokens or 0
        if any(choice.text for choice in event.choices or ()):
            last, pieces = timing.note_text(now, due, last), pieces + 1
    timing.has_usage = timing.output_tokens > 0
    timing.output_tokens = timing.output_tokens or pieces
