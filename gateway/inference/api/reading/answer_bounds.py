"""Bounds on the size of an answer, which n, several prompts, echo and log-probabilities multiply."""

from collections.abc import Sequence

from gateway.base.errors import bad_request
from gateway.base.requests.inference_request import Prompt
from tiers.prompt_bounds import num_bytes

MAX_LOGPROBS = 1 << 17
"""Log-probabilities of drawn tokens in one answer of several choices: about 8 MB of JSON."""
UNSTATED_TOKENS = 4096
"""What a choice without a limit of its own counts as."""
MAX_ECHOED_BYTES = 1 << 22
"""Bytes of repeated prompts in one answer."""
# Bytes of a token: few have as many.
_TOKEN_BYTES = 16


def check_logprobs(choices: int, logprobs: int | None, max_tokens: int | None, param: str) -> None:
    """Raises `ApiError` 400 if the log-probabilities of so many choices are too many; one choice may have as many as
    fit its context. `max_tokens`: of each choice, None for no limit."""
    tokens = UNSTATED_TOKENS if max_tokens is None else max_tokens
    if logprobs is not None and choices > 1 and choices * tokens * (1 + logprobs) > MAX_LOGPROBS:
        raise bad_request(
            f"{choices} choices of up to {tokens} tokens with {1 + logprobs} log-probabilities each are too many: an "
            f"answer of several choices may have {MAX_LOGPROBS}. Ask for fewer choices, tokens or log-probabilities.",
            param,
            "answer_too_large",
        )


def check_echo(prompts: Sequence[Prompt], n: int) -> None:
    """Raises `ApiError` 400 if the repeated prompts are too long, each in each of its `n` choices."""
    size = n * sum(_TOKEN_BYTES * len(one) if isinstance(one, list) else num_bytes(one) for one in prompts)
    if size > MAX_ECHOED_BYTES:
        raise bad_request(
            f"echo repeats {size} bytes of prompts in {n * len(prompts)} choices; an answer may repeat "
            f"{MAX_ECHOED_BYTES}. Ask for fewer choices or shorter prompts.",
            "echo",
            "answer_too_large",
        )
