"""One verification as data: the waiting job with its texts, the rulings that it ends with, and its turn.

The turn is what verification needs of a request that the texts of its record cannot repeat, since it has tools, calls
of them or attachments. It exists while its verification waits."""

import hashlib
import json
from typing import Any, Literal, NamedTuple

import msgspec

from quality.estimates.verified_sample import UNCERTAIN
from quality.judges.judge import Seen
from quality.records.redaction import RedactText
from quality.verification.comparison import VerifiedComparison
from quality.verification.sampling import Purpose
from tiers.catalog.consent import ALL, Consent
from tiers.catalog.tier_spec import CAPABILITY_OF, Capability
from tiers.conversation import FAILED_RESULT, Call, Tool, Tooling, Turn
from tiers.deltas import CollectedChoice
from tiers.tier import GenerationRequest

MOST_TURN_BYTES = 4 << 20
MOST_TOOLS_BYTES = 512 << 10

# Of a schema these strings say what is valid, and are no text of anybody.
_GRAMMATICAL = ("type", "required", "format", "pattern", "$ref", "$schema", "$id", "name")


class Exchange(msgspec.Struct, frozen=True, kw_only=True):
    """The messages of a request with their calls and attachments, its tools, and the served answer: `text` and `calls`,
    which nothing here ever makes."""

    messages: tuple[Turn, ...]
    tooling: Tooling | None = None
    text: str = ""
    calls: tuple[Call, ...] = ()

    @property
    def needs(self) -> frozenset[Capability]:
        """What a tier must support to answer it."""
        media = {CAPABILITY_OF[block.kind] for message in self.messages for block in message.media}
        return frozenset(media | ({"tools"} if self.tooling is not None else set()))

    @property
    def is_about_calls(self) -> bool:
        """Whether the judge of calls decides: the answer has some, or had to."""
        return bool(self.calls or (self.tooling is not None and self.tooling.is_forced))

    @property
    def num_bytes(self) -> int:
        """About how much its messages and its answer take, without its tools."""
        return sum(map(_num_bytes, self.messages)) + len(self.text) + sum(len(call.arguments) for call in self.calls)

    @property
    def is_too_large(self) -> bool:
        """Whether it exceeds what may wait for a verification."""
        return self.num_bytes > MOST_TURN_BYTES or len(_encoded_tools(self.tooling)) > MOST_TOOLS_BYTES

    @property
    def seen(self) -> Seen:
        """What a model that judges has to see besides the last question: what came after it, and what was attached."""
        start = max((index for index, message in enumerate(self.messages) if message.role == "user"), default=0)
        since = self.messages[start:]
        text = "\n".join(f"{message.role}: {message.recorded_content()}" for message in since[1:])
        return Seen(text=text, media=tuple(block for message in since for block in message.media))


class StoredExchange(NamedTuple):
    """A turn as rows hold it: `body` without the tools, which are stored once per `digest`; None for no tools."""

    body: dict[str, Any]
    digest: str | None
    tools: list[dict[str, Any]] | None


def exchange_of(asked: GenerationRequest, answer: CollectedChoice) -> Exchange | None:
    """Return the turn of a request and its answer; None where texts alone repeat it."""
    messages = asked.messages or []
    if asked.tooling is None and not any(
        message.media or message.calls or message.role == "tool" for message in messages
    ):
        return None
    return Exchange(messages=tuple(messages), tooling=asked.tooling, text=answer.text, calls=tuple(answer.tool_calls))


def failed_calls(asked: GenerationRequest) -> list[str]:
    """Return the ids of the calls of the last answer in a conversation that failed, by the results that follow it."""
    failed = []
    for message in reversed(asked.messages or []):
        if message.role == "assistant":
            break
        if message.role == "tool" and message.call_id and message.text.startswith(FAILED_RESULT):
            failed.append(message.call_id)
    return failed


def stored_exchange(turn: Exchange, key_id: str | None) -> StoredExchange:
    """Return the turn as rows hold it; digests of different keys differ, so that a key's tools are its own."""
    if turn.tooling is None:
        return StoredExchange(msgspec.to_builtins(turn), None, None)
    encoded = _encoded_tools(turn.tooling)
    digest = hashlib.blake2b(encoded, digest_size=16, key=hashlib.sha256((key_id or "").encode()).digest())
    body = msgspec.structs.replace(turn, tooling=msgspec.structs.replace(turn.tooling, tools=()))
    return StoredExchange(msgspec.to_builtins(body), digest.hexdigest(), msgspec.json.decode(encoded))


def exchange_from(body: dict[str, Any] | None, tools: list[dict[str, Any]] | None) -> Exchange | None:
    """Rebuild a turn from what is stored."""
    try:
        turn = msgspec.convert(body, Exchange | None)
    except msgspec.ValidationError:
        # Stored in another form: its verification is refused, as one without its tools is.
        return Exchange(messages=(), tooling=Tooling(tools=()))
    if turn is None or turn.tooling is None or tools is None:
        return turn
    converted = msgspec.convert(tools, tuple[Tool, ...])
    return msgspec.structs.replace(turn, tooling=msgspec.structs.replace(turn.tooling, tools=converted))


async def redacted_exchange(turn: Exchange, redact: RedactText) -> Exchange | None:
    """Return the turn as it may be stored; None if that fails, and for attachments, which cannot be redacted. Names of
    tools and arguments stay."""
    if any(message.media for message in turn.messages):
        return None
    redaction = _Redaction(redact)
    try:
        return Exchange(
            messages=tuple([await redaction.message(message) for message in turn.messages]),
            tooling=None if turn.tooling is None else await redaction.tooling(turn.tooling),
            text=await redaction.text(turn.text),
            calls=await redaction.calls(turn.calls),
        )
    except _NotRedactedError:
        return None


