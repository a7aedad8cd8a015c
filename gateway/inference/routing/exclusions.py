"""Which tiers cannot take a request, whatever it is worth: by the caller's key, what it needs, its length, or the
tier's state."""

import time
from collections.abc import Collection, Iterator, Mapping

import msgspec

from classifier.decision import Exclusion
from gateway.base.requests.inference_request import InferenceRequest
from tiers.catalog.capabilities import Capability
from tiers.catalog.catalog import Catalog
from tiers.catalog.tier_spec import TierSpec
from tiers.consent import hidden_from
from tiers.content_parts import PartType
from tiers.remote.optional_fields import NEUTRAL, SAMPLING, sampling_of
from tiers.tier import Tier, TierLoad

_MEDIA: Mapping[PartType, tuple[Capability, str]] = {
    "image_url": ("vision", "images"),
    "input_audio": ("audio", "audio"),
    "file": ("files", "files"),
}


class Need(msgspec.Struct, frozen=True):
    """`param`: where the request says so; `subject`: what it is there; `noun`: what the tier has to support.
    `refusal`: what the API of the tier's server cannot do, in its own words, instead of a declared capability."""

    capability: Capability | None
    param: str
    subject: str = ""
    noun: str = ""
    refusal: str = ""


DOWN = "the tier is down"
WITHOUT_CHATS = "the model has no chat template: it continues prompts of /v1/completions, and takes no chats"
FIRST_EXTENSION = len(SAMPLING)
"""Of the sampling fields: those before it are known to every kind of server, or can be left out."""
MAX_SCORES = 1 << 17
"""Log-probabilities of repeated prompts in one answer: about 4 MB of JSON, as much as a request may have."""


def needs_of(request: InferenceRequest) -> list[Need]:
    """Return what `request` needs, parts of its messages first; empty for plain text."""
    messages, sampling = request.generation.messages, request.generation.sampling
    needs = list(_media(request)) if messages and any(m.parts for m in messages) else []
    if request.generation.tooling is not None:
        needs.append(Need("tools", "tools", "tools", "function calls"))
    if sampling.grammar is not None:
        param = sampling.grammar.param or "response_format"
        needs.append(Need("json_schema", param, param, "structured output"))
    if sampling.logprobs is not None:
        needs.append(Need("logprobs", "logprobs", "logprobs", "log-probabilities"))
    return needs


def lacking(needs: Collection[Need], spec: TierSpec) -> list[Need]:
    """Return those of `needs` that the tier of `spec` does not support."""
    has = spec.has
    return [need for need in needs if need.capability not in has]


def is_plain(request: InferenceRequest) -> bool:
    """Whether every kind of server can serve the fields of the request, or drop them: a chat of texts with common
    sampling."""
    asked, sampling = request.generation, request.generation.sampling
    bound = sampling.grammar is not None or sampling.logit_bias or sampling.logprobs is not None
    extended = (
        bound
        or (asked.native is not None and asked.native.server_tools)
        or asked.echo
        or asked.include_stop
        or asked.n > 1
    )
    if extended or asked.messages is None or sampling_of(sampling)[FIRST_EXTENSION:] != NEUTRAL[FIRST_EXTENSION:]:
        return False
    return not [message for message in asked.messages if message.parts]


def lacks_of(request: InferenceRequest, needs: Collection[Need], tier: Tier, spec: TierSpec) -> list[Need]:
    """Return what the tier lacks for the request: of `needs` what it is not declared to support, else what the API of
    its server cannot do."""
    if request.generation.messages is not None and not tier.takes_chats:
        return [Need(None, "messages", refusal=WITHOUT_CHATS)]
    lacks = lacking(needs, spec) if needs else []
    if lacks:
        return lacks
    if spec.remote is None:
        native = request.generation.native
        own = [] if native is None else native.server_tools
        refusal = f"tools: {', '.join(own)} is run by the provider that has it, and tier '{spec.name}' runs here"
        return [Need(None, "tools", refusal=refusal)] if own else []
    refused = tier.refusal(request.generations(spec)[0])
    if refused is None:
        return []
    return [Need(None, refused.param or "", refusal=str(refused).partition(";")[0])]


class Excluded(msgspec.Struct, frozen=True, kw_only=True):
    """Tiers that cannot take a request now. `too_long`: those among them whose context is too short for it;
    `incapable`: those that lack what it needs, with what they lack; `ruled_out`: by the catalogue's rules, with why."""

    exclusions: list[Exclusion] = []
    too_long: list[int] = []
    incapable: dict[int, list[Need]] = {}
    ruled_out: dict[int, str] = {}


def exclusions(
    request: InferenceRequest,
    pinned: int | None,
    tiers: Mapping[int, Tier],
    catalog: Catalog,
    loads: Mapping[int, TierLoad],
) -> Excluded:
    """Return the tiers that cannot take the request now, of all, or of `pinned` alone. `loads`: of every tier."""
    excluded = Excluded()
    plain, consent = is_plain(request), request.consent
    needs = [] if plain and request.generation.tooling is None else needs_of(request)
    most, many_scores = request.most_prompt_tokens(), request.generation.echo and request.most_scores() > MAX_SCORES
    may_be_too_long = many_scores or not _fits_every_context(request, most, tiers)
    for spec in catalog.tiers:
        number, tier = spec.number, tiers.get(spec.number)
        if pinned is not None and number != pinned:
            continue
        reason = hidden_from(spec, consent)
        if reason is not None or tier is None:
            pass
        elif (needs or not plain or not tier.takes_chats) and (lacks := lacks_of(request, needs, tier, spec)):
            excluded.incapable[number] = lacks
            declared = " and ".join(need.noun for need in lacks if not need.refusal)
            reason = f"it does not support {declared}" if declared else lacks[0].refusal
        elif (may_be_too_long and tier.max_context) and (
            reason := context_problem(request, most, tier, spec)
            or (_scores_problem(request, tier, spec) if many_scores else None)
        ):
            excluded.too_long.append(number)
        elif (load := loads[number]).healthy and request.deadline_seconds is None:
            continue
        else:
            reason = load_problem(request, load)
        if reason:
            excluded.exclusions.append(Exclusion(tier=number, reason=reason))
    return excluded


