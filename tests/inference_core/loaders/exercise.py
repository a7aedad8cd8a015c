"""What a server does with a model file, up to the point where its weights are known: open, read, tokenise."""

import contextlib
from pathlib import Path

import numpy as np

from inference_core.errors import InvalidRequestError, ModelFileError
from inference_core.loaders.open_checkpoint import open_checkpoint
from inference_core.loaders.packed_tensor import dequantize
from inference_core.tokenization.load_tokenizer import load_tokenizer


def opens(path: Path) -> bool:
    """Whether the weights of the file can be read, all of them; False if it was refused as a bad file."""
    try:
        for tensor in open_checkpoint(path).tensors.values():
            with np.errstate(all="ignore"):
                assert dequantize(tensor).shape == tensor.shape
    except ModelFileError:
        return False
    return True


def tokenises(path: Path) -> bool:
    """Whether the tokeniser of the file works; False if it was refused as a bad file."""
    try:
        tokenizer = load_tokenizer(path)
    except ModelFileError:
        return False
    tokenizer.decode(tokenizer.encode("AB and C", add_special_tokens=True))
    with contextlib.suppress(InvalidRequestError):  # A damaged template may refuse every chat.
        tokenizer.encode_chat([{"role": "user", "content": "AB"}])
    return True
