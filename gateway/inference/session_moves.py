"""Where the next step of a session may run: the rule of a step, from what is known of the session and what it asks.

How the work before a user's turn ended, as the messages say it: checks and exit codes, and what the user says next.
No judge is asked. Each kind of sign has a prior probability of being right, by which it counts as a label. Tiers have
their prices by kind of token, and how long their caches hold.
"""

import hashlib
import re
from collections.abc import Sequence
from typing import Literal

import msgspec

from classifier.decision import SessionStep, Trouble
from classifier.features.stray_text import users_text
from classifier.policy.sessions import (
    MOST_BAD_CALLS,
    PRIOR_STEPS,
    EndSign,
    EndSigns,
    LoopCounters,
    SessionTier,
    Warmth,
    trouble_move,
    turn_usd,
    warm_tokens,
    work_end,
)
from gateway.base.inference_request import InferenceRequest
from gateway.inference.agent_session import Counters, Exit, ResultSigns, Session, counted, read_result
from gateway.inference.routing_knobs import RoutingKnobs
from tiers.catalog.catalog import Catalog
from tiers.catalog.pricing import reuse_usd
from tiers.catalog.tier_spec import TierSpec
from tiers.conversation import Turn

LEAST_CACHED = 1024
"""Tokens of the shortest prompt that providers cache: OpenAI's and Anthropic's documentation of prompt caching."""
OWN_CACHE_SECONDS = 3600.0
"""For how long a server of ours is expected to hold a prefix: until it needs the room, which nothing tells."""


def session_tiers(catalog: Catalog, cache_seconds: float) -> list[SessionTier]:
    """Return the tiers, cheapest first. `cache_seconds`: for how long a provider's cache is expected to hold."""
    usual = usual_output(catalog)
    return [_tier(spec, cache_seconds, usual) for spec in catalog.tiers]


def usual_output(catalog: Catalog) -> int:
    """The most tokens that any tier is expected to answer, of which each tier's answers are a share."""
    return max(spec.expected_answer_tokens for spec in catalog.tiers)


def _tier(spec: TierSpec, cache_seconds: float, usual: int) -> SessionTier:
    price = spec.price
    saved = reuse_usd(spec, 1_000_000)
    write = price.input_usd_per_million
    if price.cache_write_usd_per_million is not None:
        write = price.cache_write_usd_per_million
    own = spec.remote is None
    return SessionTier(
        input_usd=price.input_usd_per_million,
        output_usd=price.output_usd_per_million,
        read_usd=price.input_usd_per_million - saved,
        write_usd=write,
        cache_seconds=OWN_CACHE_SECONDS if own else cache_seconds if saved > 0 else 0.0,
        min_cached_tokens=0 if own else LEAST_CACHED,
        output_ratio=spec.expected_answer_tokens / usual,
    )


# So many results before the user's turn are read, and so many characters of what the user says.
RESULTS_READ, TURN_READ = 8, 400
WEIGHTS: dict[EndSign, float] = {
    "check": 1.0,
    "build": 0.5,
    "rejected": 0.7,
    "cut": 0.7,
    "unclean": 0.7,
    "exit_code": 0.5,
    "accepted": 0.5,
    "interrupted": 0.4,
}
"""How much a sign counts as a label, of a judged one: priors, until a customer's own probes and feedback say better. A
test's result is the task's own check, and a build that passes is half of one; an exit code is often that of a search
without a match; a user interrupts for many reasons."""
_WORDS: dict[EndSign, str] = {
    "check": "the last check",
    "build": "the last build or type check",
    "exit_code": "the last exit code",
    "rejected": "the user rejects it",
    "accepted": "the user accepts it",
    "interrupted": "the user interrupted it",
    "cut": "the last answer was cut off",
    "unclean": "its last calls have no results",
}
_REJECTED = re.compile(
    r"\b(?:"
    r"(?:still|again) (?:fail|broken|wrong|not work|doesn'?t|does not|the same|get)\w*"
    r"|(?:that|this|it)(?:'s| is| was)? (?:wrong|not (?:right|correct|what i)|incorrect|broken)"
    r"|(?:did|does|do|is)(?: not|n'?t) (?:work|compile|build|pass|fix|help|run)\w*"
    r"|(?:revert|undo|roll back) (?:that|this|it|your|the last|everything|all)"
    r"|try again|you broke|tests? (?:still )?fail\w*|same error"
    r")",
    re.IGNORECASE,
)
_ACCEPTED = re.compile(
    r"^\W*(?:(?:ok(?:ay)?|yes|cool|nice|great)[,.! ]+)?"
    r"(?:thanks?\b|thank you|perfect|great\b|works\b|it works|that works|that worked|looks good|lgtm|well done|awesome)"
    r"|^\W*(?:(?:now|please|ok(?:ay)?|great)[, ]+){0,3}(?:commit|push|merge|open a (?:pr|pull request))\b",
    re.IGNORECASE,
)
# Claude Code and Codex write these in the user's name.
_INTERRUPTED = ("[Request interrupted by user", "<turn_aborted>")


