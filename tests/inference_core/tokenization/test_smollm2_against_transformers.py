"""The real model's text and chats become the ids that transformers' own reading of the file gives."""

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from tokenizers import decoders, pre_tokenizers
from transformers import AutoTokenizer

from inference_core.tokenization.tokenizer import Tokenizer
from tests.inference_core.tokenization.sample_texts import REPRESENTABLE, TEXTS

pytestmark = pytest.mark.models
CHATS = [
    [{"role": "user", "content": "What is 12 x 34?"}],
    [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hi 👋"}],
    [
        {"role": "user", "content": "  spaces  "},
        {"role": "assistant", "content": "code:\n\tx = 1\n"},
        {"role": "user", "content": "日本語 ½"},
    ],
]


@pytest.fixture(scope="module")
def reference(smollm2_path: Path) -> Any:
    tokenizer = AutoTokenizer.from_pretrained(str(smollm2_path.parent), gguf_file=smollm2_path.name)
    # transformers ignores the file's pre-tokeniser kind; SmolLM's own tokenizer.json splits digits first. For ASCII
    # digits the vocabulary makes that the same, for others it does not.
    digits = pre_tokenizers.Digits(individual_digits=True)
    tokenizer.backend_tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [digits, pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    return tokenizer


@pytest.mark.parametrize("text", TEXTS)
def test_texts_encode_alike_when_control_tokens_are_text(smollm2: Tokenizer, reference: Any, text: str) -> None:
    expected = reference(text, add_special_tokens=False, split_special_tokens=True)["input_ids"]

    assert smollm2.encode(text) == expected


@given(text=REPRESENTABLE)
def test_random_text_encodes_alike_and_decodes_to_itself(smollm2: Tokenizer, reference: Any, text: str) -> None:
    ids = smollm2.encode(text)

    assert ids == reference(text, add_special_tokens=False, split_special_tokens=True)["input_ids"]
    assert smollm2.decode(ids) == text


@pytest.mark.parametrize("messages", CHATS)
@pytest.mark.parametrize("generation_prompt", [True, False])
def test_chats_render_and_encode_alike(
    smollm2: Tokenizer, reference: Any, messages: list[dict[str, str]], generation_prompt: bool
) -> None:
    def apply(tokenize: bool) -> Any:
        return reference.apply_chat_template(
            messages, tokenize=tokenize, add_generation_prompt=generation_prompt, return_dict=False
        )

    assert smollm2.render_chat(messages, add_generation_prompt=generation_prompt) == apply(tokenize=False)
    assert smollm2.encode_chat(messages, add_generation_prompt=generation_prompt) == apply(tokenize=True)


def test_every_token_has_the_bytes_that_the_tokenizers_package_decodes(smollm2: Tokenizer, reference: Any) -> None:
    decoder = decoders.ByteLevel()
    for token_id in range(17, smollm2.vocab_size):
        text = decoder.decode([reference.convert_ids_to_tokens(token_id)])
        assert smollm2.token_bytes(token_id).decode("utf-8", "replace") == text


def test_the_vocabulary_and_its_special_tokens_are_the_files(smollm2: Tokenizer, reference: Any) -> None:
    assert smollm2.vocab_size == len(reference) == 49152
    assert smollm2.bos_token_id == reference.bos_token_id == 1
    assert smollm2.eos_token_ids[0] == reference.eos_token_id == 2
    assert set(smollm2.control_tokens.values()) == set(range(17))
    assert smollm2.token_bytes(2) == b"<|im_end|>"
    assert smollm2.token_bytes(49152) == smollm2.token_bytes(-1) == b""
    assert smollm2.decode([1, *smollm2.encode("hi"), 2]) == "hi"
