"""Attacks by servers that break off: streams go on where that is allowed, and end with an error where it is not."""

import json
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from random import Random
from typing import Any, NamedTuple

from tests.gateway.attacks.exchange import Answer, Client
from tests.gateway.attacks.hostile_catalog import TIERS
from tests.gateway.attacks.outcome import Outcome, attack_class
from tests.gateway.attacks.targets import CHAT, Target
from tests.gateway.attacks.upstream_cuts import number_of_cuts
from tests.gateway.known_text import known_text

TOGETHER = 8
COMPLETIONS, MESSAGES, RESPONSES = "/v1/completions", "/v1/messages", "/v1/responses"
LEAST_COMPLETED = 0.95
_KINDS = (
    ("vllm", CHAT), ("anthropic", CHAT), ("engine", CHAT), ("openai", COMPLETIONS), ("vllm", COMPLETIONS),
    ("triton", COMPLETIONS), ("anthropic", MESSAGES), ("vllm", MESSAGES), ("engine", RESPONSES), ("openai", CHAT),
    ("gemini", CHAT), ("bedrock", CHAT),
)  # fmt: skip
# Servers that are not known to go on from a turn of the assistant.
_ENDING = (("openai", CHAT), ("gemini", CHAT), ("bedrock", CHAT))


class _Heard(NamedTuple):
    """`cost_usd`: as the end tells it, None for an answer that failed without one."""

    outcome: Outcome
    cuts: int
    may_go_on: bool
    completed: bool
    cost_usd: float


@attack_class("streams that are cut", 10_000, "hostile", privileged=True)
def cuts(target: Target, draw: Random, count: int) -> Iterator[Outcome]:
    """Streams broken off at random bytes on all wires, charged to a budget: no character is lost or comes twice, nearly
    all are completed where they may go on, and what is charged is what the answers say. An input is a cut."""
    name = f"cut-{draw.randrange(10**9)}"
    key = target.order("POST", "/admin/api/keys", {"name": name})["key"]
    budget = {"kind": "key", "subject": name, "period": "total", "amount_usd": 1000.0}
    target.order("PUT", "/admin/api/budgets", budget)
    done, allowed, completed, charged, number = 0, 0, 0, 0.0, 0

    def one(place: int, seed: int) -> _Heard:
        with target.new_client() as client:
            return _ask(client, key, *_KINDS[place % len(_KINDS)], seed)

    with ThreadPoolExecutor(TOGETHER) as pool:
        while done < count:
            seeds = [draw.randrange(10**9) for _ in range(TOGETHER)]
            places = range(number, number + TOGETHER)
            number += TOGETHER
            for heard in pool.map(one, places, seeds):
                done, charged = done + heard.cuts, charged + heard.cost_usd
                allowed, completed = allowed + heard.may_go_on, completed + (heard.may_go_on and heard.completed)
                yield heard.outcome
                yield from (Outcome(heard.outcome.label, 200) for _ in range(heard.cuts - 1))
    share = completed / allowed
    yield Outcome("completed", 200, bypass="" if share >= LEAST_COMPLETED else f"only {share:.1%} of {allowed}")
    spent = _spent(target, budget["amount_usd"], charged)
    wrong = abs(spent - charged) > 1e-6 * number
    yield Outcome("the budget", 200, bypass=f"${spent} charged, ${charged} told" if wrong else "")


def _ask(client: Client, key: str, tier: str, path: str, seed: int) -> _Heard:
    prompt, model = f"hostile:cuts:{seed}", f"tier-{TIERS.index(tier) + 1}"
    messages = [{"role": "user", "content": prompt}]
    inputs: dict[str, Any] = {COMPLETIONS: {"prompt": prompt}, RESPONSES: {"input": prompt}}.get(
        path, {"messages": messages}
    )
    limit = "max_output_tokens" if path == RESPONSES else "max_tokens"
    body = {"model": model, "stream": True, limit: 4000} | inputs
    if path in (CHAT, COMPLETIONS):
        body["stream_options"] = {"include_usage": True}
    answer = client.ask("POST", path, body, key=key, headers={"x-aio-continue": "auto"})
    text, ended, cost = _read(answer)
    expected, goes_on = known_text(seed), (tier, path) not in _ENDING
    label = f"{number_of_cuts(seed)} cuts on {tier}, {path} #{seed}"
    bypass = ""
    if not expected.startswith(text) or (ended and text != expected):
        bypass = f"{text!r} instead of {expected!r}"
    elif ended and not goes_on:
        bypass = "went on where it cannot"
    # A tier whose last answer was not completed may be passed over for some seconds, and says so.
    expected_refusal = answer.status in (503, 529)
    cuts = 0 if answer.status != 200 else number_of_cuts(seed) if goes_on and ended else 1
    outcome = Outcome(label, answer.status, answer.code, bypass, expected=expected_refusal)
    return _Heard(outcome, cuts, goes_on and answer.status == 200, ended, cost)


def _read(answer: Answer) -> tuple[str, bool, float]:
    """Return the text of a stream, whether it ended well, and what it cost."""
    text, failed, cost, ended = "", False, 0.0, b"[DONE]" in answer.body
    for line in answer.text.split("\n"):
        if not line.startswith("data: {"):
            continue
        event = json.loads(line[6:])
        failed = failed or bool(event.get("error"))
        told = event.get("x_aio") or (event.get("response") or {}).get("x_aio") or {}
        cost = told.get("cost_usd", cost)
        kind = event.get("type")
        ended = ended or kind in ("message_stop", "response.completed")
        if kind == "content_block_delta":
            text += event["delta"].get("text", "")
        elif kind == "response.output_text.delta":
            text += event["delta"]
        for choice in event.get("choices", ()):
            text += choice.get("text") or choice.get("delta", {}).get("content") or ""
    return text, ended and not failed, cost


def _spent(target: Target, amount: float, charged: float) -> float:
    """What was charged to the budget, once it is settled."""
    until, spent = time.monotonic() + 10.0, -1.0
    while time.monotonic() < until:
        rows = target.order("GET", "/admin/api/budgets").get("rows", [])
        spent = sum(row["spent_usd"] for row in rows if row.get("amount_usd") == amount)
        if abs(spent - charged) < 1e-9:
            break
        time.sleep(0.5)
    return spent
