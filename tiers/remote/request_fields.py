"""Fields of a request that servers may lack, and fields that only some servers know.

Optional are the fields that an answer can do without, by the caller's names: what a server's API lacks is dropped, and
named to the caller. Extra are those that OpenAI's API does not have (`extra_body` of OpenAI's clients): which kind of
server gets which. Left out are those with which a caller would choose another model, answer length, place in a queue,
cache or code than the tier has: `models`, `best_of`, `n_predict`, `priority`, `cache_salt`, `kv_transfer_params`,
`chat_template`, `custom_logit_processor` and what is like them.
"""

from collections.abc import Collection, Sequence
from operator import attrgetter
from typing import Any

from inference_core.protocol import SamplingParams
from tiers.conversation import BREAKPOINT
from tiers.remote.rules import server_rows
from tiers.tier import GenerationRequest

SAMPLING = ("temperature", "top_p", "presence_penalty", "frequency_penalty", "seed")
# vLLM's, which most servers of open models share.
EXTENSIONS = ("top_k", "min_p", "repetition_penalty", "min_tokens", "ignore_eos", "stop_token_ids")
ALL_SAMPLING = SAMPLING + EXTENSIONS
# What means something to a provider alone.
SERVICE_FIELDS = (
    "user", "safety_identifier", "prompt_cache_key", "prompt_cache_retention", "prompt_cache_options", "store",
    "metadata", "service_tier", "verbosity",
)  # fmt: skip
MODALITIES, AUDIO, SUFFIX = "modalities", "audio", "suffix"
BUDGET, VARIABLES, THOUGHTS = "thinking_token_budget", "chat_template_kwargs", "messages.reasoning_content"
BREAKPOINTS = f"messages.content.{BREAKPOINT}"

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
        if message.thoughts:
            names.append(THOUGHTS)
            break
    for message in request.messages or ():
        if [block for block in message.content_blocks if block.breakpoint is not None]:
            names.append(BREAKPOINTS)
            break
    return [*names, *request.passed] if request.passed else names


def dropped_fields(request: GenerationRequest, known: frozenset[str]) -> tuple[str, ...]:
    """Return the names of those that are set and not among `known`."""
    names = optional_fields(request)
    return tuple([name for name in names if name not in known]) if names else ()


FORWARDED = server_rows().forwarded_fields()
"""Extra fields by the name of the server that knows them."""
TUNING = server_rows().fields["thoughts"] | server_rows().fields["sampling"]
"""Fields beyond OpenAI's API without which an answer is one, too."""
FORWARDABLE = frozenset().union(*FORWARDED.values())
"""Fields that at least one kind of server knows."""


def media_fields(modalities: Sequence[str] | None, audio: dict[str, Any] | None) -> dict[str, Any]:
    """Return the fields of a chat whose answer is to have more than text."""
    fields = {MODALITIES: modalities, AUDIO: audio}
    return {name: value for name, value in fields.items() if value not in (None, {}, [], ["text"])}


def num_tools(request: GenerationRequest) -> int:
    """Return the number of tools, those that the provider runs among them."""
    own = 0 if request.native is None else len(request.native.server_tools)
    return own if request.tooling is None else own + len(request.tooling.tools)


def unserved(extra: dict[str, Any], available: Collection[str]) -> str | None:
    """Return the name of a field of `extra` without which an answer would be another one, and that is not
    `available`; None without any."""
    speaks = AUDIO in extra.get(MODALITIES, ())
    needed = [SUFFIX] * (SUFFIX in extra) + [MODALITIES] * speaks + [AUDIO] * (AUDIO in extra)
    return next((name for name in needed if name not in available), None)


def with_fields(body: dict[str, Any], more: dict[str, Any]) -> dict[str, Any]:
    """Return `body` with the fields of `more` that it does not have; of objects in both, the members."""
    found = dict(body)
    for name, value in more.items():
        given = found.get(name)
        if isinstance(given, dict) and isinstance(value, dict):
            found[name] = value | given
        else:
            found.setdefault(name, value)
    return found
