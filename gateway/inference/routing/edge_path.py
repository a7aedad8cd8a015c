"""The edge-first fast path: a short prompt with a small token budget goes to a local tier without being classified."""

from collections.abc import Mapping

import msgspec

from classifier.decision import EdgePath
from classifier.features.routing_input import RoutingInput
from classifier.policy.length_heuristic import heuristic_prediction
from gateway.base.requests.inference_request import InferenceRequest
from gateway.base.requests.slo_class import SLO_CLASSES
from gateway.inference.routing.knobs import RoutingKnobs
from gateway.inference.routing.model import RoutingRule, VersionPrediction
from inference_core.errors import InvalidRequestError
from inference_core.tokenization.tokenizer import Tokenizer
from tiers.tier import Tier

# Text with more bytes than this per allowed token is not tokenised to learn that it is not short.
LONG_TEXT_BYTES_PER_TOKEN = 16


def edge_path(request: InferenceRequest, tiers: Mapping[int, Tier], knobs: RoutingKnobs) -> EdgePath | None:
    """Return the fast path for a request that names no tier, or None if it is routed normally (SPEC GW-16).

    The tier must run in process, because only then is its tokeniser available; it must be up, with a queue no longer
    than the service class `edge` allows. A request with tools, or with a quality target of its own or its key's, does
    not take the fast path.
    """
    if request.generation.max_tokens is None or request.generation.tooling is not None:
        return None
    new_tokens = request.generation.max_tokens * request.drawn * len(request.prompts or [None])
    if new_tokens > knobs.edge_max_new_tokens or request.wanted_quality is not None:
        return None
    tier = tiers.get(knobs.edge_tier)
    if tier is None or tier.tokenizer is None:
        return None
    load = tier.load()
    if not load.healthy or load.predicted_wait_seconds > SLO_CLASSES["edge"].ttft_seconds:
        return None
    prompt_tokens = _tokens(request, tier.tokenizer, knobs.edge_max_prompt_tokens)
    if prompt_tokens is None:
        return None
    return EdgePath(
        tier=knobs.edge_tier,
        prompt_tokens=prompt_tokens,
        max_prompt_tokens=knobs.edge_max_prompt_tokens,
        new_tokens=new_tokens,
        max_new_tokens=knobs.edge_max_new_tokens,
    )


def unclassified(routing_input: RoutingInput, tiers: int, target: float | None) -> VersionPrediction:
    """The verdict on a request of the fast path: the length heuristic's prediction, marked as its own."""
    prediction = heuristic_prediction(routing_input, tiers)
    prediction = msgspec.structs.replace(prediction, kind="edge", classifier_version="edge")
    return VersionPrediction(prediction, RoutingRule.of_classes(target))


def _tokens(request: InferenceRequest, tokenizer: Tokenizer, most: int) -> int | None:
    """Count the tokens of the caller's texts, without the chat template; None if there are more than `most`."""
    texts = [message.recorded_content() for message in request.generation.messages or ()]
    texts += [prompt for prompt in request.prompts or () if isinstance(prompt, str)]
    if sum(map(len, texts)) > most * LONG_TEXT_BYTES_PER_TOKEN:
        return None
    try:
        tokens = sum(len(tokenizer.encode(text)) for text in texts)
    except InvalidRequestError:
        return None
    return tokens if tokens <= most else None