class ReadEnd(msgspec.Struct, frozen=True):
    """How the work ended; `words` say it to people, without any text of the caller."""

    end: Literal["good", "bad"]
    sign: EndSign
    """The sign by which it ended."""

    @property
    def words(self) -> str:
        verb = {"good": " passed", "bad": " failed"}[self.end] if self.sign in ("check", "build", "exit_code") else ""
        return _WORDS[self.sign] + verb


def end_before(messages: Sequence[Turn], cut: bool, posted: Exit | None = None) -> ReadEnd | None:
    """Return how the work before the last user turn of `messages` ended; None where nothing says so.

    `cut`: the last answer stopped at its token limit. `posted`: how the caller's own check of it ended, in place of
    those that the messages show.
    """
    said = messages[-1].text
    words = users_text(said.strip())
    results = [read_result(message.text) for message in _results_before(messages)]
    # Clients without tools send a check's output as the user's turn.
    shown = [*results, read_result(words)]
    checks = [result.check for result in shown if result.check is not None] if posted is None else [posted]
    builds = _builds_after_tests(shown) if posted is None else []
    codes = [result.code for result in results if result.code is not None]
    unanswered = len(messages) > 1 and bool(messages[-2].calls)
    ended = work_end(
        EndSigns(
            clean=False if unanswered else None,
            check_passed=checks[-1] == "passed" if checks else None,
            build_passed=builds[-1] == "passed" if builds else None,
            exit_passed=codes[-1] == 0 if codes else None,
            cut=cut,
            user=_said_by_user(said, words[:TURN_READ]),
        )
    )
    return None if ended.end == "none" else ReadEnd(ended.end, ended.sign)


def _builds_after_tests(shown: Sequence[ResultSigns]) -> list[Exit]:
    """The builds and type checks since the last tests, which needed a build themselves."""
    builds: list[Exit] = []
    for result in shown:
        if result.check is not None:
            builds.clear()
        elif result.build is not None:
            builds.append(result.build)
    return builds


def _said_by_user(said: str, words: str) -> Literal["interrupts", "rejects", "accepts"] | None:
    if any(mark in said[:TURN_READ] for mark in _INTERRUPTED):
        return "interrupts"
    if _REJECTED.search(words) is not None:
        return "rejects"
    return "accepts" if _ACCEPTED.search(words) is not None else None


def _results_before(messages: Sequence[Turn]) -> list[Turn]:
    """The last results of tools between the last two user turns, oldest first."""
    results: list[Turn] = []
    for message in reversed(messages[:-1]):
        if message.role == "user" and users_text(message.text.strip()):
            break
        if message.role == "tool":
            results.append(message)
            if len(results) == RESULTS_READ:
                break
    return results[::-1]


GROWTH_TOKENS = 1000.0
"""Tokens by which a prompt grows from step to step, the answer included: the median of twice the tokens read over the
steps squared was 1,028 in 846 recorded runs on SWE-bench Pro, quartiles 816 and 1,369."""
# A history so much shorter than what was read of it is another one: it was compacted, and nothing of it is cached.
COMPACTED_SHARE = 0.5


class Known(msgspec.Struct, frozen=True, kw_only=True):
    """What is known of a session before a step."""

    id: bytes
    """Digest of the session."""
    session: Session | None
    previous: int | None
    """The tier of its last answer; None for a first step."""
    history_tokens: int
    """Estimate of its messages up to that answer."""
    in_tool_loop: bool
    parent: int | None = None
    """The tier of a subagent's parent."""
    turn_steps: float = PRIOR_STEPS
    """Expected steps of its turn from this one on."""


