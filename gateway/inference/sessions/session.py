"""An agent's session as it is remembered between its steps, in numbers and digests alone, and how a step changes it."""

from collections.abc import Sequence

import msgspec

from classifier.decision import SessionStep
from classifier.policy.sessions import Warmth
from gateway.base.requests.inference_request import InferenceRequest
from gateway.inference.sessions.tool_results import Exit, last_exit, new_results, read_result
from tiers.catalog.catalog import Catalog
from tiers.catalog.tier_spec import TierSpec
from tiers.tier import ChatMessage, Usage

# Identical calls are looked for in so many of the latest answers.
ANSWERS_COMPARED = 8


class CachedPrefix(msgspec.Struct, frozen=True, array_like=True):
    """What a tier has read of a session: `tokens`, at epoch seconds `at`."""

    tier: int
    tokens: int
    at: float


class Session(msgspec.Struct, frozen=True, array_like=True):
    """What is known of a session after its last answer. `id`: a digest. `at`: epoch seconds of that answer, and `cut`:
    it stopped at its token limit. The counters are those of `SessionStep`; `last_exit` is of the work since the last
    boundary. `message_tokens`: estimate of its last messages; `read_tokens`: those billed, with the answer."""

    id: bytes
    at: float
    steps: int = 0
    loop_steps: int = 0
    errors: int = 0
    repeats: int = 0
    bad_calls: int = 0
    raised_from: int | None = None
    cut: bool = False
    message_tokens: int = 0
    read_tokens: int = 0
    caches: tuple[CachedPrefix, ...] = ()
    last_exit: Exit | None = None

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


def counted(session: Session | None, messages: Sequence[ChatMessage], at_boundary: bool) -> Counters:
    """Return the counters of a step with what its newest results add."""
    signs = [read_result(message.content) for message in new_results(messages)]
    bad_calls = 0 if session is None else session.bad_calls
    for one in signs:
        bad_calls = bad_calls + 1 if one.malformed else 0
    if at_boundary or session is None:
        return Counters(0, 0, 0 if at_boundary else bad_calls)
    shown = last_exit(signs) or session.last_exit
    errors = session.errors + sum(one.error for one in signs)
    return Counters(errors, session.repeats + _repeated(messages), bad_calls, shown)


class Answered(msgspec.Struct, frozen=True):
    """How a step was answered: by which `tier`, with which `usage` (None where the answer was not made for it, so that
    nothing was cached), and whether it was `cut` off at its token limit. `at`: epoch seconds."""

    step: SessionStep
    tier: int
    usage: Usage | None
    cut: bool
    at: float


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


def _repeated(messages: Sequence[ChatMessage]) -> int:
    """How many calls of the newest answer were made in an earlier one of the same loop too."""
    newest: list[tuple[str, str]] | None = None
    earlier: set[tuple[str, str]] = set()
    answers = 0
    for message in reversed(messages):
        if message.role == "user" and newest is not None:
            break
        if message.role != "assistant":
            continue
        calls = [(call.name, call.arguments) for call in message.tool_calls]
        if newest is None:
            newest = calls
        else:
            earlier.update(calls)
        answers += 1
        if answers > ANSWERS_COMPARED:
            break
    return sum(call in earlier for call in newest or ())


def _share_a_cache(one: TierSpec, other: TierSpec) -> bool:
    """A model of ours caches prefixes for all of its tiers, and a model of one server for those that only ask it to
    think longer; of other servers we only know that each has its own."""
    same_model = one.model is not None and one.model == other.model
    return one.number == other.number or same_model or (one.remote is not None and one.remote == other.remote)
