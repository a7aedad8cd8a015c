"""Token uncertainty of a tier's answer: how to request it, and how to read it."""

import msgspec

from inference_core.protocol.commands import EvidenceRequest
from tiers.catalog.tier_spec import TierSpec
from tiers.tier import Delta, GenerationRequest, Tier

# Temperature of a second sample: at a low temperature it would only repeat the first, with which it is compared.
SECOND_TEMPERATURE = 0.8


def asking_uncertainty(request: GenerationRequest, tier: Tier, spec: TierSpec) -> GenerationRequest:
    """Return `request` with a request for the entropy of each token's distribution if the tier's model reports it, else
    for log-probabilities, except from servers that may reject that."""
    if tier.num_layers:
        return msgspec.structs.replace(request, evidence=EvidenceRequest(tokens=True))
    if request.sampling.logprobs is not None or (spec.remote is not None and not spec.tells_logprobs):
        return request
    return msgspec.structs.replace(request, sampling=msgspec.structs.replace(request.sampling, logprobs=0))


def uncertainty_of(delta: Delta) -> list[float]:
    """Return the uncertainty of each token of the answer's text in `delta`, in nats: the entropy of its distribution if
    reported, else its negative log-probability; empty for thoughts, and if neither is reported."""
    if delta.reasoning or delta.echo:
        return []
    if delta.evidence is not None:
        return [token.entropy for token in delta.evidence.tokens]
    return [-one.logprob for one in delta.logprobs or [] if one.logprob is not None]
