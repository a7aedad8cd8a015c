"""Attacks by the servers behind a gateway: compressed bombs, heads, answers, pages and drips without a bound."""

import time
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from random import Random
from typing import Any

from tests.attacks import upstream_floods as floods
from tests.attacks.exchange import PATIENCE, Answer
from tests.attacks.hostile_catalog import MAX_TOKENS, TIERS, TOTAL_SECONDS, write_hostile_catalog
from tests.attacks.targets import CHAT, Target
from tests.hostile.target import Outcome, attack_class

# A request for 16 tokens has an answer of no more bytes, and takes no more seconds than its attempts on two tiers.
MOST_ANSWER_BYTES = 8 * 2**20
MOST_SECONDS = 2 * TOTAL_SECONDS + 10
# Memory that all attempts of a burst may take together at any moment.
MOST_PEAK_BYTES = 256 * 2**20
BURST = 6
_EXPECTED = ("tier_failed", "tier_unavailable", "answer_too_long", "no_tier_available")
_COMPLETIONS = "/v1/completions"


def hostile_request(tier: str, name: str, seed: int, *, stream: bool, **more: Any) -> tuple[str, dict[str, Any]]:
    """The path and body of a request that the hostile upstream answers by `name` on the wire of `tier`."""
    prompt = f"hostile:{name}:{seed}"
    body: dict[str, Any] = {"model": f"tier-{TIERS.index(tier) + 1}", "max_tokens": 16, "stream": stream} | more
    if tier == "triton":
        # Without a tokeniser it takes texts alone.
        return _COMPLETIONS, body | {"prompt": prompt}
    return CHAT, body | {"messages": [{"role": "user", "content": prompt}]}


def hostile_outcome(answer: Answer, label: str, seconds: float) -> Outcome:
    """What a request came to whose server may fail, but must not outlive its time or pass its bounds."""
    bypass = f"{len(answer.body):,} bytes for 16 tokens" if len(answer.body) > MOST_ANSWER_BYTES else ""
    if seconds > MOST_SECONDS:
        bypass = f"{seconds:.0f} s, with a total_timeout_seconds of {TOTAL_SECONDS}"
    return Outcome(label, answer.status, answer.code, bypass, expected=answer.code in _EXPECTED)


def _each(target: Target, draw: Random, names: Sequence[str], count: int, **more: Any) -> Iterator[Outcome]:
    """Ask for the answers `names` on every wire, in bursts, and see at the end that all tiers serve again. Meanwhile a
    tier that failed is passed over for some seconds."""
    order = [(name, tier) for name in names for tier in TIERS]
    draw.shuffle(order)
    for start in range(0, count, BURST):
        asked = [order[(start + place) % len(order)] for place in range(min(BURST, count - start))]
        yield from _burst(target, draw, asked, more)
    yield from _served_again(target, set(TIERS))


def _burst(target: Target, draw: Random, asked: list[tuple[str, str]], more: dict[str, Any]) -> Iterator[Outcome]:
    before, peak = target.resident_bytes(), 0

    def one(name: str, tier: str, seed: int, stream: bool) -> Outcome:
        path, body = hostile_request(tier, name, seed, stream=stream, **more)
        began = time.monotonic()
        with target.new_client() as client:
            answer = client.ask("POST", path, body, key=target.caller)
        label = f"{name} on {tier}, {'streamed' if stream else 'whole'} #{seed}"
        return hostile_outcome(answer, label, time.monotonic() - began)

    with ThreadPoolExecutor(BURST) as pool:
        running: list[Future[Outcome]] = []
        for name, tier in asked:
            stream = draw.random() < 0.6 and name not in floods.WHOLES
            running.append(pool.submit(one, name, tier, draw.randrange(10**6), stream))
        while not all(future.done() for future in running):
            time.sleep(0.1)
            peak = max(peak, target.resident_bytes() - before)
        outcomes = [future.result() for future in running]
    if peak > MOST_PEAK_BYTES:
        labels = "; ".join(outcome.label for outcome in outcomes)
        yield Outcome(labels, 0, bypass=f"{peak / 2**20:.0f} MiB at a time")
    yield from outcomes


