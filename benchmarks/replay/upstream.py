"""An OpenAI-compatible server that replays recorded answers at declared speeds, one model name per tier."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Any

import msgspec

from benchmarks.replay.judge import RecordedJudge
from benchmarks.replay.ladder import Answer, Ladder, Prompt, TierTerms, tokens_of
from inference_core.tokenization.prompt_size import BYTES_PER_TOKEN

# A stream comes in so many pieces.
_PIECES = 6
_MOST_HEAD, _MOST_BODY = 64 * 1024, 16 * 2**20

_TIER = """
[[tiers]]
number = {number}
name = "tier-{number}"
class = "{kind}"
price = {{ input_usd_per_million = {price}, output_usd_per_million = {price} }}
objective = {{ ttft_ms = {first_token}, itl_ms = {between} }}
expected_answer_tokens = {tokens}
mean_latency_ms = {latency}
max_tokens = 8192
remote = {{ base_url = "{url}", model = "{model}", max_context = 65536 }}
"""
_CLASSES = ("SIMPLE", "MEDIUM", "COMPLEX", "EXPERT")


class _Refusal(Exception):
    """What the server answers instead of a completion."""

    def __init__(self, status: int, message: str, param: str | None = None) -> None:
        super().__init__(message)
        self.status, self.param = status, param


class ReplayUpstream:
    """Looks each prompt up and answers as the tier of that model name did; the strongest also judges comparisons.

    `serve` switches to other recorded answers while it runs. `faster`: by how much its time is compressed, so that a
    run of hundreds of requests takes a minute; declared speeds are divided out of nothing else.
    """

    def __init__(self, ladder: Ladder, judge: RecordedJudge, *, faster: float = 100.0) -> None:
        self.judge = judge
        self.url = ""
        self._faster = faster
        self._terms: dict[str, tuple[int, TierTerms]] = {}
        self._prompts: dict[str, Prompt] = {}
        self.serve(ladder)

    def serve(self, ladder: Ladder) -> None:
        """Answer as `ladder` has it from now on."""
        self._terms = {terms.model: (index, terms) for index, terms in enumerate(ladder.tiers)}
        self._prompts |= {prompt.text: prompt for prompt in ladder.prompts}
        self.judge.learn(ladder)

    def catalogue(self, name: str) -> str:
        """A catalogue, as TOML, whose tiers are this server's models at their declared prices."""
        return f'name = "{name}"\n' + "".join(
            _TIER.format(
                number=index + 1,
                kind=kind,
                price=terms.price,
                first_token=1000.0 * terms.first_token_seconds,
                between=1000.0 / terms.tokens_per_second,
                tokens=round(self._mean_tokens(index)),
                latency=1000.0 * (terms.first_token_seconds + self._mean_tokens(index) / terms.tokens_per_second),
                url=self.url,
                model=model,
            )
            for kind, (model, (index, terms)) in zip(_CLASSES, self._terms.items(), strict=True)
        )

    def _mean_tokens(self, index: int) -> float:
        return sum(prompt.answers[index].tokens for prompt in self._prompts.values()) / len(self._prompts)

    async def answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One connection, kept open for further requests."""
        with suppress(asyncio.IncompleteReadError, ConnectionError):
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                body = await reader.readexactly(_content_length(head))
                try:
                    await self._respond(head.split(b" ", 2)[:2], body, writer)
                except _Refusal as refusal:
                    error = {"message": str(refusal), "type": "invalid_request_error", "param": refusal.param}
                    _send(writer, refusal.status, {"error": error | {"code": None}})
                await writer.drain()
        writer.close()

    async def _respond(self, target: list[bytes], body: bytes, writer: asyncio.StreamWriter) -> None:
        if target == [b"GET", b"/v1/models"]:
            models = [{"id": model, "object": "model", "created": 0, "owned_by": "replay"} for model in self._terms]
            _send(writer, 200, {"object": "list", "data": models})
            return
        if target != [b"POST", b"/v1/chat/completions"]:
            raise _Refusal(404, "This server has /v1/models and /v1/chat/completions.")
        asked = _parsed(body)
        if asked.get("model") not in self._terms:
            raise _Refusal(404, f"There is no model {asked.get('model')!r}; there are {list(self._terms)}.", "model")
        index, terms = self._terms[asked["model"]]
        message = _last_user_text(asked)
        answer = self._answer_to(message, index)
        limit = asked.get("max_completion_tokens") or asked.get("max_tokens")
        text, finish = _within(answer.text, limit)
        usage = {"prompt_tokens": tokens_of(message), "completion_tokens": tokens_of(text)}
        usage |= {"total_tokens": sum(usage.values())}
        seconds = usage["completion_tokens"] / terms.tokens_per_second / self._faster
        await asyncio.sleep(terms.first_token_seconds / self._faster)
        if not asked.get("stream"):
            await asyncio.sleep(seconds)
            choice = {"index": 0, "message": {"role": "assistant", "content": text}, "finish_reason": finish}
            _send(writer, 200, _frame("chat.completion", terms.model, [choice]) | {"usage": usage})
            return
        wants_usage = (asked.get("stream_options") or {}).get("include_usage")
        await _stream(writer, terms.model, text, finish, seconds, usage if wants_usage else None)

    def _answer_to(self, message: str, index: int) -> Answer:
        prompt = self._prompts.get(message)
        if prompt is not None:
            return prompt.answers[index]
        try:
            word = self.judge.reply(message)
        except KeyError as error:
            raise _Refusal(422, "The texts to compare are not recorded.", "messages") from error
        if word is None:
            raise _Refusal(422, f"No answer is recorded to {message[:80]!r}.", "messages")
        return Answer(word, 0.0)


@asynccontextmanager
async def running_upstream(upstream: ReplayUpstream) -> AsyncIterator[ReplayUpstream]:
    """Serve on a free loopback port, in this process's event loop, until the block ends."""
    server = await asyncio.start_server(upstream.answer, "127.0.0.1", 0, limit=_MOST_HEAD)
    upstream.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/v1"
    try:
        yield upstream
    finally:
        server.close()


