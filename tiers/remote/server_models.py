"""What an OpenAI-compatible server says of its models at `GET /models`."""

import logging
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from inference_core.io.files import JSON_ERRORS
from tiers.server_words import context_of, is_name

log = logging.getLogger(__name__)

_CONTEXT_FIELDS = ("max_model_len", "context_length", "context_window", "n_ctx")
"""vLLM and SGLang; OpenRouter and Together; Groq; llama.cpp (in `meta`)."""
_OUTPUT_FIELDS = ("max_output_tokens", "max_completion_tokens", "outputTokenLimit")
"""LiteLLM; Groq and OpenRouter (in `top_provider`); Gemini."""


class ServerModel(msgspec.Struct, frozen=True):
    """One model of a server; `max_context`, and `max_output` of one answer, in tokens: None if it does not say."""

    name: str
    max_context: int | None = None
    max_output: int | None = None


def parse_models(status: int, body: bytes) -> list[ServerModel] | None:
    """Return the models of a GET of `/models`, without the LoRA adapters that vLLM lists with their `parent`, and
    without those whose names cannot be a header; None if the server does not list them."""
    if status != 200:
        return None
    try:
        listed = msgspec.json.decode(body)
    except JSON_ERRORS:
        return None
    entries = listed.get("data") if isinstance(listed, dict) else None
    if not isinstance(entries, list):
        return None
    models = [
        ServerModel(entry["id"], _context(entry), published_output(entry))
        for entry in entries
        if isinstance(entry, dict) and isinstance(entry.get("id"), str) and not entry.get("parent")
    ]
    usable = [model for model in models if is_name(model.name)]
    if len(usable) < len(models):
        log.warning(
            "a server lists %d models by names that are left out: they are longer than 256 characters, or not ASCII",
            len(models) - len(usable),
        )
    return usable


def chosen_model(wanted: str, models: list[ServerModel]) -> ServerModel | None:
    """Return the model called `wanted`, else the only one; None if there are several or none."""
    named = next((model for model in models if model.name == wanted), None)
    return named or (models[0] if len(models) == 1 else None)


def published_output(entry: Mapping[str, Any], fields: Sequence[str] = _OUTPUT_FIELDS) -> int | None:
    """Return the most tokens of an answer that a model's entry tells; None if it does not."""
    return _first_count(entry, "top_provider", fields)


def _context(entry: Mapping[str, Any]) -> int | None:
    return _first_count(entry, "meta", _CONTEXT_FIELDS)


def _first_count(entry: Mapping[str, Any], inner: str, fields: Sequence[str]) -> int | None:
    """Return the first count of tokens among `fields` of the entry or of its table `inner`."""
    further = entry.get(inner)
    for table in (entry, further if isinstance(further, dict) else {}):
        for field in fields:
            if (value := context_of(table.get(field))) is not None:
                return value
    return None