def _served_again(target: Target, tiers: set[str]) -> Iterator[Outcome]:
    """Wait for tiers that were passed over because their server failed."""
    until = time.monotonic() + PATIENCE
    for tier in sorted(tiers):
        path, body = hostile_request(tier, "honest", 0, stream=False)
        while (answer := target.ask("POST", path, body)).status != 200 and time.monotonic() < until:
            time.sleep(0.2)
        problem = "" if answer.status == 200 else f"tier {tier} serves no more: {answer.text[:200]}"
        if problem:
            yield Outcome(f"{tier} after a flood", answer.status, answer.code, problem, expected=True)


@attack_class("encodings of upstreams", 84, "hostile")
def encodings(target: Target, draw: Random, count: int) -> Iterator[Outcome]:
    """Answers and errors that are small as sent and large once decoded, by many names of encodings."""
    yield from _each(target, draw, ["bomb"], count)


@attack_class("heads of upstreams", 70, "hostile")
def heads(target: Target, draw: Random, count: int) -> Iterator[Outcome]:
    """Heads, values, reason phrases, interim answers, chunk extensions and trailers without an end."""
    yield from _each(target, draw, [*floods.HEADS, *floods.FRAMES], count)


@attack_class("answers of upstreams", 126, "hostile")
def answers(target: Target, draw: Random, count: int) -> Iterator[Outcome]:
    """Texts, thoughts, calls, log-probabilities, choices, events, whole answers and errors without an end."""
    yield from _each(target, draw, [*floods.FLOODS, *floods.WHOLES], count)


@attack_class("drips of upstreams", 42, "hostile")
def drips(target: Target, draw: Random, count: int) -> Iterator[Outcome]:
    """Heads, extensions, errors, answers and comments whose bytes come slowly and do not end."""
    yield from _each(target, draw, floods.DRIPS, count)


@attack_class("pages of upstreams", 24, "hostile", privileged=True)
def pages(target: Target, draw: Random, count: int) -> Iterator[Outcome]:
    """Hostile lists of models, which a reload reads, and metrics, which are read all the time."""
    assert target.hostile is not None
    catalog = target.data / "catalog.toml"
    for number in range(count):
        name, seed = draw.choice(floods.PAGES), draw.randrange(10**6)
        place = draw.choice(["/models", "/metrics"])
        target.hostile.order({place: (name, seed)})
        began = time.monotonic()
        if place == "/models":
            write_hostile_catalog(catalog, target.hostile, model=f"m{number}")
            answer = target.client.ask("POST", "/v1/admin/reload", {"reason": "attack"}, key=target.keys["admin"])
        else:
            # A few looks of 0.2 seconds.
            time.sleep(1.0)
            answer = target.ask("GET", "/health/live")
        yield hostile_outcome(answer, f"{place}: {name} #{seed}", time.monotonic() - began)
    target.hostile.order({})
    yield from _served_again(target, set(TIERS))


@attack_class("unread streams of upstreams", 150, "hostile")
def unread(target: Target, draw: Random, count: int) -> Iterator[Outcome]:
    """Many readers who do not read streams that come as fast as they are read; memory stays bounded throughout."""
    before, peak = target.resident_bytes(), 0
    tiers = [tier for tier in TIERS if tier not in ("triton", "engine")]
    with ExitStack() as stack:
        for number in range(count):
            name = draw.choice(["slow_stream", "texts", "logprobs", "thoughts"])
            path, body = hostile_request(draw.choice(tiers), name, number, stream=True, max_tokens=MAX_TOKENS)
            connection = stack.enter_context(target.client.connect(receive_bytes=2048))
            connection.sendall(_raw(target, path, body))
            yield Outcome(f"unread {name} #{number}", 0)
        until = time.monotonic() + TOTAL_SECONDS
        while time.monotonic() < until:
            time.sleep(0.1)
            peak = max(peak, target.resident_bytes() - before)
    if peak > MOST_PEAK_BYTES:
        yield Outcome(f"{count} unread streams", 0, bypass=f"{peak / 2**20:.0f} MiB at a time")
    yield from _served_again(target, set(tiers))


def _raw(target: Target, path: str, body: dict[str, Any]) -> bytes:
    from tests.attacks.exchange import encoded, request_bytes

    lines = [(b"host", f"{target.host}:{target.port}".encode()), (b"content-type", b"application/json")]
    if target.caller is not None:
        lines.append((b"authorization", f"Bearer {target.caller}".encode()))
    return request_bytes("POST", path, lines, encoded(body))
