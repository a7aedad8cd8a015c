"""The usage of one request on a remote server, choice by choice, as billed: the server's word within our own bounds.

A server may answer far more than any honest answer within its limit of tokens has, and not more than that. Where it
does not count an answer, because its caller has left, hidden thoughts are estimated.
"""

import json
import logging
import math
import re
from collections import deque
from collections.abc import Callable, Collection, Mapping
from functools import lru_cache
from typing import Any, Literal, NamedTuple

import msgspec

from inference_core.tokenization.prompt_size import BYTES_PER_TOKEN, TOKENS_PER_MESSAGE
from tiers.conversation import Dialect, ToolCallDelta
from tiers.errors import TierAnswerTooLongError
from tiers.prompt_bounds import SERVER_TOKENS, TOLERANCE, PromptBounds, least_tokens
from tiers.tier import USAGE_COUNTS, Delta, GenerationRequest, ModelRequest, Usage

log = logging.getLogger(__name__)

# Bytes of texts, thoughts, calls and log-probabilities by token. Four are usual; the longest tokens of known
# vocabularies, runs of spaces, have 128. Servers that take no notice of a small limit are given `SAID_BYTES` more.
SAID_BYTES_PER_TOKEN, SAID_BYTES, MOST_SAID_BYTES = 128, 64 * 1024, 16 * 2**20
# Bytes as sent: most servers repeat the answer's id and model in 250 to 1,000 bytes for each token.
WIRE_BYTES_PER_TOKEN, WIRE_BYTES, MOST_WIRE_BYTES, MOST_WHOLE_BYTES = 2048, 256 * 1024, 256 * 2**20, 64 * 2**20
# Each alternative of a token with log-probabilities has up to 150 bytes as sent, 10 commas, and is an object here.
LOGPROB_WIRE_BYTES, LOGPROB_SAID_BYTES = 512, 128
# A comma of JSON separates what becomes objects: bytes of nothing else are as expensive. Texts have some, too.
COMMAS, COMMAS_PER_TOKEN, COMMAS_PER_LOGPROB, UNCOUNTED_JSON_BYTES = 4096, 32, 16, 32 * 1024
MOST_CALLS = 512
"""Tool calls of a choice."""


class AnswerBounds(NamedTuple):
    """Bounds of what a server may send in an answer."""

    wire: int
    """Bytes of a streamed answer as sent."""
    whole: int
    """Bytes of an answer in one piece."""
    said: int
    """Bytes of the answer's text."""
    commas: int
    """Commas of one event, or of a whole answer."""
    tokens: int
    """The tokens from which all this follows."""

    def require_json(self, data: bytes) -> None:
        """Check an event or a whole answer before it becomes objects. Raises `TierAnswerTooLongError`."""
        if len(data) > UNCOUNTED_JSON_BYTES and (commas := data.count(b",")) > self.commas:
            raise TierAnswerTooLongError(self._excess(f"{commas:,} values in one event", self.commas))

    def require_wire(self, size: int, most: int) -> None:
        """Check the `size` of what has arrived. Raises `TierAnswerTooLongError`."""
        if size > most:
            raise TierAnswerTooLongError(self._excess("more bytes", most))

    def require_said(self, size: int) -> None:
        """Check the `size` of what was said. Raises `TierAnswerTooLongError`."""
        if size > self.said:
            raise TierAnswerTooLongError(self._excess("more bytes of text", self.said))

    def _excess(self, what: str, most: int) -> str:
        return f"the server answered {what} than the {most:,} that {self.tokens:,} tokens may have; it was cut off"


