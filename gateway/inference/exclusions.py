"""Which tiers cannot take a request, whatever it is worth: by the caller's key, what it needs, its length, or the
tier's state; the errors where none is left, by what the caller or the operator can do; and which answers fell short
of their quality target because a tier that was worth more could not answer."""

import time
from collections.abc import Collection, Iterator, Mapping, Sequence

import msgspec

from classifier.decision import Constraints, Exclusion
from classifier.errors import NoTierAllowedError
from classifier.policy.utility import worths
from gateway.base.errors import ApiError, ContextLengthError, bad_request
from gateway.base.inference_request import InferenceRequest
from gateway.inference.served_catalogue import ServedCatalogue
from gateway.tenancy.admission import unbounded_extra
from quality.records.record import Record
from tiers.catalog.catalog import Catalog
from tiers.catalog.consent import ALL, NO_CREDENTIAL, hidden_from
from tiers.catalog.tier_spec import CAPABILITY_OF, MEDIA, Capability, TierSpec
from tiers.conversation import Media, MediaKind
from tiers.dialects.chat_opaque import PART_TYPES
from tiers.dialects.rules import NEUTRAL, SAMPLING, sampling_of, unserved
from tiers.errors import HEADER
from tiers.tier import Tier, TierLoad

_NOUNS = {"image": "images", "video": "videos", "audio": "audio", "file": "files"}


class Need(msgspec.Struct, frozen=True):
    """What a request needs of a tier."""

    capability: Capability | None
    param: str
    """The field of the request that says so."""
    subject: str = ""
    """What it is in the request."""
    noun: str = ""
    """What the tier has to support."""
    refusal: str = ""
    """What the API of the tier's server cannot do, in its own words, instead of a declared capability."""


DOWN = "the tier is down"
WITHOUT_CHATS = "the model has no chat template: it continues prompts of /v1/completions, and takes no chats"
FIRST_EXTENSION = len(SAMPLING)
"""Of the sampling fields: those before it are known to every kind of server, or can be left out."""
MAX_SCORES = 1 << 17
"""Log-probabilities of repeated prompts in one answer: about 4 MB of JSON, as much as a request may have."""


def needs_of(request: InferenceRequest) -> list[Need]:
    """Return what `request` needs, parts of its messages first; empty for plain text."""
    messages, sampling = request.generation.messages, request.generation.sampling
    needs = list(_media(request)) if messages and any(m.media for m in messages) else []
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
    """Whether every kind of server can serve or drop the request's fields: a chat of texts with common sampling."""
    asked, sampling = request.generation, request.generation.sampling
    bound = sampling.grammar is not None or sampling.logit_bias or sampling.logprobs is not None
    extended = (
        bound
        or asked.server_tools
        or asked.echo
        or asked.include_stop
        or asked.n > 1
        or (asked.extra and unserved(asked.extra, ()) is not None)
        or ((asked.passed or asked.extra or asked.opaque is not None) and request.is_bounded)
    )
    if extended or asked.messages is None or sampling_of(sampling)[FIRST_EXTENSION:] != NEUTRAL[FIRST_EXTENSION:]:
        return False
    return not [message for message in asked.messages if message.media]


def lacks_of(
    request: InferenceRequest, needs: Collection[Need], tier: Tier, spec: TierSpec, *, is_pinned: bool = True
) -> list[Need]:
    """Return what the tier lacks for the request: of `needs` what it is not declared to support, else what the API of
    its server cannot do; unless the tier `is_pinned`, else what its server is known to refuse."""
    if request.generation.messages is not None and not tier.takes_chats:
        return [Need(None, "messages", refusal=WITHOUT_CHATS)]
    lacks = lacking(needs, spec) if needs else []
    if lacks:
        return lacks
    if spec.remote is not None and request.is_bounded and (unbounded := unbounded_extra(request, spec)) is not None:
        return [Need(None, unbounded.param, refusal=str(unbounded))]
    if spec.remote is None:
        own = request.generation.server_tools
        if (extra := request.generation.extra) and (lost := unserved(extra, ())) is not None:
            return [Need(None, lost, refusal=f"{lost}: tier '{spec.name}' runs here, where no model can do that")]
        refusal = f"tools: {', '.join(own)} is run by the provider that has it, and tier '{spec.name}' runs here"
        return [Need(None, "tools", refusal=refusal)] if own else []
    asked = request.generations(spec)[0]
    refused = tier.refusal(asked)
    if refused is None and not is_pinned:
        refused = tier.learned_refusal(asked)
    if refused is None:
        return []
    return [Need(None, refused.param or "", refusal=str(refused).partition(";")[0])]


