"""Log-probabilities in the shapes of both APIs."""

import msgspec

from tiers.tier import TextLogprob


class TopLogprob(msgspec.Struct, frozen=True):
    """An alternative at one position; `bytes` are its UTF-8 bytes, which alone need not be valid text."""

    token: str
    logprob: float
    bytes: list[int]


class TokenLogprobs(msgspec.Struct, frozen=True):
    """A drawn token of a chat answer with its most likely alternatives, best first."""

    token: str
    logprob: float
    bytes: list[int]
    top_logprobs: list[TopLogprob]


class ChatLogprobs(msgspec.Struct, frozen=True):
    """`choices[].logprobs` of a chat."""

    content: list[TokenLogprobs]
    refusal: None = None


class CompletionLogprobs(msgspec.Struct, frozen=True):
    """`choices[].logprobs` of a text completion: four lists of one entry per token.

    `text_offset`: characters of the answer before the token.
    """

    tokens: list[str]
    token_logprobs: list[float]
    top_logprobs: list[dict[str, float]]
    text_offset: list[int]


def chat_logprobs(drawn: list[TextLogprob]) -> ChatLogprobs:
    """Drawn tokens in chat's shape."""
    return ChatLogprobs(
        [
            TokenLogprobs(
                one.token,
                one.logprob,
                list(one.token_bytes),
                [TopLogprob(token, logprob, list(raw)) for token, raw, logprob in one.top],
            )
            for one in drawn
        ]
    )


def completion_logprobs(drawn: list[TextLogprob], offset: int = 0) -> CompletionLogprobs:
    """Drawn tokens in the older shape; `offset` is where the first of them begins in the answer."""
    offsets = []
    for one in drawn:
        offsets.append(offset)
        offset += len(one.token)
    return CompletionLogprobs(
        [one.token for one in drawn],
        [one.logprob for one in drawn],
        [{token: logprob for token, _, logprob in one.top} for one in drawn],
        offsets,
    )
