"""What a choice between tiers for an agent's session needs: costs of its rest, steps to come, trouble, and its end.

Costs with the caches of providers: a turn's first step reads what its tier's cache holds and writes the rest; each
later step reads what the step before wrote. Steps to come are learned from ended sessions per client and key.

P(a session ends badly) is learned per tier and client from labelled sessions. Every label is predicted before it is
learned (prequential evaluation, Dawid 1984), by the session's step bucket alone and by step bucket, trouble and last
exit. The full prediction is used from 200 labels with 30 of each kind on, and only while its log loss is below that of
steps alone by a standard error.

Trouble inside a tool loop tells failures from successes weakly on recorded runs (docs/results/sessions.md), so that
the default only observes its signs. A randomised share of moves, each with its propensity, is what can show their
worth. How a piece of work ended: the user's words outweigh checks, and checks exit codes.
"""

from bisect import bisect_right
from collections import defaultdict
from math import log, sqrt
from typing import Literal

import msgspec

End = Literal["good", "bad", "none"]


class SessionTier(msgspec.Struct, frozen=True, kw_only=True):
    """A tier as sessions see it. Prices: US dollars per million tokens."""

    input_usd: float
    output_usd: float
    read_usd: float
    write_usd: float
    cache_seconds: float
    """How long its cache keeps a prefix after its last use; 0: it has no cache."""
    min_cached_tokens: int
    """Shorter prompts are not cached."""
    output_ratio: float = 1.0
    """Its output tokens of a step, as a share of the most that any tier's has."""


class Warmth(msgspec.Struct, frozen=True):
    """What a tier has cached of a session: `tokens`, last read or written `age_seconds` ago."""

    tokens: int = 0
    age_seconds: float = 0.0


class LoopCounters(msgspec.Struct, frozen=True):
    """Counts of the work since the last boundary."""

    steps: int = 0
    """Answers, this one included."""
    errors: int = 0
    """Results that failed."""
    repeats: int = 0
    """Calls made before."""
    bad_calls: int = 0
    """Calls in a row that no tool could read."""
    exits: int = 0
    failed_exits: int = 0
    """Exit codes other than 0, of `exits` known ones."""


def warm_tokens(tier: SessionTier, warmth: Warmth, prompt_tokens: int) -> int:
    """Return the tokens of a prompt that `tier` reads from its cache."""
    if warmth.age_seconds > tier.cache_seconds or prompt_tokens < tier.min_cached_tokens:
        return 0
    return min(warmth.tokens, prompt_tokens)


def turn_usd(tier: SessionTier, warm: float, prompt_tokens: float, growth: float, output: float, steps: float) -> float:
    """Return the expected US dollars of a turn on `tier` whose first step has `prompt_tokens`, `warm` of them cached,
    and each later one `growth` more. `steps`: expected, 1 at least; their number is spread as a geometric one."""
    later = steps - 1.0
    total = steps * prompt_tokens + growth * later * steps
    if tier.cache_seconds <= 0 or prompt_tokens + growth * later < tier.min_cached_tokens:
        paid = tier.input_usd * total
    else:
        written = prompt_tokens - min(warm, prompt_tokens) + growth * later
        paid = tier.write_usd * written + tier.read_usd * (total - written)
    return (paid + tier.output_usd * tier.output_ratio * output * steps) / 1e6


STEP_EDGES = (1, 3, 6, 11, 21, 41, 81)
"""The first steps of the buckets of a session's step number."""
PRIOR_STEPS = 18.0
"""Before any session ended: the median of 133 recorded runs on terminal tasks."""
STEPS_N0 = 20.0
"""Sessions by which each level's own mean weighs as much as the one above it."""


def step_bucket(step: int) -> int:
    """Return the bucket of a session's step number, counted from 1."""
    return max(0, bisect_right(STEP_EDGES, step) - 1)


class RemainingSteps:
    """Means of what was left at each bucket of steps, from all sessions to a client's and its key's. Each level moves
    the one above by its sessions: (n0 parent + sum) / (n0 + n). Not thread-safe: one owner writes and reads it."""

    def __init__(self) -> None:
        self._sums: dict[tuple[str, ...], list[list[float]]] = defaultdict(lambda: [[0.0, 0.0] for _ in STEP_EDGES])

    def observe(self, client: str, key: str, steps: int) -> None:
        """Learn from a session of `client` at `key` that ended after `steps` steps."""
        for level in _levels(client, key):
            sums = self._sums[level]
            for bucket, first in enumerate(STEP_EDGES):
                if steps >= first:
                    sums[bucket][0] += 1.0
                    sums[bucket][1] += steps - first + 1

    def predict(self, client: str, key: str, step: int) -> float:
        """Return the expected steps from number `step` on, that one included: 1 at least.

        Within a bucket the expectation is that of its first step, since most sessions' hazard is nearly flat.
        """
        bucket = step_bucket(step)
        expected = PRIOR_STEPS
        for level in _levels(client, key):
            if level in self._sums:
                count, total = self._sums[level][bucket]
                expected = (STEPS_N0 * expected + total) / (STEPS_N0 + count)
        return max(1.0, expected)


