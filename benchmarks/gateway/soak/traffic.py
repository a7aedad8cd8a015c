"""The requests of a soak: a fixed mix from a seed, each with the answer that it has to get."""

import time
from collections import Counter, deque
from collections.abc import Awaitable, Callable
from random import Random
from typing import Any

import httpx

from benchmarks.gateway.proxy import TOPICS
from benchmarks.gateway.soak.upstream import AT_LENGTH, LONG_BYTES, Json
from benchmarks.gateway.target import CHAT, MESSAGES

EMBEDDER = "soak-embedder"
"""The catalogue's model of embeddings."""
# Of 100 draws; an agent's turn, a call of a tool and feedback are two requests each.
SHARES = {
    "whole": 23, "upstream alone": 5, "repeated": 6, "stream": 17, "left": 8, "tools": 8, "agent": 15,
    "body of 1 MB": 2, "answer of 1 MB": 1, "stream of 1 MB": 1, "messages": 3, "responses": 3, "embeddings": 2,
    "feedback": 2, "bad key": 1, "body above the limit": 1, "bad field": 1, "unknown model": 1,
}  # fmt: skip
_LARGE_BYTES = 1_000_000
# Above AIO_BODY_LIMIT by default.
_TOO_LARGE_BYTES = 33 * 2**20
TURNS = 20
_RESULT_WORDS = 300
_EVENTS_READ = 4
# As many tokens as an answer of a megabyte needs.
MOST_TOKENS = 65_536
_TOOL_PARAMETERS = {"type": "object", "properties": {"query": {"type": "string"}, "page": {"type": "integer"}}}
_TOOLS = [
    {"type": "function", "function": {"name": name, "description": "Look it up.", "parameters": _TOOL_PARAMETERS}}
    for name in ("document", "customer", "order")
]


class UnexpectedAnswerError(RuntimeError):
    """An answer is not the one that the request has to get; the message says what came."""


class Session:
    """An agent's conversation so far."""

    def __init__(self, name: str, first: str) -> None:
        self.name = name
        self.messages: list[Json] = [{"role": "system", "content": first}]
        self.turns = 0