def count_in_doubt(request: InferenceRequest, pinned: int | None, tiers: Mapping[int, Tier], catalog: Catalog) -> None:
    """Count the prompt's tokens for each tier that `exclusions` cannot judge by its bytes, and only once for those that
    read it alike; `exclusions` then takes no time. For a thread: takes as long as the prompt is long."""
    for number, tier in _in_doubt(request, pinned, tiers, catalog):
        _longest(request, tier, catalog.tier(number))


def is_in_doubt(request: InferenceRequest, pinned: int | None, tiers: Mapping[int, Tier], catalog: Catalog) -> bool:
    """Whether there is anything to count."""
    if not request.generation.echo and _fits_every_context(request, request.most_prompt_tokens(), tiers):
        return False
    return next(_in_doubt(request, pinned, tiers, catalog), None) is not None


def _in_doubt(
    request: InferenceRequest, pinned: int | None, tiers: Mapping[int, Tier], catalog: Catalog
) -> Iterator[tuple[int, Tier]]:
    most, many_scores = request.most_prompt_tokens(), request.generation.echo and request.most_scores() > MAX_SCORES
    if not many_scores and _fits_every_context(request, most, tiers):
        return
    for number, tier in tiers.items():
        if not tier.max_context:
            continue  # It has not started: it is down, and cannot count.
        if request.generation.messages is not None and not tier.takes_chats:
            continue
        room = request.least_room(tier.max_context)
        is_unclear = many_scores or most + room > tier.max_context
        asked = is_unclear and pinned in (None, number) and request.caller.may_use(catalog.tier(number))
        # A tier for text alone cannot count the tokens of an image.
        if asked and not lacking(needs_of(request), catalog.tier(number)):
            yield number, tier


def _fits_every_context(request: InferenceRequest, most: int, tiers: Mapping[int, Tier]) -> bool:
    """Whether the request, of at most `most` tokens, fits each tier that has started: the shortest context decides,
    because a longer one has at least as much room beyond the answer's."""
    started = [tier.max_context for tier in tiers.values() if tier.max_context]
    shortest = min(started) if started else 0
    return most + request.least_room(shortest) <= shortest


def context_problem(request: InferenceRequest, most: int, tier: Tier, spec: TierSpec) -> str | None:
    """Why the request, of at most `most` tokens, cannot fit the tier's context; they are counted only in doubt."""
    wanted = request.least_room(tier.max_context)
    if most + wanted <= tier.max_context:
        return None
    prompt = _longest(request, tier, spec)
    if prompt + wanted <= tier.max_context:
        return None
    return f"at least {prompt} prompt tokens and {wanted} answer tokens exceed the context of {tier.max_context} tokens"


def overflow_of(request: InferenceRequest, tier: Tier, spec: TierSpec) -> dict[str, int]:
    """Return the counts by which the request does not fit the tier's context, as `ContextLengthError` takes them: those
    of the prompt are the least, as it is counted only until it is known not to fit. Empty if it fits."""
    wanted, prompt = request.least_room(tier.max_context), _longest(request, tier, spec)
    if prompt + wanted <= tier.max_context:
        return {}
    return {"prompt_tokens": prompt, "answer_tokens": wanted, "max_context": tier.max_context}


def _scores_problem(request: InferenceRequest, tier: Tier, spec: TierSpec) -> str | None:
    """Why the answer would have too many log-probabilities of its prompts, which each choice repeats."""
    each, tokens = request.scores_per_token, sum(_lengths(request, tier, spec))
    if each * tokens <= MAX_SCORES:
        return None
    return f"{tokens} prompt tokens with {each} log-probabilities each exceed the {MAX_SCORES} that an answer may have"


def _longest(request: InferenceRequest, tier: Tier, spec: TierSpec) -> int:
    return max(_lengths(request, tier, spec))


def _lengths(request: InferenceRequest, tier: Tier, spec: TierSpec) -> list[int]:
    room = tier.max_context - request.least_room(tier.max_context)
    return [tier.prompt_tokens_up_to(one, room) for one in request.generations(spec)]


def load_problem(request: InferenceRequest, load: TierLoad) -> str | None:
    """Why a tier with this load cannot take the request now."""
    if not load.healthy:
        return DOWN
    if request.deadline_seconds is None:
        return None
    left = request.generation.arrival + request.deadline_seconds - time.monotonic()
    if load.predicted_wait_seconds <= left:
        return None
    return (
        f"its queue takes {load.predicted_wait_seconds * 1e3:.0f} ms, the deadline leaves {max(left, 0) * 1e3:.0f} ms"
    )


def _media(request: InferenceRequest) -> Iterator[Need]:
    types: set[PartType] = set()
    for place, message in enumerate(request.generation.messages or []):
        for position, part in enumerate(message.parts):
            if part.type != "text" and part.type not in types:
                types.add(part.type)
                capability, noun = _MEDIA[part.type]
                param = f"messages[{place}].content[{position}].{part.type}"
                yield Need(capability, param, f"Content of type {part.type!r}", noun)
