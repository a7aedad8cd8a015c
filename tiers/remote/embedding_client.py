"""Embeddings of a server elsewhere, by `POST /embeddings` of OpenAI: calls of bounded size, answers of bounded size."""

import asyncio
import base64
import math
import os
import re
import sys
import time
from binascii import Error as Base64Error
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any, NamedTuple

import httpx
import msgspec
import numpy as np

from inference_core.io.files import JSON_ERRORS
from tiers.catalog.catalog import EmbeddingSpec
from tiers.catalog.replica_spec import server_key
from tiers.catalog.tier_spec import RemoteKind, RemoteSpec
from tiers.dialects.dialect import dialect_of
from tiers.dialects.server_error import parse_error
from tiers.errors import (
    TierAnswerError,
    TierAnswerTooLongError,
    TierContextError,
    TierError,
    TierRequestError,
    TierUnavailableError,
)
from tiers.remote.endpoint import endpoint_of
from tiers.remote.http_exchange import RefusedBodyError, bounded_answer, headers_of
from tiers.remote.http_transport import transport_to
from tiers.remote.refusals import REFUSALS, LearnedRefusals, ServedModel
from tiers.remote.server_failures import MAX_ERROR_BYTES, ServerFailures, ServerRequest

Input = str | list[int]
FORM = "encoding_format"
# How servers say that a call has too many texts: DashScope, TEI, SiliconFlow, Voyage; OpenAI; Azure; Cohere; Gemini;
# Vertex AI; Z.ai. Most name their limit.
_TOO_MANY = re.compile(
    r"batch.?size|array too long|too many inputs|number of (?:texts|inputs)|requests can be in one batch|"
    r"instance\(s\) is allowed|数组最大",
    re.IGNORECASE,
)
_COUNT = re.compile(r"\b\d{1,4}\b", re.ASCII)
_INPUTS = "input<="
TOGETHER = 4
"""Calls of one request at a time."""
# A vector of 8,192 numbers has 180 kB as text.
BYTES_OF_A_VECTOR, MOST_BYTES = 256 * 1024, 256 * 1024 * 1024
# Above it, an answer is read on a thread: megabytes of numbers take longer than other requests may wait.
READ_HERE_BYTES = 256 * 1024
# A server's own count is believed down to this share of our estimate of four bytes per token.
LEAST_SHARE = 1 / 64
SPECIAL_TOKENS, _LONGEST_SETTING = 2, 64
"""What an encoder may add to a text."""


class _Usage(msgspec.Struct, frozen=True):
    prompt_tokens: int | None = None
    total_tokens: int | None = None


class _Reply(msgspec.Struct, frozen=True):
    usage: _Usage | None = None


_DECODER = msgspec.json.Decoder(_Reply, strict=False)
_TABLE, _LIST = msgspec.json.Decoder(dict[str, msgspec.Raw]), msgspec.json.Decoder(list[msgspec.Raw])
# Where servers have vectors, and the place of each.
_HOLDERS = ("data", "embedding", "embeddings", "float", "values", "vector", "vectors", "results", "result", "output",
            "predictions", "response")  # fmt: skip
_PLACES = ("index", "text_index")
_MOST_DEPTH, _NULL = 8, b"null"


class Vector(msgspec.Struct, frozen=True):
    """A vector as the server wrote it: JSON numbers in `text`, or base64 of its float32, little-endian."""

    text: bytes
    size: int

    @property
    def is_packed(self) -> bool:
        """Whether it is base64."""
        return self.text.startswith(b'"')

    def written(self, form: str | None) -> Any:
        """Return it in `form`, for JSON: as it came where the server used that form."""
        if form == "base64":
            if self.is_packed:
                return self.text[1:-1].decode()
            numbers = np.array(msgspec.json.decode(self.text, type=list[float]), dtype="<f4")
            return base64.b64encode(numbers.tobytes()).decode()
        if self.is_packed:
            return msgspec.Raw(msgspec.json.encode(np.frombuffer(base64.b64decode(self.text[1:-1]), "<f4").tolist()))
        return msgspec.Raw(self.text)


