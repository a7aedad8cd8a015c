"""The interface of every tier: a request goes in, an async iterator of deltas comes out."""

import asyncio
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from typing import Any, Literal

import msgspec

from inference_core.protocol import NO_TIMES, SamplingParams, StepTimes, TokenLogprob
from inference_core.protocol.commands import Evidence, EvidenceRequest
from inference_core.tokenization.tokenizer import LONG_TEXT, Tokenizer
from tiers.conversation import (
    Dialect,
    OpaquePiece,
    ToolCallDelta,
    Turn,
    UrlCitation,
    WantedAnswer,
)
from tiers.engines import EngineStatus
from tiers.errors import CallerCredential, ReplicaStatus, ReplicaTry, TierRequestError


def answer_limit(requested: int | None, published: int | None, context: int, prompt_tokens: int) -> int:
    """Return the limit of an answer to a prompt of so many tokens, at least 1.

    It is the caller's (`requested`), else the model's `published` maximum, else the room left in the `context`; never
    more than that room.
    """
    room = context - prompt_tokens
    wanted = published if requested is None else requested
    return max(1, room if wanted is None else min(wanted, room))


REPLAYED = "quality"
"""Begins the `salt` of requests in which AIO sends callers' words once more, to check an answer."""
FinishReason = Literal["stop", "length", "tool_calls", "content_filter", "error"]
# Why a thought was ended early: its probes agreed, or the model was sure of the answer of one (SPEC TI-16).
ThoughtEnd = Literal["agreement", "confidence"]


class TraceHeaders(msgspec.Struct, frozen=True):
    """The caller's distributed trace context as W3C headers, forwarded to remote servers."""

    traceparent: str
    tracestate: str = ""


class Usage(msgspec.Struct, frozen=True, kw_only=True):
    """Billed token counts."""

    prompt_tokens: int = 0
    """Includes `cached_tokens` and `cache_write_tokens`."""
    completion_tokens: int = 0
    """Includes `reasoning_tokens` and discarded samples."""
    cached_tokens: int = 0
    """Read from a prefix cache."""
    cache_write_tokens: int = 0
    """Written by a provider into its cache and billed at a price of their own."""
    cache_write_1h_tokens: int = 0
    """How many of the written tokens stay for an hour."""
    reasoning_tokens: int = 0
    cost_usd: float = 0.0
    """The US dollars that the server says it charges for all this; 0 where it does not tell."""
    extras: dict[str, int] = {}
    """What else it says that it bills, by the names of `tiers.dialects.extras`."""
    estimated: bool = False
    """Whether a server elsewhere has not counted all of it, because its answer was left or it tells no counts."""

    @classmethod
    def total(cls, usages: Iterable["Usage"]) -> "Usage":
        """Return the sum; its cost is 0 unless each part with tokens states one."""
        every = list(usages)
        total = cls(**{name: sum([getattr(usage, name) for usage in every]) for name in USAGE_COUNTS})
        if any(usage.extras for usage in every):
            extras = sum((Counter(usage.extras) for usage in every), Counter[str]())
            total = msgspec.structs.replace(total, extras=dict(extras))
        if any(usage.estimated for usage in every):
            total = msgspec.structs.replace(total, estimated=True)
        if total.cost_usd and not all(usage.cost_usd or not usage.completion_tokens for usage in every):
            return msgspec.structs.replace(total, cost_usd=0.0)
        return total


USAGE_COUNTS = tuple(name for name in Usage.__struct_fields__ if name not in ("extras", "estimated"))


class UsageMeter:
    """The usage of an answer at any moment, as a `Usage`.

    Every source of tokens (a core's decoder, the connection to a remote server) adds a function that returns its own
    count. So layers between source and caller, which may buffer, drop or never yield tokens, cannot hide them from the
    bill of an answer that ends without a usage delta. `claims`: counts of servers elsewhere that cannot be, and that
    are not billed. `unsettled`: answers that are read on after their caller left; at their end the meter has all.
    """

    __slots__ = ("_counts", "claims", "unsettled")

    def __init__(self) -> None:
        self._counts: list[Callable[[], Usage]] = []
        self.claims: list[Usage] = []
        self.unsettled: list[asyncio.Task[None]] = []

    @property
    def is_empty(self) -> bool:
        """Whether nothing was added: no model or server has the request yet."""
        return not self._counts

    def add(self, count: Callable[[], Usage]) -> None:
        """Add a source's `count`, which is called whenever the meter is read, also after the answer's end."""
        self._counts.append(count)

    def usage(self) -> Usage:
        return Usage.total(count() for count in self._counts)


