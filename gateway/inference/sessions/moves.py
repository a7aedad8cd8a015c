"""Where the next step of a session may run: the rule of a step, from what is known of the session and what it asks."""

import hashlib
from typing import Literal

import msgspec

from classifier.decision import SessionStep, Trouble
from classifier.policy.sessions import (
    MOST_BAD_CALLS,
    PRIOR_STEPS,
    LoopCounters,
    TroubleMode,
    Warmth,
    trouble_move,
    turn_usd,
    warm_tokens,
)
from gateway.base.requests.inference_request import InferenceRequest
from gateway.inference.sessions.ends import WEIGHTS, end_before
from gateway.inference.sessions.session import Counters, Session, counted
from gateway.inference.sessions.session_tiers import session_tiers, usual_output
from tiers.catalog.catalog import Catalog

GROWTH_TOKENS = 1000.0
"""Tokens by which a prompt grows from step to step, the answer included: the median of twice the tokens read over the
steps squared was 1,028 in 846 recorded runs on SWE-bench Pro, quartiles 816 and 1,369."""
# A history so much shorter than what was read of it is another one: it was compacted, and nothing of it is cached.
COMPACTED_SHARE = 0.5


class SessionRules(msgspec.Struct, frozen=True, kw_only=True):
    """The knobs of sessions (docs/agents.md)."""

    after_bad_end: bool
    boundary: bool
    trouble: TroubleMode
    trouble_share: float
    cache_seconds: float
    compaction: bool
    subagent_floor: bool


class Known(msgspec.Struct, frozen=True, kw_only=True):
    """What is known of a session before a step. `id`: its digest. `previous`: the tier of its last answer, None for a
    first step. `history_tokens`: estimate of its messages up to that answer. `parent`: of a subagent, its parent's
    tier. `turn_steps`: expected steps of its turn from this one on."""

    id: bytes
    session: Session | None
    previous: int | None
    history_tokens: int
    in_tool_loop: bool
    parent: int | None = None
    turn_steps: float = PRIOR_STEPS


def next_step(
    request: InferenceRequest, known: Known, catalog: Catalog, rules: SessionRules, prompt_tokens: int, now: float
) -> SessionStep:
    """Return the step that `request` is, with its rule. `prompt_tokens`: an estimate. `now`: epoch seconds."""
    session, turn = known.session, request.client
    client = "" if turn is None else turn.client
    gap = None if session is None else max(0.0, now - session.at)
    compacted = session is not None and known.history_tokens < session.message_tokens * COMPACTED_SHARE
    tiers = session_tiers(catalog, rules.cache_seconds)
    warmth = [Warmth()] * len(tiers) if session is None or compacted else session.warmth(catalog, now)
    strongest_warm = 0
    if session is not None and not compacted:
        strongest_warm = warm_tokens(tiers[-1], Warmth(session.read_tokens, gap or 0.0), prompt_tokens)
    at = _place(request, known, compacted, gap is not None and gap > rules.cache_seconds)
    messages = request.generation.messages or []
    counters = counted(session, messages, at_boundary=at != "loop")
    loop_step = 1 if session is None or at != "loop" else session.loop_steps + 1
    end = end_before(messages, session is not None and session.cut) if at == "turn" and messages else None
    step = SessionStep(
        session=(known.id if session is None else session.id).hex(),
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
        previous=known.previous or 0,
        raised_from=None if session is None else session.raised_from,
        floor=known.parent if rules.subagent_floor else None,
        prompt_tokens=prompt_tokens,
        warm=[warm_tokens(tier, held, prompt_tokens) for tier, held in zip(tiers, warmth, strict=True)],
        strongest_warm=strongest_warm,
    )
    step = _ruled(step, request, rules, counters)
    if step.rule != "rest":
        return step
    # How many turns a session goes on for is not known: the rest is this turn's.
    steps = known.turn_steps if rules.boundary else 1.0
    output = usual_output(catalog)
    rest = [
        turn_usd(tier, warm, prompt_tokens, GROWTH_TOKENS, output, max(1.0, steps))
        for tier, warm in zip(tiers, step.warm, strict=True)
    ]
    return msgspec.structs.replace(step, rest_usd=rest, rest_steps=steps)


def _place(
    request: InferenceRequest, known: Known, compacted: bool, cold: bool
) -> Literal["start", "loop", "turn", "compaction", "gap"]:
    if known.previous is None:
        return "start"
    if compacted or (request.client is not None and request.client.kind == "compaction"):
        return "compaction"
    if not known.in_tool_loop:
        return "turn"
    return "gap" if cold else "loop"


def _ruled(step: SessionStep, request: InferenceRequest, rules: SessionRules, counters: Counters) -> SessionStep:
    tier = step.previous
    if step.at == "start":
        return step
    if rules.compaction and request.client is not None and request.client.kind == "compaction":
        why = f"a compaction stays on tier {tier}, whose cache holds the session"
        return msgspec.structs.replace(step, rule="stay", because=why)
    if step.at == "loop":
        return _in_loop(step, request, rules, counters)
    if step.end == "bad" and rules.after_bad_end:
        why = f"above tier {tier} after a bad end: {step.end_words}"
        return msgspec.structs.replace(step, rule="up", because=why)
    if step.raised_from is not None and step.end != "good":
        why = f"the session stays on tier {tier} until a good end, after a bad one on tier {step.raised_from}"
        return msgspec.structs.replace(step, rule="keep", because=why)
    return msgspec.structs.replace(step, rule="rest", because="the least expected cost of the rest of the session")


def _in_loop(step: SessionStep, request: InferenceRequest, rules: SessionRules, counters: Counters) -> SessionStep:
    tier = step.previous
    if counters.bad_calls >= MOST_BAD_CALLS:
        why = f"tier {tier} formed {counters.bad_calls} calls in a row that no tool could read"
        return msgspec.structs.replace(step, rule="up", because=why)
    stays = msgspec.structs.replace(step, rule="stay", because=f"the tool loop stays on tier {tier}")
    if step.raised_from is not None:
        return stays
    seen = LoopCounters(
        steps=step.loop_step, errors=counters.errors, repeats=counters.repeats, bad_calls=counters.bad_calls
    )
    consents = request.consent.reuse
    move = trouble_move(rules.trouble, seen, consents, rules.trouble_share, _uniform(step.session))
    if move is None:
        return stays
    trouble = Trouble(signs=move.signs, moves=move.moves, propensity=move.propensity)
    if not move.moves:
        return msgspec.structs.replace(stays, trouble=trouble)
    return msgspec.structs.replace(step, rule="up", because=f"above tier {tier}: {move.signs}", trouble=trouble)


def _uniform(session: str) -> float:
    """A number in [0, 1) that is the session's own, so that each of its steps draws alike."""
    digest = hashlib.blake2b(session.encode(), digest_size=8, person=b"aio-trouble-v1").digest()
    return int.from_bytes(digest, "little") / 2**64
