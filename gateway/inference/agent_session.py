"""An agent's session as it is remembered between its steps, in numbers and digests alone, and how a step changes it.

What the results of tools say of a step: a check that passed or failed, an exit code, an error, a malformed call. The
rules are data with their source. Only the two ends of a text are read: commands report at the end, and clients write
what became of a call at the beginning.

What a tenant's own sessions teach: how many steps a turn has, and which loops end badly. No judge is asked. A
tenant's sessions move only its own: nothing is shared between tenants. The counts are of this process and begin again
with it; the stored steps keep every end.
"""

import re
from collections import OrderedDict
from collections.abc import Iterable, Sequence
from typing import Literal

import msgspec

from classifier.decision import SessionStep, SessionWork
from classifier.policy.sessions import EndSituation, LearnedEnds, LoopCounters, RemainingSteps, Warmth, trouble_signs
from gateway.base.inference_request import ClientTurn, InferenceRequest
from tiers.catalog.catalog import Catalog
from tiers.catalog.tier_spec import TierSpec
from tiers.conversation import Turn
from tiers.tier import Usage

Exit = Literal["passed", "failed"]
HEAD, TAIL = 512, 2048


class SummaryRule(msgspec.Struct, frozen=True):
    """How a checking program says how its run ended."""

    source: str
    """The program whose words these are."""
    failed: str
    passed: str | None
    """What says whether the run passed; None where it says nothing of success."""


# Multi-line patterns, of tests, and of compilers and type checkers.
TESTS = (
    SummaryRule(
        "pytest",
        r"^=*\s*(?:\d+ [a-z]+, )*[1-9]\d* (?:failed|errors?)\b.* in \d[\d.]*s",
        r"^=*\s*[1-9]\d* passed\b(?:, \d+ (?:skipped|warnings?|deselected|x\w+|subtests passed))* in \d[\d.]*s",
    ),
    SummaryRule("unittest", r"^FAILED \((?:failures|errors)=\d+", r"^OK(?: \(skipped=\d+\))?\s*$"),
    SummaryRule(
        "jest, vitest", r"^\s*Tests:?\s+.*\b[1-9]\d* failed", r"^\s*Tests:?\s+(?:\d+ skipped, )?[1-9]\d* passed"
    ),
    SummaryRule("mocha", r"^\s*[1-9]\d* failing\b", r"^\s*[1-9]\d* passing\b"),
    SummaryRule("cargo test", r"^test result: FAILED\.", r"^test result: ok\."),
    SummaryRule("go test", r"^(?:--- FAIL: |FAIL\s)", r"^ok\s+\S+\s+(?:\d|\(cached\))"),
    SummaryRule("maven, gradle", r"^(?:\[ERROR\] )?.*BUILD FAIL(?:URE|ED)", r"^(?:\[INFO\] )?BUILD SUCCESS"),
    SummaryRule("rspec", r"^\d+ examples?, [1-9]\d* failures?", r"^[1-9]\d* examples?, 0 failures"),
    SummaryRule("dotnet test", r"^Failed!\s+- ", r"^Passed!\s+- "),
)
BUILDS = (
    SummaryRule("mypy", r"^Found [1-9]\d* errors? in [1-9]\d* files?", r"^Success: no issues found in [1-9]\d* source"),
    SummaryRule("tsc", r"^(?:Found [1-9]\d* errors?\b|\S+\(\d+,\d+\): error TS\d+: )", r"^Found 0 errors\."),
    SummaryRule("pyright", r"^[1-9]\d* errors?, \d+ warnings?", r"^0 errors, \d+ warnings?"),
    SummaryRule("cargo", r"^error: could not compile ", r"^\s*Finished `?(?:dev|release|test|bench)\b"),
    SummaryRule("gcc, clang", r"^\S+:\d+:\d+: (?:fatal )?error: ", None),
    SummaryRule("go build, go vet", r"^# \S+\n(?:vet: )?\S+\.go:\d+:\d+: ", None),
    SummaryRule("make", r"^make(?:\[\d+\])?: \*\*\* .*\bError \d+", None),
)
# The code is the first group. By client or framework: Claude Code and Codex, Codex's JSON, mini-swe-agent, OpenHands,
# shells and CI systems.
EXIT_CODES = (
    r"^(?:Error: )?(?:Process exited with |Exit )code:? (-?\d{1,5})\b",
    r'"exit_code":\s*(-?\d{1,5})\b',
    r"<(?:returncode|exit_code)>(-?\d{1,5})</",
    r"finished with exit code (-?\d{1,5})\b",
    r"\b(?:exited with|exit)(?: status| code):? (-?\d{1,5})\b",
)
# What Messages' `is_error` becomes (`tiers.dialects.messages_request`), and clients' own words for it.
ERRORS = ("Error:", "<tool_use_error>", "Tool execution failed", "Command failed")
# A call that had no form that its tool could read. Claude Code, Codex, opencode, pydantic in frameworks.
MALFORMED = (
    "InputValidationError",
    "failed to parse function arguments",
    "called with invalid arguments",
    "Invalid arguments for tool",
    "Error parsing arguments",
    "Unknown tool",
    "No such tool available",
)


