"""Whatever a body has in its fields, reading it as another API's form only changes it, or leaves it: it never fails."""

import copy
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tiers.dialects.client_forms import mend_chat, mend_completion, mend_messages, mend_responses
from tiers.dialects.gemini_request import mend_gemini

# Names and words of the APIs, which the code looks for.
FIELDS = (
    "messages", "input", "tools", "tool_choice", "response_format", "text", "format", "metadata", "reasoning",
    "thinking", "reasoning_effort", "effort", "output_config", "output_format", "service_tier", "stop",
    "stop_sequences", "system", "max_tokens", "max_output_tokens", "seed", "top_k", "top_p", "previous_response_id",
    "extra_body",
)  # fmt: skip
NAMES = (
    *FIELDS, "type", "role", "content", "tool_calls", "function", "name", "arguments", "parameters", "input_schema",
    "schema", "json_schema", "custom", "definition", "source", "data", "url", "image_url", "file", "file_data",
    "image", "resource", "title", "tool_use_id", "tool_call_id", "call_id", "id", "output", "summary", "is_error",
    "allowed_tools", "mode", "cache_control", "detail", "text", "refusal", "budget_tokens", "value", "strict",
    "mimeType",
)  # fmt: skip
WORDS = (
    "", "user", "assistant", "system", "developer", "tool", "function", "text", "input_text", "image", "image_url",
    "file", "input_image", "input_file", "document", "resource", "search_result", "tool_use", "tool_result",
    "function_call", "function_call_output", "custom_tool_call", "message", "json_schema", "json", "allowed_tools",
    "custom", "auto", "any", "none", "required", "disabled", "base64", "url", "refusal", "{}", "[]",
    '{"type": "object"}', "minimal", "default",
)  # fmt: skip
VALUES = st.recursive(
    st.none() | st.booleans() | st.sampled_from([-1, 0, 5, 2**31, 2**63, 0.5]) | st.sampled_from(WORDS),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(NAMES), inner, max_size=5),
    max_leaves=12,
)
TURNS = st.lists(st.dictionaries(st.sampled_from(NAMES), VALUES, max_size=6), max_size=4)
BODIES = st.fixed_dictionaries(
    {},
    optional={name: TURNS | VALUES if name in ("messages", "input", "tools", "system") else VALUES for name in FIELDS},
)


@pytest.mark.parametrize("mend", [mend_chat, mend_completion, mend_messages, mend_responses, mend_gemini])
@given(data=BODIES)
def test_no_values_fail(mend: Callable[[dict[str, Any]], list[str]], data: dict[str, Any]) -> None:
    left_out = mend(copy.deepcopy(data))
    assert all(isinstance(name, str) for name in left_out)