@lru_cache(1024)
def bounds_of(n: int, limit: int, logprobs: int | None, *, cumulative: bool = False) -> AnswerBounds:
    """Return the bounds of an answer with `n` choices of at most `limit` tokens. `logprobs`: the alternatives of each
    token that were asked for. `cumulative`: each event repeats the text before it."""
    tokens = n * limit
    scored = 0 if logprobs is None else 1 + logprobs
    said = SAID_BYTES + tokens * (SAID_BYTES_PER_TOKEN + scored * LOGPROB_SAID_BYTES)
    each = WIRE_BYTES_PER_TOKEN + scored * LOGPROB_WIRE_BYTES
    wire = WIRE_BYTES + tokens * each
    return AnswerBounds(
        wire=wire + tokens * limit * SAID_BYTES_PER_TOKEN if cumulative else min(wire, MOST_WIRE_BYTES),
        whole=min(wire, MOST_WHOLE_BYTES),
        said=min(said, MOST_SAID_BYTES * (1 + scored)),
        commas=COMMAS + tokens * (COMMAS_PER_TOKEN + scored * COMMAS_PER_LOGPROB),
        tokens=tokens,
    )


# What a log-probability counts as output.
LOGPROB_BYTES = 64
# `json.dumps` makes an encoder for each tool of each request.
_TOOL_ENCODER = json.JSONEncoder(check_circular=False)
# The name of a tool with what gpt-oss, Kimi and Gemini were seen to write around it.
_AROUND = re.compile(
    r"[\s\"'`]*(?:functions?[.:]|tools?[.:]|default_api[.:])?([\w.:-]+?)(?::\d+|\s*<\|.*)?[\s\"'`]*(?:\(\))?", re.DOTALL
)
# Where nothing else bounds a count.
MOST_TOKENS = 2**31 - 1
MOST_NAME = MOST_EXTRAS = 32
"""Characters of a server's name for a class of service that are kept, and the most things that it may bill besides
tokens."""


