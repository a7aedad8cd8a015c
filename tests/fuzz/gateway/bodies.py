"""JSON bodies of every endpoint that takes one, through the whole application: never a 5xx, always the envelope."""

import json
from random import Random
from typing import Any

from tests.fuzz.asgi_gateway import ADMIN, JSON, gateway
from tests.fuzz.mutations import json_mutated
from tests.fuzz.target import Target, fuzz_target

USER = {"role": "user", "content": "Hello"}
TOOL = {"type": "function", "function": {"name": "f", "description": "d", "parameters": {"type": "object"}}}
CALL = {"id": "c1", "type": "function", "function": {"name": "f", "arguments": '{"a": 1}'}}
IMAGE = {"type": "image_url", "image_url": {"url": "data:image/png;base64,iVBORw0KGgo="}}
CHAT: list[Any] = [
    {"model": "auto", "messages": [USER]},
    {"model": "auto", "messages": [USER], "stream": True, "stream_options": {"include_usage": True}, "n": 2},
    {
        "model": "tier-1",
        "messages": [
            {"role": "system", "content": "s"},
            USER,
            {"role": "assistant", "content": None, "tool_calls": [CALL]},
            {"role": "tool", "tool_call_id": "c1", "content": [{"type": "text", "text": "1"}]},
        ],
        "tools": [TOOL],
        "tool_choice": {"type": "function", "function": {"name": "f"}},
        "parallel_tool_calls": False,
    },
    {"model": "auto", "messages": [{"role": "user", "content": [{"type": "text", "text": "a"}, IMAGE]}]},
    {"model": "auto", "messages": [USER], "logprobs": True, "top_logprobs": 2, "logit_bias": {"1": 1}, "stop": ["a"]},
    {
        "model": "auto",
        "messages": [USER],
        "max_completion_tokens": 9,
        "temperature": 0.5,
        "top_p": 0.9,
        "seed": 1,
        "metadata": {"a": "b"},
        "service_tier": "flex",
        "reasoning_effort": "low",
        "user": "u",
        "store": False,
    },
    {
        "model": "auto",
        "messages": [USER],
        "response_format": {
            "type": "json_schema",
            "json_schema": {"name": "a", "schema": {"type": "object", "properties": {"a": {"type": "string"}}}},
        },
    },
    {"model": "auto", "messages": [USER], "structured_outputs": {"regex": "[a-z]+"}},
    {"model": "auto", "messages": [USER], "structured_outputs": {"choice": ["a", "b"]}, "priority": 1},
    {"model": "auto", "messages": [USER], "chat_template_kwargs": {"enable_thinking": True}},
]
COMPLETIONS: list[Any] = [
    {"model": "auto", "prompt": "Hello"},
    {"model": "auto", "prompt": ["a", "b"], "n": 2, "best_of": 3, "logprobs": 1, "echo": True, "max_tokens": 4},
    {"model": "auto", "prompt": [1, 2, 3], "stream": True},
    {"model": "auto", "prompt": [[1], [2]], "suffix": None, "stop": "a"},
]
EMBEDDINGS: list[Any] = [
    {"model": "auto", "input": "a"},
    {"model": "auto", "input": ["a", "b"], "encoding_format": "base64", "dimensions": 4, "user": "u"},
    {"model": "auto", "input": [[1, 2]], "metadata": {"a": "b"}},
]
RESPONSES: list[Any] = [
    {"model": "auto", "input": "Hello"},
    {
        "model": "auto",
        "input": [
            {"role": "user", "content": [{"type": "input_text", "text": "a"}]},
            {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"},
            {"type": "function_call_output", "call_id": "c", "output": "1"},
        ],
        "instructions": "i",
        "stream": True,
    },
    {
        "model": "auto",
        "input": "a",
        "tools": [{"type": "function", "name": "f", "parameters": {"type": "object"}}],
        "tool_choice": "auto",
        "text": {"format": {"type": "text"}},
        "reasoning": {"effort": "low"},
        "store": False,
    },
    {"model": "auto", "input": "a", "previous_response_id": "resp_1", "truncation": "auto", "max_output_tokens": 16},
    {
        "model": "auto",
        "input": "a",
        "tools": [
            {"type": "custom", "name": "g", "format": {"type": "grammar", "syntax": "lark", "definition": 'start: "a"'}}
        ],
    },
]
MESSAGES: list[Any] = [
    {"model": "auto", "max_tokens": 16, "messages": [USER]},
    {
        "model": "auto",
        "max_tokens": 2000,
        "system": [{"type": "text", "text": "s"}],
        "stream": True,
        "messages": [
            {"role": "user", "content": [{"type": "text", "text": "a", "cache_control": {"type": "ephemeral"}}]},
            {
                "role": "assistant",
                "content": [
                    {"type": "thinking", "thinking": "t", "signature": "x"},
                    {"type": "tool_use", "id": "t1", "name": "f", "input": {"a": 1}},
                ],
            },
            {
                "role": "user",
                "content": [
                    {"type": "tool_result", "tool_use_id": "t1", "content": "1", "is_error": False},
                    {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "AA=="}},
                ],
            },
        ],
        "tools": [{"name": "f", "description": "d", "input_schema": {"type": "object"}}],
        "tool_choice": {"type": "any"},
        "thinking": {"type": "enabled", "budget_tokens": 1024},
        "stop_sequences": ["a"],
        "metadata": {"user_id": "u"},
    },
    {
        "model": "auto",
        "max_tokens": 16,
        "messages": [
            {
                "role": "user",
                "content": [
                    {
                        "type": "document",
                        "title": "t",
                        "source": {"type": "text", "media_type": "text/plain", "data": "d"},
                    },
                    {"type": "search_result", "source": "u", "title": "t", "content": [{"type": "text", "text": "a"}]},
                ],
            }
        ],
        "temperature": 0.1,
        "top_k": 2,
        "top_p": 0.4,
    },
]
ROUTE: list[Any] = [
    {"messages": [USER]},
    {"model": "auto", "messages": [USER], "max_tokens": 4, "quality_target": 0.9, "explain": True},
    {"prompt": "a"},
]
TOKENIZE: list[Any] = [
    {"model": "tier-1", "prompt": "a", "add_special_tokens": False, "return_token_strs": True},
    {"model": "tier-1", "messages": [USER], "add_generation_prompt": True},
]


