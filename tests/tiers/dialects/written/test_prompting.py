"""How tools, calls and results are presented to a model, by templates with and without tools."""

import json
from pathlib import Path

import pytest
from tokenizers import pre_tokenizers

from inference_core.tokenization.chat_template import ChatTemplate
from inference_core.tokenization.load_tokenizer import load_tokenizer
from tests.inference_core.tokenization.vocabularies import train_byte_level, write_vocabulary
from tiers.conversation import Call, Tool, Tooling, Turn
from tiers.dialects.written.call_dialects import HERMES
from tiers.dialects.written.tool_calling import ToolCalling, plain_messages, template_turns

ADD = Tool(name="add", description="Adds.", parameters={"type": "object", "properties": {"a": {"type": "integer"}}})
CALL = Call(id="call_1", name="add", arguments='{"a": 1}')
CONVERSATION = [
    Turn.of("user", "Add one, twice."),
    Turn.of("assistant", calls=(CALL, CALL)),
    Turn.of("tool", "1", call_id="call_1"),
    Turn.of("tool", "2", call_id="call_1"),
]


def test_a_template_that_reads_tools_is_known_by_it() -> None:
    assert ChatTemplate("{% if tools %}{{ tools | tojson }}{% endif %}", {}).uses_tools
    assert not ChatTemplate("{% for m in messages %}{{ m['content'] }} tools{% endfor %}", {}).uses_tools
    assert not ChatTemplate("{% set tools = 3 %}{{ tools }}", {}).uses_tools


def test_templates_with_tools_get_calls_as_data_and_results_in_their_own_role() -> None:
    turns = template_turns(CONVERSATION)
    assert turns[1]["tool_calls"][0]["function"] == {"name": "add", "arguments": {"a": 1}}
    assert (turns[2]["role"], turns[2]["tool_call_id"]) == ("tool", "call_1")
    assert "tool_calls" not in turns[0]


def test_other_templates_get_tools_in_the_system_turn_calls_as_text_and_results_from_the_user() -> None:
    plain = plain_messages(CONVERSATION, [ADD], HERMES)
    assert [m.role for m in plain] == ["system", "user", "assistant", "user"]
    assert json.dumps(ADD.definition()) in plain[0].text
    call = '<tool_call>\n{"name": "add", "arguments": {"a": 1}}\n</tool_call>'
    assert plain[2].text == f"{call}\n{call}"
    assert plain[3].text == ("<tool_response>\n1\n</tool_response>\n<tool_response>\n2\n</tool_response>")


def test_instructions_follow_a_system_turn_of_the_callers() -> None:
    first, *_ = plain_messages([Turn.of("system", "Be brief."), *CONVERSATION], [ADD], HERMES)
    assert first.text.startswith("Be brief.\n\n")
    assert '"add"' in first.text


def calling_of(folder: Path, template: str) -> ToolCalling:
    tokens, merges = train_byte_level(pre_tokenizers.ByteLevel(add_prefix_space=False), size=300)
    keys = {"model": "gpt2", "pre": "gpt-2", "tokens": tokens, "merges": [" ".join(pair) for pair in merges]}
    keys["token_type"] = [3] * 3 + [1] * (len(tokens) - 3)
    return ToolCalling(load_tokenizer(write_vocabulary(folder / "v.gguf", keys, template)))


@pytest.mark.parametrize(
    ("template", "role"),
    [
        ("{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}", "system"),
        ("{% for m in messages if m.role != 'system' %}{{ m.role }}: {{ m.content }}\n{% endfor %}", "user"),
        (
            "{% for m in messages %}{% if m.role == 'system' %}{{ raise_exception('no system turn') }}{% endif %}"
            "{{ m.role }}: {{ m.content }}\n{% endfor %}",
            "user",
        ),
    ],
)
def test_instructions_go_where_the_template_shows_them(tmp_path: Path, template: str, role: str) -> None:
    calling = calling_of(tmp_path, template)

    turns, _ = calling.turns([Turn.of("user", "Add one.")], Tooling(tools=(ADD,)))

    assert turns[0]["role"] == role
    assert '"add"' in turns[0]["content"]
    assert turns[-1]["content"].endswith("Add one.")


def test_a_template_that_reads_texts_in_parts_alone_gets_parts(tmp_path: Path) -> None:
    template = (
        "{% for m in messages %}{% if m.role == 'system' %}{{ raise_exception('no system turn') }}{% endif %}"
        "{{ m.role }}: {% for part in m.content %}{% if part.type == 'text' %}{{ part.text }}{% endif %}{% endfor %}\n"
        "{% endfor %}"
    )
    calling = calling_of(tmp_path, template)

    turns, _ = calling.turns([Turn.of("user", "Add one.")], Tooling(tools=(ADD,)))

    assert [part["type"] for part in turns[0]["content"]] == ["text"]
    assert '"add"' in turns[0]["content"][0]["text"]
    assert turns[-1]["content"][0]["text"].endswith("Add one.")


def test_thoughts_have_both_names_that_templates_read() -> None:
    (turn,) = template_turns([Turn.of("assistant", "4", thoughts="Sum.")])

    assert (turn["reasoning_content"], turn["thinking"]) == ("Sum.", "Sum.")


def test_without_tools_nothing_is_added() -> None:
    assert plain_messages(CONVERSATION[:1], [], HERMES) == CONVERSATION[:1]


def test_arguments_that_are_no_json_stay_text() -> None:
    assert Call(id="c", name="f", arguments="{oops").parsed_arguments() == "{oops"