class _NotRedactedError(Exception):
    """The redaction of a text failed."""


class _Redaction:
    """Redacts each different text once: a conversation repeats many."""

    def __init__(self, redact: RedactText) -> None:
        self._redact = redact
        self._known: dict[str, str] = {}

    async def text(self, text: str) -> str:
        if text and text not in self._known:
            redacted = await self._redact(text)
            if redacted is None:
                raise _NotRedactedError
            self._known[text] = redacted
        return self._known.get(text, "")

    async def message(self, message: Turn) -> Turn:
        made = Turn.of(
            message.role,
            await self.text(message.text),
            calls=await self.calls(message.calls),
            thoughts=await self.text(message.thoughts),
            call_id=message.call_id,
        )
        return message.with_blocks(made.blocks)

    async def calls(self, calls: tuple[Call, ...]) -> tuple[Call, ...]:
        redacted = []
        for call in calls:
            arguments = call.parsed_arguments()
            if isinstance(arguments, str):
                kept = await self.text(call.arguments)
            else:
                kept = json.dumps(await self.value(arguments), ensure_ascii=False)
            redacted.append(msgspec.structs.replace(call, arguments=kept))
        return tuple(redacted)

    async def tooling(self, tooling: Tooling) -> Tooling:
        tools = [
            msgspec.structs.replace(
                tool,
                description=None if tool.description is None else await self.text(tool.description),
                parameters=await self.value(tool.parameters, grammatical=_GRAMMATICAL),
            )
            for tool in tooling.tools
        ]
        return msgspec.structs.replace(tooling, tools=tuple(tools))

    async def value(self, value: Any, grammatical: tuple[str, ...] = ()) -> Any:
        """Return `value` with every text in it redacted, except names of fields and the fields `grammatical`."""
        if isinstance(value, str):
            return await self.text(value)
        if isinstance(value, list):
            return [await self.value(item, grammatical) for item in value]
        if isinstance(value, dict):
            return {
                name: field if _is_grammar(name, field, grammatical) else await self.value(field, grammatical)
                for name, field in value.items()
            }
        return value


def _is_grammar(name: str, value: Any, grammatical: tuple[str, ...]) -> bool:
    """Whether a field of a schema is a word of its language, not a property that has such a name."""
    return name in grammatical and not isinstance(value, dict)


def _num_bytes(message: Turn) -> int:
    media = sum(part.num_bytes * 4 // 3 for part in message.media)
    return len(message.text) + len(message.thoughts) + media + sum(len(call.arguments) for call in message.calls)


def _encoded_tools(tooling: Tooling | None) -> bytes:
    return b"" if tooling is None else msgspec.json.encode(tooling.tools, order="deterministic")


Label = Literal["no_worse", "worse", "tie", "uncertain"]
"""A verdict on an answer; "uncertain" says that opinions on it differ, and teaches nothing."""


class VerificationJob(msgspec.Struct, frozen=True, kw_only=True):
    """One pending verification with the texts it needs, as stored by the ledger."""

    verification_id: int
    request_id: str
    key_id: str | None
    purpose: Purpose
    served_tier: int
    """The tier that gave `answer`."""
    messages: list[dict[str, str]]
    answer: str
    attempts: int
    prompt_tokens: int = 0
    """Tokens of the prompt, as its server counts them."""
    completion_tokens: int = 0
    """Tokens of the answer, as its server counts them."""
    response_format: dict[str, Any] | None = None
    would_be_tier: int | None = None
    """The tier that routing would have chosen, if routing was only observed."""
    consent: Consent = ALL
    """The request's consent."""
    compared: VerifiedComparison | None = None
    """Cheap tiers whose answers are compared as well."""
    turn: Exchange | None = None
    """The request and its answer with tools and attachments, if it has any."""
    next_step: Literal["failed"] | None = None
    """"failed" if the caller's next request says that a call of it failed."""
    probability: float = 1.0
    """The probability with which it was drawn."""
    tenant: str = ""
    """The tenant who pays: the team of the key, else the key; "" without one."""


class Ruling(msgspec.Struct, frozen=True, kw_only=True):
    """The result of a verification for one tier."""

    tier: int
    model: str
    verifier_tier: int
    verifier_model: str
    label: Label | None
    """None, with a reason, if nothing may be learned."""
    judge: str | None
    judge_reliability: float | None
    scores: dict[str, float]
    verifier_answer: str | None
    """The reference: the answer of `verifier_tier`."""
    reason: str
    cost_usd: float
    judged_answer: str | None = None
    """What `tier` answered to the verification, for `judged_cost_usd`; None if its answer was the served one."""
    judged_cost_usd: float | None = None
    opinions_usd: float | None = None
    """The part of `cost_usd` that further opinions on a verdict of "worse" cost; None if none was asked for."""
    compared: VerifiedComparison | None = None
    """What came of the cheap answers that were compared, for part of `cost_usd`."""
    judging: str | None = None
    """The fingerprint of the model that was asked to judge."""

    @property
    def teaches(self) -> bool:
        """Whether something can be learned from the verdict."""
        return self.label not in (None, UNCERTAIN)


class Depth(msgspec.Struct, frozen=True, kw_only=True):
    """Counts of waiting rows, and among the newest `quality.estimates.verified_sample.NEWEST` rows of those done,
    failed, done with a label that teaches, and done with an uncertain one."""

    pending: int
    done: int
    failed: int
    labelled: int
    uncertain: int = 0