class Excluded(msgspec.Struct, frozen=True, kw_only=True):
    """Tiers that cannot take a request now."""

    exclusions: list[Exclusion] = []
    too_long: list[int] = []
    """Excluded tiers whose context is too short for the request."""
    incapable: dict[int, list[Need]] = {}
    """Excluded tiers that lack what it needs, with what they lack."""
    ruled_out: dict[int, str] = {}
    """Tiers that the catalogue's rules exclude, with why."""


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
    is_for_all = consent is ALL
    needs = [] if plain and request.generation.tooling is None else needs_of(request)
    most, many_scores = request.most_prompt_tokens(), request.generation.echo and request.most_scores() > MAX_SCORES
    may_be_too_long = many_scores or not _fits_every_context(request, most, tiers)
    asks_more, no_deadline = bool(needs) or not plain, request.options.deadline_seconds is None
    for spec in catalog.tiers:
        number = spec.number
        if pinned is not None and number != pinned:
            continue
        tier = tiers.get(number)
        is_open = is_for_all and not (spec if tier is None else tier).asks_credential
        reason = None if is_open else hidden_from(spec, consent)
        if reason is not None or tier is None:
            pass
        elif (asks_more or not tier.takes_chats) and (
            lacks := lacks_of(request, needs, tier, spec, is_pinned=pinned is not None)
        ):
            excluded.incapable[number] = lacks
            declared = " and ".join(need.noun for need in lacks if not need.refusal)
            reason = f"it does not support {declared}" if declared else lacks[0].refusal
        elif (may_be_too_long and tier.max_context) and (
            reason := context_problem(request, most, tier, spec)
            or (_scores_problem(request, tier, spec) if many_scores else None)
        ):
            excluded.too_long.append(number)
        elif no_deadline and loads[number].healthy:
            continue
        else:
            reason = load_problem(request, loads[number])
        if reason:
            excluded.exclusions.append(Exclusion(tier=number, reason=reason))
    return excluded


def count_in_doubt(request: InferenceRequest, pinned: int | None, tiers: Mapping[int, Tier], catalog: Catalog) -> None:
    """Count the prompt's tokens for each tier that `exclusions` cannot judge by its bytes, and only once for those that
    read it alike; `exclusions` then takes no time. For a thread: takes as long as the prompt is long."""
    for number, tier in _in_doubt(request, pinned, tiers, catalog):
        _longest(request, tier, catalog.tier(number))


def is_in_doubt(request: InferenceRequest, pinned: int | None, tiers: Mapping[int, Tier], catalog: Catalog) -> bool:
    """Whether there is anything to count that takes long: the tokens of a tier that runs elsewhere are estimated."""
    if not request.generation.echo and _fits_every_context(request, request.most_prompt_tokens(), tiers):
        return False
    return any(tier.tokenizer is not None for _, tier in _in_doubt(request, pinned, tiers, catalog))


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
    shortest = min([tier.max_context for tier in tiers.values() if tier.max_context], default=0)
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
    return [tier.prompt_tokens_up_to(generation, room) for generation in request.generations(spec)]


def load_problem(request: InferenceRequest, load: TierLoad) -> str | None:
    """Why a tier with this load cannot take the request now."""
    if not load.healthy:
        return DOWN
    if request.options.deadline_seconds is None:
        return None
    left = request.generation.arrival + request.options.deadline_seconds - time.monotonic()
    if load.predicted_wait_seconds <= left:
        return None
    return (
        f"its queue takes {load.predicted_wait_seconds * 1e3:.0f} ms, the deadline leaves {max(left, 0) * 1e3:.0f} ms"
    )


def _media(request: InferenceRequest) -> Iterator[Need]:
    kinds: set[MediaKind] = set()
    for index, message in enumerate(request.generation.messages or []):
        for position, block in enumerate(message.content_blocks):
            if isinstance(block, Media) and block.kind not in kinds:
                kinds.add(block.kind)
                capability, noun, part = CAPABILITY_OF[block.kind], _NOUNS[block.kind], PART_TYPES[block.kind]
                param = f"messages[{index}].content[{position}].{part}"
                yield Need(capability, param, f"Content of type {part!r}", noun)


def not_allowed(request: InferenceRequest, hidden: str | None, least: int) -> ApiError:
    """Return the 403, in the words of OpenAI's own, for a key that may not use what the request asks for. `hidden`: why
    a tier that it may use must not see the request; `least`: the lowest tier that was asked for."""
    if hidden == NO_CREDENTIAL:
        return ApiError(
            403,
            f"Model {request.requested_model!r} answers only with your own credential. Send the key of its provider "
            f"as {HEADER}.",
            param=HEADER,
            code="upstream_authorization_missing",
        )
    if hidden is not None:
        refusal = ApiError(
            403,
            f"No tier that may answer {request.requested_model!r} may see this request: {hidden}.",
            param="x-aio-consent" if request.private is None else request.private.where or None,
            code="no_tier_may_see",
        )
        return explain_privacy(request, refusal)
    return ApiError(
        403,
        f"This key does not have access to model {request.requested_model!r}"
        + (f" from tier {least} on." if least > 1 else "."),
        param="model",
        code="model_not_found",
    )


