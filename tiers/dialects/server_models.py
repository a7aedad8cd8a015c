"""The models that a server elsewhere tells of: its list at `GET /models`, and what an entry says of a model."""

import logging
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from inference_core.io.files import JSON_ERRORS
from tiers.server_words import context_of, is_name

log = logging.getLogger(__name__)

_CONTEXT_FIELDS = ("max_model_len", "loaded_context_length", "context_length", "context_window", "n_ctx",
                   "max_context_length", "context_size", "max_sequence_length", "max_context_window_tokens",
                   "inputTokenLimit", "max_input_tokens")  # fmt: skip
"""vLLM and SGLang; LM Studio; OpenRouter and Together; Groq; llama.cpp (in `meta`); Mistral; Novita; watsonx (in
`model_limits`); Copilot (in `limits`); Gemini; Anthropic and LiteLLM."""
_MOST_DIGITS = 12
_LISTS, _NAMES = ("data", "models", "result", "resources"), ("id", "model", "name", "model_id")
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
        entries = msgspec.json.decode(body)
    except JSON_ERRORS:
        return None
    while isinstance(entries, dict):
        entries = next((entries[name] for name in _LISTS if isinstance(entries.get(name), list | dict)), None)
    if not isinstance(entries, list):
        return None
    tables = [{"id": entry} if isinstance(entry, str) else entry for entry in entries]
    named = [
        (next((entry[name] for name in _NAMES if isinstance(entry.get(name), str)), None), entry)
        for entry in tables
        if isinstance(entry, dict) and not entry.get("parent")
    ]
    models = [ServerModel(name, _context(entry), published_output(entry)) for name, entry in named if name is not None]
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
    return _first_count(entry, ("top_provider",), fields)


def _context(entry: Mapping[str, Any]) -> int | None:
    return _first_count(entry, ("meta", "model_limits", "limits", "capabilities"), _CONTEXT_FIELDS)


def _first_count(entry: Mapping[str, Any], inner: Sequence[str], fields: Sequence[str]) -> int | None:
    """Return the first count of tokens among `fields` of the entry or of its tables `inner`, and of theirs."""
    for field in fields:
        value = entry.get(field)
        if isinstance(value, str) and len(value) < _MOST_DIGITS and value.isdecimal():
            value = float(value)
        if isinstance(value, float) and value.is_integer():
            value = int(value)
        if (count := context_of(value)) is not None:
            return count
    tables = (entry[name] for name in inner if isinstance(entry.get(name), dict))
    return next((count for table in tables if (count := _first_count(table, inner, fields)) is not None), None)
