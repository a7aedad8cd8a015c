"""Added tokens that a chat template writes are its own, special or not: no text of a caller makes one."""

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import AddedToken, pre_tokenizers, processors
from tokenizers import Tokenizer as Backend
from transformers import PreTrainedTokenizerFast

from inference_core.loaders.gguf_format.gguf_header import TokenType
from inference_core.tokenization.load_tokenizer import load_tokenizer
from inference_core.tokenization.tokenizer import Tokenizer
from tests.inference_core.tokenization.test_hf_vocabulary import byte_level_backend, save
from tests.inference_core.tokenization.vocabularies import train_byte_level, write_vocabulary

# In the forms of DeepSeek's, Qwen3's and Phi's templates: marks that are not special tokens.
FULL_WIDTH = (
    "{% for m in messages %}{% if m.role == 'user' %}{{ '<｜User｜>' + m.content }}{% elif m.role == 'tool' %}"
    "{{ '<｜tool▁output▁begin｜>' + m.content + '<｜tool▁output▁end｜>' }}{% elif m.role == 'assistant' %}"
    "{{ '<｜Assistant｜>' + m.content.split('</think>')[-1] + '<|im_end|>' }}{% else %}{{ m.content }}{% endif %}"
    "{% endfor %}{{ tools | tojson }}{% if add_generation_prompt %}<｜Assistant｜><think>\n{% endif %}"
)
TAGS = (
    "{{ tools | tojson }}{% for m in messages %}<|im_start|>{{ m.role }}\n{% if m.role == 'tool' %}<tool_response>\n"
    "{{ m.content }}\n</tool_response>{% elif m.role == 'assistant' and '</think>' in m.content %}"
    "{{ m.content.split('</think>')[-1] }}{% else %}{{ m.content }}{% endif %}"
    "{% for call in m.tool_calls or [] %}<tool_call>{{ call | tojson }}</tool_call>{% endfor %}<|im_end|>\n{% endfor %}"
)
COMPOSED = (
    "{% for m in messages %}{{ '<|' + m.role + '|>' + m.content + '<|im_end|>' }}{% endfor %}{{ tools | tojson }}"
)
TEMPLATES = {"full width": FULL_WIDTH, "tags": TAGS, "composed": COMPOSED}
MARKS = [
    "<｜User｜>",
    "<｜Assistant｜>",
    "<｜tool▁output▁begin｜>",
    "<｜tool▁output▁end｜>",
    "<tool_call>",
    "</tool_call>",
]
MARKS += ["<tool_response>", "</tool_response>", "</think>", "<|user|>", "<|assistant|>"]
# No template writes these: they stay tokens in anybody's text.
OTHERS = ["<h1>", "\n\n"]
FRAGMENTS = [*MARKS, *OTHERS, "<|im_end|>", "<｜", "User｜>", "<", "/think>", "tool_call>", "a", "é", " ", "\n"]
HOSTILE = st.lists(st.sampled_from(FRAGMENTS), max_size=10).map("".join)


def marked_backend() -> Backend:
    backend = byte_level_backend()
    backend.add_tokens([AddedToken(text, special=False, normalized=False) for text in [*MARKS, *OTHERS]])
    backend.post_processor = processors.TemplateProcessing(
        single="<|endoftext|> $A <|im_end|>", special_tokens=[("<|endoftext|>", 0), ("<|im_end|>", 2)]
    )
    return backend


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[Tokenizer, PreTrainedTokenizerFast]]:
    """By template: our tokeniser, and transformers'."""
    made = {}
    for name, template in TEMPLATES.items():
        folder = tmp_path_factory.mktemp("model")
        reference = save(folder, marked_backend(), template)
        made[name] = load_tokenizer(folder), reference
    return made


def chat(said: str, asked: str = "x") -> list[dict[str, Any]]:
    call = {"id": said, "type": "function", "function": {"name": said, "arguments": {said: said}}}
    return [
        {"role": "system", "content": said},
        {"role": "user", "content": said, "name": said},
        {"role": "assistant", "content": asked, "tool_calls": [call]},
        {"role": "tool", "content": said, "tool_call_id": said},
    ]


def added(tokenizer: Tokenizer, ids: list[int]) -> list[str]:
    """The added tokens among `ids` that a template writes."""
    known = {tokenizer.vocabulary[text]: text for text in [*MARKS, "<think>"]} | {0: "0", 1: "1", 2: "2"}
    return [known[token] for token in ids if token in known]


def literal(tokenizer: Tokenizer, ids: list[int]) -> str:
    return b"".join(tokenizer.token_bytes(i) for i in ids).decode()


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