def json_seeds(bodies: list[Any]) -> list[bytes]:
    """Encode seeds, and bodies that are none."""
    return [*(json.dumps(body).encode() for body in bodies), b"", b"{", b"[]", b'{"model": "\xff"}']


def names_in(value: Any) -> set[str]:
    """Return every key and short text of the seeds: the words of their format."""
    if isinstance(value, dict):
        return set(value).union(*map(names_in, value.values()))
    if isinstance(value, list):
        return set().union(*map(names_in, value))
    return {value} if isinstance(value, str) and len(value) < 24 else set()


def endpoint(method: str, path: str, bodies: list[Any], *, admin: bool = False) -> Target:
    """Return a target that sends its input as the body of this endpoint."""

    def run(data: bytes) -> str:
        return gateway().ask(method, path, data, ADMIN + JSON if admin else JSON).code

    name = path.removeprefix("/v1").removeprefix("/admin/api").strip("/").replace("/", "_").replace("-", "_")
    words = [b'"' + word.encode() + b'"' for word in sorted(names_in(bodies)) if word]
    run.__name__, run.__module__ = ("admin_" if admin else "") + name, __name__
    return fuzz_target(json_seeds(bodies), words, json_mutated)(run)


chat_completions = endpoint("POST", "/v1/chat/completions", CHAT)
completions = endpoint("POST", "/v1/completions", COMPLETIONS)
embeddings = endpoint("POST", "/v1/embeddings", EMBEDDINGS)
responses = endpoint("POST", "/v1/responses", RESPONSES)
messages = endpoint("POST", "/v1/messages", MESSAGES)
messages_count_tokens = endpoint("POST", "/v1/messages/count_tokens", MESSAGES)
route = endpoint("POST", "/v1/route", ROUTE)
tokenize = endpoint("POST", "/v1/tokenize", TOKENIZE)
detokenize = endpoint("POST", "/v1/detokenize", [{"model": "tier-1", "tokens": [1, 2, 3]}])
feedback = endpoint("POST", "/v1/feedback", [{"request_id": "chatcmpl-1", "score": 1, "comment": "a", "correct": True}])
batches = endpoint(
    "POST",
    "/v1/batches",
    [
        {
            "endpoint": "/v1/chat/completions",
            "input_file_id": "file-1",
            "completion_window": "24h",
            "metadata": {"a": "b"},
            "output_expires_after": {"anchor": "created_at", "seconds": 3600},
        }
    ],
)