def _any(patterns: Iterable[str | None]) -> "re.Pattern[str]":
    return re.compile("|".join(f"(?:{pattern})" for pattern in patterns if pattern is not None), re.MULTILINE)


_TESTS = _any(rule.failed for rule in TESTS), _any(rule.passed for rule in TESTS)
_BUILDS = _any(rule.failed for rule in BUILDS), _any(rule.passed for rule in BUILDS)
_EXIT_CODES = re.compile("|".join(EXIT_CODES), re.MULTILINE)


class ResultSigns(msgspec.Struct, frozen=True, kw_only=True):
    """The signs in one result of a tool."""

    check: Exit | None = None
    """What a test run in it says."""
    build: Exit | None = None
    """What a compiler or type checker in it says."""
    code: int | None = None
    """The exit code; None where it shows none."""
    error: bool = False
    malformed: bool = False


def read_result(content: str) -> ResultSigns:
    """Return what the text of one result says. A failed check outweighs a passed one, as a run of several suites."""
    text = content if len(content) <= HEAD + TAIL else f"{content[:HEAD]}\n{content[-TAIL:]}"
    check, build = _summary(_TESTS, text), _summary(_BUILDS, text)
    code = None
    for match in _EXIT_CODES.finditer(text):
        code = int(next(group for group in match.groups() if group is not None))
    head = text[:HEAD]
    malformed = any(words in head for words in MALFORMED)
    error = malformed or "failed" in (check, build) or bool(code) or head.lstrip().startswith(ERRORS)
    return ResultSigns(check=check, build=build, code=code, error=error, malformed=malformed)


def _summary(said: tuple["re.Pattern[str]", "re.Pattern[str]"], text: str) -> Exit | None:
    failed, passed = said
    if failed.search(text) is not None:
        return "failed"
    return "passed" if passed.search(text) is not None else None


def new_results(messages: Sequence[Turn]) -> list[Turn]:
    """The results of tools after the last answer, oldest first."""
    tool_results: list[Turn] = []
    for message in reversed(messages):
        if message.role == "assistant":
            break
        if message.role == "tool":
            tool_results.append(message)
    return tool_results[::-1]


def last_exit(signs: Iterable[ResultSigns]) -> Exit | None:
    """How the last test run or build among `signs` (oldest first) ended; without any, the last exit code."""
    checks: list[Exit] = []
    codes: list[Exit] = []
    for result in signs:
        if (shown_by := result.check or result.build) is not None:
            checks.append(shown_by)
        elif result.code is not None:
            codes.append("failed" if result.code else "passed")
    shown = checks or codes
    return shown[-1] if shown else None


# Identical calls are looked for in so many of the latest answers.
ANSWERS_COMPARED = 8


class CachedPrefix(msgspec.Struct, frozen=True, array_like=True):
    """What a tier has read of a session: `tokens`, at epoch seconds `at`."""

    tier: int
    tokens: int
    at: float


