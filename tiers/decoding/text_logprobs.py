"""Convert log-probabilities of token ids to log-probabilities of texts."""

from collections.abc import Sequence

from inference_core.protocol import TokenLogprob
from inference_core.tokenization.tokenizer import IncrementalDetokenizer, Tokenizer
from tiers.tier import TextLogprob


def text_logprob(tokenizer: Tokenizer, logprob: TokenLogprob, start: int) -> TextLogprob:
    """Return one token as text; its text starts `start` characters into that of its choice."""
    drawn = tokenizer.token_bytes(logprob.token_id)
    tops = [(tokenizer.token_bytes(token), value) for token, value in logprob.top]
    return TextLogprob(
        token=_text(drawn),
        token_bytes=drawn,
        logprob=logprob.logprob,
        top=[(_text(token), token, value) for token, value in tops],
        start=start,
    )


def prompt_text_logprobs(
    tokenizer: Tokenizer, token_ids: Sequence[int], scores: Sequence[TokenLogprob]
) -> list[TextLogprob]:
    """Return a prompt's tokens, with `scores` of all but the first, which has no predecessor."""
    detokenizer = IncrementalDetokenizer(tokenizer)
    first = tokenizer.token_bytes(token_ids[0])
    logprobs = [TextLogprob(token=_text(first), token_bytes=first, logprob=None, top=[], start=0)]
    start = len(detokenizer.push_one(token_ids[0]))
    for token_id, score in zip(token_ids[1:], scores, strict=True):
        logprobs.append(text_logprob(tokenizer, score, start))
        start += len(detokenizer.push_one(token_id))
    return logprobs


def _text(token: bytes) -> str:
    return token.decode("utf-8", errors="replace")