_TERMS = {
    "scopes": ["inference"],
    "tiers": [1, 2],
    "models": ["auto"],
    "quality": 0.9,
    "min_tier": 1,
    "consent": True,
    "priority_ceiling": 1,
    "requests_per_minute": 5,
    "tokens_per_minute": 9,
    "concurrency": 2,
    "strict": False,
    "aliases": {"a": "auto"},
    "expires_at": 2e9,
}
_ARMS = {
    "name": "e",
    "share": 0.1,
    "a": {"tier": 1},
    "b": {"version": "v"},
    "level": 0.05,
    "most_probes": 9,
    "by": "user",
    "guardrails": {"cost": 0.5, "ttft": None},
}
CHANGES: dict[tuple[str, str], list[Any]] = {
    ("PATCH", "/v1/admin/knobs/core"): [{"max_running": 8, "model": "m", "core": "cpu", "keep": False, "reason": "r"}],
    ("PATCH", "/v1/admin/knobs/routing"): [{"target": 0.9, "reason": "r"}],
    ("PATCH", "/v1/admin/knobs/cache"): [{"max_entries": 5, "enabled": True, "ttl_seconds": 60, "reason": "r"}],
    ("PATCH", "/v1/admin/knobs/batches"): [{"max_running": 1, "reason": "r"}],
    ("PATCH", "/v1/admin/knobs/replicas"): [{"tier": 1, "slow_start_seconds": 1.0, "reason": "r"}],
    ("POST", "/v1/admin/adapters"): [{"model": "m", "name": "a", "path": "/tmp/a"}],
    ("POST", "/admin/api/keys"): [{"name": "a", "team": None, "terms": _TERMS, "reason": "r"}],
    ("PATCH", "/admin/api/keys/k"): [{"terms": _TERMS, "reason": "r"}],
    ("POST", "/admin/api/keys/k/rotate"): [{"grace_seconds": 5, "reason": "r"}],
    ("POST", "/admin/api/teams"): [{"name": "t", "reason": "r"}],
    ("PUT", "/admin/api/budgets"): [{"kind": "key", "subject": "k", "period": "month", "amount_usd": 5, "reason": "r"}],
    ("POST", "/admin/api/experiments"): [_ARMS | {"reason": "r"}],
    ("PUT", "/admin/api/trial"): [{"version": "v", "share": 0.1, "reason": "r"}],
    ("POST", "/admin/api/artefacts/rollback"): [{"reason": "r"}],
    ("POST", "/admin/api/verifications/1/review"): [{"verdict": "no_worse", "comment": "n"}],
    ("POST", "/admin/api/retrainings"): [{"reason": "r"}],
    ("POST", "/v1/admin/reload"): [{"reason": "r"}],
}


def _all_changes() -> list[bytes]:
    return [
        bytes([place]) + json.dumps(body).encode() for place, bodies in enumerate(CHANGES.values()) for body in bodies
    ]


def _change_mutated(data: bytes, random: Random) -> bytes:
    return data[:1] + json_mutated(data[1:], random)


@fuzz_target(
    _all_changes(),
    [b'"' + word.encode() + b'"' for word in sorted(names_in(list(CHANGES.values()))) if word],
    _change_mutated,
)
def changes(data: bytes) -> str:
    """Bodies of an administrator's changes; the first byte chooses the endpoint."""
    method, path = list(CHANGES)[data[0] % len(CHANGES)] if data else ("POST", "/admin/api/keys")
    return f"{path} {gateway().ask(method, path, data[1:], ADMIN + JSON).code}"