class Session(msgspec.Struct, frozen=True, array_like=True):
    """What is known of a session after its last answer. The counters are those of `SessionStep`."""

    id: bytes
    """A digest."""
    at: float
    """When it was answered, in epoch seconds."""
    steps: int = 0
    loop_steps: int = 0
    errors: int = 0
    repeats: int = 0
    bad_calls: int = 0
    raised_from: int | None = None
    cut: bool = False
    """Whether the answer stopped at its token limit."""
    message_tokens: int = 0
    """Estimate of its last messages."""
    read_tokens: int = 0
    """Billed tokens of these messages, with the answer."""
    caches: tuple[CachedPrefix, ...] = ()
    last_exit: Exit | None = None
    """Last exit code of the work since the last boundary."""
    check: Exit | None = None
    """How the caller's own check of that answer ended, by feedback."""

    def warmth(self, catalog: Catalog, now: float) -> list[Warmth]:
        """What each tier has read of the session, and how long ago."""
        held = [Warmth()] * len(catalog.tiers)
        for prefix in self.caches:
            if prefix.tier > len(held):
                continue
            reader = catalog.tier(prefix.tier)
            for spec in catalog.tiers:
                if _share_a_cache(spec, reader) and prefix.tokens > held[spec.number - 1].tokens:
                    held[spec.number - 1] = Warmth(prefix.tokens, max(0.0, now - prefix.at))
        return held


decode_session = msgspec.msgpack.Decoder(Session).decode
encode_session = msgspec.msgpack.Encoder().encode


class Counters(msgspec.Struct, frozen=True):
    """Of the work since the last boundary, with the newest results."""

    errors: int
    repeats: int
    bad_calls: int
    last_exit: Exit | None = None


def is_followed(request: InferenceRequest) -> bool:
    """Whether `request` is a step of an agent's session: it has tools, or comes from an agent's client."""
    turn = request.client
    if turn is None:
        return request.generation.tooling is not None
    return turn.kind != "housekeeping" and (bool(turn.client) or request.generation.tooling is not None)


def counted(session: Session | None, messages: Sequence[Turn], at_boundary: bool) -> Counters:
    """Return the counters of a step with what its newest results add."""
    signs = [read_result(message.text) for message in new_results(messages)]
    bad_calls = 0 if session is None else session.bad_calls
    for result in signs:
        bad_calls = bad_calls + 1 if result.malformed else 0
    if at_boundary or session is None:
        return Counters(0, 0, 0 if at_boundary else bad_calls)
    shown = last_exit(signs) or session.last_exit
    errors = session.errors + sum(result.error for result in signs)
    return Counters(errors, session.repeats + _repeated(messages), bad_calls, shown)


class Answered(msgspec.Struct, frozen=True):
    """How a step was answered."""

    step: SessionStep
    tier: int
    """The tier that answered."""
    usage: Usage | None
    """The usage; None where the answer was not made for it, so that nothing was cached."""
    cut: bool
    """Whether the answer stopped at its token limit."""
    at: float
    """Epoch seconds."""


def after(answered: Answered, session: Session | None) -> Session:
    """Return what is known of a session after one of its steps was `answered`."""
    step, tier, usage, now = answered.step, answered.tier, answered.usage, answered.at
    caches = () if session is None else session.caches
    read = step.strongest_warm
    if usage is not None:
        read = usage.prompt_tokens + usage.completion_tokens - usage.reasoning_tokens
        mine = CachedPrefix(tier, read, now)
        caches = (*(prefix for prefix in caches if prefix.tier != tier), mine)
    return Session(
        id=bytes.fromhex(step.session),
        at=now,
        steps=step.step,
        loop_steps=step.loop_step,
        errors=step.errors,
        repeats=step.repeats,
        bad_calls=0 if tier != step.previous else step.bad_calls,
        raised_from=_raised_from(step, tier),
        cut=answered.cut,
        message_tokens=step.prompt_tokens,
        read_tokens=read,
        caches=caches,
        last_exit=step.last_exit,
    )


def on_strongest(step: SessionStep, usage: Usage) -> Usage:
    """Return `usage` as the strongest tier's, had it answered all steps before: what its cache then holds it reads from
    there, and the rest of the prompt it writes."""
    cached = min(step.strongest_warm, usage.prompt_tokens)
    return msgspec.structs.replace(usage, cached_tokens=cached, cache_write_tokens=usage.prompt_tokens - cached)


