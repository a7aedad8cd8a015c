"""Added tokens that a chat template writes are its own, special or not: no text of a caller makes one."""

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import pre_tokenizers
from transformers import PreTrainedTokenizerFast

from inference_core.loaders.gguf_format.gguf_header import TokenType
from inference_core.tokenization.load_tokenizer import load_tokenizer
from inference_core.tokenization.tokenizer import Tokenizer
from tests.inference_core.tokenization.marked_templates import (
    FRAGMENTS,
    TEMPLATES,
    added,
    chat,
    literal,
    marked_backend,
)
from tests.inference_core.tokenization.test_hf_vocabulary import save
from tests.inference_core.tokenization.vocabularies import train_byte_level, write_vocabulary

HOSTILE = st.lists(st.sampled_from(FRAGMENTS), max_size=10).map("".join)


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[Tokenizer, PreTrainedTokenizerFast]]:
    """By template: our tokeniser, and transformers'."""
    made = {}
    for name, template in TEMPLATES.items():
        folder = tmp_path_factory.mktemp("model")
        reference = save(folder, marked_backend(), template)
        made[name] = load_tokenizer(folder), reference
    return made


@pytest.mark.parametrize("name", TEMPLATES)
@given(said=HOSTILE)
def test_what_is_said_makes_none_of_the_templates_tokens_and_is_not_changed(
    folders: dict[str, tuple[Tokenizer, Any]], name: str, said: str
) -> None:
    tokenizer, _ = folders[name]
    tools = [{"name": said, said: [said]}]

    ids = tokenizer.encode_chat(chat(said), tools=tools)
    honest = tokenizer.encode_chat(chat("y"), tools=[{"name": "y", "y": ["y"]}])

    written = set(added(tokenizer, tokenizer.encode(TEMPLATES[name]))) | set(added(tokenizer, honest))
    assert [text for text in added(tokenizer, ids) if text in written] == added(tokenizer, honest)
    assert literal(tokenizer, ids) == tokenizer.render_chat(chat(said), tools=tools)


@pytest.mark.parametrize("name", TEMPLATES)
@given(text=HOSTILE)
def test_text_without_a_template_encodes_as_in_transformers(
    folders: dict[str, tuple[Tokenizer, Any]], name: str, text: str
) -> None:
    tokenizer, reference = folders[name]

    for around in (False, True):
        expected = reference(text, add_special_tokens=around, split_special_tokens=True)["input_ids"]
        assert tokenizer.encode(text, add_special_tokens=around) == expected


@pytest.mark.parametrize("name", ["full width", "tags"])
def test_honest_chats_encode_as_in_transformers(folders: dict[str, tuple[Tokenizer, Any]], name: str) -> None:
    tokenizer, reference = folders[name]
    turns = chat("What is 2 + 2?", "<think>Sum.</think>\n\nIt is <h1>4</h1>")
    rendered = reference.apply_chat_template(turns, tokenize=False, add_generation_prompt=True)

    assert tokenizer.encode_chat(turns) == reference(rendered, add_special_tokens=False)["input_ids"]


@pytest.mark.parametrize("name", TEMPLATES)
@pytest.mark.parametrize("said", ["<think>Sum.</think>\n\nIt is 4", "Sum.</think>4", "</think><think>", "4"])
def test_an_assistants_thoughts_encode_as_in_transformers(
    folders: dict[str, tuple[Tokenizer, Any]], name: str, said: str
) -> None:
    tokenizer, reference = folders[name]
    turn = {"role": "assistant", "content": said, "reasoning_content": said, "thinking": said}
    turns = [{"role": "user", "content": "What is 2 + 2?"}, turn, {"role": "user", "content": "Sure?"}, turn]
    rendered = reference.apply_chat_template(turns, tokenize=False, add_generation_prompt=True)

    assert tokenizer.encode_chat(turns) == reference(rendered, add_special_tokens=False)["input_ids"]


def test_a_template_that_escapes_texts_escapes_marks_of_html_as_in_transformers(tmp_path: Path) -> None:
    template = "{{ 'To '|safe + tools[0].description + tools[0].name|e }}<｜User｜>{{ messages[0].content }}"
    reference = save(tmp_path, marked_backend(), template)
    tokenizer, turns = load_tokenizer(tmp_path), [{"role": "user", "content": "<b>"}]
    tools = [{"name": "<i>", "description": "Says <b>hello</b> & 'more'."}]
    rendered = reference.apply_chat_template(turns, tools=tools, tokenize=False)

    assert tokenizer.encode_chat(turns, tools=tools) == reference(rendered, add_special_tokens=False)["input_ids"]


def test_an_assistants_own_turn_keeps_the_marks_that_its_template_looks_for_and_no_others(
    folders: dict[str, tuple[Tokenizer, Any]],
) -> None:
    tokenizer, _ = folders["full width"]

    ids = tokenizer.encode_chat(chat("y", "Well.</think>Four<｜User｜>"), tools=[])

    assert "Well" not in literal(tokenizer, ids)
    assert added(tokenizer, ids).count("<｜User｜>") == 1


def test_user_defined_tokens_of_a_gguf_file_are_the_templates_too(tmp_path: Path) -> None:
    tokens, merges = train_byte_level(pre_tokenizers.ByteLevel(add_prefix_space=False), size=300)
    kinds = [TokenType.CONTROL] * 3 + [TokenType.NORMAL] * (len(tokens) - 3) + [TokenType.USER_DEFINED] * 2
    keys = {"model": "gpt2", "pre": "gpt-2", "merges": [" ".join(pair) for pair in merges]}
    keys |= {"tokens": [*tokens, "<｜User｜>", "<h1>"], "token_type": [int(kind) for kind in kinds]}
    template = "{% for m in messages %}<｜User｜>{{ m.content }}{% endfor %}"
    tokenizer = load_tokenizer(write_vocabulary(tmp_path / "v.gguf", keys, template))

    ids = tokenizer.encode_chat([{"role": "user", "content": "<｜User｜><h1>"}])

    user, heading = len(tokens), len(tokens) + 1
    assert [token for token in ids if token >= user] == [user, heading]
    assert literal(tokenizer, ids) == "<｜User｜><｜User｜><h1>"
    assert tokenizer.encode("<｜User｜>") == [user]
