"""Runs classes of attacks against their gateways, and judges each by answers, process, event loop, log and memory."""

import copy
import re
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from random import Random
from typing import Any

import msgspec

from tests.attacks.outcome import AttackClass, Outcome
from tests.attacks.targets import Target, Targets

STALL_SECONDS = 0.1
MOST_GROWTH = 64 * 2**20
# Of a class whose memory grows beyond the bound; a leak grows in the last one too.
MOST_ATTACKS = 4
# Seconds that a class may take beyond its inputs: a class that hangs is a failure.
SETTLING_SECONDS = 6.0
_EXAMPLES = 5
# A record of the log with a traceback, which is indented below it.
_UNEXPECTED = re.compile(r"^\d{4}-.*(?:\n {4}.*)+|^Traceback(?:\n.*)+", re.M)


class Verdict(msgspec.Struct):
    """What a class of attacks did. `stalls`: times that an event loop stood still for more than `STALL_SECONDS`, the
    machine's own part deducted; `worst_lag` is the longest, in seconds. `errors`: tracebacks in the log."""

    name: str
    inputs: int = 0
    server_errors: int = 0
    deaths: int = 0
    stalls: int = 0
    errors: int = 0
    bypasses: int = 0
    unanswered: int = 0
    worst_lag: float = 0.0
    grown_bytes: int = 0
    seconds: float = 0.0
    statuses: Counter[int] = msgspec.field(default_factory=Counter)
    examples: list[str] = msgspec.field(default_factory=list)

    def is_clean(self, with_stalls: bool = True) -> bool:
        """Whether nothing was found, or nothing but stalls."""
        found = (self.server_errors, self.deaths, self.errors, self.bypasses, self.unanswered)
        return not any(found) and self.grown_bytes <= MOST_GROWTH and not (with_stalls and self.stalls)

    def note(self, kind: str, what: str) -> None:
        """Keep an example of a finding, the first few of each kind."""
        if sum(example.startswith(f"{kind}: ") for example in self.examples) < _EXAMPLES:
            self.examples.append(f"{kind}: {what}")


def run_class(chosen: AttackClass, targets: Targets, seed: int, inputs: int) -> Verdict:
    """Attack with `inputs` inputs, and judge. Where the memory grew beyond its bound, attack up to `MOST_ATTACKS`
    times altogether, and judge the growth of the last one: what attacks make a process load or fill is no leak. A pool
    of blocks has an end, which a class that fills a part of it reaches after several."""
    verdicts = [_attacked(chosen, targets, seed, inputs)]
    while verdicts[-1].grown_bytes > MOST_GROWTH and len(verdicts) < MOST_ATTACKS:
        verdicts.append(_attacked(chosen, targets, seed + len(verdicts), inputs))
    verdict = total(chosen.name, verdicts)
    verdict.grown_bytes = verdicts[-1].grown_bytes
    return verdict


def total(name: str, verdicts: Sequence[Verdict]) -> Verdict:
    """Several verdicts as one; memory and lag are those of the worst."""
    names = ("inputs", "server_errors", "deaths", "stalls", "errors", "unanswered", "bypasses", "seconds")
    whole = Verdict(name, **{name: sum(getattr(verdict, name) for verdict in verdicts) for name in names})
    whole.worst_lag = max((verdict.worst_lag for verdict in verdicts), default=0.0)
    whole.grown_bytes = max((verdict.grown_bytes for verdict in verdicts), default=0)
    whole.statuses = sum((verdict.statuses for verdict in verdicts), Counter())
    whole.examples = [example for verdict in verdicts for example in verdict.examples]
    return whole


TOGETHER = (
    "request heads", "request smuggling", "paths", "headers", "JSON bodies", "queries and ids", "uploads",
    "batch files", "WebSocket frames",
    "callers who leave", "streams that are not read", "sign-in", "keys", "ids of other tenants", "URLs that are named",
)  # fmt: skip
"""The classes that attack at the same time, as `run_together` does."""
TOGETHER_ON = "keyed"
"""The target of these."""


