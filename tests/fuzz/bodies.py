"""Valid bodies of every endpoint that callers ask, from which hostile ones are made."""

from typing import Any

USER = {"role": "user", "content": "Hello"}
TOOL = {"type": "function", "function": {"name": "f", "description": "d", "parameters": {"type": "object"}}}
SCHEMA = {
    "type": "json_schema",
    "json_schema": {"name": "a", "schema": {"type": "object", "properties": {"a": {"type": "string"}}}},
}
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
        "response_format": SCHEMA,
    },
    {"model": "auto", "messages": [USER], "structured_outputs": {"regex": "[a-z]+"}},
    {"model": "auto", "messages": [USER], "structured_outputs": {"choice": ["a", "b"]}, "priority": 1},
    {
        "model": "auto",
        "messages": [USER],
        "chat_template_kwargs": {"enable_thinking": True},
        "max_tokens": 4,
        "min_tokens": 1,
        "presence_penalty": 0.1,
        "frequency_penalty": 0.1,
        "repetition_penalty": 1.1,
        "top_k": 5,
        "min_p": 0.1,
        "stop_token_ids": [1],
        "ignore_eos": False,
    },
]
COMPLETIONS: list[Any] = [
    {"model": "auto", "prompt": "Hello"},
    {"model": "auto", "prompt": ["a", "b"], "n": 2, "best_of": 3, "logprobs": 1, "echo": True, "max_tokens": 4},
    {"model": "auto", "prompt": [1, 2, 3], "stream": True, "seed": 3, "temperature": 0},
    {"model": "auto", "prompt": [[1], [2]], "suffix": None, "stop": "a"},
]
EMBEDDINGS: list[Any] = [
    {"model": "auto", "input": "a"},
    {"model": "auto", "input": ["a", "b"], "encoding_format": "base64", "dimensions": 4, "user": "u"},
    {"model": "auto", "input": [[1, 2]], "metadata": {"a": "b"}},
    {"model": "smollm2-embed", "input": ["a", "b"], "encoding_format": "float", "dimensions": 8},
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
    {"model": "auto", "input": "a", "max_output_tokens": 16, "metadata": {"a": "b"}},
    {"model": "auto", "input": "a", "previous_response_id": "resp_1", "truncation": "auto", "temperature": 0.1},
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
    {"prompt": "a", "quality": 0.5},
]
TOKENIZE: list[Any] = [
    {"model": "tier-1", "prompt": "a", "add_special_tokens": False, "return_token_strs": True},
    {"model": "tier-1", "messages": [USER], "add_generation_prompt": True},
]
BODIES: dict[str, list[Any]] = {
    "/v1/chat/completions": CHAT,
    "/v1/completions": COMPLETIONS,
    "/v1/embeddings": EMBEDDINGS,
    "/v1/responses": RESPONSES,
    "/v1/messages": MESSAGES,
    "/v1/messages/count_tokens": MESSAGES,
    "/v1/route": ROUTE,
    "/v1/tokenize": TOKENIZE,
    "/v1/detokenize": [{"model": "tier-1", "tokens": [1, 2, 3]}],
    "/v1/feedback": [
        {"request_id": "chatcmpl-1", "score": 1, "comment": "a", "correct": True},
        {"request_id": "chatcmpl-1", "rating": "up"},
    ],
    "/v1/batches": [
        {
            "endpoint": "/v1/chat/completions",
            "input_file_id": "file-1",
            "completion_window": "24h",
            "metadata": {"a": "b"},
            "output_expires_after": {"anchor": "created_at", "seconds": 3600},
        }
    ],
}
"""By the path to which they are posted."""
