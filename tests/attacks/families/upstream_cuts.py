"""Servers and cores that break off: streams go on where that is allowed, and end with an error where it is not."""

import json
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import cycle
from random import Random
from typing import Any, NamedTuple

from tests.attacks.exchange import Answer
from tests.attacks.hostile_catalog import TIERS
from tests.attacks.mortal_cores import ANSWER_TOKENS
from tests.attacks.targets import CHAT, Target
from tests.attacks.upstream_cuts import number_of_cuts
from tests.gateway.known_text import known_text
from tests.hostile.target import Outcome, attack_class
from tests.polling import until
from tests.support.served import UNCACHED

TOGETHER = 8
COMPLETIONS, MESSAGES, RESPONSES = "/v1/completions", "/v1/messages", "/v1/responses"
LEAST_COMPLETED = 0.95
_AWAY = (503, 529)
MICRO_USD = 1e-6
REPORTED_SECONDS = 60.0
"""A process reports what was spent every few seconds; after this, nothing more is expected."""
_KINDS = (
    ("vllm", CHAT), ("anthropic", CHAT), ("engine", CHAT), ("openai", COMPLETIONS), ("vllm", COMPLETIONS),
    ("triton", COMPLETIONS), ("anthropic", MESSAGES), ("vllm", MESSAGES), ("engine", RESPONSES), ("openai", CHAT),
    ("gemini", CHAT), ("bedrock", CHAT),
)  # fmt: skip
# Servers that are not known to go on from a turn of the assistant.
_ENDING = (("openai", CHAT), ("gemini", CHAT), ("bedrock", CHAT))


@attack_class("streams that are cut", 10_000, "hostile", privileged=True)
def cuts(target: Target, draw: Random, count: int) -> Iterator[Outcome]:
    """Streams broken off at random bytes on all wires, charged to a budget: no character is lost or comes twice, nearly
    all are completed where they may go on, and what is charged is what the answers say. An input is a cut."""
    budget = _Budget(target, f"cut-{draw.randrange(10**9)}", 100.0)
    tally = _Tally()
    kinds = cycle(_KINDS)
    with ThreadPoolExecutor(TOGETHER) as pool:
        while tally.cuts < count:
            asked = [(*next(kinds), draw.randrange(10**9)) for _ in range(TOGETHER)]
            for heard in pool.map(lambda kind: _cut(target, budget.key, *kind), asked):
                yield from tally.take(heard)
    yield tally.share()
    yield budget.checked(tally.cost_usd)


@attack_class("cores that are lost", 1_000, "mortal", privileged=True)
def losses(target: Target, draw: Random, count: int) -> Iterator[Outcome]:
    """Cores of our own engine that are killed or drained in the middle of answers: each goes on in the next core, as if
    nothing had happened, and what is read again is charged. An input is an answer whose core was lost."""
    assert target.cores is not None
    budget = _Budget(target, f"lost-{draw.randrange(10**9)}", 0.5)
    tally = _Tally()
    asked = [(model, path) for model in ("tier-1", "tier-2") for path in (CHAT, COMPLETIONS, MESSAGES, RESPONSES)]
    whole = {kind: _served(target, budget.key, *kind) for kind in asked}
    tally.cost_usd = sum(stream.cost_usd for stream in whole.values())
    target.cores.let_end(True)

    def one(kind: tuple[str, str]) -> _Heard:
        answer, stream = _streamed(target, budget.key, *kind, "Say much.", ANSWER_TOKENS)
        expected, is_begun = whole[kind], answer.status not in _AWAY
        bypass = ""
        if not expected.text.startswith(stream.text) or (stream.ended and stream[:3] != expected[:3]):
            bypass = f"{stream} instead of {expected}"
        is_cut = is_begun and (stream.cost_usd > expected.cost_usd or not stream.ended)
        outcome = Outcome(" at ".join(kind), answer.status, answer.code, bypass, expected=not is_begun)
        return _Heard(outcome, int(is_cut), is_begun, stream.ended, stream.cost_usd)

    with ThreadPoolExecutor(4 * len(asked)) as pool:
        while tally.cuts < count:
            tally.cost_usd += _served(target, budget.key, *asked[0]).cost_usd
            for heard in pool.map(one, 4 * asked):
                yield from tally.take(heard)
    target.cores.let_end(False)
    yield tally.share()
    tally.cost_usd += _served(target, budget.key, *asked[0]).cost_usd
    yield budget.checked(tally.cost_usd)


def _served(target: Target, key: str, model: str, path: str) -> "_Stream":
    """An answer of a core that was there to begin it: there is none until the gateway has found the next one."""
    heard: list[tuple[Answer, _Stream]] = []

    def is_served() -> bool:
        heard[:] = [_streamed(target, key, model, path, "Say much.", ANSWER_TOKENS)]
        return heard[0][0].status not in _AWAY

    until(is_served, 0.1)
    return heard[0][1]


class _Stream(NamedTuple):
    """What was heard: `tokens` by its usage, `cost_usd` by its end: 0 for an answer that failed without one."""

    text: str
    ended: bool
    tokens: int
    cost_usd: float


