"""Where the next step of a session may run: the rule of a step, from what is known of the session and what it asks."""

import hashlib
from typing import Literal

import msgspec

from classifier.decision import SessionStep, Trouble
from gateway.base.requests.inference_request import InferenceRequest
from gateway.inference.sessions.ends import WEIGHTS, WorkEnd, end_before
from gateway.inference.sessions.rest_cost import rest_costs
from gateway.inference.sessions.session import Counters, Session, counted
from tiers.catalog.catalog import Catalog

# A tier that forms so many calls in a row that no tool can read goes no further.
MOST_BAD_CALLS = 3
# Trouble: from this step of a loop on, errors in such a share of its steps, or so many repeated calls.
TROUBLE_FROM, TROUBLE_ERRORS, TROUBLE_REPEATS = 5, 0.5, 3
REST_STEPS = 18.0
"""Expected steps of a session after a boundary: the median of 133 recorded runs on terminal tasks; of 1,010 on software
tasks it was 68."""
# A history so much shorter than what was read of it is another one: it was compacted, and nothing of it is cached.
COMPACTED_SHARE = 0.5


class SessionRules(msgspec.Struct, frozen=True, kw_only=True):
    """The knobs of sessions (docs/agents.md)."""

    after_bad_end: bool
    boundary: bool
    trouble: str
    trouble_share: float
    cache_seconds: float
    compaction: bool
    subagent_floor: bool


class Known(msgspec.Struct, frozen=True, kw_only=True):
    """What is known of a session before a step. `id`: its digest. `previous`: the tier of its last answer, None for a
    first step. `history_tokens`: estimate of its messages up to that answer. `parent`: of a subagent, its parent's
    tier."""

    id: bytes
    session: Session | None
    previous: int | None
    history_tokens: int
    in_tool_loop: bool
    parent: int | None = None


def next_step(
    request: InferenceRequest, known: Known, catalog: Catalog, rules: SessionRules, prompt_tokens: int, now: float
) -> SessionStep:
    """Return the step that `request` is, with its rule. `prompt_tokens`: estimate of its prompt; `now`: epoch
    seconds."""
    session, turn = known.session, request.client
    client = "" if turn is None else turn.client
    gap = None if session is None else max(0.0, now - session.at)
    compacted = session is not None and known.history_tokens < session.prompt_tokens * COMPACTED_SHARE
    warm = [0] * len(catalog.tiers)
    strongest_warm = 0
    if session is not None and not compacted:
        warm = [min(tokens, prompt_tokens) for tokens in session.warm(catalog, now, rules.cache_seconds)]
        if gap is not None and gap <= rules.cache_seconds:
            strongest_warm = min(session.read_tokens, prompt_tokens)
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
        warm=warm,
        strongest_warm=strongest_warm,
    )
    return _ruled(step, request, catalog, rules, prompt_tokens, end, counters)


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


def _ruled(
    step: SessionStep,
    request: InferenceRequest,
    catalog: Catalog,
    rules: SessionRules,
    prompt_tokens: int,
    end: WorkEnd | None,
    counters: Counters,
) -> SessionStep:
    tier = step.previous
    if step.at == "start":
        return step
    if rules.compaction and request.client is not None and request.client.kind == "compaction":
        why = f"a compaction stays on tier {tier}, whose cache holds the session"
        return msgspec.structs.replace(step, rule="stay", because=why)
    if step.at == "loop":
        return _in_loop(step, request, rules, counters)
    if end is not None and end.end == "bad" and rules.after_bad_end:
        why = f"above tier {tier} after a bad end: {end.words}"
        return msgspec.structs.replace(step, rule="up", because=why)
    if step.raised_from is not None and step.end != "good":
        why = f"the session stays on tier {tier} until a good end, after a bad one on tier {step.raised_from}"
        return msgspec.structs.replace(step, rule="keep", because=why)
    steps = REST_STEPS if rules.boundary else 1.0
    rest = rest_costs(catalog, step.warm, prompt_tokens, steps)
    why = f"the session is on tier {tier}"
    return msgspec.structs.replace(step, rule="rest", because=why, rest_usd=rest, rest_steps=steps)


def _in_loop(step: SessionStep, request: InferenceRequest, rules: SessionRules, counters: Counters) -> SessionStep:
    tier = step.previous
    if counters.bad_calls >= MOST_BAD_CALLS:
        why = f"tier {tier} formed {counters.bad_calls} calls in a row that no tool could read"
        return msgspec.structs.replace(step, rule="up", because=why)
    stays = msgspec.structs.replace(step, rule="stay", because=f"the tool loop stays on tier {tier}")
    if rules.trouble == "off" or step.raised_from is not None or not (signs := trouble_signs(step)):
        return stays
    if rules.trouble == "act":
        trouble = Trouble(signs=signs, moves=True, propensity=1.0)
    elif request.consent.reuse and rules.trouble_share:
        drawn = _uniform(step.session) < rules.trouble_share
        propensity = rules.trouble_share if drawn else 1.0 - rules.trouble_share
        trouble = Trouble(signs=signs, moves=drawn, propensity=propensity)
    else:
        trouble = Trouble(signs=signs, moves=False, propensity=1.0)
    if not trouble.moves:
        return msgspec.structs.replace(stays, trouble=trouble)
    return msgspec.structs.replace(step, rule="up", because=f"above tier {tier}: {signs}", trouble=trouble)


def trouble_signs(step: SessionStep) -> str:
    """Return in words why the loop of `step` seems to be in trouble; "" where it does not."""
    if step.loop_step < TROUBLE_FROM:
        return ""
    if step.errors >= TROUBLE_ERRORS * step.loop_step:
        return f"{step.errors} errors in {step.loop_step} steps"
    if step.repeats >= TROUBLE_REPEATS:
        return f"{step.repeats} repeated calls in {step.loop_step} steps"
    return ""


def _uniform(session: str) -> float:
    """A number in [0, 1) that is the session's own, so that each of its steps draws alike."""
    digest = hashlib.blake2b(session.encode(), digest_size=8, person=b"aio-trouble-v1").digest()
    return int.from_bytes(digest, "little") / 2**64