class Sent:
    """What became of a request at a server elsewhere: `max_tokens`, the limit of a choice that it was sent with, None
    without one; `dropped`, the names of the caller's fields that the server does not take; `changed`, of those that it
    was sent in another form (`tiers.dialects.rules`); `added`, the names of fields that no caller set.
    `read_again`: tokens that each further core of our own engine read, after the one before it was lost."""

    __slots__ = ("added", "changed", "dropped", "max_tokens", "read_again")

    def __init__(self) -> None:
        self.max_tokens: int | None = None
        self.dropped: tuple[str, ...] = ()
        self.changed: tuple[str, ...] = ()
        self.added: tuple[str, ...] = ()
        self.read_again: list[int] = []


class ModelRequest(WantedAnswer, frozen=True, kw_only=True):
    """What a model is asked, as its template or its server's dialect writes it; exactly one of `messages` and `prompt`
    is set.
    """

    messages: list[Turn] | None = None
    prompt: str | list[int] | None = None
    """Text, or token ids of the tier's model. It is continued raw, without a chat template."""
    continues: bool = False
    """Whether the last message, the assistant's, begins the answer, which goes on from there (`Tier.continues_chats`).
    """
    sampling: SamplingParams
    """Its `max_tokens` is ignored. Its grammar constrains the answer, not the thoughts before it."""
    given: tuple[str, ...] = ()
    """Fields that caller or catalogue set, so that a server elsewhere gets them even with their neutral value."""
    whole: bool = False
    """Whether the caller needs no stream, so that a remote server may answer in one piece."""
    cache_reuse: float = 0.0
    """The expected share of such requests whose conversation goes on while the provider's cache holds it; 0 marks
    nothing.
    """

    @property
    def server_tools(self) -> tuple[str, ...]:
        """The types of tools that the provider itself runs."""
        return () if self.opaque is None else self.opaque.server_tools

    def is_in(self, dialect: Dialect | None) -> bool:
        """Whether the caller speaks this dialect."""
        return self.opaque is not None and self.opaque.dialect == dialect

    def fields_in(self, dialect: Dialect) -> dict[str, bytes]:
        """Return the JSON of the fields, by name, that the request has in this dialect alone; none if it is in
        another."""
        return self.opaque.fields if self.opaque is not None and self.opaque.dialect == dialect else {}

    def lost_in(self, dialect: Dialect | None) -> tuple[str, ...]:
        """Return the names of fields that change the answer and that only the caller's dialect has, for a server with
        this one; None: for a model here."""
        return () if self.opaque is None or self.opaque.dialect == dialect else self.opaque.lost_elsewhere


class GenerationRequest(ModelRequest, frozen=True, kw_only=True):
    """What a tier needs to answer: what its model is asked, the tenant, and how soon."""

    request_id: str
    priority: int = 1
    """As in a core's request (`inference_core.protocol.AddRequest`); 3 is idle work there, and counts as 2 elsewhere.
    """
    arrival: float = 0.0
    deadline: float | None = None
    strict_deadline: bool = False
    """Whether an answer that starts after `deadline` is useless, so that it may be refused early."""
    salt: str = ""
    adapter: str = ""
    """A LoRA adapter over the tier's model; "" for the model alone (docs/reference/adapters.md)."""
    evidence: EvidenceRequest | None = None
    """What a model in process reports about its computation."""
    resumes: Callable[[int], Awaitable[bool]] | None = None
    """An answer of our own engine may outlive its core. Another core, or the same once it is back, goes on if this
    returns True for the tokens that it reads again.
    """
    trace: TraceHeaders | None = None
    credential: CallerCredential | None = None
    """The caller's own credential, for a tier that asks for it; what is learned from the answer holds for it alone."""
    sent: Sent = msgspec.field(default_factory=Sent)
    """Filled as a server elsewhere gets the request; copies of the request share it."""
    meter: UsageMeter = msgspec.field(default_factory=UsageMeter)
    """Counts the request's usage while it is answered; copies of the request share it."""
    prompts_read: dict[Any, Any] = msgspec.field(default_factory=dict)
    """The tiers' encoded prompts, by the way of reading; shared by all requests with the same prompt, so that it is
    encoded once.
    """


MANY_TURNS = 200
"""Of a chat, however short they are: a template may compare each of them with all others."""


def is_long(request: ModelRequest) -> bool:
    """Whether the prompt should be encoded on a thread; the text of tools is not counted here."""
    if request.tooling is not None:
        return True
    if request.messages is None:
        return len(request.prompt or "") > LONG_TEXT
    return len(request.messages) > MANY_TURNS or sum(map(_characters, request.messages)) > LONG_TEXT


def _characters(message: Turn) -> int:
    calls = sum(len(call.arguments) for call in message.calls) if message.calls else 0
    return len(message.text) + len(message.name or "") + calls + len(message.thoughts)


