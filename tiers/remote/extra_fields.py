"""Fields of a request that OpenAI's API does not have and that some servers know (`extra_body` of OpenAI's clients):
which kind of server gets which. Left out are those with which a caller would choose another model, answer length, place
in a queue, cache or code than the tier has: `models`, `best_of`, `n_predict`, `priority`, `cache_salt`,
`kv_transfer_params`, `chat_template`, `custom_logit_processor` and what is like them."""

from typing import Any

_THOUGHTS = frozenset(
    [
        "thinking",
        "enable_thinking",
        "thinking_budget",
        "preserve_thinking",
        "reasoning",
        "include_reasoning",
        "reasoning_format",
        "reasoning_split",
        "separate_reasoning",
        "stream_reasoning",
        "think",
    ]
)
_SAMPLING = frozenset(
    [
        "top_a",
        "typical_p",
        "tfs_z",
        "length_penalty",
        "repeat_penalty",
        "repeat_last_n",
        "mirostat",
        "mirostat_tau",
        "mirostat_eta",
        "mirostat_target",
        "mirostat_lr",
        "dry_multiplier",
        "dry_base",
        "dry_allowed_length",
        "dry_penalty_last_n",
        "dry_sequence_breakers",
        "xtc_probability",
        "xtc_threshold",
        "dynatemp_range",
        "dynatemp_exponent",
        "top_n_sigma",
        "samplers",
        "min_keep",
        "do_sample",
        "bad_words",
        "allowed_token_ids",
    ]
)
_GRAMMARS = frozenset(
    [
        "guided_json",
        "guided_regex",
        "guided_choice",
        "guided_grammar",
        "guided_whitespace_pattern",
        "regex",
        "ebnf",
        "grammar",
        "json_schema",
    ]
)
_RENDERING = frozenset(
    [
        "add_generation_prompt",
        "continue_final_message",
        "add_special_tokens",
        "skip_special_tokens",
        "spaces_between_special_tokens",
        "documents",
        "no_stop_trim",
        "parse_tool_calls",
        "timings_per_token",
        "return_progress",
    ]
)
_SEARCH = frozenset(
    [
        "plugins",
        "search_parameters",
        "enable_search",
        "search_options",
        "search_settings",
        "search_mode",
        "search_domain_filter",
        "search_recency_filter",
        "search_context_size",
        "return_images",
        "return_related_questions",
        "disable_search",
        "exclude_domains",
        "include_domains",
        "citation_options",
        "citations",
        "compound_custom",
    ]
)
_OPENROUTER = frozenset(["provider", "transforms", "usage", "session_id", "trace", "image_config", "cache_control"])
_MISTRAL = frozenset(["safe_prompt", "random_seed", "prompt_mode"])
_OTHERS = frozenset(
    [
        "safety_model",
        "context_length_exceeded_behavior",
        "reasoning_history",
        "tool_stream",
        "partial",
        "mask_sensitive_info",
        "vl_high_resolution_images",
        "translation_options",
        "disable_tool_validation",
        "response_mime_type",
        "google",
    ]
)
_LENIENT = _THOUGHTS | _SAMPLING | _GRAMMARS | _RENDERING | _SEARCH | _OPENROUTER | _MISTRAL | _OTHERS

# By server (`rules.server_of`). Sources: each provider's reference of chat completions, and the protocols in the
# sources of vLLM, SGLang and llama.cpp; read 2026-11. Servers that are not named here refuse what they do not know.
FORWARDED: dict[str, frozenset[str]] = {
    "openrouter": _THOUGHTS | _SEARCH | _OPENROUTER | {"top_a", "repeat_penalty"},
    "deepseek": _THOUGHTS,
    "moonshot": _THOUGHTS | {"partial"},
    "zai": _THOUGHTS | {"do_sample", "tool_stream"},
    "mistral": _MISTRAL,
    "groq": frozenset({"include_reasoning", "reasoning_format", "disable_tool_validation", "compound_custom"})
    | {"documents", "citation_options", "search_settings", "exclude_domains", "include_domains"},
    "xai": frozenset({"search_parameters"}),
    "together": _THOUGHTS | {"safety_model", "context_length_exceeded_behavior"},
    "fireworks": _THOUGHTS
    | {"context_length_exceeded_behavior", "reasoning_history", "top_a", "typical_p", "mirostat_target", "mirostat_lr"},
    "cerebras": frozenset({"disable_reasoning", "clear_thinking"}),
    "vllm": _THOUGHTS | _GRAMMARS | _RENDERING | {"length_penalty", "bad_words", "allowed_token_ids"},
    "sglang": _THOUGHTS | _GRAMMARS | _RENDERING,
    "llama-server": _THOUGHTS | _SAMPLING | _GRAMMARS | _RENDERING,
    "ollama": _THOUGHTS,
    "compatible": _LENIENT,
    "provider": _LENIENT,
}
FORWARDABLE = frozenset().union(*FORWARDED.values())
"""Fields that at least one kind of server knows."""


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