class Traffic:
    """Asks the gateway at `url`, and for comparison its upstream at `direct`, up to /v1; what and in which order is a
    function of `seed`.

    `requests` counts those to the gateway, `kinds` what was drawn, `failures` what went wrong, by kind and reason.
    `seconds`: the times of small whole answers since `take_seconds`.
    """

    def __init__(self, url: str, direct: str, key: str, seed: int) -> None:
        self._http = httpx.AsyncClient(
            base_url=url,
            timeout=60,
            headers={"authorization": f"Bearer {key}"},
            limits=httpx.Limits(max_connections=64),
        )
        self._direct = f"{direct}/chat/completions"
        self._seed = seed
        self._draw = Random(seed)
        self.sessions: deque[Session] = deque()
        self._session_number = 0
        self.requests = 0
        self.kinds: Counter[str] = Counter()
        self.failures: Counter[str] = Counter()
        self._seconds: dict[str, list[float]] = {"whole": [], "upstream alone": []}
        self._send: dict[str, Callable[[Random], Awaitable[None]]] = {
            "whole": self._whole, "upstream alone": self._upstream_alone, "repeated": self._repeated,
            "stream": self._stream, "left": self._left, "tools": self._tools, "agent": self._agent,
            "body of 1 MB": self._large_body, "answer of 1 MB": self._large_answer,
            "stream of 1 MB": self._large_stream, "messages": self._messages, "responses": self._responses,
            "embeddings": self._embeddings, "feedback": self._feedback, "bad key": self._bad_key,
            "body above the limit": self._too_large, "bad field": self._bad_field, "unknown model": self._unknown,
        }  # fmt: skip

    async def close(self) -> None:
        """Close the connections."""
        await self._http.aclose()

    def next(self) -> tuple[str, Random]:
        """Draw the next kind, and the random numbers of its contents."""
        kind = self._draw.choices(list(SHARES), weights=list(SHARES.values()))[0]
        number = self.kinds.total()
        self.kinds[kind] += 1
        return kind, Random(f"{self._seed}/{number}")

    async def send(self, kind: str, random: Random) -> None:
        """Ask, and check the answer; what is wrong is counted."""
        try:
            await self._send[kind](random)
        except (UnexpectedAnswerError, httpx.HTTPError, ValueError, LookupError) as error:
            self.failures[f"{kind}: {type(error).__name__} {str(error)[:200]}"] += 1

    def take_seconds(self) -> dict[str, list[float]]:
        """The times of small whole answers, sorted, through the gateway and of its upstream alone; forget them."""
        taken = {kind: sorted(times) for kind, times in self._seconds.items()}
        for times in self._seconds.values():
            times.clear()
        return taken

    async def _whole(self, random: Random) -> None:
        began = time.perf_counter()
        await self._chat(_body(random))
        self._seconds["whole"].append(time.perf_counter() - began)

    async def _upstream_alone(self, random: Random) -> None:
        body = _body(random) | {"model": "mock"}
        began = time.perf_counter()
        answer = await self._http.post(self._direct, json=body)
        answer.raise_for_status()
        self._seconds["upstream alone"].append(time.perf_counter() - began)

    async def _repeated(self, random: Random) -> None:
        await self._chat(_chat([_user(f"Repeat {random.randrange(5)}.")], temperature=0))

    async def _stream(self, random: Random) -> None:
        await self._streamed(CHAT, _body(random), "data: [DONE]")

    async def _left(self, random: Random) -> None:
        """Leave in the middle: the gateway has to end the request to its upstream."""
        self.requests += 1
        async with self._http.stream("POST", CHAT, json=_body(random) | {"stream": True}) as answer:
            _require(answer.status_code == httpx.codes.OK, answer.status_code)
            seen = 0
            async for line in answer.aiter_lines():
                seen += line.startswith("data: ")
                if seen == _EVENTS_READ:
                    return
        raise UnexpectedAnswerError(f"ended after {seen} events")

    async def _tools(self, random: Random) -> None:
        asked = [_user(_words(random, 30))]
        await self._called(asked, random)
        await self._chat(_chat(asked, tools=_TOOLS))

    async def _agent(self, random: Random) -> None:
        """A turn of an agent's session: a call, its result, a streamed answer; the conversation grows by them."""
        session = self.sessions.popleft() if self.sessions else self._new_session(random)
        conversation = {"x-aio-conversation": session.name}
        session.messages.append(_user(_words(random, 60)))
        await self._called(session.messages, random, conversation)
        lines = await self._streamed(CHAT, _chat(session.messages, tools=_TOOLS), "data: [DONE]", conversation)
        session.messages.append({"role": "assistant", "content": f"{len(lines)} events. {_words(random, 40)}"})
        session.turns += 1
        if session.turns < TURNS:
            self.sessions.append(session)

    def _new_session(self, random: Random) -> Session:
        self._session_number += 1
        return Session(f"session-{self._session_number}", f"Agent {self._session_number}. {_words(random, 400)}")

    async def _called(self, messages: list[Json], random: Random, headers: dict[str, str] | None = None) -> None:
        """Ask with tools, and append the call and its result."""
        message = (await self._chat(_chat(messages, tools=_TOOLS), headers))["choices"][0]["message"]
        call = message["tool_calls"][0]
        messages.append({"role": "assistant", "content": None, "tool_calls": [call]})
        messages.append({"role": "tool", "tool_call_id": call["id"], "content": _words(random, _RESULT_WORDS)})

    async def _large_body(self, random: Random) -> None:
        """A long history of which only the last turns are new to the gateway's caches."""
        text = _words(random, 2000)
        history = [_user(text) for _ in range(_LARGE_BYTES // len(text) + 1)]
        await self._chat(_chat([*history, _user(_words(random, 20))]))

    async def _large_answer(self, random: Random) -> None:
        body = _chat([_user(f"{_words(random, 20)} {AT_LENGTH}")], max_tokens=MOST_TOKENS)
        text = (await self._chat(body))["choices"][0]["message"]["content"]
        _require(len(text) > LONG_BYTES * 0.9, f"only {len(text)} characters")

    async def _large_stream(self, random: Random) -> None:
        body = _chat([_user(f"{_words(random, 20)} {AT_LENGTH}")], max_tokens=MOST_TOKENS)
        lines = await self._streamed(CHAT, body, "data: [DONE]")
        _require(sum(map(len, lines)) > LONG_BYTES * 0.9, f"only {len(lines)} lines")

    async def _messages(self, random: Random) -> None:
        await self._streamed(MESSAGES, _body(random) | {"max_tokens": 256}, "event: message_stop")

    async def _responses(self, random: Random) -> None:
        body = {"model": "auto", "input": _words(random, 40)}
        await self._streamed("/v1/responses", body, "event: response.completed")

    async def _embeddings(self, random: Random) -> None:
        texts = [_words(random, 60) for _ in range(4)]
        embedded = await self._asked("/v1/embeddings", {"model": EMBEDDER, "input": texts})
        _require(len(embedded["data"]) == len(texts), f"{len(embedded['data'])} vectors")

    async def _feedback(self, random: Random) -> None:
        request_id = (await self._chat(_body(random)))["id"]
        feedback = {"request_id": request_id, "rating": random.choice(["up", "down"])}
        taken = await self._asked("/v1/feedback", feedback)
        _require(taken.get("request_id") == request_id, taken)

    async def _bad_key(self, random: Random) -> None:
        await self._asked(CHAT, _body(random), {"authorization": "Bearer none"}, expected=401)

    async def _too_large(self, random: Random) -> None:
        await self._asked(CHAT, _chat([_user("a" * _TOO_LARGE_BYTES)]), expected=413)

    async def _bad_field(self, random: Random) -> None:
        await self._asked(CHAT, _body(random) | {"temperature": 9}, expected=400)

    async def _unknown(self, random: Random) -> None:
        await self._asked(CHAT, _body(random) | {"model": "no-such-model"}, expected=404)

    async def _chat(self, body: Json, headers: dict[str, str] | None = None) -> Json:
        answer: Json = await self._asked(CHAT, body, headers)
        return answer

    async def _asked(self, path: str, body: Json, headers: dict[str, str] | None = None, *, expected: int = 200) -> Any:
        self.requests += 1
        answer = await self._http.post(path, json=body, headers=headers)
        _require(answer.status_code == expected, f"{answer.status_code} {answer.text[-120:]}")
        return answer.json()

    async def _streamed(self, path: str, body: Json, end: str, headers: dict[str, str] | None = None) -> list[str]:
        """The lines of a stream that has this line near its end."""
        self.requests += 1
        async with self._http.stream("POST", path, json=body | {"stream": True}, headers=headers) as answer:
            lines = [line async for line in answer.aiter_lines()]
        _require(answer.status_code == httpx.codes.OK, f"{answer.status_code} {''.join(lines)[:120]}")
        _require(end in lines[-4:], f"a stream without its end: {lines[-2:]}")
        return lines


def _require(is_so: bool, actual: object) -> None:
    if not is_so:
        raise UnexpectedAnswerError(str(actual))


def _words(random: Random, count: int) -> str:
    """So many words, which begin with a number that hardly any other text has."""
    return " ".join([f"{random.randrange(10**9)}", *random.choices(TOPICS.split(), k=count - 1)])


def _user(text: str) -> Json:
    return {"role": "user", "content": text}


def _chat(messages: list[Json], **fields: Any) -> Json:
    return {"model": "auto", "messages": messages, "max_tokens": 256, **fields}


def _body(random: Random) -> Json:
    return _chat([_user(_words(random, random.randint(16, 112)))])