class Tally:
    """The streamed output of each choice, for the order of deltas and for billing at any moment of the answer."""

    reported: Usage | None = None
    """The server's own counts so far, as far as they are possible: of the prompt within `bounds`, of the output at most
    the limit.
    """
    claimed: Usage | None = None
    """The same counts as the server said them."""
    max_tokens: int = 0
    """The most output tokens of a choice, sent to the server or not; 0 before the request."""
    hidden: int = 0
    """An estimate of the thoughts that were not shown, for an answer whose tokens the server has not counted."""
    sent_at: float = 0.0
    """When the request was sent, by the tier's clock."""
    streamed: bool = False
    """Whether the answer comes in pieces."""
    over: bool = False
    """Whether the answer has ended."""
    tool_names: Collection[str] = ()
    """Names of tools as they were sent."""
    heard: str | None = None
    """All text of a server with a single choice; None before the first text."""
    sent: bool = False
    """Whether the request is on its way to the server."""
    scored: bool = False
    """Whether log-probabilities were asked for; others are dropped."""
    joins_characters: bool = False
    """Whether halves of characters were seen."""
    opaque: bool = False
    """Whether the answer is wanted as the server's dialect has it, too."""
    form: Dialect | Literal["chat"] | None = None
    """The dialect of `opaque`, where a wire has several."""
    _bounds: PromptBounds | None = None
    # Bytes of all texts, thoughts and calls, and of other output.
    _size = _thought_size = _beside = 0
    _covered = False

    def __init__(self, n: int, prompt_tokens: int, bounds: Callable[[], PromptBounds] | None = None) -> None:
        self.unfinished = set(range(n))
        self.prompt_tokens = self._own_prompt_tokens = prompt_tokens
        """Our estimate of the prompt."""
        self.notes: dict[Any, Any] = {}
        """What a wire remembers of the answer between its events."""
        self.n = n
        self.find_bounds = bounds
        """Finds the bounds of the prompt. None once no more is reported, because it holds the request, whose meter
        holds this count.
        """
        self.texts: dict[int, list[str]] = {}
        """The pieces of each choice's text."""
        # Bytes by choice; with a server that reports counts, those since its last report.
        self._text: dict[int, int] = {}
        self._reasoning: dict[int, int] = {}
        self.further: list[Tally] = []
        """The counts of further requests for choices that the server left out."""
        self.extras: dict[str, int] = {}
        """See `Usage.extras`."""
        # The last finish reason of each choice: some servers send one early, or with every event.
        self._ends: dict[int, Delta] = {}
        self._spoken: set[int] = set()
        self._calling: set[int] = set()
        self._without_arguments: set[tuple[int, int]] = set()

    @property
    def has_spoken(self) -> bool:
        """Whether the server has sent output or counts, so that it has read the prompt."""
        return self.reported is not None or bool(self._text)

    @property
    def said(self) -> int:
        """Bytes of all output so far, scores and ids included."""
        return self._size + self._beside

    def report(self, usage: Usage) -> None:
        """Store the server's counts so far, which include the event that carried them; impossible ones are bounded."""
        self.claimed, self._covered = usage, True
        prompt, completion = self._possible_prompt(usage.prompt_tokens), _within(usage.completion_tokens, self._limit)
        cached = usage.cached_tokens and _within(usage.cached_tokens, prompt)
        written = usage.cache_write_tokens and _within(usage.cache_write_tokens, prompt - cached)
        self.reported = Usage(
            prompt_tokens=prompt,
            completion_tokens=completion,
            cached_tokens=cached,
            cache_write_tokens=written,
            cache_write_1h_tokens=usage.cache_write_1h_tokens and _within(usage.cache_write_1h_tokens, written),
            reasoning_tokens=usage.reasoning_tokens and _within(usage.reasoning_tokens, completion),
            cost_usd=usage.cost_usd,
        )

    def note_counted(self) -> None:
        """Say that the server's last count includes what is passed on next."""
        self._covered = True

    def note_extras(self, uses: Mapping[str, int | None]) -> None:
        """Store how often the server says that what it bills besides tokens was used."""
        for name, count in uses.items():
            if count and (name in self.extras or len(self.extras) < MOST_EXTRAS):
                self.extras[name] = _within(count, MOST_TOKENS)
            elif count == 0:
                self.extras.pop(name, None)

    @property
    def is_counted(self) -> bool:
        """Whether the server has counted all that was heard of it."""
        return self.reported is not None and not any(self._text.values()) and not any(self._reasoning.values())

    @property
    def is_settled(self) -> bool:
        """Whether the answer has ended and the server has counted it."""
        return self.over and self.is_counted

    @property
    def has_answered(self) -> bool:
        """Whether text or calls were heard, so that the thoughts before them have ended."""
        return bool(self.texts or self._calling)

    @property
    def has_thought(self) -> bool:
        """Whether there were thoughts."""
        return self._thought_size > 0

    @property
    def own_count(self) -> tuple[int, int]:
        """Return our estimate of the tokens of all that was heard, and of the thoughts among that."""
        return math.ceil(self._size / BYTES_PER_TOKEN), math.ceil(self._thought_size / BYTES_PER_TOKEN)

    def read_prompt(self, tokens: int) -> None:
        """Take the server's count of the prompt in place of our estimate."""
        self.prompt_tokens = self._possible_prompt(tokens)

    def passed(self, deltas: list[Delta]) -> list[Delta]:
        """Return those of an event's `deltas` that may be passed on, and count them. Finish reasons wait for `ended`,
        and choices that were not asked for are dropped. Raises `TierAnswerTooLongError` for too many calls."""
        passed, text, unfinished = [], self._text, self.unfinished
        for delta in deltas:
            index = delta.index
            if index not in unfinished:
                continue
            if delta.finish_reason is not None:
                self._ends[index] = delta
                continue
            passed.append(delta)
            size = len(delta.text.encode())
            if size:
                self.texts.setdefault(index, []).append(delta.text)
            if delta.reasoning:
                thought = len(delta.reasoning.encode())
                self._reasoning[index] = self._reasoning.get(index, 0) + thought
                self._thought_size += thought
                self._size += thought
            if delta.tool_calls and self.tool_names:
                delta.tool_calls = [self._called(call) if call.name else call for call in delta.tool_calls]
            for call in delta.tool_calls:
                if not 0 <= call.index < MOST_CALLS:
                    raise TierAnswerTooLongError(f"the server answered more than {MOST_CALLS} tool calls")
                size += len((call.name + call.arguments).encode())
                self._beside += len(call.id)
                self._calling.add(index)
                if call.arguments:
                    self._without_arguments.discard((index, call.index))
                elif call.name:
                    self._without_arguments.add((index, call.index))
            text[index] = text.get(index, 0) + size
            self._size += size
            if delta.logprobs is not None:
                self._count_logprobs(delta)
            if delta.annotations is not None:
                self._beside += sum([len(citation.url) + len(citation.title) for citation in delta.annotations])
        if self._covered:
            if len(self._spoken) < self.n:
                self._note_spoken()
            text.clear()
            self._reasoning.clear()
            self._covered = False
        return passed

    def _called(self, call: ToolCallDelta) -> ToolCallDelta:
        """Return a call by its tool's name, where the model has put words of its template around it."""
        if call.name in self.tool_names or (match := _AROUND.fullmatch(call.name)) is None:
            return call
        return msgspec.structs.replace(call, name=match[1]) if match[1] in self.tool_names else call

    def ended(self, *, marked: bool) -> list[Delta]:
        """Return the last deltas of the choices that have ended. `marked`: the server said that the answer is whole, so
        that a choice which said something has ended without a reason, too."""
        if self._text:
            self._note_spoken()
        deltas: list[Delta] = []
        for index in sorted(self.unfinished):
            end = self._ends.pop(index, None)
            if end is None:
                if not (marked and index in self._spoken):
                    continue
                end = Delta(index=index, finish_reason="stop")
            if end.finish_reason in ("stop", "tool_calls"):
                # Whatever the server calls it: clients run the calls that are there, and wait for no others.
                end.finish_reason = "tool_calls" if index in self._calling else "stop"
            if end.finish_reason == "tool_calls" and self._without_arguments:
                calls = sorted(call for choice, call in self._without_arguments if choice == index)
                pieces = [ToolCallDelta(index=call, arguments="{}") for call in calls]
                deltas += [Delta(index=index, tool_calls=pieces)] if pieces else []
            self.unfinished.discard(index)
            deltas.append(end)
        return deltas

    def is_over(self, index: int) -> bool:
        """Whether the server has said why the choice ended."""
        return index in self._ends

    def reason(self, index: int) -> str | None:
        """Why the choice ended, as far as the server has said it."""
        end = self._ends.get(index)
        return None if end is None else end.finish_reason

    def _note_spoken(self) -> None:
        for index, size in self._text.items():
            if size or self._reasoning.get(index):
                self._spoken.add(index)

    @property
    def is_ended(self) -> bool:
        """Whether the server has said of every choice why it ended."""
        return not self.unfinished - self._ends.keys()

    @property
    def left_out(self) -> list[int]:
        """The choices of which nothing has come, where others have ended."""
        return sorted(self.unfinished - self._spoken) if len(self.unfinished) < self.n else []

    def _count_logprobs(self, delta: Delta) -> None:
        if not self.scored:
            delta.logprobs = None
        for token in delta.logprobs or ():
            self._beside += LOGPROB_BYTES * (1 + len(token.top)) + len(token.token)

    def usage(self) -> Usage:
        """Return the server's last reported counts plus an estimate of the output since then, at four bytes per token,
        and of hidden thoughts.

        The output is at most the limit. Where the counts are too few for the text that was heard, our own count is
        billed instead. Nothing is used before the request is sent.
        """
        if self.further:
            return Usage.total([self._usage(), *(tally.usage() for tally in self.further)])
        return self._usage()

    def _usage(self) -> Usage:
        if not self.sent:
            return Usage()
        usage = self.reported or Usage(prompt_tokens=self.prompt_tokens)
        if self._text:
            reasoning = _tokens(self._reasoning)
            unreported = min(reasoning + _tokens(self._text), max(0, self._limit - usage.completion_tokens))
            usage = msgspec.structs.replace(
                usage,
                completion_tokens=usage.completion_tokens + unreported,
                reasoning_tokens=usage.reasoning_tokens + min(reasoning, unreported),
            )
        if usage.completion_tokens < least_tokens(self._size):
            own = min(math.ceil(self._size / BYTES_PER_TOKEN), self._limit)
            usage = msgspec.structs.replace(usage, completion_tokens=own)
        if self.extras:
            usage = msgspec.structs.replace(usage, extras=dict(self.extras))
        if self.is_settled:
            return usage
        hidden = min(self.hidden, max(0, self._limit - usage.completion_tokens))
        return msgspec.structs.replace(
            usage,
            completion_tokens=usage.completion_tokens + hidden,
            reasoning_tokens=usage.reasoning_tokens + hidden,
            cost_usd=0.0 if hidden or not self.is_counted else usage.cost_usd,
            estimated=True,
        )

    def impossible_claim(self) -> Usage | None:
        """Return the server's own counts, at most 2³¹ - 1, if they are not what is billed, because no honest tokeniser
        counts so; too few tokens of an answer show at its end only."""
        claimed, reported = self.claimed, self.reported
        if claimed is None or reported is None:
            return None
        too_few = not self.unfinished and claimed.completion_tokens < least_tokens(self._size)
        same = claimed.prompt_tokens == reported.prompt_tokens
        same = same and claimed.completion_tokens == reported.completion_tokens
        if same and not too_few:
            return None
        # A record holds no number beyond a machine word.
        return msgspec.structs.replace(claimed, **{name: _signed(getattr(claimed, name)) for name in USAGE_COUNTS})

    def streamed_tokens(self) -> int | None:
        """Return the server's count of the tokens that it streamed, without thoughts that it kept to itself; None if it
        has not counted all of them."""
        if self.reported is None or not self.is_counted:
            return None
        hidden = 0 if self.has_thought else self.reported.reasoning_tokens
        return (self.reported.completion_tokens - hidden) or None

    @property
    def _limit(self) -> int:
        """The most output tokens of all choices, hidden thoughts included; what was held for the request is no less."""
        return self.n * self.max_tokens or MOST_TOKENS

    def _possible_prompt(self, tokens: int) -> int:
        """Return the server's count of the prompt; the most that is possible if it is more, our own if it is less than
        the least. Most counts are near our estimate: then the bounds, which are wider, are not computed."""
        own = self._own_prompt_tokens
        if own // TOLERANCE < tokens <= own + SERVER_TOKENS:
            return tokens
        if self._bounds is None:
            self._bounds = PromptBounds(1, MOST_TOKENS) if self.find_bounds is None else self.find_bounds()
        return own if tokens < self._bounds.least else min(tokens, self._bounds.most)


