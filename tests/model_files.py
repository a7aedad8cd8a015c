"""Model folders and files of strangers, by name: each makes a careless reader hang, use up memory or raise."""

import json
import os
import re
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.inference_core.tokenization.hostile_templates import REFUSED, UNREADABLE, WORK

Change = Callable[[Path], object]
_READ = (
    "config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json", "special_tokens_map.json",
    "chat_template.jinja", "model.safetensors", "model.safetensors.index.json",
)  # fmt: skip
_NUMBERS = (1e308, -1e308, 0, -1, 1e-320, "1e999")
_SIZES = (
    "vocab_size", "hidden_size", "num_hidden_layers", "num_attention_heads", "max_position_embeddings", "head_dim",
    "rms_norm_eps", "rope_theta", "intermediate_size", "num_key_value_heads",
)  # fmt: skip


def _written(name: str, content: bytes | str) -> Change:
    data = content.encode() if isinstance(content, str) else content
    return lambda folder: _absent(folder / name).write_bytes(data)


def _absent(path: Path) -> Path:
    path.unlink(missing_ok=True)
    return path


def _piped(name: str) -> Change:
    return lambda folder: os.mkfifo(_absent(folder / name))


def _linked(name: str) -> Change:
    return lambda folder: _absent(folder / name).symlink_to("/dev/zero")


def _huge(name: str) -> Change:
    def change(folder: Path) -> None:
        _absent(folder / name).touch()
        os.truncate(folder / name, 3 << 30)

    return change


def _settings(name: str, keys: dict[str, Any]) -> Change:
    """Other keys in a file of settings; a text `@...` is a number as JSON may not have it."""

    def change(folder: Path) -> None:
        text = json.dumps(json.loads((folder / name).read_text()) | keys)
        (folder / name).write_text(re.sub(r'"@([^"@]+)@"', r"\1", text))

    return change


