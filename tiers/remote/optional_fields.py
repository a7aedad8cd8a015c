"""The fields of a request that an answer can do without, by the caller's names: what a server's API lacks is dropped,
and named to the caller."""

from operator import attrgetter

from inference_core.protocol import SamplingParams
from tiers.tier import GenerationRequest

SAMPLING = ("temperature", "top_p", "presence_penalty", "frequency_penalty", "seed")
# vLLM's, which most servers of open models share.
EXTENSIONS = ("top_k", "min_p", "repetition_penalty", "min_tokens", "ignore_eos", "stop_token_ids")
ALL_SAMPLING = SAMPLING + EXTENSIONS
# What means something to a provider alone.
SERVICE_FIELDS = (
    "user",
    "safety_identifier",
    "prompt_cache_key",
    "prompt_cache_retention",
    "store",
    "metadata",
    "service_tier",
    "verbosity",
)
BUDGET, VARIABLES, THOUGHTS = "thinking_token_budget", "chat_template_kwargs", "messages.reasoning_content"

sampling_of = attrgetter(*ALL_SAMPLING)
NEUTRAL = sampling_of(SamplingParams())


def optional_fields(request: GenerationRequest) -> list[str]:
    """Return the names of those that are set and matter."""
    names: list[str] = []
    if (values := sampling_of(request.sampling)) != NEUTRAL:
        names += [name for name, value, usual in zip(ALL_SAMPLING, values, NEUTRAL, strict=True) if value != usual]
    if request.reasoning_effort is not None:
        names.append("reasoning_effort")
    if request.reasoning_budget is not None:
        names.append(BUDGET)
    if request.template_variables:
        names.append(VARIABLES)
    tooling = request.tooling
    if tooling is not None and not tooling.parallel and tooling.choice in ("auto", "required"):
        names.append("parallel_tool_calls")
    for message in request.messages or ():
        if message.reasoning:
            names.append(THOUGHTS)
            break
    return [*names, *request.passed] if request.passed else names


def dropped_fields(request: GenerationRequest, known: frozenset[str]) -> tuple[str, ...]:
    """Return the names of those that are set and not among `known`."""
    names = optional_fields(request)
    return tuple([name for name in names if name not in known]) if names else ()