def estimated_prompt_tokens(request: ModelRequest) -> int:
    """Return our estimate: four UTF-8 bytes per token, four tokens per message, and those of images, audio and files
    (`tiers.conversation`)."""
    size = _text_tokens(request.prompt) if isinstance(request.prompt, str) else 0
    for message in request.messages or ():
        size += TOKENS_PER_MESSAGE + _text_tokens(message.text + message.thoughts)
        if message.media:
            size += message.media_tokens
        for call in message.calls:
            size += _text_tokens(call.name + call.arguments)
    for tool in () if request.tooling is None else request.tooling.tools:
        size += _text_tokens(_TOOL_ENCODER.encode(tool.definition()))
    return max(1, size)


def _text_tokens(text: str) -> int:
    size = len(text) if text.isascii() else len(text.encode("utf-8", errors="replace"))
    return math.ceil(size / BYTES_PER_TOKEN)


def _signed(count: int) -> int:
    return max(-MOST_TOKENS, min(count, MOST_TOKENS))


def _within(count: int, most: int) -> int:
    return count if 0 <= count <= most else (0 if count < 0 else most)


def _tokens(sizes: dict[int, int]) -> int:
    return sum(math.ceil(size / BYTES_PER_TOKEN) for size in sizes.values())


class ImpossibleClaims:
    """Notes counts of one server that cannot be. `where`: its name in the log."""

    def __init__(self, where: str) -> None:
        self._where, self._is_known = where, False

    def note(self, request: GenerationRequest, tally: Tally) -> None:
        """Note such counts of an answer for its record; log them, the first as a warning: a server that counts wrongly
        does so in every answer."""
        if (claimed := tally.impossible_claim()) is None:
            return
        request.meter.claims.append(claimed)
        billed = tally.usage()
        level, self._is_known = logging.DEBUG if self._is_known else logging.WARNING, True
        log.log(
            level,
            "%s: request %s: the server counts %d tokens of the prompt and %d of the answer, which cannot be; "
            "%d and %d are billed; more such counts are logged at level debug",
            self._where, request.request_id, claimed.prompt_tokens, claimed.completion_tokens,
            billed.prompt_tokens, billed.completion_tokens,
        )  # fmt: skip