def _raised_from(step: SessionStep, tier: int) -> int | None:
    """The tier that a session left upward because of its end or its trouble, until a good end or a move back."""
    if step.rule == "up" and tier > step.previous:
        return step.raised_from or step.previous
    if step.end == "good" or (step.raised_from is not None and tier <= step.raised_from):
        return None
    return step.raised_from


def _repeated(messages: Sequence[Turn]) -> int:
    """How many calls of the newest answer were made in an earlier one of the same loop too."""
    newest: list[tuple[str, str]] | None = None
    earlier: set[tuple[str, str]] = set()
    answers = 0
    for message in reversed(messages):
        if message.role == "user" and newest is not None:
            break
        if message.role != "assistant":
            continue
        calls = [(call.name, call.arguments) for call in message.calls]
        if newest is None:
            newest = calls
        else:
            earlier.update(calls)
        answers += 1
        if answers > ANSWERS_COMPARED:
            break
    return sum(call in earlier for call in newest or ())


def _share_a_cache(tier: TierSpec, other: TierSpec) -> bool:
    """A model of ours caches prefixes for all of its tiers, and a model of one server for those that only ask it to
    think longer; of other servers we only know that each has its own."""
    same_model = tier.model is not None and tier.model == other.model
    return tier.number == other.number or same_model or (tier.remote is not None and tier.remote == other.remote)


# Tenants whose counts are kept, those seen last.
MOST_TENANTS = 1000


class _Learned:
    """The counts of one tenant."""

    def __init__(self) -> None:
        self.ends, self.steps = LearnedEnds(), RemainingSteps()


class SessionLearning:
    """Counts of ended work, by tenant."""

    def __init__(self) -> None:
        self._tenants: OrderedDict[str, _Learned] = OrderedDict()

    def observe(self, step: SessionWork, before: Session | None, tenant: str, key: str) -> None:
        """Learn from the work that ended before `step`, a user's turn; `before`: the session as it was. The work's end
        is a label only where a sign says how it was."""
        if before is None or step.at != "turn":
            return
        learned = self._tenants.setdefault(tenant, _Learned())
        self._tenants.move_to_end(tenant)
        if len(self._tenants) > MOST_TENANTS:
            self._tenants.popitem(last=False)
        learned.steps.observe(step.client, key, before.loop_steps)
        if step.end is not None:
            seen = LoopCounters(before.loop_steps, before.errors, before.repeats, before.bad_calls)
            situation = EndSituation(before.loop_steps, bool(trouble_signs(seen)), before.last_exit or "unknown")
            bad = step.end == "bad"
            learned.ends.observe(step.previous, step.client, situation, bad=bad, weight=step.end_weight)

    def turn_steps(self, tenant: str, client: str, key: str, loop_step: int) -> float:
        """Expected steps of a turn from number `loop_step` on, that one included."""
        learned = self._tenants.get(tenant)
        steps = _PRIOR if learned is None else learned.steps
        return steps.predict(client, key, loop_step)

    def p_bad(self, step: SessionWork, tenant: str) -> float | None:
        """P(the loop of `step` ends badly); None while its signs have not been shown to help."""
        learned = self._tenants.get(tenant)
        if learned is None:
            return None
        seen = LoopCounters(step.loop_step, step.errors, step.repeats, step.bad_calls)
        situation = EndSituation(step.loop_step, bool(trouble_signs(seen)), step.last_exit or "unknown")
        return learned.ends.predict(step.previous, step.client, situation)


_PRIOR = RemainingSteps()


def is_housekeeping(turn: ClientTurn) -> bool:
    """Return whether a request is housekeeping: no step of its session, whose tier it neither takes nor changes."""
    return turn.kind == "housekeeping"


def cheapest_because(turn: ClientTurn, mode: str) -> str | None:
    """Return why the cheapest tier that may answer does so without being compared with others, None where it does not.

    `mode`: the knob `agents_housekeeping`.
    """
    return f"housekeeping of {turn.client}" if mode == "cheapest" and is_housekeeping(turn) else None
