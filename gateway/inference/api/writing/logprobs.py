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

    A token that is no text by itself, as a part of a character is not, is written `bytes:\\xf0\\x9f`. `top_logprobs`
    are the most likely tokens and the one that stands there. `text_offset`: characters of the choice's text before
    the token. The first token of a repeated prompt has no log-probabilities.
    """

    tokens: list[str]
    token_logprobs: list[float | None]
    top_logprobs: list[dict[str, float] | None]
    text_offset: list[int]


def chat_logprobs(drawn: list[TextLogprob]) -> ChatLogprobs:
    """Drawn tokens in chat's shape."""
    return ChatLogprobs(
        [
            TokenLogprobs(
                one.token,
                0.0 if one.logprob is None else one.logprob,
                list(one.token_bytes),
                [TopLogprob(token, logprob, list(raw)) for token, raw, logprob in one.top],
            )
            for one in drawn
        ]
    )


def completion_logprobs(drawn: list[TextLogprob], offset: int = 0) -> CompletionLogprobs:
    """Tokens in the older shape; where the tier does not say where they begin, the first does at `offset`."""
    offsets: list[int] = []
    for one in drawn:
        offsets.append(offset if one.start is None else one.start)
        offset = offsets[-1] + len(one.token)
    return CompletionLogprobs(
        [_written(one.token, one.token_bytes) for one in drawn],
        [one.logprob for one in drawn],
        [_tops(one) for one in drawn],
        offsets,
    )


def _tops(one: TextLogprob) -> dict[str, float] | None:
    if one.logprob is None:
        return None
    tops = {_written(token, raw): logprob for token, raw, logprob in one.top}
    return tops | {_written(one.token, one.token_bytes): one.logprob}


def _written(token: str, raw: bytes) -> str:
    if token.encode("utf-8", errors="replace") == raw:
        return token
    return "bytes:" + "".join(f"\\x{byte:02x}" for byte in raw)
