"""What models are asked: chat, code, JSON, long answers, copies, and own prompts, each a workload (SPEC TB-06)."""

import hashlib
import importlib.util
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from pathlib import Path

import msgspec

from benchmarks.core.mixed_load import ORDERS, copy_prompt
from benchmarks.report.measurement import read_prompts
from gateway.planning.load_test.run import CoreTarget
from gateway.planning.load_test.workload import Job
from inference_core.protocol import AddRequest, Grammar, SamplingParams
from inference_core.tokenization.tokenizer import Tokenizer
from inference_core.transport.client import CoreClient

_ASKED: dict[str, list[str]] = msgspec.toml.decode((files("benchmarks.core") / "workloads.toml").read_bytes())
# Each excerpt, after the imports and the first docstring.
_FIRST_LINE, _CODE_LINES = 120, 40
_MOST_OWN_PROMPTS = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """Requests of one kind: the `prompt` of each number, as a chat or as text to be continued.

    Answers have `answer_tokens`, or end before where the model ends them if `full_length` is False. A load has
    `requests`, or `per_level` for each in flight if that is more. With a `temperature`, a request's number is its seed.
    """

    name: str
    prompt: Callable[[int], str]
    answer_tokens: int
    is_chat: bool = True
    full_length: bool = True
    temperature: float = 0.7
    grammar: Grammar | None = None
    requests: int = 8
    per_level: int = 1

    def jobs(self, seed: int, level: int, *, requests: int | None, most_tokens: int, salt: str) -> list[Job]:
        """The jobs of a load with `level` in flight, the same for the same seed."""
        count = max(requests or self.requests, self.per_level * level)
        tokens = min(self.answer_tokens, most_tokens)
        return [self._job(seed + number, tokens, f"{salt}, {number}") for number in range(count)]

    def _job(self, number: int, tokens: int, salt: str) -> Job:
        sampling = SamplingParams(
            temperature=self.temperature,
            seed=number if self.temperature else None,
            max_tokens=tokens,
            # A grammar says itself when an answer is complete.
            ignore_eos=self.full_length and self.grammar is None,
            grammar=self.grammar,
        )
        return SampledJob(self.prompt(number), tokens, salt=salt, sampling=sampling, is_chat=self.is_chat)


@dataclass(frozen=True, slots=True, kw_only=True)
class SampledJob(Job):
    """A job that says how it is sampled, and whether its prompt is a message of a chat."""

    sampling: SamplingParams
    is_chat: bool


class WorkloadTarget(CoreTarget):
    """Asks each job as it says: through the chat template, at a temperature with a seed, in a grammar."""

    def __init__(self, client: CoreClient, tokenizer: Tokenizer, model: str) -> None:
        super().__init__(client, tokenizer, model)
        self._chat = tokenizer
        self.model = model

    def _request(self, job: Job) -> AddRequest:
        request = super()._request(job)
        if not isinstance(job, SampledJob):
            return request
        prompt = request.prompt_token_ids
        if job.is_chat:
            prompt = self._chat.encode_chat([{"role": "user", "content": job.prompt}])
        return msgspec.structs.replace(request, prompt_token_ids=prompt, sampling=job.sampling)


def code_prompt(number: int) -> str:
    """The excerpt of this number: lines of a module of the running Python's standard library."""
    lines = _source(_asked("modules", number))
    first = _FIRST_LINE + number // len(_ASKED["modules"]) * 20 % max(1, len(lines) - _FIRST_LINE - _CODE_LINES)
    return "\n".join(lines[first : first + _CODE_LINES]) + "\n"


@cache
def _source(module: str) -> list[str]:
    spec = importlib.util.find_spec(module)
    if spec is None or spec.origin is None:
        raise ValueError(f"the standard library has no source of {module}")
    return Path(spec.origin).read_text(encoding="utf-8").splitlines()


def _asked(kind: str, number: int) -> str:
    """The one of this number, from the beginning again after the last."""
    return _ASKED[kind][number % len(_ASKED[kind])]


def _question(number: int) -> str:
    return _asked("questions", number)


def _long_request(number: int) -> str:
    return f"Write a long report in many chapters about {_asked('subjects', number)}."


def _orders_request(number: int) -> str:
    return f"Make up orders of a shop that sells {_asked('shops', number)}, as a JSON list."


# The mixes of the sources: chat of 50 tokens, code of 1,000, 4,096 tokens (SPEC TB-06); JSON in a grammar (SD-11).
MIXES = ("chat", "code", "json", "long")
WORKLOADS: Mapping[str, Workload] = {
    each.name: each
    for each in (
        Workload(name="chat", prompt=_question, answer_tokens=50, requests=16, per_level=2),
        Workload(name="code", prompt=code_prompt, answer_tokens=1000, is_chat=False, temperature=0.2, requests=4),
        Workload(name="json", prompt=_orders_request, answer_tokens=300, grammar=ORDERS),
        Workload(name="long", prompt=_long_request, answer_tokens=4096, requests=1),
        Workload(
            name="copy", prompt=copy_prompt, answer_tokens=4096, is_chat=False, temperature=0.0, per_level=2
        ),
        Workload(name="open chat", prompt=_question, answer_tokens=4096, full_length=False, per_level=2),
    )
}  # fmt: skip
OWN = "own"


def workload(name: str, prompts: str = "") -> Workload:
    """The workload `name`; `own` asks the prompts of the file `prompts`, JSON lines with `prompt` or `turns`.

    Raises `ValueError` for a name that there is not and for a file without prompts, `OSError`.
    """
    if name != OWN:
        return WORKLOADS[name]
    asked = read_prompts(Path(prompts), _MOST_OWN_PROMPTS)
    if not asked:
        raise ValueError(f"{prompts} has no prompts; give JSON lines with `prompt`")
    return own_workload(asked)


def content_digest(path: str) -> str:
    """SHA-256 of a file of prompts, so that a measurement says which it was. Raises `OSError`."""
    return hashlib.sha256(Path(path).read_bytes()).hexdigest()


def own_workload(asked: Sequence[str]) -> Workload:
    """A workload of these prompts in a random order that is always the same; answers end where the model ends them."""
    order = sorted(asked, key=lambda prompt: zlib.crc32(prompt.encode()))

    def prompt(number: int) -> str:
        return order[number % len(order)]

    return Workload(name=OWN, prompt=prompt, answer_tokens=256, full_length=False, requests=16, per_level=2)
