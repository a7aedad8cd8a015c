"""One model of a core with its tokeniser: from requests to token ids, and from outputs to deltas.

A Prompt has the tokens of one request as a model reads it, rendered and encoded on first use and then cached.
"""

import asyncio
import itertools
import logging
import os
import re
import time
from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence, Set
from contextlib import AsyncExitStack, aclosing
from typing import TypeVar

import msgspec

from inference_core.errors import CoreGoneError, CoreLostError, InvalidRequestError, QueueFullError
from inference_core.protocol import LAST_CLASS, NO_TIMES, AddRequest, SamplingParams, SequenceOutput, StepTimes
from inference_core.protocol.commands import Evidence
from inference_core.tokenization.tokenizer import Piece, StopStrings, Tokenizer
from inference_core.transport.client import CoreClient
from tiers.catalog.tier_spec import CallDialectName
from tiers.conversation import Turn
from tiers.dialects.written.tool_calling import ToolCalling
from tiers.errors import (
    InvalidAnswerError,
    TierContextError,
    TierError,
    TierLostError,
    TierRequestError,
    TierUnavailableError,
)
from tiers.local.choice_detokenizer import ChoiceDetokenizer
from tiers.local.text_threads import TextThreads
from tiers.tier import AnswerEnd, Delta, GenerationRequest, ModelRequest, Sent, Usage


class Prompt(ABC):
    """For one thread at a time. All methods raise `TierRequestError` for what the model cannot read."""

    @property
    @abstractmethod
    def is_encoded(self) -> bool:
        """Whether `ids` and `count` are immediate; else they take time in proportion to the text."""

    @abstractmethod
    def ids(self) -> list[int]:
        """Return the tokens; at least one."""

    @abstractmethod
    def count(self, most: int) -> int:
        """Return the number of tokens; above `most` it may be any number between `most` and the true one."""

    @abstractmethod
    def give_up(self) -> None:
        """Mark the request as ended before encoding: it counts no tokens, because no model has read it."""


class TokenPrompt(Prompt):
    """Token ids given by the caller, which must be below `vocabulary`."""

    is_encoded = True

    def __init__(self, ids: list[int], vocabulary: int) -> None:
        self._ids, self._vocabulary = ids, vocabulary

    def ids(self) -> list[int]:
        bad = [token for token in self._ids if not 0 <= token < self._vocabulary]
        if bad:
            raise TierRequestError(
                f"prompt: token ids {bad[:5]} are not below the vocabulary size {self._vocabulary}", "prompt"
            )
        return _some(self._ids)

    def count(self, most: int) -> int:
        return len(self._ids) if len(self._ids) > most else len(self.ids())

    def give_up(self) -> None:
        """See `Prompt`: there is nothing to encode."""


class TextPrompt(Prompt):
    """The result of `render`: text, and the control tokens in it. `marked`: prepend the tokens that the model's file
    asks for. `param`: the caller's name for the text."""

    def __init__(
        self, tokenizer: Tokenizer, render: Callable[[], Sequence[Piece]], *, marked: bool, param: str
    ) -> None:
        self._tokenizer, self._render, self._marked, self._param = tokenizer, render, marked, param
        self._pieces: Sequence[Piece] | None = None
        self._least: int | None = None
        self._length: int | None = None
        self._ids: list[int] | None = None
        self._refusal: tuple[str, str] | None = None

    @property
    def is_encoded(self) -> bool:
        return self._ids is not None or self._refusal is not None

    def ids(self) -> list[int]:
        if self._ids is None:
            self._attempt(self._encode)
        return _some(self._ids or [])

    def count(self, most: int) -> int:
        """See `Prompt`. Text with too many bytes for `most` tokens is not encoded."""
        if self._length is None and (self._least is None or self._least <= most):
            self._attempt(lambda: self._count(most))
        return (self._least or 0) if self._length is None else self._length

    def give_up(self) -> None:
        if not self.is_encoded:
            self._length = 0

    def _count(self, most: int) -> None:
        if self._least is None:
            self._least = self._tokenizer.least_tokens(self._rendered())
        if self._least <= most:
            self._encode(most)

    def _encode(self, most: int | None = None) -> None:
        encoded = self._tokenizer.encode_pieces(self._rendered(), add_special_tokens=self._marked)
        self._length = len(encoded)
        # A list of tokens above the limit is of no use.
        if most is None or self._length <= most:
            self._ids, self._pieces = encoded.ids(), None

    def _rendered(self) -> Sequence[Piece]:
        if self._pieces is None:
            self._pieces = self._render()
        return self._pieces

    def _attempt(self, work: Callable[[], None]) -> None:
        """Encode once; a cached error is raised again without work."""
        if self._refusal is None:
            try:
                return work()
            except InvalidRequestError as error:
                self._refusal = str(error), error.param or self._param
        raise TierRequestError(*self._refusal)


