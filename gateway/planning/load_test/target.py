"""The seam between a load and what answers it: a core in this process, or a server over HTTP."""

import contextlib
import time
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator
from itertools import count
from typing import Protocol

from gateway.planning.load_test.report import Timing
from gateway.planning.load_test.workload import Job
from inference_core.errors import CoreError, CoreGoneError
from inference_core.protocol import AddRequest, SamplingParams, SequenceOutput
from inference_core.transport.client import CoreClient


class AskError(Exception):
    """An answer that did not come: `kind` is counted, the message is for people."""

    def __init__(self, kind: str, message: str) -> None:
        super().__init__(message)
        self.kind = kind


class BenchTarget(ABC):
    """Contract: `ask` sends one greedy request whose answer has its full length and notes its times as they happen.

    `due` is when the request should have been sent, on `time.perf_counter()`. `api` names the target in its rows.
    """

    api: str

    @abstractmethod
    async def ask(self, job: Job, due: float, timing: Timing) -> None:
        """Fill in `timing` but for its end and its error. Raises `AskError`."""


class Encoder(Protocol):
    """The part of a tokeniser that a benchmark needs."""

    def encode(self, text: str, *, add_special_tokens: bool = False) -> list[int]: ...


class CoreTarget(BenchTarget):
    """A model of a core in this process. Tokenising the prompt counts into the times, as it does for any server."""

    api = "in-process"

    def __init__(self, client: CoreClient, tokenizer: Encoder, model: str) -> None:
        self.client = client
        self._tokenizer = tokenizer
        self._model = model
        self._numbers = count()

    def count_tokens(self, prompt: str) -> int:
        return len(self._tokenizer.encode(prompt, add_special_tokens=True))

    def _request(self, job: Job) -> AddRequest:
        return AddRequest(
            request_id=f"bench-{next(self._numbers)}",
            model=self._model,
            prompt_token_ids=self._tokenizer.encode(job.prompt, add_special_tokens=True),
            sampling=SamplingParams(temperature=0.0, max_tokens=job.output_tokens, ignore_eos=True),
            arrival=time.monotonic(),
            salt=job.salt,
        )

    async def ask(self, job: Job, due: float, timing: Timing) -> None:
        last = due
        try:
            async with contextlib.aclosing(self.client.generate(self._request(job))) as outputs:
                async for output in outputs:
                    last = _note(output, due, last, timing)
        except CoreGoneError as error:
            raise AskError("core gone", str(error)) from error
        except CoreError as error:
            raise AskError("refused", str(error)) from error

    async def pieces(self, job: Job) -> AsyncIterator[float]:
        """The times on `time.perf_counter()` at which pieces of one answer come. Raises `CoreError`."""
        async with contextlib.aclosing(self.client.generate(self._request(job))) as outputs:
            async for output in outputs:
                if output.finish_reason == "error":
                    raise CoreError(output.error or "the request failed")
                if output.token_ids:
                    yield time.perf_counter()


def _note(output: SequenceOutput, due: float, last: float, timing: Timing) -> float:
    """Take in one output; returns when text last came."""
    if output.token_ids:
        last = timing.note_text(time.perf_counter(), due, last)
        timing.output_tokens += len(output.token_ids)
    if output.finish_reason == "error":
        raise AskError(output.error_kind or "internal", output.error or "")
    if output.finish_reason is not None:
        timing.prompt_tokens, timing.has_usage = output.prompt_tokens, output.completion_tokens > 0
        timing.output_tokens = output.completion_tokens or timing.output_tokens
    return last
