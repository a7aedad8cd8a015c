"""Tokenisers from folders that transformers saved encode and render as transformers does."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from tokenizers import AddedToken, decoders, normalizers, pre_tokenizers, processors
from tokenizers import Tokenizer as Backend
from tokenizers.models import BPE, WordPiece
from transformers import PreTrainedTokenizerFast
from transformers.convert_slow_tokenizer import bytes_to_unicode, generate_merges

from inference_core.errors import ModelFileError
from inference_core.tokenization.control_tokens import byte_level_alphabet
from inference_core.tokenization.load_tokenizer import load_tokenizer
from tests.inference_core.tokenization.sample_texts import TEXTS
from tests.inference_core.tokenization.vocabularies import (
    CHATML,
    CONTROL_TOKENS,
    sentencepiece_vocabulary,
    train_byte_level,
)

CHAT = [{"role": "system", "content": "Be <b>brief</b>."}, {"role": "user", "content": "Hello 世界 42"}]


def byte_level_backend() -> Backend:
    splitter = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokens, merges = train_byte_level(splitter)
    backend = Backend(BPE({token: i for i, token in enumerate(tokens)}, merges))
    backend.pre_tokenizer = splitter
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in CONTROL_TOKENS])
    backend.add_tokens([AddedToken("<think>", special=False, normalized=False)])
    return backend


def sentencepiece_backend(prefix: str) -> Backend:
    """Llama 2's pipeline, in its old (`Prepend`) or its new form (`Metaspace`)."""
    pieces, scores, _ = sentencepiece_vocabulary()
    vocabulary = {piece: i for i, piece in enumerate(pieces)}
    merges = generate_merges(vocabulary, dict(zip(pieces, scores, strict=True)))
    backend = Backend(BPE(vocabulary, merges, unk_token="<unk>", fuse_unk=True, byte_fallback=True))
    if prefix == "prepend":
        backend.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    else:
        backend.pre_tokenizer = pre_tokenizers.Metaspace(replacement="▁", prepend_scheme=prefix, split=False)
    backend.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()])
    backend.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 1)])
    backend.add_special_tokens(
        [
            AddedToken("<s>", special=True, normalized=False),
            AddedToken("</s>", special=True, normalized=False, rstrip=True),
        ]
    )
    return backend


def save(folder: Path, backend: Backend, template: str | None, **tokens: str) -> PreTrainedTokenizerFast:
    reference = PreTrainedTokenizerFast(tokenizer_object=backend, **tokens)
    reference.chat_template = template
    reference.save_pretrained(folder)
    return PreTrainedTokenizerFast.from_pretrained(folder)


def assert_like(folder: Path, reference: Any) -> None:
    tokenizer = load_tokenizer(folder)
    for text in TEXTS:
        plain = reference(text, add_special_tokens=False, split_special_tokens=True)["input_ids"]
        marked = reference(text, split_special_tokens=True)["input_ids"]
        assert tokenizer.encode(text) == plain
        assert tokenizer.encode(text, add_special_tokens=True) == marked
    rendered = reference.apply_chat_template(CHAT, tokenize=False, add_generation_prompt=True)
    assert tokenizer.render_chat(CHAT) == rendered
    assert tokenizer.encode_chat(CHAT) == reference(rendered, add_special_tokens=False)["input_ids"]


def test_a_byte_level_folder_is_read_as_transformers_reads_it(tmp_path: Path) -> None:
    reference = save(tmp_path, byte_level_backend(), CHATML, bos_token="<|im_start|>", eos_token="<|im_end|>")

    assert_like(tmp_path, reference)
    tokenizer = load_tokenizer(tmp_path)
    assert (tokenizer.bos_token_id, tokenizer.eos_token_ids) == (1, (2,))
    assert tokenizer.vocab_size == len(reference)


@pytest.mark.parametrize("prefix", ["prepend", "first", "always", "never"])
def test_a_sentencepiece_folder_is_read_as_transformers_reads_it(tmp_path: Path, prefix: str) -> None:
    template = (
        "{{ bos_token }}{% for m in messages %}[{{ m.role }}] {{ m.content }}{{ eos_token }} \n{% endfor %}answer:"
    )
    reference = save(tmp_path, sentencepiece_backend(prefix), template, bos_token="<s>", eos_token="</s>")

    assert_like(tmp_path, reference)


def test_added_tokens_that_are_not_special_are_text_with_an_id_of_its_own(tmp_path: Path) -> None:
    save(tmp_path, byte_level_backend(), CHATML)
    tokenizer = load_tokenizer(tmp_path)

    ids = tokenizer.encode("<think>x")

    assert tokenizer.token_bytes(ids[0]) == b"<think>"
    assert not tokenizer.is_control(ids[0])
    assert tokenizer.decode(ids) == "<think>x"


def test_end_tokens_come_from_the_models_settings_first(tmp_path: Path) -> None:
    save(tmp_path, byte_level_backend(), CHATML, eos_token="<|im_end|>")
    (tmp_path / "generation_config.json").write_text('{"eos_token_id": [0, 2]}')

    assert load_tokenizer(tmp_path).eos_token_ids == (0, 2)