HidesThoughts = Literal["no", "asked", "always"]
USUAL_TOKENS = 3_000
"""Hidden tokens of a choice at medium effort."""
SHARES = {"minimal": 0.1, "low": 0.2, "medium": 0.5, "high": 0.8, "xhigh": 0.95, "max": 0.95}
USUAL_SPEED, MOST_SPEED = 100.0, 3_000.0
"""Tokens per second of a choice: usual for reasoning models of providers, and of the fastest hardware
(https://artificialanalysis.ai/leaderboards/models)."""
REMEMBERED = 64
"""Counted answers of each effort."""


class _Counted(NamedTuple):
    """Tokens of a choice of a counted answer, those of them that were hidden, and the answer's seconds."""

    hidden: float
    tokens: float
    seconds: float


class HiddenThoughts:
    """What the newest counted answers of one model had of thoughts that it bills and does not show, by effort.

    Before there are any, an estimate follows from what providers publish: a model generates "from a few hundred to tens
    of thousands" of reasoning tokens (https://platform.openai.com/docs/guides/reasoning), whose geometric mean is about
    3,000, and efforts stand for shares of an answer (https://openrouter.ai/docs/use-cases/reasoning-tokens).
    """

    def __init__(self) -> None:
        self._counted: dict[str | None, deque[_Counted]] = {}

    def note(self, request: GenerationRequest, tally: Tally, seconds: float) -> None:
        """Remember an answer that the server has counted. Half of what it counts beyond our own count is no evidence of
        thoughts: its tokeniser may make more tokens of a text than one of four bytes each."""
        counted = tally.reported
        if counted is None:
            return
        own, shown = tally.own_count
        hidden = max(counted.reasoning_tokens - shown, counted.completion_tokens - 2 * own, 0) / tally.n
        answers = self._counted.setdefault(request.reasoning_effort, deque(maxlen=REMEMBERED))
        answers.append(_Counted(hidden, counted.completion_tokens / tally.n, seconds))

    def estimate(
        self, request: GenerationRequest, tally: Tally, hides: HidesThoughts, seconds: float, *, bills_on: bool
    ) -> int:
        """Return the hidden tokens of an answer that was left after so many seconds. `bills_on`: it is billed to its
        end; else, if neither text nor calls have come, the model has thought for no longer than until then."""
        counted = tally.reported
        if counted is not None and tally.has_answered and tally.is_counted:
            # The server counts with every event, thoughts included.
            return 0
        answers = self._counted.get(request.reasoning_effort)
        if answers:
            tokens = sum(answer.hidden for answer in answers) / len(answers)
            most = max(answer.hidden for answer in answers)
            spent = sum(answer.seconds for answer in answers)
            speed = min(MOST_SPEED, sum(answer.tokens for answer in answers) / spent) if spent else MOST_SPEED
        else:
            tokens = most = _usual(request, hides)
            speed = USUAL_SPEED
        if not bills_on and not tally.has_answered:
            tokens = min(seconds * speed, most)
        _, shown = tally.own_count
        return max(0, round(tokens * tally.n) - shown)


def _usual(request: ModelRequest, hides: HidesThoughts) -> float:
    """Return the hidden tokens of a choice before any answer was counted."""
    effort, budget = request.reasoning_effort, request.reasoning_budget
    if hides == "no" or effort == "none" or budget == 0 or (hides == "asked" and effort is None and budget is None):
        return 0.0
    tokens = USUAL_TOKENS * SHARES[effort or "medium"] / SHARES["medium"]
    return tokens if budget is None else min(tokens, budget)