def run_together(classes: Mapping[str, AttackClass], targets: Targets, seed: int, inputs: int) -> Verdict:
    """Attack one gateway by many classes at the same time, each on its own thread with its part of the inputs."""
    target = targets.get(TOGETHER_ON)

    def attack(_: Target, draw: Random, count: int) -> Iterator[Outcome]:
        def one(name: str) -> list[Outcome]:
            view = copy.copy(target)
            view.client = target.new_client()
            with view.client:
                return list(
                    classes[name].attack(view, Random(f"{seed} {name} together"), max(4, count // len(TOGETHER)))
                )

        with ThreadPoolExecutor(len(TOGETHER)) as pool:
            for running in [pool.submit(one, name) for name in TOGETHER]:
                yield from running.result()

    return run_class(AttackClass("all at once", attack, TOGETHER_ON, inputs, False), targets, seed, inputs)


def _attacked(chosen: AttackClass, targets: Targets, seed: int, inputs: int) -> Verdict:
    target = targets.get(chosen.on)
    _discard(target)
    verdict = Verdict(chosen.name)
    administration = None if chosen.privileged else target.administration()
    before, began = target.resident_bytes(), time.monotonic()
    try:
        for outcome in chosen.attack(target, Random(f"{seed} {chosen.name}"), inputs):
            _judge(verdict, outcome)
    except (AssertionError, OSError) as error:
        # A class checks what it needs to go on; where the gateway is dead it has no connection.
        verdict.note("class ended", f"{type(error).__name__}: {error}")
        verdict.unanswered += 1
    verdict.seconds = time.monotonic() - began
    if not target.lives():
        verdict.deaths += 1
        verdict.note("death", f"status {target.aio.process.poll()}: {target.new_log()[-2000:]}")
        targets.replace(chosen.on)
        return verdict
    if administration is not None and administration != target.administration():
        verdict.bypasses += 1
        verdict.note("bypass", f"the administration changed: {_difference(administration, target.administration())}")
    _judge_process(verdict, target, before)
    return verdict


def _judge(verdict: Verdict, outcome: Outcome) -> None:
    verdict.inputs += 1
    verdict.statuses[outcome.status] += 1
    if outcome.is_server_error:
        verdict.server_errors += 1
        verdict.note("5xx", f"{outcome.status} {outcome.code} {outcome.label}")
    if outcome.status == -1:
        verdict.unanswered += 1
        verdict.note("unanswered", outcome.label)
    if outcome.bypass:
        verdict.bypasses += 1
        verdict.note("bypass", f"{outcome.bypass}: {outcome.label}")


def _judge_process(verdict: Verdict, target: Target, before: int) -> None:
    """Judge the event loop, the log, and the memory once it has settled."""
    ended = time.monotonic() + SETTLING_SECONDS
    # Free pages of the heap are given back a second or more after the last request.
    while (grown := target.resident_bytes() - before) > MOST_GROWTH / 8 and time.monotonic() < ended:
        time.sleep(0.5)
    verdict.grown_bytes = max(grown, 0)
    judge_lags(verdict, target.new_lags())
    for found in _UNEXPECTED.finditer(target.new_log()):
        verdict.errors += 1
        verdict.note("logged", found[0][-2000:])


def judge_lags(verdict: Verdict, lags: Iterable[dict[str, Any]]) -> None:
    """Count those beyond the bound that the machine did not cause."""
    for lag in lags:
        own = lag["lag"] - lag["machine"]
        verdict.worst_lag = max(verdict.worst_lag, own)
        if own > STALL_SECONDS:
            verdict.stalls += 1
            verdict.note(
                "stall", f"{own * 1e3:.0f} ms (and {lag['machine'] * 1e3:.0f} ms of the machine)\n{lag['doing']}"
            )


def _discard(target: Target) -> None:
    """Begin with nothing noted."""
    target.new_lags()
    target.new_log()


def _difference(before: dict[str, Any], after: dict[str, Any]) -> str:
    return "; ".join(f"{path}: {str(after[path])[:300]}" for path in before if before[path] != after[path])


def run_classes(
    chosen: list[AttackClass], targets: Targets, seed: int, scale: float, show: Callable[[Verdict], None]
) -> list[Verdict]:
    """Run one after another, each with `scale` times its inputs; `show` is called with each verdict."""
    verdicts = []
    for one in chosen:
        verdicts.append(run_class(one, targets, seed, max(4, round(one.inputs * scale))))
        show(verdicts[-1])
    return verdicts
