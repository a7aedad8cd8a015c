"""The seam every tier stands behind: a request goes in, an async iterator of deltas comes out."""

from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Callable, Iterable
from typing import Any, Literal

import msgspec

from inference_core.protocol import SamplingParams, TokenLogprob
from inference_core.protocol.evidence import Evidence, EvidenceRequest
from inference_core.tokenization.tokenizer import LONG_TEXT, Tokenizer
from tiers.attempt import ReplicaStatus, ReplicaTry
from tiers.tool_types import ToolCall, ToolCallDelta, Tooling

FinishReason = Literal["stop", "length", "tool_calls", "error"]
ReasoningEffort = Literal["none", "minimal", "low", "medium", "high", "xhigh"]


class ChatMessage(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One turn, content already flattened to text. `tool_calls` are an assistant's; a turn of the role `tool` is the
    result of the call `tool_call_id`."""

    role: str
    content: str
    name: str | None = None
    tool_calls: tuple[ToolCall, ...] = ()
    tool_call_id: str | None = None

    def recorded_content(self) -> str:
        """The turn as one text, calls included, for records and for whoever must guess at its length."""
        if not self.tool_calls:
            return self.content
        calls = [f"{call.name}({call.arguments})" for call in self.tool_calls]
        return "\n".join(filter(None, [self.content, *calls]))


class TraceHeaders(msgspec.Struct, frozen=True):
    """The caller's place in a distributed trace, as W3C's headers say it, for servers elsewhere to go on with."""

    traceparent: str
    tracestate: str = ""


class Usage(msgspec.Struct, frozen=True, kw_only=True):
    """Token counts to be billed. `completion_tokens` includes `reasoning_tokens` and discarded samples."""

    prompt_tokens: int = 0
    completion_tokens: int = 0
    cached_tokens: int = 0
    reasoning_tokens: int = 0

    @classmethod
    def total(cls, usages: Iterable["Usage"]) -> "Usage":
        """The sum of all of them."""
        every = list(usages)
        return cls(**{name: sum(getattr(usage, name) for usage in every) for name in cls.__struct_fields__})


class UsageMeter:
    """What an answer has used so far, at any moment of it, in the counts of a `Usage`.

    What generates the tokens (a core's decoder, the connection to a server elsewhere) adds a function that tells its
    own count. So whatever stands between it and the caller, which may hold back, drop or never yield what was
    generated, cannot hide it from the bill of an answer that ends without a usage delta.
    """

    __slots__ = ("_counts",)

    def __init__(self) -> None:
        self._counts: list[Callable[[], Usage]] = []

    @property
    def is_empty(self) -> bool:
        """Whether nothing has been added: no model and no server has the request yet."""
        return not self._counts

    def add(self, count: Callable[[], Usage]) -> None:
        """Include what `count` tells; it is called whenever the meter is read, also after the answer's end."""
        self._counts.append(count)

    def usage(self) -> Usage:
        """The sum of all counts, as of now."""
        return Usage.total(count() for count in self._counts)


class GenerationRequest(msgspec.Struct, frozen=True, kw_only=True):
    """What a tier needs to answer; exactly one of `messages` and `prompt` is set.

    `prompt` (text, or token ids of the tier's model) is continued raw, without a chat template.
    `max_tokens` None means the tier's default length, at most what the context allows.
    `sampling.max_tokens` is ignored.
    `strict_deadline`: an answer that begins after `deadline` is worth nothing, so it may be refused early.
    `reasoning_budget` bounds the thinking tokens of a chain-of-thought tier; None is its default, or as much of it as
    `reasoning_effort` asks for. `include_stop`: the stop string that ends an answer is part of it.
    `echo`: every choice begins with the raw prompt, with its log-probabilities if `sampling.logprobs` asks for any;
    then `max_tokens` may be 0.
    `sampling.grammar` binds the answer, not the thoughts before it. `tooling`: tools that the answer may or must call.
    `response_format` is the caller's own wording of the grammar, for servers that take it.
    `adapter`: a LoRA adapter loaded over the tier's model; "" for the model alone (see docs/lora.md).
    `evidence`: what the tier's model is to tell of its computation, where it runs in process.
    `whole`: nobody reads before the end, so that a server elsewhere may answer at once instead of in a stream.
    `meter`: where the tier counts what the request uses while it is answered; a copy of the request has the same one.
    `prompts_read`: what tiers keep of the prompt once they have read it, by how they read it; one for all requests of
    the same prompt, so that it is read once.
    """

    request_id: str
    sampling: SamplingParams
    messages: list[ChatMessage] | None = None
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
    include_stop: bool = False
    echo: bool = False
    tooling: Tooling | None = None
    response_format: dict[str, Any] | None = None
    evidence: EvidenceRequest | None = None
    whole: bool = False
    trace: TraceHeaders | None = None
    meter: UsageMeter = msgspec.field(default_factory=UsageMeter)
    prompts_read: dict[Any, Any] = msgspec.field(default_factory=dict)


def is_long(request: GenerationRequest) -> bool:
    """Whether the prompt is worth a thread of its own to be encoded on; tools add text that is not counted here."""
    if request.tooling is not None:
        return True
    if request.messages is None:
        return len(request.prompt or "") > LONG_TEXT
    return sum(map(_characters, request.messages)) > LONG_TEXT


def _characters(message: ChatMessage) -> int:
    calls = sum(len(call.arguments) for call in message.tool_calls) if message.tool_calls else 0
    return len(message.content) + len(message.name or "") + calls


class TextLogprob(msgspec.Struct, frozen=True, kw_only=True):
    """One token as text with its log-probability and the most likely tokens in its place (text, bytes, logprob).

    `logprob` is None for the first token of a prompt alone. `start`: characters of the choice's text before the token's
    own; None where a remote server does not say.
    """

    token: str
    token_bytes: bytes
    logprob: float | None
    top: list[tuple[str, bytes, float]]
    start: int | None = None


class Delta(msgspec.Struct, kw_only=True, omit_defaults=True):
    """A piece of one choice. Order per choice: text deltas and pieces of tool calls, then one with
    `finish_reason`.

    The last delta of a request, after every choice has finished, carries `usage` (its `index` is 0 and
    its text empty), and where the tier knows them the longest wait of a choice for its first step in seconds and
    the number of preemptions. `echo`: text and log-probabilities are the prompt's, the first delta of its choice.
    `prompt_logprobs` pass from the decoder to a policy and leave no tier. `evidence`, where it was asked for and the
    tier's model runs in process: of the tokens of `token_ids`; the hidden state comes before them, in a delta alone.
    `tries`, in the first delta of a tier with replicas: those that were asked, in this order.
    `at_once`: part of an answer that came whole; when it came says nothing of when its first token was drawn.
    """

    index: int = 0
    text: str = ""
    reasoning: str = ""
    token_ids: list[int] = []
    logprobs: list[TextLogprob] | None = None
    tool_calls: list[ToolCallDelta] = []
    finish_reason: FinishReason | None = None
    usage: Usage | None = None
    queue_seconds: float = 0.0
    preemptions: int = 0
    echo: bool = False
    prompt_logprobs: list[TokenLogprob] | None = None
    evidence: Evidence | None = None
    tries: list[ReplicaTry] = []
    at_once: bool = False


class TierLoad(msgspec.Struct, frozen=True, kw_only=True):
    """What routing needs to know of a tier's queue, without I/O."""

    healthy: bool = True
    running: int = 0
    waiting: int = 0
    predicted_wait_seconds: float = 0.0


class Tier(ABC):
    """Contract of local and remote tiers; `tests/tiers/test_tier_contract.py` runs it against both.

    - `generate` raises `TierRequestError` before the first delta if the request can never be served,
      `TierUnavailableError` if the tier cannot take it now.
    - Closing the iterator early frees the work within one step.
    - From when a model or server has the request, the request's `meter` tells what it has used: at any time at least
      the tokens of the deltas so far, those of a server elsewhere as it reported or else as estimated.
    - Text deltas are valid Unicode: never half a character, never part of a stop string.
    - `core_name` is the catalogue's name of the core that computes the tier; None for a server elsewhere.
    - `num_layers`: how many layers there are to take hidden states after, where `evidence` can be had; else 0.
    """

    name: str
    number: int
    model: str
    max_context: int
    core_name: str | None = None
    num_layers: int = 0

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
        """As `count_prompt_tokens`; of a prompt that is longer than `most`, perhaps a lower number above `most`. For
        a thread, the first time that a long prompt is asked about; then it takes no time."""
        return self.count_prompt_tokens(request)

    @abstractmethod
    def load(self) -> TierLoad:
        """The latest known load; never blocks."""

    @property
    def tokenizer(self) -> Tokenizer | None:
        """The model's own, where it runs in process and has started; None for a server elsewhere."""
        return None

    def active_tier(self) -> "Tier":
        """The tier that this one stands for, which answers a request from its beginning to its end."""
        return self

    def replicas(self) -> list[ReplicaStatus]:
        """The replicas of the tier, where it has several; never blocks."""
        return []
