"""Evidence of a computation besides its tokens: hidden states of the prompt, and the certainty of each token."""

from typing import Literal

import msgspec

Pooling = Literal["last", "mean"]


class EvidenceRequest(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """Which evidence to return for a request (SPEC RT-04); what is not requested costs nothing.

    `layer`: after how many of the model's layers the prompt's hidden state is taken, 1 to all of them; None for none.
    `pooling`: of the prompt's last token (Kadavath et al. 2022, "Language models (mostly) know what they know"), or the
    mean over its tokens; a prompt to be averaged is computed in full, without the prefix cache.
    `tokens`: `TokenEvidence` of every token drawn.
    """

    layer: int | None = None
    pooling: Pooling = "last"
    tokens: bool = False


class TokenEvidence(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """How sure the model was of one token, in nats, by its raw distribution over the whole vocabulary, before bias,
    penalties, grammar and temperature.

    `logprob` of the drawn token; `entropy` of the distribution; `margin`: the best log-probability minus the second.
    """

    logprob: float
    entropy: float
    margin: float


class Evidence(msgspec.Struct, omit_defaults=True):
    """The part of an `EvidenceRequest`'s evidence that one output carries.

    `state`: the hidden state, float32 little-endian [hidden], with the first output of choice 0 alone; before the final
    norm, as the layer leaves it. `tokens`: one per token of the output, a stop token that ended it excepted.
    """

    state: bytes = b""
    tokens: list[TokenEvidence] = []
