"""What an OpenAI-compatible server says of its models at `GET /models`."""

import logging
from collections.abc import Mapping
from typing import Any

import msgspec

from inference_core.io.json_errors import JSON_ERRORS
from tiers.server_words import context_of, is_name

log = logging.getLogger(__name__)

_CONTEXT_FIELDS = ("max_model_len", "context_length", "context_window", "n_ctx")
"""vLLM and SGLang; OpenRouter and Together; Groq; llama.cpp (in `meta`)."""


class ServerModel(msgspec.Struct, frozen=True):
    """One model of a server; `max_context` in tokens, None if the server does not say."""

    name: str
    max_context: int | None = None


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
        ServerModel(entry["id"], _context(entry))
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


def _context(entry: Mapping[str, Any]) -> int | None:
    meta = entry.get("meta")
    for table in (entry, meta if isinstance(meta, dict) else {}):
        for field in _CONTEXT_FIELDS:
            if (value := context_of(table.get(field))) is not None:
                return value
    return None
