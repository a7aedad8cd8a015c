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
    NativeRequest,
    OpaquePiece,
    ReasoningEffort,
    ToolCallDelta,
    Tooling,
    Turn,
    UrlCitation,
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
    """Billed token counts. `completion_tokens` includes `reasoning_tokens` and discarded samples; `prompt_tokens`
    includes `cached_tokens`, read from a prefix cache, and `cache_write_tokens`, which a provider wrote into its cache
    and bills at a price of their own; `cache_write_1h_tokens` are those of the latter that stay for an hour.
    `cost_usd`: the US dollars that the server says it charges for all this; 0 where it does not tell. `extras`: what
    else it says that it bills, by the names of `tiers.dialects.extras`. `estimated`: whether a server elsewhere has not
    counted all of it, because its answer was left or it tells no counts."""

    prompt_tokens: int = 0
    completion_tokens: int = 0
    cached_tokens: int = 0
    cache_write_tokens: int = 0
    cache_write_1h_tokens: int = 0
    reasoning_tokens: int = 0
    cost_usd: float = 0.0
    extras: dict[str, int] = {}
    estimated: bool = False

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


class GenerationRequest(msgspec.Struct, frozen=True, kw_only=True):
    """What a tier needs to answer; exactly one of `messages` and `prompt` is set.

    `prompt` (text, or token ids of the tier's model) is continued raw, without a chat template. `max_tokens` None means
    the default length of a tier in process, and no limit for a server elsewhere, unless its API needs one; always at
    most what the context allows. `given`: fields that caller or catalogue set, so that a server elsewhere gets them
    even with their neutral value. `passed`: the caller's fields that mean something to a provider alone, by OpenAI's
    names. `sent`: filled as a server elsewhere gets the request; copies of it share it. `sampling.max_tokens` is
    ignored. `extra`: the caller's fields beyond OpenAI's API that some servers know.
    `strict_deadline`: an answer that starts after `deadline` is useless, so it may be refused early.
    `reasoning_budget` bounds the thinking tokens of a chain-of-thought tier; None is its default, or a share of it by
    `reasoning_effort`. `template_variables`: further ones of the model's chat template, plain JSON; a remote server
    gets them if its kind takes any. `include_stop`: the stop string that ends an answer is part of it. `echo`: every
    choice starts with the raw prompt, with its log-probabilities if `sampling.logprobs` asks for any; then `max_tokens`
    may be 0. `sampling.grammar` constrains the answer, not the thoughts before it. `tooling`: tools that the answer may
    or must call. `response_format` is the caller's own form of the grammar, for servers that accept it. `adapter`: a
    LoRA adapter over the tier's model; "" for the model alone (docs/reference/adapters.md). `evidence`: what a model in
    process reports about its computation. `whole`: the caller needs no stream, so a remote server may answer in one
    piece. `meter`: counts the request's usage while it is answered; copies of the request share it. `prompts_read`: the
    tiers' encoded prompts, by the way of reading; shared by all requests with the same prompt, so that it is encoded
    once. `native`: the request's other fields in the form of the caller's API. `wants_opaque`: the answer is also
    wanted as the server's dialect has it, because its reasoning may have to be given back. `continues`: the last
    message, the assistant's, begins the answer, which goes on from there (`Tier.continues_chats`). `resumes`: an
    answer of our own engine may outlive its core: another one, or the same once it is back, goes on if this returns
    True for the tokens that it reads again. `cache_reuse`: the expected share of such requests whose conversation goes
    on while the provider's cache holds it; 0 marks nothing.
    `priority`: as of a core's request (`inference_core.protocol.AddRequest`); 3 is idle work there, and elsewhere as 2.
    `credential`: the caller's own, for a tier that asks for it; what is learned from the answer holds for it alone.
    """

    request_id: str
    sampling: SamplingParams
    messages: list[Turn] | None = None
    prompt: str | list[int] | None = None
    max_tokens: int | None = None
    stop: tuple[str, ...] = ()
    n: int = 1
    priority: int = 1
    arrival: float = 0.0
    deadline: float | None = None
    strict_deadline: bool = False
    salt: str = ""
    adapter: str = ""
    reasoning_budget: int | None = None
    reasoning_effort: ReasoningEffort | None = None
    template_variables: dict[str, Any] = {}
    include_stop: bool = False
    echo: bool = False
    tooling: Tooling | None = None
    response_format: dict[str, Any] | None = None
    evidence: EvidenceRequest | None = None
    whole: bool = False
    trace: TraceHeaders | None = None
    given: tuple[str, ...] = ()
    passed: dict[str, Any] = {}
    extra: dict[str, Any] = {}
    native: NativeRequest | None = None
    wants_opaque: bool = False
    continues: bool = False
    resumes: Callable[[int], Awaitable[bool]] | None = None
    cache_reuse: float = 0.0
    credential: CallerCredential | None = None
    sent: Sent = msgspec.field(default_factory=Sent)
    meter: UsageMeter = msgspec.field(default_factory=UsageMeter)
    prompts_read: dict[Any, Any] = msgspec.field(default_factory=dict)


MANY_TURNS = 200
"""Of a chat, however short they are: a template may compare each of them with all others."""