class Embedded(msgspec.Struct, frozen=True, kw_only=True):
    """The vectors in the order of the inputs."""

    vectors: list[Vector]
    disputed: list[int] = []
    """The impossible counts of tokens that the server reported."""


class _TooManyError(TierRequestError):
    """A call has too many texts."""

    counts: Sequence[int] = ()
    """The numbers that the server names, its limit among them."""


class EmbeddingCounter:
    """What of a request is billed: the server's own counts of finished calls, within what its texts can have, and an
    estimate of calls that were sent and not answered."""

    def __init__(self) -> None:
        self.finished = 0
        self.sent = 0

    @property
    def with_sent(self) -> int:
        """Tokens if the calls under way are billed too."""
        return self.finished + self.sent


class _SharedByCalls(NamedTuple):
    """What all calls of one request share."""

    fields: Mapping[str, Any]
    counter: EmbeddingCounter
    tenant: str
    disputed: list[int]
    """See `Embedded`."""


class EmbeddingClient:
    """The model of `spec` at its server. The key is read from the environment once and never shown. Belongs to one
    event loop; `close` it."""

    def __init__(self, spec: EmbeddingSpec, refusals: LearnedRefusals = REFUSALS) -> None:
        """`refusals`: where it notes what its server refuses."""
        self.spec, self._refusals = spec, refusals
        self._base = httpx.URL(str(spec.url).rstrip("/") + "/")
        self._key = server_key(os.environ, spec.api_key_env)
        kind: RemoteKind = "azure" if spec.provider == "azure" else "openai"
        remote = RemoteSpec(kind=kind, base_url=str(spec.url), model=spec.model or "", api_key_env=spec.api_key_env)
        self._dialect = dialect_of(remote, spec.provider)
        self._served = ServedModel(spec.name, str(spec.url), "embeddings", remote.model)
        self._failures = ServerFailures(f"embeddings '{spec.name}'", remote, self._key, 0.0, time.monotonic)
        self._headers = headers_of(self._base, endpoint_of(remote).key_headers(self._key))
        self._client = httpx.AsyncClient(transport=transport_to(self._base), trust_env=False, follow_redirects=False)

    async def close(self) -> None:
        await self._client.aclose()

    def _inputs_of_a_call(self, tenant: str) -> int:
        """Return the most texts of a call: fewer than in the catalogue where the server was found to take fewer."""
        return min([self.spec.max_inputs, *map(_most_inputs, self._refusals.at(self._served, tenant))])

    def most_tokens(self, inputs: Sequence[Input], fields: Mapping[str, Any], tenant: str = "") -> int:
        """Return the most tokens that `inputs` can have, one per byte, and no more than the model reads; and those of
        further texts in `fields`, which some servers read in each call."""
        calls = math.ceil(len(inputs) / self._inputs_of_a_call(tenant))
        own = sum(min(_size(text) + SPECIAL_TOKENS, self.spec.max_tokens) for text in inputs)
        return own + calls * sum(len(msgspec.json.encode(value)) for value in fields.values() if _has_texts(value))

    async def embed(
        self, inputs: Sequence[Input], fields: Mapping[str, Any], counter: EmbeddingCounter, tenant: str = ""
    ) -> Embedded:
        """Return the vectors of `inputs`; `fields` go to the server as they are, without those that it was found to
        refuse to the `tenant`. Raises `TierError`: of the first call that fails, and the others are cancelled."""
        if self.spec.api_key_env is not None and not self._key:
            raise TierUnavailableError(
                f"embeddings '{self.spec.name}': its API key is expected in the environment variable "
                f"{self.spec.api_key_env}, which is not set"
            )
        shared = _SharedByCalls(fields, counter, tenant, [])
        room, step = asyncio.Semaphore(TOGETHER), self._inputs_of_a_call(tenant)
        parts = [inputs[first : first + step] for first in range(0, len(inputs), step)]

        async def one(part: Sequence[Input]) -> list[Vector]:
            async with room:
                return await self._call(part, shared)

        try:
            async with asyncio.TaskGroup() as group:
                tasks = [group.create_task(one(part)) for part in parts]
        except BaseExceptionGroup as errors:
            raise errors.exceptions[0] from None
        vectors = [vector for task in tasks for vector in task.result()]
        if len({vector.size for vector in vectors}) > 1:
            raise self._unreadable("with vectors of several lengths")
        return Embedded(vectors=vectors, disputed=shared.disputed)

    async def _call(self, part: Sequence[Input], shared: "_SharedByCalls") -> list[Vector]:
        """Return the vectors, in the form that was asked for or in the server's own: many know only numbers, and refuse
        the field that asks for another form."""
        plain = shared._replace(fields={name: value for name, value in shared.fields.items() if name != FORM})
        if FORM not in shared.fields or FORM in self._refusals.at(self._served, shared.tenant):
            return await self._split(part, plain)
        try:
            return await self._split(part, shared)
        except TierRequestError as error:
            if FORM not in error.refused:
                raise
            said = error.said
        vectors = await self._split(part, plain)
        self._refusals.learn(self._served, {FORM}, shared.tenant, said)
        return vectors

    async def _split(self, part: Sequence[Input], shared: "_SharedByCalls") -> list[Vector]:
        """Return the vectors, by several calls where the server refuses so many texts in one."""
        try:
            return await self._answered(part, shared)
        except _TooManyError as error:
            if len(part) == 1:
                raise
            step = max((count for count in error.counts if 0 < count < len(part)), default=len(part) // 2)
            said = error.said
        parts = [part[first : first + step] for first in range(0, len(part), step)]
        vectors = [vector for piece in parts for vector in await self._split(piece, shared)]
        self._refusals.learn(self._served, {f"{_INPUTS}{step}"}, shared.tenant, said)
        return vectors

    async def _answered(self, part: Sequence[Input], shared: "_SharedByCalls") -> list[Vector]:
        counter = shared.counter
        body = msgspec.json.encode({"model": self.spec.model, "input": part} | dict(shared.fields))
        request = self._client.build_request("POST", self._base.join("embeddings"), headers=self._headers, content=body)
        most = min(len(part) * BYTES_OF_A_VECTOR + READ_HERE_BYTES, MOST_BYTES)
        tokens = self.most_tokens(part, shared.fields, shared.tenant)
        estimate = min(sum(_size(text) for text in part) // 4 + 1, tokens)
        counter.sent += estimate
        try:
            response, answer = await bounded_answer(
                self._client, request, most, self.spec.timeout_seconds, lenient=True
            )
        except RefusedBodyError as error:
            said = f"{self._failures.where}: {self._failures.scrub(str(error))}"
            raise self._failures.located(TierAnswerTooLongError(said)) from error
        except httpx.HTTPError as error:
            raise self._failures.unavailable(error) from error
        if response.status_code != 200:
            counter.sent -= estimate
            raise await self._refusal(response, answer, body, shared.tenant)
        # What was answered is billed, also if it cannot be read.
        is_long = len(answer) > READ_HERE_BYTES
        reply, vectors = await asyncio.to_thread(_read, answer) if is_long else _read(answer)
        counter.sent -= estimate
        counter.finished += self._billed(reply, tokens, estimate, shared.disputed)
        if not vectors and b'"error' in answer[:READ_HERE_BYTES]:
            raise await self._refusal(response, answer, body, shared.tenant)
        if sorted(vectors) != list(range(len(part))):
            raise self._unreadable(f"with no list of {len(part)} vectors")
        return [vectors[index] for index in range(len(part))]

    def _unreadable(self, what: str) -> TierAnswerError:
        return self._failures.located(TierAnswerError(f"{self._failures.where} answered {what}"))

    def _billed(self, reply: _Reply | None, most: int, estimate: int, disputed: list[int]) -> int:
        usage = None if reply is None else reply.usage
        told = None if usage is None else usage.prompt_tokens or usage.total_tokens
        if told is None:
            return estimate
        if told > most or told < estimate * LEAST_SHARE:
            disputed.append(told)
            return most if told > most else estimate
        return told

    async def _refusal(self, response: httpx.Response, answer: bytes, body: bytes, tenant: str) -> TierError:
        request = ServerRequest(self._dialect, self._served.model, body, tenant=tenant)
        said = await self._failures.read(parse_error(answer[:MAX_ERROR_BYTES]), request)
        refused = self._failures.of_status(response, said, request)
        if response.status_code in (400, 413, 422) and _TOO_MANY.search(said.words) is not None:
            many = self._failures.located(_TooManyError(str(refused), "input", getattr(refused, "code", None)))
            many.counts = [int(count) for count in _COUNT.findall(said.words)]
            refused = many
        elif isinstance(refused, TierContextError):
            refused.param = "input"
        elif isinstance(refused, TierRequestError) and (said.param == FORM or FORM in said.words):
            refused.refused = frozenset({FORM})
        if isinstance(refused, TierRequestError):
            refused.said = f"{response.status_code} {said.code}"
        return refused


def _has_texts(value: Any) -> bool:
    """Whether a further field may hold more than a setting."""
    return isinstance(value, dict | list) or (isinstance(value, str) and len(value) > _LONGEST_SETTING)


def _most_inputs(refused: str) -> int:
    """Return the most texts of a call that the name of a refusal tells."""
    return int(refused.removeprefix(_INPUTS)) if refused.startswith(_INPUTS) else sys.maxsize


def _size(text: Input) -> int:
    """Most tokens of an input: its bytes, or its token ids."""
    return len(text.encode()) if isinstance(text, str) else len(text)


def _read(body: bytes) -> tuple[_Reply | None, dict[int, Vector]]:
    """Return the answer and its vectors by index; none if one cannot be read, or if an index comes twice."""
    reply: _Reply | None = None
    with suppress(*JSON_ERRORS):
        reply = _DECODER.decode(body)
    try:
        indexed = list(_vectors_in(body.strip(), None, _MOST_DEPTH))
        vectors = [_vector(text) for _, text in indexed]
    except (ValueError, Base64Error, *JSON_ERRORS):
        return reply, {}
    indices = [index for index, _ in indexed]
    if None in indices or (len(indices) > 1 and len({*indices}) == 1):
        # In the order of the texts.
        return reply, dict(enumerate(vectors))
    # Some count from 1.
    shift = 1 if len(indices) > 1 and 0 not in indices else 0
    numbered = {(index or 0) - shift: vector for index, vector in zip(indices, vectors, strict=True)}
    return reply, numbered if len(numbered) == len(indices) else {}


def _vectors_in(data: bytes, index: int | None, depth: int) -> Iterator[tuple[int | None, bytes]]:
    """Yield each vector of an answer as JSON, with its index where it has one: in whatever lists and objects it is.
    Raises ValueError and the errors of JSON."""
    if not depth:
        raise ValueError("vectors are not so deep")
    start = data[:1]
    if start == b"{":
        table = _TABLE.decode(data)
        inner = next((bytes(table[name]) for name in _HOLDERS if name in table), b"")
        own = next(
            (int(bytes(table[name]).strip(b'"')) for name in _PLACES if bytes(table.get(name, _NULL)) != _NULL), None
        )
        vectors = list(_vectors_in(inner, own, depth - 1))
        yield from vectors if len(vectors) != 1 or own is None else [(own, vectors[0][1])]
    elif start == b"[" and data[1:].lstrip()[:1] in (b"[", b"{", b'"'):
        for element in _LIST.decode(data):
            yield from _vectors_in(bytes(element), index, depth - 1)
    elif start in (b"[", b'"'):
        yield index, data


def _vector(text: bytes) -> Vector:
    """Raises ValueError and the errors of JSON for anything but numbers and base64 of float32."""
    if text.startswith(b'"'):
        packed = base64.b64decode(text[1:-1], validate=True)
        if len(packed) % 4 or not packed or not np.isfinite(np.frombuffer(packed, "<f4")).all():
            raise ValueError("no float32")
        return Vector(text, len(packed) // 4)
    numbers = msgspec.json.decode(text, type=list[float])
    if not numbers:
        raise ValueError("an empty vector")
    return Vector(text, len(numbers))