def _levels(client: str, key: str) -> tuple[tuple[str, ...], ...]:
    return (), (client,), (client, key)


LastExit = Literal["passed", "failed", "unknown"]
LEAST_LABELS, LEAST_OF_A_KIND = 200, 30
PRIOR_BAD = 0.5
ENDS_N0 = 10.0
"""Pseudo-counts of the level above: all ends, those of a step bucket, those with its signs."""


class EndSituation(msgspec.Struct, frozen=True):
    """What is known of a session at `step`: whether its loop shows trouble, and its last exit code."""

    step: int
    in_trouble: bool
    last_exit: LastExit


class EndEvidence(msgspec.Struct, frozen=True):
    """Of one tier and client: `labels`, `bad` ones among them (weights), the mean by which the full log loss is below
    that of steps alone (`gain`, nats), its standard error, and whether predictions are used."""

    labels: float
    bad: float
    gain: float
    standard_error: float
    is_active: bool


class LearnedEnds:
    """Counts of ends per tier and client. Not thread-safe: one owner writes and reads it."""

    def __init__(self) -> None:
        self._tables: dict[tuple[int, str], _EndTable] = defaultdict(_EndTable)

    def observe(self, tier: int, client: str, situation: EndSituation, *, bad: bool, weight: float = 1.0) -> None:
        """Learn how a session of `client` on `tier` ended that once was in `situation`. One situation a session, drawn
        at random or fixed by step, so that labels are independent. `weight`: of the label, in (0, 1]."""
        self._tables[tier, client].observe(situation, bad, weight)

    def predict(self, tier: int, client: str, situation: EndSituation) -> float | None:
        """Return P(bad end); None while the signs have not been shown to help."""
        table = self._tables.get((tier, client))
        if table is None or not table.evidence().is_active:
            return None
        return table.rates(situation)[1]

    def evidence(self, tier: int, client: str) -> EndEvidence:
        """Return what the labels of `tier` and `client` show."""
        return self._tables.get((tier, client), _EndTable()).evidence()


class _EndTable:
    """The counts [labels, bad] of all ends, of step buckets, and of step buckets with signs."""

    def __init__(self) -> None:
        self._counts: dict[tuple[int | bool | str, ...], list[float]] = defaultdict(lambda: [0.0, 0.0])
        # Of the differences of log losses: their weights, weighted sum, and weighted sum of squares.
        self._weight = self._sum = self._squares = 0.0

    def observe(self, situation: EndSituation, bad: bool, weight: float) -> None:
        by_steps, by_signs = self.rates(situation)
        difference = _loss(by_steps, bad) - _loss(by_signs, bad)
        self._weight += weight
        self._sum += weight * difference
        self._squares += weight * difference**2
        for cell in _cells(situation):
            counts = self._counts[cell]
            counts[0] += weight
            counts[1] += weight * bad

    def rates(self, situation: EndSituation) -> tuple[float, float]:
        """Return P(bad end) by the step bucket alone, and by all signs."""
        rate, rates = PRIOR_BAD, []
        for cell in _cells(situation):
            labels, bad = self._counts.get(cell, (0.0, 0.0))
            rate = (ENDS_N0 * rate + bad) / (ENDS_N0 + labels)
            rates.append(rate)
        return rates[1], rates[2]

    def evidence(self) -> EndEvidence:
        labels, bad = self._counts.get((), (0.0, 0.0))
        if self._weight <= 1.0:
            return EndEvidence(labels, bad, 0.0, float("inf"), False)
        gain = self._sum / self._weight
        error = sqrt(max(0.0, self._squares / self._weight - gain**2) / self._weight)
        enough = labels >= LEAST_LABELS and min(bad, labels - bad) >= LEAST_OF_A_KIND
        return EndEvidence(labels, bad, gain, error, enough and gain > error)