def is_long(request: GenerationRequest) -> bool:
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
    """One token as text with its log-probability and the most likely alternatives (text, bytes, logprob).

    `logprob` is None only for the first token of a prompt. `start`: characters of the choice's text before the token's
    own; None if a remote server does not report it.
    """

    token: str
    token_bytes: bytes
    logprob: float | None
    top: list[tuple[str, bytes, float]]
    start: int | None = None


class AnswerEnd(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What a tier says of a whole request once every choice has finished: its `usage`, and where it knows them the
    merged `times` of the choices.

    `thought_end`: why a thought was ended before its model ended it; of several choices the first such reason. A server
    elsewhere gives no token ids: `streamed_tokens` is how many tokens all `pieces` of the deltas were, None where it
    does not say. `maker`: that server and its model, as `Turn.maker`.
    """

    usage: Usage
    times: StepTimes = NO_TIMES
    thought_end: ThoughtEnd | None = None
    streamed_tokens: int | None = None
    maker: str = ""

    @classmethod
    def of_all(cls, ends: "Sequence[AnswerEnd]") -> "AnswerEnd":
        """Return the end of an answer that was several requests."""
        counts = [end.streamed_tokens for end in ends if end.streamed_tokens is not None]
        return cls(
            usage=Usage.total(end.usage for end in ends),
            times=StepTimes.of_all(end.times for end in ends),
            thought_end=next((end.thought_end for end in ends if end.thought_end is not None), None),
            streamed_tokens=sum(counts) if len(counts) == len(ends) else None,
            maker=next((end.maker for end in ends), ""),
        )


class Delta(msgspec.Struct, kw_only=True, omit_defaults=True):
    """A piece of one choice. Order per choice: text deltas and pieces of tool calls, then one with `finish_reason`.

    The last delta of a request, after every choice has finished, has its `end` (its `index` is 0 and its text empty).

    `echo`: text and log-probabilities are the prompt's, the first delta of its choice. `prompt_logprobs` pass from the
    decoder to a policy and leave no tier. `stop_sequence`: the stop string of the request that ended the choice, next
    to its `finish_reason`; None for another end, and if a remote server does not report it. `evidence`, if requested
    from an in-process model: of the tokens of `token_ids`; the hidden state comes before them in its own delta.
    `tries`, in the first delta of a tier with replicas: the replicas that were asked, in order. `at_once`: part of an
    answer that arrived whole, so its arrival is not the time of its first token. `made_at`: when its tier gave it,
    monotonic seconds; for a delta that may have been held back since. A server elsewhere gives no token ids: `pieces`
    is how many pieces of output came at once, in the first delta of them. `opaque`: the same piece as the server's
    dialect has it, if that was wanted; a delta may be nothing else. `refusal`: the text is what the model says instead
    of an answer. `annotations`: what the choice's text cites.
    """

    index: int = 0
    text: str = ""
    reasoning: str = ""
    token_ids: list[int] = []
    logprobs: list[TextLogprob] | None = None
    tool_calls: list[ToolCallDelta] = []
    finish_reason: FinishReason | None = None
    stop_sequence: str | None = None
    end: AnswerEnd | None = None
    echo: bool = False
    prompt_logprobs: list[TokenLogprob] | None = None
    evidence: Evidence | None = None
    tries: list[ReplicaTry] = []
    at_once: bool = False
    made_at: float | None = None
    pieces: int = 0
    opaque: OpaquePiece | None = msgspec.field(default=None, name="native")
    refusal: bool = False
    annotations: list[UrlCitation] | None = None

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
    """A tier's queue as routing needs it, without I/O. `running`: requests from here. `waiting`: sequences of its model
    in process; of servers elsewhere the requests of all their clients where they tell, else ours. `down_seconds`: until
    one that is not healthy is asked again, where that is known."""

    healthy: bool = True
    down_seconds: float = 0.0
    running: int = 0
    waiting: int = 0
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
    - `core_name` is the catalogue's name of the core that computes the tier; None for a server elsewhere.
    - `num_layers`: how many layers there are to take hidden states after, where `evidence` can be had; else 0.
    - `version`: `Catalog.tier_fingerprint` of the entry that it was built from; "" for one of no catalogue.
    - `max_output`: the most tokens that its model can answer, as published for a server elsewhere; None: not known.
    - `is_only_maker`: whether no other tier of the catalogue has the API of its server, so that sealed reasoning of
      that API can only be its own. `is_only_server`: whether state of an unknown maker may go to the server: it
      is the catalogue's only one, or all are servers of one's own.
    - `is_local`: that entry's label (`tiers.catalog.consent`); False for one of no catalogue.
    - `asks_credential`: whether it answers with the caller's own credential alone, that of the request.
    - `is_started`: False while it starts behind a place of the catalogue: its load counts for nothing before.
    - `is_target`: whether it is a target of the catalogue; `number` is then that of the tier that it stands for.
    - `takes_chats`: False where its model, once it has started, is known to have no chat template. `continues_chats`:
      whether it goes on from an unfinished turn of the assistant, without an instruction.
    """

    name: str
    number: int
    model: str
    max_context: int
    core_name: str | None = None
    num_layers: int = 0
    version: str = ""
    max_output: int | None = None
    is_local: bool = False
    is_only_maker: bool = False
    is_only_server: bool = True
    asks_credential: bool = False
    is_started: bool = True
    is_target: bool = False
    takes_chats: bool = True
    continues_chats: bool = False

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