def no_tier(
    error: NoTierAllowedError,
    request: InferenceRequest,
    inputs: Constraints,
    excluded: Excluded,
    served: ServedCatalogue,
) -> ApiError:
    """Return a 503 if a tier that the caller allows and that could take the request is unavailable; else a 400."""
    pinned = range(1, served.strongest + 1) if inputs.pinned_tier is None else [inputs.pinned_tier]
    wanted = [k for k in pinned if k >= max(inputs.min_tier or 1, inputs.key_min_tier or 1)]
    if not wanted:
        return bad_request(str(error), "x-aio-min-tier", "no_tier_allowed")
    reasons = {exclusion.tier: exclusion.reason for exclusion in inputs.exclusions}
    if not all(k in reasons for k in wanted):
        return bad_request(str(error), "x-aio-max-cost", "no_tier_allowed")
    own = [k for k in wanted if hidden_from(served.spec(k), request.consent) is None]
    if own and all(k in excluded.ruled_out for k in own):
        return ApiError(403, str(error), param="model", code="no_tier_allowed")
    own = [k for k in own if k not in excluded.ruled_out]
    if own and all(k in excluded.incapable for k in own):
        return _unsupported(request, excluded, own, served)
    never = all(k in excluded.incapable or k in excluded.too_long for k in own)
    if never and (too_long := [k for k in own if k in excluded.too_long]):
        last = too_long[-1]
        return ContextLengthError(
            f"The request does not fit: {reasons[last]}. Shorten it or ask for fewer tokens.",
            "messages" if request.generation.messages is not None else "prompt",
            **overflow_of(request, served.tier(last), served.spec(last)),
        )
    message = str(error)
    if (named := inputs.pinned_tier) is not None and reasons[named] == DOWN:
        message = (
            f"Tier {named} ('{served.spec(named).name}') cannot answer: the tier is down, and the request asks for "
            f"{request.requested_model!r} alone. Try again later, or ask for 'auto', which other tiers may answer."
        )
    elif all(reasons[k] == DOWN for k in own):
        message = f"No tier can answer this request now ({error.why}). Try again later."
    wait = min((served.tier(k).load().down_seconds for k in own if reasons[k] == DOWN), default=0.0)
    return ApiError(503, message, code="no_tier_available", retry_after_seconds=wait)


def _unsupported(
    request: InferenceRequest, excluded: Excluded, wanted: Sequence[int], served: ServedCatalogue
) -> ApiError:
    """Return the 400 for a request whose needs none of the tiers `wanted` supports; it names the tiers that do."""
    incapable, needs = excluded.incapable, needs_of(request)
    common = [need for need in incapable[wanted[0]] if all(need in incapable[number] for number in wanted)]
    need = (common or incapable[wanted[-1]])[0]
    who = f"tier {wanted[0]} does not" if len(wanted) == 1 else "no tier that may answer this request does"
    what = need.noun if common else " and ".join(unmet.noun for unmet in needs)
    specs = [spec for spec in served.catalog.tiers if not lacks_of(request, needs, served.tiers[spec.number], spec)]
    able = ", ".join(f"tier-{spec.number} ({spec.name})" for spec in specs)
    is_content = need.capability in MEDIA or need.param == "messages"
    code = "unsupported_content" if is_content else "unsupported_parameter"
    if need.refusal:
        others = f"it is supported by {able}" if able else "no other tier of the catalogue does it either"
        return bad_request(f"{need.refusal}; {others}.", need.param or None, code)
    declaring = f"no tier of the catalogue is declared to (capabilities = {{ {need.capability} = true }})"
    others = f"it is supported by {able}" if able else declaring
    return bad_request(f"{need.subject} is not supported: {who} support {what}; {others}.", need.param, code)


def explain_privacy(request: InferenceRequest, refusal: ApiError) -> ApiError:
    """Return the refusal of a request, which says so where the request is private."""
    if request.private is not None:
        message = f"{refusal.body.message} The request is private ({request.private}): only local tiers may see it."
        refusal.body = msgspec.structs.replace(refusal.body, message=message)
    return refusal


def is_below_target(record: Record) -> bool:
    """Return whether the answer is no worse with a P below the request's quality target, and a tier that was down, or
    failed before it answered, would have been chosen instead. A request that names its tier has it."""
    inputs = record.decision.inputs
    if record.status != "ok" or not record.is_made or inputs.pinned_tier is not None:
        return False
    away = {exclusion.tier for exclusion in inputs.exclusions if exclusion.reason == DOWN}
    away |= {attempt.tier for attempt in record.attempts if attempt.status == "error" and attempt.compared_as is None}
    away.discard(record.tier)
    p_ok = inputs.prediction.p_ok
    if not away or p_ok[record.tier - 1] >= inputs.quality_target:
        return False
    if inputs.objective == "target":
        return any(p_ok[tier - 1] >= inputs.tau for tier in away)
    worth = worths(inputs.prediction, inputs.costs, inputs.reference, inputs.exchange)
    return any(worth[tier - 1] > worth[record.tier - 1] for tier in away)
