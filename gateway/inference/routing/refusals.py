"""Why no tier may answer a request: the errors of routing, by what the caller or the operator can do."""

from collections.abc import Sequence

import msgspec

from classifier.decision import PolicyInputs
from classifier.errors import NoTierAllowedError
from gateway.base.errors import ApiError, ContextLengthError, bad_request
from gateway.base.requests.inference_request import InferenceRequest
from gateway.inference.catalogue.served_catalogue import ServedCatalogue
from gateway.inference.routing.exclusions import DOWN, Excluded, lacks_of, needs_of, overflow_of
from tiers.catalog.capabilities import MEDIA
from tiers.consent import NO_CREDENTIAL, hidden_from
from tiers.credential import HEADER


def not_allowed(request: InferenceRequest, hidden: str | None, least: int) -> ApiError:
    """Return the 403, in the words of OpenAI's own, for a key that may not use what the request asks for. `hidden`: why
    a tier that it may use must not see the request; `least`: the lowest tier that was asked for."""
    if hidden == NO_CREDENTIAL:
        return ApiError(
            403,
            f"Model {request.requested_model!r} answers with your own credential alone: send the key of its provider "
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
        return of_private(request, refusal)
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
    inputs: PolicyInputs,
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
    return ApiError(503, message, code="no_tier_available")


def _unsupported(
    request: InferenceRequest, excluded: Excluded, wanted: Sequence[int], served: ServedCatalogue
) -> ApiError:
    """Return the 400 for a request whose needs none of the tiers `wanted` supports; it names the tiers that do."""
    incapable, needs = excluded.incapable, needs_of(request)
    common = [need for need in incapable[wanted[0]] if all(need in incapable[number] for number in wanted)]
    need = (common or incapable[wanted[-1]])[0]
    who = f"tier {wanted[0]} does not" if len(wanted) == 1 else "no tier that may answer this request does"
    what = need.noun if common else " and ".join(one.noun for one in needs)
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


def of_private(request: InferenceRequest, refusal: ApiError) -> ApiError:
    """Return the refusal of a request, which says so where the request is private."""
    if request.private is not None:
        message = f"{refusal.body.message} The request is private ({request.private}): only local tiers may see it."
        refusal.body = msgspec.structs.replace(refusal.body, message=message)
    return refusal
