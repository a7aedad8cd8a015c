"""Small trained vocabularies, written as GGUF metadata, for tests of the tokenisers."""

import json
from pathlib import Path
from typing import Any

from gguf import GGUFWriter
from tokenizers import Tokenizer, pre_tokenizers
from tokenizers.models import BPE
from tokenizers.trainers import BpeTrainer

from inference_core.loaders.gguf_format.gguf_header import TokenType
from tests.inference_core.tokenization.sample_texts import TRAINING_TEXTS

CONTROL_TOKENS = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
CHATML = (
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)


def train_byte_level(splitter: pre_tokenizers.PreTokenizer, size: int = 900) -> tuple[list[str], list[tuple[str, str]]]:
    """(tokens by id, merges) of a byte-level BPE; control tokens come first."""
    tokenizer = Tokenizer(BPE())
    tokenizer.pre_tokenizer = splitter
    trainer = BpeTrainer(
        vocab_size=size,
        show_progress=False,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        special_tokens=CONTROL_TOKENS,
    )
    tokenizer.train_from_iterator(TRAINING_TEXTS, trainer)
    model = json.loads(tokenizer.to_str())["model"]
    tokens = sorted(model["vocab"], key=model["vocab"].__getitem__)
    return tokens, [(left, right) for left, right in model["merges"]]


def write_byte_level(path: Path, pre: str, tokens: list[str], merges: list[tuple[str, str]], /, **extra: Any) -> Path:
    types = [TokenType.CONTROL if token in CONTROL_TOKENS else TokenType.NORMAL for token in tokens]
    return write_vocabulary(
        path,
        {
            "model": "gpt2",
            "pre": pre,
            "tokens": tokens,
            "merges": [" ".join(pair) for pair in merges],
            "token_type": [int(kind) for kind in types],
            "bos_token_id": 0,
            "eos_token_id": 2,
        }
        | extra,
    )


def sentencepiece_vocabulary() -> tuple[list[str], list[float], list[int]]:
    """(pieces, scores, types) laid out as Llama 2's: special, bytes, joined pieces by falling score, characters."""
    tokenizer = Tokenizer(BPE())
    trainer = BpeTrainer(vocab_size=700, show_progress=False)
    tokenizer.train_from_iterator([text.replace(" ", "▁") for text in TRAINING_TEXTS if len(text) < 200], trainer)
    joined = [left + right for left, right in json.loads(tokenizer.to_str())["model"]["merges"]]
    joined = list(dict.fromkeys(joined))
    characters = sorted({character for piece in joined for character in piece})
    pieces = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), *joined, *characters]
    normal = len(joined) + len(characters)
    scores = [0.0] * 259 + [-float(rank) for rank in range(normal)]
    types = [TokenType.UNKNOWN, TokenType.CONTROL, TokenType.CONTROL] + [TokenType.BYTE] * 256
    return pieces, scores, [int(kind) for kind in types] + [int(TokenType.NORMAL)] * normal


def write_sentencepiece(path: Path, **extra: Any) -> Path:
    pieces, scores, types = sentencepiece_vocabulary()
    return write_vocabulary(
        path,
        {
            "model": "llama",
            "tokens": pieces,
            "scores": scores,
            "token_type": types,
            "bos_token_id": 1,
            "eos_token_id": 2,
            "unknown_token_id": 0,
        }
        | extra,
    )


def write_vocabulary(path: Path, keys: dict[str, Any], chat_template: str | None = CHATML) -> Path:
    """A GGUF file with only a tokeniser in it. None drops a key."""
    writer = GGUFWriter(path, "llama")
    if chat_template is not None:
        writer.add_string("tokenizer.chat_template", chat_template)
    for key, value in keys.items():
        name = f"tokenizer.ggml.{key}"
        match value:
            case None:
                continue
            case bool():
                writer.add_bool(name, value)
            case int():
                writer.add_uint32(name, value)
            case str():
                writer.add_string(name, value)
            case _:
                writer.add_array(name, value)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path