def next_step(
    request: InferenceRequest, facts: Known, catalog: Catalog, knobs: RoutingKnobs, prompt_tokens: int, now: float
) -> SessionStep:
    """Return the step that `request` is, with its rule. `prompt_tokens`: an estimate. `now`: epoch seconds."""
    session, turn = facts.session, request.client
    client = "" if turn is None else turn.client
    gap = None if session is None else max(0.0, now - session.at)
    compacted = session is not None and facts.history_tokens < session.message_tokens * COMPACTED_SHARE
    tiers = session_tiers(catalog, knobs.agents_cache_seconds)
    warmth = [Warmth()] * len(tiers) if session is None or compacted else session.warmth(catalog, now)
    strongest_warm = 0
    if session is not None and not compacted:
        strongest_warm = warm_tokens(tiers[-1], Warmth(session.read_tokens, gap or 0.0), prompt_tokens)
    at = _place(request, facts, compacted, gap is not None and gap > knobs.agents_cache_seconds)
    messages = request.generation.messages or []
    counters = counted(session, messages, at_boundary=at != "loop")
    loop_step = 1 if session is None or at != "loop" else session.loop_steps + 1
    end = None
    if at == "turn" and messages:
        end = end_before(messages, session is not None and session.cut, None if session is None else session.check)
    step = SessionStep(
        session=(facts.id if session is None else session.id).hex(),
        client=client,
        step=1 if session is None else session.steps + 1,
        loop_step=loop_step,
        at=at,
        gap_seconds=gap,
        errors=counters.errors,
        repeats=counters.repeats,
        bad_calls=counters.bad_calls,
        last_exit=counters.last_exit,
        end=None if end is None else end.end,
        end_sign=None if end is None else end.sign,
        end_weight=0.0 if end is None else WEIGHTS[end.sign],
        end_words="" if end is None else end.words,
        previous=facts.previous or 0,
        raised_from=None if session is None else session.raised_from,
        floor=facts.parent,
        prompt_tokens=prompt_tokens,
        warm=[warm_tokens(tier, held, prompt_tokens) for tier, held in zip(tiers, warmth, strict=True)],
        strongest_warm=strongest_warm,
    )
    step = _ruled(step, request, knobs, counters)
    if step.rule != "rest":
        return step
    # How many turns a session goes on for is not known: the rest is this turn's.
    output = usual_output(catalog)
    rest = [
        turn_usd(tier, warm, prompt_tokens, GROWTH_TOKENS, output, max(1.0, facts.turn_steps))
        for tier, warm in zip(tiers, step.warm, strict=True)
    ]
    return msgspec.structs.replace(step, rest_usd=rest, rest_steps=facts.turn_steps)


def _place(
    request: InferenceRequest, facts: Known, compacted: bool, cold: bool
) -> Literal["start", "loop", "turn", "compaction", "gap"]:
    if facts.previous is None:
        return "start"
    if compacted or (request.client is not None and request.client.kind == "compaction"):
        return "compaction"
    if not facts.in_tool_loop:
        return "turn"
    return "gap" if cold else "loop"


def _ruled(step: SessionStep, request: InferenceRequest, knobs: RoutingKnobs, counters: Counters) -> SessionStep:
    tier = step.previous
    if step.at == "start":
        return step
    if request.client is not None and request.client.kind == "compaction":
        why = f"a compaction stays on tier {tier}, because the cache there holds the session"
        return msgspec.structs.replace(step, rule="stay", because=why)
    if step.at == "loop":
        return _in_loop(step, request, knobs, counters)
    if step.end == "bad" and knobs.agents_after_bad_end == "up":
        why = f"the session moves up from tier {tier} after a bad end: {step.end_words}"
        return msgspec.structs.replace(step, rule="up", because=why)
    if step.raised_from is not None and step.end != "good":
        why = f"the session stays on tier {tier} until a good end, because tier {step.raised_from} had a bad end"
        return msgspec.structs.replace(step, rule="keep", because=why)
    return msgspec.structs.replace(step, rule="rest", because="the least expected cost of the rest of the session")


def _in_loop(step: SessionStep, request: InferenceRequest, knobs: RoutingKnobs, counters: Counters) -> SessionStep:
    tier = step.previous
    if counters.bad_calls >= MOST_BAD_CALLS:
        why = f"tier {tier} wrote {counters.bad_calls} tool calls in a row that no tool could read"
        return msgspec.structs.replace(step, rule="up", because=why)
    stays = msgspec.structs.replace(step, rule="stay", because=f"the tool loop stays on tier {tier}")
    if step.raised_from is not None:
        return stays
    seen = LoopCounters(
        steps=step.loop_step, errors=counters.errors, repeats=counters.repeats, bad_calls=counters.bad_calls
    )
    consents = request.consent.reuse
    move = trouble_move(knobs.agents_trouble, seen, consents, knobs.agents_trouble_share, _uniform(step.session))
    if move is None:
        return stays
    trouble = Trouble(signs=move.signs, moves=move.moves, propensity=move.propensity)
    if not move.moves:
        return msgspec.structs.replace(stays, trouble=trouble)
    why = f"the session moves up from tier {tier}: {move.signs}"
    return msgspec.structs.replace(step, rule="up", because=why, trouble=trouble)


def _uniform(session: str) -> float:
    """A number in [0, 1) that is the session's own, so that each of its steps draws alike."""
    digest = hashlib.blake2b(session.encode(), digest_size=8, person=b"aio-trouble-v1").digest()
    return int.from_bytes(digest, "little") / 2**64