class TextLogprob(msgspec.Struct, frozen=True, kw_only=True):
    """One token as text with its log-probability and the most likely alternatives (text, bytes, logprob)."""

    token: str
    token_bytes: bytes
    logprob: float | None
    """None only for the first token of a prompt."""
    top: list[tuple[str, bytes, float]]
    start: int | None = None
    """Characters of the choice's text before the token; None if a remote server does not report it."""


class AnswerEnd(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What a tier says of a whole request once every choice has finished: its `usage`, and where it knows them the
    merged `times` of the choices.
    """

    usage: Usage
    times: StepTimes = NO_TIMES
    thought_end: ThoughtEnd | None = None
    """Why a thought was ended before its model ended it; of several choices the first such reason. A server elsewhere
    gives no token ids: `streamed_tokens` is how many tokens all `pieces` of the deltas were, None where it does not
    say.
    """
    streamed_tokens: int | None = None
    """How many tokens all `pieces` of the deltas were, since a server elsewhere gives no token ids; None where it does
    not say.
    """
    answered_by: str = ""
    """The server elsewhere and its model, as in `Turn.answered_by`."""

    @classmethod
    def of_all(cls, ends: "Sequence[AnswerEnd]") -> "AnswerEnd":
        """Return the end of an answer that was several requests."""
        counts = [end.streamed_tokens for end in ends if end.streamed_tokens is not None]
        return cls(
            usage=Usage.total(end.usage for end in ends),
            times=StepTimes.of_all(end.times for end in ends),
            thought_end=next((end.thought_end for end in ends if end.thought_end is not None), None),
            streamed_tokens=sum(counts) if len(counts) == len(ends) else None,
            answered_by=next((end.answered_by for end in ends), ""),
        )


class Delta(msgspec.Struct, kw_only=True, omit_defaults=True):
    """A piece of one choice. Order per choice: text deltas and pieces of tool calls, then one with `finish_reason`.

    The last delta of a request, after every choice has finished, has its `end` (its `index` is 0 and its text empty).
    """

    index: int = 0
    text: str = ""
    reasoning: str = ""
    token_ids: list[int] = []
    logprobs: list[TextLogprob] | None = None
    tool_calls: list[ToolCallDelta] = []
    finish_reason: FinishReason | None = None
    stop_sequence: str | None = None
    """The stop string of the request that ended the choice, next to its `finish_reason`. None for another end, and if a
    remote server does not report it.
    """
    end: AnswerEnd | None = None
    echo: bool = False
    """Whether text and log-probabilities are the prompt's, which is the first delta of its choice."""
    prompt_logprobs: list[TokenLogprob] | None = None
    """They pass from the decoder to a policy and leave no tier."""
    evidence: Evidence | None = None
    """If requested from an in-process model, the evidence of the tokens of `token_ids`. The hidden state comes before
    them in its own delta.
    """
    tries: list[ReplicaTry] = []
    """In the first delta of a tier with replicas, the replicas that were asked, in order."""
    at_once: bool = False
    """Whether it is part of an answer that arrived whole, so that its arrival is not the time of its first token."""
    made_at: float | None = None
    """When its tier gave it, in monotonic seconds; for a delta that may have been held back since."""
    pieces: int = 0
    """How many pieces of output came at once, in the first delta of them. A server elsewhere gives no token ids."""
    opaque: OpaquePiece | None = msgspec.field(default=None, name="native")
    """The same piece as the server's dialect has it, if that was wanted; a delta may be nothing else."""
    refusal: bool = False
    """Whether the text is what the model says instead of an answer."""
    annotations: list[UrlCitation] | None = None
    """What the choice's text cites."""

    @classmethod
    def last_of(cls, last: "Sequence[Delta]") -> "Delta":
        """Return the last delta of an answer that was several requests, from their last deltas."""
        return cls(
            end=AnswerEnd.of_all([delta.end for delta in last if delta.end is not None]),
            tries=[replica for delta in last for replica in delta.tries],
        )


class Restarted(msgspec.Struct, frozen=True):
    """Between the deltas of an answer: another attempt gives it, and all deltas before this are void."""

    began: float
    """When that attempt began, in monotonic seconds."""


class TierLoad(msgspec.Struct, frozen=True, kw_only=True):
    """A tier's queue as routing needs it, without I/O."""

    healthy: bool = True
    down_seconds: float = 0.0
    """Seconds until a tier that is not healthy is asked again, where that is known."""
    running: int = 0
    """Requests from this process."""
    waiting: int = 0
    """Sequences of its model in process. Of servers elsewhere, the requests of all their clients where they tell, else
    ours.
    """
    predicted_wait_seconds: float = 0.0


class Tier(ABC):
    """Contract of local and remote tiers; `tests/tiers/test_tier_contract.py` runs it against both.

    - `generate` raises `TierRequestError` before the first delta if the request can never be served,
      `TierUnavailableError` if the tier cannot take it now.
    - Closing the iterator early frees the work within one step. A server elsewhere that bills it all the same is read
      to its counts by tasks of the request's `meter`.
    - From when a model or server has the request, the request's `meter` tells what it has used: at any time at least
      the tokens of the deltas so far, those of a server elsewhere as it reported or else as estimated.
    - Text deltas are valid Unicode: never half a character, never part of a stop string.
    """

    name: str
    number: int
    model: str
    max_context: int
    core_name: str | None = None
    """The catalogue's name of the core that computes the tier; None for a server elsewhere."""
    num_layers: int = 0
    """How many layers there are to take hidden states after, where `evidence` can be had; else 0."""
    version: str = ""
    """`Catalog.tier_fingerprint` of the entry that it was built from; "" for one of no catalogue."""
    max_output: int | None = None
    """The most tokens that its model can answer, as published for a server elsewhere; None if that is not known."""
    is_local: bool = False
    """The entry's label (`tiers.catalog.consent`); False for a tier of no catalogue."""
    is_only_of_api: bool = False
    """Whether no other tier of the catalogue has the API of its server, so that sealed reasoning of that API can only
    be its own.
    """
    is_only_server: bool = True
    """Whether reasoning of an unknown model may go to the server: it is the catalogue's only one, or all are servers of
    one's own.
    """
    asks_credential: bool = False
    """Whether it answers only with the caller's own credential, which the request carries."""
    is_started: bool = True
    """False while it starts behind a place of the catalogue: its load counts for nothing before."""
    is_target: bool = False
    """Whether it is a target of the catalogue; `number` is then that of the tier that it stands for."""
    takes_chats: bool = True
    """False where its model, once it has started, is known to have no chat template."""
    continues_chats: bool = False
    """Whether it goes on from an unfinished turn of the assistant, without an instruction."""

    async def prepare(self) -> None:  # noqa: B027 - most have nothing to prepare
        """Do what of `start` needs no core yet, such as reading a tokeniser."""

    @abstractmethod
    async def start(self) -> None:
        """Connect; returns when requests can be served. Raises `TierUnavailableError`."""

    @abstractmethod
    async def close(self) -> None:
        """Release everything. Idempotent."""

    @abstractmethod
    def generate(self, request: GenerationRequest) -> AsyncIterator[Delta]:
        """Answer `request`."""

    @abstractmethod
    def count_prompt_tokens(self, request: GenerationRequest) -> int:
        """Prompt length in this tier's tokens (an estimate for a remote tier without a local tokeniser)."""

    def prompt_tokens_up_to(self, request: GenerationRequest, most: int) -> int:
        """Like `count_prompt_tokens`; for a prompt longer than `most` the result may be any number above `most`. Call
        it on a thread the first time for a long prompt; after that it is immediate."""
        return self.count_prompt_tokens(request)

    def most_answer_tokens(self, stated: int | None, prompt_tokens: int) -> int:
        """Return the most output tokens of a choice after a prompt of so many, where caller or catalogue `stated` a
        limit, or None did."""
        published = self.max_output
        if stated is not None and published is not None:
            stated = min(stated, published)
        return answer_limit(stated, published, self.max_context, prompt_tokens)

    def refusal(self, request: GenerationRequest) -> TierRequestError | None:
        """Return why the tier can never serve a request with such fields, whatever its prompt; None if it can. Never
        blocks. A tier in process serves all that its declared capabilities promise."""
        return None

    def learned_refusal(self, request: GenerationRequest) -> TierRequestError | None:
        """Return why such a request of this tenant was refused before; None if none was. Never blocks. Routing passes
        over the tier then. A request that names the tier still goes to its server."""
        return None

    @abstractmethod
    def load(self) -> TierLoad:
        """Return the latest known load; never blocks."""

    @property
    def tokenizer(self) -> Tokenizer | None:
        """The tokeniser of an in-process model after `start`; None for a remote server."""
        return None

    @property
    def weights(self) -> str:
        """Content hash of the files of model and adapter, as its core has loaded them; "" for a remote server."""
        return ""

    def active_tier(self) -> "Tier":
        """Return the tier that this one delegates to, which serves a request from start to end."""
        return self

    def queues(self) -> dict[str, int]:
        """Return the waiting requests by server elsewhere; empty for a tier in process. Never blocks. The name is the
        server's address where it tells its queue, so that tiers of one server name the same queue, else the tier's."""
        return {}

    def replicas(self) -> list[ReplicaStatus]:
        """Return the replicas of the tier, if it has several; never blocks."""
        return []

    def engine(self) -> EngineStatus | None:
        """Return the state of the engine process that AIO starts for the tier; None if there is none."""
        return None