def _split(pattern: str) -> dict[str, Any]:
    return {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": False}


def _rope(kind: str, number: object) -> dict[str, Any]:
    value = f"@{number}@"
    names = ("factor", "low_freq_factor", "high_freq_factor", "mscale", "mscale_all_dim", "beta_fast", "beta_slow")
    scaling = dict.fromkeys(names, value) | {"short_factor": [value] * 8, "long_factor": [value] * 8}
    return {"rope_scaling": scaling | {"rope_type": kind, "original_max_position_embeddings": 1}}


def _added(count: int, text: str = "<{}>") -> list[dict[str, Any]]:
    flags = dict.fromkeys(("lstrip", "rstrip", "single_word", "normalized"), False)
    return [{"id": 257 + n, "content": text.format(n), "special": True, **flags} for n in range(count)]


def _padding(length: int | None, multiple: int | None = None) -> dict[str, Any]:
    strategy = "BatchLongest" if length is None else {"Fixed": length}
    token = {"pad_id": 0, "pad_type_id": 0, "pad_token": "<0>"}
    return {"strategy": strategy, "direction": "Right", "pad_to_multiple_of": multiple, **token}


def _processor(count: int) -> dict[str, Any]:
    pieces = [{"SpecialToken": {"id": "a", "type_id": 0}}] * count + [{"Sequence": {"id": "A", "type_id": 0}}]
    tokens = {"a": {"id": "a", "ids": [0], "tokens": ["a"]}}
    return {"type": "TemplateProcessing", "single": pieces, "pair": pieces, "special_tokens": tokens}


def _word_piece(count: int, length: int) -> dict[str, Any]:
    words = {"a" * (length - n % 100) + str(n): n for n in range(count)} | {"[UNK]": count}
    most = {"max_input_chars_per_word": 10**9, "continuing_subword_prefix": "##"}
    return {"type": "WordPiece", "unk_token": "[UNK]", "vocab": words, **most}


def _directory(count: int) -> bytes:
    rows = {f"t{n}": {"dtype": "F32", "shape": [0], "data_offsets": [0, 0]} for n in range(count)}
    head = json.dumps(rows).encode()
    return len(head).to_bytes(8, "little") + head


_DOUBLING = {"type": "Replace", "pattern": {"String": "a"}, "content": "aa"}


def hostile_changes() -> dict[str, Change]:
    """What each changes in a folder with a small model; together they take 1.4 GB."""
    return {
        **{f"a pipe as {name}": _piped(name) for name in _READ},
        **{f"a device as {name}": _linked(name) for name in _READ},
        **{f"3 GiB as {name}": _huge(name) for name in _READ},
        **{f"{name} that is not UTF-8": _written(name, b'{"a": "\xff\xfe"}') for name in _READ},
        **{f"{name} nested deeply": _written(name, '{"a":' * 100_000 + "1" + "}" * 100_000) for name in _READ},
        **{f"{name} that is a list": _written(name, "[]") for name in _READ},
        **{
            f"{kind} of {number}": _settings("config.json", _rope(kind, number))
            for kind in ("yarn", "linear", "llama3", "longrope", "dynamic")
            for number in _NUMBERS
        },
        **{f"{key} of {n}": _settings("config.json", {key: f"@{n}@"}) for key in _SIZES for n in (0, -1, 2**62, 1e300)},
        "normalisers that double": _settings(
            "tokenizer.json", {"normalizer": {"type": "Sequence", "normalizers": [_DOUBLING] * 40}}
        ),
        "a normaliser that writes much": _settings(
            "tokenizer.json", {"normalizer": _DOUBLING | {"pattern": {"Regex": "."}, "content": "b" * 1000}}
        ),
        **{
            f"splits by {pattern}": _settings("tokenizer.json", {"pre_tokenizer": _split(pattern)})
            for pattern in ("(a|a)*b", "(x+x+)+y", r"((.*)*)*\1#", "(a", "a*a*a*a*a*b", r"(\w+\s?)*$")
        },
        "300,000 added tokens": _settings("tokenizer.json", {"added_tokens": _added(300_000)}),
        "long added tokens": _settings("tokenizer.json", {"added_tokens": _added(300, "a" * 20_000 + "{}")}),
        "300,000 added tokens in the settings": _settings(
            "tokenizer_config.json",
            {"added_tokens_decoder": {str(257 + n): {"content": f"<{n}>"} for n in range(300_000)}},
        ),
        "1,000,000 special tokens": _settings("tokenizer.json", {"added_tokens": _added(1_000_000)}),
        "a padding of 1e9": _settings("tokenizer.json", {"padding": _padding(10**9)}),
        "a padding to multiples of 1e9": _settings("tokenizer.json", {"padding": _padding(None, 10**9)}),
        "a truncation with a stride": _settings(
            "tokenizer.json",
            {"truncation": {"direction": "Right", "max_length": 2, "strategy": "LongestFirst", "stride": 1}},
        ),
        **{
            f"a prepend of {count} pieces": _settings(
                "tokenizer.json", {"normalizer": {"type": "Prepend", "prepend": "a " * count}}
            )
            for count in (1_000, 100_000, 5_000_000, 50_000_000)
        },
        **{
            f"a template of {count} pieces": _settings("tokenizer.json", {"post_processor": _processor(count)})
            for count in (1_000, 100_000, 1_000_000)
        },
        "a WordPiece of long words": _settings("tokenizer.json", {"model": _word_piece(2_000, 20_000)}),
        "a WordPiece of endless words": _settings("tokenizer.json", {"model": _word_piece(20_000, 20_000)}),
        "a piece of 30 MB": _settings(
            "tokenizer.json",
            {"model": {"type": "Unigram", "unk_id": 0, "vocab": [["<unk>", 0], ["ab" * 15_000_000, -1]]}},
        ),
        **{
            f"yarn with {key} of {number[:8]}": _settings(
                "config.json", {"rope_scaling": {"rope_type": "yarn", "factor": 2.0, key: f"@{number}@"}}
            )
            for key in ("factor", "attention_factor", "beta_fast", "beta_slow", "mscale", "mscale_all_dim",
                        "original_max_position_embeddings")
            for number in ("1e308", "1e-308", "1e400", "-1", "0", "9" * 400)
        },
        "500,000 tensors": _written("model.safetensors", _directory(500_000)),
        "an index of 500,000 tensors": _written(
            "model.safetensors.index.json", json.dumps({"weight_map": {f"t{n}": f"s{n}" for n in range(500_000)}})
        ),
        "GGUF of 500,000 tensors": _written(
            "model.gguf", struct.pack("<IIQQ", 0x46554747, 3, 500_000, 0) + bytes(1 << 20)
        ),
        **{f"a template: {name}": _written("chat_template.jinja", source) for name, source in WORK.items()},
        **{f"a template that may not: {source[:40]}": _written("chat_template.jinja", source) for source in REFUSED},
        **{f"a template of {name}": _written("chat_template.jinja", source) for name, source in UNREADABLE.items()},
    }  # fmt: skip