def _cells(situation: EndSituation) -> tuple[tuple[int | bool | str, ...], ...]:
    bucket = step_bucket(situation.step)
    return (), (bucket,), (bucket, situation.in_trouble, situation.last_exit)


def _loss(p_bad: float, bad: bool) -> float:
    """The log loss of a prediction, in nats. Beta-smoothed rates are never 0 or 1."""
    return -log(p_bad if bad else 1.0 - p_bad)


TroubleMode = Literal["off", "observe", "act"]
MOST_BAD_CALLS = 3
"""A tier that forms so many calls in a row that no tool can read goes no further in the loop."""
TROUBLE_FROM = 5
"""The first step of a loop whose signs count."""
ERROR_SHARE, MOST_REPEATS, FAILED_EXIT_SHARE = 0.5, 3, 0.5
"""Errors in such a share of steps, so many repeated calls, or failed exits in such a share of the known ones (of which
there are at least `TROUBLE_FROM`)."""


class TroubleMove(msgspec.Struct, frozen=True):
    """What signs of trouble in a tool loop lead to."""

    signs: str
    """The signs, in words."""
    moves: bool
    """Whether the next step goes one tier up."""
    propensity: float
    """The probability with which the move was drawn; 1 where nothing was."""


def trouble_signs(counters: LoopCounters) -> str:
    """Return in words why a loop seems to be in trouble; "" where it does not."""
    if counters.steps < TROUBLE_FROM:
        return ""
    if counters.errors >= ERROR_SHARE * counters.steps:
        return f"{counters.errors} errors in {counters.steps} steps"
    if counters.repeats >= MOST_REPEATS:
        return f"{counters.repeats} repeated calls in {counters.steps} steps"
    if counters.exits >= TROUBLE_FROM and counters.failed_exits >= FAILED_EXIT_SHARE * counters.exits:
        return f"{counters.failed_exits} of {counters.exits} exit codes failed"
    return ""


def trouble_move(
    mode: TroubleMode, counters: LoopCounters, consents: bool, share: float, draw: float
) -> TroubleMove | None:
    """Return what the trouble of a loop does; None without signs, or with `mode` off.

    `observe` moves the `share` of consenting sessions: those whose `draw` (uniform in [0, 1), the session's own, so
    that each of its steps draws alike) is below it. `act` moves all.
    """
    if mode == "off" or not (signs := trouble_signs(counters)):
        return None
    if mode == "act":
        return TroubleMove(signs, True, 1.0)
    if not consents or share <= 0:
        return TroubleMove(signs, False, 1.0)
    moves = draw < share
    return TroubleMove(signs, moves, share if moves else 1.0 - share)


EndSign = Literal["interrupted", "rejected", "unclean", "check", "build", "exit_code", "cut", "accepted", "none"]


class EndSigns(msgspec.Struct, frozen=True, kw_only=True):
    """Signs of an end; None: unknown."""

    clean: bool | None = None
    """The run stopped by itself, without a crash, a limit or a call that no tool could read."""
    check_passed: bool | None = None
    """Whether the last test passed."""
    build_passed: bool | None = None
    """Whether the last build or type check since then passed."""
    exit_passed: bool | None = None
    """Whether the last exit code was 0."""
    cut: bool = False
    """Whether the last answer stopped at its token limit."""
    user: Literal["interrupts", "rejects", "accepts"] | None = None
    """What the user says."""


class WorkEnd(msgspec.Struct, frozen=True):
    """How it ended, and by which sign."""

    end: End
    sign: EndSign


def work_end(signs: EndSigns) -> WorkEnd:
    """Return how the work with `signs` ended; "none" where nothing says so.

    A good end needs a sign of its own: that nothing failed is none. An exit code of 0 is no good end either, since most
    commands are no checks.
    """
    if signs.user == "interrupts":
        return WorkEnd("bad", "interrupted")
    if signs.user == "rejects":
        return WorkEnd("bad", "rejected")
    if signs.clean is False:
        return WorkEnd("bad", "unclean")
    if signs.check_passed is False:
        return WorkEnd("bad", "check")
    if signs.build_passed is False:
        return WorkEnd("bad", "build")
    if signs.exit_passed is False and signs.check_passed is None and signs.build_passed is None:
        return WorkEnd("bad", "exit_code")
    if signs.cut:
        return WorkEnd("bad", "cut")
    if signs.user == "accepts":
        return WorkEnd("good", "accepted")
    if signs.check_passed:
        return WorkEnd("good", "check")
    if signs.build_passed:
        return WorkEnd("good", "build")
    return WorkEnd("none", "none")