def test_a_template_may_lie_in_the_settings_too(tmp_path: Path) -> None:
    save(tmp_path, byte_level_backend(), None)
    settings = tmp_path / "tokenizer_config.json"
    content = json.loads(settings.read_text())

    for template in ("T", [{"name": "tool_use", "template": "U"}, {"name": "default", "template": "T"}]):
        settings.write_text(json.dumps(content | {"chat_template": template}))
        assert load_tokenizer(tmp_path).render_chat(CHAT) == "T"


@pytest.mark.parametrize("form", ["object", "list", "files"])
def test_chats_with_tools_have_a_template_of_their_own_where_the_folder_has_one(tmp_path: Path, form: str) -> None:
    save(tmp_path, byte_level_backend(), None)
    named = {"default": "plain", "tool_use": "{{ tools[0].name }}"}
    if form == "files":
        (tmp_path / "chat_template.jinja").write_text(named["default"])
        (tmp_path / "additional_chat_templates").mkdir()
        (tmp_path / "additional_chat_templates" / "tool_use.jinja").write_text(named["tool_use"])
    else:
        templates = named if form == "object" else [{"name": n, "template": t} for n, t in named.items()]
        _change(tmp_path / "tokenizer_config.json", chat_template=templates)
    tokenizer = load_tokenizer(tmp_path)

    assert tokenizer.render_chat(CHAT, tools=None) == "plain"
    assert tokenizer.render_chat(CHAT, tools=[{"name": "find"}]) == "find"
    assert tokenizer.chat_template is not None
    assert tokenizer.chat_template.uses_tools


@pytest.mark.parametrize("value", ["<|im_start|>", {"content": "<|im_start|>", "lstrip": False, "rstrip": False}])
def test_a_begin_token_that_only_the_special_tokens_map_names_is_known(tmp_path: Path, value: Any) -> None:
    save(tmp_path, byte_level_backend(), "{{ bos_token }}x")
    (tmp_path / "special_tokens_map.json").write_text(json.dumps({"bos_token": value}))
    tokenizer = load_tokenizer(tmp_path)

    assert (tokenizer.bos_token_id, tokenizer.render_chat(CHAT)) == (1, "<|im_start|>x")


def test_tokens_that_only_the_settings_list_are_added_as_transformers_adds_them(tmp_path: Path) -> None:
    reference = save(tmp_path, byte_level_backend(), CHATML)
    size = len(reference)
    listed = {
        str(size): {"content": "<tool>", "special": False, "normalized": False},
        str(size + 1): {"content": "<|eot|>", "special": True, "rstrip": True, "normalized": False},
    }
    _change(tmp_path / "tokenizer_config.json", added_tokens_decoder=listed, eos_token="<|eot|>")
    reference, tokenizer = PreTrainedTokenizerFast.from_pretrained(tmp_path), load_tokenizer(tmp_path)

    text = "a <tool> b <|eot|>"
    assert tokenizer.encode(text) == reference(text, add_special_tokens=False, split_special_tokens=True)["input_ids"]
    assert tokenizer.eos_token_ids == (reference.eos_token_id,) == (size + 1,)
    assert tokenizer.is_control(size + 1)
    assert not tokenizer.is_control(size)


def test_settings_of_another_models_tokens_are_refused(tmp_path: Path) -> None:
    save(tmp_path, byte_level_backend(), CHATML)
    _change(tmp_path / "tokenizer_config.json", added_tokens_decoder={"5000": {"content": "<far>", "special": True}})

    with pytest.raises(ModelFileError, match="no token 5000"):
        load_tokenizer(tmp_path)


def _change(file: Path, **changes: Any) -> None:
    file.write_text(json.dumps(json.loads(file.read_text()) | changes))


def test_the_byte_level_alphabet_is_gpt2s() -> None:
    assert byte_level_alphabet() == {character: byte for byte, character in bytes_to_unicode().items()}


def test_folders_that_hold_no_usable_tokeniser_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ModelFileError, match=r"tokenizer\.json"):
        load_tokenizer(tmp_path)

    (tmp_path / "tokenizer.json").write_text("{")
    with pytest.raises(ModelFileError, match="is corrupt"):
        load_tokenizer(tmp_path)

    (tmp_path / "tokenizer.json").write_text('{"model": {}}')
    with pytest.raises(ModelFileError, match="not a tokeniser that `tokenizers` can read"):
        load_tokenizer(tmp_path)

    Backend(WordPiece({"a": 0, "[UNK]": 1}, unk_token="[UNK]")).save(str(tmp_path / "tokenizer.json"))
    with pytest.raises(ModelFileError, match="only byte-level tokenisers and those with byte fallback"):
        load_tokenizer(tmp_path)


FIRST_USE = """
import importlib, sys, threading
from pathlib import Path
from inference_core.tokenization import hf_vocabulary

sys.setswitchinterval(1e-6)
for _ in range(60):
    importlib.reload(hf_vocabulary)
    begin = threading.Barrier(8)

    def read():
        begin.wait()
        hf_vocabulary.decode(Path("x"), b'{"model": {"type": "BPE"}, "added_tokens": []}', hf_vocabulary._TokenizerFile)

    threads = [threading.Thread(target=read) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
"""


def test_threads_that_read_the_first_tokenisers_at_once_do_not_crash() -> None:
    """msgspec prepares a type at its first use, and a second thread would use it half prepared."""
    found = subprocess.run([sys.executable, "-c", FIRST_USE], capture_output=True, text=True, check=False)
    assert found.returncode == 0, found.stderr
