"""How uncertain a tier was of the tokens of its answer, whether it runs in process or on a server elsewhere."""

from tiers.tier import Delta

# Of a second sample, which is compared with the first: at the temperature of a cautious answer it would only repeat it.
SECOND_TEMPERATURE = 0.8


def uncertainty_of(delta: Delta) -> list[float]:
    """Of each token of the answer's text in `delta`, in nats: the entropy of its distribution where the model tells it,
    else its negative log-probability; empty for thoughts, and where the tier tells neither."""
    if delta.reasoning or delta.echo:
        return []
    if delta.evidence is not None:
        return [token.entropy for token in delta.evidence.tokens]
    return [-one.logprob for one in delta.logprobs or [] if one.logprob is not None]
