"""How uncertain a tier was of the tokens of its answer: how to ask for it, and what the answer tells."""

import msgspec

from inference_core.protocol.evidence import EvidenceRequest
from tiers.catalog.tier_spec import TierSpec
from tiers.remote.wires import tells_logprobs
from tiers.tier import Delta, GenerationRequest, Tier

# Of a second sample, which is compared with the first: at the temperature of a cautious answer it would only repeat it.
SECOND_TEMPERATURE = 0.8


def asking_uncertainty(request: GenerationRequest, tier: Tier, spec: TierSpec) -> GenerationRequest:
    """`request` that also asks `tier` for the entropy of each token's distribution where its model tells that, else for
    log-probabilities, except of servers that may refuse it for them."""
    if tier.num_layers:
        return msgspec.structs.replace(request, evidence=EvidenceRequest(tokens=True))
    if request.sampling.logprobs is not None or (spec.remote is not None and not tells_logprobs(spec)):
        return request
    return msgspec.structs.replace(request, sampling=msgspec.structs.replace(request.sampling, logprobs=0))


def uncertainty_of(delta: Delta) -> list[float]:
    """Of each token of the answer's text in `delta`, in nats: the entropy of its distribution where the model tells it,
    else its negative log-probability; empty for thoughts, and where the tier tells neither."""
    if delta.reasoning or delta.echo:
        return []
    if delta.evidence is not None:
        return [token.entropy for token in delta.evidence.tokens]
    return [-one.logprob for one in delta.logprobs or [] if one.logprob is not None]