class _Heard(NamedTuple):
    """`may_go_on`: whether it must be completed nearly always."""

    outcome: Outcome
    cuts: int
    may_go_on: bool
    completed: bool
    cost_usd: float


class _Tally:
    """Of all answers of a class."""

    def __init__(self) -> None:
        self.cuts = self._allowed = self._completed = 0
        self.cost_usd = 0.0

    def take(self, heard: _Heard) -> Iterator[Outcome]:
        """Count an answer; returns its outcome, once for each cut."""
        self.cuts, self.cost_usd = self.cuts + heard.cuts, self.cost_usd + heard.cost_usd
        self._allowed += heard.may_go_on
        self._completed += heard.may_go_on and heard.completed
        yield heard.outcome
        yield from (Outcome(heard.outcome.label, 200) for _ in range(heard.cuts - 1))

    def share(self) -> Outcome:
        """Whether enough were completed of those that may go on."""
        share = self._completed / self._allowed
        said = f"{share:.1%} of {self._allowed} answers completed"
        return Outcome(said, 200, bypass="" if share >= LEAST_COMPLETED else f"only {said}")


class _Budget:
    """A key with a budget of its own."""

    def __init__(self, target: Target, name: str, amount: float) -> None:
        self._target, self._amount = target, amount
        self.key = target.order("POST", "/admin/api/keys", {"name": name})["key"]
        order = {"kind": "key", "subject": name, "period": "total", "amount_usd": amount}
        target.order("PUT", "/admin/api/budgets", order)

    def checked(self, told: float) -> Outcome:
        """Whether what was charged is what the answers `told`, once the gateway has reported it to the database."""
        given_up = time.monotonic() + REPORTED_SECONDS
        until(lambda: abs(self._spent() - told) <= MICRO_USD or time.monotonic() > given_up, 0.2)
        wrong = abs((spent := self._spent()) - told) > MICRO_USD
        return Outcome("the budget", 200, bypass=f"${spent} charged, ${told} told" if wrong else "")

    def _spent(self) -> float:
        rows = self._target.order("GET", "/admin/api/budgets")["rows"]
        return float(sum(row["spent_usd"] for row in rows if row["amount_usd"] == self._amount))


def _streamed(target: Target, key: str, model: str, path: str, prompt: str, limit: int) -> tuple[Answer, _Stream]:
    """Ask for a stream that may go on."""
    inputs: dict[str, Any] = {COMPLETIONS: {"prompt": prompt}, RESPONSES: {"input": prompt}}.get(
        path, {"messages": [{"role": "user", "content": prompt}]}
    )
    named = "max_output_tokens" if path == RESPONSES else "max_tokens"
    body = {"model": model, "stream": True, "temperature": 0, named: limit} | inputs
    if path in (CHAT, COMPLETIONS):
        body["stream_options"] = {"include_usage": True}
    headers = {"x-aio-continue": "auto", **UNCACHED}
    with target.new_client() as client:
        answer = client.ask("POST", path, body, key=key, headers=headers)
    return answer, _read(answer)


def _cut(target: Target, key: str, tier: str, path: str, seed: int) -> _Heard:
    model = f"tier-{TIERS.index(tier) + 1}"
    answer, (text, ended, _, cost) = _streamed(target, key, model, path, f"hostile:cuts:{seed}", 4000)
    expected, goes_on = known_text(seed), (tier, path) not in _ENDING
    bypass = ""
    if not expected.startswith(text) or (ended and text != expected):
        bypass = f"{text!r} instead of {expected!r}"
    elif ended and not goes_on:
        bypass = "went on where it cannot"
    # A tier whose last answer was not completed may be passed over for some seconds, and says so.
    expected_refusal = answer.status in _AWAY
    cuts = 0 if answer.status != 200 else number_of_cuts(seed) if goes_on and ended else 1
    label = f"{number_of_cuts(seed)} cuts on {tier}, {path} #{seed}"
    outcome = Outcome(label, answer.status, answer.code, bypass, expected=expected_refusal)
    return _Heard(outcome, cuts, goes_on and answer.status == 200, ended, cost)


def _read(answer: Answer) -> _Stream:
    text, failed, cost, tokens, ended = "", False, 0.0, 0, b"[DONE]" in answer.body
    for line in answer.text.split("\n"):
        if not line.startswith("data: {"):
            continue
        event = json.loads(line[6:])
        whole = event.get("response") or {}
        failed = failed or bool(event.get("error"))
        told, usage = (event.get(name) or whole.get(name) or {} for name in ("x_aio", "usage"))
        cost = told.get("cost_usd", cost)
        tokens = usage.get("completion_tokens", usage.get("output_tokens", tokens))
        kind = event.get("type")
        ended = ended or kind in ("message_stop", "response.completed", "response.incomplete")
        if kind == "content_block_delta":
            text += event["delta"].get("text", "")
        elif kind == "response.output_text.delta":
            text += event["delta"]
        for choice in event.get("choices", ()):
            text += choice.get("text") or choice.get("delta", {}).get("content") or ""
    return _Stream(text, ended and not failed, tokens, cost)
