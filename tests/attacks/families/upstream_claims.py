"""Attacks by what the servers behind a gateway say: counts of tokens, ids and names, and sizes of their queues."""

import re
import time
from collections.abc import Iterator
from random import Random

from tests.attacks.exchange import Answer
from tests.attacks.families.upstream_floods import hostile_outcome, hostile_request
from tests.attacks.hostile_catalog import TIERS, write_hostile_catalog
from tests.attacks.targets import Target
from tests.hostile.target import Outcome, attack_class

# Each prompt has fewer bytes, each answer 16 tokens, at $1 and $2 a million; and a second tier may take over.
MOST_USD = 2 * (400 * 1.0 + 16 * 2.0) / 1e6
# Of a whole answer that was not billed at all: its text has 40 bytes.
LEAST_USD = 1e-6
_COST = re.compile(rb'"cost_usd": ?([0-9.e+-]+)')
LONGEST_HEADER = 1024


@attack_class("usage claims of upstreams", 140, "hostile", privileged=True)
def usage(target: Target, draw: Random, count: int) -> Iterator[Outcome]:
    """Counts of tokens that cannot be, charged to a key with a budget: no answer is free, none costs more than it may,
    and the key is served to the end."""
    name = f"spender-{draw.randrange(10**9)}"
    key = target.order("POST", "/admin/api/keys", {"name": name})["key"]
    budget = {"kind": "key", "subject": name, "period": "total", "amount_usd": count * MOST_USD + 0.01}
    target.order("PUT", "/admin/api/budgets", budget)
    for number in range(count):
        tier, stream = TIERS[number % len(TIERS)], draw.random() < 0.5
        path, body = hostile_request(tier, "claims", draw.randrange(10**6), stream=stream)
        body |= {"stream_options": {"include_usage": True}} if stream else {}
        began = time.monotonic()
        answer = target.client.ask("POST", path, body, key=key)
        outcome = hostile_outcome(
            answer, f"claims on {tier}, {'streamed' if stream else 'whole'}", time.monotonic() - began
        )
        yield outcome._replace(bypass=outcome.bypass or _charged(answer))
    while (
        answer := target.client.ask("POST", *hostile_request("openai", "honest", 0, stream=False), key=key)
    ).status != 200:
        # The tiers that failed are passed over for some seconds.
        if answer.status == 429:
            yield Outcome("honest after claims", answer.status, answer.code, "the claims used up the key's budget")
            break
        time.sleep(0.5)
    time.sleep(1.5)
    rows = target.order("GET", "/admin/api/budgets").get("rows", [])
    spent = sum(row["spent_usd"] for row in rows if row.get("amount_usd") == budget["amount_usd"])
    if not 0 < spent <= count * MOST_USD + 0.01:
        yield Outcome("the key's budget", 200, bypass=f"${spent} were charged for {count} answers")


@attack_class("words of upstreams", 140, "hostile")
def words(target: Target, draw: Random, count: int) -> Iterator[Outcome]:
    """Ids, names, reasons, errors and headers of servers: none becomes a header of ours, or makes an answer fail."""
    for number in range(count):
        tier, stream = TIERS[number % len(TIERS)], draw.random() < 0.5
        name = draw.choice(["words", "words", "tool_names"])
        path, body = hostile_request(tier, name, draw.randrange(10**6), stream=stream)
        began = time.monotonic()
        answer = target.ask("POST", path, body)
        outcome = hostile_outcome(answer, f"{name} on {tier} #{number}", time.monotonic() - began)
        yield outcome._replace(bypass=outcome.bypass or _headers(answer))


@attack_class("names and queues of upstreams", 24, "hostile", privileged=True)
def pages(target: Target, draw: Random, count: int) -> Iterator[Outcome]:
    """Lists of models by hostile names, which a reload reads, and queues that are no numbers: every answer after them
    is whole, and the queues are still read."""
    assert target.hostile is not None
    catalog = target.data / "catalog.toml"
    for _ in range(count):
        seed = draw.randrange(10**6)
        began = time.monotonic()
        if draw.random() < 0.5:
            target.hostile.order({"/models": ("model_names", seed)})
            write_hostile_catalog(catalog, target.hostile, model="")
            answer = target.client.ask("POST", "/v1/admin/reload", {"reason": "attack"}, key=target.keys["admin"])
            yield hostile_outcome(answer, f"models #{seed}", time.monotonic() - began)
        else:
            target.hostile.order({"/metrics": ("queue_metrics", seed)})
            time.sleep(1.0)
        path, body = hostile_request(draw.choice(["openai", "vllm"]), "honest", 0, stream=False)
        answer = target.ask("POST", path, body)
        outcome = hostile_outcome(answer, f"an answer after #{seed}", time.monotonic() - began)
        yield outcome._replace(bypass=outcome.bypass or _headers(answer))
        health = target.ask("GET", "/health/ready")
        failed = [name for name in (health.json or {}).get("problems", {}) if name.startswith("task ")]
        yield Outcome("/health/ready", 200, bypass=f"background tasks failed: {failed}" if failed else "")
    target.hostile.order({})
    write_hostile_catalog(catalog, target.hostile)
    target.client.ask("POST", "/v1/admin/reload", {"reason": "attack"}, key=target.keys["admin"])


def _charged(answer: Answer) -> str:
    """What is wrong with the price of an answer."""
    if answer.status != 200:
        return ""
    told = answer.headers.get("x-aio-cost-usd") or next(
        (found[1].decode() for found in _COST.finditer(answer.body)), ""
    )
    if not told or b'"error"' in answer.body:
        return ""
    return "" if LEAST_USD <= float(told) <= MOST_USD else f"${told} for an answer of 16 tokens"


def _headers(answer: Answer) -> str:
    """What a server's words did to our headers."""
    if "x-injected" in answer.headers:
        return "a server's text became a header of ours"
    long = [name for name, value in answer.headers.items() if len(value) > LONGEST_HEADER]
    return f"long headers: {', '.join(long)}" if long else ""
