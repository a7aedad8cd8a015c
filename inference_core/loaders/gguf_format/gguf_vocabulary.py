"""The vocabulary keys of GGUF metadata that both the model's settings and the tokeniser need."""

from enum import IntEnum

import numpy as np
from numpy.typing import NDArray

from inference_core.loaders.gguf_format.gguf_header import GGUFHeader, StringArray


class TokenType(IntEnum):
    """`tokenizer.ggml.token_type` (llama.cpp's `llama_token_type`)."""

    NORMAL = 1
    UNKNOWN = 2
    CONTROL = 3
    USER_DEFINED = 4
    UNUSED = 5
    BYTE = 6


_END_KEYS = ("eos", "eot", "eom")
# Files often name one end token although the model was trained with several: chat models also stop at the base model's
# end of text. Any control token with one of these texts ends a generation.
_END_TEXTS = frozenset(
    {
        "<|endoftext|>",
        "<|im_end|>",
        "<|eot_id|>",
        "<|end_of_text|>",
        "<|eom_id|>",
        "</s>",
        "<end_of_turn>",
        "<|end|>",
        "<|return|>",
        "<|call|>",
    }
)


def token_types(header: GGUFHeader) -> NDArray[np.int32]:
    """One TokenType per token id; empty if the file has none."""
    types = header.metadata.get("tokenizer.ggml.token_type")
    return types.astype(np.int32) if isinstance(types, np.ndarray) else np.empty(0, np.int32)


def end_of_generation_ids(header: GGUFHeader) -> tuple[int, ...]:
    """Ids that end a generation: the file's named one first, no duplicates."""
    ids = [header.metadata.get(f"tokenizer.ggml.{key}_token_id") for key in _END_KEYS]
    found = [value for value in ids if isinstance(value, int)]
    tokens = header.metadata.get("tokenizer.ggml.tokens")
    if isinstance(tokens, StringArray):
        controls = np.flatnonzero(token_types(header)[: len(tokens)] == TokenType.CONTROL)
        found += [int(index) for index in controls if tokens[int(index)] in _END_TEXTS]
    return tuple(dict.fromkeys(found))