def _content_length(head: bytes) -> int:
    for line in head.lower().split(b"\r\n"):
        if line.startswith(b"content-length:"):
            return min(int(line.partition(b":")[2]), _MOST_BODY)
    return 0


def _parsed(body: bytes) -> dict[str, Any]:
    try:
        return msgspec.json.decode(body, type=dict[str, Any])
    except msgspec.MsgspecError as error:
        raise _Refusal(400, f"The body is no JSON object: {error}") from error


def _last_user_text(asked: dict[str, Any]) -> str:
    texts = [message.get("content") for message in asked.get("messages") or [] if message.get("role") == "user"]
    if not texts or not isinstance(texts[-1], str):
        raise _Refusal(400, "The last user message must be a text.", "messages")
    return texts[-1]


def _within(text: str, limit: int | None) -> tuple[str, str]:
    """The text and why it ends: it is cut where it has more than `limit` tokens."""
    if limit is None or tokens_of(text) <= limit:
        return text, "stop"
    return text.encode()[: limit * BYTES_PER_TOKEN].decode(errors="ignore"), "length"


def _frame(kind: str, model: str, choices: list[dict[str, Any]]) -> dict[str, Any]:
    return {"id": "replay", "object": kind, "created": 0, "model": model, "choices": choices}


def _send(writer: asyncio.StreamWriter, status: int, content: dict[str, Any]) -> None:
    body = msgspec.json.encode(content)
    head = f"HTTP/1.1 {status} X\r\ncontent-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n"
    writer.write(head.encode() + body)


async def _stream(
    writer: asyncio.StreamWriter, model: str, text: str, finish: str, seconds: float, usage: dict[str, int] | None
) -> None:
    """Server-sent events in HTTP chunks, over `seconds`."""
    writer.write(b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n")
    step = max(1, -(-len(text) // _PIECES))
    pieces = [text[start : start + step] for start in range(0, len(text), step)]
    deltas = [{"role": "assistant", "content": ""}, *({"content": piece} for piece in pieces)]
    for delta in deltas:
        _event(writer, _frame("chat.completion.chunk", model, [{"index": 0, "delta": delta, "finish_reason": None}]))
        await writer.drain()
        await asyncio.sleep(seconds / len(deltas))
    _event(writer, _frame("chat.completion.chunk", model, [{"index": 0, "delta": {}, "finish_reason": finish}]))
    if usage is not None:
        _event(writer, _frame("chat.completion.chunk", model, []) | {"usage": usage})
    _chunk(writer, b"data: [DONE]\n\n")
    writer.write(b"0\r\n\r\n")


def _event(writer: asyncio.StreamWriter, content: dict[str, Any]) -> None:
    _chunk(writer, b"data: " + msgspec.json.encode(content) + b"\n\n")


def _chunk(writer: asyncio.StreamWriter, data: bytes) -> None:
    writer.write(f"{len(data):x}\r\n".encode() + data + b"\r\n")