def _some(ids: list[int]) -> list[int]:
    if not ids:
        raise TierRequestError("prompt: must not be empty", "prompt")
    return ids


T = TypeVar("T")

log = logging.getLogger(__name__)

_serial = itertools.count()

MOST_RESUMES = 2
"""Losses of a core that an answer may outlive: it may be their cause."""
RETURN_SECONDS, LOOK_SECONDS = 30.0, 0.05
"""How long an answer waits for a core that is started again, and the pause between two looks."""


class Decoder:
    """The base of all decoding policies. `max_context` is in tokens, `max_tokens` bounds one request's output, and
    `default_max_tokens` that of a request without its own bound. `threads`: encode long prompts."""

    def __init__(
        self,
        core: CoreClient,
        model: str,
        tokenizer: Tokenizer,
        *,
        max_context: int,
        max_tokens: int,
        default_max_tokens: int | None = None,
        tier: str,
        tool_dialect: CallDialectName | None = None,
        threads: TextThreads | None = None,
    ) -> None:
        self.tokenizer = tokenizer
        self.calling = _calling(tokenizer, tool_dialect, tier)
        self.max_context = max_context
        self.threads = threads or TextThreads()
        self._core, self._model, self._tier = core, model, tier
        self._max_tokens, self._default_max_tokens = max_tokens, default_max_tokens or max_tokens

    def prompt(self, request: GenerationRequest, instruction: str = "") -> Prompt:
        """Return the request's prompt, with `instruction` at the end of the last user turn of a chat; cached and shared
        by all tiers that read it in the same way."""
        if isinstance(request.prompt, list):
            return TokenPrompt(request.prompt, self.tokenizer.vocab_size)
        key = self.tokenizer, instruction, request.request_id
        prompt = request.prompts_read.get(key)
        if prompt is None:
            prompt = request.prompts_read[key] = self._prompt(request, instruction)
        return prompt

    def _prompt(self, request: ModelRequest, instruction: str) -> Prompt:
        if request.messages is None:
            text = str(request.prompt)
            return TextPrompt(self.tokenizer, lambda: self.tokenizer.text_pieces(text), marked=True, param="prompt")
        return TextPrompt(self.tokenizer, lambda: self._chat(request, instruction), marked=False, param="messages")

    def _chat(self, request: ModelRequest, instruction: str) -> list[Piece]:
        """Format messages and tools by the model's chat template, up to the start of the assistant's turn."""
        messages = request.messages
        if not messages:
            raise InvalidRequestError("messages: must not be empty", "messages")
        begun = ""
        if request.continues:
            *messages, last = messages
            begun = last.text
        if instruction:
            messages = _instructed(messages, instruction)
        turns, tools = self.calling.turns(messages, request.tooling)
        variables = request.template_variables
        if request.reasoning_effort is not None:
            variables = {"reasoning_effort": request.reasoning_effort} | variables
        pieces = self.tokenizer.chat_pieces(turns, add_generation_prompt=True, **{**variables, "tools": tools})
        return [*pieces, begun] if begun else pieces

    def own_ids(self, text: str) -> list[int]:
        """Return tokens of a text from the catalogue: unlike user text, it may contain the model's control tokens."""
        controls = self.tokenizer.control_tokens
        if not controls:
            return self.tokenizer.encode(text)
        pieces = re.split(f"({'|'.join(map(re.escape, sorted(controls, key=len, reverse=True)))})", text)
        return [i for p in pieces if p for i in ([controls[p]] if p in controls else self.tokenizer.encode(p))]

    def room(self, request: ModelRequest, prompt_tokens: int) -> int:
        """Return how many tokens the request may generate, by its own limit, the tier's and the context's.

        Raises TierRequestError (`context_length_exceeded`) if the prompt leaves none, or, where it is only repeated,
        is longer than the context.
        """
        room = self.max_context - prompt_tokens
        least = 0 if request.echo else 1
        if room < (least if request.max_tokens == 0 else 1):
            param = "messages" if request.messages is not None else "prompt"
            raise TierContextError(
                f"{param}: {prompt_tokens} tokens do not fit tier '{self._tier}', whose context of {self.max_context} "
                "tokens must hold the prompt and at least one token of the answer; shorten the prompt",
                param,
                prompt_tokens=prompt_tokens,
                max_context=self.max_context,
            )
        limit = self._default_max_tokens if request.max_tokens is None else request.max_tokens
        if limit < least:
            raise TierRequestError(f"max_tokens: {limit} given, at least {least} is needed", "max_tokens")
        return min(room, limit, self._max_tokens)

    async def decode(
        self,
        request: GenerationRequest,
        prompt_ids: list[int],
        *,
        sampling: SamplingParams,
        max_tokens: int,
        n: int = 1,
        stop: tuple[str, ...] = (),
        include_stop: bool = False,
        dropped: Set[int] = frozenset(),
        reasoning: bool = False,
        drawn_from: int | None = None,
    ) -> AsyncGenerator[Delta, None]:
        """Continue `prompt_ids` n times; yield text deltas as they come, then one with the usage. Those from position
        `drawn_from` on were drawn by an earlier decoding (`AddRequest`).

        Closing the generator aborts the core's request. A stop string that ends a choice aborts that choice, and with
        the last one the request. So does an index in `dropped`, which the caller may add between two deltas: the tokens
        of such a choice so far are billed, and it yields nothing more. The request's meter counts drawn tokens, as
        `reasoning` tokens or as the answer's; the prompt counts once, with the first decoding for a request.
        """
        least, visible = sampling.min_tokens, self.calling.visible_controls(request)
        made = (self.tokenizer, stop, include_stop, least, visible, self.calling.stop_kind if visible else StopStrings)
        choices = _or_refuse("stop", lambda: [ChoiceDetokenizer(i, *made) for i in range(n)])
        unfinished = n
        tally = _Tally(choices, len(prompt_ids) if request.meter.is_empty else 0, reasoning=reasoning)
        command = self._command(request, prompt_ids, sampling, max_tokens, n, drawn_from)
        drawn: list[list[int]] = [[] for _ in range(n)] if sampling.grammar is not None else []
        try:
            async with AsyncExitStack() as stack:
                may = request.resumes if n == 1 and command.evidence is None else None
                started = self._core.generate(command) if may is None else self._resumed(command, request.sent, may)
                outputs = await stack.enter_async_context(aclosing(started))
                request.meter.add(tally.usage)
                # Tokens drawn before an early end, and buffered because the reader is slow, are used too.
                stack.callback(self._take_unread, command.request_id, choices)
                async for output in outputs:
                    choice = choices[output.index]
                    if output.finish_reason == "error" or (output.finish_reason == "abort" and not choice.finished):
                        raise self._refusal(request, output, drawn, started=tally.started)
                    if drawn:
                        drawn[output.index] += output.token_ids
                    tally.count(output)
                    was_finished = choice.finished
                    deltas = choice.push(output)
                    if choice.finished and not was_finished:
                        unfinished -= 1
                        if unfinished and output.finish_reason is None:
                            self._core.abort_choice(command.request_id, output.index)
                    if output.evidence is not None and output.evidence.state:
                        yield Delta(index=output.index, evidence=Evidence(output.evidence.state))
                    if output.prompt_logprobs:
                        yield Delta(index=output.index, prompt_logprobs=output.prompt_logprobs)
                    for delta in deltas:
                        yield delta
                    for left in [choices[i] for i in dropped if not choices[i].finished]:
                        left.leave()
                        unfinished -= 1
                        self._core.abort_choice(command.request_id, left.index)
                    if not unfinished:
                        break
        except CoreLostError as error:
            raise TierLostError(f"tier '{self._tier}': {error}") from error
        except (CoreGoneError, QueueFullError) as error:
            raise TierUnavailableError(f"tier '{self._tier}': {error}") from error
        except InvalidRequestError as error:
            raise _request_error(request, str(error), error.param) from error
        if unfinished:
            raise TierError(f"tier '{self._tier}': the core ended the request before its choices were finished")
        yield Delta(end=AnswerEnd(usage=tally.usage(), times=StepTimes.of_all(tally.times.values())))

    async def _resumed(
        self, command: AddRequest, sent: Sent, may: Callable[[int], Awaitable[bool]]
    ) -> AsyncGenerator[SequenceOutput, None]:
        """The outputs of `command`, over the loss of a core: another one, or the same once it is back, goes on after
        the tokens so far if it `may` read them again."""
        asked, drawn, cached, read, left = command, list[int](), None, 0, MOST_RESUMES
        while True:
            try:
                async with aclosing(self._core.generate(asked)) as outputs:
                    async for output in outputs:
                        drawn += output.token_ids
                        if read:
                            sent.read_again.append(read)
                            read = 0
                        cached = output.cached_tokens if cached is None else cached
                        output.cached_tokens = cached
                        yield output
                return
            except CoreGoneError:
                read = len(command.prompt_token_ids) + len(drawn)
                if not (drawn and left and await self._is_back() and await may(read)):
                    raise
            left -= 1
            log.warning("request %s: its core was lost; it goes on after %d tokens", command.request_id, len(drawn))
            asked = msgspec.structs.replace(command, drawn_token_ids=drawn.copy(), deadline=None, strict_deadline=False)

    async def _is_back(self) -> bool:
        """Wait for a core that can go on; returns whether there is one in time."""
        until = time.monotonic() + RETURN_SECONDS
        while self._core.gone is not None or self._model not in self._core.models:
            if time.monotonic() > until:
                return False
            await asyncio.sleep(LOOK_SECONDS)
        return self._core.models[self._model].resumes

    def _take_unread(self, request_id: str, choices: list[ChoiceDetokenizer]) -> None:
        for output in self._core.unread(request_id):
            choices[output.index].push(output)

    def _command(
        self,
        request: GenerationRequest,
        prompt_ids: list[int],
        sampling: SamplingParams,
        max_tokens: int,
        n: int,
        drawn_from: int | None,
    ) -> AddRequest:
        # One request may run on several tiers of a core, and in several phases, at the same time.
        request_id = f"{request.request_id}/{self._tier}/{os.getpid()}-{next(_serial)}"
        return AddRequest(
            request_id=request_id,
            model=self._model,
            prompt_token_ids=prompt_ids,
            sampling=msgspec.structs.replace(
                sampling, max_tokens=max_tokens, min_tokens=min(sampling.min_tokens, max_tokens)
            ),
            n=n,
            priority=min(request.priority, LAST_CLASS),
            idle=request.priority > LAST_CLASS,
            arrival=request.arrival or time.monotonic(),
            deadline=request.deadline,
            strict_deadline=request.strict_deadline,
            salt=request.salt,
            adapter=request.adapter,
            evidence=request.evidence,
            drawn_from=drawn_from,
        )

    def _refusal(
        self, request: GenerationRequest, output: SequenceOutput, drawn: list[list[int]], *, started: bool
    ) -> TierError:
        """`drawn`: the tokens of each choice so far, if they follow a grammar."""
        message = f"tier '{self._tier}': {output.error or 'the core gave the request up'}"
        if output.error_kind == "invalid_end":
            error = InvalidAnswerError(message)
            error.token_ids = tuple(drawn[output.index]) if drawn else ()
            return error
        if output.error_kind == "invalid":
            return _request_error(request, message, output.error_param)
        if output.error_kind == "overloaded" or not started:
            return TierUnavailableError(message)
        return TierError(message)


def calling_of(tokenizer: Tokenizer, dialect: CallDialectName | None = None) -> ToolCalling:
    """Return how a model's chats are written and read."""
    if "<|channel|>" in tokenizer.control_tokens:
        # Few vocabularies have it, and a process that serves none of them does without the format.
        from tiers.dialects.written.harmony import HarmonyFormat, speaks_harmony

        if speaks_harmony(tokenizer):
            return HarmonyFormat(tokenizer)
    return ToolCalling(tokenizer, dialect)


def _calling(tokenizer: Tokenizer, dialect: CallDialectName | None, tier: str) -> ToolCalling:
    calling = calling_of(tokenizer, dialect)
    if calling.shown is None and dialect is None and not calling.thinks:
        log.warning(
            "tier '%s': the model's chat template takes tools, and does not show how the model writes calls; they are "
            "read as %s models write them (tool_dialect in the catalogue names another way)",
            tier,
            calling.dialect.name,
        )
    return calling


class _Tally:
    """The usage of one command of the core so far, and the latest `times` of each choice.

    `prompt_tokens`: the prompt tokens billed with it.
    """

    def __init__(self, choices: list[ChoiceDetokenizer], prompt_tokens: int, *, reasoning: bool) -> None:
        self.started = False
        self._choices, self._prompt_tokens, self._reasoning = choices, prompt_tokens, reasoning
        self._cached_tokens = 0
        self.times: dict[int, StepTimes] = {}

    def count(self, output: SequenceOutput) -> None:
        self.started = True
        # The other choices reuse the prompt that the first one computed.
        if output.index == 0:
            self._cached_tokens = output.cached_tokens
        if output.times is not NO_TIMES:
            self.times[output.index] = output.times

    def usage(self) -> Usage:
        """Return the usage so far; tokens of a choice after its stop string do not count."""
        drawn = sum(choice.completion_tokens for choice in self._choices)
        return Usage(
            prompt_tokens=self._prompt_tokens,
            completion_tokens=drawn,
            cached_tokens=min(self._cached_tokens, self._prompt_tokens),
            reasoning_tokens=drawn if self._reasoning else 0,
        )


def _instructed(messages: list[Turn], instruction: str) -> list[Turn]:
    """Return `messages` with the instruction at the end of the last user turn, or as a system turn without one."""
    for i in reversed(range(len(messages))):
        if messages[i].role == "user":
            turn = messages[i].with_text(f"{messages[i].text}\n\n{instruction}")
            return [*messages[:i], turn, *messages[i + 1 :]]
    return [Turn.of("system", instruction), *messages]


def _or_refuse(param: str, make: Callable[[], T]) -> T:
    """Call `make`; convert errors of the core's parts to errors of the request."""
    try:
        return make()
    except InvalidRequestError as error:
        raise TierRequestError(str(error), error.param or param) from error


def _request_error(request: ModelRequest, message: str, param: str | None) -> TierRequestError:
    """Convert the core's error, with the caller's name for the field of the core's command."""
    if param == "prompt_token_ids":
        param = "messages" if request.messages is not None else "prompt"
        message = message.replace("prompt_token_ids", param)
    if param == "adapter":
        param = "model"
    return TierRequestError(message, param)
